//! Buffers that the library allocates for a program: plain memory, which is registered like any other.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use gdr_verbs_sys::{ibv_buf, ibv_mr, ibv_pd};

use crate::domain::{Domain, Use};
use crate::errno::Errno;
use crate::region::{self, Wanted};
use crate::ret::{minus_one, plain, pointer, unsupported_minus_one, unsupported_pointer};
use crate::slab::{CObject, is_own};
use crate::system::{forward, forward_or};
use crate::table::Table;

/// `struct ibv_buf`, which programs must not look into: libibverbs itself does.
#[repr(C)]
struct CBuffer {
    address: *mut c_void,
    size: usize,
    pd: *mut ibv_pd,
    dmabuf_fd: c_int,
}

/// A buffer. A region of it keeps its memory after the program has freed it, as a network card that
/// has pinned the pages does.
pub(crate) struct Buffer {
    _object: CObject<CBuffer>,
    memory: Mapping,
    domain: Arc<Domain>,
    _use: Use,
}

/// Closing a device leaves its buffers: the program frees its memory, whatever happens to the device.
pub(crate) static BUFFERS: Table<Buffer> = Table::new();

/// Pages of zeros that nothing else uses.
struct Mapping {
    start: NonNull<c_void>,
    len: usize,
}

// SAFETY: an address that nothing here reads or writes.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(len: usize) -> Result<Self, Errno> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
        match NonNull::new(start) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED => Ok(Self { start, len }),
            _ => Err(Errno::NOMEM),
        }
    }

    /// Returns whether `len` bytes at `address` are within it.
    fn contains(&self, address: *mut c_void, len: usize) -> bool {
        let offset = address.addr().checked_sub(self.start.addr().get());
        let room = offset.and_then(|offset| self.len.checked_sub(offset));
        room.is_some_and(|room| len <= room)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: a mapping of this value alone. The program has freed it, and no region has it.
        let unmapped = unsafe { libc::munmap(self.start.as_ptr(), self.len) };
        debug_assert_eq!(unmapped, 0);
    }
}

impl Buffer {
    /// The buffer of a handle, which was allocated for `domain`.
    ///
    /// # Errors
    /// `EINVAL`, also for a range that is not within it.
    pub(crate) fn with_range(
        buf: *mut ibv_buf,
        domain: &Arc<Domain>,
        (address, len): (*mut c_void, usize),
    ) -> Result<Arc<Self>, Errno> {
        let buffer = BUFFERS.get(buf)?;
        let is_right = Arc::ptr_eq(&buffer.domain, domain) && buffer.memory.contains(address, len);
        is_right.then_some(buffer).ok_or(Errno::INVAL)
    }
}

/// Allocates memory at the start of a page, of zeros.
///
/// # Safety
/// `buf` is writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_buf(
    pd: *mut ibv_pd,
    size: usize,
    buf: *mut *mut ibv_buf,
) -> *mut c_void {
    forward_or!(unless is_own(pd), ibv_alloc_buf(pd, size, buf), unsupported_pointer());
    pointer(|| {
        let domain = Domain::of(pd)?;
        let memory = Mapping::new(size)?;
        let start = memory.start.as_ptr();
        // SAFETY: pointers and numbers.
        let object = unsafe {
            CObject::<CBuffer>::new(|buffer| {
                buffer.address = start;
                buffer.size = size;
                buffer.pd = pd;
                buffer.dmabuf_fd = -1;
            })
        };
        let handle = object.as_ptr().cast::<ibv_buf>();
        let buffer = Buffer {
            _object: object,
            memory,
            _use: domain.users().add(),
            domain,
        };
        BUFFERS.insert(handle, Arc::new(buffer));
        // SAFETY: the contract of this function.
        unsafe { buf.write(handle) };
        Ok(start)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_free_buf(buf: *mut ibv_buf) {
    forward!(unless is_own(buf), ibv_free_buf(buf));
    plain((), || BUFFERS.remove(buf).map(drop));
}

/// Returns -1 with errno set, unlike the others. Plain memory has no descriptor.
#[unsafe(no_mangle)]
extern "C" fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int {
    forward_or!(unless is_own(buf), ibv_export_buf_dmabuf_fd(buf), unsupported_minus_one());
    minus_one(|| {
        BUFFERS.get(buf)?;
        Err(Errno::NODATA)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    address: *mut c_void,
    len: usize,
    access: c_int,
) -> *mut ibv_mr {
    forward_or!(unless is_own(pd) || is_own(buf), ibv_reg_buf_mr(pd, buf, address, len, access), unsupported_pointer());
    pointer(|| {
        let domain = Domain::of(pd)?;
        let buffer = Buffer::with_range(buf, &domain, (address, len))?;
        let wanted = Wanted::at_its_address(address, len, access.cast_unsigned());
        region::register(&domain, wanted, Some(buffer))
    })
}
