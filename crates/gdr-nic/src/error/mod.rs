//! Errors.

mod port_sharing;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use gdr_roce::{PostError, StateError};

pub use self::port_sharing::PortSharingError;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What failed, why, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum Error {
    /// A buffer or region of no bytes.
    #[error("a buffer of no bytes cannot be registered; give it at least one")]
    EmptyBuffer,
    /// A range that exceeds its buffer or region.
    #[error("{wanted} bytes at offset {offset} exceed the {len} bytes there are; nothing was done")]
    OutOfRange {
        /// The first byte of the range.
        offset: u64,
        /// The length of the range.
        wanted: u64,
        /// The length of the buffer or region.
        len: u64,
    },
    /// A word at an address that is not a multiple of its size.
    #[error("offset {offset} is not a multiple of {alignment}; align the word")]
    Misaligned { offset: u64, alignment: u64 },
    /// A mapping and an allocation that are not the same memory.
    #[error(
        "the mapping shows GPU memory at {mapped:#x}, which is not all in the allocation at \
         {allocated:#x}; map that allocation"
    )]
    MappedElsewhere {
        /// The GPU address at which the mapping begins.
        mapped: u64,
        /// The GPU address at which the allocation begins.
        allocated: u64,
    },
    /// Objects of two devices or protection domains in one call.
    #[error("{0}")]
    Foreign(Foreign),
    /// More completions than a completion queue holds; those beyond are lost.
    #[error(
        "the completion queue overran its {capacity} entries and completions are lost; poll more \
         often, or make it as large as all requests of its queue pairs"
    )]
    CompletionQueueOverrun { capacity: usize },
    /// A request was not posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A queue pair did not change its state.
    #[error(transparent)]
    State(#[from] StateError),
    /// The UDP port is in use.
    #[error(
        "binding UDP {address} failed: the port is in use, by another engine at this address (use \
         another one; a host has 127.0.0.2 and so on; or let both share the port), or by Linux's \
         rxe, which takes it at every address (`rdma link` shows it; remove its links, or use a \
         network namespace)"
    )]
    PortInUse {
        address: SocketAddr,
        source: io::Error,
    },
    /// The management queue pair is of ports that are shared only.
    #[error("UDP {address} is not shared, so it has no management queue pair; share the port")]
    PortNotShared { address: SocketAddr },
    /// The UDP port cannot be shared with other devices.
    #[error("UDP {address} cannot be shared: {reason}")]
    PortSharing {
        address: SocketAddr,
        #[source]
        reason: PortSharingError,
    },
    /// The environment variable with the number of shards has another value.
    #[error("{variable} is `{value}`: give a number from 1 to {most}, or unset it")]
    ShardCount {
        variable: &'static str,
        value: String,
        most: usize,
    },
    /// The environment variable of the wires has none of their names.
    #[error("{variable} is `{value}`; set it to `udp` or `all`, or unset it")]
    WireName {
        variable: &'static str,
        value: String,
    },
    /// The scenario of faults cannot be used.
    #[error("{variable} cannot be used: {why}")]
    Chaos { variable: &'static str, why: String },
    /// A device has as many queue pairs as there are numbers.
    #[error("a device has at most {most} queue pairs; destroy one, or open another device")]
    TooManyQueuePairs { most: usize },
    /// This user may not use the UDP port.
    #[error(
        "binding UDP {address} failed: {source}; ports below 1024 \
         (net.ipv4.ip_unprivileged_port_start) need root or CAP_NET_BIND_SERVICE: use another port"
    )]
    PortDenied {
        address: SocketAddr,
        source: io::Error,
    },
    /// This host does not have the address.
    #[error(
        "binding {address} failed: no interface of this host has this address; `ip address` lists \
         the addresses of this host"
    )]
    AddressNotLocal {
        address: SocketAddr,
        source: io::Error,
    },
    /// An unspecified or multicast address.
    #[error("{0} is not the address of a single interface; give the address that peers send to")]
    AddressNotUnicast(IpAddr),
    /// Two address families on one path.
    #[error("{local} and {peer} are of different families; use IPv4 or IPv6 on both sides")]
    AddressFamily { local: IpAddr, peer: IpAddr },
    /// There is no route to a peer.
    #[error(
        "packets cannot be sent to {peer}: {source}; {}",
        unreachable_hint(source).unwrap_or("`ip route get` shows the route to it")
    )]
    NoRoute { peer: IpAddr, source: io::Error },
    /// The route to a peer carries no RoCE packets.
    #[error(
        "the route to {peer} has an MTU of {mtu}, which is below RoCE's smallest packet; raise it \
         (`ip link set DEVICE mtu 1500`), or use another interface"
    )]
    MtuTooSmall {
        peer: IpAddr,
        /// The MTU of the interface or the path in bytes.
        mtu: u32,
    },
    /// This user may not open the socket of raw packets.
    #[error(
        "a raw packet queue pair was not made: opening a packet socket failed: {source}; it needs \
         CAP_NET_RAW in the network namespace: run the program as root, in a container with \
         `--cap-add NET_RAW`, or in a namespace of its own (`unshare -rn`)"
    )]
    PacketSocketDenied { source: io::Error },
    /// An interface whose packets have no Ethernet header.
    #[error(
        "a raw packet queue pair was not made: the interface {interface} has the hardware type \
         {hardware_type} and no Ethernet headers; use the address of another interface"
    )]
    NotEthernet {
        interface: String,
        /// `ARPHRD_*` of linux/if_arp.h.
        hardware_type: u16,
    },
    /// A system call failed.
    #[error("{call} failed: {source}")]
    Os {
        call: &'static str,
        source: io::Error,
    },
    /// A device, or an object made from it or a buffer, was used in a forked child.
    #[error(
        "this process was forked from the one that opened the device or made the buffer, which \
         stay with the parent; open a device in this process, after the fork"
    )]
    ForkedChild,
    /// A device whose socket failed.
    #[error("the device failed and moves no more bytes: {why}; drop it and open it again")]
    DeviceFailed { why: String },
    /// A mapping of GPU memory failed.
    #[error(transparent)]
    Copy(#[from] gdr_copy::Error),
    /// CUDA failed.
    #[error(transparent)]
    Cuda(#[from] gdr_cuda::Error),
}

/// An object that belongs to another device or protection domain than the one it is used with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Foreign {
    /// A completion queue of another device.
    CompletionQueue,
    /// A shared receive queue of another protection domain.
    SharedReceiveQueue,
    /// A memory region of another protection domain.
    MemoryRegion,
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CompletionQueue => {
                "a completion queue belongs to another device; use one of the same device"
            }
            Self::SharedReceiveQueue => {
                "a shared receive queue belongs to another protection domain; use one of the same \
                 protection domain"
            }
            Self::MemoryRegion => {
                "a memory region belongs to another protection domain; use one of the same \
                 protection domain"
            }
        })
    }
}

