//! The engine's own thread.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::Soft;

/// How long the thread leaves the engine to threads of the program that turn it themselves, the
/// first time; each time after it twice as long, up to [`LONG_ASIDE`], as its looks disturb them.
const ASIDE: Duration = Duration::from_micros(250);
/// What arrives just after they stopped waits this long at most.
const LONG_ASIDE: Duration = Duration::from_millis(1);
/// Turns by the program within [`ASIDE`] from which on it is taken to poll in a loop.
const BUSY: u64 = 16;

/// Turns the engine until the device is dropped.
pub(super) fn run(soft: &Arc<Soft>) {
    let mut last_work = Instant::now();
    let mut turns_seen = soft.caller_turns.load(Ordering::Relaxed);
    let mut looked = last_work;
    let mut idle = 0_u64;
    let mut aside = ASIDE;
    while !soft.stop.load(Ordering::Acquire) {
        if looked.elapsed() >= ASIDE {
            looked = Instant::now();
            let turns = soft.caller_turns.load(Ordering::Relaxed);
            let polled = turns.wrapping_sub(turns_seen) >= BUSY;
            turns_seen = turns;
            if polled || soft.waiters.load(Ordering::Acquire) > 0 {
                step_aside(soft, aside);
                aside = (2 * aside).min(LONG_ASIDE);
                last_work = Instant::now();
                continue;
            }
            aside = ASIDE;
        }
        if soft.turn_unless_busy() {
            last_work = Instant::now();
            continue;
        }
        if last_work.elapsed() < soft.busy_poll {
            idle = idle.wrapping_add(1);
            soft.pause(idle);
            continue;
        }
        sleep(soft);
        last_work = Instant::now();
    }
}

/// Lets the program's threads turn the engine for so long.
fn step_aside(soft: &Soft, aside: Duration) {
    soft.aside.store(true, Ordering::Release);
    wait_for(
        &mut [PollFd::from_borrowed_fd(soft.wake.as_fd(), PollFlags::IN)],
        Some(aside),
    );
    soft.aside.store(false, Ordering::Release);
    soft.clear_wake();
}

/// Sleeps until a packet, a deadline or a call.
fn sleep(soft: &Soft) {
    let (rest, timeout, dead) = {
        let mut engine = soft.lock();
        if engine.has_work() {
            return;
        }
        let rest = engine.rest();
        engine.sleep = Some(rest);
        let timeout = rest.until.map(|until| until.saturating_since(engine.now()));
        (rest, timeout, engine.is_dead())
    };
    let wake = PollFd::from_borrowed_fd(soft.wake.as_fd(), PollFlags::IN);
    if dead {
        // The socket would wake it again at once, for nothing.
        wait_for(&mut [wake], None);
        return soft.clear_wake();
    }
    let mut interest = PollFlags::IN;
    if rest.for_room {
        interest |= PollFlags::OUT;
    }
    let udp = PollFd::from_borrowed_fd(soft.socket.as_fd(), interest);
    match soft.socket.raw() {
        Some(raw) => {
            let raw = PollFd::from_borrowed_fd(raw.as_fd(), PollFlags::IN);
            wait_for(&mut [udp, wake, raw], timeout);
        }
        None => wait_for(&mut [udp, wake], timeout),
    }
    soft.lock().sleep = None;
    soft.clear_wake();
}

fn wait_for(fds: &mut [PollFd<'_>], timeout: Option<Duration>) {
    // A wait beyond what the kernel's type holds is for ever: something else ends it.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    // EINTR and the like end the wait early, and the engine takes a turn for nothing.
    if let Err(error) = rustix::event::poll(fds, timeout.as_ref()) {
        tracing::trace!(%error, "poll of the engine's thread ended early");
    }
}
