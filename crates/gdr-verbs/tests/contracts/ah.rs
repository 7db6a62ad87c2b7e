//! ibv_create_ah(3) and ibv_create_ah_from_wc(3).

use gdr_verbs_sys::*;

use crate::side::*;
use crate::verbs::{self, errno};

#[test]
fn a_path_needs_a_global_header() {
    let side = Side::new(ibv_qp_type::IBV_QPT_UD);
    type Change = fn(&mut ibv_ah_attr);
    let invalid: [Change; 3] = [
        |path| path.is_global = 0,
        |path| path.port_num = 2,
        |path| path.grh.sgid_index = 200,
    ];
    for change in invalid {
        let mut path = side.path();
        change(&mut path);
        // SAFETY: the domain is alive.
        assert!(unsafe { verbs::ibv_create_ah(side.domain, &mut path) }.is_null());
        assert_eq!(errno(), libc::EINVAL);
    }
    // SAFETY: the domain exists; the library checks the handle that was destroyed.
    unsafe {
        let ah = verbs::ibv_create_ah(side.domain, &mut side.path());
        assert!(!ah.is_null());
        assert_eq!(verbs::ibv_destroy_ah(ah), 0);
        assert_eq!(verbs::ibv_destroy_ah(ah), libc::EINVAL);
        assert!(verbs::ibv_create_ah(side.queue.cast(), &mut side.path()).is_null());
        assert_eq!(errno(), libc::EINVAL);
    }
    side.close();
}

#[test]
fn the_path_of_a_received_datagram_makes_a_handle() {
    let (a, b) = sides_of(ibv_qp_type::IBV_QPT_UD);
    let mut words = vec![0_u64; 8];
    let region = b.register(&mut words);
    b.receive(1, &mut [segment(region, 0, 64)]).unwrap();
    // SAFETY: the domain is alive.
    let ah = unsafe { verbs::ibv_create_ah(a.domain, &mut a.path()) };
    let mut wr = ibv_send_wr {
        opcode: ibv_wr_opcode::IBV_WR_SEND,
        ..Default::default()
    };
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = b.number();
    wr.wr.ud.remote_qkey = QKEY;
    a.send(wr, &mut []).unwrap();
    let mut wc = b.completion();
    deregister(region);
    let header = words.as_mut_ptr().cast();
    let mut path = ibv_ah_attr::default();
    // SAFETY: completion and header belong to a datagram.
    unsafe {
        let init = verbs::ibv_init_ah_from_wc;
        assert_eq!(init(b.context, 1, &mut wc, header, &mut path), 0);
        let back = verbs::ibv_create_ah(b.domain, &mut path);
        assert!(!back.is_null());
        let same = verbs::ibv_create_ah_from_wc(b.domain, &mut wc, header, 1);
        assert!(!same.is_null());
        assert_eq!(init(b.context, 2, &mut wc, header, &mut path), -1);
        assert!(verbs::ibv_create_ah_from_wc(b.domain, &mut wc, header, 2).is_null());
        assert_eq!(errno(), libc::EINVAL);
        for ah in [ah, back, same] {
            assert_eq!(verbs::ibv_destroy_ah(ah), 0);
        }
    }
    a.close();
    b.close();
}
