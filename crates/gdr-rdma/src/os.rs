//! Environment variables of this process that a device's library reads.

use std::{env, fs};

/// The environment variable that mlx5's library reads when it opens a device.
const VARIABLE: &str = "MLX5_SCATTER_TO_CQE";

/// Disables mlx5's "scatter to CQE" for this process, unless the environment already decides it.
///
/// With it, the device puts payloads of up to 64 bytes into the completion, and the library copies
/// them to their destination by CPU, which crashes for GPU memory (rdma-core,
/// providers/mlx5/qp.c). Call this first thing in `main`: a process that already has several
/// threads keeps its environment, and the function returns `false`.
pub fn disable_scatter_to_cqe() -> bool {
    if gdr_process::variable(VARIABLE).is_some() {
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
