//! Threads that help with a copy.
//!
//! They are started at the first copy that uses them, and sleep between copies. They run on the CPUs next to the GPU,
//! as far as the program may use them, and block all signals.

use std::collections::VecDeque;
use std::fs;
use std::num::NonZeroU16;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread;

use gdr_cuda::Bdf;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::lock;

/// How often the end of a job is checked before the caller sleeps: the last piece takes about 10 us.
const SPINS: u32 = 20_000;

/// Threads that sleep until there is a job, and end when this is dropped.
#[derive(Debug)]
pub(crate) struct CpuPool {
    shared: Arc<Shared>,
    gpu: Bdf,
    /// The CPUs next to the GPU, read when the first thread starts: most copiers never start one.
    cpus: OnceLock<Option<CpuSet>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<PoolState>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct PoolState {
    /// The jobs, each with the number of helpers that it still takes.
    jobs: VecDeque<(Arc<Job>, u16)>,
    workers: u16,
    has_ended: bool,
}

/// Work in pieces that several threads do.
struct Job {
    work: Work,
    pieces: usize,
    next: AtomicUsize,
    done: AtomicUsize,
    has_panicked: AtomicBool,
    all_done: Mutex<()>,
    last: Condvar,
}

/// The function of a job. It is called only while [`CpuPool::run`] of that job has not returned.
struct Work(*const (dyn Fn(usize) + Sync));

// SAFETY: the function is `Sync`, and `run` keeps it until its last call has returned.
unsafe impl Send for Work {}
// SAFETY: as above.
unsafe impl Sync for Work {}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job")
            .field("pieces", &self.pieces)
            .field("done", &self.done)
            .finish_non_exhaustive()
    }
}

