//! Device memory, null regions, and on-demand paging.

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use gdr_verbs_sys::*;

use crate::side::*;

const SUCCESS: ibv_wc_status = ibv_wc_status::IBV_WC_SUCCESS;

/// Returns an operation of the provider of an open context.
macro_rules! op {
    ($side:expr, $field:ident) => {{
        let offset = std::mem::offset_of!(verbs_context, $field);
        let place = provider_op_field($side.context, offset, |context| context.$field);
        place.unwrap().read().unwrap()
    }};
}

fn allocate(side: &Side, length: usize) -> *mut ibv_dm {
    let mut attr = ibv_alloc_dm_attr {
        length,
        log_align_req: 0,
        comp_mask: 0,
    };
    // SAFETY: the context is open.
    unsafe { op!(side, alloc_dm)(side.context, &mut attr) }
}

#[test]
fn device_memory_is_copied_and_reached_by_peers_at_addresses_from_zero_on() {
    let (a, b) = sides();
    let memory = allocate(&b, 64);
    let mut near = [0x0102_0304_0506_0708_u64; 2];
    let source = a.register(&mut near);
    let zero_based = all_access() | ibv_access_flags::IBV_ACCESS_ZERO_BASED;
    // SAFETY: the objects are alive.
    unsafe {
        let register = op!(b, reg_dm_mr);
        assert!(register(b.domain, memory, 0, 64, all_access().0).is_null());
        assert!(register(b.domain, memory, 8, 60, zero_based.0).is_null());
        let region = NonNull::new(register(b.domain, memory, 8, 56, zero_based.0)).unwrap();
        let mut write = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, region, 0);
        write.wr.rdma.remote_addr = 16;
        a.send(write, &mut [segment(source, 0, 8)]).unwrap();
        assert_eq!(a.completion().status, SUCCESS);
        let mut copy = 0_u64;
        let place = (&raw mut copy).cast::<c_void>();
        let (to, from) = (
            (*memory).memcpy_to_dm.unwrap(),
            (*memory).memcpy_from_dm.unwrap(),
        );
        assert_eq!(from(place, memory, 24, 8), 0);
        assert_eq!(copy, near[0]);
        assert_eq!(to(memory, 56, place, 8), 0);
        for (offset, len, errno) in [
            (2, 4, libc::EINVAL),
            (4, 2, libc::EINVAL),
            (64, 4, libc::EFAULT),
            (60, 8, libc::EFAULT),
        ] {
            assert_eq!(to(memory, offset, place, len), errno);
            assert_eq!(from(place, memory, offset, len), errno);
        }
        // A region keeps the memory allocated.
        let free = op!(b, free_dm);
        assert_eq!(free(memory), libc::EBUSY);
        deregister(region);
        assert_eq!(free(memory), 0);
        assert_eq!(free(memory), libc::EINVAL);
    }
    deregister(source);
    assert!(allocate(&b, 0).is_null());
    assert!(allocate(&b, (1 << 20) + 1).is_null());
    a.close();
    b.close();
}

#[test]
fn a_null_region_sends_zeros_and_takes_what_is_read_into_it() {
    let (a, b) = sides();
    let mut far = [u64::MAX; 4];
    let target = b.register(&mut far);
    // SAFETY: the domain is alive.
    let null = NonNull::new(unsafe { op!(a, alloc_null_mr)(a.domain) }).unwrap();
    // SAFETY: the region is alive.
    let lkey = unsafe { null.as_ref() }.lkey;
    let anywhere = ibv_sge {
        addr: 0x1234,
        length: 16,
        lkey,
    };
    let write = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, target, 8);
    a.send(write, &mut [anywhere]).unwrap();
    assert_eq!(a.completion().status, SUCCESS);
    assert_eq!(far, [u64::MAX, 0, 0, u64::MAX]);
    let read = request(2, ibv_wr_opcode::IBV_WR_RDMA_READ, target, 0);
    a.send(read, &mut [anywhere]).unwrap();
    assert_eq!(a.completion().status, SUCCESS);
    [null, target].into_iter().for_each(deregister);
    a.close();
    b.close();
}

