//! Errors of kernel devices.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use gdr_roce::WcStatus;
use gdr_verbs_sys::{Errno, LoadError, VerbError};

use super::Error;

/// What a kernel device refused or failed to do, why, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum VerbsError {
    /// libibverbs is not found, or lists no device.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// No device has this name.
    #[error("RDMA device `{name}` does not exist: choose one of {}", known.join(", "))]
    NoSuchDevice { name: String, known: Vec<String> },
    /// The device has no such port.
    #[error("{device} has no port {port}: its ports are numbered from 1 to {ports}")]
    NoSuchPort { device: String, port: u8, ports: u8 },
    /// The port is not active.
    #[error(
        "{device} port {port} is {state}, not ACTIVE: check the cable, bring its interface up (`ip link \
         set up`) and, on InfiniBand, check that a subnet manager runs"
    )]
    PortDown {
        device: String,
        port: u8,
        state: String,
    },
    /// The port has no GID that can be used.
    #[error(
        "{device} port {port} has no routable GID, because its interface has neither an IPv4 nor a \
         global IPv6 address; add one (`ip addr add`), or select a GID by index"
    )]
    NoGid { device: String, port: u8 },
    /// The device has no on-demand paging.
    #[error(
        "{device} does not support on-demand paging: leave it out, so that the memory is pinned, or use \
         an mlx5 adapter (ConnectX-4 or later)"
    )]
    NoOnDemandPaging { device: String },
    /// The port's table has no such GID.
    #[error("{device} port {port} has no GID {index}: `show_gids` lists them")]
    NoSuchGid {
        device: String,
        port: u8,
        index: u32,
    },
    /// The peer cannot be reached from the GID.
    #[error("{device} cannot reach {peer} from {local}: {errno}; {}", route_hint(*errno))]
    Route {
        device: String,
        local: IpAddr,
        peer: IpAddr,
        /// The error of `ibv_modify_qp`.
        errno: Errno,
    },
    /// The peer is not on InfiniBand, or has no LID yet.
    #[error(
        "{device} is on InfiniBand, but its peer has no LID: connect ports of the same InfiniBand \
         subnet, and check that a subnet manager runs"
    )]
    NoLid { device: String },
    /// Host memory cannot be registered.
    #[error(
        "{len} bytes of host memory cannot be registered: {source}; {}",
        locked_memory_hint(source, *limit)
    )]
    Registration {
        len: u64,
        /// The limit of locked memory in bytes; `None` if there is no limit.
        limit: Option<u64>,
        source: VerbError,
    },
    /// Managed memory, whose pages migrate.
    #[error(
        "managed memory (cuMemAllocManaged) cannot be registered: it migrates between GPU and \
         host, and a device would keep writing to the old place; allocate with cuMemAlloc, \
         cuMemCreate or cuMemAllocAsync"
    )]
    ManagedMemory,
    /// GPU memory cannot be registered by any method; a sentence for each.
    #[error("GPU memory cannot be registered: {}", .0.join("; "))]
    GpuRegistration(Vec<String>),
    /// Bytes arrived, and their visibility in GPU memory cannot be ensured.
    #[error(
        "received data may not be visible in GPU memory yet: {0}; use a staged buffer, or update the \
         driver (CUDA 11.3 and later can flush such writes)"
    )]
    Flush(#[source] FlushError),
    /// More segments than the queue pair accepts.
    #[error("the request has {segments} segments, but this device supports at most {most}")]
    Segments { segments: usize, most: u32 },
    /// More READs and atomics at a time than the device supports.
    #[error(
        "{device} supports {most} outstanding READs and atomics, not {asked}: request at most that many \
         on both sides (max_rd_atomic, max_dest_rd_atomic)"
    )]
    Reads {
        device: String,
        asked: u8,
        most: i32,
    },
    /// A verb failed.
    #[error("{device}: {source}{}", verb_hint(source, *limit))]
    Verb {
        device: String,
        /// The limit of locked memory in bytes; `None` if there is no limit.
        limit: Option<u64>,
        source: VerbError,
    },
    /// The device failed permanently.
    #[error(
        "{device} has failed (IBV_EVENT_DEVICE_FATAL), and all its queue pairs are lost; check the \
         kernel log, then open the device again"
    )]
    DeviceGone { device: String },
    /// A system call failed.
    #[error("{call} failed: {source}")]
    Os {
        call: &'static str,
        source: io::Error,
    },
}