impl Job {
    /// Does pieces until none is left.
    fn help(&self) {
        loop {
            // The number only divides the pieces among threads, so it needs no ordering: `done` orders what they write.
            let piece = self.next.fetch_add(1, Ordering::Relaxed);
            if piece >= self.pieces {
                return;
            }
            // SAFETY: this piece is not done, so `run` has not returned and keeps the function.
            let work = unsafe { &*self.work.0 };
            // A piece that panics counts as done, because other threads wait for it; `run` then panics.
            if panic::catch_unwind(AssertUnwindSafe(|| work(piece))).is_err() {
                self.has_panicked.store(true, Ordering::Relaxed);
            }
            // Pairs with the load in `wait`: its thread sees what the piece wrote.
            if self.done.fetch_add(1, Ordering::AcqRel) + 1 == self.pieces {
                // A waiting thread checks `is_done` with this lock held. It is therefore either before the check or
                // already waiting, and is woken.
                drop(lock(&self.all_done));
                self.last.notify_all();
            }
        }
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire) == self.pieces
    }

    /// Waits for the pieces that other threads have begun. Those wait for nothing, so this ends.
    fn wait(&self) {
        for _ in 0..SPINS {
            if self.is_done() {
                return;
            }
            std::hint::spin_loop();
        }
        let mut guard = lock(&self.all_done);
        while !self.is_done() {
            guard = self
                .last
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl CpuPool {
    /// Creates a pool for copies to and from the GPU at `gpu`. It has no threads yet.
    pub(crate) fn new(gpu: Bdf) -> Self {
        Self {
            shared: Arc::default(),
            gpu,
            cpus: OnceLock::new(),
        }
    }

    /// Calls `work` for each number below `pieces`, on this thread and up to `threads - 1` others, and returns when all
    /// calls have returned. What the calls wrote is visible to the caller.
    ///
    /// # Panics
    /// If a call panicked, after all others have returned.
    pub(crate) fn run(&self, threads: NonZeroU16, pieces: usize, work: &(dyn Fn(usize) + Sync)) {
        // The caller does pieces as well, so a helper without a piece would be woken for nothing.
        let helpers = usize::from(threads.get() - 1).min(pieces.saturating_sub(1)) as u16;
        let work: *const (dyn Fn(usize) + Sync + '_) = work;
        // SAFETY: only the lifetime changes. The function is called for pieces below `pieces` only, and `wait` waits
        // for each of them, so no call is left when this function returns.
        let work = Work(unsafe {
            std::mem::transmute::<
                *const (dyn Fn(usize) + Sync + '_),
                *const (dyn Fn(usize) + Sync + 'static),
            >(work)
        });
        let job = Arc::new(Job {
            work,
            pieces,
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            has_panicked: AtomicBool::new(false),
            all_done: Mutex::new(()),
            last: Condvar::new(),
        });
        if helpers > 0 {
            self.call_for(&job, helpers);
        }
        job.help();
        // A late helper must not find the job, because its function ends with this call.
        if helpers > 0 {
            let mut state = lock(&self.shared.state);
            state.jobs.retain(|(other, _)| !Arc::ptr_eq(other, &job));
        }
        job.wait();
        assert!(
            !job.has_panicked.load(Ordering::Relaxed),
            "a piece of a copy panicked"
        );
    }

    /// Offers the job to `helpers` threads, and starts the missing ones.
    fn call_for(&self, job: &Arc<Job>, helpers: u16) {
        let mut state = lock(&self.shared.state);
        state.jobs.push_back((Arc::clone(job), helpers));
        // With the lock held, so that two concurrent copies do not start more threads than they need.
        for _ in state.workers..helpers {
            if self.start_worker() {
                state.workers += 1;
            }
        }
        // Unlocked first, because each helper would otherwise wake up only to wait for the lock.
        drop(state);
        for _ in 0..helpers {
            self.shared.wake.notify_one();
        }
    }

    /// Starts a thread; returns `false` if that fails, and other threads then do its pieces.
    fn start_worker(&self) -> bool {
        let shared = Arc::clone(&self.shared);
        let cpus = *self.cpus.get_or_init(|| local_cpus(self.gpu));
        let thread = thread::Builder::new().name("gdr-copy".to_owned());
        let started = thread.spawn(move || {
            gdr_process::block_signals();
            if let Some(cpus) = cpus
                && let Err(error) = sched_setaffinity(None, &cpus)
            {
                tracing::debug!(%error, "a copying thread stays on the CPUs of the process");
            }
            shared.serve();
        });
        started
            .inspect_err(|error| tracing::debug!(%error, "a copying thread could not be started"))
            .is_ok()
    }
}

impl Drop for CpuPool {
    fn drop(&mut self) {
        lock(&self.shared.state).has_ended = true;
        self.shared.wake.notify_all();
    }
}

impl Shared {
    /// Helps with jobs until the pool ends.
    fn serve(&self) {
        let mut state = lock(&self.state);
        loop {
            if state.has_ended {
                return;
            }
            let job = match state.jobs.front_mut() {
                Some((job, helpers)) => {
                    // Never below 0, because a job leaves the queue with its last helper.
                    *helpers -= 1;
                    let (job, is_last) = (Arc::clone(job), *helpers == 0);
                    if is_last {
                        state.jobs.pop_front();
                    }
                    job
                }
                None => {
                    state = self
                        .wake
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
            };
            drop(state);
            job.help();
            drop(job);
            state = lock(&self.state);
        }
    }
}

/// Returns the CPUs on the NUMA node of a PCI function that this thread may use, or `None` if the node is unknown or
/// has no such CPU.
pub(crate) fn local_cpus(function: Bdf) -> Option<CpuSet> {
    let path = format!("/sys/bus/pci/devices/{function}/local_cpulist");
    let list = fs::read_to_string(path).ok()?;
    let allowed = sched_getaffinity(None).ok()?;
    let mut local = CpuSet::new();
    // A program may be bound to some CPUs, and its helpers must stay on them.
    for cpu in cpus_in(&list) {
        if cpu < CpuSet::MAX_CPU && allowed.is_set(cpu) {
            local.set(cpu);
        }
    }
    (local.count() > 0).then_some(local)
}

/// Returns the numbers in a CPU list of the Linux kernel, such as `0-3,8`.
fn cpus_in(list: &str) -> impl Iterator<Item = usize> {
    list.trim().split(',').flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.parse::<usize>(), last.parse::<usize>()) {
            (Ok(first), Ok(last)) => first..last.saturating_add(1).min(CpuSet::MAX_CPU),
            _ => 0..0,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> CpuPool {
        CpuPool::new("ffff:ff:1f.7".parse().unwrap())
    }

    fn threads(number: u16) -> NonZeroU16 {
        NonZeroU16::new(number).unwrap()
    }

    #[test]
    fn every_piece_is_done_once_whatever_the_number_of_threads() {
        let pool = pool();
        for number in [1, 2, 3, 8] {
            for pieces in [0, 1, 2, 7, 100] {
                let calls: Vec<_> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
                pool.run(threads(number), pieces, &|piece| {
                    calls[piece].fetch_add(1, Ordering::Relaxed);
                });
                assert!(calls.iter().all(|of| of.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn no_more_threads_are_started_than_are_allowed() {
        let pool = pool();
        for _ in 0..20 {
            pool.run(threads(3), 50, &|_| thread::yield_now());
        }
        assert!(lock(&pool.shared.state).workers <= 2);
        let one = CpuPool::new("ffff:ff:1f.7".parse().unwrap());
        one.run(threads(1), 50, &|_| {});
        assert_eq!(lock(&one.shared.state).workers, 0);
    }

    #[test]
    fn jobs_of_several_callers_do_not_mix() {
        let pool = pool();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for pieces in 1..50 {
                        let sum = AtomicUsize::new(0);
                        pool.run(threads(4), pieces, &|piece| {
                            sum.fetch_add(piece + 1, Ordering::Relaxed);
                        });
                        assert_eq!(sum.into_inner(), pieces * (pieces + 1) / 2);
                    }
                });
            }
        });
    }

    #[test]
    fn a_piece_that_panics_does_not_block_the_others_and_is_not_hidden() {
        let (pool, done) = (pool(), AtomicUsize::new(0));
        let run = || {
            pool.run(threads(2), 10, &|piece| {
                assert_ne!(piece, 3, "expected");
                done.fetch_add(1, Ordering::Relaxed);
            });
        };
        assert!(panic::catch_unwind(AssertUnwindSafe(run)).is_err());
        assert_eq!(done.load(Ordering::Relaxed), 9);
    }

    #[test]
    fn a_list_of_cpus_is_read_as_the_kernel_writes_it() {
        assert_eq!(cpus_in("0-2,5\n").collect::<Vec<_>>(), [0, 1, 2, 5]);
        assert_eq!(cpus_in("\n").count(), 0);
        assert_eq!(cpus_in("3-x").count(), 0);
    }
}
