//! rdma_cm ports, shared by the processes of a network namespace as in the kernel's connection manager.
//!
//! A bound port is an abstract Unix name that encodes the request, so it becomes free when its process ends, however it
//! ends. To bind, a process reads all names (`/proc/net/unix`) and claims one, while holding the name `LOCK`. Without
//! that file, two exclusive requests for one address and port still map to the same name. Other users of the host can
//! take names, and thereby ports, just as they can take socket ports.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use gdr_udp::{Deadline, ProcessFd, local_socket};
use rustix::net::{SocketAddrUnix, SocketType};

const PREFIX: &str = "gdr-roce/port/";
const LOCK: &str = "gdr-roce/port/lock";
/// After this, others proceed without the lock, in case its holder is stopped.
const LOCK_LIMIT: Duration = Duration::from_secs(1);
const LOCK_INTERVAL: Duration = Duration::from_micros(200);
/// The socket names in this thread's namespace.
const NAMES: &str = "/proc/thread-self/net/unix";
/// The ephemeral port range.
const FIRST_PORT: u16 = 32768;
const PORTS: u16 = 28232;

/// Whether several identifiers may share an address and port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reuse {
    /// No other identifier may bind it.
    Exclusive,
    /// Others may bind it if they also allow sharing (`RDMA_OPTION_ID_REUSEADDR`).
    Shared,
}

/// The address families that a binding covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Families {
    /// Only its own: an IPv4 address, or any with `RDMA_OPTION_ID_AFONLY`.
    Own,
    /// Both: an IPv6 address that also accepts IPv4.
    Both,
}

/// Why a port could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// Another identifier has this address and port.
    #[error("binding a port: another identifier is bound to this address and port")]
    InUse,
    /// The wildcard address is requested and the port is bound at another one, or the reverse.
    #[error(
        "binding a port: the port is bound at the wildcard address, or the wildcard address is requested \
         and the port is bound at another one"
    )]
    NotAvailable,
    /// No ephemeral port is free.
    #[error("binding a port: no ephemeral port is free")]
    NonFree,
    /// The operating system refused.
    #[error("binding a port: {0}")]
    Os(#[from] io::Error),
}

/// A request for a port, or a bound one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortRequest {
    space: u16,
    address: SocketAddr,
    reuse: Reuse,
    families: Families,
}

impl PortRequest {
    /// Returns a request for a port of a port space (`RDMA_PS_TCP` and so on) at an address. The unspecified address
    /// covers all, and port 0 picks a free port. The port is exclusive, and at an IPv6 address covers both families.
    pub const fn new(space: u16, address: SocketAddr) -> Self {
        let families = match address {
            SocketAddr::V4(_) => Families::Own,
            SocketAddr::V6(_) => Families::Both,
        };
        Self {
            space,
            address,
            reuse: Reuse::Exclusive,
            families,
        }
    }

    /// Sets whether others may bind it.
    #[must_use]
    pub const fn reuse(self, reuse: Reuse) -> Self {
        Self { reuse, ..self }
    }

    /// Sets which families an IPv6 address covers.
    #[must_use]
    pub const fn families(self, families: Families) -> Self {
        match self.address {
            SocketAddr::V4(_) => self,
            SocketAddr::V6(_) => Self { families, ..self },
        }
    }

    /// Checks for a conflict by the kernel's rules (`cma_check_port` of drivers/infiniband/core/cma.c).
    fn check(&self, bound: &Self) -> Result<(), PortError> {
        let [own, other] = [self, bound].map(|it| it.address.ip());
        let are_shared = [self, bound].iter().all(|it| it.reuse == Reuse::Shared);
        let are_of_one = [self, bound].iter().all(|it| it.families == Families::Own);
        let is_apart = self.space != bound.space || self.address.port() != bound.address.port();
        if is_apart || are_shared || are_of_one && own.is_ipv4() != other.is_ipv4() {
            return Ok(());
        }
        if own.is_unspecified() || other.is_unspecified() {
            return Err(PortError::NotAvailable);
        }
        match own == other {
            true => Err(PortError::InUse),
            false => Ok(()),
        }
    }

