//! Streams.

use std::any::Any;
use std::hint;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::buffer::{Allocation, DeviceBuffer};
use crate::driver::{Driver, HostCall, MemoryKind, RawStream, StreamState};
use crate::error::{Error, Result};
use crate::gather::Gather;
use crate::gpu::Gpu;
use crate::guarded_copy::GuardedCopy;
use crate::host_buffer::HostBuffer;
use crate::imported_memory::ImportedMemory;
use crate::kernel::{Launch, VerifyReport};
use crate::pointer::DevicePtr;

/// The number of polls before a wait begins to yield its CPU.
const SPINS: u32 = 1000;

/// Memory that queued work may still use.
#[derive(Debug)]
enum InUse {
    Device(Arc<Allocation>),
    Host(Arc<HostBuffer>),
    Imported(Arc<ImportedMemory>),
    Gather(Arc<Gather>),
}

impl InUse {
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Device(one), Self::Device(other)) => Arc::ptr_eq(one, other),
            (Self::Host(one), Self::Host(other)) => Arc::ptr_eq(one, other),
            (Self::Imported(one), Self::Imported(other)) => Arc::ptr_eq(one, other),
            (Self::Gather(one), Self::Gather(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

/// Identifies a [`Stream`] in this process. It is never reused for another stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId(u64);

impl StreamId {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A stream, whose work runs in order and concurrently with the default stream.
///
/// The safe methods queue work and wait for it. After [`Error::Deadline`] the work stays queued, and the memory that it
/// uses stays allocated until the stream is found idle.
#[derive(Debug)]
pub struct Stream {
    id: StreamId,
    gpu: Gpu,
    raw: RawStream,
    origin: Origin,
    /// Memory that queued work may still use.
    in_use: Mutex<Vec<InUse>>,
}

/// The creator of a stream, which also destroys it.
#[derive(Debug)]
enum Origin {
    /// The driver, on behalf of this value.
    Driver,
    /// Another library, with the value that owns the stream.
    Other(
        #[expect(dead_code, reason = "kept only to be dropped later")] Box<dyn Any + Send + Sync>,
    ),
}

impl Stream {
    pub(crate) fn create(gpu: Gpu) -> Result<Self> {
        let raw = gpu.driver().create_stream(gpu.info().ordinal)?;
        Ok(Self {
            id: StreamId::next(),
            gpu,
            raw,
            origin: Origin::Driver,
            in_use: Mutex::default(),
        })
    }

    /// Wraps a stream that another library created, and keeps `owner` until this value is dropped. Dropping this value
    /// does not destroy the stream. The handle 0 is the legacy default stream.
    ///
    /// Unlike a stream from [`Gpu::stream`], it does not keep the memory of the work that is queued on it, because
    /// other work of that library may never leave it idle.
    ///
    /// # Safety
    /// - The stream belongs to `gpu`'s primary context and is not destroyed until `owner` is dropped.
    /// - The caller keeps the memory of work that this value queues until the work has ended.
    pub unsafe fn from_owner(gpu: &Gpu, handle: u64, owner: impl Any + Send + Sync) -> Self {
        let device = gpu.info().ordinal;
        Self {
            id: StreamId::next(),
            gpu: gpu.clone(),
            raw: RawStream { device, handle },
            origin: Origin::Other(Box::new(owner)),
            in_use: Mutex::default(),
        }
    }

    /// Returns an identifier that distinguishes the stream from every other stream of this process, including past
    /// ones.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Returns the stream's GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Writes `value` to every byte of `buffer`.
    ///
    /// # Errors
    /// [`Error::ForeignBuffer`], [`Error::Deadline`], the driver's errors.
    pub fn fill(&self, buffer: &DeviceBuffer, value: u8, limit: Duration) -> Result<()> {
        self.queue(&[buffer], |driver| {
            // SAFETY: the buffer's own range, which `queue` keeps allocated.
            unsafe { driver.fill(self.raw, buffer.ptr(), value, buffer.len()) }
        })?;
        self.wait_for("the fill", limit)
    }

    /// Writes the first `words` words of the pattern of `seed` ([`crate::pattern_word`]) to `offset`, a multiple of 4.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] or [`Error::Misaligned`], with nothing written; [`Error::ForeignBuffer`],
    /// [`Error::Deadline`], the driver's errors.
    pub fn fill_pattern(
        &self,
        buffer: &DeviceBuffer,
        offset: u64,
        words: u64,
        seed: u32,
        limit: Duration,
    ) -> Result<()> {
        let dst = word_range(buffer, offset, words)?;
        if words == 0 {
            return Ok(());
        }
        self.queue(&[buffer], |driver| {
            // SAFETY: `words` words of the buffer at an aligned address; `queue` keeps it allocated.
            unsafe { driver.launch(self.raw, &Launch::Fill { dst, words, seed }) }
        })?;
        self.wait_for("the pattern fill", limit)
    }

    /// Compares `words` words at `offset`, a multiple of 4, with the pattern of `seed`.
    ///
    /// If the buffer is written at the same time, `found` may be newer than the compared value.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`], [`Error::ForeignBuffer`], [`Error::Deadline`], the driver's
    /// errors.
    pub fn verify_pattern(
        &self,
        buffer: &DeviceBuffer,
        offset: u64,
        words: u64,
        seed: u32,
        limit: Duration,
    ) -> Result<VerifyReport> {
        let src = word_range(buffer, offset, words)?;
        if words == 0 {
            return Ok(VerifyReport {
                first: u64::MAX,
                ..VerifyReport::default()
            });
        }
        let report = self
            .gpu
            .allocate(MemoryKind::Plain, VerifyReport::LEN as u64)?;
        let launch = Launch::Verify {
            src,
            words,
            seed,
            report: report.ptr(),
        };
        self.queue(&[buffer, &report], |driver| {
            // SAFETY: `words` words of the buffer at an aligned address, and a fresh report of the right length
            // (drivers align allocations to 256 bytes at least); `queue` keeps both allocated.
            unsafe { driver.launch(self.raw, &launch) }
        })?;
        self.wait_for("the pattern check", limit)?;
        let mut bytes = [0; VerifyReport::LEN];
        report.read(0, &mut bytes)?;
        Ok(VerifyReport::from_bytes(&bytes))
    }

    /// Queues a kernel that writes twice the value of each of the first `words` 32-bit words of `src`, modulo 2^32, to
    /// `dst`, which may be the same buffer. Returns without waiting: use [`Stream::wait`].
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::ForeignBuffer`], the driver's errors; nothing is written.
    pub fn queue_double(&self, src: &DeviceBuffer, dst: &DeviceBuffer, words: u64) -> Result<()> {
        let launch = Launch::Double {
            src: word_range(src, 0, words)?,
            dst: word_range(dst, 0, words)?,
            words,
        };
        if words == 0 {
            return Ok(());
        }
        self.queue(&[src, dst], |driver| {
            // SAFETY: `words` words at the beginning of each buffer, which is aligned; `queue` keeps both allocated.
            // The two ranges are equal or in different allocations.
            unsafe { driver.launch(self.raw, &launch) }
        })
    }

    /// Queues a kernel that writes the [`Sum64`](crate::Sum64) of `len` bytes at `offset` of `from` to `to_offset` of
    /// `to`, 8 bytes in little-endian order. Returns without waiting: use [`Stream::wait`]. Both offsets are multiples
    /// of 8.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`], [`Error::ForeignBuffer`], [`Error::Overlap`], the driver's errors;
    /// nothing is written.
    pub fn queue_sum64(
        &self,
        from: &DeviceBuffer,
        offset: u64,
        len: u64,
        to: &DeviceBuffer,
        to_offset: u64,
    ) -> Result<()> {
        const WORD: u64 = 8;
        let (src, sum) = (
            from.range(offset, len)?.start,
            to.range(to_offset, WORD)?.start,
        );
        for (offset, at) in [(offset, src), (to_offset, sum)] {
            if !at.get().is_multiple_of(WORD) {
                let alignment = WORD;
                return Err(Error::Misaligned { offset, alignment });
            }
        }
        if overlap(src, len, sum, WORD) {
            return Err(Error::Overlap { ptr: src, len });
        }
        self.queue(&[from, to], |driver| {
            // SAFETY: both ranges were checked and do not overlap, and `queue` keeps both allocated.
            unsafe { driver.launch(self.raw, &Launch::Sum64 { src, len, sum }) }
        })
    }

    /// Queues a copy of `len` bytes from page-locked host memory to `to_offset` of `to`. Returns without waiting: use
    /// [`Stream::wait`]. Until then, changes of the source may or may not be copied. Both sides stay allocated until
    /// the stream is found idle.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::ForeignBuffer`], the driver's errors; nothing is copied.
    pub fn queue_write(
        &self,
        from: &Arc<HostBuffer>,
        from_offset: usize,
        to: &DeviceBuffer,
        to_offset: u64,
        len: usize,
    ) -> Result<()> {
        let src = from.at(from_offset, len)?;
        let dst = to.range(to_offset, len as u64)?.start;
        if len == 0 {
            return Ok(());
        }
        self.queue_with(&[to], Some(InUse::Host(Arc::clone(from))), |driver| {
            // SAFETY: both ranges were checked, and `queue_with` keeps both sides allocated.
            unsafe { driver.queue_copy_to_device(self.raw, dst, src, len) }
        })
    }

    /// Queues a copy of `len` bytes at `from_offset` of `from` to page-locked host memory. Returns without waiting: the
    /// copy is complete after [`Stream::wait`]. Both sides stay allocated until the stream is found idle.
    ///
    /// # Errors
    /// Same as [`Stream::queue_write`].
    pub fn queue_read(
        &self,
        from: &DeviceBuffer,
        from_offset: u64,
        to: &Arc<HostBuffer>,
        to_offset: usize,
        len: usize,
    ) -> Result<()> {
        let src = from.range(from_offset, len as u64)?.start;
        let dst = to.at(to_offset, len)?;
        if len == 0 {
            return Ok(());
        }
        self.queue_with(&[from], Some(InUse::Host(Arc::clone(to))), |driver| {
            // SAFETY: both ranges were checked, and `queue_with` keeps both sides allocated.
            unsafe { driver.queue_copy_from_device(self.raw, dst, src, len) }
        })
    }

    /// Queues a copy of `len` bytes at `from_offset` of `from` to `to_offset` of `to`. Returns without waiting: use
    /// [`Stream::wait`]. Both stay allocated until the stream is found idle.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::ForeignBuffer`], [`Error::Overlap`], the driver's errors; nothing is copied.
    pub fn queue_copy(
        &self,
        from: &DeviceBuffer,
        from_offset: u64,
        to: &DeviceBuffer,
        to_offset: u64,
        len: u64,
    ) -> Result<()> {
        let src = from.range(from_offset, len)?.start;
        let dst = to.range(to_offset, len)?.start;
        if overlap(src, len, dst, len) {
            return Err(Error::Overlap { ptr: src, len });
        }
        if len == 0 {
            return Ok(());
        }
        self.queue(&[from, to], |driver| {
            // SAFETY: both ranges were checked and do not overlap, and `queue` keeps both allocated.
            unsafe { driver.queue_copy_on_device(self.raw, dst, src, len) }
        })
    }

    /// Queues a copy of all pieces of `gather` to `offset` of `to`. Returns without waiting: use [`Stream::wait`]. All
    /// buffers stay allocated until the stream is found idle.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::ForeignBuffer`], [`Error::Overlap`], the driver's errors; nothing is copied.
    pub fn queue_gather(&self, gather: &Arc<Gather>, to: &DeviceBuffer, offset: u64) -> Result<()> {
        let dst = to.range(offset, gather.end())?.start;
        for piece in gather.buffers() {
            if !piece.gpu().is_same(&self.gpu) {
                return Err(self.foreign(piece.gpu()));
            }
            if overlap(piece.ptr(), piece.len(), dst, gather.end()) {
                let (ptr, len) = (piece.ptr(), piece.len());
                return Err(Error::Overlap { ptr, len });
            }
        }
        let memory = InUse::Gather(Arc::clone(gather));
        self.queue_with(&[to], [memory], |driver| {
            // SAFETY: the table contains whole buffers only, `to` has room for all of them, nothing overlaps, and
            // `queue_with` keeps all buffers allocated.
            unsafe { driver.launch(self.raw, &gather.launch(dst)) }
        })
    }

    /// Queues a copy of `len` bytes at `from_offset` of another process's memory to `to_offset` of `to`, and returns;
    /// [`GuardedCopy::state`] reports when it is complete. Until the stream is found idle, `to` stays allocated and
    /// `from` open. `copy` must have been created for this length, and nothing may have been queued for it yet.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::ForeignBuffer`], the driver's errors; nothing is copied.
    pub fn queue_guarded_copy(
        &self,
        from: &Arc<ImportedMemory>,
        from_offset: u64,
        to: &DeviceBuffer,
        to_offset: u64,
        len: u64,
        copy: &GuardedCopy,
    ) -> Result<()> {
        let src = from.at(from_offset, len)?;
        let dst = to.range(to_offset, len)?.start;
        if !from.gpu().is_same(&self.gpu) {
            return Err(self.foreign(from.gpu()));
        }
        let memory = [
            InUse::Imported(Arc::clone(from)),
            InUse::Host(Arc::clone(copy.host())),
        ];
        self.queue_with(&[to], memory, |driver| {
            // SAFETY: both ranges were checked, and `queue_with` keeps both and the words of the copy. One range
            // belongs to another process, so they do not overlap; in the simulation, where they may, a copy of
            // overlapping bytes is defined.
            unsafe { driver.launch(self.raw, &copy.launch(src, dst, len)) }
        })
    }

    /// Like [`Stream::queue_guarded_copy`], to page-locked memory.
    ///
    /// # Errors
    /// Same as [`Stream::queue_guarded_copy`].
    pub fn queue_guarded_copy_to_host(
        &self,
        from: &Arc<ImportedMemory>,
        from_offset: u64,
        to: &Arc<HostBuffer>,
        to_offset: usize,
        len: usize,
        copy: &GuardedCopy,
    ) -> Result<()> {
        let src = from.at(from_offset, len as u64)?;
        to.at(to_offset, len)?;
        let dst = to.gpu_ptr().checked_add(to_offset as u64);
        let dst = dst.ok_or(Error::OutOfRange {
            offset: to_offset as u64,
            wanted: len as u64,
            len: to.len() as u64,
        })?;
        for gpu in [from.gpu(), to.gpu()] {
            if !gpu.is_same(&self.gpu) {
                return Err(self.foreign(gpu));
            }
        }
        let memory = [
            InUse::Imported(Arc::clone(from)),
            InUse::Host(Arc::clone(to)),
            InUse::Host(Arc::clone(copy.host())),
        ];
        self.queue_with(&[], memory, |driver| {
            // SAFETY: both ranges were checked, and `queue_with` keeps both and the words of the copy. One range is GPU
            // memory of another process, so they do not overlap.
            unsafe { driver.launch(self.raw, &copy.launch(src, dst, len as u64)) }
        })
    }

    /// Queues a guarded copy of no bytes. When it is complete, the kernel is loaded, so that no later copy waits for
    /// loading.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn queue_empty_guarded_copy(&self, copy: &GuardedCopy) -> Result<()> {
        let nowhere = copy.host().gpu_ptr();
        let memory = InUse::Host(Arc::clone(copy.host()));
        self.queue_with(&[], [memory], |driver| {
            // SAFETY: `queue_with` keeps the words of the copy, and nothing else is used.
            unsafe { driver.launch(self.raw, &copy.launch(nowhere, nowhere, 0)) }
        })
    }

    /// Queues a write of the flag at `offset` of page-locked memory, a multiple of 4, and returns. A CPU that reads
    /// `value` there ([`HostBuffer::load_u32`]) sees the writes of the previously queued work. The memory stays
    /// allocated until the stream is found idle.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`], the driver's errors: `CUDA_ERROR_NOT_SUPPORTED` before CUDA 11.7.
    /// The flag is then not written.
    pub fn queue_flag(&self, host: &Arc<HostBuffer>, offset: usize, value: u32) -> Result<()> {
        host.at(offset, 4)?;
        let flag = host.gpu_ptr().checked_add(offset as u64);
        let flag = flag.filter(|flag| flag.get().is_multiple_of(4));
        let flag = flag.ok_or(Error::Misaligned {
            offset: offset as u64,
            alignment: 4,
        })?;
        self.queue_with(&[], Some(InUse::Host(Arc::clone(host))), |driver| {
            // SAFETY: the word is in the memory and aligned, and `queue_with` keeps the memory.
            unsafe { driver.queue_write_u32(self.raw, flag, value) }
        })
    }

    /// Queues a call of `call` on the CPU, after all previously queued work, and returns. Later work on the stream
    /// waits for it.
    ///
    /// It runs on a thread of the driver. It must not call the driver, directly or by dropping memory of a GPU, nor
    /// wait for a thread that does; it should be short. A panic in it is caught and logged. If earlier work on the
    /// stream fails, it is never called.
    ///
    /// # Errors
    /// The driver's errors; `call` is then dropped.
    pub fn queue_call(&self, call: impl FnOnce() + Send + 'static) -> Result<()> {
        // SAFETY: `raw` is from this driver, and exists as long as this value.
        unsafe {
            self.gpu
                .driver()
                .queue_host_call(self.raw, HostCall::new(call))
        }
    }

    /// Makes later work on this stream wait for all work that was previously queued on `other`, and returns. Work on
    /// `other` does not wait.
    ///
    /// # Errors
    /// [`Error::ForeignStream`] if `other` belongs to another GPU; the driver's errors.
    pub fn queue_wait(&self, other: &Self) -> Result<()> {
        if !self.gpu.is_same(&other.gpu) {
            let (stream, other) = (self.gpu.info().ordinal, other.gpu.info().ordinal);
            return Err(Error::ForeignStream { stream, other });
        }
        // SAFETY: both are from this driver, and exist as long as their values.
        unsafe { self.gpu.driver().queue_wait(self.raw, other.raw) }
    }

    /// Queues a kernel. Returns without waiting: use [`Stream::wait`].
    ///
    /// # Errors
    /// The driver's errors.
    ///
    /// # Safety
    /// Every address in `launch` lies, with the length that the kernel's documentation states, in memory of this
    /// stream's driver that exists until the stream is idle, and that the caller may overwrite where the kernel writes.
    pub unsafe fn launch(&self, launch: &Launch) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.gpu.driver().launch(self.raw, launch) }
    }

    /// Waits until everything queued so far is complete.
    ///
    /// # Errors
    /// [`Error::Deadline`] after `limit`; errors of the work itself, as the driver reports them.
    pub fn wait(&self, limit: Duration) -> Result<()> {
        self.wait_for("the work on the stream", limit)
    }

    /// Returns whether everything queued so far is complete.
    ///
    /// # Errors
    /// Errors of the work itself, as the driver reports them.
    pub fn is_idle(&self) -> Result<bool> {
        // SAFETY: `raw` is from this driver, and exists as long as this value.
        Ok(unsafe { self.gpu.driver().stream_state(self.raw) }? == StreamState::Idle)
    }

    /// Queues work on `buffers` and keeps them allocated until the stream is found idle.
    fn queue(
        &self,
        buffers: &[&DeviceBuffer],
        submit: impl FnOnce(&dyn Driver) -> Result<()>,
    ) -> Result<()> {
        self.queue_with(buffers, None, submit)
    }

    fn foreign(&self, of: &Gpu) -> Error {
        let (buffer, stream) = (of.info().ordinal, self.gpu.info().ordinal);
        Error::ForeignBuffer { buffer, stream }
    }

    /// Like [`Stream::queue`], but the work also uses other kinds of memory.
    fn queue_with(
        &self,
        buffers: &[&DeviceBuffer],
        others: impl IntoIterator<Item = InUse>,
        submit: impl FnOnce(&dyn Driver) -> Result<()>,
    ) -> Result<()> {
        if let Some(foreign) = buffers
            .iter()
            .find(|buffer| !buffer.gpu().is_same(&self.gpu))
        {
            return Err(self.foreign(foreign.gpu()));
        }
        if matches!(self.origin, Origin::Other(_)) {
            return submit(&**self.gpu.driver());
        }
        // Locked while submitting, so that another thread that finds the stream idle cannot release these buffers
        // between their entry here and their use.
        let mut in_use = self.in_use();
        // Each buffer is listed once, because a program may queue work on the same memory for ever and never wait.
        let buffers = buffers.iter().map(|it| InUse::Device(it.allocation()));
        for memory in buffers.chain(others) {
            if !in_use.iter().any(|it| it.is_same(&memory)) {
                in_use.push(memory);
            }
        }
        submit(&**self.gpu.driver())
    }

    fn wait_for(&self, what: &'static str, limit: Duration) -> Result<()> {
        let start = Instant::now();
        let mut polls = 0;
        while !self.release_when_idle()? {
            if start.elapsed() >= limit {
                return Err(Error::Deadline { what, limit });
            }
            if polls < SPINS {
                polls += 1;
                hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
        Ok(())
    }

    /// Returns whether the stream is idle; if so, releases the memory of its past work.
    fn release_when_idle(&self) -> Result<bool> {
        let mut in_use = self.in_use();
        if !self.is_idle()? {
            return Ok(false);
        }
        let done = mem::take(&mut *in_use);
        // Freeing may take long, so the list is unlocked first.
        drop(in_use);
        drop(done);
        Ok(true)
    }

    /// Locks the list, which stays valid even if a thread panicked while it held the lock.
    fn in_use(&self) -> MutexGuard<'_, Vec<InUse>> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if matches!(self.origin, Origin::Other(_)) {
            return;
        }
        let idle = self.release_when_idle();
        if !matches!(idle, Ok(true)) {
            // The GPU may still write to the memory, and there is no later point at which it can be freed. It is
            // leaked, so that no other allocation gets it.
            let leaked = mem::take(&mut *self.in_use());
            tracing::debug!(
                ?idle,
                buffers = leaked.len(),
                "a stream was dropped with work left"
            );
            mem::forget(leaked);
        }
        // SAFETY: `raw` is from this driver, and this value alone owns it.
        if let Err(error) = unsafe { self.gpu.driver().destroy_stream(self.raw) } {
            tracing::debug!(%error, "destroying a stream failed");
        }
    }
}

