//! Memory regions: parts of memory, empty regions, and `ibv_rereg_mr`.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use gdr_verbs_sys::*;

use crate::side::*;

type Rereg =
    unsafe extern "C" fn(*mut ibv_mr, c_int, *mut ibv_pd, *mut c_void, usize, c_int) -> c_int;

const CHANGE_TRANSLATION: c_int = 1;
const CHANGE_PD: c_int = 2;
const CHANGE_ACCESS: c_int = 4;
/// `IBV_REREG_MR_ERR_INPUT`: the region is unchanged.
const ERR_INPUT: c_int = -1;

fn rereg() -> Rereg {
    // SAFETY: the type of this function in rdma-core's header.
    unsafe { typed_function(c"ibv_rereg_mr") }
}

fn no_memory(side: &Side) -> NonNull<ibv_mr> {
    let nowhere = std::ptr::null_mut();
    // SAFETY: the region has no bytes.
    unsafe { library().reg_mr(side.domain, nowhere, 0, all_access()) }.unwrap()
}

/// Returns the key and the address of a region for the peer.
fn remote(region: NonNull<ibv_mr>) -> (u32, u64) {
    // SAFETY: the region is alive.
    let region = unsafe { region.as_ref() };
    (region.rkey, region.addr.addr() as u64)
}

fn write_to(to: (u32, u64)) -> ibv_send_wr {
    let mut wr = ibv_send_wr {
        wr_id: 1,
        opcode: ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
        ..Default::default()
    };
    (wr.wr.rdma.rkey, wr.wr.rdma.remote_addr) = to;
    wr
}

#[test]
fn a_region_of_no_bytes_has_a_key_and_takes_messages_of_no_bytes() {
    let (a, b) = sides();
    let (near, far) = (no_memory(&a), no_memory(&b));
    // SAFETY: both regions are alive.
    let (region, target) = unsafe { (near.as_ref(), far.as_ref()) };
    assert_eq!((region.length, region.addr.is_null()), (0, true));
    assert_ne!(region.lkey, 0);
    let empty = segment(near, 0, 0);
    b.receive(2, &mut [segment(far, 0, 0)]).unwrap();
    let send = ibv_send_wr {
        wr_id: 1,
        opcode: ibv_wr_opcode::IBV_WR_SEND,
        send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
        ..Default::default()
    };
    a.send(send, &mut [empty, empty]).unwrap();
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_SUCCESS);
    let received = b.completion();
    assert_eq!((received.wr_id, received.byte_len), (2, 0));
    for opcode in [
        ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        ibv_wr_opcode::IBV_WR_RDMA_READ,
    ] {
        let mut wr = write_to((target.rkey, 0));
        wr.opcode = opcode;
        a.send(wr, &mut []).unwrap();
        let done = a.completion();
        assert_eq!(
            (done.status, done.byte_len),
            (ibv_wc_status::IBV_WC_SUCCESS, 0)
        );
    }
    // Even one byte exceeds an empty region.
    let mut byte = [0_u64];
    let source = a.register(&mut byte);
    a.send(write_to((target.rkey, 0)), &mut [segment(source, 0, 1)])
        .unwrap();
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
    [near, far, source].into_iter().for_each(deregister);
    a.close();
    b.close();
}

#[test]
fn a_region_of_a_part_of_memory_permits_that_part_only() {
    let mut near = vec![7_u64; 8];
    for (at, len, fits) in [
        (24, 8, true),
        (24, 16, true),
        (23, 8, false),
        (33, 8, false),
    ] {
        let (a, b) = sides();
        let mut words = vec![1_u64; 8];
        // SAFETY: 16 bytes in the middle of the words.
        let address = unsafe { words.as_mut_ptr().cast::<u8>().add(24) };
        // SAFETY: the words live until the region is deregistered.
        let part = unsafe { library().reg_mr(b.domain, address.cast(), 16, all_access()) };
        let part = part.unwrap();
        let source = a.register(&mut near);
        let (key, base) = remote(part);
        let to = (key, base - 24 + at);
        a.send(write_to(to), &mut [segment(source, 0, len)])
            .unwrap();
        let status = a.completion().status;
        let expected = match fits {
            true => ibv_wc_status::IBV_WC_SUCCESS,
            false => ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
        };
        assert_eq!(status, expected, "{at}");
        deregister(part);
        deregister(source);
        if !fits {
            assert_eq!(words, [1; 8]);
        }
        a.close();
        b.close();
    }
}

