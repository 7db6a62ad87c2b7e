//! Names of what is no file of a node, and how its text is laid out.
//!
//! A [`Source`](super::Source) answers them like files, so that an archive keeps them like files.
//! They begin with `@`. A directory among them can be listed.

/// The kernel's log, oldest message first, as `dmesg` prints it: `[   12.345678] mlx5_core …`.
/// At most the last MiB.
pub const KERNEL_LOG: &str = "@kmsg";

/// What the CUDA driver tells of each GPU, as JSON:
/// `{"driver_version": "13.0", "error": null, "devices": [{"ordinal", "name", "pci", "uuid",
/// "compute_capability": "9.0", "total_memory", "gpu_direct_rdma_supported",
/// "dma_buf_supported"}]}`. Where the driver is there and fails, `error` is its text and `devices`
/// is empty. Missing where there is no driver.
pub const CUDA_DEVICES: &str = "@cuda/devices.json";

/// What NVIDIA's management library tells of each GPU, as JSON: `{"error": null, "devices":
/// [{"pci", "compute_mode": 0, "ecc_enabled": true, "nvlinks": [{"kind": "gpu" or "switch"
/// or "other", "pci"}]}]}`, of `nvlinks` the active ones. Missing where there is no such library.
pub const NVML_DEVICES: &str = "@nvml/devices.json";

/// What libibverbs tells of each RDMA device, as JSON: `{"error": null, "devices": [{"name",
/// "firmware", "on_demand_paging", "dma_buf"}]}`; `dma_buf` is `supported`, `unsupported` or a
/// text about why it is not known. Missing where there is no libibverbs.
pub const VERBS_DEVICES: &str = "@verbs/devices.json";

/// The directory of limits: `self` is this process, the others are the daemons that start jobs.
pub const LIMITS: &str = "@limits";

/// The limits of the process that reads, laid out as `/proc/self/limits`.
pub const LIMITS_SELF: &str = "@limits/self";

/// The kernel and the machine, one line each: `sysname`, `nodename`, `release`, `version`,
/// `machine`, a blank, the value.
pub const UNAME: &str = "@uname";

/// The variables of the environment that libraries of this field read, `NAME=value` a line.
pub const ENVIRONMENT: &str = "@env";

/// The directory of units of systemd, whose texts are what `systemctl show` prints of them:
/// `LimitMEMLOCK=infinity`. `manager` is systemd itself.
pub const SYSTEMD: &str = "@systemd";

/// The kernel's symbols that matter, one a line with the module that has it:
/// `ib_register_peer_memory_client [ib_core]`.
pub const SYMBOLS: &str = "@symbols";

/// The lines of the running kernel's `modules.dep` about modules that matter.
pub const MODULE_FILES: &str = "@modules/dep";

/// The lines of the running kernel's configuration that matter: `CONFIG_PCI_P2PDMA=y`.
pub const KERNEL_CONFIG: &str = "@kernel/config";

/// The device nodes that matter, one a line: mode in octal, `major:minor` in decimal, what the
/// reading process may do (`rw`, `r-`, `--`), path: `0666 231:192 rw /dev/infiniband/uverbs0`.
pub const DEVICE_NODES: &str = "@dev/nodes";

/// The libraries that matter, one a line, links with what they lead to:
/// `/usr/lib64/libcuda.so.1 -> libcuda.so.580.95.05`.
pub const LIBRARIES: &str = "@libraries";

/// The file system at `/dev/shm`: `size` and `free`, a blank, bytes; one line each.
pub const SHARED_MEMORY: &str = "@shm";

/// Whether a path is a name of something that is no file.
pub fn is_virtual(path: &str) -> bool {
    path.trim_start_matches('/').starts_with('@')
}
