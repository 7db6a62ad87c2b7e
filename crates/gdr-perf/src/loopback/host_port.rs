//! Name or address of a peer.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use gdr_rdma::Device;

use crate::error::{Error, Result, SettingsError};

/// The default TCP port of the connection setup.
pub const SETUP_PORT: u16 = 4791;

/// A host, by name or address, and a TCP port: `gpu-node`, `gpu-node:4791`, `10.0.0.1`,
/// `[2001:db8::1]:4791`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    host: String,
    port: u16,
}

impl HostPort {
    /// Returns the same host with another port.
    #[must_use]
    pub fn with_port(self, port: u16) -> Self {
        Self { port, ..self }
    }

    /// Resolves the addresses of the host, in the resolver's order.
    ///
    /// # Errors
    /// [`Error::Host`] if the name is unknown, or the resolver does not answer within `limit`.
    pub fn resolve(&self, limit: Duration) -> Result<Vec<SocketAddr>> {
        let addresses = resolve(&self.host, limit)?.into_iter();
        Ok(addresses
            .map(|address| SocketAddr::new(address, self.port))
            .collect())
    }
}

impl From<SocketAddr> for HostPort {
    fn from(address: SocketAddr) -> Self {
        Self {
            host: address.ip().to_string(),
            port: address.port(),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// A text that does not name a host and a port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidHostPort {
    /// Neither a name nor an address.
    #[error(
        "`{0}` is not a host: use a form like gpu-node, 10.0.0.1, gpu-node:4791 or [2001:db8::1]:4791"
    )]
    NotAHost(String),
    /// A link-local address.
    #[error(
        "`{0}` is a link-local address, which RDMA over UDP cannot use here: use an IPv4 or a \
         global IPv6 address of the same interface"
    )]
    LinkLocal(String),
}

impl FromStr for HostPort {
    type Err = InvalidHostPort;

    fn from_str(text: &str) -> Result<Self, InvalidHostPort> {
        let wrong = || InvalidHostPort::NotAHost(text.to_owned());
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
            (host, port)
        } else {
            match text.match_indices(':').count() {
                1 => text.split_at(text.find(':').unwrap_or(text.len())),
                // An IPv6 address contains several colons.
                _ => (text, ""),
            }
        };
        let port = match port.strip_prefix(':') {
            Some(port) => port.parse().map_err(|_| wrong())?,
            None if port.is_empty() => SETUP_PORT,
            None => return Err(wrong()),
        };
        if host.contains('%') || is_link_local(host) {
            return Err(InvalidHostPort::LinkLocal(text.to_owned()));
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        let is_host = host.parse::<IpAddr>().is_ok() || host.chars().all(is_name);
        if host.is_empty() || !is_host {
            return Err(wrong());
        }
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }
}

fn is_link_local(host: &str) -> bool {
    matches!(host.parse(), Ok(IpAddr::V6(ip)) if ip.is_unicast_link_local())
}

/// Returns the addresses of a host, without those that need a scope (the name of an interface).
fn resolve(host: &str, limit: Duration) -> Result<Vec<IpAddr>> {
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    let unknown = |why: String| Error::Host {
        host: host.to_owned(),
        why,
    };
    let (send, receive) = mpsc::channel();
    let asked = host.to_owned();
    // The resolver's own timeouts are minutes long; its thread may outlive this call.
    thread::spawn(move || {
        let found = (asked.as_str(), 0).to_socket_addrs().map(Vec::from_iter);
        let _ = send.send(found);
    });
    let found = match receive.recv_timeout(limit) {
        Ok(found) => found.map_err(|error| unknown(error.to_string()))?,
        Err(_) => {
            let why = format!("the resolver did not answer within {} s", limit.as_secs());
            return Err(unknown(why));
        }
    };
    let mut addresses = Vec::new();
    for ip in found.iter().map(SocketAddr::ip) {
        let usable = !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        if usable && !addresses.contains(&ip) {
            addresses.push(ip);
        }
    }
    if addresses.is_empty() {
        return Err(unknown("it has no usable address".to_owned()));
    }
    Ok(addresses)
}

/// Returns whether a name or an address stands for this host, which holds for its host name, with or without the
/// domain, and for its addresses. A name that does not resolve within `limit` does not.
pub fn is_this_host(name: &str, limit: Duration) -> bool {
    if let Ok(ip) = name.parse::<IpAddr>() {
        let own = Device::list_soft().unwrap_or_default();
        return ip.is_loopback() || own.iter().any(|soft| soft.address == ip);
    }
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    if !name.is_empty() && short(name) == short(own.trim()) {
        return true;
    }
    matches!(own_address(name, limit), Ok(Some(_)))
}

