//! Handles for sharing device memory with other processes and devices.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use super::api::{Api, CUipcMemHandle};
use super::layout::{
    HANDLE_TYPE_POSIX_FD, IPC_LAZY_ENABLE_PEER_ACCESS, RANGE_HANDLE_TYPE_DMA_BUF_FD,
};
use super::{Cuda, check, size};
use crate::device::Ordinal;
use crate::device_export::ExportedMemory;
use crate::driver::{DmaBuf, MemoryKind, RawAllocation, RawImport};
use crate::error::{CuResult, Error, Result};
use crate::pointer::{DevicePtr, Family, PointerKind};

/// A reference to the VMM memory at an address ([`Cuda::retain_allocation`]); the memory is not freed while the
/// reference exists.
#[must_use = "the reference is released when this is dropped"]
#[derive(Debug)]
pub struct RetainedAllocation {
    api: Arc<Api>,
    handle: u64,
}

impl RetainedAllocation {
    /// Returns the handle types of the memory (`CUmemAllocationHandleType` bits; 1 is a POSIX file descriptor).
    ///
    /// # Errors
    /// The driver's errors.
    pub fn handle_types(&self) -> Result<u32> {
        let mut prop = MaybeUninit::zeroed();
        let call = self.api.mem_get_allocation_properties;
        // SAFETY: a place for the result and a handle that this value owns.
        let status = unsafe { call(prop.as_mut_ptr(), self.handle) };
        check("cuMemGetAllocationPropertiesFromHandle", status)?;
        // SAFETY: it was zeroed, which is a valid value, and the driver filled it in.
        Ok(unsafe { prop.assume_init() }.requested_handle_types)
    }

    /// Exports the memory as a POSIX file descriptor (`cuMemExportToShareableHandle`).
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for memory without this handle type; others of the driver.
    pub fn export_posix_fd(&self) -> Result<OwnedFd> {
        let call = "cuMemExportToShareableHandle";
        let mut fd: c_int = -1;
        let place: *mut c_void = (&raw mut fd).cast();
        let export = self.api.mem_export_to_shareable_handle;
        // SAFETY: a place for a descriptor, which is the type of this handle; a handle that this value owns; no flags
        // exist.
        check(call, unsafe {
            export(place, self.handle, HANDLE_TYPE_POSIX_FD, 0)
        })?;
        own(call, fd)
    }
}

impl Drop for RetainedAllocation {
    fn drop(&mut self) {
        // SAFETY: this value owns one reference.
        let status = unsafe { (self.api.mem_release)(self.handle) };
        if status != CuResult::SUCCESS.0 && status != CuResult::DEINITIALIZED.0 {
            tracing::debug!(error = %CuResult(status), "cuMemRelease failed");
        }
    }
}

/// Exports memory, from any thread and with any current context. Each call runs in the context of `ptr` or, for memory
/// without a context (VMM and pool memory), in a context of `device`.
impl Cuda {
    /// Returns the handle by which other processes open the allocation of `ptr` (`cuIpcGetMemHandle`).
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for managed, pool and VMM memory; others of the driver.
    pub fn ipc_handle(&self, device: Ordinal, ptr: DevicePtr) -> Result<[u8; 64]> {
        self.with_pointer_context(device, ptr, || {
            let mut handle = CUipcMemHandle([0; 64]);
            // SAFETY: a place for the result.
            let status = unsafe { (self.api.ipc_get_mem_handle)(&mut handle, ptr.get()) };
            check("cuIpcGetMemHandle", status)?;
            Ok(handle.0)
        })
    }

