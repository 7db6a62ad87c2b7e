//! What the file of this process counts of calls. Each test has its own device.

use std::ffi::{c_int, c_void};
use std::fs;
use std::path::Path;
use std::ptr;
use std::sync::LazyLock;

use gdr_trace::{Cell, MemoryKind, Operation, ProcessTrace, QueuePairTrace, RegionTrace};
use gdr_verbs_sys::{
    Errno, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_mr, ibv_pd, ibv_poll_cq_attr,
    ibv_qp, ibv_qp_ex, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_recv_wr, ibv_send_flags,
    ibv_send_wr, ibv_sge, ibv_wc, ibv_wr_opcode, provider_op_field, verbs_context,
};
use tempfile::TempDir;

use crate::fake_library::{FakeLibrary, MOST_SGE, REFUSED_LEN, REFUSED_SGE, domain};

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());

pub(crate) fn library() -> &'static FakeLibrary {
    FakeLibrary::load(FOLDER.path())
}

/// Returns the trace of this process.
fn trace() -> ProcessTrace {
    let mut files = fs::read_dir(FOLDER.path())
        .unwrap()
        .map(|it| it.unwrap().path());
    let file = files.find(|path| path.extension() == Some("trace".as_ref()));
    ProcessTrace::parse(&fs::read(file.unwrap()).unwrap()).unwrap()
}

pub(crate) fn pairs_of(nic: &str) -> Vec<QueuePairTrace> {
    let mut pairs = trace().queue_pairs;
    pairs.retain(|pair| pair.nic == nic);
    pairs
}

fn regions_of(nic: &str) -> Vec<RegionTrace> {
    let mut regions = trace().regions;
    regions.retain(|region| region.nic == nic);
    regions
}

type RegMr = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
type RegDmaBuf = unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;

/// Registers memory by address; returns its key.
fn register(context: *mut ibv_context, len: usize) -> u32 {
    // SAFETY: the type in C.
    let register: RegMr = unsafe { library().function("ibv_reg_mr") };
    // SAFETY: the fake library keeps the address only.
    let mr = unsafe { register(domain(context), ptr::null_mut(), len, 0) };
    // SAFETY: a new region.
    unsafe { (*mr).lkey }
}

/// Registers memory by descriptor; returns its key.
fn register_dma_buf(context: *mut ibv_context, len: usize) -> u32 {
    // SAFETY: the type in C.
    let register: RegDmaBuf = unsafe { library().function("ibv_reg_dmabuf_mr") };
    // SAFETY: the fake library does not use the descriptor.
    let mr = unsafe { register(domain(context), 0, len, 0, 5, 0) };
    // SAFETY: a new region.
    unsafe { (*mr).lkey }
}

fn sge(lkey: u32, length: u32) -> ibv_sge {
    ibv_sge {
        addr: 0,
        length,
        lkey,
    }
}

/// Returns a request with these segments, which have to live on.
pub(crate) fn request(opcode: ibv_wr_opcode, list: &mut [ibv_sge]) -> ibv_send_wr {
    ibv_send_wr {
        opcode,
        sg_list: list.as_mut_ptr(),
        num_sge: list.len() as c_int,
        ..ibv_send_wr::default()
    }
}

pub(crate) fn post(qp: *mut ibv_qp, wr: &mut ibv_send_wr) -> c_int {
    let mut bad = ptr::null_mut();
    // SAFETY: a valid queue pair and request.
    unsafe { (*(*qp).context).ops.post_send.unwrap()(qp, wr, &mut bad) }
}

fn cell(operation: Operation, memory: MemoryKind, operations: u64, bytes: u64) -> Cell {
    Cell {
        operation,
        memory,
        operations,
        bytes,
    }
}

