//! A process that stops itself for a while, or ends.

use std::sync::Mutex;
use std::time::Duration;

use gdr_process::lock::lock;

/// Stops all threads of this process, which another process continues after a while.
pub(super) fn stop(lasting: Duration) {
    /// The end of one stop would not be seen in another.
    static STOPPED: Mutex<()> = Mutex::new(());
    let _one = lock(&STOPPED);
    let this = std::process::id().cast_signed();
    let pause = libc::timespec {
        tv_sec: libc::time_t::try_from(lasting.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: lasting.subsec_nanos().into(),
    };
    // Not fork(2): the end of a child without a signal is nothing that the program could wait for.
    // SAFETY: a child with a copy of the memory, as fork makes it; it makes system calls only, and leaves.
    match unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) } {
        0 => {
            // SAFETY: system calls of numbers, and of a structure that lives.
            unsafe {
                libc::nanosleep(&pause, std::ptr::null_mut());
                libc::kill(this, libc::SIGCONT);
                libc::_exit(0)
            }
        }
        // Without the child, nothing would continue the process.
        error if error < 0 => std::thread::sleep(lasting),
        _ => {
            // SAFETY: a signal to this process.
            unsafe { libc::kill(this, libc::SIGSTOP) };
        }
    }
}

/// Ends this process at once.
pub(super) fn kill() {
    // SAFETY: a signal to this process.
    unsafe { libc::kill(std::process::id().cast_signed(), libc::SIGKILL) };
}
