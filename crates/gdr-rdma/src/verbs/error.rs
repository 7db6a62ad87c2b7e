//! What a verbs device may refuse.

use std::io;
use std::net::IpAddr;

use gdr_verbs_sys::{Errno, LoadError, VerbError};

/// Why a verbs device did not do something: what failed, why, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// There is no libibverbs, or it shows no device.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// No device has this name.
    #[error("there is no RDMA device `{name}`: there are {}", known.join(", "))]
    NoSuchDevice {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The device has no such port.
    #[error("{device} has no port {port}: it has {ports}, counted from 1")]
    NoSuchPort {
        /// The device.
        device: String,
        /// What was asked for.
        port: u8,
        /// How many there are.
        ports: u8,
    },
    /// No port of the device is up.
    #[error(
        "{device} port {port} is {state}, not ACTIVE: plug the cable in, `ip link set up` its \
         interface, and on InfiniBand see that a subnet manager runs"
    )]
    PortDown {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// Its state.
        state: String,
    },
    /// The port has no GID that can be used.
    #[error(
        "{device} port {port} has no GID that routes: its interface has no IPv4 and no global IPv6 \
         address; give it one (`ip addr add`), or name a GID by its index"
    )]
    NoGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
    },
    /// The device cannot page.
    #[error(
        "{device} has no on-demand paging: leave it out, and the memory is pinned; mlx5 adapters \
         from ConnectX-4 on have it"
    )]
    NoOnDemandPaging {
        /// The device.
        device: String,
    },
    /// The table has no such GID.
    #[error("{device} port {port} has no GID {index}: `show_gids` or `gdr devices` lists them")]
    NoSuchGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The index that was asked for.
        index: u32,
    },
    /// The peer cannot be reached from the GID.
    #[error("{device} cannot reach {peer} from {local}: {errno}; {}", route(*errno))]
    Route {
        /// The device.
        device: String,
        /// This side's address.
        local: IpAddr,
        /// The peer's.
        peer: IpAddr,
        /// What `ibv_modify_qp` left.
        errno: Errno,
    },
    /// The peer is not on InfiniBand, or has no place in its subnet.
    #[error(
        "{device} is on InfiniBand, and its peer has no LID: connect ports of one InfiniBand \
         subnet, and see that a subnet manager runs"
    )]
    NoLid {
        /// The device.
        device: String,
    },
    /// Memory of the process cannot be registered.
    #[error("{len} bytes of host memory cannot be registered: {source}; {}", locked(source, *limit))]
    Registration {
        /// How much.
        len: u64,
        /// The limit of locked memory, bytes; `None` for none.
        limit: Option<u64>,
        /// The verb's answer.
        source: VerbError,
    },
    /// Managed memory, which has no lasting place.
    #[error(
        "managed memory (cuMemAllocManaged) cannot be registered: it migrates between GPU and \
         host, and a device would keep writing where it was; allocate with cuMemAlloc, cuMemCreate \
         or cuMemAllocAsync"
    )]
    ManagedMemory,
    /// GPU memory cannot be registered on any way.
    #[error("GPU memory cannot be registered: {}", .0.join("; "))]
    GpuRegistration(Vec<String>),
    /// Bytes came, and whether they are in GPU memory yet cannot be made sure.
    #[error(
        "what arrived in GPU memory may not be seen there yet: {why}; reach it staged, or update \
         the driver (CUDA 11.3 and later can flush such writes)"
    )]
    Flush {
        /// What failed.
        why: String,
    },
    /// More segments than the queue pair takes.
    #[error("a request of {segments} segments is too long for this device: {most} at most")]
    Segments {
        /// How many.
        segments: usize,
        /// How many are possible.
        most: u32,
    },
    /// More READs and atomics at a time than the device does.
    #[error(
        "{device} does {most} READs and atomics at a time, not {asked}: ask for as many on both \
         sides (max_rd_atomic, max_dest_rd_atomic)"
    )]
    Reads {
        /// The device.
        device: String,
        /// What was asked for.
        asked: u8,
        /// How many it does.
        most: i32,
    },
    /// A verb failed.
    #[error("{device}: {source}{}", hint(source, *limit))]
    Verb {
        /// The device.
        device: String,
        /// The limit of locked memory, bytes; `None` for none.
        limit: Option<u64>,
        /// The verb's answer.
        source: VerbError,
    },
    /// The device failed for good.
    #[error(
        "{device} has failed (IBV_EVENT_DEVICE_FATAL): all its queue pairs are lost; see the \
         kernel log, then open it anew"
    )]
    DeviceGone {
        /// The device.
        device: String,
    },
    /// The operating system refused.
    #[error("{call} failed: {source}")]
    Os {
        /// The call.
        call: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

fn route(errno: Errno) -> &'static str {
    match errno {
        Errno::ENODEV => {
            "the GID's interface is in another network namespace or gone: use the host's network, \
             or a GID whose interface is here"
        }
        Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::ENETUNREACH => {
            "its address does not resolve: both ends need addresses of one subnet or a route \
             between them, and no link-local GID (ping it from that interface)"
        }
        Errno::EINVAL => {
            "the two ends do not go together: look at path MTU, GID type and link layer of both"
        }
        _ => "see the kernel log",
    }
}

