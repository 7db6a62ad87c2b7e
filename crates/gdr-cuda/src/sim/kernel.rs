//! The simulated kernels: one thread each, with the contracts of [`Launch`].

use std::hint;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::Duration;

use super::memfd::View;
use super::push::Push;
use crate::driver::HostCall;
use crate::error::{CuResult, Error, Result};
use crate::guarded_copy::{COPIED, SKIPPED, STARTED, STATES};
use crate::kernel::{Direction, Launch, PushRequest, VerifyReport, pattern_word};
use crate::pointer::DevicePtr;
use crate::sum64::Sum64;

/// The number of polls between two loads of the `stop` flag. The thread also yields at that point, so that the CPU's
/// half of a round trip runs even if there are fewer cores than spinning threads.
const POLLS: u32 = 64;

/// A queued operation with resolved addresses, which keeps the memory allocated.
#[derive(Debug)]
pub(super) enum Kernel {
    /// `cuMemsetD8Async`.
    Set { dst: View, value: u8 },
    /// `cuMemcpyHtoDAsync`.
    Upload { dst: View, src: PageLocked },
    /// `cuMemcpyDtoHAsync`.
    Download { src: View, dst: PageLocked },
    /// `cuMemcpyDtoDAsync`, between views of one length.
    Copy { src: View, dst: View },
    /// `cuStreamWriteValue32`.
    WriteWord { dst: View, value: u32 },
    /// `cuLaunchHostFunc`.
    Call(HostCall),
    /// `cuEventRecord`.
    Record(Sender<()>),
    /// `cuStreamWaitEvent`, for the event that the other end records.
    Wait(Receiver<()>),
    /// [`Launch::Fill`].
    Fill { dst: View, seed: u32 },
    /// [`Launch::Verify`].
    Verify { src: View, seed: u32, report: View },
    /// [`Launch::Double`].
    Double { src: View, dst: View },
    /// [`Launch::Sum64`].
    Sum64 { src: View, sum: View },
    /// [`Launch::GuardedCopy`].
    GuardedCopy(GuardedCopy),
    /// [`Launch::Gather`], as pairs of source and destination.
    Gather(Vec<(View, View)>),
    /// [`Launch::PingPong`].
    PingPong(PingPong),
    /// [`Launch::Push`].
    Push(Push),
}

/// The host side of a queued copy, as long as the view of the device side.
#[derive(Debug)]
pub(super) struct PageLocked(pub(super) *mut u8);

// SAFETY: the caller that queues a copy guarantees that the memory exists until the stream is idle, and that the
// stream's thread may use it.
unsafe impl Send for PageLocked {}

/// [`Launch::PingPong`] with resolved addresses.
#[derive(Debug)]
pub(super) struct PingPong {
    ping: View,
    pong: View,
    stop: View,
    iterations: u32,
    data: Option<View>,
    direction: Direction,
    mismatches: View,
}

/// [`Launch::GuardedCopy`] with resolved addresses.
#[derive(Debug)]
pub(super) struct GuardedCopy {
    /// The source and the destination.
    bytes: Option<(View, View)>,
    guard: View,
    number: u32,
    blocks: u32,
}

