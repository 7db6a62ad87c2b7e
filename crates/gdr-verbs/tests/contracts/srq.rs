//! ibv_create_srq(3), ibv_modify_srq(3) and ibv_query_srq(3).

use std::ptr;

use gdr_verbs_sys::*;

use crate::side::*;
use crate::verbs::{self, SrqInit, errno};

/// `IBV_SRQ_LIMIT`.
const LIMIT: i32 = 2;

fn init(max_wr: u32, max_sge: u32) -> SrqInit {
    SrqInit {
        context: ptr::null_mut(),
        attr: ibv_srq_attr {
            max_wr,
            max_sge,
            srq_limit: 0,
        },
    }
}

/// Returns attributes with a limit.
pub(crate) fn limit(srq_limit: u32) -> ibv_srq_attr {
    ibv_srq_attr {
        max_wr: 0,
        max_sge: 0,
        srq_limit,
    }
}

pub(crate) fn shared_queue(side: &Side, max_wr: u32, max_sge: u32) -> *mut ibv_srq {
    let mut init = init(max_wr, max_sge);
    // SAFETY: the domain is alive.
    let queue = unsafe { verbs::ibv_create_srq(side.domain, &mut init) };
    assert!(!queue.is_null());
    assert!(init.attr.max_wr >= max_wr && init.attr.max_sge >= max_sge);
    queue
}

#[test]
fn a_creation_that_fails_returns_null_and_sets_errno() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    for (domain, max_wr, max_sge) in [
        (side.domain, 0, 1),
        (side.domain, u32::MAX, 1),
        (side.domain, 4, u32::MAX),
        (side.queue.cast(), 4, 1),
    ] {
        // SAFETY: the library checks the handle.
        let queue = unsafe { verbs::ibv_create_srq(domain, &mut init(max_wr, max_sge)) };
        assert!(queue.is_null());
        assert_eq!(errno(), libc::EINVAL);
    }
    side.close();
}

#[test]
fn a_queue_is_not_destroyed_while_a_queue_pair_is_associated_with_it() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let queue = shared_queue(&side, 4, 1);
    let mut init = ibv_qp_init_attr {
        send_cq: side.queue,
        recv_cq: side.queue,
        srq: queue,
        qp_type: ibv_qp_type::IBV_QPT_UD,
        ..Default::default()
    };
    // SAFETY: the objects exist; the library checks handles of destroyed ones.
    unsafe {
        let pair = verbs::ibv_create_qp(side.domain, &mut init);
        assert_eq!(verbs::ibv_destroy_srq(queue), libc::EBUSY);
        assert_eq!(verbs::ibv_destroy_qp(pair), 0);
        assert_eq!(verbs::ibv_destroy_srq(queue), 0);
        assert_eq!(verbs::ibv_destroy_srq(queue), libc::EINVAL);
    }
    side.close();
}

#[test]
fn a_limit_is_armed_until_its_event_has_come() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let queue = shared_queue(&side, 4, 1);
    let armed = || {
        let mut attr = limit(0);
        // SAFETY: the queue is alive.
        assert_eq!(unsafe { verbs::ibv_query_srq(queue, &mut attr) }, 0);
        attr.srq_limit
    };
    // SAFETY: as above.
    let arm = |below| unsafe { verbs::ibv_modify_srq(queue, &mut limit(below), LIMIT) };
    let mut list = [ibv_recv_wr::default(); 3];
    for wr in &mut list {
        let mut bad = ptr::null_mut();
        // SAFETY: the queue is alive, and the request has no segments.
        let posted = unsafe { verbs::post_srq_recv(side.context, queue, wr, &mut bad) };
        assert_eq!(posted, 0);
    }
    assert_eq!(armed(), 0);
    assert_eq!(arm(5), libc::EINVAL, "more than it holds");
    assert_eq!(armed(), 0);
    assert_eq!(arm(2), 0);
    assert_eq!(armed(), 2);
    assert_eq!(verbs::events(side.context), []);
    assert_eq!(arm(4), 0);
    let reached = ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED;
    assert_eq!(verbs::events(side.context), [(reached, queue.addr())]);
    assert_eq!(armed(), 0);
    // SAFETY: nothing uses it any more.
    assert_eq!(unsafe { verbs::ibv_destroy_srq(queue) }, 0);
    side.close();
}

#[test]
fn calls_about_a_queue_that_is_gone_return_an_errno() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let queue = shared_queue(&side, 4, 1);
    let mut attr = limit(0);
    // SAFETY: a handle, which the library checks.
    unsafe {
        assert_eq!(verbs::ibv_destroy_srq(queue), 0);
        assert_eq!(verbs::ibv_query_srq(queue, &mut attr), libc::EINVAL);
        assert_eq!(verbs::ibv_modify_srq(queue, &mut attr, LIMIT), libc::EINVAL);
    }
    side.close();
}
