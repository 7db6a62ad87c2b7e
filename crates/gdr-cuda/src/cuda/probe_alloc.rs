//! Probe memory, and copies that wait for no other work.

use std::marker::PhantomData;
use std::mem;
use std::ptr;
use std::time::{Duration, Instant};

use super::api::Opaque;
use super::{Cuda, check, layout, size};
use crate::device::Ordinal;
use crate::driver::{MemoryKind, RawAllocation};
use crate::error::{CuResult, Error, Result};
use crate::pointer::DevicePtr;

/// An allocator of probe memory on one GPU, within [`Cuda::with_probe_memory`].
///
/// The process may have a running kernel that never ends by itself, and streams under capture. No method therefore uses
/// the default stream, frees memory by a call that waits for the GPU, or waits without a deadline.
#[derive(Debug)]
pub struct ProbeAllocator<'cuda> {
    cuda: &'cuda Cuda,
    device: Ordinal,
    stream: Opaque,
    buffers: Vec<RawAllocation>,
    /// Not `Send`, because its context is current on this thread only.
    _thread: PhantomData<*mut ()>,
}

impl Cuda {
    /// Runs `work` with an allocator of probe memory on `device`, in the context of `ptr`.
    ///
    /// Memory of [`MemoryKind::Plain`] stays allocated as long as the context, because `cuMemFree` waits for all
    /// kernels of the context, which may never end. Other memory is freed.
    ///
    /// # Errors
    /// The driver's errors, and the errors of `work`.
    pub fn with_probe_memory<T>(
        &self,
        device: Ordinal,
        ptr: DevicePtr,
        work: impl FnOnce(&mut ProbeAllocator<'_>) -> Result<T>,
    ) -> Result<T> {
        let _relaxed = self.relax_stream_capture();
        self.with_pointer_context(device, ptr, || {
            let mut stream: Opaque = ptr::null_mut();
            // SAFETY: a place for the result, in the device's context.
            let status =
                unsafe { (self.api.stream_create)(&mut stream, layout::STREAM_NON_BLOCKING) };
            check("cuStreamCreate", status)?;
            let (cuda, buffers, _thread) = (self, Vec::new(), PhantomData);
            work(&mut ProbeAllocator {
                cuda,
                device,
                stream,
                buffers,
                _thread,
            })
        })
    }
}

impl ProbeAllocator<'_> {
    /// Allocates probe memory.
    ///
    /// # Errors
    /// The driver's errors; `CUDA_ERROR_NOT_SUPPORTED` for managed memory.
    pub fn allocate(&mut self, kind: MemoryKind, len: u64) -> Result<DevicePtr> {
        let (cuda, api, call) = (self.cuda, &self.cuda.api, kind.function());
        let bytes = size(call, len)?;
        let mut address = 0;
        let raw = |address| RawAllocation {
            device: self.device,
            kind,
            ptr: DevicePtr::new(address),
            len,
            reserved: len,
            handle: 0,
        };
        let allocation = match kind {
            MemoryKind::Plain => {
                // SAFETY: a place for the result, in the device's context.
                check(call, unsafe { (api.mem_alloc)(&mut address, bytes) })?;
                raw(address)
            }
            MemoryKind::Pool => {
                // SAFETY: as above, on a stream that this value owns.
                let status = unsafe { (api.mem_alloc_async)(&mut address, bytes, self.stream) };
                check(call, status)?;
                raw(address)
            }
            MemoryKind::Vmm | MemoryKind::VmmPosixFd => {
                cuda.allocate_vmm(self.device, kind, bytes)?
            }
            MemoryKind::Managed => {
                return Err(Error::Call {
                    call,
                    result: CuResult::NOT_SUPPORTED,
                });
            }
        };
        self.buffers.push(allocation);
        Ok(allocation.ptr)
    }

