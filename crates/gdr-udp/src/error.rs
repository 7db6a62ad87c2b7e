//! The crate's error type.

mod port_sharing;

use std::io;
use std::net::{IpAddr, SocketAddr};

pub use self::port_sharing::PortSharingError;

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason for a failure, with a remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum Error {
    /// The UDP port is already in use.
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
    /// Only shared ports have a management queue pair.
    #[error(
        "UDP {address} is not shared, and only shared ports have a management queue pair; share the port"
    )]
    PortNotShared { address: SocketAddr },
    /// The UDP port cannot be shared with other devices.
    #[error("UDP {address} cannot be shared: {reason}")]
    PortSharing {
        address: SocketAddr,
        #[source]
        reason: PortSharingError,
    },
    /// This user may not use the UDP port.
    #[error(
        "binding UDP {address} failed: {source}; ports below 1024 \
         (net.ipv4.ip_unprivileged_port_start) need root or CAP_NET_BIND_SERVICE: use another port"
    )]
    PortDenied {
        address: SocketAddr,
        source: io::Error,
    },
    /// No interface of this host has the address.
    #[error(
        "binding {address} failed: no interface of this host has this address; `ip address` lists \
         the addresses of this host"
    )]
    AddressNotLocal {
        address: SocketAddr,
        source: io::Error,
    },
    /// The address is unspecified or multicast.
    #[error("{0} is not the address of a single interface; use the address that peers send to")]
    AddressNotUnicast(IpAddr),
    /// The group address is not multicast.
    #[error("{0} is not a multicast address; use one in 224.0.0.0/4 (IPv4) or ff00::/8 (IPv6)")]
    NotMulticast(IpAddr),
    /// The two ends of a path have different address families.
    #[error("{local} and {peer} have different address families; use IPv4 or IPv6 on both sides")]
    AddressFamily { local: IpAddr, peer: IpAddr },
    /// There is no route to a peer.
    #[error(
        "packets cannot be sent to {peer}: {source}; {}",
        unreachable_hint(source).unwrap_or("`ip route get` shows the route to it")
    )]
    NoRoute { peer: IpAddr, source: io::Error },
    /// The route to a peer is too narrow for RoCE packets.
    #[error(
        "the route to {peer} has an MTU of {mtu}, which is too small for any RoCE packet; raise it \
         (`ip link set DEVICE mtu 1500`), or use another interface"
    )]
    MtuTooSmall {
        peer: IpAddr,
        /// The MTU of the interface or path, in bytes.
        mtu: u32,
    },
    /// This user may not open a packet socket.
    #[error(
        "a raw packet queue pair was not made: opening a packet socket failed: {source}; it needs \
         CAP_NET_RAW in the network namespace: run the program as root, in a container with \
         `--cap-add NET_RAW`, or in a namespace of its own (`unshare -rn`)"
    )]
    PacketSocketDenied { source: io::Error },
    /// The interface's frames have no Ethernet header.
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
}

/// Returns advice for an address that this host cannot reach.
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
    /// Returns the machine-readable code of this error, such as `port_in_use`.
    ///
    /// Codes are stable: a renamed variant keeps its code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::PortInUse { .. } => "port_in_use",
            Self::PortSharing { .. } => "port_sharing",
            Self::PortDenied { .. } => "port_denied",
            Self::AddressNotLocal { .. } => "address_not_local",
            Self::AddressNotUnicast { .. } => "address_not_unicast",
            Self::AddressFamily { .. } => "address_family",
            Self::NoRoute { .. } => "network_unreachable",
            Self::MtuTooSmall { .. } => "mtu_too_small",
            Self::Os { .. } => "os",
            Self::PortNotShared { .. }
            | Self::NotMulticast(_)
            | Self::PacketSocketDenied { .. }
            | Self::NotEthernet { .. } => "nic",
        }
    }

    /// Returns the error for a UDP socket that cannot be bound.
    pub(crate) fn binding(address: SocketAddr, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::PortInUse { address, source },
            io::ErrorKind::AddrNotAvailable => Self::AddressNotLocal { address, source },
            io::ErrorKind::PermissionDenied => Self::PortDenied { address, source },
            _ => Self::os("binding a UDP socket", source),
        }
    }

    /// Returns the error of a failed system call.
    pub fn os(call: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Os {
            call,
            source: source.into(),
        }
    }
}
