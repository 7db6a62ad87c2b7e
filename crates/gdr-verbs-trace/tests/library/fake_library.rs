//! A library with the functions of libibverbs, whose device does nothing.
//!
//! It is loaded by name, as programs load libibverbs, and its functions are looked up with `dlsym`, which
//! gdr-verbs-trace provides in a program that is linked with it.
#![allow(
    clippy::unwrap_used,
    reason = "a test or a measurement that fails is over"
)]

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::fmt::Write;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{mem, ptr};

use gdr_verbs_sys::{
    Errno, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_data_buf, ibv_device, ibv_mr,
    ibv_pd, ibv_poll_cq_attr, ibv_qp, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_type, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc, ibv_wc_opcode, ibv_wc_status,
    verbs_context,
};

/// Functions of the library. Each calls a function of this file.
const FUNCTIONS: [(&str, *const ()); 9] = [
    ("ibv_open_device", open_device as *const ()),
    ("ibv_close_device", close_device as *const ()),
    ("ibv_reg_mr", reg_mr as *const ()),
    ("ibv_reg_mr_iova2", reg_mr_iova2 as *const ()),
    ("ibv_reg_dmabuf_mr", reg_dmabuf_mr as *const ()),
    ("ibv_dereg_mr", dereg_mr as *const ()),
    ("ibv_rereg_mr", rereg_mr as *const ()),
    ("ibv_create_qp", create_qp as *const ()),
    ("ibv_destroy_qp", destroy_qp as *const ()),
];

/// Length that the library refuses to register.
pub(crate) const REFUSED_LEN: usize = 13;
/// Number of segments with which a post refuses its second request.
pub(crate) const REFUSED_SGE: c_int = 7;
/// Maximum number of segments per request. A post refuses a request with more.
pub(crate) const MOST_SGE: u32 = 16;
/// Result for a closed device or a missing object.
pub(crate) const GONE: Errno = Errno::EINVAL;

/// The loaded library.
pub(crate) struct FakeLibrary(*mut c_void);

// SAFETY: the handle of a library that is never closed.
unsafe impl Send for FakeLibrary {}
// SAFETY: as above.
unsafe impl Sync for FakeLibrary {}

impl FakeLibrary {
    /// Builds and loads it. `folder` becomes the folder of trace files, unless it is already loaded.
    pub(crate) fn load(folder: &std::path::Path) -> &'static Self {
        static LOADED: OnceLock<FakeLibrary> = OnceLock::new();
        LOADED.get_or_init(|| {
            // SAFETY: no other thread reads the environment before this has returned.
            unsafe { std::env::set_var("GDR_TRACE_FOLDER", folder) };
            Self::build(folder)
        })
    }

    fn build(folder: &std::path::Path) -> Self {
        let (source, library) = (folder.join("fake.c"), folder.join("libfake.so"));
        let mut text =
            "typedef void *(*function)(void*, void*, void*, void*, void*, void*);\n".to_owned();
        for (name, _) in FUNCTIONS {
            writeln!(
                text,
                "function real_{name};\nvoid *{name}(void *a, void *b, void *c, void *d, void *e, \
                 void *f) {{ return real_{name}(a, b, c, d, e, f); }}"
            )
            .unwrap();
        }
        std::fs::write(&source, text).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O2", "-o"]);
        let built = compiler.args([&library, &source]).status().unwrap();
        assert!(built.success());
        let path = CString::new(library.to_str().unwrap()).unwrap();
        // SAFETY: a library without initialization of its own.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null());
        let loaded = Self(handle);
        for (name, function) in FUNCTIONS {
            let place: *mut *const () = loaded.symbol(&format!("real_{name}")).cast();
            // SAFETY: a variable of the library, for a function.
            unsafe { place.write(function) };
        }
        loaded
    }

    fn symbol(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: the handle is open.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?}");
        found
    }

    /// Returns a function of the library, as a program finds it.
    ///
    /// # Safety
    /// `F` is the type of the function.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &str) -> F {
        let address = self.symbol(name);
        assert_eq!(size_of::<F>(), size_of_val(&address));
        // SAFETY: the contract of this function.
        unsafe { mem::transmute_copy(&address) }
    }

    /// Opens a device with this name.
    pub(crate) fn open(&self, name: &str) -> *mut ibv_context {
        // SAFETY: all fields may be zero.
        let mut device: ibv_device = unsafe { mem::zeroed() };
        for (byte, place) in name.bytes().zip(&mut device.name) {
            *place = byte as c_char;
        }
        let device = Box::leak(Box::new(device));
        // SAFETY: the type in C.
        let open: unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context =
            unsafe { self.function("ibv_open_device") };
        // SAFETY: a device that lives on.
        unsafe { open(device) }
    }

    /// Creates a queue pair with the basic interface.
    pub(crate) fn queue_pair(&self, context: *mut ibv_context) -> *mut ibv_qp {
        // SAFETY: the type in C.
        let create: unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp =
            unsafe { self.function("ibv_create_qp") };
        let mut attr = ibv_qp_init_attr::default();
        attr.cap.max_recv_wr = 16;
        (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (MOST_SGE, MOST_SGE);
        attr.qp_type = ibv_qp_type::IBV_QPT_RC;
        // SAFETY: a domain of the context.
        unsafe { create(domain(context), &mut attr) }
    }
}