#[test]
fn registrations_are_counted_by_memory_and_result() {
    let context = library().open("regions");
    register(context, 4096);
    let kept = register(context, 4096);
    register_dma_buf(context, 8192);
    // SAFETY: the types in C.
    let (register, dereg): (RegMr, unsafe extern "C" fn(*mut ibv_mr) -> c_int) = unsafe {
        (
            library().function("ibv_reg_mr"),
            library().function("ibv_dereg_mr"),
        )
    };
    // SAFETY: the fake library keeps the address only.
    let refused = unsafe { register(domain(context), ptr::null_mut(), REFUSED_LEN, 0) };
    assert!(refused.is_null());
    assert_eq!(
        std::io::Error::last_os_error().raw_os_error(),
        Some(Errno::EFAULT.0)
    );
    // SAFETY: as above.
    let ended = unsafe { register(domain(context), ptr::null_mut(), 4096, 0) };
    // SAFETY: a region.
    assert_eq!(unsafe { dereg(ended) }, 0);
    let regions: Vec<_> = regions_of("regions")
        .into_iter()
        .map(|it| (it.memory, it.errno, it.count, it.bytes, it.live))
        .collect();
    assert_eq!(
        regions,
        [
            (MemoryKind::Host, None, 3, 3 * 4096, 2),
            (MemoryKind::DmaBuf, None, 1, 8192, 1),
            (MemoryKind::Host, Some(14), 1, REFUSED_LEN as u64, 0),
        ]
    );
    assert_ne!(kept, 0);
}

#[test]
fn a_probe_for_dma_buf_support_is_not_a_refused_registration() {
    let context = library().open("probe");
    // SAFETY: the type in C.
    let register: RegDmaBuf = unsafe { library().function("ibv_reg_dmabuf_mr") };
    // SAFETY: an invalid descriptor, which is refused.
    let mr = unsafe { register(domain(context), 0, 4096, 0, -1, 0) };
    assert!(mr.is_null());
    assert_eq!(
        std::io::Error::last_os_error().raw_os_error(),
        Some(Errno::EBADF.0)
    );
    assert_eq!(regions_of("probe"), []);
}

#[test]
fn a_call_within_a_call_is_not_counted_again() {
    type RegMrIova2 =
        unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, u64, u32) -> *mut ibv_mr;
    let context = library().open("nested");
    // SAFETY: the type in C.
    let register: RegMrIova2 = unsafe { library().function("ibv_reg_mr_iova2") };
    // SAFETY: the fake library keeps the address only.
    let mr = unsafe { register(domain(context), ptr::null_mut(), 4096, 0, 0) };
    assert!(!mr.is_null());
    assert_eq!(regions_of("nested")[0].count, 1);
}

#[test]
fn requests_are_counted_by_operation_and_by_the_memory_of_their_keys() {
    let context = library().open("posts");
    let (host, gpu) = (register(context, 4096), register_dma_buf(context, 4096));
    let qp = library().queue_pair(context);
    let mut write = [sge(gpu, 4096), sge(host, 64)];
    let mut read = [sge(gpu, 100)];
    let mut inline = [sge(0, 8)];
    let mut other = [sge(0xdead, 32)];
    let mut third = request(ibv_wr_opcode::IBV_WR_SEND, &mut inline);
    third.send_flags = ibv_send_flags::IBV_SEND_INLINE.0;
    let mut second = request(ibv_wr_opcode::IBV_WR_RDMA_READ, &mut read);
    second.next = &mut third;
    let mut first = request(ibv_wr_opcode::IBV_WR_RDMA_WRITE, &mut write);
    first.next = &mut second;
    assert_eq!(post(qp, &mut first), 0);
    let mut atomic = request(ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, &mut other);
    assert_eq!(post(qp, &mut atomic), 0);
    let mut empty = request(ibv_wr_opcode::IBV_WR_LOCAL_INV, &mut []);
    assert_eq!(post(qp, &mut empty), 0);
    let pairs = pairs_of("posts");
    assert_eq!(pairs.len(), 1);
    assert_eq!(
        pairs[0].traffic,
        [
            cell(Operation::Send, MemoryKind::Inline, 1, 8),
            // The larger segment decides the operation's kind, and each segment counts its own bytes.
            cell(Operation::Write, MemoryKind::DmaBuf, 1, 4096),
            cell(Operation::Read, MemoryKind::DmaBuf, 1, 100),
            cell(Operation::Atomic, MemoryKind::Unknown, 1, 32),
        ]
    );
}

