//! A test in a forked child: shared by the test binaries that fork.

/// Runs `child` in a forked child, which has to end by itself within half a minute.
#[track_caller]
pub(crate) fn in_child(child: impl FnOnce() -> Result<(), &'static str>) {
    // SAFETY: the child runs `child` alone, on its only thread, and leaves by `_exit` or a signal.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: ends the child if it is stuck; its memory is its own.
            unsafe { libc::alarm(30) };
            let status = match child() {
                Ok(()) => 0,
                Err(what) => {
                    // SAFETY: a readable range and a descriptor of the process.
                    unsafe { libc::write(2, what.as_ptr().cast(), what.len()) };
                    1
                }
            };
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { libc::_exit(status) }
        }
        child => {
            assert!(child > 0, "fork");
            let mut status = 0;
            // SAFETY: `child` is this process's own child and `status` is writable.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child's wait status");
        }
    }
}

/// Passes if a call fails because this is a forked child.
pub(crate) fn refused<T>(
    result: gdr_rdma::Result<T>,
    what: &'static str,
) -> Result<(), &'static str> {
    match result {
        Err(gdr_rdma::Error::ForkedChild) => Ok(()),
        _ => Err(what),
    }
}

/// Fails with `what` unless it holds.
pub(crate) fn check(holds: bool, what: &'static str) -> Result<(), &'static str> {
    holds.then_some(()).ok_or(what)
}
