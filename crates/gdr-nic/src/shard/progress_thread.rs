//! The progress thread: drives the engine when no thread of the program does.

use std::mem;
use std::os::fd::AsFd;
use std::time::Duration;

use gdr_process::block_signals;
use rustix::event::{PollFd, PollFlags, Timespec};
use smallvec::SmallVec;

use crate::os::shorten_time_slice;
use crate::poller::Poller;
use crate::shard::caller_activity::Sampler;
use crate::shard::clock::nanoseconds;
use crate::shard::cpu_contention::{Cpu, CpuContention, LostTime, Yielded};
use crate::shard::shared_engine::{Polled, SharedEngine, pause};

/// How long the progress thread leaves the engine to program threads that poll it themselves, the first time. The time
/// doubles with each repetition, up to [`LONGEST_YIELD`], because this thread's polls disturb the others.
const FIRST_YIELD: Duration = Duration::from_micros(250);
/// The longest delay of packets that arrive just after those threads have stopped polling.
const LONGEST_YIELD: Duration = Duration::from_millis(1);
/// How long the thread refrains from busy polling after another thread computed on its CPU, the first time. The time
/// doubles with each repetition, up to [`LONGEST_CALM`], as each attempt costs that thread time slices.
const FIRST_CALM: Duration = Duration::from_millis(100);
const LONGEST_CALM: Duration = Duration::from_secs(1);
/// For this long after the last packet, the thread checks its timers every [`TICK`], so a thread that posts need not
/// wake it for later timers, such as most acknowledgement timers.
const ACTIVE: Duration = Duration::from_millis(100);
const TICK: Duration = Duration::from_millis(4);

/// Drives the engine until the device is dropped.
pub(crate) fn run(engine: &SharedEngine) {
    // Signal handlers of the program must not run on this thread.
    block_signals();
    shorten_time_slice();
    ProgressThread::new(engine).run();
}

struct ProgressThread<'a> {
    engine: &'a SharedEngine,
    sampler: Sampler,
    /// How long after any thread's last work this one keeps busy-polling, in nanoseconds of the device's clock.
    busy_poll: u64,
    /// Set while the engine records this thread as sleeping.
    is_sleeping: bool,
    /// The length of the next yield.
    next_yield: Duration,
    idle_polls: u64,
    contention: CpuContention,
    lost_time: LostTime,
    /// No busy polling until then, as another thread computes on the CPU.
    calm_until: u64,
    next_calm: Duration,
}

impl<'a> ProgressThread<'a> {
    fn new(engine: &'a SharedEngine) -> Self {
        let now = engine.clock().now();
        Self {
            engine,
            sampler: Sampler::new(engine.callers(), now),
            busy_poll: nanoseconds(engine.busy_poll()),
            is_sleeping: false,
            next_yield: FIRST_YIELD,
            idle_polls: 0,
            contention: CpuContention::new(),
            lost_time: LostTime::default(),
            calm_until: 0,
            next_calm: FIRST_CALM,
        }
    }

    fn run(&mut self) {
        while !self.engine.is_stopped() {
            let now = self.now();
            if self.is_unneeded(now) {
                self.yield_engine();
            } else if !self.busy_poll(now) {
                self.poll_and_sleep();
            }
        }
    }

    fn now(&self) -> u64 {
        self.engine.now(Poller::ProgressThread)
    }

    /// Returns how long there has been nothing to do.
    fn idle_time(&self, now: u64) -> u64 {
        now.saturating_sub(self.engine.last_work())
    }

    /// Returns whether threads of the program drive the engine.
    fn is_unneeded(&mut self, now: u64) -> bool {
        let callers = self.engine.callers();
        let Some(interval) = self.sampler.sample(callers, now, FIRST_YIELD) else {
            return false;
        };
        // A waiting thread may have lost its CPU, and then does not poll.
        let is_waited_for = interval.has_calls() && self.engine.has_polling_waiter();
        let is_unneeded = is_waited_for || interval.is_polled();
        if !is_unneeded {
            self.next_yield = FIRST_YIELD;
        }
        is_unneeded
    }