/// Returns whether two ranges overlap.
fn overlap(one: DevicePtr, one_len: u64, other: DevicePtr, other_len: u64) -> bool {
    one < other.checked_add(other_len).unwrap_or(other)
        && other < one.checked_add(one_len).unwrap_or(one)
}

/// Returns the address of `words` words at `offset`.
fn word_range(buffer: &DeviceBuffer, offset: u64, words: u64) -> Result<DevicePtr> {
    if !offset.is_multiple_of(4) {
        return Err(Error::Misaligned {
            offset,
            alignment: 4,
        });
    }
    // A length that overflows ends after every buffer.
    Ok(buffer.range(offset, words.saturating_mul(4))?.start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Ordinal;
    use crate::sim::SimDriver;

    #[test]
    fn work_that_is_queued_for_ever_on_the_same_memory_keeps_it_once() {
        let gpu = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
        let stream = gpu.stream().unwrap();
        let device = [(); 2].map(|()| gpu.allocate(MemoryKind::Plain, 64).unwrap());
        let host = Arc::new(gpu.allocate_host(64).unwrap());
        for _ in 0..10 {
            stream.queue_copy(&device[0], 0, &device[1], 0, 64).unwrap();
            stream.queue_read(&device[1], 0, &host, 0, 64).unwrap();
        }
        assert_eq!(stream.in_use().len(), 3);
        stream.wait(Duration::from_secs(60)).unwrap();
        assert_eq!(stream.in_use().len(), 0);
    }
}