    /// Exports the whole allocation of `ptr` to other processes.
    pub(super) fn export_allocation(
        &self,
        device: Ordinal,
        ptr: DevicePtr,
    ) -> Result<ExportedMemory> {
        let info = self.query(ptr)?;
        let family = info.family;
        if family == Family::Vmm {
            let memory = self.retain_allocation(ptr)?;
            if memory.handle_types()? & HANDLE_TYPE_POSIX_FD == 0 {
                return Err(Error::NotExportable { ptr, family });
            }
            let descriptor = memory.export_posix_fd()?;
            // A mapping starts at the start of its memory (`cuMemMap` accepts no other offset than 0).
            return Ok(ExportedMemory::by_descriptor(
                descriptor, info.base, info.size,
            ));
        }
        if info.kind != PointerKind::Device || !matches!(family, Family::Plain | Family::Unknown) {
            return Err(Error::NotExportable { ptr, family });
        }
        let handle = self.ipc_handle(device, info.base)?;
        Ok(ExportedMemory::by_handle(handle, info.base, info.size))
    }

    /// Opens memory of another process in the primary context of `device`.
    pub(super) fn open_ipc_handle(&self, device: Ordinal, handle: [u8; 64]) -> Result<RawImport> {
        let call = "cuIpcOpenMemHandle";
        let _current = self.enter(device)?;
        let mut address = 0;
        // SAFETY: a place for the result; the driver checks the handle.
        let status = unsafe {
            (self.api.ipc_open_mem_handle)(
                &mut address,
                CUipcMemHandle(handle),
                IPC_LAZY_ENABLE_PEER_ACCESS,
            )
        };
        if status == CuResult::INVALID_CONTEXT.0 {
            return Err(Error::OwnExport);
        }
        check(call, status)?;
        let ptr = DevicePtr::new(address);
        let (mut base, mut len) = (0, 0);
        // SAFETY: two places for the results.
        let status = unsafe { (self.api.mem_get_address_range)(&mut base, &mut len, address) };
        let mut import = RawImport {
            device,
            ptr,
            len: 0,
            handle: None,
        };
        if let Err(error) = check("cuMemGetAddressRange", status) {
            // SAFETY: it was opened above, and nothing uses it.
            let _ = unsafe { self.close_import(&import) };
            return Err(error);
        }
        // A small allocation shares its memory object with others.
        let end = base.saturating_add(len as u64);
        import.len = end.saturating_sub(address);
        Ok(import)
    }

    /// Opens VMM memory of another process through a duplicate of its descriptor.
    pub(super) fn open_descriptor(
        &self,
        device: Ordinal,
        descriptor: OwnedFd,
        len: u64,
    ) -> Result<RawImport> {
        let call = "cuMemImportFromShareableHandle";
        let _current = self.enter(device)?;
        let number = ptr::without_provenance_mut(size(call, descriptor.as_raw_fd() as u64)?);
        let mut handle = 0;
        let import = self.api.mem_import_from_shareable_handle;
        // SAFETY: a place for the result; a descriptor is passed as a pointer, by its number.
        check(call, unsafe {
            import(&mut handle, number, HANDLE_TYPE_POSIX_FD)
        })?;
        let raw = self.map_handle(device, handle, len)?;
        Ok(RawImport {
            device,
            ptr: raw.ptr,
            len: raw.reserved,
            handle: Some(handle),
        })
    }

    /// Closes memory of another process.
    ///
    /// # Safety
    /// The memory is open, and no queued work uses it.
    pub(super) unsafe fn close_import(&self, import: &RawImport) -> Result<()> {
        if let Some(handle) = import.handle {
            let mapping = RawAllocation {
                device: import.device,
                kind: MemoryKind::Vmm,
                ptr: import.ptr,
                len: import.len,
                reserved: import.len,
                handle,
            };
            // SAFETY: the caller's promise.
            return unsafe { self.free_memory(&mapping) };
        }
        let _current = self.enter(import.device)?;
        // SAFETY: the caller's promise.
        let status = unsafe { (self.api.ipc_close_mem_handle)(import.ptr.get()) };
        check("cuIpcCloseMemHandle", status)
    }

    /// Returns a reference to the VMM memory mapped at `ptr` (`cuMemRetainAllocationHandle`).
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if no VMM memory is mapped there; others of the driver.
    pub fn retain_allocation(&self, ptr: DevicePtr) -> Result<RetainedAllocation> {
        let mut handle = 0;
        // The driver takes the device address as a pointer, but does not dereference it.
        let address = ptr::without_provenance_mut(size("cuMemRetainAllocationHandle", ptr.get())?);
        // SAFETY: a place for the result; any address may be queried.
        let status = unsafe { (self.api.mem_retain_allocation_handle)(&mut handle, address) };
        check("cuMemRetainAllocationHandle", status)?;
        Ok(RetainedAllocation {
            api: Arc::clone(&self.api),
            handle,
        })
    }

