//! Threads of this process.

use std::cell::Cell;

use gdr_process::ProcessId;

/// A thread, by its number in the kernel. The number of a thread that has ended may be given to a
/// later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Thread(libc::pid_t);

thread_local! {
    /// The number of this thread, and the process in which it has it.
    static OWN: Cell<Option<(ProcessId, Thread)>> = const { Cell::new(None) };
}

impl Thread {
    /// The calling thread; a system call the first time only.
    pub(crate) fn current() -> Self {
        if let Some((process, own)) = OWN.get()
            && process.is_current_fast()
        {
            return own;
        }
        let own = Self(rustix::thread::gettid().as_raw_pid());
        OWN.set(Some((ProcessId::current(), own)));
        own
    }

    /// Returns whether it has ended.
    pub(crate) fn has_ended(self) -> bool {
        // SAFETY: signal 0 is not sent; numbers.
        let asked = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), self.0, 0) };
        asked != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_ended_when_it_was_joined() {
        assert!(!Thread::current().has_ended());
        let other = std::thread::spawn(Thread::current);
        let other = other.join().unwrap();
        assert_ne!(other, Thread::current());
        // The kernel forgets it shortly after `join` returns.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !other.has_ended() {
            assert!(std::time::Instant::now() < until);
            std::thread::yield_now();
        }
    }
}
