//! Signals in threads that libraries start.

use std::mem::MaybeUninit;
use std::ptr;

/// Blocks all signals in this thread, which then go to the program's own threads: a handler that
/// ran here would delay what the thread does for the whole process. Meant for threads that
/// libraries start.
pub fn block_signals() {
    let mut all = MaybeUninit::uninit();
    // SAFETY: the first call fills the set, which the others change and read; they affect only this thread.
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
