//! Short reads through a kernel that stays on the GPU for a while.
//!
//! The CPU writes a request into GPU memory, which the kernel polls. The kernel pushes the bytes into page-locked
//! memory, with the request's number next to every four bytes. The CPU therefore finds them without a flag, which the
//! kernel could store only after a round trip over PCIe.
//!
//! Until the kernel leaves, calls that wait for the whole context also wait for the kernel. The next read launches it
//! again.

use std::num::NonZeroU16;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gdr_cuda::{
    CaptureGuard, ConcreteDriver, Cuda, DeviceBuffer, DevicePtr, Launch, MemoryKind,
    PooledHostBuffer, PushRequest, Stream,
};

use super::allocations::Allocations;
use super::pushed_lines::{GROUP, PushedLines};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::mapping::Mapping;

/// The kernel leaves if no request arrives for this long.
const IDLE: Duration = Duration::from_micros(50);
/// The kernel leaves after this time in any case, so that a program that synchronizes its context makes progress.
const LIFE: Duration = Duration::from_millis(1);
/// The time limit for the kernel at the end: it leaves within [`LIFE`].
const LEAVE_LIMIT: Duration = Duration::from_secs(2);
/// The time limit for the first request.
const FIRST_LIMIT: Duration = Duration::from_secs(20);

/// The length of the page-locked memory: the word that the kernel writes when it leaves, then the lines.
const HOST_MEMORY: usize = LINES + (MOST_LINES * PushRequest::LINE_IN_HOST) as usize;
const LEFT: usize = 0;
/// In another cache line than the word.
const LINES: usize = 256;
/// The lines of a plan's longest piece, 32 KiB, and of its unaligned ends.
const MOST_LINES: u64 = (32 << 10) / PushRequest::LINE + 1;

/// The number of lines that the kernel stores at once: one per thread. The CPU waits for the last of them before it
/// loads the others, because it loses a cache line that it loads too early and has to load it again.
const BATCH: u64 = 512;
/// How far ahead cache lines are fetched, in lines: about as many as a core fetches at once.
const AHEAD: u64 = 64;

/// How often the CPU polls a line before it checks whether the kernel has left.
const POLLS: u32 = 64;
/// How often the CPU polls before it queries the driver and yields.
const POLLS_OF_DRIVER: u32 = 1 << 14;

/// The length of the GPU memory that holds the request: the unit that every backend maps.
const GPU_PAGE: u64 = 64 << 10;
/// The minimum compute capability: Volta.
const VOLTA: (u32, u32) = (7, 0);
/// The number of bytes that requests can address.
const MOST_BYTES: u64 = 256 << 30;

/// The kernel that serves one buffer.
#[derive(Debug)]
pub(super) struct ResidentKernel {
    allocations: Arc<Allocations>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Used for the capture mode; `None` for the simulation, which has no captures.
    cuda: Option<Arc<Cuda>>,
    stream: Stream,
    /// The word that the kernel polls, and the mapping of that word.
    request_memory: Arc<DeviceBuffer>,
    request: Mapping,
    host: PooledHostBuffer,
    buffer: Arc<DeviceBuffer>,
    /// The base address of the offsets in requests.
    base: DevicePtr,
    /// The number of the last request; 0 before the first.
    number: u16,
    /// The number of the last launch, which the kernel writes when it leaves; 0 before the first.
    launch: u32,
    /// Whether a request has failed. The kernel may still serve it, so no other request is made.
    is_lost: bool,
}

/// A request whose lines are arriving.
struct Pending {
    /// The number of the previous request.
    before: u16,
    limit: Duration,
    /// When the request was first found to be slow.
    began: Option<Instant>,
}

impl ResidentKernel {
    /// Launches the kernel and makes one read through it.
    pub(super) fn new(allocations: Arc<Allocations>, context: &Context) -> Result<Self> {
        let gpu = allocations.buffer().gpu();
        let missing = |reason| Error::NoResidentKernel {
            gpu: gpu.info().name.clone(),
            reason,
        };
        let ConcreteDriver::Cuda(cuda) = ConcreteDriver::of(gpu.driver()) else {
            return Err(missing("the GPU is simulated"));
        };
        if gpu.info().compute_capability < VOLTA {
            return Err(missing("GPUs before Volta lack the loads that it needs"));
        }
        if allocations.buffer().len() >= MOST_BYTES {
            return Err(missing(
                "its requests reach 256 GiB, and the buffer is longer",
            ));
        }
        // Without this, the calls below would invalidate a stream capture of the program.
        let _relaxed = cuda.relax_stream_capture();
        Self::start(Arc::clone(&allocations), context, Some(Arc::clone(&cuda)))
    }

