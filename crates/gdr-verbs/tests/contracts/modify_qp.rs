//! ibv_modify_qp(3).

use gdr_verbs_sys::ibv_qp_attr_mask as Mask;
use gdr_verbs_sys::ibv_qp_state as State;
use gdr_verbs_sys::ibv_qp_type as Type;
use gdr_verbs_sys::*;

use crate::side::*;
use crate::verbs;

const STEPS: [State; 3] = [State::IBV_QPS_INIT, State::IBV_QPS_RTR, State::IBV_QPS_RTS];

/// Returns the attributes of a query as text, without padding.
fn seen(side: &Side) -> String {
    let (attr, _) = side.query();
    // SAFETY: every byte pattern of the union is valid.
    let to = unsafe { attr.ah_attr.grh.dgid.raw };
    format!(
        "{:?}",
        (
            (
                attr.qp_state,
                attr.path_mtu,
                attr.qkey,
                attr.rq_psn,
                attr.sq_psn
            ),
            (attr.dest_qp_num, attr.qp_access_flags, attr.port_num, to),
            (
                attr.max_rd_atomic,
                attr.max_dest_rd_atomic,
                attr.min_rnr_timer
            ),
            (attr.timeout, attr.retry_cnt, attr.rnr_retry),
        )
    )
}

fn modify(side: &Side, attr: &mut ibv_qp_attr, mask: Mask) -> i32 {
    // SAFETY: the queue pair is alive.
    unsafe { verbs::ibv_modify_qp(side.pair, attr, mask.0.cast_signed()) }
}

#[test]
fn each_change_of_state_needs_the_attributes_of_its_table() {
    for kind in [Type::IBV_QPT_RC, Type::IBV_QPT_UC, Type::IBV_QPT_UD] {
        let side = Side::new(kind);
        for to in STEPS {
            let (mut attr, mask) = side.change_to(to, side.number());
            let before = seen(&side);
            let required = (0..32).map(|bit| Mask(1 << bit));
            let required = required.filter(|bit| mask.contains(*bit) && *bit != Mask::IBV_QP_STATE);
            for missing in required {
                let mask = Mask(mask.0 & !missing.0);
                let changed = modify(&side, &mut attr, mask);
                assert_eq!(changed, libc::EINVAL, "{kind} {to} {missing:?}");
                assert_eq!(seen(&side), before, "{kind} {to} {missing:?}");
            }
            assert_eq!(modify(&side, &mut attr, mask), 0, "{kind} {to}");
        }
        side.close();
    }
}

#[test]
fn none_of_the_attributes_is_modified_if_one_is_invalid() {
    type Change = fn(&mut ibv_qp_attr);
    let invalid: [(State, Change); 12] = [
        (State::IBV_QPS_INIT, |attr| attr.port_num = 2),
        (State::IBV_QPS_INIT, |attr| attr.pkey_index = 1),
        (State::IBV_QPS_INIT, |attr| attr.qp_access_flags = 1 << 19),
        (State::IBV_QPS_RTR, |attr| attr.path_mtu = ibv_mtu(9)),
        (State::IBV_QPS_RTR, |attr| attr.path_mtu = ibv_mtu(0)),
        (State::IBV_QPS_RTR, |attr| attr.max_dest_rd_atomic = 17),
        (State::IBV_QPS_RTR, |attr| attr.ah_attr.is_global = 0),
        (State::IBV_QPS_RTR, |attr| attr.ah_attr.grh.sgid_index = 200),
        (State::IBV_QPS_RTR, |attr| {
            attr.ah_attr.grh.dgid = ibv_gid { raw: [0; 16] }
        }),
        (State::IBV_QPS_RTS, |attr| attr.timeout = 32),
        (State::IBV_QPS_RTS, |attr| attr.retry_cnt = 8),
        (State::IBV_QPS_RTS, |attr| attr.rnr_retry = 8),
    ];
    let side = Side::new(Type::IBV_QPT_RC);
    for to in STEPS {
        let (valid, mask) = side.change_to(to, side.number());
        let before = seen(&side);
        for (n, (_, change)) in invalid.iter().enumerate().filter(|(_, (of, _))| *of == to) {
            let mut attr = valid;
            change(&mut attr);
            assert_eq!(modify(&side, &mut attr, mask), libc::EINVAL, "{n}");
            assert_eq!(seen(&side), before, "{n}");
        }
        let mut attr = valid;
        // Unknown bits, and attributes that this transition does not permit.
        for (more, errno) in [
            (Mask(1 << 31), libc::EOPNOTSUPP),
            (Mask::IBV_QP_CAP, libc::EINVAL),
            (Mask::IBV_QP_QKEY, libc::EINVAL),
        ] {
            assert_eq!(modify(&side, &mut attr, mask | more), errno, "{more:?}");
            assert_eq!(seen(&side), before, "{more:?}");
        }
        assert_eq!(modify(&side, &mut attr, mask), 0);
    }
    // The same holds for a transition that permits several attributes.
    side.to_state(State::IBV_QPS_SQD).unwrap();
    let before = seen(&side);
    let mut attr = ibv_qp_attr {
        qp_state: State::IBV_QPS_RTS,
        qp_access_flags: 0,
        min_rnr_timer: 3,
        timeout: 5,
        retry_cnt: 8,
        ..Default::default()
    };
    let mask = Mask::IBV_QP_ACCESS_FLAGS
        | Mask::IBV_QP_MIN_RNR_TIMER
        | Mask::IBV_QP_TIMEOUT
        | Mask::IBV_QP_RETRY_CNT;
    assert_eq!(modify(&side, &mut attr, mask), libc::EINVAL);
    assert_eq!(seen(&side), before);
    side.close();
}

#[test]
fn what_the_capability_flags_do_not_offer_is_refused() {
    let side = Side::new(Type::IBV_QPT_RC);
    let mut attr = ibv_device_attr::default();
    // SAFETY: the context is open.
    let queried = unsafe { verbs::ibv_query_device(side.context, &mut attr) };
    assert_eq!(queried, 0);
    let flags = ibv_device_cap_flags(attr.device_cap_flags);
    assert!(!flags.contains(ibv_device_cap_flags::IBV_DEVICE_RESIZE_MAX_WR));
    assert!(!flags.contains(ibv_device_cap_flags::IBV_DEVICE_AUTO_PATH_MIG));
    side.to_init().unwrap();
    side.to_rtr(side.number()).unwrap();
    let (mut attr, mask) = side.change_to(State::IBV_QPS_RTS, 0);
    let before = seen(&side);
    attr.path_mig_state = ibv_mig_state::IBV_MIG_REARM;
    for more in [Mask::IBV_QP_ALT_PATH, Mask::IBV_QP_PATH_MIG_STATE] {
        assert_eq!(
            modify(&side, &mut attr, mask | more),
            libc::EINVAL,
            "{more:?}"
        );
        assert_eq!(seen(&side), before);
    }
    side.close();
}

#[test]
fn a_queue_pair_that_is_gone_cannot_be_modified() {
    let side = Side::new(Type::IBV_QPT_RC);
    let (mut attr, mask) = side.change_to(State::IBV_QPS_INIT, 0);
    // SAFETY: a handle, which the library checks.
    let changed =
        unsafe { verbs::ibv_modify_qp(side.queue.cast(), &mut attr, mask.0.cast_signed()) };
    assert_eq!(changed, libc::EINVAL);
    side.close();
}