    fn name(&self) -> Result<String, PortError> {
        let Self { space, address, .. } = self;
        let families = match self.families {
            Families::Own => "own",
            Families::Both => "both",
        };
        let (ip, port) = (address.ip(), address.port());
        let name = format!("{PREFIX}{space:x}/{port}/{ip}/{families}");
        Ok(match self.reuse {
            Reuse::Exclusive => name,
            Reuse::Shared => {
                let number = gdr_nic::random_number().map_err(|_| PortError::NonFree)?;
                format!("{name}/shared/{number:08x}")
            }
        })
    }

    /// Parses a name. Other users may create meaningless ones.
    fn parse(name: &str) -> Option<Self> {
        let mut fields = name.strip_prefix(PREFIX)?.split('/');
        let space = u16::from_str_radix(fields.next()?, 16).ok()?;
        let port = fields.next()?.parse().ok()?;
        let ip: IpAddr = fields.next()?.parse().ok()?;
        let families = match fields.next()? {
            "own" => Families::Own,
            "both" => Families::Both,
            _ => return None,
        };
        let reuse = match fields.next() {
            None => Reuse::Exclusive,
            Some(_) => Reuse::Shared,
        };
        Some(Self {
            space,
            address: SocketAddr::new(ip, port),
            reuse,
            families,
        })
    }
}

/// A port held by an identifier. Dropping it, or the end of the process, frees it.
#[derive(Debug)]
pub struct BoundPort {
    request: PortRequest,
    name: String,
    _socket: ProcessFd,
}

impl BoundPort {
    /// Binds a port.
    ///
    /// # Errors
    ///
    /// [`PortError`].
    pub fn bind(request: PortRequest) -> Result<Self, PortError> {
        let _lock = locked();
        let bound = bound();
        Self::take(with_port(request, &bound)?, &bound)
    }

    /// Makes the port exclusive, as listening requires.
    ///
    /// # Errors
    ///
    /// [`PortError`], if another identifier has it.
    pub fn make_exclusive(&mut self) -> Result<(), PortError> {
        if self.request.reuse == Reuse::Shared {
            let _lock = locked();
            let mut bound = bound();
            bound.retain(|(name, _)| *name != self.name);
            *self = Self::take(self.request.reuse(Reuse::Exclusive), &bound)?;
        }
        Ok(())
    }

    /// Returns the address, with the actual port.
    pub const fn address(&self) -> SocketAddr {
        self.request.address
    }

    fn take(request: PortRequest, bound: &[(String, PortRequest)]) -> Result<Self, PortError> {
        for (_, other) in bound {
            request.check(other)?;
        }
        let name = request.name()?;
        let socket = named(&name)?.ok_or(PortError::InUse)?;
        Ok(Self {
            request,
            name,
            _socket: socket,
        })
    }
}

/// Returns a port for a connecting identifier. It need not be free, as no peer connects to it.
///
/// # Errors
///
/// [`PortError::NonFree`].
pub fn ephemeral_port() -> Result<u16, PortError> {
    let number = gdr_nic::random_number().map_err(|_| PortError::NonFree)?;
    Ok(FIRST_PORT + (number % u32::from(PORTS)) as u16)
}

/// Replaces port 0 by one that no identifier holds at any address.
fn with_port(
    request: PortRequest,
    bound: &[(String, PortRequest)],
) -> Result<PortRequest, PortError> {
    if request.address.port() != 0 {
        return Ok(request);
    }
    let first = ephemeral_port()?;
    let is_free = |port: &u16| {
        let mut others = bound.iter().map(|(_, it)| it);
        !others.any(|it| it.space == request.space && it.address.port() == *port)
    };
    let mut ports = (first..FIRST_PORT + PORTS).chain(FIRST_PORT..first);
    let port = ports.find(is_free).ok_or(PortError::NonFree)?;
    let address = SocketAddr::new(request.address.ip(), port);
    Ok(PortRequest { address, ..request })
}