/// Registers memory for paging on demand.
fn on_demand(side: &Side, address: *mut c_void, len: usize) -> Result<NonNull<ibv_mr>, VerbError> {
    let access = all_access() | ibv_access_flags::IBV_ACCESS_ON_DEMAND;
    // SAFETY: memory for on-demand paging need not be mapped.
    unsafe { library().reg_mr(side.domain, address, len, access) }
}

/// Pages that are inaccessible at first.
struct Hole(*mut c_void);

const HOLE: usize = 1 << 16;

impl Hole {
    fn new() -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, which nothing can access.
        let start = unsafe { libc::mmap(ptr::null_mut(), HOLE, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Self(start)
    }

    fn open(&self) {
        // SAFETY: the pages of this value.
        let opened = unsafe { libc::mprotect(self.0, HOLE, libc::PROT_READ | libc::PROT_WRITE) };
        assert_eq!(opened, 0);
    }
}

impl Drop for Hole {
    fn drop(&mut self) {
        // SAFETY: the mapping of this value.
        unsafe { libc::munmap(self.0, HOLE) };
    }
}

#[test]
fn on_demand_memory_fails_requests_where_nothing_is_mapped_and_not_the_program() {
    let (opcodes, refused) = (
        [
            ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            ibv_wr_opcode::IBV_WR_RDMA_READ,
        ],
        ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
    );
    for opcode in opcodes {
        let (a, b) = sides();
        let (hole, mut near) = (Hole::new(), [7_u64; 512]);
        let (source, target) = (a.register(&mut near), on_demand(&b, hole.0, HOLE).unwrap());
        a.send(
            request(1, opcode, target, 8),
            &mut [segment(source, 0, 4096)],
        )
        .unwrap();
        assert_eq!(a.completion().status, refused);
        [source, target].into_iter().for_each(deregister);
        a.close();
        b.close();
    }
    let (a, b) = sides();
    let (hole, mut near) = (Hole::new(), [7_u64; 512]);
    let (source, target) = (a.register(&mut near), on_demand(&b, hole.0, HOLE).unwrap());
    hole.open();
    let write = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, target, 8);
    a.send(write, &mut [segment(source, 0, 4096)]).unwrap();
    assert_eq!(a.completion().status, SUCCESS);
    let mut add = request(2, ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, target, 8);
    let (address, rkey) = {
        // SAFETY: the region is alive.
        let target = unsafe { target.as_ref() };
        (target.addr.addr() as u64 + 8, target.rkey)
    };
    add.wr.atomic.remote_addr = address;
    add.wr.atomic.rkey = rkey;
    add.wr.atomic.compare_add = 5;
    a.send(add, &mut [segment(source, 8, 8)]).unwrap();
    assert_eq!(a.completion().status, SUCCESS);
    // SAFETY: two words of the pages, which no request writes at this point.
    let words =
        unsafe { [hole.0.byte_add(8), hole.0.byte_add(4096)].map(|at| at.cast::<u64>().read()) };
    assert_eq!((words, near[1]), ([12, 7], 7));
    [source, target].into_iter().for_each(deregister);
    a.close();
    b.close();
}

#[test]
fn an_implicit_region_is_all_memory_of_the_process() {
    let (a, b) = sides();
    let (mut near, mut far) = ([3_u64; 4], [0_u64; 4]);
    let all = on_demand(&a, ptr::null_mut(), usize::MAX).unwrap();
    let target = b.register(&mut far);
    // SAFETY: the region is alive.
    let lkey = unsafe { all.as_ref() }.lkey;
    let mut list = [ibv_sge {
        addr: near.as_mut_ptr().addr() as u64,
        length: 32,
        lkey,
    }];
    let write = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, target, 0);
    a.send(write, &mut list).unwrap();
    assert_eq!(a.completion().status, SUCCESS);
    assert_eq!(far, near);
    list[0].addr = 0x10;
    a.send(write, &mut list).unwrap();
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_LOC_PROT_ERR);
    [all, target].into_iter().for_each(deregister);
    a.close();
    b.close();
}

