//! Calls of the operating system that belong to no object: random numbers, signals, the
//! environment.

use std::mem::MaybeUninit;
use std::{env, fs, ptr};

use crate::error::{Error, Result};

/// Returns random bytes.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::os("getrandom", std::io::Error::other(error)))?;
    Ok(bytes)
}

/// Returns 32 random bits.
pub(crate) fn random_number() -> Result<u32> {
    random_bytes().map(u32::from_ne_bytes)
}

/// Blocks all signals, which then go to the program's own threads: a handler that ran here would
/// stop what the thread does for the whole process.
pub(crate) fn block_signals() {
    let mut all = MaybeUninit::uninit();
    // SAFETY: the first call fills the set, which the second reads; both affect only this thread.
    let failed = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), ptr::null_mut())
    };
    if failed != 0 {
        tracing::debug!(errno = failed, "pthread_sigmask failed");
    }
}

/// The environment variable that mlx5's library reads when it opens a device.
const VARIABLE: &str = "MLX5_SCATTER_TO_CQE";

/// Disables mlx5's "scatter to CQE" for this process, unless the environment already decides it.
///
/// With it, the device puts payloads of up to 64 bytes into the completion, and the library copies
/// them to their destination by CPU, which crashes for GPU memory (rdma-core,
/// providers/mlx5/qp.c). Call this first thing in `main`: a process that already has several
/// threads keeps its environment, and the function returns `false`.
pub fn disable_scatter_to_cqe() -> bool {
    if env::var_os(VARIABLE).is_some() {
        return true;
    }
    let threads = fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    if threads != 1 {
        tracing::warn!(
            "{VARIABLE} stays unset, because this process has several threads: start it with \
             {VARIABLE}=0 where a mlx5 device receives into GPU memory"
        );
        return false;
    }
    // SAFETY: this is the only thread of the process, so no other thread reads or writes the
    // environment at the same time.
    unsafe { env::set_var(VARIABLE, "0") };
    true
}