#[test]
fn a_region_registered_again_has_the_new_memory_and_a_key_for_it() {
    let (a, b) = sides();
    let (mut near, mut old, mut new) = (vec![7_u64; 4], vec![1_u64; 4], vec![2_u64; 4]);
    let (source, target) = (a.register(&mut near), b.register(&mut old));
    let before = remote(target);
    let (address, len) = (new.as_mut_ptr().cast(), size_of_val(&new[..]));
    let access = all_access().0.cast_signed();
    // SAFETY: the region and the new memory exist.
    let changed = unsafe {
        let nothing = std::ptr::null_mut();
        rereg()(
            target.as_ptr(),
            CHANGE_TRANSLATION,
            nothing,
            address,
            len,
            access,
        )
    };
    assert_eq!(changed, 0);
    let after = remote(target);
    assert_eq!(after.1, address.addr() as u64);
    a.send(write_to(after), &mut [segment(source, 0, 32)])
        .unwrap();
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_SUCCESS);
    a.send(write_to(before), &mut [segment(source, 0, 32)])
        .unwrap();
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
    [source, target].into_iter().for_each(deregister);
    assert_eq!((old, new), (vec![1; 4], vec![7; 4]));
    a.close();
    b.close();
}

#[test]
fn a_registration_that_is_refused_leaves_the_region_as_it_was() {
    let (a, b) = sides();
    let (mut near, mut far) = (vec![7_u64; 4], vec![1_u64; 4]);
    let (source, target) = (a.register(&mut near), b.register(&mut far));
    let before = remote(target);
    let unmapped = std::ptr::without_provenance_mut(0x1000);
    let access = all_access().0.cast_signed();
    let nothing = std::ptr::null_mut();
    let refused = [
        (CHANGE_TRANSLATION, b.domain, unmapped, 64, access),
        (CHANGE_PD, a.domain, nothing, 0, access),
        (CHANGE_PD, std::ptr::null_mut(), nothing, 0, access),
        (CHANGE_ACCESS, b.domain, nothing, 0, 1 << 12),
        (0, b.domain, nothing, 0, access),
        (8, b.domain, nothing, 0, access),
    ];
    for (flags, domain, address, len, access) in refused {
        // SAFETY: the region is alive, and the library checks the rest.
        let changed = unsafe { rereg()(target.as_ptr(), flags, domain, address, len, access) };
        assert_eq!(changed, ERR_INPUT, "{flags}");
        assert_eq!(remote(target), before);
    }
    a.send(write_to(before), &mut [segment(source, 0, 32)])
        .unwrap();
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_SUCCESS);
    [source, target].into_iter().for_each(deregister);
    a.close();
    b.close();
}

#[test]
fn a_region_can_change_its_domain_and_lose_rights() {
    let (a, b) = sides();
    let (mut near, mut far) = (vec![7_u64; 4], vec![1_u64; 4]);
    let (source, target) = (a.register(&mut near), b.register(&mut far));
    let read_only = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0.cast_signed();
    let nothing = std::ptr::null_mut();
    // SAFETY: region and domains are alive.
    unsafe {
        let other = library().ibv_alloc_pd(b.context).unwrap().as_ptr();
        let moved = rereg()(target.as_ptr(), CHANGE_PD, other, nothing, 0, 0);
        assert_eq!(moved, 0);
        assert_eq!(target.as_ref().pd, other);
        let busy = library().ibv_dealloc_pd(other);
        assert_eq!(busy.unwrap_err().errno(), Errno::EBUSY);
        let back = rereg()(
            target.as_ptr(),
            CHANGE_PD | CHANGE_ACCESS,
            b.domain,
            nothing,
            0,
            read_only,
        );
        assert_eq!(back, 0);
        library().ibv_dealloc_pd(other).unwrap();
    }
    a.send(write_to(remote(target)), &mut [segment(source, 0, 8)])
        .unwrap();
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
    [source, target].into_iter().for_each(deregister);
    assert_eq!(far, [1; 4]);
    a.close();
    b.close();
}