    /// Leaves the engine to the program's threads for a while.
    fn yield_engine(&mut self) {
        // Before leaving the engine to others: while this thread is recorded as sleeping, every post would wake it.
        self.wake_up();
        self.lost_time.pause();
        // Before waiting, as a caller that stops polling uses this to decide whether to wake the thread.
        self.engine.set_yielded(true);
        let wake = PollFd::from_borrowed_fd(self.engine.wake_fd().as_fd(), PollFlags::IN);
        let woken = wait_for(&mut [wake], Some(self.next_yield));
        self.engine.set_yielded(false);
        // This thread's polls would disturb the others, so it checks less and less often.
        self.next_yield = (2 * self.next_yield).min(LONGEST_YIELD);
        // The yield does not count as idle time: busy polling starts after it.
        let now = self.now();
        self.engine.set_last_work(now);
        if woken {
            self.engine.clear_wake();
            // The program has stopped polling.
            self.sampler.restart(self.engine.callers(), now);
        }
    }

    /// Polls without sleeping. Returns whether it did.
    fn busy_poll(&mut self, now: u64) -> bool {
        if now < self.calm_until {
            return false;
        }
        // While this thread polls, the engine must not record it as sleeping, or others would wake it needlessly.
        self.wake_up();
        self.lost_time.poll(now);
        if self.engine.try_poll(Poller::ProgressThread, now) == Polled::Work {
            return true;
        }
        // Work found by the program's threads counts as well; otherwise a peer would have to wake this thread for each
        // packet that they take, which costs the peer more than the packet.
        if self.idle_time(now) >= self.busy_poll {
            return false;
        }
        self.idle_polls = self.idle_polls.wrapping_add(1);
        self.engine.spin();
        if let Some(yielded) = pause(self.idle_polls, &self.contention, self.engine.clock()) {
            self.find_contention(yielded);
        }
        true
    }

    /// Ends busy polling if another thread computes on this CPU. That may be the very thread that the packets are for;
    /// a sleeping thread takes no CPU time from it.
    fn find_contention(&mut self, yielded: Yielded) {
        match self.lost_time.record(yielded) {
            Some(Cpu::Shared) => {
                self.calm_until = yielded.end + nanoseconds(self.next_calm);
                self.next_calm = (2 * self.next_calm).min(LONGEST_CALM);
                self.contention = CpuContention::new();
            }
            Some(Cpu::Own) => self.next_calm = FIRST_CALM,
            None => {}
        }
    }

