use fake_ibverbs::{Fault, Kind};
use gdr_verbs_sys::*;

use crate::connection::*;

/// Returns the status of a WRITE of 8 bytes to this offset at the peer.
fn write_status(a: &Side, b: &Side, offset: u64, access: ibv_access_flags) -> ibv_wc_status {
    let (mut near, mut far) = (vec![1; 8], vec![0; 8]);
    let source = a.register(&mut near, all_access());
    let target = b.register(&mut far, access);
    let write = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, target, offset);
    a.send(write, &mut [segment(source, 0, 8)]).unwrap();
    let status = a.completion().status;
    let placed = far.iter().any(|word| *word != 0);
    assert_eq!(placed, status == ibv_wc_status::IBV_WC_SUCCESS);
    a.deregister(source);
    b.deregister(target);
    status
}

#[test]
fn access_without_permission_is_rejected_and_breaks_the_connection() {
    let read_only = ibv_access_flags::IBV_ACCESS_REMOTE_READ;
    for (offset, access) in [(0, read_only), (60, all_access())] {
        let fake = two_devices();
        let (a, b) = sides(&fake);
        let status = write_status(&a, &b, offset, access);
        assert_eq!(status, ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
        assert_eq!(a.state(), ibv_qp_state::IBV_QPS_ERR);
        assert_eq!(b.state(), ibv_qp_state::IBV_QPS_ERR);
        a.close();
        b.close();
        fake.assert_clean();
    }
}

#[test]
fn a_message_longer_than_its_receive_fails_on_both_sides() {
    let fake = two_devices();
    let (a, b) = sides(&fake);
    let (mut near, mut far) = (vec![1; 8], vec![0; 8]);
    let source = a.register(&mut near, all_access());
    let target = b.register(&mut far, all_access());
    b.receive(5, &mut [segment(target, 0, 16)]).unwrap();
    b.receive(6, &mut [segment(target, 0, 16)]).unwrap();
    let send = request(1, ibv_wr_opcode::IBV_WR_SEND, target, 0);
    a.send(send, &mut [segment(source, 0, 17)]).unwrap();
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_REM_INV_REQ_ERR);
    let (first, second) = (b.completion(), b.completion());
    assert_eq!(
        (first.wr_id, first.status),
        (5, ibv_wc_status::IBV_WC_LOC_LEN_ERR)
    );
    assert_eq!(
        (second.wr_id, second.status),
        (6, ibv_wc_status::IBV_WC_WR_FLUSH_ERR)
    );
    assert_eq!(far[0], 0);
    a.deregister(source);
    b.deregister(target);
    a.close();
    b.close();
    fake.assert_clean();
}

#[test]
fn a_transfer_fails_after_its_retries_if_the_port_goes_down() {
    let fake = two_devices();
    let (a, b) = sides(&fake);
    let (mut near, mut far) = (vec![1; 8], vec![0; 8]);
    let source = a.register(&mut near, all_access());
    let target = b.register(&mut far, all_access());
    fake.fault("mlx5_0", Fault::Hold(true));
    let write = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, target, 0);
    a.send(write, &mut [segment(source, 0, 8)]).unwrap();
    assert!(a.poll().is_none());
    let down = Fault::Port(1, ibv_port_state::IBV_PORT_DOWN.0);
    fake.fault("mlx5_0", down);
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
    assert_eq!(far[0], 0);
    a.deregister(source);
    b.deregister(target);
    a.close();
    b.close();
    fake.assert_clean();
}

#[test]
fn a_request_sets_the_status_of_the_next_transfer() {
    let fake = two_devices();
    let (a, b) = sides(&fake);
    fake.fault("mlx5_0", Fault::EndNext(77, 0x51));
    let (mut near, mut far) = (vec![1; 8], vec![0; 8]);
    let source = a.register(&mut near, all_access());
    let target = b.register(&mut far, all_access());
    let write = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, target, 0);
    a.send(write, &mut [segment(source, 0, 8)]).unwrap();
    let completion = a.completion();
    assert_eq!(completion.status.to_string(), "ibv_wc_status 77");
    assert_eq!(completion.vendor_err, 0x51);
    a.deregister(source);
    b.deregister(target);
    a.close();
    b.close();
    fake.assert_clean();
}

#[test]
fn each_state_change_requires_its_order_and_attributes() {
    let fake = two_devices();
    let verbs = fake.verbs();
    let (a, b) = (Side::new(verbs, "mlx5_0"), Side::new(verbs, "mlx5_1"));
    let refused = |answer: Result<(), VerbError>| answer.unwrap_err().errno();
    assert_eq!(refused(a.to_rts(FOREVER)), Errno::EINVAL);
    assert_eq!(a.receive(1, &mut []), Err(Errno::EINVAL));
    a.to_init().unwrap();
    a.receive(1, &mut []).unwrap();
    let mut attr = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_RTR,
        ..Default::default()
    };
    assert_eq!(
        refused(a.modify(&mut attr, ibv_qp_attr_mask::IBV_QP_STATE)),
        Errno::EINVAL
    );
    let verb = "ibv_modify_qp RTR".to_owned();
    fake.fault("mlx5_0", Fault::Refuse(verb, libc::ENETUNREACH, 1));
    assert_eq!(refused(a.to_rtr(&b)), Errno(libc::ENETUNREACH));
    a.to_rtr(&b).unwrap();
    a.to_rts(FOREVER).unwrap();
    assert_eq!(a.state(), ibv_qp_state::IBV_QPS_RTS);
    a.close();
    b.close();
    fake.assert_clean();
}

#[test]
fn objects_of_a_failed_device_can_be_destroyed() {
    let fake = two_devices();
    let (a, b) = sides(&fake);
    a.receive(3, &mut []).unwrap();
    fake.fault("mlx5_0", Fault::Fatal);
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
    // SAFETY: the context is open.
    let error = unsafe { a.verbs.query_port(a.context, 1) }.unwrap_err();
    assert_eq!(error.errno(), Errno::EIO);
    a.close();
    b.close();
    fake.assert_clean();
}

#[test]
fn violations_of_the_api_are_recorded() {
    let fake = two_devices();
    let (a, b) = sides(&fake);
    let verbs = a.verbs;
    let mut near = vec![1; 8];
    let region = a.register(&mut near, all_access());
    // SAFETY: this library rejects the destruction of objects in use or already destroyed.
    unsafe {
        assert_eq!(
            verbs.ibv_dealloc_pd(a.domain).unwrap_err().errno(),
            Errno::EBUSY
        );
        assert_eq!(
            verbs.ibv_destroy_cq(a.queue).unwrap_err().errno(),
            Errno::EBUSY
        );
        assert_eq!(fake.report().violations, Vec::<String>::new());
        verbs.ibv_dereg_mr(region.as_ptr()).unwrap();
        assert!(verbs.ibv_dereg_mr(region.as_ptr()).is_err());
    }
    let violations = fake.report().violations;
    assert_eq!(
        violations,
        ["ibv_dereg_mr: the region does not exist or was destroyed"]
    );
    assert_eq!(fake.live("mlx5_0", Kind::Pair), 1);
    a.close();
    b.close();
}
