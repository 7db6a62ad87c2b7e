//! ibv_attach_mcast(3) and ibv_detach_mcast(3).

use std::net::Ipv4Addr;

use gdr_verbs_sys::*;

use crate::side::*;
use crate::verbs;

fn gid_of(group: Ipv4Addr) -> ibv_gid {
    ibv_gid {
        raw: group.to_ipv6_mapped().octets(),
    }
}

#[test]
fn only_a_queue_pair_of_datagrams_is_attached_and_only_to_a_group() {
    let side = Side::new(ibv_qp_type::IBV_QPT_UD);
    let connected = Side::new(ibv_qp_type::IBV_QPT_RC);
    let (group, host) = (
        gid_of(Ipv4Addr::new(239, 3, 3, 3)),
        gid_of(Ipv4Addr::LOCALHOST),
    );
    // SAFETY: the queue pairs are alive, and other handles are checked; the GIDs are readable.
    unsafe {
        let attach = |qp, gid: &ibv_gid| verbs::ibv_attach_mcast(qp, gid, 0);
        let detach = |qp, gid: &ibv_gid| verbs::ibv_detach_mcast(qp, gid, 0);
        assert_eq!(attach(connected.pair, &group), libc::EINVAL);
        assert_eq!(attach(side.pair, &host), libc::EINVAL);
        assert_eq!(attach(side.queue.cast(), &group), libc::EINVAL);
        assert_eq!(detach(side.pair, &group), libc::EINVAL);
        assert_eq!(attach(side.pair, &group), 0);
        assert_eq!(attach(side.pair, &group), 0);
        assert_eq!(detach(side.pair, &host), libc::EINVAL);
        assert_eq!(detach(side.pair, &group), 0);
        assert_eq!(detach(side.pair, &group), libc::EINVAL);
        let mut attr = ibv_device_attr::default();
        assert_eq!(verbs::ibv_query_device(side.context, &mut attr), 0);
        assert!(attr.max_mcast_grp > 0 && attr.max_mcast_qp_attach > 0);
        let most = attr.max_mcast_grp * attr.max_mcast_qp_attach;
        assert_eq!(attr.max_total_mcast_qp_attach, most);
    }
    connected.close();
    side.close();
}

#[test]
fn a_message_to_a_group_completes_the_receives_of_those_attached() {
    let (a, b) = sides_of(ibv_qp_type::IBV_QPT_UD);
    let gid = gid_of(Ipv4Addr::new(239, 3, 3, 4));
    let mut words = vec![0_u64; 8];
    let region = b.register(&mut words);
    b.receive(1, &mut [segment(region, 0, 64)]).unwrap();
    let mut path = a.path();
    path.grh.dgid = gid;
    // SAFETY: domain and queue pair are alive; the arguments are readable.
    let ah = unsafe {
        assert_eq!(verbs::ibv_attach_mcast(b.pair, &gid, 0), 0);
        verbs::ibv_create_ah(a.domain, &mut path)
    };
    assert!(!ah.is_null());
    let mut wr = ibv_send_wr {
        opcode: ibv_wr_opcode::IBV_WR_SEND,
        ..Default::default()
    };
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = 0xff_ffff;
    wr.wr.ud.remote_qkey = QKEY;
    a.send(wr, &mut []).unwrap();
    let received = b.completion();
    assert_eq!(received.status, ibv_wc_status::IBV_WC_SUCCESS);
    assert_eq!((received.qp_num, received.src_qp), (b.number(), a.number()));
    deregister(region);
    // SAFETY: made above.
    assert_eq!(unsafe { verbs::ibv_destroy_ah(ah) }, 0);
    a.close();
    b.close();
}
