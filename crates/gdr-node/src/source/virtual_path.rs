//! Names and formats of virtual files: facts about a node that are not in its file system.
//!
//! A [`Source`](super::Source) reads them like files, so archives store them like files. Their names begin with `@`;
//! virtual directories can be listed.

/// The kernel log, oldest message first, as `dmesg` prints it: `[   12.345678] mlx5_core …`.
/// At most the last MiB.
pub const KERNEL_LOG: &str = "@kmsg";

/// The facts that the CUDA driver reports about each GPU, as JSON: a [`Probe`](crate::Probe) of
/// [`GpuFacts`](crate::GpuFacts). If the driver is installed but fails, `error` is its message and `devices` is empty.
/// Missing without a driver.
pub const CUDA_DEVICES: &str = "@cuda/devices.json";

/// The facts that NVIDIA's management library reports about each GPU, as JSON: a
/// [`Probe`](crate::Probe) of [`GpuFacts`](crate::GpuFacts). Missing without the library.
pub const NVML_DEVICES: &str = "@nvml/devices.json";

/// The facts that libibverbs reports about each RDMA device, as JSON: a [`Probe`](crate::Probe) of
/// [`RdmaFacts`](crate::RdmaFacts). Missing without libibverbs.
pub const VERBS_DEVICES: &str = "@verbs/devices.json";

/// Returns the path of the firmware version of an interface's card, as `ethtool -i` prints it.
pub fn netdev_firmware(interface: &str) -> String {
    format!("@ethtool/{interface}/firmware-version")
}

/// Returns the path of an RDMA device's firmware settings for the next boot, as `mlxconfig -d DEVICE query` shows them,
/// one per line: `MAX_ACC_OUT_READ 44`, `ATS_ENABLED False(0)`.
pub fn nic_settings(device: &str) -> String {
    format!("@mlxconfig/{device}")
}

/// The directory of resource limits: `self` is this process, and the others are daemons that start jobs.
pub const LIMITS: &str = "@limits";

/// The limits of the reading process in the format of `/proc/self/limits`.
pub const LIMITS_SELF: &str = "@limits/self";

/// The fields of `uname(2)`, one line each: the name (`sysname`, `nodename`, `release`, `version`,
/// `machine`), a space, the value.
pub const UNAME: &str = "@uname";

/// Environment variables that NCCL, UCX, NVSHMEM and mlx5 read, one `NAME=value` per line.
pub const ENVIRONMENT: &str = "@env";

/// The directory of systemd units. Each file is the output of `systemctl show`, such as
/// `LimitMEMLOCK=infinity`; `manager` is systemd itself.
pub const SYSTEMD: &str = "@systemd";

/// Relevant kernel symbols, one per line with their module: `ib_register_peer_memory_client [ib_core]`.
pub const SYMBOLS: &str = "@symbols";

/// The lines of the running kernel's `modules.dep` about relevant modules.
pub const MODULE_FILES: &str = "@modules/dep";

/// The relevant lines of the running kernel's configuration: `CONFIG_PCI_P2PDMA=y`.
pub const KERNEL_CONFIG: &str = "@kernel/config";

/// Relevant device nodes, one per line: mode in octal, `major:minor` in decimal, this process's access (`rw`, `r-`,
/// `--`), path: `0666 231:192 rw /dev/infiniband/uverbs0`.
pub const DEVICE_NODES: &str = "@dev/nodes";

/// Relevant libraries, one per line, links with their targets: `/usr/lib64/libcuda.so.1 -> libcuda.so.580.95.05`.
pub const LIBRARIES: &str = "@libraries";

/// The IP addresses of interfaces, one per line: `ib0 10.0.0.5`, `ib0 fe80::1`. A line with only a name means that all
/// addresses of that interface are known.
pub const ADDRESSES: &str = "@addresses";

/// The file system at `/dev/shm`: lines of `size` or `free`, a space, and the number of bytes.
pub const SHARED_MEMORY: &str = "@shm";

/// Returns whether a path names a virtual file.
pub fn is_virtual(path: &str) -> bool {
    path.trim_start_matches('/').starts_with('@')
}