    fn start(
        allocations: Arc<Allocations>,
        context: &Context,
        cuda: Option<Arc<Cuda>>,
    ) -> Result<Self> {
        let buffer = Arc::clone(allocations.buffer());
        let gpu = buffer.gpu();
        let request_memory = Arc::new(gpu.allocate(MemoryKind::Plain, GPU_PAGE)?);
        // The kernel has left by the end, so nothing has to wait for kernels of the program.
        request_memory.free_unwaited();
        let request = context.pin_buffer(&request_memory)?.map()?;
        // The memory may hold a word of its last user, which the kernel must not treat as a request.
        request.write_at(0, &0_u64.to_le_bytes())?;
        // Requests count whole lines, and the first line may begin before the buffer.
        let base = buffer.ptr().get() / PushRequest::LINE * PushRequest::LINE;
        let host = PooledHostBuffer::new(gpu, HOST_MEMORY)?;
        // The memory may hold lines from its last use.
        host.write(0, &vec![0; HOST_MEMORY])?;
        let stream = gpu.stream()?;
        let this = Self {
            state: Mutex::new(State {
                cuda,
                stream,
                request_memory,
                request,
                host,
                base: DevicePtr::new(base),
                buffer,
                number: 0,
                launch: 0,
                is_lost: false,
            }),
            allocations,
        };
        // The first read loads the kernel, which is slow, and shows whether it works.
        let mut byte = 0;
        // SAFETY: `byte` is writable.
        unsafe { this.read(0..1, &mut byte, FIRST_LIMIT) }?;
        Ok(this)
    }

    /// Reads this range of the buffer, which is at most 32 KiB.
    ///
    /// # Safety
    /// `host` is valid for writing its bytes.
    pub(super) unsafe fn read(
        &self,
        range: Range<u64>,
        host: *mut u8,
        limit: Duration,
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        // A driver call takes a large part of the time of a short read. It is needed only if another library may have
        // freed the memory.
        if !self.allocations.buffer().is_allocation() {
            self.allocations.check(range.clone())?;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_lost {
            let (what, limit) = ("an earlier read by the resident kernel", limit);
            return Err(gdr_cuda::Error::Deadline { what, limit }.into());
        }
        // A panic in between also leaves a request outstanding.
        state.is_lost = true;
        // SAFETY: the caller's promise.
        unsafe { state.read(range, host, limit) }?;
        state.is_lost = false;
        Ok(())
    }
}

impl State {
    /// # Safety
    /// Same as [`ResidentKernel::read`].
    unsafe fn read(&mut self, range: Range<u64>, host: *mut u8, limit: Duration) -> Result<()> {
        let start = self.buffer.ptr().get() - self.base.get() + range.start;
        let skip = start % PushRequest::LINE;
        let len = range.end - range.start;
        let count = (skip + len).div_ceil(PushRequest::LINE);
        let before = self.number;
        let number = self.next_number()?;
        let request = PushRequest::new(number, start - skip, count)
            .filter(|_| count <= MOST_LINES)
            .ok_or(Error::OutOfRange {
                offset: range.start,
                len,
                mapped: self.buffer.len(),
            })?;
        self.number = number.get();
        // A single store of an aligned word, so that the kernel never sees part of it.
        self.request.write_at(0, &request.word().to_le_bytes())?;
        // Checked after the request was stored, because a kernel that is leaving now may have missed it.
        if self.has_left()? {
            self.launch(before)?;
        }
        let mut pending = Pending {
            before,
            limit,
            began: None,
        };
        let (mut at, mut stored) = (0, 0);
        while at < count {
            if at >= stored {
                stored = (at + BATCH).min(count);
                self.wait(&mut pending, |state| state.line(stored - 1, number))?;
                for group in (at..stored.min(at + AHEAD)).step_by(GROUP) {
                    self.lines().prefetch(group);
                }
            }
            let line = at * PushRequest::LINE;
            let group_end = line + GROUP as u64 * PushRequest::LINE;
            // A whole group inside the range is stored without examining single bytes.
            if line >= skip && group_end <= skip + len {
                if at + AHEAD < stored {
                    self.lines().prefetch(at + AHEAD);
                }
                let words = self.wait(&mut pending, |state| state.group(at, number))?;
                // SAFETY: all bytes of the group are in the range, for which `host` is valid.
                unsafe {
                    let to = host.add((line - skip) as usize);
                    to.cast::<[u64; GROUP]>()
                        .write_unaligned(words.map(u64::to_le));
                }
                at += GROUP as u64;
                continue;
            }
            let word = self.wait(&mut pending, |state| state.line(at, number))?;
            let bytes = word.to_le_bytes();
            let from = skip.saturating_sub(line);
            let end = (skip + len - line).min(PushRequest::LINE);
            // SAFETY: `from..end` are the bytes of the line that are in the range, and `host` is valid for the range.
            unsafe {
                let to = host.add((line + from - skip) as usize);
                let bytes = bytes.as_ptr().add(from as usize);
                ptr::copy_nonoverlapping(bytes, to, (end - from) as usize);
            }
            at += 1;
        }
        // The bytes were loaded with their numbers; no later access is performed before these loads.
        fence(Ordering::Acquire);
        Ok(())
    }

