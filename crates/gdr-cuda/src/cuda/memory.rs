//! Allocates and frees memory.

use std::ffi::c_void;
use std::{io, mem, ptr};

use super::layout::{
    self, GRANULARITY_MINIMUM, HANDLE_TYPE_NONE, HANDLE_TYPE_POSIX_FD, MEM_ATTACH_GLOBAL,
    device_attribute,
};
use super::{Cuda, check, size};
use crate::device::Ordinal;
use crate::driver::{HostMemoryOrigin, MemoryKind, RawAllocation, RawHostAllocation};
use crate::error::{CuResult, Error, Result};
use crate::pointer::DevicePtr;

/// VMM memory during its allocation, which is undone on drop unless it was completed.
struct Reservation<'a> {
    cuda: &'a Cuda,
    /// The length in bytes, a multiple of the granularity.
    len: usize,
    handle: Option<u64>,
    address: Option<u64>,
    mapped: bool,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.undo() {
            tracing::debug!(%error, "undoing a VMM allocation failed");
        }
    }
}

impl Reservation<'_> {
    /// Undoes all steps, even if one fails; returns the first error.
    fn undo(&mut self) -> Result<()> {
        let (api, len) = (&self.cuda.api, self.len);
        let mut results = [Ok(()), Ok(()), Ok(())];
        if let Some(address) = self.address.filter(|_| self.mapped) {
            // SAFETY: the whole range is mapped at this address, and out of use.
            results[0] = check("cuMemUnmap", unsafe { (api.mem_unmap)(address, len) });
            self.mapped = false;
        }
        if let Some(handle) = self.handle.take() {
            // SAFETY: `cuMemCreate` returned this handle, which is released once.
            results[1] = check("cuMemRelease", unsafe { (api.mem_release)(handle) });
        }
        if let Some(address) = self.address.take() {
            // SAFETY: the whole range is reserved at this address, and was unmapped above.
            results[2] = check("cuMemAddressFree", unsafe {
                (api.mem_address_free)(address, len)
            });
        }
        results.into_iter().collect()
    }
}

/// Pages of this process, unmapped on drop. A forked child does not have them: the GPU continues to use the parent's.
struct PrivatePages {
    address: *mut c_void,
    len: usize,
}

impl PrivatePages {
    /// Maps at least `len` zeroed bytes.
    fn new(len: usize) -> Result<Self> {
        // SAFETY: reads a constant of the system.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = usize::try_from(page).unwrap_or(4096);
        let len = len.max(1).checked_next_multiple_of(page);
        let len = len.unwrap_or(usize::MAX);
        let (access, kind) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: maps new pages at an address that the Linux kernel chooses.
        let address = unsafe { libc::mmap(ptr::null_mut(), len, access, kind, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(Error::Os {
                what: "mapping memory for page-locking failed",
                source: io::Error::last_os_error(),
            });
        }
        let pages = Self { address, len };
        // SAFETY: the pages that were just mapped.
        if unsafe { libc::madvise(address, len, libc::MADV_DONTFORK) } != 0 {
            return Err(Error::Os {
                what: "excluding page-locked memory from forked children failed",
                source: io::Error::last_os_error(),
            });
        }
        Ok(pages)
    }
}

impl Drop for PrivatePages {
    fn drop(&mut self) {
        // SAFETY: this value mapped them, and nothing uses them.
        unsafe { libc::munmap(self.address, self.len) };
    }
}

impl Cuda {
    pub(super) fn allocate_memory(
        &self,
        device: Ordinal,
        kind: MemoryKind,
        len: u64,
    ) -> Result<RawAllocation> {
        let call = kind.function();
        let bytes = size(call, len)?;
        let _current = self.enter(device)?;
        let api = &self.api;
        let mut address = 0;
        let status = match kind {
            // SAFETY: a place for the result, in the device's context.
            MemoryKind::Plain => unsafe { (api.mem_alloc)(&mut address, bytes) },
            // SAFETY: as above.
            MemoryKind::Managed => unsafe {
                (api.mem_alloc_managed)(&mut address, bytes, MEM_ATTACH_GLOBAL)
            },
            // SAFETY: as above; null is the context's default stream.
            MemoryKind::Pool => unsafe {
                (api.mem_alloc_async)(&mut address, bytes, ptr::null_mut())
            },
            MemoryKind::VmmPosixFd | MemoryKind::Vmm => {
                return self.allocate_vmm(device, kind, bytes);
            }
        };
        check(call, status)?;
        let ptr = DevicePtr::new(address);
        let raw = RawAllocation {
            device,
            kind,
            ptr,
            len,
            reserved: len,
            handle: 0,
        };
        if kind == MemoryKind::Pool {
            // After this, every stream can use the memory, not only later work on the default stream.
            if let Err(error) = self.synchronize_default_stream() {
                // SAFETY: allocated above, and not used yet.
                let _ = unsafe { self.free_memory(&raw) };
                return Err(error);
            }
        }
        Ok(raw)
    }