/// Returns the ports bound by processes of this namespace.
fn bound() -> Vec<(String, PortRequest)> {
    let text = fs::read(NAMES).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let names = text.lines().filter_map(|line| line.split_once(" @"));
    names
        .filter_map(|(_, name)| Some((name.to_owned(), PortRequest::parse(name)?)))
        .collect()
}

/// Binds a socket to a name. Returns `None` if the name is taken.
fn named(name: &str) -> Result<Option<ProcessFd>, PortError> {
    let listen = || {
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        local_socket::listen(&name, SocketType::SEQPACKET, 0)
    };
    listen().map_err(|errno| PortError::Os(errno.into()))
}

fn locked() -> Option<ProcessFd> {
    let deadline = Deadline::after(LOCK_LIMIT);
    loop {
        match named(LOCK) {
            Ok(Some(lock)) => return Some(lock),
            Ok(None) if !deadline.has_passed() => thread::sleep(LOCK_INTERVAL),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: u16 = 0x0106;
    const UDP: u16 = 0x0111;

    fn request(address: &str) -> PortRequest {
        PortRequest::new(TCP, address.parse().unwrap())
    }

    /// Returns the outcome of the second request.
    fn outcome(first: PortRequest, second: PortRequest) -> &'static str {
        match second.check(&first) {
            Ok(()) => "bound",
            Err(PortError::InUse) => "in use",
            Err(PortError::NotAvailable) => "not available",
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn ports_are_exclusive_as_the_kernel_has_them() {
        let (any, any6) = (request("0.0.0.0:7"), request("[::]:7"));
        let (one, one6) = (request("10.0.0.1:7"), request("[fd00::1]:7"));
        let own6 = any6.families(Families::Own);
        let shared = |it: PortRequest| it.reuse(Reuse::Shared);
        for (first, second, expected) in [
            (one, one, "in use"),
            (one, request("10.0.0.2:7"), "bound"),
            (one, request("10.0.0.1:8"), "bound"),
            (one, PortRequest::new(UDP, one.address), "bound"),
            (any, any, "not available"),
            (any, one, "not available"),
            (any, request("0.0.0.0:8"), "bound"),
            (any6, one, "not available"),
            (any6, one6, "not available"),
            (own6, one, "bound"),
            (own6, any, "bound"),
            (own6, one6, "not available"),
            (one6, one, "bound"),
            (shared(one), shared(one), "bound"),
            (shared(any), shared(one), "bound"),
            (shared(one), one, "in use"),
            (shared(any), one, "not available"),
        ] {
            assert_eq!(outcome(first, second), expected, "{first:?} {second:?}");
            assert_eq!(outcome(second, first), expected, "{second:?} {first:?}");
        }
    }

    #[test]
    fn a_name_says_what_is_bound() {
        for address in ["10.0.0.1:7", "[fd00::1]:65535", "0.0.0.0:1"] {
            for reuse in [Reuse::Exclusive, Reuse::Shared] {
                let bound = request(address).families(Families::Own).reuse(reuse);
                let name = bound.name().unwrap();
                assert_eq!(PortRequest::parse(&name), Some(bound), "{name}");
            }
        }
        for other in [
            LOCK,
            "gdr-roce/port/",
            "gdr-roce/port/106/7/::",
            "cm/106/7/::/own",
        ] {
            assert_eq!(PortRequest::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_port_that_is_asked_for_by_0_is_free_at_all_addresses() {
        let all_but = 40000;
        let others = (FIRST_PORT..FIRST_PORT + PORTS).filter(|port| *port != all_but);
        let bound = |port| (String::new(), request(&format!("10.0.0.1:{port}")));
        let mut bound: Vec<_> = others.map(bound).collect();
        let asked = request("10.0.0.2:0");
        let found = with_port(asked, &bound).unwrap();
        assert_eq!(found.address, "10.0.0.2:40000".parse().unwrap());
        bound.push((String::new(), found));
        assert!(matches!(with_port(asked, &bound), Err(PortError::NonFree)));
    }
}
