//! Copies, each on the path that a [`Planner`] chooses.

mod allocations;
mod copy_engine;
pub(crate) mod cpu_pool;
mod pushed_lines;
mod resident;
mod ring;
mod rings;
mod transfer;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gdr_cuda::{DeviceBuffer, HostBuffer};

use self::copy_engine::CopyEngine;
use self::cpu_pool::CpuPool;
use self::resident::ResidentKernel;
use self::ring::PageableCopy;
use crate::context::Context;
use crate::cpu::{self, Caching, Routine};
use crate::error::{Error, Result};
use crate::mapping::Mapping;
use crate::plan::{
    CopyDirection, CopyEngineUse, CopyPath, CopyPlan, CopyRequest, HostMemory, Planner, ResidentUse,
};

pub use self::allocations::Allocations;
pub use self::transfer::Transfer;

/// The time limit of a copy by the copy engine if the caller sets none.
const LIMIT: Duration = Duration::from_secs(20);

/// Copies to and from mapped GPU memory, each on the fastest allowed path.
///
/// # Order
/// A call returns once its bytes have arrived. As after [`Mapping::write_at`], a kernel launched afterwards sees what a
/// write stored. A read returns values no older than the call, including what this thread wrote earlier, whichever
/// paths the writes took. Concurrent calls of several threads are not ordered. Unlike [`Mapping::write_at`], a write of
/// more than 8 bytes does not promise any order of its bytes.
///
/// # The copy engine
/// Its copies wait neither for the program's kernels nor for its streams, and do not affect its current context or its
/// stream captures. Before each copy, the allocation is compared with the one found by [`Copier::new`]. If the memory
/// was freed in between, and perhaps allocated again by another owner, the call returns [`Error::Freed`] and does not
/// access it.
///
/// ```
/// use std::num::NonZeroU16;
/// use std::sync::Arc;
///
/// use gdr_copy::plan::{Calibration, Machine, PathLimits, Planner};
/// use gdr_copy::{Context, Copier};
/// use gdr_cuda::{Gpu, MemoryKind, Ordinal, SimDriver};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = Gpu::open(SimDriver::new(1), Ordinal(0))?;
/// let buffer = Arc::new(gpu.allocate(MemoryKind::Plain, 1 << 20)?);
/// let mapping = Context::open_for(&gpu)?.pin_buffer(&buffer)?.map()?;
///
/// let calibration = Calibration::built_in(Machine::Pcie);
/// let planner = Planner::new(&calibration, PathLimits::all(NonZeroU16::MIN));
/// let copier = Copier::new(mapping, buffer, planner)?;
/// copier.write_at(0, &[7; 1 << 20])?;
/// let mut bytes = vec![0; 1 << 20];
/// copier.read_at(0, &mut bytes)?;
/// assert!(bytes.iter().all(|&byte| byte == 7));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Copier {
    mapping: Arc<Mapping>,
    planner: Planner,
    /// `None` if the limits forbid it.
    engine: Option<Arc<CopyEngine>>,
    allocations: Arc<Allocations>,
    /// `None` if the program has not allowed it.
    resident: Option<ResidentKernel>,
    /// The offset of the mapping in the buffer.
    start: u64,
    pool: CpuPool,
    limit: Duration,
}

/// A copy by the CPU. Its pieces are disjoint, so several threads may copy them.
#[derive(Clone, Copy)]
struct CpuCopy {
    window: *mut u8,
    host: *mut u8,
    routine: &'static Routine,
    caching: Caching,
    direction: CopyDirection,
}

// SAFETY: the pointers are to memory that any thread may access during the copy; each thread accesses different bytes.
unsafe impl Sync for CpuCopy {}

impl CpuCopy {
    /// Copies a piece.
    ///
    /// # Safety
    /// The window and the host memory have the bytes of `piece`, the host memory is writable for a copy from the GPU,
    /// and no other thread accesses these bytes of it.
    unsafe fn copy_piece(&self, piece: Range<u64>) {
        let (at, len) = (piece.start as usize, (piece.end - piece.start) as usize);
        let (routine, caching) = (self.routine, self.caching);
        // SAFETY: the caller's promise. No Rust memory is in a mapping, so the two do not overlap.
        unsafe {
            let (window, host) = (self.window.add(at), self.host.add(at));
            match self.direction {
                CopyDirection::ToGpu => cpu::copy_to(routine, caching, window, host, len),
                CopyDirection::FromGpu => cpu::copy_from(routine, caching, host, window, len),
            }
        }
    }
}

