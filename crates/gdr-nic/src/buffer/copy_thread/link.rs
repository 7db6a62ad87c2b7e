//! State shared by the engine and the copy thread.

use std::collections::VecDeque;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

#[cfg(test)]
use gdr_cuda::Stream;
use gdr_cuda::{DeviceExport, HostBuffer};
use gdr_process::lock::{lock, try_lock};

use super::incoming_copy::IncomingWork;
use super::peer_memory::{PeerId, PeerProgress};
use super::word_at;
use crate::buffer::read_ahead::Ticket;
use crate::buffer::read_source::ReadSource;
use crate::os::has_several_cpus;

/// How long the copy thread polls for work before it sleeps: the time to the next packets of a message.
const LOOK: Duration = Duration::from_micros(300);
/// The maximum sleep between checks of streams that have work for other processes.
const NEXT_LOOK: Duration = Duration::from_millis(20);

/// The number of copies in a row after which a job of another kind has its turn: while two processes send to each other
/// without a pause, there is always a copy, and yet each has to open the other's memory.
const COPIES_FIRST: u32 = 64;

/// A copy of registered memory that was handed over.
#[derive(Debug)]
pub(super) struct HandOver {
    pub(super) source: Arc<ReadSource>,
    pub(super) generation: u64,
    pub(super) offset: u64,
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) ticket: Ticket,
}

/// A job for the copy thread.
#[derive(Debug)]
pub(super) enum Job {
    Read(HandOver),
    Incoming(IncomingWork),
    Open {
        id: PeerId,
        export: DeviceExport,
        descriptor: Option<OwnedFd>,
        progress: Arc<PeerProgress>,
    },
    Close {
        id: PeerId,
    },
}

impl Job {
    /// Returns whether this is a copy, for which the engine waits no longer than a copy takes.
    pub(super) fn is_copy(&self) -> bool {
        matches!(self, Self::Read(_) | Self::Incoming(_))
    }

    /// Fails the job, because no thread will do it.
    fn refuse(self) {
        match self {
            Self::Incoming(copy) => copy.progress.fail(),
            Self::Open { progress, .. } => progress.refuse(),
            Self::Read(_) | Self::Close { .. } => {}
        }
    }
}

/// The copy thread's next step.
pub(super) enum Next {
    Job(Job),
    /// Check the streams: there was no job for [`NEXT_LOOK`].
    Look,
    End,
}

/// The state shared by the engine and the copy thread.
#[derive(Debug, Default)]
pub(super) struct Link {
    work: Mutex<Work>,
    wake: Condvar,
    /// Set while there may be work, so that polling needs no lock.
    has_work: AtomicBool,
    /// The ring, followed by a word for each slot; set once copies can be made.
    pub(super) memory: OnceLock<Arc<HostBuffer>>,
    /// Set when no more copies can be made.
    pub(super) has_failed: AtomicBool,
    /// Simulates a lock of the driver.
    #[cfg(test)]
    pub(super) driver: Mutex<()>,
    #[cfg(test)]
    pub(super) streams: Mutex<Vec<Arc<Stream>>>,
}

#[derive(Debug, Default)]
pub(super) struct Work {
    /// Copies, which mostly go first: opening and closing memory takes the driver longer than the engine waits.
    copies: VecDeque<Job>,
    others: VecDeque<Job>,
    /// The number of copies taken since the last other job, while another one waited.
    copies_first: u32,
    is_blocked: bool,
    /// Set once the engine's side was dropped, or the thread has ended.
    has_ended: bool,
    /// Set once the thread has released its driver objects.
    has_left: bool,
}

impl Work {
    fn pop(&mut self) -> Option<Job> {
        if self.others.is_empty() {
            return self.copies.pop_front();
        }
        if self.copies.is_empty() || self.copies_first >= COPIES_FIRST {
            self.copies_first = 0;
            return self.others.pop_front();
        }
        self.copies_first += 1;
        self.copies.pop_front()
    }

    fn has_jobs(&self) -> bool {
        !self.copies.is_empty() || !self.others.is_empty()
    }
}

