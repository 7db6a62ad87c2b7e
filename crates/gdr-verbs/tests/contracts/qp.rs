//! ibv_create_qp(3), ibv_create_qp_ex(3), ibv_query_qp(3) and ibv_create_flow(3). The frames that a flow selects are
//! tested in raw_packets, which has interfaces for them.

use gdr_verbs_sys::ibv_qp_type as Type;
use gdr_verbs_sys::*;

use crate::side::*;
use crate::srq::shared_queue;
use crate::verbs::{self, errno};

fn init(side: &Side, kind: Type) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        send_cq: side.queue,
        recv_cq: side.queue,
        qp_type: kind,
        ..Default::default()
    }
}

#[test]
fn the_capabilities_that_come_back_are_at_least_those_that_were_asked_for() {
    let side = Side::new(Type::IBV_QPT_RC);
    let mut init = init(&side, Type::IBV_QPT_RC);
    let wanted = ibv_qp_cap {
        max_send_wr: 3,
        max_recv_wr: 5,
        max_send_sge: 0,
        max_recv_sge: 7,
        max_inline_data: 33,
    };
    init.cap = wanted;
    // SAFETY: the objects are alive.
    unsafe {
        let pair = verbs::ibv_create_qp(side.domain, &mut init);
        assert_ne!((*pair).qp_num, 0);
        let (mut attr, mut made) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        assert_eq!(verbs::ibv_query_qp(pair, &mut attr, 1, &mut made), 0);
        for cap in [init.cap, made.cap] {
            assert!(cap.max_send_wr >= wanted.max_send_wr);
            assert!(cap.max_recv_wr >= wanted.max_recv_wr);
            assert!(cap.max_send_sge >= wanted.max_send_sge);
            assert!(cap.max_recv_sge >= wanted.max_recv_sge);
            assert!(cap.max_inline_data >= wanted.max_inline_data);
        }
        // rdma_xclient sends 16 bytes inline but requests none.
        let mut none = self::init(&side, Type::IBV_QPT_RC);
        none.cap.max_inline_data = 0;
        let other = verbs::ibv_create_qp(side.domain, &mut none);
        assert!(none.cap.max_inline_data >= 16);
        assert_eq!(verbs::ibv_destroy_qp(other), 0);
        assert_eq!(verbs::ibv_destroy_qp(pair), 0);
        assert_eq!(verbs::ibv_destroy_qp(pair), libc::EINVAL);
        let gone = verbs::ibv_query_qp(pair, &mut attr, 1, &mut made);
        assert_eq!(gone, libc::EINVAL);
    }
    side.close();
}

#[test]
fn sizes_of_receives_are_ignored_with_a_shared_receive_queue() {
    let side = Side::new(Type::IBV_QPT_RC);
    let shared = shared_queue(&side, 4, 1);
    // Network cards support UC as well.
    for kind in [Type::IBV_QPT_RC, Type::IBV_QPT_UC, Type::IBV_QPT_UD] {
        let mut init = init(&side, kind);
        init.srq = shared;
        init.cap.max_recv_wr = u32::MAX;
        init.cap.max_recv_sge = u32::MAX;
        // SAFETY: the objects are alive.
        unsafe {
            let pair = verbs::ibv_create_qp(side.domain, &mut init);
            assert!(!pair.is_null(), "{kind}");
            assert_eq!(verbs::ibv_destroy_qp(pair), 0);
        }
    }
    // SAFETY: nothing uses it any more.
    assert_eq!(unsafe { verbs::ibv_destroy_srq(shared) }, 0);
    side.close();
}

#[test]
fn a_creation_that_fails_returns_null_and_sets_errno() {
    let side = Side::new(Type::IBV_QPT_RC);
    type Change = fn(&mut ibv_qp_init_attr);
    let refused: [(Change, i32); 7] = [
        (|init| init.cap.max_send_wr = u32::MAX, libc::EINVAL),
        (|init| init.cap.max_recv_wr = u32::MAX, libc::EINVAL),
        (|init| init.cap.max_send_sge = u32::MAX, libc::EINVAL),
        (|init| init.cap.max_inline_data = u32::MAX, libc::EINVAL),
        (|init| init.send_cq = std::ptr::null_mut(), libc::EINVAL),
        // Types without a transport service.
        (|init| init.qp_type = Type::IBV_QPT_DRIVER, libc::EOPNOTSUPP),
        (|init| init.qp_type = Type(77), libc::EOPNOTSUPP),
    ];
    for (n, (change, expected)) in refused.into_iter().enumerate() {
        let mut init = init(&side, Type::IBV_QPT_RC);
        change(&mut init);
        // SAFETY: the library checks the attributes.
        let pair = unsafe { verbs::ibv_create_qp(side.domain, &mut init) };
        assert!(pair.is_null(), "{n}");
        assert_eq!(errno(), expected, "{n}");
    }
    side.close();
}

#[test]
fn only_a_queue_pair_with_send_operations_has_the_extended_interface() {
    let side = Side::new(Type::IBV_QPT_RC);
    let mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD;
    let mut init = ibv_qp_init_attr_ex {
        send_cq: side.queue,
        recv_cq: side.queue,
        qp_type: Type::IBV_QPT_RC,
        pd: side.domain,
        comp_mask: mask.0,
        ..Default::default()
    };
    // SAFETY: the objects are alive.
    unsafe {
        let plain = library()
            .ibv_create_qp_ex(side.context, &mut init)
            .unwrap()
            .as_ptr();
        assert!(verbs::ibv_qp_to_qp_ex(plain).is_null());
        init.comp_mask |= ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
        let extended = library()
            .ibv_create_qp_ex(side.context, &mut init)
            .unwrap()
            .as_ptr();
        assert!(!verbs::ibv_qp_to_qp_ex(extended).is_null());
        for pair in [plain, extended] {
            assert_eq!(verbs::ibv_destroy_qp(pair), 0);
        }
    }
    side.close();
}

#[test]
fn a_queue_pair_of_another_service_and_a_flow_that_is_none_are_invalid() {
    for kind in [Type::IBV_QPT_RC, Type::IBV_QPT_UC] {
        let side = Side::new(kind);
        let mut attr = ibv_flow_attr {
            size: size_of::<ibv_flow_attr>() as u16,
            port: 1,
            ..Default::default()
        };
        // SAFETY: the queue pair is alive; the attributes have no specification.
        let made = unsafe { ibv_create_flow(side.pair, &mut attr) };
        assert_eq!(made.unwrap_err().errno(), Errno::EINVAL);
        let mut none = ibv_flow {
            comp_mask: 0,
            context: side.context,
            handle: 1,
        };
        // SAFETY: a structure that is not a flow, which the library checks.
        let destroyed = unsafe { ibv_destroy_flow(&mut none) };
        assert_eq!(destroyed.unwrap_err().errno(), Errno::EINVAL);
        side.close();
    }
}