impl Kernel {
    /// Resolves the addresses of `launch`.
    pub(super) fn prepare(
        launch: &Launch,
        view: impl Fn(DevicePtr, u64) -> Option<View>,
    ) -> Result<Self> {
        let fail = |result| Error::Call {
            call: "cuLaunchKernel",
            result,
        };
        let illegal = || fail(CuResult::ILLEGAL_ADDRESS);
        // Hardware reports both errors at the next synchronization; the simulation reports them at once.
        let resolve = |ptr, count: u64, size: u64| {
            let len = count.checked_mul(size);
            let view = len.and_then(|len| view(ptr, len)).ok_or_else(illegal)?;
            let alignment = if size == 4 { 4 } else { 8 };
            if view.is_aligned(alignment) {
                Ok(view)
            } else {
                Err(fail(CuResult::MISALIGNED_ADDRESS))
            }
        };
        Ok(match *launch {
            Launch::Fill { dst, words, seed } => Self::Fill {
                dst: resolve(dst, words, 4)?,
                seed,
            },
            Launch::Verify {
                src,
                words,
                seed,
                report,
            } => Self::Verify {
                src: resolve(src, words, 4)?,
                seed,
                report: resolve(report, 1, VerifyReport::LEN as u64)?,
            },
            Launch::Double { src, dst, words } => Self::Double {
                src: resolve(src, words, 4)?,
                dst: resolve(dst, words, 4)?,
            },
            Launch::Sum64 { src, len, sum } => Self::Sum64 {
                src: resolve(src, len, 1)?,
                sum: resolve(sum, 1, 8)?,
            },
            Launch::GuardedCopy {
                src,
                dst,
                len,
                guard,
                number,
                blocks,
            } => Self::GuardedCopy(GuardedCopy {
                bytes: (len > 0)
                    .then(|| view(src, len).zip(view(dst, len)).ok_or_else(illegal))
                    .transpose()?,
                guard: resolve(guard, crate::GuardedCopy::LEN as u64 / 4, 4)?,
                number,
                blocks,
            }),
            Launch::Gather {
                table,
                blocks,
                dst,
                len,
            } => {
                let (table, dst) = (resolve(table, 3 * u64::from(blocks), 8)?, view(dst, len));
                let dst = dst.ok_or_else(illegal)?;
                let word = |at: usize| u64::from_le(table.wide_word(at).load(Ordering::Relaxed));
                let pieces = (0..blocks as usize).map(|block| {
                    let [from, to, len] = [0, 1, 2].map(|at| word(3 * block + at));
                    let end = to.checked_add(len).filter(|end| *end <= dst.len() as u64);
                    let end = end.ok_or_else(illegal)?;
                    let from = view(DevicePtr::new(from), len).ok_or_else(illegal)?;
                    Ok((from, dst.part(to as usize..end as usize)))
                });
                Self::Gather(pieces.collect::<Result<_>>()?)
            }
            Launch::PingPong {
                ping,
                pong,
                stop,
                iterations,
                data,
                data_words,
                direction,
                blocks,
                threads,
                barrier,
                mismatches,
            } => {
                if blocks == 0 || !(1..=1024).contains(&threads) {
                    return Err(fail(CuResult::INVALID_VALUE));
                }
                // A single thread needs no barrier, but an address that fails on hardware must fail here, too.
                resolve(barrier, 1, 8)?;
                Self::PingPong(PingPong {
                    ping: resolve(ping, 1, 4)?,
                    pong: resolve(pong, 1, 4)?,
                    stop: resolve(stop, 1, 4)?,
                    iterations,
                    data: (data_words > 0)
                        .then(|| resolve(data, data_words, 4))
                        .transpose()?,
                    direction,
                    mismatches: resolve(mismatches, 1, 8)?,
                })
            }
            Launch::Push {
                base,
                len,
                request,
                lines,
                capacity,
                left,
                last,
                launch,
                idle_ns,
                life_ns,
            } => Self::Push(Push {
                base: resolve(base, len, 1)?,
                request: resolve(request, 1, 8)?,
                lines: resolve(lines, capacity, PushRequest::LINE_IN_HOST)?,
                left: resolve(left, 1, 4)?,
                last,
                launch,
                idle: Duration::from_nanos(idle_ns),
                life: Duration::from_nanos(life_ns),
            }),
        })
    }

