//! One object of each kind, and functions and zeroed memory for calls with them.

use std::ffi::{CString, c_int, c_void};
use std::ptr;

use gdr_verbs_sys::*;

use crate::copy::Copy;
use crate::installed::Installed;

impl Copy {
    /// Returns the function that `dlsym` finds, or null.
    pub(crate) fn default(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: a handle and a C string.
        unsafe { libc::dlsym(self.handle, name.as_ptr()) }
    }

    /// Returns a function that `Verbs` does not declare.
    ///
    /// # Safety
    /// `F` is the type of the function of this name.
    pub(crate) unsafe fn function<F>(&self, name: &str) -> F {
        let address = self.default(name);
        assert!(!address.is_null(), "{name}");
        assert_eq!(size_of::<F>(), size_of_val(&address));
        // SAFETY: the contract of this function.
        unsafe { std::mem::transmute_copy(&address) }
    }
}

/// Memory at an address whose lower 32 bits are 0.
pub(crate) struct Scratch(*mut c_void);

impl Scratch {
    const LEN: usize = 1 << 16;

    pub(crate) fn new() -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let found = (0x2000_usize..0x2100).find_map(|high| {
            let wanted = ptr::without_provenance_mut(high << 32);
            // SAFETY: maps memory for this value and replaces no other mapping.
            let at = unsafe { libc::mmap(wanted, Self::LEN, protection, flags, -1, 0) };
            (at == wanted).then_some(at)
        });
        Self(found.unwrap())
    }

    /// Zeroes the memory; returns its address.
    pub(crate) fn zeroed(&self) -> usize {
        // SAFETY: the mapping, to which nothing refers.
        unsafe { ptr::write_bytes(self.0.cast::<u8>(), 0, Self::LEN) };
        self.0.expose_provenance()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the mapping from `new`.
        unsafe { libc::munmap(self.0, Self::LEN) };
    }
}

/// One object of each kind that a program gets from a gdr device.
pub(crate) struct Objects<'a> {
    copy: &'a Copy,
    context: *mut ibv_context,
    domain: *mut ibv_pd,
    region: *mut ibv_mr,
    channel: *mut ibv_comp_channel,
    queue: *mut ibv_cq,
    pair: *mut ibv_qp,
    shared: *mut ibv_srq,
    path: *mut ibv_ah,
    counter: *mut ibv_comp_cntr,
    buffer: *mut ibv_buf,
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
struct SharedInit {
    context: *mut c_void,
    attr: ibv_srq_attr,
}

