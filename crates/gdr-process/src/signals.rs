//! Signal handling in threads that libraries start.

use std::mem::MaybeUninit;
use std::ptr;

/// Blocks all signals in this thread, so that they are delivered to the program's own threads: a handler running here
/// would delay the thread's work for the whole process. Meant for threads that libraries start.
pub fn block_signals() {
    let mut all = MaybeUninit::uninit();
    // SAFETY: `sigfillset` initializes the set before the other calls use it; the mask affects only this thread.
    let failed = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        // A blocked fault would end the process without running the program's handler.
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
            libc::sigdelset(all.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), ptr::null_mut())
    };
    if failed != 0 {
        tracing::debug!(errno = failed, "pthread_sigmask failed");
    }
}