    /// Returns the number of the next request. Old lines with the same number would be treated as its answer, so lines
    /// are cleared before numbers repeat.
    fn next_number(&self) -> Result<NonZeroU16> {
        let next = self.number.checked_add(1).and_then(NonZeroU16::new);
        if let Some(next) = next {
            return Ok(next);
        }
        self.host.write(LINES, &vec![0; HOST_MEMORY - LINES])?;
        Ok(NonZeroU16::MIN)
    }

    fn lines(&self) -> PushedLines {
        // SAFETY: the memory has `MOST_LINES` lines there, and is page-aligned. Only these methods and the GPU access
        // them.
        unsafe { PushedLines::new(self.host.cpu_ptr().add(LINES)) }
    }

    /// Returns a line of this request, one of the first `MOST_LINES`.
    #[inline]
    fn line(&self, at: u64, number: NonZeroU16) -> Option<u64> {
        debug_assert!(at < MOST_LINES);
        // SAFETY: the caller has compared the lines of the request with `MOST_LINES`.
        unsafe { self.lines().line(at, number) }
    }

    /// Like [`Self::line`], for the lines of a group.
    #[inline]
    fn group(&self, at: u64, number: NonZeroU16) -> Option<[u64; GROUP]> {
        debug_assert!(at + GROUP as u64 <= MOST_LINES);
        // SAFETY: as above.
        unsafe { self.lines().group(at, number) }
    }

    /// Waits until `get` finds the lines of a request.
    #[inline]
    fn wait<T>(&mut self, pending: &mut Pending, get: impl Fn(&Self) -> Option<T>) -> Result<T> {
        let mut polls = 0_u32;
        loop {
            if let Some(found) = get(self) {
                return Ok(found);
            }
            std::hint::spin_loop();
            polls = polls.wrapping_add(1);
            // The kernel stores its lines before it leaves.
            if polls.is_multiple_of(POLLS) && self.has_left()? && get(self).is_none() {
                self.launch(pending.before)?;
            }
            if polls.is_multiple_of(POLLS_OF_DRIVER) {
                self.check_progress(pending)?;
            }
        }
    }

    /// Fails if the kernel has failed, or once the limit has passed.
    #[cold]
    fn check_progress(&self, pending: &mut Pending) -> Result<()> {
        let _relaxed = self.relax_capture();
        // Only the kernel runs on the stream, so a stream error is the kernel's.
        self.stream.is_idle()?;
        let began = *pending.began.get_or_insert_with(Instant::now);
        if began.elapsed() >= pending.limit {
            let (what, limit) = ("a read by the resident kernel", pending.limit);
            return Err(gdr_cuda::Error::Deadline { what, limit }.into());
        }
        thread::yield_now();
        Ok(())
    }

    fn relax_capture(&self) -> Option<CaptureGuard<'_>> {
        self.cuda.as_ref().map(|cuda| cuda.relax_stream_capture())
    }

    /// Returns whether the kernel has left, or was never launched.
    fn has_left(&self) -> Result<bool> {
        Ok(self.host.load_u32(LEFT)? == self.launch)
    }

