//! Checks that a forked child inherits neither pins nor mappings: its calls fail with an error.

#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::time::Duration;

use gdr_copy::{Context, Error, Mapping, Pinned};
use gdr_cuda::MemoryKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};

use super::WAIT;
use super::lifetime::OWN_BLOCK;
use super::outcome::{Outcome, Stop, allocate, require};
use super::pattern;
use crate::bench_target::BenchTarget;

/// What the child found wrong: its exit status, one bit each.
const USED: i32 = 1;
const PINNED: i32 = 2;
const MAPPED: i32 = 4;
const INHERITED: i32 = 8;

/// Checks that a child of fork can neither use its parent's mapping nor map its parent's pin, and the parent goes on
/// undisturbed.
pub(super) fn child_is_refused(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    let buffer = allocate(target, kind, 256 << 10)?;
    let bytes = pattern::bytes(90, buffer.len());
    let idle = target.pin(buffer.ptr(), buffer.len())?;
    let pinned = target.pin(buffer.ptr(), buffer.len())?;
    let mapping = pinned.map()?;
    mapping.write_at(0, &bytes)?;

    let context = target.context()?;
    let status = in_child(|| child(context, &idle, &mapping), WAIT)?;
    require!(
        status & USED == 0,
        "the child could write to or read from its parent's mapping"
    );
    require!(
        status & PINNED == 0,
        "the child could pin in its parent's context"
    );
    require!(status & MAPPED == 0, "the child could map its parent's pin");
    require!(
        status & INHERITED == 0,
        "the child inherited the address range of the mapping"
    );
    require!(status == 0, "the child ended with status {status}");

    pattern::require_contents("the buffer after the child", &buffer, &bytes)?;
    pattern::require_mapped("the parent's view after the child", &mapping, 0, &bytes)?;
    pattern::require_same_memory(&mapping, &buffer, 91)
}

/// Checks that a child of fork cannot map what its parent pinned, before or after the parent maps it.
pub(super) fn child_maps_parent(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    let buffer = allocate(target, kind, 256 << 10)?;
    let pinned = target.pin(buffer.ptr(), buffer.len())?;
    let child = || {
        let map = pinned.map();
        let status = match map {
            Err(Error::ForkedChild) => 0,
            _ => MAPPED,
        };
        std::mem::forget(map);
        status
    };
    require!(
        in_child(child, WAIT)? == 0,
        "the child could map its parent's pin"
    );
    let mapping = pinned.map()?;
    require!(
        in_child(child, WAIT)? == 0,
        "the child could map its parent's mapped pin"
    );
    pattern::require_same_memory(&mapping, &buffer, 92)
}

/// Checks that a child of fork cannot pin its parent's memory.
pub(super) fn child_pins_parent(target: &BenchTarget) -> Outcome {
    let buffer = allocate(target, MemoryKind::Plain, 256 << 10)?;
    let context = target.context()?;
    let child = || {
        let pin = context.pin(buffer.ptr(), buffer.len());
        let status = match pin {
            Err(Error::ForkedChild) => 0,
            _ => PINNED,
        };
        std::mem::forget(pin);
        status
    };
    require!(
        in_child(child, WAIT)? == 0,
        "the child could pin its parent's memory"
    );
    pattern::require_same_memory(&target.map(&buffer)?, &buffer, 93)
}

/// Checks that a child that gives back its copies of the parent's pin and mapping leaves the parent's alone.
pub(super) fn map_and_free(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    let buffer = allocate(target, kind, 256 << 10)?;
    let bytes = pattern::bytes(94, buffer.len());
    let pinned = target.pin(buffer.ptr(), buffer.len())?;
    let mapping = pinned.map()?;
    mapping.write_at(0, &bytes)?;
    let mut held = Some((pinned, mapping));
    let status = in_child(
        || {
            // This memory is the child's own copy, and in a glibc child the allocator is usable.
            drop(held.take());
            0
        },
        WAIT,
    )?;
    require!(status == 0, "the child ended with status {status}");
    let Some((_, mapping)) = &held else {
        return Err(Stop::failed("the parent lost its mapping"));
    };
    pattern::require_mapped("the parent's view after the child", mapping, 0, &bytes)?;
    pattern::require_same_memory(mapping, &buffer, 95)
}

