//! Stack depths: which calls of a thread cannot have returned normally.
//!
//! A signal handler may leave the call that it interrupted with `siglongjmp`. That call then runs no more code, so its
//! note that a copy is in progress stays. It is recognized later by the address of its stack frame: a call in progress
//! is *above* every call of a handler that interrupted it, with the kernel's signal frame in between. Of two calls of
//! one thread, the earlier one has therefore been left if
//!
//! - its frame overlaps the newer frame, on any stack, because frames in use do not overlap; or
//! - it is below the newer one, and both are on the stack with which the thread was created, or both on the alternate
//!   signal stack; or
//! - it is on the alternate signal stack, and the newer one on the stack with which the thread was created, because
//!   handlers that interrupt a handler stay on its stack.
//!
//! All other calls count as in progress: a handler on the alternate stack that interrupted a copy, and coroutines,
//! which have their own stacks and may be switched by a handler.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Less than the distance between a call and a handler that interrupted it on the same stack: on x86-64 without AVX,
/// 128 bytes of red zone, 440 bytes of `struct rt_sigframe` and 512 bytes of registers; on aarch64 more than 4096
/// (Linux, `arch/*/kernel/signal.c`).
const SIGNAL_FRAME: usize = 1024;

/// Stack pointer of a call: the end of its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Depth(usize);

impl Depth {
    /// Returns the depth of the calling function.
    #[inline(always)]
    pub(crate) fn here() -> Self {
        let pointer: usize;
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: copies a register.
        unsafe {
            std::arch::asm!("mov {}, rsp", out(reg) pointer, options(nomem, nostack, preserves_flags));
        }
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        // SAFETY: copies a register.
        unsafe {
            std::arch::asm!("mov {}, sp", out(reg) pointer, options(nomem, nostack, preserves_flags));
        }
        #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
        {
            let local = 0u8;
            pointer = ptr::from_ref(std::hint::black_box(&local)).addr();
        }
        Self(pointer)
    }

    /// Returns the number, which is never 0.
    #[inline(always)]
    pub(crate) fn get(self) -> usize {
        self.0
    }

    pub(crate) const fn new(pointer: usize) -> Self {
        Self(pointer)
    }
}

/// A range of addresses; empty if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Range {
    low: usize,
    high: usize,
}

impl Range {
    pub(crate) const fn new(low: usize, high: usize) -> Self {
        Self { low, high }
    }

    fn contains(self, depth: Depth) -> bool {
        // A stack pointer may be at the very top.
        depth.0 > self.low && depth.0 <= self.high
    }

    /// Returns the stack with which the calling thread was created. Not for signal handlers.
    pub(crate) fn of_this_thread() -> Self {
        if cfg!(miri) {
            return Self::default();
        }
        let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
        let (mut low, mut bytes) = (ptr::null_mut(), 0);
        // SAFETY: the first call initializes the attributes if it succeeds, the second reads them and writes both
        // outputs, and the third ends their use.
        let known = unsafe {
            libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) == 0 && {
                let answer = libc::pthread_attr_getstack(attributes.as_ptr(), &mut low, &mut bytes);
                libc::pthread_attr_destroy(attributes.as_mut_ptr());
                answer == 0
            }
        };
        if known {
            Self::new(low.addr(), low.addr().saturating_add(bytes))
        } else {
            Self::default()
        }
    }

    /// Returns the calling thread's alternate signal stack. Signal handlers may call it.
    fn alternate() -> Self {
        if cfg!(miri) {
            return Self::default();
        }
        let mut now = MaybeUninit::<libc::stack_t>::zeroed();
        // SAFETY: a null pointer changes nothing; the current setting is written to `now`.
        let answer = unsafe { libc::sigaltstack(ptr::null(), now.as_mut_ptr()) };
        // SAFETY: all zeros is a value of this C structure, and the kernel wrote a valid one.
        let now = unsafe { now.assume_init() };
        if answer != 0 || now.ss_flags & libc::SS_DISABLE != 0 {
            return Self::default();
        }
        let low = now.ss_sp.addr();
        Self::new(low, low.saturating_add(now.ss_size))
    }
}

/// The stack with which a thread was created, readable by its signal handlers.
#[derive(Debug)]
pub(crate) struct OwnStack {
    low: AtomicUsize,
    high: AtomicUsize,
}

impl OwnStack {
    pub(crate) const fn unknown() -> Self {
        Self {
            low: AtomicUsize::new(0),
            high: AtomicUsize::new(0),
        }
    }