    /// Copies `bytes` into probe memory and waits until the copy is complete.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] outside this value's memory; [`Error::Deadline`]; the driver's errors.
    pub fn write(&self, ptr: DevicePtr, bytes: &[u8], limit: Duration) -> Result<()> {
        self.check(ptr, bytes.len())?;
        // Not from `bytes`, which may be in page-locked memory that the GPU still reads after the deadline.
        let leaving = bytes.to_vec();
        // SAFETY: `leaving` is readable and exists until the copy is complete (`finish`); this value owns the
        // destination.
        let status = unsafe {
            let from = leaving.as_ptr().cast();
            (self.cuda.api.memcpy_htod_async)(ptr.get(), from, leaving.len(), self.stream)
        };
        let copied = check("cuMemcpyHtoDAsync", status);
        self.finish(copied, leaving, limit).map(drop)
    }

    /// Copies probe memory into `bytes`.
    ///
    /// # Errors
    /// Same as [`ProbeAllocator::write`].
    pub fn read(&self, ptr: DevicePtr, bytes: &mut [u8], limit: Duration) -> Result<()> {
        self.check(ptr, bytes.len())?;
        // Not into `bytes`, because the GPU may still write after the deadline.
        let mut landing = vec![0; bytes.len()];
        // SAFETY: `landing` is writable and exists until the copy is complete (`finish`); this value owns the source.
        let status = unsafe {
            let to = landing.as_mut_ptr().cast();
            (self.cuda.api.memcpy_dtoh_async)(to, ptr.get(), landing.len(), self.stream)
        };
        let copied = check("cuMemcpyDtoHAsync", status);
        bytes.copy_from_slice(&self.finish(copied, landing, limit)?);
        Ok(())
    }

    /// Waits for a queued copy and returns its host memory, which is leaked if the copy may still be in progress.
    fn finish(&self, queued: Result<()>, host: Vec<u8>, limit: Duration) -> Result<Vec<u8>> {
        match queued.and_then(|()| self.wait(limit)) {
            Ok(()) => Ok(host),
            Err(error) => {
                mem::forget(host);
                Err(error)
            }
        }
    }

    fn check(&self, ptr: DevicePtr, len: usize) -> Result<()> {
        let len = len as u64;
        let inside = |buffer: &RawAllocation| {
            let offset = ptr.offset_from(buffer.ptr);
            offset.is_some_and(|offset| len <= buffer.len && offset <= buffer.len - len)
        };
        if self.buffers.iter().any(inside) {
            return Ok(());
        }
        Err(Error::OutOfRange {
            offset: ptr.get(),
            wanted: len,
            len: 0,
        })
    }

    fn wait(&self, limit: Duration) -> Result<()> {
        let start = Instant::now();
        loop {
            // SAFETY: this value owns the stream.
            let status = unsafe { (self.cuda.api.stream_query)(self.stream) };
            if status != CuResult::NOT_READY.0 {
                return check("cuStreamQuery", status);
            }
            if start.elapsed() > limit {
                return Err(Error::Deadline {
                    what: "a copy of probe memory",
                    limit,
                });
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for ProbeAllocator<'_> {
    fn drop(&mut self) {
        let api = &self.cuda.api;
        for buffer in self.buffers.drain(..) {
            let freed = match buffer.kind {
                // SAFETY: allocated by this value and used only on this stream.
                MemoryKind::Pool => check("cuMemFreeAsync", unsafe {
                    (api.mem_free_async)(buffer.ptr.get(), self.stream)
                }),
                // SAFETY: allocated by this value; its copies are complete, or the context has failed.
                MemoryKind::Vmm | MemoryKind::VmmPosixFd => unsafe {
                    self.cuda.free_memory(&buffer)
                },
                _ => Ok(()),
            };
            if let Err(error) = freed {
                tracing::debug!(%error, "freeing probe memory failed");
            }
        }
        // SAFETY: created by `with_probe_memory`; queued work (the frees above) still completes.
        let status = unsafe { (api.stream_destroy)(self.stream) };
        if let Err(error) = check("cuStreamDestroy", status) {
            tracing::debug!(%error, "destroying a stream failed");
        }
    }
}