impl Link {
    /// Hands over a job; returns whether a thread will do it.
    pub(super) fn push(&self, job: Job) -> bool {
        let mut work = lock(&self.work);
        if work.has_ended {
            drop(work);
            job.refuse();
            return false;
        }
        match job.is_copy() {
            true => work.copies.push_back(job),
            false => work.others.push_back(job),
        }
        self.has_work.store(true, Ordering::Release);
        // A thread that is polling needs no wake-up, which would be a system call.
        if work.is_blocked {
            self.wake.notify_one();
        }
        true
    }

    /// Marks the thread as ended, and fails its jobs.
    pub(super) fn close(&self) {
        let mut work = lock(&self.work);
        work.has_ended = true;
        work.has_left = true;
        let waiting = mem::take(&mut work.copies).into_iter();
        let waiting = waiting.chain(mem::take(&mut work.others));
        drop(work);
        waiting.for_each(Job::refuse);
    }

    /// Returns whether the word of a copy has been written.
    pub(super) fn is_complete(&self, ticket: Ticket) -> bool {
        let memory = self.memory.get();
        let word = memory.and_then(|memory| memory.load_u32(word_at(ticket.slot())).ok());
        // Compare by difference, because the values of a slot wrap around.
        word.is_some_and(|word| word.wrapping_sub(ticket.word()).cast_signed() >= 0)
    }

    /// Asks the thread to end, unless another thread holds the lock; returns whether it was free.
    pub(super) fn try_end(&self) -> bool {
        let Some(mut work) = try_lock(&self.work) else {
            return false;
        };
        work.has_ended = true;
        self.wake.notify_one();
        true
    }

    /// Returns whether the thread has ended and released its driver objects; `false` while another thread holds the
    /// lock.
    pub(super) fn has_left(&self) -> bool {
        try_lock(&self.work).is_some_and(|work| work.has_left)
    }

    /// Waits for the next job. With `is_settled`, the streams need no checks meanwhile.
    pub(super) fn next(&self, is_settled: bool) -> Next {
        let start = Instant::now();
        // On a single CPU, do not poll: a thread that yields gets the CPU back only after the time slices of computing
        // threads, while one that sleeps is woken before them.
        let looks = has_several_cpus();
        while looks && !self.has_work.load(Ordering::Acquire) && start.elapsed() < LOOK {
            thread::yield_now();
        }
        let mut work = lock(&self.work);
        loop {
            if work.has_ended {
                return Next::End;
            }
            if let Some(job) = work.pop() {
                // Clear it with the lock held, as `push` sets it: otherwise a job added in between could be hidden.
                self.has_work.store(work.has_jobs(), Ordering::Relaxed);
                return Next::Job(job);
            }
            work.is_blocked = true;
            if is_settled {
                work = self.wake.wait(work).unwrap_or_else(PoisonError::into_inner);
                work.is_blocked = false;
                continue;
            }
            let woken = self.wake.wait_timeout(work, NEXT_LOOK);
            let (locked, timeout) = woken.unwrap_or_else(PoisonError::into_inner);
            work = locked;
            work.is_blocked = false;
            // A job, or the end, may have arrived together with the timeout.
            if timeout.timed_out() && !work.has_jobs() && !work.has_ended {
                return Next::Look;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_opened_although_there_is_always_a_copy() {
        let mut work = Work::default();
        // The queue decides the order, not the kind of a job, so one kind stands for all.
        let opens = [PeerId::next(), PeerId::next()];
        work.others.extend(opens.map(|id| Job::Close { id }));
        for turn in opens {
            for _ in 0..COPIES_FIRST {
                let id = PeerId::next();
                work.copies.push_back(Job::Close { id });
                assert!(matches!(work.pop(), Some(Job::Close { id: popped }) if popped == id));
            }
            work.copies.push_back(Job::Close { id: PeerId::next() });
            assert!(matches!(work.pop(), Some(Job::Close { id }) if id == turn));
            work.copies.clear();
        }
        assert!(work.pop().is_none());
    }
}
