//! Scratch memory, and copies that wait for nothing but themselves.

use std::marker::PhantomData;
use std::mem;
use std::ptr;
use std::time::{Duration, Instant};

use super::api::Opaque;
use super::{Cuda, check, layout, size};
use crate::driver::{MemoryKind, Ordinal, RawAllocation};
use crate::error::{CuResult, Error, Result};
use crate::pointer::DevicePtr;

/// Scratch memory of one GPU within [`Cuda::with_scratch`].
///
/// The process may have a kernel running that never ends by itself, and streams under capture.
/// So nothing here touches the default stream, frees memory in a way that waits for the GPU, or
/// waits without a deadline.
#[derive(Debug)]
pub struct Scratch<'cuda> {
    cuda: &'cuda Cuda,
    device: Ordinal,
    stream: Opaque,
    buffers: Vec<RawAllocation>,
    /// The context it was made in is current on this thread only.
    _thread: PhantomData<*mut ()>,
}

impl Cuda {
    /// Runs `work` with scratch memory on `device`, in the context that `ptr` belongs to.
    ///
    /// What `work` allocates as [`MemoryKind::Plain`] stays allocated for the life of the
    /// context: `cuMemFree` waits for every kernel of the context, which may be for ever. The
    /// rest is given back.
    ///
    /// # Errors
    /// The driver's, and those of `work`.
    pub fn with_scratch<T>(
        &self,
        device: Ordinal,
        ptr: DevicePtr,
        work: impl FnOnce(&mut Scratch<'_>) -> Result<T>,
    ) -> Result<T> {
        let _relaxed = self.relax_stream_capture();
        self.with_pointer_context(device, ptr, || {
            let mut stream: Opaque = ptr::null_mut();
            // SAFETY: a place for the answer, in the device's context.
            let status =
                unsafe { (self.api.stream_create)(&mut stream, layout::STREAM_NON_BLOCKING) };
            check("cuStreamCreate", status)?;
            let (cuda, buffers, _thread) = (self, Vec::new(), PhantomData);
            work(&mut Scratch {
                cuda,
                device,
                stream,
                buffers,
                _thread,
            })
        })
    }
}

impl Scratch<'_> {
    /// Allocates scratch memory.
    ///
    /// # Errors
    /// The driver's; `CUDA_ERROR_NOT_SUPPORTED` for managed memory.
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
                // SAFETY: a place for the answer, in the device's context.
                check(call, unsafe { (api.mem_alloc)(&mut address, bytes) })?;
                raw(address)
            }
            MemoryKind::Pool => {
                // SAFETY: as above, on a stream of this value's.
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

    /// Copies `bytes` into scratch memory and waits until they are there.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] outside this value's memory; [`Error::Deadline`]; the driver's.
    pub fn write(&self, ptr: DevicePtr, bytes: &[u8], limit: Duration) -> Result<()> {
        self.check(ptr, bytes.len())?;
        // SAFETY: the bytes are readable, and the driver stages pageable memory before it
        // returns; the destination is this value's.
        let status = unsafe {
            let from = bytes.as_ptr().cast();
            (self.cuda.api.memcpy_htod_async)(ptr.get(), from, bytes.len(), self.stream)
        };
        check("cuMemcpyHtoDAsync", status)?;
        self.wait(limit)
    }

    /// Copies scratch memory into `bytes`.
    ///
    /// # Errors
    /// As [`Scratch::write`].
    pub fn read(&self, ptr: DevicePtr, bytes: &mut [u8], limit: Duration) -> Result<()> {
        self.check(ptr, bytes.len())?;
        // Not into `bytes`: a copy that misses its deadline may still arrive.
        let mut landing = vec![0; bytes.len()];
        // SAFETY: `landing` is writable and lives until the copy is over (below); the source is
        // this value's.
        let status = unsafe {
            let to = landing.as_mut_ptr().cast();
            (self.cuda.api.memcpy_dtoh_async)(to, ptr.get(), landing.len(), self.stream)
        };
        let arrived = check("cuMemcpyDtoHAsync", status).and_then(|()| self.wait(limit));
        match arrived {
            Ok(()) => {
                bytes.copy_from_slice(&landing);
                Ok(())
            }
            Err(error) => {
                mem::forget(landing);
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
            // SAFETY: the stream is this value's.
            let status = unsafe { (self.cuda.api.stream_query)(self.stream) };
            if status != CuResult::NOT_READY.0 {
                return check("cuStreamQuery", status);
            }
            if start.elapsed() > limit {
                return Err(Error::Deadline {
                    what: "a copy of scratch memory",
                    limit,
                });
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let api = &self.cuda.api;
        for buffer in self.buffers.drain(..) {
            let freed = match buffer.kind {
                // SAFETY: allocated by this value and used on this very stream only.
                MemoryKind::Pool => check("cuMemFreeAsync", unsafe {
                    (api.mem_free_async)(buffer.ptr.get(), self.stream)
                }),
                // SAFETY: allocated by this value; its copies are over, or failed for good.
                MemoryKind::Vmm | MemoryKind::VmmPosixFd => unsafe {
                    self.cuda.free_memory(&buffer)
                },
                _ => Ok(()),
            };
            if let Err(error) = freed {
                tracing::debug!(%error, "giving scratch memory back failed");
            }
        }
        // SAFETY: made by `with_scratch`; what is queued (the frees above) still completes.
        let status = unsafe { (api.stream_destroy)(self.stream) };
        if let Err(error) = check("cuStreamDestroy", status) {
            tracing::debug!(%error, "giving a stream back failed");
        }
    }
}
