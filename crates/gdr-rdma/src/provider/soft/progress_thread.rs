//! The progress thread: drives the engine when no thread of the program does.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::shared_engine::SharedEngine;
use crate::os::block_signals;

/// How long the progress thread leaves the engine to threads of the program that poll it
/// themselves, the first time. Each further time doubles it, up to [`LONGEST_YIELD`], because the
/// polls of this thread disturb the others.
const FIRST_YIELD: Duration = Duration::from_micros(250);
/// The longest delay of packets that arrive just after those threads have stopped polling.
const LONGEST_YIELD: Duration = Duration::from_millis(1);

/// Drives the engine until the device is dropped.
pub(super) fn run(engine: &SharedEngine) {
    block_signals();
    let mut last_work = Instant::now();
    let mut polls_seen = engine.caller_polls();
    let mut checked = last_work;
    let mut idle = 0_u64;
    let mut pause = FIRST_YIELD;
    while !engine.is_stopped() {
        if checked.elapsed() >= FIRST_YIELD {
            checked = Instant::now();
            let polls = engine.caller_polls();
            let new = polls.wrapping_sub(polls_seen);
            polls_seen = polls;
            // A thread that waits may have lost its CPU, and then does not poll.
            let is_waited_for = new > 0 && engine.has_polling_waiter();
            if is_waited_for || new >= engine.loop_polls() {
                yield_engine(engine, pause);
                pause = (2 * pause).min(LONGEST_YIELD);
                last_work = Instant::now();
                continue;
            }
            pause = FIRST_YIELD;
        }
        if engine.try_poll() {
            last_work = Instant::now();
            continue;
        }
        if last_work.elapsed() < engine.busy_poll() {
            idle = idle.wrapping_add(1);
            engine.pause(idle);
            continue;
        }
        // A wake-up does not restart the busy polling: it may be for a stranger's packet.
        sleep(engine);
    }
}

/// Leaves the engine to threads of the program for this long.
fn yield_engine(engine: &SharedEngine, pause: Duration) {
    engine.set_yielded(true);
    wait_for(
        &mut [PollFd::from_borrowed_fd(
            engine.wake_fd().as_fd(),
            PollFlags::IN,
        )],
        Some(pause),
    );
    engine.set_yielded(false);
    engine.clear_wake();
}

/// Sleeps until a packet, a timer or a call.
fn sleep(shared: &SharedEngine) {
    let (wakeup, timeout, failed) = {
        let mut engine = shared.lock();
        if engine.has_work() {
            return;
        }
        let wakeup = engine.wakeup();
        engine.sleep = Some(wakeup);
        let timeout = wakeup.at.map(|at| at.saturating_since(engine.now()));
        (wakeup, timeout, engine.is_failed())
    };
    let wake = PollFd::from_borrowed_fd(shared.wake_fd().as_fd(), PollFlags::IN);
    if failed {
        // The failed socket would wake it again at once.
        wait_for(&mut [wake], None);
        return shared.clear_wake();
    }
    let mut interest = PollFlags::IN;
    if wakeup.when_writable {
        interest |= PollFlags::OUT;
    }
    let udp = PollFd::from_borrowed_fd(shared.socket().as_fd(), interest);
    match shared.socket().raw() {
        Some(raw) => {
            let raw = PollFd::from_borrowed_fd(raw.as_fd(), PollFlags::IN);
            wait_for(&mut [udp, wake, raw], timeout);
        }
        None => wait_for(&mut [udp, wake], timeout),
    }
    shared.lock().sleep = None;
    shared.clear_wake();
}

fn wait_for(fds: &mut [PollFd<'_>], timeout: Option<Duration>) {
    // A timeout beyond the range of the kernel's type waits without limit: something else ends it.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    // EINTR and the like end the wait early, and the engine is polled once more.
    if let Err(error) = rustix::event::poll(fds, timeout.as_ref()) {
        tracing::trace!(%error, "poll of the progress thread ended early");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::UdpSocket;
    use std::sync::Arc;
    use std::thread::yield_now;

    use gdr_roce::{AckTimeout, Completion, Mtu, RetryCount, WcStatus, WrId};

    use super::*;
    use crate::buffer::Buffer;
    use crate::completion_queue::CompletionQueue;
    use crate::deadline::Deadline;
    use crate::device::Device;
    use crate::provider::downcast_queue;
    use crate::provider::soft::completion_queue::SoftCompletionQueue;
    use crate::provider::soft::shared_engine::PollingWaiter;
    use crate::queue_pair::{QueuePair, QueuePairOptions};
    use crate::types::{ConnectionOptions, Endpoint, SoftOptions};
    use crate::work_request::SendRequest;

    /// A test that takes noticeably long is stuck.
    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(60))
    }

    fn parts() -> (Device, CompletionQueue, QueuePair) {
        let device = Device::soft_with(SoftOptions::default().port(0)).unwrap();
        let queue = device.completion_queue(16);
        let pair = device
            .protection_domain()
            .queue_pair(&QueuePairOptions::new(&queue))
            .unwrap();
        (device, queue, pair)
    }

    /// The next completion, while only the progress thread polls the engine.
    fn wait_without_polling(queue: &CompletionQueue) -> Option<Completion> {
        let queue: Arc<SoftCompletionQueue> = downcast_queue(queue.ops()).unwrap();
        queue.entries().pop_wait(soon())
    }

    #[test]
    fn a_waiter_that_does_not_poll_does_not_keep_the_engine_from_its_thread() {
        let (device, queue, near) = parts();
        let far = near
            .domain()
            .queue_pair(&QueuePairOptions::new(&queue))
            .unwrap();
        let options = ConnectionOptions::new(Mtu::B4096);
        near.connect(&far.endpoint(), &options).unwrap();
        far.connect(&near.endpoint(), &options).unwrap();
        let target = far
            .domain()
            .register(&Buffer::host(8).unwrap(), gdr_roce::Access::all())
            .unwrap();
        // As a thread that lost its CPU, is in a signal handler, or is held by a debugger.
        let _waiter = PollingWaiter::new(device.as_soft());
        for n in 0..3 {
            let write = SendRequest::write(WrId(n), target.remote().at(0)).inline(&[1; 8]);
            near.post_send(write).unwrap();
            let completion = wait_without_polling(&queue).expect("a completion");
            assert_eq!(completion.status, WcStatus::Success);
        }
    }

    #[test]
    fn the_thread_is_woken_for_a_timer_that_was_set_while_it_sleeps() {
        let (device, queue, pair) = parts();
        let silent = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let peer = Endpoint {
            address: silent.local_addr().unwrap(),
            ..pair.endpoint()
        };
        let mut options = ConnectionOptions::new(Mtu::B4096);
        (options.timeout, options.retry_count) = (AckTimeout::new(8), RetryCount::new(1));
        pair.connect(&peer, &options).unwrap();
        // Permanently: a wake-up that is still due would end its sleep by itself.
        let (mut idle, deadline) = (0, soon());
        while idle < 1000 {
            assert!(!deadline.has_passed(), "the thread never sleeps");
            let sleeps = device.as_soft().lock().sleep.is_some();
            idle = if sleeps { idle + 1 } else { 0 };
            yield_now();
        }
        pair.post_send(SendRequest::send(WrId(1)).inline(&[1]))
            .unwrap();
        let completion = wait_without_polling(&queue).expect("a completion");
        assert_eq!(completion.status, WcStatus::RetryExceeded);
    }

    /// The signals that each thread of this name blocks.
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
            let threads = blocked_by("gdr-rdma");
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
