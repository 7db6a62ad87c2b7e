use std::ptr;
use std::time::Instant;

use fake_ibverbs::{DeviceSpec, Fake};
use gdr_verbs_sys::ibv_qp_create_send_ops_flags as Operations;
use gdr_verbs_sys::*;

use crate::connection::*;

/// Returns a side with extended queues.
fn extended(verbs: &'static Verbs, name: &str) -> (Side, *mut ibv_cq_ex, *mut ibv_qp_ex) {
    let context = open(verbs, name);
    // SAFETY: the context and its objects are alive until the side is closed.
    unsafe {
        let domain = verbs.ibv_alloc_pd(context).unwrap().as_ptr();
        let mut wanted = ibv_cq_init_attr_ex {
            cqe: 16,
            wc_flags: u64::from(ibv_create_cq_wc_flags::IBV_WC_EX_WITH_BYTE_LEN.0),
            ..Default::default()
        };
        let queue = ibv_create_cq_ex(context, &mut wanted).unwrap();
        let plain = ibv_cq_ex_to_cq(queue).as_ptr();
        let operations = Operations::IBV_QP_EX_WITH_RDMA_WRITE | Operations::IBV_QP_EX_WITH_SEND;
        let mut init = ibv_qp_init_attr_ex {
            send_cq: plain,
            recv_cq: plain,
            qp_type: ibv_qp_type::IBV_QPT_RC,
            pd: domain,
            comp_mask: (ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD
                | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
                .0,
            send_ops_flags: u64::from(operations.0),
            ..Default::default()
        };
        init.cap.max_send_wr = 4;
        init.cap.max_recv_wr = 4;
        init.cap.max_inline_data = 64;
        let pair = verbs.ibv_create_qp_ex(context, &mut init).unwrap().as_ptr();
        let built = verbs.ibv_qp_to_qp_ex(pair).unwrap().as_ptr();
        let side = Side {
            verbs,
            context,
            domain,
            channel: ptr::null_mut(),
            queue: plain,
            pair,
        };
        (side, queue.as_ptr(), built)
    }
}

/// Starts polling at the next completion.
///
/// # Safety
///
/// The queue is alive, and not polled.
unsafe fn start(queue: *mut ibv_cq_ex) -> Result<Polled, VerbError> {
    let until = Instant::now() + LIMIT;
    loop {
        // SAFETY: the contract of this function.
        let polled = unsafe { ibv_start_poll(queue) };
        if polled != Ok(Polled::Empty) || Instant::now() > until {
            return polled;
        }
        std::thread::yield_now();
    }
}

#[test]
fn extended_queues_post_requests_and_read_completions_by_field() {
    let fake = two_devices();
    let verbs = fake.verbs();
    let (a, queue, pair) = extended(verbs, "mlx5_0");
    let b = Side::new(verbs, "mlx5_1");
    connect(&a, &b, FOREVER);
    let (mut near, mut far) = (vec![9; 4], vec![0; 4]);
    let source = a.register(&mut near, all_access());
    let target = b.register(&mut far, all_access());
    let (from, to) = (segment(source, 0, 16), segment(target, 8, 16));
    // SAFETY: queue pair, queue, regions and their memory are alive; each request is
    // started, described and completed in order.
    unsafe {
        ibv_wr_start(pair).unwrap();
        (*pair).wr_id = 4;
        (*pair).wr_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        ibv_wr_rdma_write(pair, to.lkey, to.addr).unwrap();
        ibv_wr_set_sge(pair, from.lkey, from.addr, from.length).unwrap();
        assert!(
            ibv_wr_rdma_read(pair, to.lkey, to.addr).is_err(),
            "not asked for"
        );
        ibv_wr_complete(pair).unwrap();
        assert_eq!(start(queue), Ok(Polled::Completion));
        assert_eq!(
            ((*queue).wr_id, (*queue).status),
            (4, ibv_wc_status::IBV_WC_SUCCESS)
        );
        assert_eq!(
            ibv_wc_read_opcode(queue),
            Ok(ibv_wc_opcode::IBV_WC_RDMA_WRITE)
        );
        assert!(ibv_wc_read_imm_data(queue).is_err(), "not asked for");
        assert_eq!(ibv_next_poll(queue), Ok(Polled::Empty));
        ibv_end_poll(queue).unwrap();
        assert_eq!(ibv_start_poll(queue), Ok(Polled::Empty));

        ibv_wr_start(pair).unwrap();
        ibv_wr_rdma_write(pair, to.lkey, to.addr).unwrap();
        let word = 1_u64;
        ibv_wr_set_inline_data(pair, (&raw const word).cast_mut().cast(), 8).unwrap();
        ibv_wr_abort(pair).unwrap();
    }
    assert_eq!(far, [0, 9, 9, 0]);
    a.deregister(source);
    b.deregister(target);
    a.close();
    b.close();
    fake.assert_clean();
}

#[test]
fn a_device_without_extended_queues_rejects_them() {
    let fake = Fake::load();
    fake.add(DeviceSpec::rxe("rxe0", FIRST));
    let side = Side::new(fake.verbs(), "rxe0");
    let mut wanted = ibv_cq_init_attr_ex::default();
    // SAFETY: the context is open.
    let error = unsafe { ibv_create_cq_ex(side.context, &mut wanted) }.unwrap_err();
    let verb = "ibv_create_cq_ex";
    assert_eq!(error, VerbError::NotInProvider { verb });
    let mut init = ibv_qp_init_attr_ex {
        comp_mask: !0,
        pd: ptr::null_mut(),
        ..Default::default()
    };
    // SAFETY: as above.
    let error = unsafe { side.verbs.ibv_create_qp_ex(side.context, &mut init) }.unwrap_err();
    let verb = "ibv_create_qp_ex";
    assert_eq!(error, VerbError::NotInProvider { verb });
    side.close();
    fake.assert_clean();
}