impl<'a> Objects<'a> {
    pub(crate) fn new(copy: &'a Copy) -> Self {
        let verbs = copy.verbs;
        let context = copy.open(0);
        let mut init = SharedInit {
            context: ptr::null_mut(),
            attr: ibv_srq_attr {
                max_wr: 4,
                max_sge: 1,
                srq_limit: 0,
            },
        };
        let mut counter = ibv_comp_cntr_init_attr {
            comp_mask: 0,
            type_: ibv_comp_cntr_type::IBV_COMP_CNTR_TYPE_WRS,
            flags: 0,
        };
        let mut buffer = ptr::null_mut();
        // SAFETY: the arguments are as the header requires for each function; nothing is destroyed before the process
        // ends.
        unsafe {
            let gid = verbs.query_gid(context, 1, 0).unwrap().gid;
            let mut path = ibv_ah_attr {
                is_global: 1,
                port_num: 1,
                ..Default::default()
            };
            path.grh.dgid = gid;
            let domain = verbs.ibv_alloc_pd(context).unwrap().as_ptr();
            let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
            let words = Box::leak(Box::new([0_u64; 8]));
            let (address, len) = (words.as_mut_ptr().cast(), size_of_val(words));
            let region = verbs.reg_mr(domain, address, len, access).unwrap().as_ptr();
            let channel = verbs.ibv_create_comp_channel(context).unwrap().as_ptr();
            let queue = verbs.ibv_create_cq(context, 16, ptr::null_mut(), channel, 0);
            let queue = queue.unwrap().as_ptr();
            let mut attr = ibv_qp_init_attr {
                send_cq: queue,
                recv_cq: queue,
                qp_type: ibv_qp_type::IBV_QPT_RC,
                ..Default::default()
            };
            attr.cap.max_send_wr = 4;
            attr.cap.max_recv_wr = 4;
            let pair = verbs.ibv_create_qp(domain, &mut attr).unwrap().as_ptr();
            // Makes waits for events return at once, because none occur.
            for fd in [(*context).async_fd, (*channel).fd] {
                let flags = libc::fcntl(fd, libc::F_GETFL);
                assert_eq!(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
            }
            let objects = Self {
                copy,
                context,
                domain,
                region,
                channel,
                queue,
                pair,
                shared: copy
                    .function::<unsafe extern "C" fn(*mut ibv_pd, *mut SharedInit) -> *mut ibv_srq>(
                        "ibv_create_srq",
                    )(domain, &raw mut init),
                path: copy
                    .function::<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah>(
                        "ibv_create_ah",
                    )(domain, &raw mut path),
                counter: copy.function::<unsafe extern "C" fn(
                    *mut ibv_context,
                    *mut ibv_comp_cntr_init_attr,
                ) -> *mut ibv_comp_cntr>("ibv_create_comp_cntr")(
                    context, &raw mut counter
                ),
                buffer: {
                    let alloc = copy.function::<unsafe extern "C" fn(
                        *mut ibv_pd,
                        usize,
                        *mut *mut ibv_buf,
                    ) -> *mut c_void>("ibv_alloc_buf");
                    assert!(!alloc(domain, 4096, &raw mut buffer).is_null());
                    buffer
                },
            };
            assert!(objects.all().iter().all(|(_, object)| !object.is_null()));
            objects
        }
    }

    pub(crate) fn all(&self) -> [(&'static str, *mut c_void); 11] {
        // SAFETY: the context is open.
        let device = unsafe { (*self.context).device };
        [
            ("a buffer", self.buffer.cast()),
            ("a counter", self.counter.cast()),
            ("a path", self.path.cast()),
            ("a queue pair", self.pair.cast()),
            ("a shared receive queue", self.shared.cast()),
            ("a completion queue", self.queue.cast()),
            ("a channel", self.channel.cast()),
            ("a region", self.region.cast()),
            ("a domain", self.domain.cast()),
            ("a context", self.context.cast()),
            ("a device", device.cast()),
        ]
    }

    /// Calls each function that takes two objects with one object of the installed library and one of these; returns
    /// the errors.
    pub(crate) fn beside(&self, installed: &Installed) -> Vec<(&'static str, c_int)> {
        let (copy, other) = (self.copy, installed.object());
        let errno = |returned: *mut c_void| {
            assert!(returned.is_null());
            std::io::Error::last_os_error().raw_os_error().unwrap()
        };
        let mut queues = ibv_qp_init_attr {
            send_cq: self.queue,
            recv_cq: other.cast(),
            qp_type: ibv_qp_type::IBV_QPT_RC,
            ..Default::default()
        };
        let mut receives = ibv_qp_init_attr {
            send_cq: other.cast(),
            recv_cq: other.cast(),
            srq: self.shared,
            ..queues
        };
        let mut registered = ibv_mr_init_attr {
            length: 8,
            access: 0,
            comp_mask: 0b10_0010,
            iova: 0,
            addr: ptr::null_mut(),
            fd: -1,
            fd_offset: 0,
            dmah: ptr::null_mut(),
            buf: self.buffer,
        };
        let mut attached = ibv_qp_attach_comp_cntr_attr {
            comp_mask: 0,
            op_mask: 1,
        };
        type Attach = unsafe extern "C" fn(
            *mut c_void,
            *mut c_void,
            *mut ibv_qp_attach_comp_cntr_attr,
        ) -> c_int;
        type CreatePair = unsafe extern "C" fn(*mut c_void, *mut ibv_qp_init_attr) -> *mut c_void;
        // SAFETY: the types of the functions in the header; the library checks handles.
        unsafe {
            let attach = copy.function::<Attach>("ibv_qp_attach_comp_cntr");
            let create_pair = copy.function::<CreatePair>("ibv_create_qp");
            let attached = &raw mut attached;
            vec![
                (
                    "ibv_create_cq",
                    errno(copy.function::<unsafe extern "C" fn(
                        *mut c_void,
                        c_int,
                        *mut c_void,
                        *mut ibv_comp_channel,
                        c_int,
                    ) -> *mut c_void>("ibv_create_cq")(
                        other,
                        1,
                        ptr::null_mut(),
                        self.channel,
                        0,
                    )),
                ),
                ("ibv_create_qp", errno(create_pair(other, &raw mut queues))),
                (
                    "ibv_create_qp with receives",
                    errno(create_pair(other, &raw mut receives)),
                ),
                (
                    "ibv_reg_mr_ex",
                    errno(copy.function::<unsafe extern "C" fn(
                        *mut c_void,
                        *mut ibv_mr_init_attr,
                    ) -> *mut c_void>("ibv_reg_mr_ex")(
                        other, &raw mut registered
                    )),
                ),
                (
                    "ibv_reg_buf_mr",
                    errno(copy.function::<unsafe extern "C" fn(
                        *mut c_void,
                        *mut ibv_buf,
                        *mut c_void,
                        usize,
                        c_int,
                    ) -> *mut c_void>("ibv_reg_buf_mr")(
                        other,
                        self.buffer,
                        ptr::null_mut(),
                        8,
                        0,
                    )),
                ),
                (
                    "ibv_qp_attach_comp_cntr",
                    attach(other, self.counter.cast(), attached),
                ),
                (
                    "ibv_qp_attach_comp_cntr to one of gdr",
                    attach(self.pair.cast(), other, attached),
                ),
                (
                    "ibv_rereg_mr",
                    match copy.function::<unsafe extern "C" fn(
                        *mut c_void,
                        c_int,
                        *mut ibv_pd,
                        *mut c_void,
                        usize,
                        c_int,
                    ) -> c_int>("ibv_rereg_mr")(
                        other, 2, self.domain, ptr::null_mut(), 0, 0
                    ) {
                        0 => 0,
                        _ => errno(ptr::null_mut()),
                    },
                ),
            ]
        }
    }
}
