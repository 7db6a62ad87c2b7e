//! Names and formats of virtual files: facts about a node that are not in its file system.
//!
//! A [`Source`](super::Source) reads them like files, so that an archive stores them like files.
//! Their names begin with `@`. Directories among them can be listed.

/// The kernel log, oldest message first, as `dmesg` prints it: `[   12.345678] mlx5_core …`.
/// At most the last MiB.
pub const KERNEL_LOG: &str = "@kmsg";

/// The facts that the CUDA driver reports about each GPU, as JSON: a [`Probe`](crate::Probe) of
/// [`GpuFacts`](crate::GpuFacts). If the driver is installed and fails, `error` is its text and
/// `devices` is empty. Missing without a driver.
pub const CUDA_DEVICES: &str = "@cuda/devices.json";

/// The facts that NVIDIA's management library reports about each GPU, as JSON: a
/// [`Probe`](crate::Probe) of [`GpuFacts`](crate::GpuFacts). Missing without the library.
pub const NVML_DEVICES: &str = "@nvml/devices.json";

/// The facts that libibverbs reports about each RDMA device, as JSON: a [`Probe`](crate::Probe) of
/// [`RdmaFacts`](crate::RdmaFacts). Missing without libibverbs.
pub const VERBS_DEVICES: &str = "@verbs/devices.json";

/// The version of the firmware of an interface's card, as `ethtool -i` prints it.
pub fn netdev_firmware(interface: &str) -> String {
    format!("@ethtool/{interface}/firmware-version")
}

/// The settings in the firmware of an RDMA device, as `mlxconfig -d DEVICE query` shows them for the next
/// boot, one a line: `MAX_ACC_OUT_READ 44`, `ATS_ENABLED False(0)`.
pub fn nic_settings(device: &str) -> String {
    format!("@mlxconfig/{device}")
}

/// The directory of resource limits: `self` is this process, the others are the daemons that start
/// jobs.
pub const LIMITS: &str = "@limits";

/// The limits of the reading process in the format of `/proc/self/limits`.
pub const LIMITS_SELF: &str = "@limits/self";

/// The fields of `uname(2)`, one line each: the name (`sysname`, `nodename`, `release`, `version`,
/// `machine`), a space, the value.
pub const UNAME: &str = "@uname";

/// The environment variables that NCCL, UCX, NVSHMEM and mlx5 read, `NAME=value` a line.
pub const ENVIRONMENT: &str = "@env";

/// The directory of systemd units. Each file is the output of `systemctl show`, such as
/// `LimitMEMLOCK=infinity`; `manager` is systemd itself.
pub const SYSTEMD: &str = "@systemd";

/// The relevant kernel symbols, one a line with their module: `ib_register_peer_memory_client
/// [ib_core]`.
pub const SYMBOLS: &str = "@symbols";

/// The lines of the running kernel's `modules.dep` about relevant modules.
pub const MODULE_FILES: &str = "@modules/dep";

/// The relevant lines of the running kernel's configuration: `CONFIG_PCI_P2PDMA=y`.
pub const KERNEL_CONFIG: &str = "@kernel/config";

/// The relevant device nodes, one a line: mode in octal, `major:minor` in decimal, access of the
/// reading process (`rw`, `r-`, `--`), path: `0666 231:192 rw /dev/infiniband/uverbs0`.
pub const DEVICE_NODES: &str = "@dev/nodes";

/// The relevant libraries, one a line, links with their targets: `/usr/lib64/libcuda.so.1 ->
/// libcuda.so.580.95.05`.
pub const LIBRARIES: &str = "@libraries";

/// The IP addresses of interfaces, one a line: `ib0 10.0.0.5`, `ib0 fe80::1`. The name alone stands for
/// an interface whose addresses are all known.
pub const ADDRESSES: &str = "@addresses";

/// The file system at `/dev/shm`: lines of `size` or `free`, a space, and the number of bytes.
pub const SHARED_MEMORY: &str = "@shm";

/// Returns whether a path names a virtual file.
pub fn is_virtual(path: &str) -> bool {
    path.trim_start_matches('/').starts_with('@')
}