    /// Launches the kernel, which ignores the request numbered `last`.
    fn launch(&mut self, last: u16) -> Result<()> {
        // As for every driver call, so that a stream capture elsewhere stays valid.
        let relaxed = self.relax_capture();
        let host = self.host.gpu_ptr();
        let launch = self.launch.wrapping_add(1);
        let push = Launch::Push {
            base: self.base,
            len: self.buffer.ptr().get() - self.base.get() + self.buffer.len(),
            request: self.request_memory.ptr(),
            lines: DevicePtr::new(host.get() + LINES as u64),
            capacity: MOST_LINES,
            left: DevicePtr::new(host.get() + LEFT as u64),
            last: last.into(),
            launch,
            idle_ns: IDLE.as_nanos() as u64,
            life_ns: LIFE.as_nanos() as u64,
        };
        // SAFETY: the request and the host memory are kept until the stream is idle, by `drop` below.
        // The buffer is read for requests only, and a call of `read` waits for each of them.
        unsafe { self.stream.launch(&push) }?;
        // The guard borrows `self`, which changes below.
        drop(relaxed);
        // Set only after success, because a failed launch leaves no kernel to write this number.
        self.launch = launch;
        Ok(())
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let _relaxed = self.relax_capture();
        // The word 0 ends the kernel at once; otherwise it leaves a little later.
        let ended = self.request.write_at(0, &0_u64.to_le_bytes());
        // A kernel that still runs uses the memory that is freed next.
        let left = self.stream.wait(LEAVE_LIMIT);
        if ended.is_err() || left.is_err() {
            tracing::debug!(?ended, ?left, "a resident kernel did not leave");
            // The kernel may still use the memory.
            std::mem::forget((
                Arc::clone(&self.request_memory),
                Arc::clone(&self.host),
                Arc::clone(&self.buffer),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use gdr_cuda::{Gpu, Ordinal, SimDriver};
    use snapshot::assert_contains;

    use super::*;

    const LEN: usize = 100_003;
    /// A limit that even a slow machine does not reach.
    const LIMIT: Duration = Duration::from_secs(120);

    /// Starts the kernel on the simulated GPU, which runs it although it does not offer it.
    fn simulated() -> (Arc<DeviceBuffer>, ResidentKernel) {
        simulated_by(SimDriver::new(1))
    }

    fn simulated_by(driver: Arc<SimDriver>) -> (Arc<DeviceBuffer>, ResidentKernel) {
        let gpu = Gpu::open(driver, Ordinal(0)).unwrap();
        let buffer = Arc::new(gpu.allocate(MemoryKind::Plain, LEN as u64).unwrap());
        let context = Context::open_for(&gpu).unwrap();
        let allocations = Arc::new(Allocations::of(Arc::clone(&buffer)).unwrap());
        let kernel = ResidentKernel::start(allocations, &context, None).unwrap();
        (buffer, kernel)
    }

    fn read(kernel: &ResidentKernel, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xEE; len + 2];
        let range = offset as u64..(offset + len) as u64;
        // SAFETY: there is one more byte on each side.
        unsafe { kernel.read(range, bytes.as_mut_ptr().add(1), LIMIT) }.unwrap();
        assert_eq!((bytes[0], bytes[len + 1]), (0xEE, 0xEE), "{offset} {len}");
        bytes[1..=len].to_vec()
    }

    fn wait_until_left(kernel: &ResidentKernel) {
        let began = Instant::now();
        while !kernel.state.lock().unwrap().has_left().unwrap() {
            assert!(began.elapsed() < LIMIT, "an idle kernel leaves");
            thread::yield_now();
        }
    }

    #[test]
    fn reads_are_exact_at_every_alignment_and_length() {
        let (buffer, kernel) = simulated();
        let bytes: Vec<u8> = (0..LEN).map(|at| (at * 7 + at / 251) as u8).collect();
        buffer.write(0, &bytes).unwrap();
        let ranges = (0..9).flat_map(|offset| (0..20).map(move |len| (offset, len)));
        let long = [(3, 32 << 10), (LEN - 5, 5), (LEN - (32 << 10), 32 << 10)];
        for (offset, len) in ranges.chain(long) {
            assert_eq!(read(&kernel, offset, len), bytes[offset..offset + len]);
        }
    }

    #[test]
    fn a_read_after_the_kernel_has_left_launches_it_again() {
        let (buffer, kernel) = simulated();
        for round in 0..5 {
            wait_until_left(&kernel);
            buffer.write(8, &[round; 16]).unwrap();
            assert_eq!(read(&kernel, 8, 16), [round; 16]);
        }
        assert!(kernel.state.lock().unwrap().launch > 5);
    }

    #[test]
    fn lines_of_earlier_requests_are_not_taken_for_those_of_a_later_one_with_their_number() {
        let (buffer, kernel) = simulated();
        buffer.write(0, &[1; 4096]).unwrap();
        // A long read leaves lines with its own number, 2.
        assert_eq!(kernel.state.lock().unwrap().number, 1);
        assert_eq!(read(&kernel, 0, 4096), [1; 4096]);
        buffer.write(0, &[2; 4096]).unwrap();
        kernel.state.lock().unwrap().number = u16::MAX;
        assert_eq!(read(&kernel, 0, 8), [2; 8]);
        assert_eq!(kernel.state.lock().unwrap().number, 1);
        assert_eq!(read(&kernel, 0, 4096), [2; 4096]);
    }

    #[test]
    fn a_request_that_fails_is_the_last_one() {
        let driver = SimDriver::new(1);
        let (_, kernel) = simulated_by(driver.clone());
        wait_until_left(&kernel);
        driver.destroy_context();
        let refused = |limit| {
            // SAFETY: the byte is writable.
            unsafe { kernel.read(0..1, &mut 0, limit) }.unwrap_err()
        };
        let error = refused(LIMIT).to_string();
        assert_contains!(error, "CONTEXT_IS_DESTROYED");
        let Error::Gpu(error) = refused(LIMIT) else {
            panic!("it is the driver's");
        };
        assert!(matches!(error, gdr_cuda::Error::Deadline { .. }), "{error}");
    }
}