    pub(crate) fn set(&self, range: Range) {
        // Empty in between, for a handler that reads it at that moment.
        self.high.store(0, Ordering::Relaxed);
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        self.low.store(range.low, Ordering::Relaxed);
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        self.high.store(range.high, Ordering::Relaxed);
    }

    fn get(&self) -> Range {
        Range::new(
            self.low.load(Ordering::Relaxed),
            self.high.load(Ordering::Relaxed),
        )
    }

    /// Returns whether a call of the calling thread at `noted` has been left, given a later call at
    /// `here`.
    pub(crate) fn has_left(&self, noted: Depth, here: Depth) -> bool {
        has_left(noted, here, self.get(), Range::alternate)
    }
}

fn has_left(noted: Depth, here: Depth, own: Range, alternate: impl FnOnce() -> Range) -> bool {
    if noted.0 >= here.0 && noted.0 - here.0 < SIGNAL_FRAME {
        return true;
    }
    let alternate = alternate();
    match (alternate.contains(noted), alternate.contains(here)) {
        (true, true) => noted.0 < here.0,
        (true, false) => own.contains(here),
        (false, true) => false,
        (false, false) => noted.0 < here.0 && own.contains(noted) && own.contains(here),
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    const OWN: Range = Range::new(0x10_0000, 0x20_0000);
    const NONE: Range = Range::new(0, 0);

    fn left(noted: usize, here: usize, alternate: Range) -> bool {
        has_left(Depth(noted), Depth(here), OWN, || alternate)
    }

    #[test]
    fn a_call_at_the_same_or_a_lower_place_of_the_own_stack_has_been_left() {
        assert!(left(0x18_0000, 0x18_0000, NONE));
        assert!(left(0x17_0000, 0x18_0000, NONE));
        assert!(left(0x18_0000, 0x18_0000 - SIGNAL_FRAME + 1, NONE));
    }

    #[test]
    fn a_call_that_a_handler_interrupted_is_in_progress() {
        assert!(!left(0x18_0000, 0x18_0000 - SIGNAL_FRAME, NONE));
        assert!(!left(0x1f_0000, 0x11_0000, NONE));
    }

    #[test]
    fn a_call_that_a_handler_on_the_alternate_stack_interrupted_is_in_progress() {
        // The alternate stack may lie above, below or within the thread's own stack.
        for low in [0x2_0000, 0x14_0000, 0x19_0000, 0x30_0000] {
            let alternate = Range::new(low, low + 0x2000);
            assert!(!left(0x18_0000, low + 0x1000, alternate), "{low:#x}");
            assert!(left(low + 0x1000, 0x18_0000, alternate), "{low:#x}");
            assert!(left(low + 0x800, low + 0x1000, alternate), "{low:#x}");
            assert!(!left(low + 0x1800, low + 0x1000, alternate), "{low:#x}");
        }
    }

    #[test]
    fn of_calls_on_other_stacks_only_frames_that_overlap_are_known_to_be_left() {
        let coroutine = 0x40_0000;
        assert!(left(coroutine, coroutine, NONE));
        assert!(!left(coroutine - 0x1000, coroutine, NONE));
        assert!(!left(coroutine, 0x50_0000, NONE));
        assert!(!left(0x18_0000, coroutine, NONE));
        assert!(!left(coroutine, 0x18_0000, NONE));
        // A handler on the alternate stack, and a coroutine.
        let alternate = Range::new(0x30_0000, 0x30_2000);
        assert!(!left(0x30_1000, coroutine, alternate));
    }

    #[test]
    fn without_a_known_stack_only_frames_that_overlap_are_known_to_be_left() {
        let left = |noted, here| has_left(Depth(noted), Depth(here), NONE, || NONE);
        assert!(left(0x18_0000, 0x18_0000));
        assert!(!left(0x17_0000, 0x18_0000));
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs the real stack")]
    fn a_thread_finds_itself_on_its_own_stack() {
        let here = Depth::here();
        assert!(Range::of_this_thread().contains(here));
        assert!(!Range::alternate().contains(here), "where Rust sets one up");
        let elsewhere = std::thread::spawn(|| Range::of_this_thread().contains(Depth::here()));
        assert!(elsewhere.join().unwrap());
        let others = std::thread::spawn(move || Range::of_this_thread().contains(here));
        assert!(!others.join().unwrap());
    }
}
