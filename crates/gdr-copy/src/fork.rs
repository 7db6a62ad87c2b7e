//! Telling a forked child from the process that made a pin.
//!
//! The NVIDIA driver ties a client to the process that allocated it, and mappings are kept out
//! of children (`MADV_DONTFORK`), so a child must neither use nor unmap what it inherited: the
//! same addresses may meanwhile hold something else.

use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);
static REGISTERED: Once = Once::new();

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The process in which something was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    generation: u32,
    pid: u32,
}

impl Origin {
    /// The calling process.
    pub fn current() -> Self {
        REGISTERED.call_once(|| {
            // SAFETY: `in_child` is async-signal-safe (one atomic add) and lives as long as the
            // process: a shared library with thread-local state is linked with `-z nodelete`.
            // A failure (no memory) leaves the pid comparison as the only test.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        Self {
            generation: GENERATION.load(Ordering::Relaxed),
            pid: std::process::id(),
        }
    }

    /// Whether this is still that process. One relaxed load: misses only a child that was made
    /// by a bare `clone` system call; see [`Origin::is_current`].
    #[inline]
    pub fn is_current_fast(&self) -> bool {
        GENERATION.load(Ordering::Relaxed) == self.generation
    }

    /// Whether this is still that process. Costs a system call.
    pub fn is_current(&self) -> bool {
        self.is_current_fast() && std::process::id() == self.pid
    }

    pub(crate) fn check(&self) -> crate::Result<()> {
        if self.is_current() {
            Ok(())
        } else {
            Err(crate::Error::ForkedChild)
        }
    }
}

/// State of one process: a forked child starts with a fresh one.
///
/// A lock that another thread holds at the moment of a fork stays locked in the child for good,
/// because that thread does not exist there.
#[derive(Debug)]
pub(crate) struct PerProcess<T: 'static>(AtomicPtr<(Origin, T)>);

impl<T: Default + Sync> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// This process's state. That of the parent is left as it is, for good.
    pub(crate) fn get(&self) -> &'static T {
        let mut current = self.0.load(Ordering::Acquire);
        loop {
            // SAFETY: every pointer here comes from `Box::leak` below and was published by the
            // release half of the exchange.
            if let Some((origin, state)) = unsafe { current.as_ref() }
                && origin.is_current()
            {
                return state;
            }
            let fresh = Box::into_raw(Box::new((Origin::current(), T::default())));
            match self
                .0
                .compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire)
            {
                // SAFETY: as above; never freed from here on.
                Ok(_) => return unsafe { &(*fresh).1 },
                Err(other) => {
                    // SAFETY: made above and never published.
                    drop(unsafe { Box::from_raw(fresh) });
                    current = other;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_knows_that_it_is_not_the_parent() {
        let origin = Origin::current();
        assert!(origin.is_current());
        // SAFETY: the child only compares numbers and leaves by `_exit`.
        match unsafe { libc::fork() } {
            0 => {
                let told = !origin.is_current_fast() && !origin.is_current();
                // SAFETY: ends the child without running the parent's destructors.
                unsafe { libc::_exit(if told { 0 } else { 1 }) }
            }
            child => {
                assert!(child > 0);
                let mut status = 0;
                // SAFETY: `child` is our own child and `status` is writable.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                assert_eq!(status, 0);
                assert!(origin.is_current());
            }
        }
    }

    #[test]
    fn a_lock_that_is_held_at_a_fork_is_free_in_the_child() {
        static LOCK: PerProcess<std::sync::Mutex<u32>> = PerProcess::new();
        let held = LOCK.get().lock().unwrap();
        // SAFETY: the child takes a lock of its own and leaves by `_exit`.
        match unsafe { libc::fork() } {
            0 => {
                let free = LOCK.get().try_lock().is_ok();
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(if free { 0 } else { 1 }) }
            }
            child => {
                let mut status = 0;
                // SAFETY: our own child.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                assert_eq!(status, 0);
            }
        }
        assert!(LOCK.get().try_lock().is_err(), "the parent's is still held");
        drop(held);
    }
}