    pub(super) fn allocate_vmm(
        &self,
        ordinal: Ordinal,
        kind: MemoryKind,
        len: usize,
    ) -> Result<RawAllocation> {
        let (api, device) = (&self.api, self.device(ordinal)?);
        let handle_types = match kind {
            MemoryKind::VmmPosixFd => HANDLE_TYPE_POSIX_FD,
            _ => HANDLE_TYPE_NONE,
        };
        let rdma = self.attribute(device, device_attribute::GPU_DIRECT_RDMA_WITH_VMM)? != 0;
        let prop = layout::allocation_prop(device, handle_types, rdma);

        let mut granularity = 0;
        // SAFETY: a place for the result and an initialized property.
        let status = unsafe {
            (api.mem_get_allocation_granularity)(&mut granularity, &prop, GRANULARITY_MINIMUM)
        };
        check("cuMemGetAllocationGranularity", status)?;
        let invalid = Error::Call {
            call: "cuMemCreate",
            result: CuResult::INVALID_VALUE,
        };
        let rounded = len
            .checked_next_multiple_of(granularity)
            .filter(|rounded| *rounded > 0);
        let len_reserved = rounded.ok_or(invalid)?;

        let mut handle = 0;
        // SAFETY: a place for the result and an initialized property; no flags exist.
        let status = unsafe { (api.mem_create)(&mut handle, len_reserved, &prop, 0) };
        check("cuMemCreate", status)?;
        let mapped = self.map_handle(ordinal, handle, len_reserved as u64)?;
        Ok(RawAllocation {
            kind,
            len: len as u64,
            ..mapped
        })
    }

    /// Maps the first `len` bytes of VMM memory for `ordinal`. Takes the handle, which is released after an error.
    pub(super) fn map_handle(
        &self,
        ordinal: Ordinal,
        handle: u64,
        len: u64,
    ) -> Result<RawAllocation> {
        let mut made = Reservation {
            cuda: self,
            len: 0,
            handle: Some(handle),
            address: None,
            mapped: false,
        };
        made.len = size("cuMemMap", len)?;
        let (api, device) = (&self.api, self.device(ordinal)?);
        let mut address = 0;
        // SAFETY: a place for the result; the driver chooses alignment and address.
        let status = unsafe { (api.mem_address_reserve)(&mut address, made.len, 0, 0, 0) };
        check("cuMemAddressReserve", status)?;
        made.address = Some(address);

        // SAFETY: maps the memory, whose length the driver checks, at all of the reserved addresses.
        let status = unsafe { (api.mem_map)(address, made.len, 0, handle, 0) };
        check("cuMemMap", status)?;
        made.mapped = true;

        let access = layout::read_write(device);
        // SAFETY: one descriptor, for the range that was mapped above.
        let status = unsafe { (api.mem_set_access)(address, made.len, &access, 1) };
        check("cuMemSetAccess", status)?;

        // Complete: from here on, `free_memory` frees it.
        made.handle = None;
        made.address = None;
        made.mapped = false;
        Ok(RawAllocation {
            device: ordinal,
            kind: MemoryKind::Vmm,
            ptr: DevicePtr::new(address),
            len,
            reserved: len,
            handle,
        })
    }

    /// # Safety
    /// Same as [`crate::Driver::free`].
    pub(super) unsafe fn free_memory(&self, allocation: &RawAllocation) -> Result<()> {
        let _current = self.enter_any(allocation.device)?;
        let (api, address) = (&self.api, allocation.ptr.get());
        match allocation.kind {
            MemoryKind::Plain | MemoryKind::Managed => {
                // SAFETY: the caller's promise.
                check("cuMemFree", unsafe { (api.mem_free)(address) })
            }
            MemoryKind::Pool => {
                // SAFETY: the caller's promise; null is the context's default stream.
                let status = unsafe { (api.mem_free_async)(address, ptr::null_mut()) };
                check("cuMemFreeAsync", status)?;
                self.synchronize_default_stream()
            }
            MemoryKind::VmmPosixFd | MemoryKind::Vmm => Reservation {
                cuda: self,
                len: size("cuMemUnmap", allocation.reserved)?,
                handle: Some(allocation.handle),
                address: Some(address),
                mapped: true,
            }
            .undo(),
        }
    }