#[test]
fn advice_fetches_the_pages_of_on_demand_regions_only() {
    use ib_uverbs_advise_mr_advice as Advice;
    let read = Advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH;
    let write = Advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE;
    let without_fault = Advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let (hole, mut words) = (Hole::new(), [0_u64; 4]);
    let (paged, pinned) = (
        on_demand(&side, hole.0, HOLE).unwrap(),
        side.register(&mut words),
    );
    let advise = |advice, flags, range: ibv_sge| {
        // SAFETY: the domain is alive, and so are the ranges.
        let advised = unsafe { ibv_advise_mr(side.domain, advice, flags, &mut [range]) };
        advised.map_err(|error| error.errno())
    };
    let range = segment(paged, 100, 5000);
    assert_eq!(advise(read, 0, range), Err(Errno::EFAULT));
    assert_eq!(advise(without_fault, 0, range), Ok(()));
    hole.open();
    for advice in [read, write, without_fault] {
        assert_eq!(advise(advice, 1, range), Ok(()));
    }
    assert_eq!(advise(read, 2, range), Err(Errno::EINVAL));
    assert_eq!(
        advise(read, 0, segment(paged, 100, HOLE as u32)),
        Err(Errno::EFAULT)
    );
    assert_eq!(advise(read, 0, segment(pinned, 0, 8)), Err(Errno::EINVAL));
    let unknown = ibv_sge { lkey: 0, ..range };
    assert_eq!(advise(read, 0, unknown), Err(Errno::ENOENT));
    [paged, pinned].into_iter().for_each(deregister);
    side.close();
}

#[test]
fn a_parent_domain_reaches_the_regions_of_its_domain_and_keeps_it() {
    let (a, b) = sides();
    // SAFETY: the contexts are open, and the objects alive until they are destroyed below.
    unsafe {
        let mut none = ibv_td_init_attr { comp_mask: 0 };
        let td = op!(b, alloc_td)(b.context, &mut none);
        let mut attr = ibv_parent_domain_init_attr {
            pd: b.domain,
            td,
            comp_mask: 0,
            alloc: ptr::null_mut(),
            free: ptr::null_mut(),
            pd_context: ptr::null_mut(),
        };
        let make = op!(b, alloc_parent_domain);
        let parent = make(b.context, &mut attr);
        assert!(!td.is_null() && !parent.is_null());
        attr.comp_mask = 1 << 2;
        assert!(make(b.context, &mut attr).is_null());
        let errno = |verb: Result<(), VerbError>| verb.map_err(|error| error.errno());
        assert_eq!(errno(library().ibv_dealloc_pd(b.domain)), Err(Errno::EBUSY));
        assert_eq!(op!(b, dealloc_td)(td), libc::EBUSY);
        // The queue pair belongs to the protection domain, the region to the parent domain.
        let (mut near, mut far) = ([5_u64], [0_u64]);
        let source = a.register(&mut near);
        let target = library()
            .reg_mr(parent, far.as_mut_ptr().cast(), 8, all_access())
            .unwrap();
        let write = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, target, 0);
        a.send(write, &mut [segment(source, 0, 8)]).unwrap();
        assert_eq!(a.completion().status, SUCCESS);
        [source, target].into_iter().for_each(deregister);
        assert_eq!(far, [5]);
        library().ibv_dealloc_pd(parent).unwrap();
        assert_eq!(op!(b, dealloc_td)(td), 0);
    }
    a.close();
    b.close();
}