    /// Runs the operation and releases the memory.
    pub(super) fn run(self) {
        match &self {
            Self::Set { dst, value } => dst.fill(*value),
            // SAFETY: the caller that queued it guaranteed that the host side has the length of the view.
            Self::Upload { dst, src } => unsafe { dst.write_from(src.0) },
            // SAFETY: as above.
            Self::Download { src, dst } => unsafe { src.read_to(dst.0) },
            Self::Copy { src, dst } => dst.copy_from(src),
            // Release: a load that returns the value sees the writes of earlier work.
            Self::WriteWord { dst, value } => dst.word(0).store(*value, Ordering::Release),
            Self::Call(_) => {}
            Self::Record(event) => {
                // An error means that the stream that was to wait has ended.
                let _gone = event.send(());
            }
            Self::Wait(event) => {
                // An error means that the other stream failed before it recorded the event.
                let _recorded = event.recv();
            }
            Self::Fill { dst, seed } => {
                for i in 0..dst.words() {
                    dst.word(i)
                        .store(pattern_word(*seed, i as u64), Ordering::Relaxed);
                }
            }
            Self::Verify { src, seed, report } => {
                let found = verify(src, *seed);
                let words = [
                    found.mismatches,
                    found.first,
                    found.expected.into(),
                    found.found.into(),
                ];
                for (i, word) in words.into_iter().enumerate() {
                    report.wide_word(i).store(word.to_le(), Ordering::Relaxed);
                }
            }
            Self::Double { src, dst } => {
                for i in 0..dst.words() {
                    let word = src.word(i).load(Ordering::Relaxed);
                    dst.word(i).store(word.wrapping_mul(2), Ordering::Relaxed);
                }
            }
            Self::Sum64 { src, sum } => {
                let mut total = Sum64::new(src.len() as u64);
                src.visit(|offset, bytes| total.add(offset as u64, bytes));
                sum.wide_word(0)
                    .store(total.get().to_le(), Ordering::Relaxed);
            }
            Self::GuardedCopy(copy) => copy.run(),
            Self::Gather(pieces) => {
                for (src, dst) in pieces {
                    dst.copy_from(src);
                }
            }
            Self::PingPong(ping_pong) => ping_pong.run(),
            Self::Push(push) => push.run(),
        }
        if let Self::Call(call) = self {
            call.run();
        }
    }
}

impl GuardedCopy {
    fn run(&self) {
        for block in 0..self.blocks as usize {
            let state = self.guard.word(STATES / 4 + block);
            state.store(self.number + STARTED, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let ended = if self.guard.word(0).load(Ordering::Relaxed) == self.number {
                SKIPPED
            } else {
                self.copy(block);
                COPIED
            };
            // Release: a load that returns the state sees the bytes.
            state.store(self.number + ended, Ordering::Release);
        }
    }

    /// Copies the part of one block.
    fn copy(&self, block: usize) {
        if let Some((src, dst)) = &self.bytes {
            let len = dst.len().div_ceil(self.blocks as usize);
            let start = dst.len().min(block * len);
            let part = start..dst.len().min(start + len);
            dst.part(part.clone()).copy_from(&src.part(part));
        }
    }
}

fn verify(src: &View, seed: u32) -> VerifyReport {
    let mut report = VerifyReport {
        first: u64::MAX,
        ..VerifyReport::default()
    };
    for i in 0..src.words() {
        let expected = pattern_word(seed, i as u64);
        let found = src.word(i).load(Ordering::Relaxed);
        if found != expected {
            if report.mismatches == 0 {
                report = VerifyReport {
                    mismatches: 0,
                    first: i as u64,
                    expected,
                    found,
                };
            }
            report.mismatches += 1;
        }
    }
    report
}

impl PingPong {
    fn run(&self) {
        for round in 1..=self.iterations {
            if !self.await_ping(round) {
                return;
            }
            match (&self.data, self.direction) {
                (Some(data), Direction::CpuToGpu) => self.check(data, round),
                (Some(data), Direction::GpuToCpu) => {
                    for i in 0..data.words() {
                        data.word(i).store(round, Ordering::Relaxed);
                    }
                }
                (None, _) => {}
            }
            // Release: a load of `pong` that returns the round sees the payload.
            self.pong.word(0).store(round, Ordering::Release);
        }
    }

    /// Waits until the round may begin; returns `false` if the CPU has ended the kernel.
    fn await_ping(&self, round: u32) -> bool {
        loop {
            for _ in 0..POLLS {
                // Acquire: the CPU's stores before `ping` are now visible.
                if self.ping.word(0).load(Ordering::Acquire) == round {
                    return true;
                }
                hint::spin_loop();
            }
            if self.stop.word(0).load(Ordering::Relaxed) != 0 {
                return false;
            }
            thread::yield_now();
        }
    }

    fn check(&self, data: &View, round: u32) {
        let differs = |i: &usize| data.word(*i).load(Ordering::Relaxed) != round;
        let wrong = (0..data.words()).filter(differs).count();
        if wrong > 0 {
            self.mismatches
                .wide_word(0)
                .fetch_add(wrong as u64, Ordering::Relaxed);
        }
    }
}