    /// Frees memory in the order of a new stream without work. CUDA also accepts memory of `cuMemAlloc` there, and
    /// returns at once.
    ///
    /// # Safety
    /// Same as [`crate::Driver::free_unwaited`].
    pub(super) unsafe fn free_memory_unwaited(&self, allocation: &RawAllocation) -> Result<()> {
        if !matches!(allocation.kind, MemoryKind::Plain | MemoryKind::Pool) {
            // SAFETY: the caller's promise.
            return unsafe { self.free_memory(allocation) };
        }
        let _current = self.enter_any(allocation.device)?;
        let api = &self.api;
        let mut stream = ptr::null_mut();
        // SAFETY: a place for the result; a context is current.
        let status = unsafe { (api.stream_create)(&mut stream, layout::STREAM_NON_BLOCKING) };
        check("cuStreamCreate", status)?;
        // SAFETY: the caller's promise: the memory is out of use; the stream is new.
        let status = unsafe { (api.mem_free_async)(allocation.ptr.get(), stream) };
        // SAFETY: the stream was created above; its queued work still completes.
        let _ = unsafe { (api.stream_destroy)(stream) };
        if check("cuMemFreeAsync", status).is_ok() {
            return Ok(());
        }
        // The driver may refuse memory of `cuMemAlloc` there; this then waits.
        // SAFETY: the caller's promise; the call above did not free the memory.
        unsafe { self.free_memory(allocation) }
    }

    pub(super) fn allocate_host_memory(
        &self,
        device: Ordinal,
        len: usize,
    ) -> Result<RawHostAllocation> {
        let _current = self.enter(device)?;
        let mut cpu = ptr::null_mut();
        let flags = layout::HOST_ALLOC_PORTABLE_AND_MAPPED;
        // SAFETY: a place for the result, in the device's context.
        check("cuMemHostAlloc", unsafe {
            (self.api.mem_host_alloc)(&mut cpu, len, flags)
        })?;
        let mut gpu = 0;
        // SAFETY: a place for the result and memory that was allocated as mapped; no flags exist.
        let status = unsafe { (self.api.mem_host_get_device_pointer)(&mut gpu, cpu, 0) };
        if let Err(error) = check("cuMemHostGetDevicePointer", status) {
            // SAFETY: allocated above, and not used yet.
            let _ = unsafe { (self.api.mem_free_host)(cpu) };
            return Err(error);
        }
        Ok(RawHostAllocation {
            origin: HostMemoryOrigin::Driver,
            cpu: cpu.cast(),
            gpu: DevicePtr::new(gpu),
            len,
        })
    }

    pub(super) fn register_host_memory(
        &self,
        device: Ordinal,
        len: usize,
    ) -> Result<RawHostAllocation> {
        let _current = self.enter(device)?;
        let pages = PrivatePages::new(len)?;
        let flags = layout::HOST_REGISTER_PORTABLE_AND_MAPPED;
        // SAFETY: pages of this process, which stay mapped until they are unregistered.
        check("cuMemHostRegister", unsafe {
            (self.api.mem_host_register)(pages.address, pages.len, flags)
        })?;
        let mut gpu = 0;
        // SAFETY: a place for the result and memory that was registered as mapped; no flags exist.
        let status = unsafe { (self.api.mem_host_get_device_pointer)(&mut gpu, pages.address, 0) };
        if let Err(error) = check("cuMemHostGetDevicePointer", status) {
            // SAFETY: registered above, and not used yet.
            let undone = check("cuMemHostUnregister", unsafe {
                (self.api.mem_host_unregister)(pages.address)
            });
            if undone.is_err() {
                // The driver may still use the pages.
                mem::forget(pages);
            }
            return Err(error);
        }
        let (cpu, len) = (pages.address.cast(), pages.len);
        mem::forget(pages);
        Ok(RawHostAllocation {
            origin: HostMemoryOrigin::Registered,
            cpu,
            gpu: DevicePtr::new(gpu),
            len,
        })
    }

    /// # Safety
    /// Same as [`crate::Driver::free_host`].
    pub(super) unsafe fn free_host_memory(
        &self,
        device: Ordinal,
        allocation: &RawHostAllocation,
    ) -> Result<()> {
        let _current = self.enter(device)?;
        let address = allocation.cpu.cast();
        match allocation.origin {
            HostMemoryOrigin::Driver => {
                // SAFETY: the caller's promise: allocated by `cuMemHostAlloc`, and out of use.
                check("cuMemFreeHost", unsafe {
                    (self.api.mem_free_host)(address)
                })
            }
            HostMemoryOrigin::Registered => {
                // SAFETY: the caller's promise: registered by `register_host_memory`, and out of use. After an error
                // the driver may still use the pages, which then stay mapped.
                check("cuMemHostUnregister", unsafe {
                    (self.api.mem_host_unregister)(address)
                })?;
                let len = allocation.len;
                drop(PrivatePages { address, len });
                Ok(())
            }
        }
    }

    /// Waits for the default stream of the current context.
    pub(super) fn synchronize_default_stream(&self) -> Result<()> {
        // SAFETY: null denotes the default stream.
        let status = unsafe { (self.api.stream_synchronize)(ptr::null_mut()) };
        check("cuStreamSynchronize", status)
    }
}
