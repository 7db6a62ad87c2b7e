//! Buffers that the library allocates, and registration by attributes.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use gdr_verbs_sys::*;

use crate::side::*;

type Alloc = unsafe extern "C" fn(*mut ibv_pd, usize, *mut *mut ibv_buf) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut ibv_buf);
type Register =
    unsafe extern "C" fn(*mut ibv_pd, *mut ibv_buf, *mut c_void, usize, c_int) -> *mut ibv_mr;
type Export = unsafe extern "C" fn(*mut ibv_buf) -> c_int;

const LEN: usize = 10_000;

/// An allocated buffer.
struct Buffer {
    address: *mut c_void,
    handle: *mut ibv_buf,
}

fn alloc(domain: *mut ibv_pd, len: usize) -> Result<Buffer, c_int> {
    let mut handle = ptr::null_mut();
    // SAFETY: the type of this function in rdma-core's header; the library checks the domain.
    let address =
        unsafe { typed_function::<Alloc>(c"ibv_alloc_buf")(domain, len, &raw mut handle) };
    match address.is_null() {
        true => Err(last_errno()),
        false => Ok(Buffer { address, handle }),
    }
}

impl Buffer {
    fn register(
        &self,
        domain: *mut ibv_pd,
        offset: usize,
        len: usize,
    ) -> Result<NonNull<ibv_mr>, c_int> {
        let address = self.address.wrapping_byte_add(offset);
        let access = all_access().0.cast_signed();
        // SAFETY: the type of this function in rdma-core's header; the library checks its arguments.
        let region = unsafe {
            typed_function::<Register>(c"ibv_reg_buf_mr")(domain, self.handle, address, len, access)
        };
        NonNull::new(region).ok_or_else(last_errno)
    }

    fn export(&self) -> (c_int, c_int) {
        // SAFETY: as above.
        let fd = unsafe { typed_function::<Export>(c"ibv_export_buf_dmabuf_fd")(self.handle) };
        (fd, last_errno())
    }

    /// Frees the buffer. May be called again, because the library checks the handle.
    fn free(&self) {
        // SAFETY: as above.
        unsafe { typed_function::<Free>(c"ibv_free_buf")(self.handle) };
    }

    fn bytes(&self) -> Vec<u8> {
        // SAFETY: the buffer has this length, and no transfer is in progress.
        unsafe { std::slice::from_raw_parts(self.address.cast(), LEN) }.to_vec()
    }

    fn fill(&self, byte: u8) {
        // SAFETY: as above, and nothing refers to it.
        unsafe { ptr::write_bytes(self.address.cast::<u8>(), byte, LEN) };
    }
}

fn last_errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

#[test]
fn a_buffer_is_memory_of_zeros_that_is_sent_from_and_written_to() {
    let (a, b) = sides();
    let (near, far) = (alloc(a.domain, LEN).unwrap(), alloc(b.domain, LEN).unwrap());
    assert!(near.bytes().iter().all(|byte| *byte == 0));
    assert_eq!(near.address.addr() % 4096, 0);
    near.fill(7);
    let (source, target) = (
        near.register(a.domain, 0, LEN).unwrap(),
        far.register(b.domain, 1000, LEN - 1000).unwrap(),
    );
    let write = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, target, 8);
    a.send(write, &mut [segment(source, 0, 5000)]).unwrap();
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_SUCCESS);
    let written = far.bytes().iter().position(|byte| *byte != 0);
    assert_eq!(written, Some(1008));
    assert_eq!(far.bytes()[1008..6008], [7; 5000]);
    for region in [source, target] {
        deregister(region);
    }
    near.free();
    far.free();
    a.close();
    b.close();
}

#[test]
fn a_range_outside_the_buffer_or_of_another_domain_is_not_registered() {
    let (a, b) = sides();
    let buffer = alloc(a.domain, LEN).unwrap();
    for (offset, len) in [(0, LEN + 1), (1, LEN), (LEN + 1, 0), (usize::MAX, 2)] {
        let refused = buffer.register(a.domain, offset, len);
        assert_eq!(refused, Err(libc::EINVAL), "{len} from {offset}");
    }
    assert_eq!(buffer.register(b.domain, 0, LEN), Err(libc::EINVAL));
    assert_eq!(buffer.export(), (-1, libc::ENODATA));
    buffer.free();
    assert_eq!(buffer.register(a.domain, 0, LEN), Err(libc::EINVAL));
    assert_eq!(buffer.export(), (-1, libc::EINVAL));
    buffer.free();
    assert_eq!(alloc(a.domain, 0).err(), Some(libc::EINVAL));
    assert_eq!(alloc(a.domain, usize::MAX / 2).err(), Some(libc::ENOMEM));
    a.close();
    b.close();
}

