//! Calls that the real library refuses: the memory they name may be missing.

use std::ffi::{c_int, c_void};
use std::ptr;

use gdr_verbs_sys::{
    ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_qp, ibv_qp_ex, ibv_recv_wr, ibv_send_wr, ibv_sge,
    ibv_wc, ibv_wr_opcode,
};

use crate::counts::{extended_pair, library, pairs_of, post, request};
use crate::fake_library::{GONE, MOST_SGE};

/// Returns an unmapped address.
fn nowhere<T>() -> *mut T {
    ptr::without_provenance_mut(64)
}

/// Returns a request that is refused, and whose segments and successor are not there.
fn bad_send(count: c_int) -> ibv_send_wr {
    ibv_send_wr {
        num_sge: count,
        sg_list: nowhere(),
        next: nowhere(),
        ..ibv_send_wr::default()
    }
}

#[test]
fn the_segments_and_the_rest_of_a_list_that_a_post_refuses_are_not_read() {
    let context = library().open("refused lists");
    let qp = library().queue_pair(context);
    for count in [MOST_SGE as c_int + 1, 65_536, c_int::MAX, -1, c_int::MIN] {
        let mut send = bad_send(count);
        assert_ne!(post(qp, &mut send), 0);
        let mut receive = ibv_recv_wr {
            num_sge: count,
            sg_list: nowhere(),
            next: nowhere(),
            ..ibv_recv_wr::default()
        };
        let mut bad = nowhere();
        // SAFETY: the library refuses the request by its count.
        let posted = unsafe { (*(*qp).context).ops.post_recv.unwrap()(qp, &mut receive, &mut bad) };
        assert_ne!(posted, 0);
        assert_eq!(bad, &raw mut receive);
    }
    assert_eq!(pairs_of("refused lists")[0].refused_requests, 5);
    assert_eq!(pairs_of("refused lists")[0].traffic, []);
}

#[test]
fn a_request_may_have_a_list_that_is_null() {
    let context = library().open("null lists");
    let qp = library().queue_pair(context);
    let mut send = request(ibv_wr_opcode::IBV_WR_SEND, &mut []);
    (send.sg_list, send.num_sge) = (ptr::null_mut(), 3);
    assert_eq!(post(qp, &mut send), 0);
    assert_eq!(pairs_of("null lists")[0].traffic[0].operations, 1);
}

#[test]
fn a_list_without_an_end_ends() {
    let context = library().open("cycle");
    let qp = library().queue_pair(context);
    let mut send = request(ibv_wr_opcode::IBV_WR_SEND, &mut []);
    send.next = &raw mut send;
    assert_eq!(post(qp, &mut send), 0);
}

#[test]
fn lists_of_the_extended_interface_are_read_as_far_as_a_request_may_have_them() {
    let context = library().open("extended lists");
    let qp: *mut ibv_qp_ex = extended_pair(context);
    // SAFETY: a queue pair with these functions, which does not read the lists.
    unsafe {
        let functions = &*qp;
        functions.wr_start.unwrap()(qp);
        functions.wr_send.unwrap()(qp);
        functions.wr_set_sge_list.unwrap()(qp, MOST_SGE as usize + 1, nowhere());
        functions.wr_send.unwrap()(qp);
        functions.wr_set_sge_list.unwrap()(qp, usize::MAX, nowhere());
        functions.wr_set_inline_data_list.unwrap()(qp, usize::MAX, nowhere());
        functions.wr_set_sge_list.unwrap()(qp, 2, ptr::null::<ibv_sge>());
        functions.wr_abort.unwrap()(qp);
    }
}

#[test]
fn what_is_no_object_is_refused_by_the_library_and_not_read() {
    type Dereg = unsafe extern "C" fn(*mut ibv_mr) -> c_int;
    type Reg = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    type Rereg =
        unsafe extern "C" fn(*mut ibv_mr, c_int, *mut ibv_pd, *mut c_void, usize, c_int) -> c_int;
    let library = library();
    // SAFETY: the types in C; the library refuses such addresses.
    unsafe {
        let dereg: Dereg = library.function("ibv_dereg_mr");
        let reg: Reg = library.function("ibv_reg_mr");
        let rereg: Rereg = library.function("ibv_rereg_mr");
        for object in [nowhere(), ptr::null_mut::<c_void>()] {
            assert_eq!(dereg(object.cast()), GONE.0);
            assert!(reg(object.cast(), ptr::null_mut(), 1, 0).is_null());
            let again = rereg(object.cast(), 1, object.cast(), ptr::null_mut(), 1, 0);
            assert_eq!(again, -1);
        }
    }
}

#[test]
fn what_a_program_calls_on_a_closed_device_goes_to_the_library() {
    let context = library().open("closed");
    // SAFETY: numbers and nullable pointers.
    let mut cq: ibv_cq = unsafe { std::mem::zeroed() };
    cq.context = context;
    // SAFETY: the type in C.
    let close: unsafe extern "C" fn(*mut ibv_context) -> c_int =
        unsafe { library().function("ibv_close_device") };
    // SAFETY: an open context, whose structure the library keeps.
    let polled = unsafe {
        assert_eq!(close(context), 0);
        (*context).ops.poll_cq.unwrap()(&mut cq, 2, ptr::null_mut::<ibv_wc>())
    };
    assert_eq!(polled, -GONE.0);
}

#[test]
fn what_a_program_calls_on_a_destroyed_queue_pair_goes_to_the_library() {
    let context = library().open("destroyed");
    let qp = extended_pair(context);
    // SAFETY: the type in C.
    let destroy: unsafe extern "C" fn(*mut ibv_qp) -> c_int =
        unsafe { library().function("ibv_destroy_qp") };
    // SAFETY: a queue pair, whose structure the library keeps.
    unsafe {
        assert_eq!(destroy(qp.cast()), 0);
        (*qp).wr_start.unwrap()(qp);
        assert_eq!((*qp).wr_complete.unwrap()(qp), 0);
    }
}