/// Checks that memory which the parent freed after a fork is shown neither to the child nor by a new allocation.
pub(super) fn access_after_free(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    super::lifetime::require_persistent(target)?;
    let buffer = allocate(target, kind, OWN_BLOCK)?;
    let bytes = pattern::bytes(96, 256 << 10);
    let mapping = target.map(&buffer)?;
    mapping.write_at(0, &bytes)?;
    drop(buffer);
    let child = || {
        let mut byte = [0];
        let read = mapping.read_at(0, &mut byte);
        match (read, is_mapped(mapping.window())) {
            (Err(Error::ForkedChild), false) => 0,
            _ => USED,
        }
    };
    require!(
        in_child(child, WAIT)? == 0,
        "the child could read memory that its parent freed"
    );
    let other = allocate(target, kind, OWN_BLOCK)?;
    other.write(0, &pattern::bytes(97, 256 << 10))?;
    pattern::require_mapped("the view of freed memory", &mapping, 0, &bytes)
}

/// Runs between `fork` and `_exit` in a copy of a process that had several threads. Allocates and frees no memory and
/// takes no lock; refusals are values without heap data.
fn child(context: &Context, idle: &Pinned, mapping: &Mapping) -> i32 {
    let refused = |result: Option<&Error>| matches!(result, Some(Error::ForkedChild));
    let mut byte = [0];
    let mut status = 0;
    let wrote = mapping.write_at(0, &[0xff]);
    let read = mapping.read_at(0, &mut byte);
    if !refused(wrote.as_ref().err()) || !refused(read.as_ref().err()) {
        status |= USED;
    }
    let pin = context.pin(idle.ptr(), idle.len());
    if !refused(pin.as_ref().err()) {
        status |= PINNED;
    }
    let map = idle.map();
    if !refused(map.as_ref().err()) {
        status |= MAPPED;
    }
    if is_mapped(mapping.window()) {
        status |= INHERITED;
    }
    // Drop nothing: a child that was wrongly let in must not give back what belongs to its parent.
    std::mem::forget((wrote, read, pin, map));
    status
}

/// Returns whether the first page of a window is mapped in this process. The other pages share its fate.
pub(super) fn is_mapped((start, _): (*mut u8, u64)) -> bool {
    let mut resident = 0_u8;
    // SAFETY: `mincore` does not access the address, and writes one byte for one page.
    unsafe { libc::mincore(start.cast(), 1, &mut resident) == 0 }
}

/// Runs `work` while a child of fork exists, which waits until it is killed.
pub(super) fn beside_child(work: impl FnOnce() -> Outcome) -> Outcome {
    // SAFETY: the child only waits for a signal.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(std::io::Error::last_os_error().into()),
        0 => loop {
            // SAFETY: has no arguments.
            unsafe { libc::pause() };
        },
        child => Pid::from_raw(child).ok_or_else(|| Stop::failed("fork gave no process id"))?,
    };
    let done = work();
    kill_process(child, Signal::KILL).map_err(std::io::Error::from)?;
    waitpid(Some(child), WaitOptions::empty()).map_err(std::io::Error::from)?;
    done
}

/// Forks, runs `work` in the child, and returns its status; the child is killed after `limit`.
fn in_child(work: impl FnOnce() -> i32, limit: Duration) -> Outcome<i32> {
    // SAFETY: until `_exit`, the child runs only `work`, which is written for this (see `child`).
    let child = match unsafe { libc::fork() } {
        -1 => return Err(std::io::Error::last_os_error().into()),
        0 => {
            let status = work();
            // SAFETY: ends the child without running the parent's destructors and exit handlers.
            unsafe { libc::_exit(status) }
        }
        child => Pid::from_raw(child).ok_or_else(|| Stop::failed("fork gave no process id"))?,
    };
    let ended = wait_for(child, limit);
    if !matches!(ended, Ok(true)) {
        // The child is not reaped yet, so the id is still its own.
        let _ = kill_process(child, Signal::KILL);
    }
    let status = waitpid(Some(child), WaitOptions::empty()).map_err(std::io::Error::from)?;
    require!(ended?, "the child did not end within {limit:?}");
    let (_, status) = status.ok_or_else(|| Stop::failed("the child has no status"))?;
    match (status.exit_status(), status.terminating_signal()) {
        (Some(status), _) => Ok(status),
        (None, signal) => Err(Stop::failed(format!("the child died of signal {signal:?}"))),
    }
}

/// Returns whether `child` ends within `limit`.
fn wait_for(child: Pid, limit: Duration) -> Outcome<bool> {
    let fd = pidfd_open(child, PidfdFlags::empty()).map_err(std::io::Error::from)?;
    let limit = Timespec::try_from(limit)?;
    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
    Ok(poll(&mut fds, Some(&limit)).map_err(std::io::Error::from)? > 0)
}