    /// Returns a dma-buf of `len` bytes at `ptr`, both multiples of the host's page size
    /// (`cuMemGetHandleForAddressRange`). `flags` are `CUmemRangeFlags`; 0 requests no special mapping.
    ///
    /// # Errors
    /// [`Error::Symbol`] before CUDA 11.7; `CUDA_ERROR_NOT_SUPPORTED` if the GPU or the Linux kernel does not support
    /// it; `CUDA_ERROR_INVALID_VALUE` for managed memory; others of the driver.
    pub fn dma_buf_fd(
        &self,
        device: Ordinal,
        ptr: DevicePtr,
        len: u64,
        flags: u64,
    ) -> Result<OwnedFd> {
        let call = "cuMemGetHandleForAddressRange";
        let export = self.api.mem_get_handle_for_address_range;
        let export = export.ok_or(Error::Symbol {
            symbol: "cuMemGetHandleForAddressRange",
        })?;
        let len = size(call, len)?;
        self.with_pointer_context(device, ptr, || {
            let mut fd: c_int = -1;
            let place: *mut c_void = (&raw mut fd).cast();
            // SAFETY: a place for a descriptor, which is the type of this handle.
            let status =
                unsafe { export(place, ptr.get(), len, RANGE_HANDLE_TYPE_DMA_BUF_FD, flags) };
            check(call, status)?;
            own(call, fd)
        })
    }

    /// Returns a dma-buf that contains `len` bytes at `ptr`. Only whole host pages can be exported. If the driver
    /// refuses them (memory of a pool is exported only from the start of its chunk), the dma-buf begins at the start of
    /// the allocation.
    pub(super) fn export_dma_buf(
        &self,
        device: Ordinal,
        ptr: DevicePtr,
        len: u64,
    ) -> Result<DmaBuf> {
        let page = rustix::param::page_size() as u64;
        let up = |to: u64| to.checked_next_multiple_of(page).unwrap_or(u64::MAX);
        let (first, end) = (ptr.get(), ptr.get().saturating_add(len));
        let base = first - first % page;
        let exported = self.dma_buf_fd(device, DevicePtr::new(base), up(end) - base, 0);
        let error = match exported {
            Ok(fd) => {
                let offset = first - base;
                return Ok(DmaBuf { fd, offset });
            }
            Err(error) => error,
        };
        let Ok((start, _)) = self.address_range(device, ptr) else {
            return Err(error);
        };
        let start = start.get();
        if start == base || start % page != 0 {
            return Err(error);
        }
        match self.dma_buf_fd(device, DevicePtr::new(start), up(end) - start, 0) {
            Ok(fd) => Ok(DmaBuf {
                fd,
                offset: first - start,
            }),
            // Returns the error of the requested range.
            Err(_) => Err(error),
        }
    }

    /// Returns the start and length of the allocation of `ptr` (`cuMemGetAddressRange`).
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_FOUND` for an address outside every allocation; others of the driver.
    pub fn address_range(&self, device: Ordinal, ptr: DevicePtr) -> Result<(DevicePtr, u64)> {
        self.with_pointer_context(device, ptr, || {
            let (mut base, mut len) = (0, 0);
            // SAFETY: two places for the results.
            let status =
                unsafe { (self.api.mem_get_address_range)(&mut base, &mut len, ptr.get()) };
            check("cuMemGetAddressRange", status)?;
            Ok((DevicePtr::new(base), len as u64))
        })
    }
}

/// Takes ownership of a descriptor that the driver opened.
fn own(call: &'static str, fd: c_int) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(Error::Call {
            call,
            result: CuResult::INVALID_VALUE,
        });
    }
    // SAFETY: the driver opened it during this call, and no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