/// Returns a domain of a context.
pub(crate) fn domain(context: *mut ibv_context) -> *mut ibv_pd {
    Box::into_raw(Box::new(ibv_pd { context, handle: 0 }))
}

unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: numbers, nullable pointers and functions.
    let mut whole: Box<verbs_context> = Box::new(unsafe { mem::zeroed() });
    whole.sz = size_of::<verbs_context>();
    whole.create_qp_ex = Some(create_qp_ex);
    whole.create_cq_ex = Some(create_cq_ex);
    whole.context.abi_compat = ptr::without_provenance_mut(usize::MAX);
    whole.context.device = device;
    whole.context.ops.post_send = Some(post_send);
    whole.context.ops.post_recv = Some(post_recv);
    whole.context.ops.poll_cq = Some(poll_cq);
    &raw mut Box::leak(whole).context
}

/// Closes a device. Its structure stays, so that a program can keep using it.
unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    if context.is_null() {
        return -1;
    }
    // SAFETY: an open context.
    unsafe { (*context).num_comp_vectors = CLOSED };
    0
}

/// Marks a closed context.
const CLOSED: c_int = -1;

unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    _access: c_int,
) -> *mut ibv_mr {
    static NEXT: AtomicU32 = AtomicU32::new(100);
    // Addresses below a page are not domains.
    if length == REFUSED_LEN || pd.addr() < 4096 {
        // SAFETY: the errno of this thread.
        unsafe { *libc::__errno_location() = Errno::EFAULT.0 };
        return ptr::null_mut();
    }
    let key = NEXT.fetch_add(1, Ordering::Relaxed);
    Box::into_raw(Box::new(ibv_mr {
        // SAFETY: the caller's domain.
        context: unsafe { (*pd).context },
        pd,
        addr,
        length,
        handle: 0,
        lkey: key,
        rkey: key,
    }))
}

/// As in rdma-core, one function is called by another one of the library.
unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    address: *mut c_void,
    len: usize,
    _iova: u64,
    _access: c_uint,
) -> *mut ibv_mr {
    let library = FakeLibrary::load(std::path::Path::new(""));
    // SAFETY: the type in C.
    let inner: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr =
        unsafe { library.function("ibv_reg_mr") };
    // SAFETY: the caller's arguments.
    unsafe { inner(pd, address, len, 0) }
}

unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    _offset: u64,
    len: usize,
    _iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    if fd < 0 {
        // SAFETY: the errno of this thread.
        unsafe { *libc::__errno_location() = Errno::EBADF.0 };
        return ptr::null_mut();
    }
    // SAFETY: the caller's domain.
    unsafe { reg_mr(pd, ptr::null_mut(), len, access) }
}

/// Deregisters a region. Addresses below a page are not regions.
unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    if mr.addr() < 4096 { GONE.0 } else { 0 }
}

unsafe extern "C" fn rereg_mr(
    mr: *mut ibv_mr,
    _flags: c_int,
    _pd: *mut ibv_pd,
    _address: *mut c_void,
    _len: usize,
    _access: c_int,
) -> c_int {
    if mr.addr() < 4096 { -1 } else { 0 }
}

unsafe extern "C" fn create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the caller's arguments.
    let (context, kind) = unsafe { ((*pd).context, (*attr).qp_type) };
    new_pair(context, kind).cast()
}

fn new_pair(context: *mut ibv_context, kind: ibv_qp_type) -> *mut ibv_qp_ex {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    // SAFETY: numbers, nullable pointers and functions.
    let mut pair: Box<ibv_qp_ex> = Box::new(unsafe { mem::zeroed() });
    pair.qp_base.context = context;
    pair.qp_base.qp_type = kind;
    pair.qp_base.qp_num = NEXT.fetch_add(1, Ordering::Relaxed);
    Box::into_raw(pair)
}

unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    unsafe extern "C" fn nothing(_: *mut ibv_qp_ex) {}
    unsafe extern "C" fn complete(_: *mut ibv_qp_ex) -> c_int {
        0
    }
    unsafe extern "C" fn write(_: *mut ibv_qp_ex, _: u32, _: u64) {}
    unsafe extern "C" fn set_sge(_: *mut ibv_qp_ex, _: u32, _: u64, _: u32) {}
    unsafe extern "C" fn set_sge_list(_: *mut ibv_qp_ex, _: usize, _: *const ibv_sge) {}
    unsafe extern "C" fn set_inline(_: *mut ibv_qp_ex, _: *mut c_void, _: usize) {}
    unsafe extern "C" fn set_inline_list(_: *mut ibv_qp_ex, _: usize, _: *const ibv_data_buf) {}
    // SAFETY: the caller's attributes.
    let pair = new_pair(context, unsafe { (*attr).qp_type });
    // SAFETY: just made.
    let object = unsafe { &mut *pair };
    object.wr_start = Some(nothing);
    object.wr_complete = Some(complete);
    object.wr_abort = Some(nothing);
    object.wr_send = Some(nothing);
    object.wr_rdma_write = Some(write);
    object.wr_set_sge = Some(set_sge);
    object.wr_set_sge_list = Some(set_sge_list);
    object.wr_set_inline_data = Some(set_inline);
    object.wr_set_inline_data_list = Some(set_inline_list);
    pair.cast()
}

unsafe extern "C" fn destroy_qp(_qp: *mut ibv_qp) -> c_int {
    0
}

unsafe extern "C" fn post_send(
    _qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's requests.
    unsafe {
        match (*wr).num_sge {
            REFUSED_SGE => *bad = (*wr).next,
            count if !(0..=MOST_SGE as c_int).contains(&count) => *bad = wr,
            _ => return 0,
        }
    }
    Errno::ENOMEM.0
}

unsafe extern "C" fn post_recv(
    _qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's requests.
    unsafe {
        if !(0..=MOST_SGE as c_int).contains(&(*wr).num_sge) {
            *bad = wr;
            return Errno::ENOMEM.0;
        }
    }
    0
}

/// Returns two completions, a receive of 1000 bytes and an error. The size of the queue stands for the queue pair.
unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's queue.
    if unsafe { (*(*cq).context).num_comp_vectors } == CLOSED {
        return -GONE.0;
    }
    assert_eq!(entries, 2);
    let first = ibv_wc {
        // SAFETY: the caller's queue.
        qp_num: unsafe { (*cq).cqe }.cast_unsigned(),
        opcode: ibv_wc_opcode::IBV_WC_RECV,
        byte_len: 1000,
        ..ibv_wc::default()
    };
    let second = ibv_wc {
        qp_num: first.qp_num,
        status: ibv_wc_status::IBV_WC_RETRY_EXC_ERR,
        ..ibv_wc::default()
    };
    // SAFETY: room for two completions.
    unsafe {
        wc.write(first);
        wc.add(1).write(second);
    }
    2
}

/// Creates an extended queue with a receive of 500 bytes and no more.
unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    unsafe extern "C" fn start(_: *mut ibv_cq_ex, _: *mut ibv_poll_cq_attr) -> c_int {
        0
    }
    unsafe extern "C" fn next(_: *mut ibv_cq_ex) -> c_int {
        Errno::ENOENT.0
    }
    unsafe extern "C" fn opcode(_: *mut ibv_cq_ex) -> ibv_wc_opcode {
        ibv_wc_opcode::IBV_WC_RECV
    }
    unsafe extern "C" fn byte_len(_: *mut ibv_cq_ex) -> u32 {
        500
    }
    unsafe extern "C" fn qp_num(cq: *mut ibv_cq_ex) -> u32 {
        // SAFETY: the caller's queue.
        unsafe { (*cq).cqe }.cast_unsigned()
    }
    // SAFETY: numbers, nullable pointers and functions.
    let mut queue: Box<ibv_cq_ex> = Box::new(unsafe { mem::zeroed() });
    queue.context = context;
    // SAFETY: the caller's attributes.
    queue.cqe = unsafe { (*attr).cqe }.cast_signed();
    queue.start_poll = Some(start);
    queue.next_poll = Some(next);
    queue.read_opcode = Some(opcode);
    queue.read_byte_len = Some(byte_len);
    queue.read_qp_num = Some(qp_num);
    Box::into_raw(queue)
}
