//! The size of shared receive queues.

use std::ffi::{c_int, c_void};
use std::ptr;

use gdr_verbs_sys::*;

use crate::side::*;

/// `struct ibv_srq_init_attr`.
#[repr(C)]
struct Init {
    context: *mut c_void,
    attr: ibv_srq_attr,
}

type Create = unsafe extern "C" fn(*mut ibv_pd, *mut Init) -> *mut ibv_srq;
type Modify = unsafe extern "C" fn(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
type Query = unsafe extern "C" fn(*mut ibv_srq, *mut ibv_srq_attr) -> c_int;
type Destroy = unsafe extern "C" fn(*mut ibv_srq) -> c_int;

const MAX_WR: c_int = 1;
const LIMIT: c_int = 2;

/// A shared receive queue of a side.
struct Shared<'a> {
    side: &'a Side,
    queue: *mut ibv_srq,
}

impl<'a> Shared<'a> {
    fn new(side: &'a Side, max_wr: u32) -> Self {
        let mut init = Init {
            context: ptr::null_mut(),
            attr: ibv_srq_attr {
                max_wr,
                max_sge: 1,
                srq_limit: 0,
            },
        };
        // SAFETY: the type of this function in rdma-core's header; the domain is alive.
        let queue =
            unsafe { typed_function::<Create>(c"ibv_create_srq")(side.domain, &raw mut init) };
        assert!(!queue.is_null());
        Self { side, queue }
    }

    fn modify(&self, max_wr: u32, srq_limit: u32, mask: c_int) -> c_int {
        let mut attr = ibv_srq_attr {
            max_wr,
            max_sge: 0,
            srq_limit,
        };
        // SAFETY: the type of this function in rdma-core's header; the queue is alive.
        unsafe { typed_function::<Modify>(c"ibv_modify_srq")(self.queue, &raw mut attr, mask) }
    }

    /// Returns the queue's size and its limit.
    fn attributes(&self) -> (u32, u32) {
        let mut attr = ibv_srq_attr {
            max_wr: 0,
            max_sge: 0,
            srq_limit: 0,
        };
        // SAFETY: the type of this function in rdma-core's header; the queue is alive.
        let queried =
            unsafe { typed_function::<Query>(c"ibv_query_srq")(self.queue, &raw mut attr) };
        assert_eq!((queried, attr.max_sge), (0, 1));
        (attr.max_wr, attr.srq_limit)
    }

    /// Posts receives without segments until one is refused; returns the number of posted ones.
    fn fill(&self) -> usize {
        // SAFETY: the context is open.
        let post = unsafe { (*self.side.context).ops.post_srq_recv }.unwrap();
        let mut wr = ibv_recv_wr::default();
        let (wr, mut bad) = (&raw mut wr, ptr::null_mut());
        // SAFETY: a request of no segments.
        (0..100_000)
            .take_while(|_| unsafe { post(self.queue, wr, &raw mut bad) } == 0)
            .count()
    }

    fn destroy(self) {
        // SAFETY: the type of this function in rdma-core's header; the queue is alive.
        let destroyed = unsafe { typed_function::<Destroy>(c"ibv_destroy_srq")(self.queue) };
        assert_eq!(destroyed, 0);
    }
}

#[test]
fn a_shared_queue_grows_and_shrinks_to_what_it_holds() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let shared = Shared::new(&side, 4);
    assert_eq!(shared.fill(), 4);
    assert_eq!(shared.modify(6, 0, MAX_WR), 0);
    assert_eq!((shared.attributes(), shared.fill()), ((6, 0), 2));
    assert_eq!(shared.modify(5, 0, MAX_WR), libc::EINVAL, "it holds six");
    assert_eq!(shared.attributes(), (6, 0));
    let mut device = ibv_device_attr::default();
    // SAFETY: the context is open.
    unsafe { library().ibv_query_device(side.context, &mut device) }.unwrap();
    let flags = device.device_cap_flags;
    let resizes = ibv_device_cap_flags::IBV_DEVICE_SRQ_RESIZE;
    assert!(ibv_device_cap_flags(flags).contains(resizes));
    shared.destroy();
    side.close();
}

#[test]
fn a_change_of_a_shared_queue_with_an_invalid_part_changes_nothing() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let shared = Shared::new(&side, 8);
    assert_eq!(shared.fill(), 8);
    assert_eq!(shared.modify(9, 8, MAX_WR | LIMIT), 0);
    assert_eq!(shared.attributes(), (9, 8));
    for (size, limit, mask, errno) in [
        (20, 21, MAX_WR | LIMIT, libc::EINVAL),
        (0, 3, MAX_WR | LIMIT, libc::EINVAL),
        (1 << 20, 3, MAX_WR | LIMIT, libc::EINVAL),
        (7, 3, MAX_WR | LIMIT, libc::EINVAL),
        (0, 10, LIMIT, libc::EINVAL),
        (20, 3, MAX_WR | LIMIT | 4, libc::EOPNOTSUPP),
    ] {
        assert_eq!(
            shared.modify(size, limit, mask),
            errno,
            "{size} {limit} {mask}"
        );
        assert_eq!(shared.attributes(), (9, 8));
    }
    assert_eq!(shared.modify(0, 0, 0), 0, "no flags change nothing");
    assert_eq!(shared.modify(8, 3, MAX_WR | LIMIT), 0);
    assert_eq!(shared.attributes(), (8, 3));
    shared.destroy();
    side.close();
}

#[test]
fn a_shared_queue_is_not_made_smaller_than_its_armed_limit() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let shared = Shared::new(&side, 8);
    assert_eq!(shared.fill(), 8);
    assert_eq!(shared.modify(12, 8, MAX_WR | LIMIT), 0);
    assert_eq!(shared.modify(16, 0, MAX_WR), 0);
    assert_eq!(shared.attributes(), (16, 8), "the limit stays armed");
    shared.destroy();
    let empty = Shared::new(&side, 8);
    // The event is raised at once, which disarms the limit.
    assert_eq!(empty.modify(0, 5, LIMIT), 0);
    assert_eq!(empty.modify(2, 0, MAX_WR), 0);
    assert_eq!(empty.attributes(), (2, 0));
    empty.destroy();
    side.close();
}