#[test]
fn a_freed_buffer_stays_mapped_while_a_region_of_it_lives() {
    let (a, b) = sides();
    let buffer = alloc(b.domain, LEN).unwrap();
    let target = buffer.register(b.domain, 0, LEN).unwrap();
    let mut near = vec![9_u64];
    let source = a.register(&mut near);
    buffer.free();
    let write = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, target, 0);
    a.send(write, &mut [segment(source, 0, 8)]).unwrap();
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_SUCCESS);
    assert_eq!(buffer.bytes()[..8], 9_u64.to_ne_bytes());
    deregister(source);
    deregister(target);
    a.close();
    b.close();
}

#[test]
fn a_domain_with_a_buffer_is_in_use() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    // SAFETY: the context is open.
    let domain = unsafe { library().ibv_alloc_pd(side.context) }
        .unwrap()
        .as_ptr();
    let buffer = alloc(domain, 1).unwrap();
    let dealloc = || {
        // SAFETY: a handle, which the library checks.
        let freed = unsafe { library().ibv_dealloc_pd(domain) };
        freed.map_err(|error| error.errno())
    };
    assert_eq!(dealloc(), Err(Errno::EBUSY));
    buffer.free();
    assert_eq!(dealloc(), Ok(()));
    side.close();
}

const IOVA: u64 = 1 << 0;
const ADDR: u64 = 1 << 1;
const FD: u64 = 1 << 2;
const FD_OFFSET: u64 = 1 << 3;
const DMAH: u64 = 1 << 4;
const BUF: u64 = 1 << 5;
const UNKNOWN: u64 = 1 << 40;

fn attributes(comp_mask: u64, memory: &mut [u64]) -> ibv_mr_init_attr {
    ibv_mr_init_attr {
        length: size_of_val(memory),
        access: all_access().0.cast_signed(),
        comp_mask,
        iova: 0x10_0000,
        addr: memory.as_mut_ptr().cast(),
        fd: -1,
        fd_offset: 0,
        dmah: ptr::null_mut(),
        buf: ptr::null_mut(),
    }
}

fn reg_mr_ex(domain: *mut ibv_pd, mut attr: ibv_mr_init_attr) -> Result<NonNull<ibv_mr>, c_int> {
    type RegMrEx = unsafe extern "C" fn(*mut ibv_pd, *mut ibv_mr_init_attr) -> *mut ibv_mr;
    // SAFETY: the type of this function in rdma-core's header; the library checks its arguments.
    let region = unsafe { typed_function::<RegMrEx>(c"ibv_reg_mr_ex")(domain, &raw mut attr) };
    NonNull::new(region).ok_or_else(last_errno)
}

#[test]
fn registration_by_attributes_names_memory_by_its_address_or_by_another() {
    let (a, b) = sides();
    let (mut near, mut far) = (vec![3_u64; 4], vec![0_u64; 4]);
    let source = reg_mr_ex(a.domain, attributes(ADDR, &mut near)).unwrap();
    let target = reg_mr_ex(b.domain, attributes(ADDR | IOVA, &mut far)).unwrap();
    // SAFETY: the region is alive.
    let (address, len, key) = unsafe {
        let region = target.as_ref();
        (region.addr, region.length, region.rkey)
    };
    assert_eq!((address, len), (far.as_mut_ptr().cast(), 32));
    let mut write = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, target, 0);
    (write.wr.rdma.rkey, write.wr.rdma.remote_addr) = (key, 0x10_0008);
    a.send(write, &mut [segment(source, 0, 16)]).unwrap();
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_SUCCESS);
    assert_eq!(far, [0, 3, 3, 0]);
    deregister(source);
    deregister(target);
    a.close();
    b.close();
}

#[test]
fn registration_by_attributes_refuses_what_does_not_belong_together() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let mut memory = vec![0_u64; 4];
    for (mask, errno) in [
        (0, libc::EINVAL),
        (IOVA, libc::EINVAL),
        (ADDR | FD, libc::EINVAL),
        (ADDR | FD_OFFSET, libc::EINVAL),
        (FD | FD_OFFSET, libc::EINVAL),
        (FD | IOVA, libc::EINVAL),
        // The buffer handle is null.
        (ADDR | BUF, libc::EINVAL),
        (FD | FD_OFFSET | IOVA | BUF, libc::EINVAL),
        (ADDR | DMAH, libc::EOPNOTSUPP),
        (ADDR | UNKNOWN, libc::EOPNOTSUPP),
    ] {
        let refused = reg_mr_ex(side.domain, attributes(mask, &mut memory));
        assert_eq!(refused, Err(errno), "{mask:#x}");
    }
    let buffer = alloc(side.domain, LEN).unwrap();
    let of_buffer = |len| ibv_mr_init_attr {
        length: len,
        addr: buffer.address,
        buf: buffer.handle,
        ..attributes(ADDR | BUF, &mut [])
    };
    assert_eq!(
        reg_mr_ex(side.domain, of_buffer(LEN + 1)),
        Err(libc::EINVAL)
    );
    let region = reg_mr_ex(side.domain, of_buffer(LEN)).unwrap();
    deregister(region);
    buffer.free();
    side.close();
}