/// Returns the address of this host that a name stands for: the name of an interface or of a host.
///
/// # Errors
/// [`Error::Settings`] for the name of another host. An unknown name is `Ok(None)`.
pub(super) fn own_address(name: &str, limit: Duration) -> Result<Option<IpAddr>> {
    let own = Device::list_soft()?;
    let mut of_interface: Vec<IpAddr> = own
        .iter()
        .filter(|soft| soft.interface == name || has_mac(&soft.interface, name))
        .map(|soft| soft.address)
        .collect();
    // IPv4 first, as with GIDs.
    of_interface.sort_by_key(IpAddr::is_ipv6);
    if let Some(address) = of_interface.first() {
        return Ok(Some(*address));
    }
    // Kernel devices have underscores in their names (mlx5_0), host names do not.
    if name.contains(['_', ':']) {
        return Ok(None);
    }
    let Ok(addresses) = resolve(name, limit) else {
        return Ok(None);
    };
    let is_own = |ip: &IpAddr| ip.is_loopback() || own.iter().any(|soft| soft.address == *ip);
    match addresses.iter().find(|ip| is_own(ip)) {
        Some(address) => Ok(Some(*address)),
        None => Err(SettingsError::OtherHost {
            name: name.to_owned(),
            address: addresses[0],
        }
        .into()),
    }
}

/// Returns whether `text` is the MAC address of an interface, as `ip`, `ethtool` or Windows write
/// it.
fn has_mac(interface: &str, text: &str) -> bool {
    let path = format!("/sys/class/net/{interface}/address");
    std::fs::read_to_string(path)
        .is_ok_and(|mac| mac.trim().eq_ignore_ascii_case(&text.replace('-', ":")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    fn parse(text: &str) -> String {
        text.parse::<HostPort>().unwrap().to_string()
    }

    #[test]
    fn a_host_is_a_name_or_an_address_with_a_port_or_the_usual_one() {
        for (text, expected) in [
            ("10.0.0.1", "10.0.0.1:4791"),
            ("10.0.0.1:5", "10.0.0.1:5"),
            ("::1", "[::1]:4791"),
            ("[::1]:5", "[::1]:5"),
            ("[2001:db8::1]", "[2001:db8::1]:4791"),
            ("gpu-node", "gpu-node:4791"),
            ("gpu-node.example:80", "gpu-node.example:80"),
        ] {
            assert_eq!(parse(text), expected);
        }
        for text in [
            "",
            ":5",
            "a b",
            "10.0.0.1:x",
            "10.0.0.1:70000",
            "[::1",
            "[::1]5",
            "host\n",
            "é",
        ] {
            assert!(text.parse::<HostPort>().is_err(), "{text}");
        }
        for text in ["fe80::1", "[fe80::1%eth0]:4791", "fe80::1%eth0"] {
            let error = text.parse::<HostPort>().unwrap_err().to_string();
            assert!(error.contains("a global IPv6 address"), "{error}");
        }
    }

    #[test]
    fn names_are_resolved_and_unknown_ones_named() {
        let local: HostPort = "localhost:7".parse().unwrap();
        let addresses = local.resolve(SOON).unwrap();
        assert!(
            addresses.iter().all(|it| it.ip().is_loopback()),
            "{addresses:?}"
        );
        assert!(addresses.iter().all(|it| it.port() == 7));
        let nowhere: HostPort = "nowhere.invalid".parse().unwrap();
        let error = nowhere.resolve(SOON).unwrap_err().to_string();
        assert!(error.contains("nowhere.invalid"), "{error}");
    }

    #[test]
    fn an_interface_and_a_name_of_this_host_are_its_addresses() {
        let loopback = own_address("lo", SOON).unwrap().unwrap();
        assert!(loopback.is_ipv4() && loopback.is_loopback());
        assert!(
            own_address("localhost", SOON)
                .unwrap()
                .unwrap()
                .is_loopback()
        );
        assert_eq!(own_address("mlx5_77", SOON).unwrap(), None);
        assert_eq!(own_address("02:00:5e:10:00:01", SOON).unwrap(), None);
        // An interface with a unique MAC address can be found by it.
        for own in Device::list_soft().unwrap() {
            let path = format!("/sys/class/net/{}/address", own.interface);
            let Ok(mac) = std::fs::read_to_string(path) else {
                continue;
            };
            let mac = mac.trim().to_uppercase();
            if mac.is_empty() || mac.ends_with("00:00:00") {
                continue;
            }
            for text in [mac.replace(':', "-"), mac] {
                assert!(own_address(&text, SOON).unwrap().is_some(), "{text}");
            }
        }
    }

    #[test]
    fn this_host_is_known_by_its_name_and_its_addresses() {
        let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        for name in [own.trim(), "127.0.0.3", "::1", "localhost"] {
            assert!(is_this_host(name, SOON), "{name}");
        }
        for name in ["", "198.51.100.7", "nowhere.invalid"] {
            assert!(!is_this_host(name, SOON), "{name}");
        }
    }
}
