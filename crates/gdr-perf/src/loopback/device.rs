//! Which devices to use.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use gdr_rdma::{Device, SoftOptions};

use crate::error::{Error, Result};

/// Where the memory is that the bytes come from, unless said otherwise.
const OTHER_LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Opens the devices of both ends in this process: `from` host memory `to` GPU memory. Without
/// `to` that is 127.0.0.1, without `from` 127.0.0.2, or for other addresses the same one as `to`.
/// Two devices at one address differ in their port: the first has `port`, the other a free one.
///
/// # Errors
/// Those of [`Device::soft_with`].
pub fn open_both(from: Option<IpAddr>, to: Option<IpAddr>, port: u16) -> Result<(Device, Device)> {
    let to = to.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let from = from.unwrap_or_else(|| beside(to));
    let receiver = open(to, port)?;
    let sender = open(from, if from == to { 0 } else { port })?;
    Ok((sender, receiver))
}

/// Opens the device of the end that listens on `listen`: at `to`, else at the same address.
///
/// # Errors
/// [`Error::Settings`] when no single address is named; those of [`Device::soft_with`].
pub fn open_listener(listen: IpAddr, to: Option<IpAddr>, port: u16) -> Result<Device> {
    let address = to.unwrap_or(listen);
    if address.is_unspecified() {
        return Err(Error::Settings(
            "listening on every address leaves open which one RDMA is to use: give it by --to"
                .into(),
        ));
    }
    open(address, port)
}

/// Opens the device of the end that connects to `peer`: at `from`, else at the address from which
/// this host reaches the peer. Where that is the peer's own, this end has a free port.
///
/// # Errors
/// Those of [`Device::soft_with`]; [`gdr_rdma::Error::Os`] when there is no way to the peer.
pub fn open_connector(peer: IpAddr, from: Option<IpAddr>, port: u16) -> Result<Device> {
    let from = match from {
        Some(from) => from,
        None if peer.is_loopback() => beside(peer),
        None => local_address_towards(peer)?,
    };
    open(from, if from == peer { 0 } else { port })
}

fn open(address: IpAddr, port: u16) -> Result<Device> {
    let options = SoftOptions::new(address).port(port).busy_poll(BUSY_POLL);
    Ok(Device::soft_with(options)?)
}

/// How long a device's thread stays awake for what comes next. As a network card does not sleep
/// between two steps of an iteration, what is timed should not begin with a thread's waking up.
const BUSY_POLL: Duration = Duration::from_millis(2);

/// Another address of this host, or the same where no other is sure to exist.
fn beside(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(ip) if ip.is_loopback() && address != OTHER_LOOPBACK => OTHER_LOOPBACK,
        _ => address,
    }
}

/// Connecting a UDP socket sends nothing; it looks the route up.
fn local_address_towards(peer: IpAddr) -> Result<IpAddr> {
    let any: SocketAddr = match peer {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        IpAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let local = UdpSocket::bind(any).and_then(|socket| {
        socket.connect((peer, 4791))?;
        socket.local_addr()
    });
    let failed = |source| gdr_rdma::Error::Os {
        call: "looking up the route to the peer",
        source,
    };
    Ok(local.map_err(failed)?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_is_beside_the_first() {
        let [one, two, six]: [IpAddr; 3] =
            ["127.0.0.1", "127.0.0.2", "::1"].map(|text| text.parse().unwrap());
        assert_eq!(beside(one), two);
        assert_eq!(beside(two), two);
        assert_eq!(beside(six), six);
        assert_eq!(local_address_towards(one).unwrap(), one);
    }

    #[test]
    fn listening_everywhere_needs_an_address_for_rdma() {
        let everywhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let refused = open_listener(everywhere, None, 0);
        assert!(matches!(refused, Err(Error::Settings(_))));
        open_listener(everywhere, Some(Ipv4Addr::LOCALHOST.into()), 0).unwrap();
    }

    #[test]
    fn two_devices_at_one_address_have_two_ports() {
        let address = Some(Ipv4Addr::LOCALHOST.into());
        let (from, to) = open_both(address, address, 0).unwrap();
        assert_ne!(from.address(), to.address());
    }
}