impl Copier {
    /// Copies to and from `mapping`, which begins in `buffer` and may end after it. The calling thread makes any copy
    /// that does not lie in `buffer`.
    ///
    /// # Errors
    /// [`Error::MappedElsewhere`] if the mapping does not begin there; [`Error::Gpu`].
    pub fn new(
        mapping: impl Into<Arc<Mapping>>,
        buffer: impl Into<Arc<DeviceBuffer>>,
        planner: Planner,
    ) -> Result<Self> {
        let (mapping, buffer) = (mapping.into(), buffer.into());
        let (mapped, allocated) = (mapping.device_ptr(), buffer.ptr());
        let start = mapped
            .offset_from(allocated)
            .filter(|start| *start < buffer.len())
            .ok_or(Error::MappedElsewhere { mapped, allocated })?;
        let pool = CpuPool::new(buffer.gpu().info().bdf);
        let allocations = Arc::new(Allocations::of(buffer)?);
        let engine = match planner.limits().copy_engine {
            CopyEngineUse::Allowed => Some(Arc::new(CopyEngine::new(Arc::clone(&allocations)))),
            CopyEngineUse::Forbidden => None,
        };
        // Forbidden until `allow_resident_kernel` has launched the kernel.
        let limits = planner.limits().with_resident(ResidentUse::Forbidden);
        Ok(Self {
            mapping,
            planner: planner.with_limits(limits),
            engine,
            allocations,
            resident: None,
            start,
            pool,
            limit: LIMIT,
        })
    }

    /// Sets how long a copy by the copy engine may take; the default is 20 s.
    pub fn with_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Allows short reads through a kernel that stays on the GPU for a while and pushes the bytes into host memory. At
    /// 4 KiB this takes less than half of the copy engine's time. The planner chooses it where it is fastest.
    ///
    /// A read launches the kernel on its own stream, with 512 threads. The kernel leaves 50 us after its last read, and
    /// in any case 1 ms after its launch. Until then, calls that wait for the whole context (`cudaDeviceSynchronize`,
    /// `cudaFree`) also wait for the kernel; the program's streams do not. `context` maps the memory for its requests.
    ///
    /// # Errors
    /// [`Error::NoResidentKernel`] for a simulated GPU, a GPU before Volta, or a buffer of more than 256 GiB;
    /// [`Error::Gpu`]; the errors of [`Context::pin_buffer`].
    pub fn allow_resident_kernel(&mut self, context: &Context) -> Result<()> {
        let allocations = Arc::clone(&self.allocations);
        self.resident = Some(ResidentKernel::new(allocations, context)?);
        let limits = self.planner.limits();
        let limits = limits.with_resident(ResidentUse::Allowed);
        self.planner = self.planner.with_limits(limits);
        Ok(())
    }

    /// Returns the mapping.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Returns the planner that chooses the paths.
    pub fn planner(&self) -> &Planner {
        &self.planner
    }

    /// Returns the plan of a copy of `len` bytes at `offset`.
    pub fn plan(
        &self,
        direction: CopyDirection,
        host: HostMemory,
        offset: u64,
        len: u64,
    ) -> CopyPlan {
        let request = self.request(direction, host, offset, len);
        match self.is_in_buffer(offset, len) {
            true => self.planner.plan(&request),
            // No allocation is known beyond the buffer, so only the CPU can copy there, through the mapping.
            false => CopyPlan::on(CopyPath::ONE_THREAD, request),
        }
    }

    /// Returns whether a range of the mapping lies in the buffer.
    fn is_in_buffer(&self, offset: u64, len: u64) -> bool {
        let end = self.start.checked_add(offset);
        let end = end.and_then(|at| at.checked_add(len));
        end.is_some_and(|end| end <= self.allocations.buffer().len())
    }

