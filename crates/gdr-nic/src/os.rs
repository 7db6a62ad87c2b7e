//! Calls of the operating system that belong to no object: random numbers, time slices, memory.

use std::mem::MaybeUninit;
use std::ptr;
use std::thread;

use gdr_process::Inherited;

use crate::error::{Error, Result};

/// Returns random bytes from the kernel, from which keys and first PSNs are made.
///
/// # Errors
/// [`SocketError::Os`](crate::SocketError::Os).
pub fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::os("getrandom", std::io::Error::other(error)))?;
    Ok(bytes)
}

/// Like [`random_bytes`], but returns 32 bits.
///
/// # Errors
/// Same as [`random_bytes`].
pub fn random_number() -> Result<u32> {
    random_bytes().map(u32::from_ne_bytes)
}

/// Returns whether this process may run on more than one CPU, as determined in the first call.
pub(crate) fn has_several_cpus() -> bool {
    // The result is kept, because determining it opens files of the process's control group.
    static SEVERAL: Inherited<bool> = Inherited::new();
    *SEVERAL.get_or_init(|| thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1))
}

/// Makes the calling thread run soon after it is woken, on a CPU that another thread keeps busy.
///
/// Linux 6.12 and later schedule a thread with a short time slice before those with longer ones; in exchange,
/// it runs for less time at once. Its share of the CPU stays the same. This needs no privileges, and other
/// kernels ignore the slice.
pub(crate) fn shorten_time_slice() {
    /// The shortest slice of Linux, in nanoseconds (`__setparam_fair` of kernel/sched/syscalls.c).
    const SHORTEST: u64 = 100_000;
    let mut attributes = MaybeUninit::<libc::sched_attr>::zeroed();
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the kernel fills at most `size` bytes of the structure, for which zeros are valid, and
    // the second call reads it; both affect only this thread.
    let failed = unsafe {
        let read = libc::syscall(libc::SYS_sched_getattr, 0, attributes.as_mut_ptr(), size, 0);
        let attributes = attributes.assume_init_mut();
        if read == 0 && attributes.sched_policy == libc::SCHED_OTHER as u32 {
            attributes.sched_runtime = SHORTEST;
            libc::syscall(libc::SYS_sched_setattr, 0, ptr::from_mut(attributes), 0)
        } else {
            read
        }
    };
    if failed != 0 {
        let error = std::io::Error::last_os_error();
        tracing::debug!(%error, "the time slice of the progress thread stays");
    }
}

/// Returns how often another thread took this thread's CPU while it could have continued, including after yields.
pub(crate) fn involuntary_switches() -> i64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills the structure, for which zeros are valid.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_nivcsw
}

/// Returns freed memory to the operating system. The C library's allocator may otherwise keep it.
pub(crate) fn return_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call changes nothing that is allocated, and locks as malloc(3) does.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_shorter_slice_changes_nothing_else_of_the_thread() {
        fn attributes() -> libc::sched_attr {
            let mut read = MaybeUninit::<libc::sched_attr>::zeroed();
            let size = size_of::<libc::sched_attr>();
            // SAFETY: the kernel fills at most `size` bytes of the structure, for which zeros are
            // valid.
            unsafe {
                let failed = libc::syscall(libc::SYS_sched_getattr, 0, read.as_mut_ptr(), size, 0);
                assert_eq!(failed, 0, "sched_getattr");
                read.assume_init()
            }
        }
        thread::spawn(|| {
            let before = attributes();
            shorten_time_slice();
            let after = attributes();
            assert_eq!(after.sched_policy, before.sched_policy);
            assert_eq!(after.sched_nice, before.sched_nice);
            match before.sched_runtime {
                0 => skip::skip("this kernel has no time slices of threads"),
                _ => assert_eq!(after.sched_runtime, 100_000),
            }
        })
        .join()
        .unwrap();
    }
}