#[test]
fn requests_that_a_post_refuses_are_counted_as_refused() {
    let context = library().open("refused");
    let key = register(context, 4096);
    let qp = library().queue_pair(context);
    let mut list = [sge(key, 10); REFUSED_SGE as usize];
    let mut rest = [sge(key, 1)];
    let mut third = request(ibv_wr_opcode::IBV_WR_SEND, &mut rest);
    let mut second = third;
    second.next = &mut third;
    let mut first = request(ibv_wr_opcode::IBV_WR_SEND, &mut list);
    first.next = &mut second;
    assert_eq!(post(qp, &mut first), Errno::ENOMEM.0);
    let pair = &pairs_of("refused")[0];
    assert_eq!(
        pair.traffic,
        [cell(Operation::Send, MemoryKind::Host, 1, 70)]
    );
    // The request at which the post stopped. Later ones are not visited.
    assert_eq!(pair.refused_requests, 1);
}

/// Returns a queue pair with the extended interface.
pub(crate) fn extended_pair(context: *mut ibv_context) -> *mut ibv_qp_ex {
    let mut attr = ibv_qp_init_attr_ex {
        comp_mask: ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0,
        ..ibv_qp_init_attr_ex::default()
    };
    attr.cap.max_send_sge = MOST_SGE;
    // SAFETY: an open context and its field.
    let create = unsafe {
        let offset = std::mem::offset_of!(verbs_context, create_qp_ex);
        let field = provider_op_field(context, offset, |it| it.create_qp_ex);
        field.unwrap().read().unwrap()
    };
    // SAFETY: an open context.
    let qp = unsafe { create(context, &mut attr) };
    qp.cast()
}

#[test]
fn extended_requests_count_when_they_are_complete() {
    let context = library().open("extended");
    let key = register_dma_buf(context, 4096);
    let pair = extended_pair(context);
    let build = |end: End| {
        // SAFETY: a queue pair with these functions.
        unsafe {
            let functions = &*pair;
            functions.wr_start.unwrap()(pair);
            functions.wr_rdma_write.unwrap()(pair, 1, 2);
            functions.wr_set_sge.unwrap()(pair, key, 0, 3000);
            functions.wr_send.unwrap()(pair);
            functions.wr_set_inline_data.unwrap()(pair, ptr::null_mut(), 5);
            match end {
                End::Complete => assert_eq!(functions.wr_complete.unwrap()(pair), 0),
                End::Abort => functions.wr_abort.unwrap()(pair),
            }
        }
    };
    build(End::Complete);
    build(End::Abort);
    build(End::Complete);
    assert_eq!(
        pairs_of("extended")[0].traffic,
        [
            cell(Operation::Send, MemoryKind::Inline, 2, 10),
            cell(Operation::Write, MemoryKind::DmaBuf, 2, 6000),
        ]
    );
}

/// How built requests end.
#[derive(Clone, Copy)]
enum End {
    Complete,
    Abort,
}

/// Posts receives with these keys.
fn post_receives(qp: *mut ibv_qp, keys: &[u32]) {
    for key in keys {
        let mut list = [sge(*key, 2000)];
        let mut wr = ibv_recv_wr {
            sg_list: list.as_mut_ptr(),
            num_sge: 1,
            ..ibv_recv_wr::default()
        };
        let mut bad = ptr::null_mut();
        // SAFETY: a valid queue pair and request.
        let posted = unsafe { (*(*qp).context).ops.post_recv.unwrap()(qp, &mut wr, &mut bad) };
        assert_eq!(posted, 0);
    }
}

