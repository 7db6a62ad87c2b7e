//! ibv_reg_mr(3) and ibv_rereg_mr(3).

use gdr_verbs_sys::ibv_access_flags as Access;
use gdr_verbs_sys::*;

use crate::side::*;
use crate::verbs::{self, errno};

fn register(side: &Side, words: &mut [u64], access: Access) -> *mut ibv_mr {
    let (address, len) = (words.as_mut_ptr().cast(), size_of_val(words));
    // SAFETY: the words live longer than the region.
    unsafe { verbs::ibv_reg_mr(side.domain, address, len, access.0.cast_signed()) }
}

#[test]
fn rights_of_peers_to_write_need_that_of_this_side() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let mut words = vec![0; 4];
    let local = Access::IBV_ACCESS_LOCAL_WRITE;
    for of_peer in [
        Access::IBV_ACCESS_REMOTE_WRITE,
        Access::IBV_ACCESS_REMOTE_ATOMIC,
        Access::IBV_ACCESS_REMOTE_WRITE | Access::IBV_ACCESS_REMOTE_READ,
    ] {
        assert!(register(&side, &mut words, of_peer).is_null());
        assert_eq!(errno(), libc::EINVAL);
        let region = register(&side, &mut words, of_peer | local);
        assert!(!region.is_null());
        // SAFETY: the region is alive.
        unsafe {
            let flags = of_peer.0.cast_signed();
            let (same, nothing) = (side.domain, std::ptr::null_mut());
            // `IBV_REREG_MR_CHANGE_ACCESS`.
            assert_eq!(verbs::ibv_rereg_mr(region, 4, same, nothing, 0, flags), -1);
            assert_eq!(verbs::ibv_dereg_mr(region), 0);
        }
    }
    // A region that peers only read needs no local access.
    let region = register(&side, &mut words, Access::IBV_ACCESS_REMOTE_READ);
    // SAFETY: the region is alive, once.
    unsafe {
        assert_eq!(verbs::ibv_dereg_mr(region), 0);
        assert_eq!(verbs::ibv_dereg_mr(region), libc::EINVAL);
    }
    side.close();
}

#[test]
fn keys_are_those_of_requests_and_of_the_peer() {
    let (a, b) = sides();
    let (mut near, mut far) = (vec![7], vec![0]);
    let (source, target) = (a.register(&mut near), b.register(&mut far));
    let write = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, target, 0);
    a.send(write, &mut [segment(source, 0, 8)]).unwrap();
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_SUCCESS);
    deregister(source);
    deregister(target);
    assert_eq!(far, [7]);
    a.close();
    b.close();
}

#[test]
fn a_region_that_could_not_be_changed_is_still_to_be_deregistered() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let mut words = vec![0; 4];
    let region = register(&side, &mut words, all_access());
    let unmapped = std::ptr::without_provenance_mut(0x1000);
    // SAFETY: the library checks the memory.
    unsafe {
        // `IBV_REREG_MR_CHANGE_TRANSLATION`, which fails with `IBV_REREG_MR_ERR_INPUT`: the old region stays valid.
        let changed = verbs::ibv_rereg_mr(region, 1, side.domain, unmapped, 64, 0);
        assert_eq!(changed, -1);
        assert_eq!(verbs::ibv_dereg_mr(region), 0);
        let gone = verbs::ibv_rereg_mr(region, 4, side.domain, unmapped, 0, 1);
        assert_eq!((gone, errno()), (-1, libc::EINVAL));
    }
    side.close();
}

#[test]
fn a_registration_that_fails_returns_null_and_sets_errno() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let unmapped = std::ptr::without_provenance_mut(0x1000);
    // SAFETY: the library checks the memory and the handle.
    unsafe {
        assert!(verbs::ibv_reg_mr(side.domain, unmapped, 64, 1).is_null());
        assert_eq!(errno(), libc::EFAULT);
        assert!(verbs::ibv_reg_mr(side.queue.cast(), unmapped, 64, 1).is_null());
        assert_eq!(errno(), libc::EINVAL);
    }
    side.close();
}