/// What a limit of locked memory has to do with an error.
fn locked(source: &VerbError, limit: Option<u64>) -> String {
    match (source.errno(), limit) {
        (Errno::ENOMEM, Some(limit)) => format!(
            "the limit of locked memory is {} KiB: raise it (`ulimit -l unlimited`, \
             LimitMEMLOCK=infinity for the daemon that starts this, `--ulimit memlock=-1` for a \
             container)",
            limit / 1024
        ),
        (Errno::ENOMEM, None) => "the device or the machine is out of memory".to_owned(),
        (Errno::EFAULT, _) => "it is not mapped, or no memory that can be pinned".to_owned(),
        _ => "see the kernel log".to_owned(),
    }
}

fn hint(source: &VerbError, limit: Option<u64>) -> String {
    match (source.errno(), limit) {
        (Errno::ENOMEM, Some(_)) => format!("; {}", locked(source, limit)),
        _ => String::new(),
    }
}

/// What a refusal to register GPU memory by a dma-buf means.
pub(crate) fn dma_buf_refusal(errno: Errno) -> &'static str {
    match errno {
        Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT => {
            "the NIC's driver, the kernel or rdma-core cannot import dma-bufs (kernel 5.12 and \
             rdma-core 34 can, where the driver does)"
        }
        Errno::EFAULT | Errno::EIO => {
            "the buffer cannot be attached: the PCI path between GPU and NIC does not allow it \
             (`gdr doctor` says which port); the kernel log names the rule"
        }
        Errno::ENOTSUPP => {
            "NVIDIA's driver does not attach the buffer: the PCI path between GPU and NIC is none \
             that it supports (ACS, IOMMU and root ports: `gdr doctor` looks at them), or the NIC \
             cannot use MMIO without page structures"
        }
        Errno::ENOMEM => "the device is out of translation entries, or BAR1 is full",
        Errno::EINVAL => "the range, its offset or the access flags do not fit the device",
        Errno::EBADF => "the descriptor is no dma-buf",
        _ => "see the kernel log",
    }
}

/// What a refusal to register GPU memory by its address means.
pub(crate) fn peer_memory_refusal(errno: Errno) -> &'static str {
    match errno {
        Errno::EFAULT => {
            "no peer-memory module claims GPU addresses: load nvidia_peermem (`gdr peermem \
             status` says whether it can work here)"
        }
        Errno::ENOMEM => "BAR1 is full, or the device is out of translation entries",
        Errno::EINVAL => "the memory was freed, is managed, or is of a kind that cannot be pinned",
        Errno::EOPNOTSUPP => "the device does not take such memory",
        _ => "see the kernel log",
    }
}