/// What to do if an address cannot be reached from this host.
pub fn unreachable_hint(source: &io::Error) -> Option<&'static str> {
    Some(match source.kind() {
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
            "this host has no route there: check that the interface is up (`ip link`), the \
             loopback interface included, and that `ip route get` finds a route"
        }
        io::ErrorKind::NetworkDown => "the interface is down: `ip link set DEVICE up`",
        io::ErrorKind::PermissionDenied => {
            "it is a broadcast address, or a rule of this host's firewall forbids it: give the \
             peer's own address, and see `nft list ruleset`"
        }
        io::ErrorKind::InvalidInput => {
            "a link-local IPv6 address needs its interface, and a loopback address can be reached \
             only from loopback: use addresses of one network on both sides"
        }
        _ => return None,
    })
}

impl Error {
    /// Returns the code of this error for programs, such as `empty_buffer`.
    ///
    /// A variant that gets another name keeps its code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Copy(error) => error.code(),
            Self::Cuda(error) => error.code(),
            Self::EmptyBuffer { .. } => "empty_buffer",
            Self::OutOfRange { .. } => "out_of_range",
            Self::Misaligned { .. } => "misaligned",
            Self::MappedElsewhere { .. } => "mapped_elsewhere",
            Self::Foreign { .. } => "foreign",
            Self::CompletionQueueOverrun { .. } => "completion_queue_overrun",
            Self::Post { .. } => "post",
            Self::State { .. } => "state",
            Self::PortInUse { .. } => "port_in_use",
            Self::PortSharing { .. } => "port_sharing",
            Self::ShardCount { .. } => "shard_count",
            Self::WireName { .. } => "wire_name",
            Self::TooManyQueuePairs { .. } => "too_many_queue_pairs",
            Self::PortDenied { .. } => "port_denied",
            Self::AddressNotLocal { .. } => "address_not_local",
            Self::AddressNotUnicast { .. } => "address_not_unicast",
            Self::AddressFamily { .. } => "address_family",
            Self::NoRoute { .. } => "network_unreachable",
            Self::MtuTooSmall { .. } => "mtu_too_small",
            Self::ForkedChild { .. } => "forked_child",
            Self::DeviceFailed { .. } => "device_failed",
            Self::Os { .. } => "os",
            Self::PortNotShared { .. }
            | Self::Chaos { .. }
            | Self::PacketSocketDenied { .. }
            | Self::NotEthernet { .. } => "nic",
        }
    }

    /// The error of a UDP socket that cannot be bound.
    pub(crate) fn binding(address: SocketAddr, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::PortInUse { address, source },
            io::ErrorKind::AddrNotAvailable => Self::AddressNotLocal { address, source },
            io::ErrorKind::PermissionDenied => Self::PortDenied { address, source },
            _ => Self::os("binding a UDP socket", source),
        }
    }

    /// The error of a system call.
    pub fn os(call: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Os {
            call,
            source: source.into(),
        }
    }
}