    fn request(
        &self,
        direction: CopyDirection,
        host: HostMemory,
        offset: u64,
        len: u64,
    ) -> CopyRequest {
        CopyRequest {
            direction,
            host,
            address: self.mapping.device_ptr().get().wrapping_add(offset),
            len,
        }
    }

    /// Plans a copy on a path that the caller chose.
    fn plan_on(
        &self,
        path: CopyPath,
        direction: CopyDirection,
        host: HostMemory,
        offset: u64,
        len: u64,
    ) -> Result<CopyPlan> {
        // The kernel pushes bytes to the host only.
        let is_impossible = (path, direction) == (CopyPath::Resident, CopyDirection::ToGpu);
        let by_cpu = matches!(path, CopyPath::Cpu { .. });
        let is_elsewhere =
            !by_cpu && !self.is_in_buffer(offset, len) && self.window_at(offset, len).is_ok();
        if is_impossible || is_elsewhere || !self.planner.limits().allow(path) {
            return Err(Error::PathForbidden { path });
        }
        let request = self.request(direction, host, offset, len);
        Ok(CopyPlan::on(path, request))
    }

    /// Copies `bytes` into GPU memory at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Freed`] or [`Error::ForkedChild`], and nothing is written;
    /// [`Error::Incomplete`].
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: a slice is readable.
        unsafe { self.write_raw(offset, bytes.as_ptr(), bytes.len()) }
    }

    /// Like [`Copier::write_at`], on this path.
    ///
    /// # Errors
    /// Same as [`Copier::write_at`]; [`Error::PathForbidden`].
    pub fn write_at_by(&self, path: CopyPath, offset: u64, bytes: &[u8]) -> Result<()> {
        let (direction, host) = (CopyDirection::ToGpu, HostMemory::Pageable);
        let plan = self.plan_on(path, direction, host, offset, bytes.len() as u64)?;
        // SAFETY: a slice is readable.
        unsafe { self.copy(&plan, offset, bytes.as_ptr().cast_mut()) }
    }

    /// Like [`Copier::write_at`], but from memory that others may write at the same time.
    ///
    /// # Errors
    /// Same as [`Copier::write_at`].
    ///
    /// # Safety
    /// `host` is valid for reading `len` bytes.
    pub unsafe fn write_raw(&self, offset: u64, host: *const u8, len: usize) -> Result<()> {
        let (direction, kind) = (CopyDirection::ToGpu, HostMemory::Pageable);
        let plan = self.plan(direction, kind, offset, len as u64);
        // SAFETY: the caller's promise.
        unsafe { self.copy(&plan, offset, host.cast_mut()) }
    }

    /// Copies pageable memory according to a plan.
    ///
    /// # Safety
    /// `host` is valid for reading the bytes of the plan, and for writing them where they come from the GPU.
    unsafe fn copy(&self, plan: &CopyPlan, offset: u64, host: *mut u8) -> Result<()> {
        let len = plan.request().len;
        // Checked before anything is copied: the range may be out of bounds, and a forked child has no window.
        let window = self.window_at(offset, len)?;
        match (plan.path(), &self.engine) {
            (CopyPath::CopyEngine, Some(engine)) => {
                // Earlier stores leave the CPU before the call that starts the copy, and PCIe keeps them ahead of it.
                self.mapping.flush();
                let pageable = PageableCopy {
                    plan,
                    offset: self.start + offset,
                    host,
                    routine: self.mapping.routine(),
                    limit: self.limit,
                };
                let threads = plan.ring_threads(self.planner.limits().max_threads);
                // SAFETY: the caller's promise.
                let copied = unsafe { engine.copy(&pageable, &self.pool, threads) };
                copied.map_err(|(copied, source)| incomplete(copied, len, source))
            }
            (CopyPath::Resident, _) => {
                // SAFETY: the caller's promise.
                unsafe { self.read_by_kernel(plan, offset, host) }
            }
            _ => {
                // SAFETY: the window has the bytes; the others are the caller's promise.
                unsafe { self.copy_by_cpu(plan, window, host) };
                Ok(())
            }
        }
    }

    /// Copies GPU memory at `offset` into `bytes`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Freed`] or [`Error::ForkedChild`], and nothing is read; [`Error::Incomplete`].
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: an exclusive slice is writable.
        unsafe { self.read_raw(offset, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Like [`Copier::read_at`], on this path.
    ///
    /// # Errors
    /// Same as [`Copier::read_at`]; [`Error::PathForbidden`].
    pub fn read_at_by(&self, path: CopyPath, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let (direction, host) = (CopyDirection::FromGpu, HostMemory::Pageable);
        let plan = self.plan_on(path, direction, host, offset, bytes.len() as u64)?;
        // SAFETY: an exclusive slice is writable.
        unsafe { self.copy(&plan, offset, bytes.as_mut_ptr()) }
    }

    /// Like [`Copier::read_at`], but into memory that need not be initialized.
    ///
    /// # Errors
    /// Same as [`Copier::read_at`].
    ///
    /// # Safety
    /// `host` is valid for writing `len` bytes.
    pub unsafe fn read_raw(&self, offset: u64, host: *mut u8, len: usize) -> Result<()> {
        let (direction, kind) = (CopyDirection::FromGpu, HostMemory::Pageable);
        let plan = self.plan(direction, kind, offset, len as u64);
        // SAFETY: the caller's promise.
        unsafe { self.copy(&plan, offset, host) }
    }

    /// Reads through the resident kernel.
    ///
    /// # Safety
    /// `host` is valid for writing the bytes of the plan.
    unsafe fn read_by_kernel(&self, plan: &CopyPlan, offset: u64, host: *mut u8) -> Result<()> {
        let Some(kernel) = &self.resident else {
            let path = plan.path();
            return Err(Error::PathForbidden { path });
        };
        // As for the copy engine: the request is a store that follows all earlier ones.
        self.mapping.flush();
        let (start, len) = (self.start + offset, plan.request().len);
        // The memory for a request's lines is limited, so each piece is a separate request.
        for piece in plan.pieces() {
            let at = start + piece.start..start + piece.end;
            // SAFETY: the piece is a part of the plan.
            let read = unsafe { kernel.read(at, host.add(piece.start as usize), self.limit) };
            read.map_err(|source| incomplete(piece.start, len, source))?;
        }
        Ok(())
    }

    fn window_at(&self, offset: u64, len: u64) -> Result<*mut u8> {
        // A length that does not fit an address space is outside every mapping.
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.mapping.window_at(offset, len)
    }

    /// Allocates the streams and the 4 MiB of page-locked memory that copies between pageable memory and the copy
    /// engine need, so that the first such copy does not have to.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub fn prepare(&self) -> Result<()> {
        self.engine
            .as_ref()
            .map_or(Ok(()), |engine| engine.prepare())
    }

    /// Copies with the threads of `plan`.
    ///
    /// # Safety
    /// `window` is a part of this mapping, and `host` memory with the plan's length, writable for a copy from the GPU.
    unsafe fn copy_by_cpu(&self, plan: &CopyPlan, window: *mut u8, host: *mut u8) {
        let copy = CpuCopy {
            window,
            host,
            routine: self.mapping.routine(),
            caching: self.mapping.caching(),
            direction: plan.request().direction,
        };
        match plan.path() {
            CopyPath::Cpu { threads } if threads.get() > 1 => {
                let pieces: Vec<_> = plan.pieces().collect();
                let copy = &copy;
                self.pool.run(threads, pieces.len(), &|at| {
                    // SAFETY: the caller's promise; pieces do not overlap, and each is copied once.
                    unsafe { copy.copy_piece(pieces[at].clone()) }
                });
            }
            // SAFETY: the caller's promise.
            _ => unsafe { copy.copy_piece(0..plan.request().len) },
        }
    }

    /// Copies `len` bytes of page-locked memory at `host_offset` to `offset`, as [`Copier::write_at`] does.
    ///
    /// # Errors
    /// Same as [`Copier::write_at`]; [`Error::Gpu`] for a range outside of `host`.
    pub fn write_from(
        &self,
        offset: u64,
        host: &Arc<HostBuffer>,
        host_offset: usize,
        len: usize,
    ) -> Result<()> {
        let mut transfer = self.start_write(offset, host, host_offset, len)?;
        transfer.wait(self.limit)
    }

    /// Copies `len` bytes at `offset` to page-locked memory at `host_offset`, as [`Copier::read_at`] does.
    ///
    /// # Errors
    /// Same as [`Copier::read_at`]; [`Error::Gpu`] for a range outside of `host`.
    pub fn read_into(
        &self,
        offset: u64,
        host: &Arc<HostBuffer>,
        host_offset: usize,
        len: usize,
    ) -> Result<()> {
        let mut transfer = self.start_read(offset, host, host_offset, len)?;
        transfer.wait(self.limit)
    }

    /// Starts a copy of `len` bytes of page-locked memory at `host_offset` to `offset`. If the CPU copies them, the
    /// transfer is complete on return.
    ///
    /// # Errors
    /// Same as [`Copier::write_from`].
    pub fn start_write(
        &self,
        offset: u64,
        host: &Arc<HostBuffer>,
        host_offset: usize,
        len: usize,
    ) -> Result<Transfer> {
        let (direction, kind) = (CopyDirection::ToGpu, HostMemory::PageLocked);
        let plan = self.plan(direction, kind, offset, len as u64);
        self.start(&plan, offset, host, host_offset, len)
    }

    /// Starts a copy of `len` bytes at `offset` to page-locked memory at `host_offset`. If the CPU copies them, the
    /// transfer is complete on return.
    ///
    /// # Errors
    /// Same as [`Copier::read_into`].
    pub fn start_read(
        &self,
        offset: u64,
        host: &Arc<HostBuffer>,
        host_offset: usize,
        len: usize,
    ) -> Result<Transfer> {
        let (direction, kind) = (CopyDirection::FromGpu, HostMemory::PageLocked);
        let plan = self.plan(direction, kind, offset, len as u64);
        self.start(&plan, offset, host, host_offset, len)
    }

    /// Like [`Copier::start_write`] or [`Copier::start_read`], on this path.
    ///
    /// # Errors
    /// Same as the method without a path; [`Error::PathForbidden`].
    pub fn start_by(
        &self,
        path: CopyPath,
        direction: CopyDirection,
        offset: u64,
        host: &Arc<HostBuffer>,
        host_offset: usize,
        len: usize,
    ) -> Result<Transfer> {
        let kind = HostMemory::PageLocked;
        let plan = self.plan_on(path, direction, kind, offset, len as u64)?;
        self.start(&plan, offset, host, host_offset, len)
    }

    fn start(
        &self,
        plan: &CopyPlan,
        offset: u64,
        host: &Arc<HostBuffer>,
        host_offset: usize,
        len: usize,
    ) -> Result<Transfer> {
        // Both ranges are checked before anything starts, so that an error leaves everything unchanged.
        let window = self.mapping.window_at(offset, len)?;
        let memory = host.part(host_offset, len)?;
        let direction = plan.request().direction;
        match (plan.path(), &self.engine) {
            (CopyPath::CopyEngine, Some(engine)) if len > 0 => {
                // As in `copy`: earlier stores leave the CPU before the engine starts.
                self.mapping.flush();
                let at = self.start + offset;
                let stream = engine.start(direction, at, host, host_offset, len)?;
                Ok(Transfer::running(Arc::clone(engine), stream, len as u64))
            }
            (CopyPath::Resident, _) => {
                // SAFETY: the memory has `len` bytes; no references to page-locked memory exist.
                unsafe { self.read_by_kernel(plan, offset, memory) }?;
                Ok(Transfer::complete(len as u64))
            }
            _ => {
                // SAFETY: both have `len` bytes; no references to page-locked memory exist.
                unsafe { self.copy_by_cpu(plan, window, memory) };
                Ok(Transfer::complete(len as u64))
            }
        }
    }

    /// Copies many pieces into GPU memory, in any order, with one fence for all short pieces.
    ///
    /// # Errors
    /// Same as [`Copier::write_at`]. A piece outside of the mapping is found before anything is written;
    /// [`Error::Incomplete`] counts the bytes of all pieces.
    pub fn write_batch(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        let lens = pieces.iter().map(|(offset, bytes)| (*offset, bytes.len()));
        let len = self.check_batch(lens)?;
        let pieces = pieces.iter().map(|(offset, bytes)| {
            let host = bytes.as_ptr().cast_mut();
            (*offset, host, bytes.len())
        });
        // SAFETY: slices are readable.
        let copied = unsafe { self.copy_batch(CopyDirection::ToGpu, pieces, len) };
        // One fence after all pieces: with a fence after each, their stores would not combine. It is also needed after
        // an error, which counts bytes that have arrived.
        self.mapping.flush();
        copied
    }

    /// Copies many pieces of GPU memory, in any order, with one fence for all short pieces, so that their loads
    /// overlap.
    ///
    /// # Errors
    /// Same as [`Copier::read_at`]. A piece outside of the mapping is found before anything is read;
    /// [`Error::Incomplete`] counts the bytes of all pieces.
    pub fn read_batch(&self, pieces: &mut [(u64, &mut [u8])]) -> Result<()> {
        let lens = pieces.iter().map(|(offset, bytes)| (*offset, bytes.len()));
        let len = self.check_batch(lens)?;
        // One fence before all pieces, so that their loads overlap.
        self.mapping.begin_reads();
        let pieces = pieces
            .iter_mut()
            .map(|(offset, bytes)| (*offset, bytes.as_mut_ptr(), bytes.len()));
        // SAFETY: exclusive slices are writable.
        unsafe { self.copy_batch(CopyDirection::FromGpu, pieces, len) }
    }

    /// Copies pieces of `len` bytes in total, each an offset, host memory and a length; short ones without a fence.
    ///
    /// # Safety
    /// Same as [`Copier::copy`], for each piece.
    unsafe fn copy_batch(
        &self,
        direction: CopyDirection,
        pieces: impl Iterator<Item = (u64, *mut u8, usize)>,
        len: u64,
    ) -> Result<()> {
        let mut done = 0;
        for (offset, host, piece) in pieces {
            // Planned piece by piece, so that a long one among short ones still uses the copy engine.
            let plan = self.plan(direction, HostMemory::Pageable, offset, piece as u64);
            let copied = match plan.path() {
                // SAFETY: the caller's promise.
                CopyPath::ONE_THREAD => unsafe {
                    self.copy_unfenced(direction, offset, host, piece)
                },
                // SAFETY: the caller's promise.
                _ => unsafe { self.copy(&plan, offset, host) },
            };
            copied.map_err(|error| of_batch(error, done, len))?;
            done += piece as u64;
        }
        Ok(())
    }

    /// Copies by the calling thread, without fences.
    ///
    /// # Safety
    /// Same as [`Copier::copy`].
    unsafe fn copy_unfenced(
        &self,
        direction: CopyDirection,
        offset: u64,
        host: *mut u8,
        len: usize,
    ) -> Result<()> {
        let window = self.mapping.window_at(offset, len)?;
        let (routine, caching) = (self.mapping.routine(), self.mapping.caching());
        // SAFETY: the window has the bytes; the others are the caller's promise.
        unsafe {
            match direction {
                CopyDirection::ToGpu => {
                    cpu::copy_to_unfenced(routine, caching, window, host, len);
                }
                CopyDirection::FromGpu => {
                    cpu::copy_from_unfenced(routine, caching, host, window, len);
                }
            }
        }
        Ok(())
    }

    /// Checks the pieces of a batch; returns their total length.
    fn check_batch(&self, pieces: impl Iterator<Item = (u64, usize)>) -> Result<u64> {
        let mut sum = 0;
        for (offset, len) in pieces {
            self.mapping.window_at(offset, len)?;
            sum += len as u64;
        }
        Ok(sum)
    }
}

/// Returns the error of a copy of `len` bytes after the first `copied` were copied.
fn incomplete(copied: u64, len: u64, source: Error) -> Error {
    match source {
        freed @ Error::Freed { .. } if copied == 0 => freed,
        source => Error::Incomplete {
            copied,
            len,
            source: Box::new(source),
        },
    }
}

/// Returns the error of a batch of `len` bytes after its first pieces, of `done` bytes in total.
fn of_batch(error: Error, done: u64, len: u64) -> Error {
    let (copied, source) = match error {
        Error::Incomplete { copied, source, .. } => (done + copied, source),
        other => (done, Box::new(other)),
    };
    Error::Incomplete {
        copied,
        len,
        source,
    }
}

/// Locks a mutex whose data is valid even if a thread panicked while it held the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