#[test]
fn receives_are_counted_by_the_memory_that_was_posted_and_errors_by_status() {
    let context = library().open("receives");
    let (host, gpu) = (register(context, 4096), register_dma_buf(context, 4096));
    let qp = library().queue_pair(context);
    post_receives(qp, &[gpu, host]);
    // SAFETY: numbers and nullable pointers.
    let mut cq: ibv_cq = unsafe { std::mem::zeroed() };
    cq.context = context;
    // SAFETY: a valid queue pair.
    cq.cqe = unsafe { (*qp).qp_num }.cast_signed();
    let mut completions = [ibv_wc::default(); 2];
    // SAFETY: room for two completions.
    let found = unsafe { (*context).ops.poll_cq.unwrap()(&mut cq, 2, completions.as_mut_ptr()) };
    assert_eq!(found, 2);
    let trace = trace();
    let pair = trace
        .queue_pairs
        .iter()
        .find(|it| it.nic == "receives")
        .unwrap();
    assert_eq!(
        pair.traffic,
        [cell(Operation::Receive, MemoryKind::DmaBuf, 1, 1000)]
    );
    let errors: Vec<_> = trace
        .errors
        .iter()
        .filter(|it| it.nic == "receives")
        .collect();
    assert_eq!(
        (errors.len(), errors[0].status, errors[0].count),
        (1, 12, 1)
    );
}

#[test]
fn an_extended_completion_queue_is_counted_too() {
    let context = library().open("extended receives");
    let key = register(context, 4096);
    let qp = library().queue_pair(context);
    post_receives(qp, &[key]);
    // SAFETY: numbers and nullable pointers.
    let mut attr: ibv_cq_init_attr_ex = unsafe { std::mem::zeroed() };
    // SAFETY: a valid queue pair.
    attr.cqe = unsafe { (*qp).qp_num };
    // SAFETY: an open context and its field.
    let create = unsafe {
        let offset = std::mem::offset_of!(verbs_context, create_cq_ex);
        let field = provider_op_field(context, offset, |it| it.create_cq_ex);
        field.unwrap().read().unwrap()
    };
    // SAFETY: an open context.
    let cq: *mut ibv_cq_ex = unsafe { create(context, &mut attr) };
    let mut poll = ibv_poll_cq_attr { comp_mask: 0 };
    // SAFETY: a queue with these functions.
    unsafe {
        assert_eq!((*cq).start_poll.unwrap()(cq, &mut poll), 0);
        assert_eq!((*cq).next_poll.unwrap()(cq), Errno::ENOENT.0);
    }
    let traffic = &pairs_of("extended receives")[0].traffic;
    assert_eq!(
        *traffic,
        [cell(Operation::Receive, MemoryKind::Host, 1, 500)]
    );
}

#[test]
fn a_queue_pair_that_was_destroyed_keeps_its_counts_and_its_number_may_be_used_again() {
    let context = library().open("again");
    let key = register(context, 4096);
    // SAFETY: the type in C.
    let destroy: unsafe extern "C" fn(*mut ibv_qp) -> c_int =
        unsafe { library().function("ibv_destroy_qp") };
    for _ in 0..3 {
        let qp = library().queue_pair(context);
        let mut list = [sge(key, 10)];
        assert_eq!(
            post(qp, &mut request(ibv_wr_opcode::IBV_WR_SEND, &mut list)),
            0
        );
        // SAFETY: a valid queue pair.
        assert_eq!(unsafe { destroy(qp) }, 0);
    }
    let pairs = pairs_of("again");
    assert_eq!(pairs.len(), 3);
    assert!(pairs.iter().all(|pair| pair.bytes() == 10));
}

#[test]
fn a_function_that_is_not_counted_is_that_of_its_library() {
    assert!(Path::new("/proc/self/exe").exists());
    library();
    // SAFETY: C strings; the process itself.
    let (own, of_c) = unsafe {
        let own = libc::dlsym(
            libc::dlopen(ptr::null(), libc::RTLD_NOW),
            c"getpid".as_ptr(),
        );
        (own, libc::dlsym(libc::RTLD_DEFAULT, c"getpid".as_ptr()))
    };
    assert_eq!(own, of_c);
    assert!(!own.is_null());
    // SAFETY: a C string.
    assert!(unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"ibv_no_such_function".as_ptr()) }.is_null());
}