/// Why writes of a device into GPU memory could not be flushed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlushError {
    /// The driver's flush failed.
    #[error(transparent)]
    Driver(gdr_cuda::Error),
    /// The device could not read GPU memory back.
    #[error("reading GPU memory back {0}")]
    ReadBack(LoopbackError),
    /// The device could not read GPU memory back before, and is not asked again.
    #[error("reading GPU memory back failed in an earlier attempt")]
    ReadBackFailedBefore,
}

/// Why a transfer between two queue pairs of one device did not succeed. The text continues a
/// sentence whose subject is the transfer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoopbackError {
    /// The request was not posted.
    #[error("is refused: {0}")]
    Refused(Box<Error>),
    /// The request completed with an error.
    #[error("fails: {0}")]
    Status(WcStatus),
    /// The request did not complete.
    #[error("does not complete within {0:?}")]
    TimedOut(Duration),
    /// The device failed, whatever memory the request uses.
    #[error("cannot be made: {0}")]
    Device(Box<Error>),
}

fn route_hint(errno: Errno) -> &'static str {
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
            "the two ends do not match: check path MTU, GID type and link layer of both"
        }
        _ => "see the kernel log",
    }
}

/// Returns what to do about an error that the limit of locked memory may cause.
fn locked_memory_hint(source: &VerbError, limit: Option<u64>) -> String {
    match (source.errno(), limit) {
        (Errno::ENOMEM, Some(limit)) => format!(
            "the limit of locked memory is {} KiB: raise it (`ulimit -l unlimited`, \
             LimitMEMLOCK=infinity for the daemon that starts this, `--ulimit memlock=-1` for a \
             container)",
            limit / 1024
        ),
        (Errno::ENOMEM, None) => "the device or the machine is out of memory".to_owned(),
        (Errno::EFAULT, _) => "it is not mapped, or cannot be pinned".to_owned(),
        _ => "see the kernel log".to_owned(),
    }
}

fn verb_hint(source: &VerbError, limit: Option<u64>) -> String {
    match (source.errno(), limit) {
        (Errno::ENOMEM, Some(_)) => format!("; {}", locked_memory_hint(source, limit)),
        _ => String::new(),
    }
}

/// Returns what an error of registering GPU memory by dma-buf means.
pub(crate) fn dma_buf_hint(errno: Errno) -> &'static str {
    match errno {
        Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT => {
            "the NIC's driver, the kernel or rdma-core cannot import dma-bufs (kernel 5.12 and \
             rdma-core 34 can, where the driver does)"
        }
        Errno::EFAULT | Errno::EIO => {
            "the buffer cannot be attached: the PCI path between GPU and NIC does not allow it; \
             the kernel log names the rule"
        }
        Errno::ENOTSUPP => {
            "NVIDIA's driver does not attach the buffer: it does not support the PCI path between \
             GPU and NIC (check ACS, IOMMU and root ports), or the NIC cannot use MMIO without \
             page structures"
        }
        Errno::ENOMEM => "the device is out of translation entries, or BAR1 is full",
        Errno::EINVAL => "the range, its offset or the access flags do not fit the device",
        Errno::EBADF => "the descriptor is not a dma-buf",
        _ => "see the kernel log",
    }
}

/// Returns what an error of registering GPU memory by its address means.
pub(crate) fn peer_memory_hint(errno: Errno) -> &'static str {
    match errno {
        Errno::EFAULT => "no peer-memory module claims GPU addresses: load nvidia_peermem",
        Errno::ENOMEM => "BAR1 is full, or the device is out of translation entries",
        Errno::EINVAL => "the memory was freed, is managed, or has a kind that cannot be pinned",
        Errno::EOPNOTSUPP => "the device does not take such memory",
        _ => "see the kernel log",
    }
}
