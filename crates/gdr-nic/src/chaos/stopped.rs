//! Stopping or killing this process.

use std::sync::Mutex;
use std::time::Duration;

use gdr_process::lock::lock;

/// Stops all threads of this process with SIGSTOP; a child continues it after `lasting`.
pub(super) fn stop(lasting: Duration) {
    /// Serializes stops, because the SIGCONT of one would end another early.
    static STOPPED: Mutex<()> = Mutex::new(());
    let _one = lock(&STOPPED);
    let this = std::process::id().cast_signed();
    let pause = libc::timespec {
        tv_sec: libc::time_t::try_from(lasting.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: lasting.subsec_nanos().into(),
    };
    // Not fork(2), whose child the program's own wait(2) could reap: this child ends without a signal, so plain waits
    // skip it.
    // SAFETY: without `CLONE_VM` the child has its own copy of the memory, like fork(2); it only makes system calls and
    // exits.
    match unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) } {
        0 => {
            // SAFETY: `pause` outlives the call; the other arguments are plain numbers.
            unsafe {
                libc::nanosleep(&pause, std::ptr::null_mut());
                libc::kill(this, libc::SIGCONT);
                libc::_exit(0)
            }
        }
        // Without the child, nothing would continue the process.
        error if error < 0 => std::thread::sleep(lasting),
        _ => {
            // SAFETY: kill(2) takes no pointers.
            unsafe { libc::kill(this, libc::SIGSTOP) };
        }
    }
}

/// Kills this process with SIGKILL.
pub(super) fn kill() {
    // SAFETY: kill(2) takes no pointers.
    unsafe { libc::kill(std::process::id().cast_signed(), libc::SIGKILL) };
}