    /// Polls once, then sleeps until a packet, a timer or a call.
    fn poll_and_sleep(&mut self) {
        self.lost_time.pause();
        let shared = self.engine;
        // Locks last, so that a program thread with something to send goes first.
        let mut engine = shared.lock_last();
        engine.wake_up();
        // A wake-up does not restart busy polling, because it may be for an unrelated packet.
        let now = self.now();
        shared.poll(&mut engine, now);
        if engine.has_work() {
            return shared.unlock(engine);
        }
        // Reading the state and recording the sleep happen in one critical section, so a later post wakes this thread.
        let mut wakeup = engine.wakeup();
        if self.idle_time(now) < nanoseconds(ACTIVE) {
            let tick = engine.now() + TICK;
            wakeup.at = Some(wakeup.at.map_or(tick, |at| at.min(tick)));
        }
        if !engine.sleep(wakeup) {
            return shared.unlock(engine);
        }
        self.is_sleeping = true;
        let timeout = wakeup.at.map(|at| at.saturating_since(engine.now()));
        let failed = engine.is_failed();
        shared.unlock(engine);

        let wake = PollFd::from_borrowed_fd(shared.wake_fd().as_fd(), PollFlags::IN);
        let mut all = SmallVec::<[PollFd<'_>; 4]>::from_iter([wake]);
        // A failed socket would wake the thread again immediately.
        if !failed {
            all.push(PollFd::from_borrowed_fd(
                shared.socket().as_fd(),
                PollFlags::IN,
            ));
            // A blocked socket can become writable without a packet, so the thread waits for that, too.
            if wakeup.when_writable {
                let blocked = shared.socket().blocked_fd();
                all.push(PollFd::from_borrowed_fd(blocked, PollFlags::OUT));
            }
            let raw = shared.socket().raw();
            // Packets without a UDP checksum arrive only at the raw socket.
            all.extend(raw.map(|raw| PollFd::from_borrowed_fd(raw.as_fd(), PollFlags::IN)));
            let of_packets = match wakeup.when_frames_fit {
                true => PollFlags::IN | PollFlags::OUT,
                false => PollFlags::IN,
            };
            let packets = shared.socket().packets();
            all.extend(packets.map(|packets| PollFd::new(packets, of_packets)));
        }
        // A failed engine has no timers; only a call wakes it.
        let timeout = timeout.filter(|_| !failed);
        if wait_for(&mut all, timeout) {
            shared.clear_wake();
        }
    }

    /// Marks the thread as awake in the engine, unless it goes back to sleep after a single poll.
    fn wake_up(&mut self) {
        if mem::take(&mut self.is_sleeping) {
            self.engine.lock_last().wake_up();
        }
    }
}

/// Waits until a descriptor is ready. Returns whether the first one is.
fn wait_for(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> bool {
    // A timeout that the kernel's type cannot represent becomes an unlimited wait, which some event ends.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match rustix::event::poll(fds, timeout.as_ref()) {
        Ok(_) => fds.first().is_some_and(|fd| !fd.revents().is_empty()),
        Err(error) => {
            // EINTR and the like end the wait early, and the engine is polled once more.
            tracing::trace!(%error, "poll of the progress thread ended early");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::UdpSocket;
    use std::thread::yield_now;

    use gdr_roce::{
        AckTimeout, Completion, Operation, Remote, RetryCount, Rkey, SendRequest, WcStatus, WrId,
    };

    use super::*;
    use crate::buffer::Buffer;
    use crate::completion_queue::CompletionQueue;
    use crate::connection::Connection;
    use crate::device::Device;
    use crate::loopback::{connect, connect_to, device, message, pair, post_receive, send};
    use crate::queue_pair::QueuePair;
    use crate::region::Region;
    use crate::shard::shared_engine::PollingWaiter;
    use crate::types::Domain;
    use gdr_udp::Deadline;

    /// Returns a deadline that only a stuck test reaches.
    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(60))
    }

    fn parts() -> (Device, CompletionQueue, QueuePair<Connection>) {
        let device = device();
        let queue = device.completion_queue(16, None);
        let pair = pair(Domain::new(), &queue).unwrap();
        (device, queue, pair)
    }

    /// Returns the next completion, while only the progress thread polls the engine.
    fn wait_without_polling(queue: &CompletionQueue) -> Option<Completion> {
        queue.entries().pop_wait(soon())
    }

    #[test]
    fn a_waiter_that_does_not_poll_does_not_keep_the_engine_from_its_thread() {
        let (device, queue, near) = parts();
        let domain = Domain::new();
        let far = pair(domain, &queue).unwrap();
        connect(&near, &far).unwrap();
        connect(&far, &near).unwrap();
        let buffer = (Buffer::host(8).unwrap(), 0, 8);
        let target: Region = device
            .register_buffer(domain, buffer, 0, gdr_roce::Access::all())
            .unwrap();
        // Like a thread that lost its CPU, runs a signal handler, or is stopped by a debugger.
        let _waiter = PollingWaiter::new(device.shards().first());
        for n in 0..3 {
            let remote = Remote {
                rkey: Rkey(target.key()),
                addr: 0,
            };
            let write = SendRequest {
                operation: Operation::Write {
                    remote,
                    immediate: None,
                },
                ..message(WrId(n), &[1; 8])
            };
            send(&near, &write).unwrap();
            let completion = wait_without_polling(&queue).expect("a completion");
            assert_eq!(completion.status, WcStatus::Success);
        }
    }

    #[test]
    fn a_caller_that_waits_for_the_lock_for_ever_does_not_keep_the_engine_from_polls() {
        let (device, queue, near) = parts();
        connect(&near, &near).unwrap();
        let engine = device.shards().first();
        // Like a thread that lost its CPU while waiting.
        let _waiter = engine.lock_waiter();
        post_receive(&near);
        send(&near, &message(WrId(1), &[])).unwrap();
        for _ in 0..2 {
            let completion = queue.wait(soon()).unwrap().unwrap();
            assert_eq!(completion.status, WcStatus::Success);
        }
    }

    #[test]
    fn the_thread_is_woken_for_a_timer_that_was_set_while_it_sleeps() {
        let (device, queue, pair) = parts();
        let silent = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let peer = silent.local_addr().unwrap().into();
        let limits = (AckTimeout::new(8), RetryCount::new(1));
        connect_to(&pair, peer, &pair, limits).unwrap();
        // Permanently idle, since a pending wake-up would end the sleep by itself.
        let (mut idle, deadline) = (0, soon());
        while idle < 1000 {
            assert!(!deadline.has_passed(), "the thread never sleeps");
            let sleep = device.shards().first().lock().sleep;
            let has_no_tick = sleep.is_some_and(|sleep| sleep.at.is_none());
            idle = if has_no_tick { idle + 1 } else { 0 };
            yield_now();
        }
        send(&pair, &message(WrId(1), &[1])).unwrap();
        let completion = wait_without_polling(&queue).expect("a completion");
        assert_eq!(completion.status, WcStatus::RetryExceeded);
    }

    #[test]
    fn after_a_packet_the_thread_wakes_for_later_timers_by_itself() {
        let (device, queue, near) = parts();
        connect(&near, &near).unwrap();
        let deadline = soon();
        loop {
            assert!(!deadline.has_passed(), "the thread has no tick");
            post_receive(&near);
            send(&near, &message(WrId(1), &[1])).unwrap();
            for _ in 0..2 {
                wait_without_polling(&queue).expect("a completion");
            }
            let mut sleep = None;
            while sleep.is_none() && !deadline.has_passed() {
                yield_now();
                let engine = device.shards().first().lock();
                sleep = engine.sleep.filter(|_| engine.wakeup().at.is_none());
            }
            // If this test lost its CPU for long, the thread sleeps without a limit again.
            if sleep.is_some_and(|sleep| sleep.at.is_some()) {
                break;
            }
        }
    }

    #[test]
    fn the_thread_does_not_sleep_while_threads_of_the_program_find_something_to_do() {
        let (device, queue, near) = parts();
        connect(&near, &near).unwrap();
        let engine = device.shards().first();
        let mut thread = ProgressThread::new(engine);
        let before = engine.last_work();
        post_receive(&near);
        send(&near, &message(WrId(1), &[])).unwrap();
        for _ in 0..2 {
            queue.wait(soon()).unwrap().expect("a completion");
        }
        // That thread did none of the work.
        assert!(engine.last_work() > before);
        let just_idle = engine.last_work() + thread.busy_poll - 1;
        assert!(thread.busy_poll(just_idle));
    }

    /// Returns the signal mask of each thread with this name.
    fn blocked_by(name: &str) -> Vec<u64> {
        let mut blocked = Vec::new();
        for task in fs::read_dir("/proc/self/task").unwrap().flatten() {
            let read = |file| fs::read_to_string(task.path().join(file)).unwrap_or_default();
            if read("comm").trim() == name {
                let status = read("status");
                let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
                blocked.extend(mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()));
            }
        }
        blocked
    }

    #[test]
    fn no_signal_handler_runs_on_the_engines_thread() {
        let (_device, _queue, _pair) = parts();
        let has = |mask: u64, signal: i32| mask & (1 << (signal - 1)) != 0;
        let deadline = soon();
        loop {
            let threads = blocked_by("gdr-nic");
            let all = threads.iter().all(|mask| {
                [libc::SIGUSR1, libc::SIGALRM, libc::SIGTERM]
                    .iter()
                    .all(|s| has(*mask, *s))
            });
            if all && !threads.is_empty() {
                break;
            }
            assert!(!deadline.has_passed(), "{threads:x?}");
            yield_now();
        }
    }
}
