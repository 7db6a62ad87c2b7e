//! A memory fence on all threads of the process.

/// Runs a full memory fence on every CPU that runs a thread of this process, by membarrier(2). Threads that do not run
/// have run one when they were suspended.
///
/// So a thread needs only a compiler fence between a store and a later load if the thread at the other end of both
/// calls this between its own store and load. It takes microseconds.
///
/// Returns false if the kernel refuses, as it does until [`register_process_fence`] has returned true.
#[must_use]
pub fn process_fence() -> bool {
    membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
}

/// Registers the process for [`process_fence`]. Returns false before Linux 4.14, or where a filter forbids it.
///
/// The first call takes milliseconds in a process that has several threads: the kernel waits for all CPUs. Later ones
/// return at once.
#[must_use]
pub fn register_process_fence() -> bool {
    membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> bool {
    // Miri does not support the call.
    if cfg!(miri) {
        return false;
    }
    // SAFETY: membarrier(2) takes two numbers and touches no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registered_process_has_a_fence() {
        assert_eq!(register_process_fence(), process_fence());
    }
}
