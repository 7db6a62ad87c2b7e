//! Telling a forked child from the process that made a pin.
//!
//! The NVIDIA driver ties a client to the process that allocated it, and mappings are kept out
//! of children (`MADV_DONTFORK`), so a child must neither use nor unmap what it inherited: the
//! same addresses may meanwhile hold something else.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

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
}
