//! Opening soft devices.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use gdr_rdma::{Device, Mtu, SoftOptions};

use crate::error::{Error, Result, SettingsError};

/// The default address of the sending end.
const OTHER_LOOPBACK: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// How many loopback addresses to try until the port is free.
const TRIES: u8 = 100;

/// Opens the devices of both ends in this process: `from` host memory, `to` GPU memory.
///
/// `to` defaults to 127.0.0.1. `from` defaults to the loopback address after `to`, or to `to` itself if that is not a
/// loopback address. If another process uses the port at a default loopback address, the following addresses are tried.
/// Two devices at one address have different ports: the receiver has `port`, the sender a free one.
///
/// # Errors
/// The errors of [`Device::soft_with`].
pub fn open_both(from: Option<IpAddr>, to: Option<IpAddr>, port: u16) -> Result<(Device, Device)> {
    SoftSettings::new(port).both(from, to)
}

/// Opens the device of the end that listens at `listen`. `to` defaults to the same address.
///
/// # Errors
/// [`Error::Settings`] if no single address is named; the errors of [`Device::soft_with`].
pub fn open_listener(listen: IpAddr, to: Option<IpAddr>, port: u16) -> Result<Device> {
    SoftSettings::new(port).listener(listen, to)
}

/// Opens the device of the end that connects to `peer`. `from` defaults to the address from which this host reaches the
/// peer. If that is the peer's own address, this end uses a free port.
///
/// # Errors
/// The errors of [`Device::soft_with`]; [`gdr_rdma::SocketError::NoRoute`] without a route to the peer.
pub fn open_connector(peer: IpAddr, from: Option<IpAddr>, port: u16) -> Result<Device> {
    SoftSettings::new(port).connector(peer, from)
}

/// Settings that the soft devices of a run share.
#[derive(Clone, Copy, Debug)]
pub(super) struct SoftSettings {
    pub(super) port: u16,
    /// Number of shards of each device; the default of [`SoftOptions::shards`] if `None`.
    pub(super) shards: Option<usize>,
}

impl SoftSettings {
    const fn new(port: u16) -> Self {
        Self { port, shards: None }
    }

    /// Like [`open_both`].
    pub(super) fn both(self, from: Option<IpAddr>, to: Option<IpAddr>) -> Result<(Device, Device)> {
        let receiver = match to {
            Some(to) => self.open(to)?,
            None => self.open_from(Ipv4Addr::LOCALHOST)?,
        };
        let to = receiver.address().ip();
        let sender = match (from, beside(to)) {
            (Some(from), _) => self.open_beside(to, from)?,
            (None, Some(other)) => self.open_from(other)?,
            (None, None) => self.open_beside(to, to)?,
        };
        Ok((sender, receiver))
    }

    /// Like [`open_listener`].
    pub(super) fn listener(self, listen: IpAddr, to: Option<IpAddr>) -> Result<Device> {
        let address = to.unwrap_or(listen);
        if address.is_unspecified() {
            return Err(SettingsError::UnspecifiedAddress.into());
        }
        self.open(address)
    }

    /// Like [`open_connector`].
    pub(super) fn connector(self, peer: IpAddr, from: Option<IpAddr>) -> Result<Device> {
        let from = match (from, beside(peer)) {
            (Some(from), _) => from,
            (None, Some(other)) => return self.open_from(other),
            (None, None) if peer.is_loopback() => peer,
            (None, None) => Device::soft_address_towards(peer)?,
        };
        self.open_beside(peer, from)
    }

    /// Opens a device at `first`, or at the next address where the port is free.
    fn open_from(self, first: Ipv4Addr) -> Result<Device> {
        let mut refusal = None;
        for step in 0..TRIES {
            let address = Ipv4Addr::from_bits(first.to_bits() + u32::from(step));
            match self.open(address.into()) {
                Err(
                    error @ Error::Rdma(gdr_rdma::Error::Nic(gdr_rdma::NicError::Socket(
                        gdr_rdma::SocketError::PortInUse { .. },
                    ))),
                ) => {
                    // Report the error for the first address: rxe uses the port at every address.
                    refusal.get_or_insert(error);
                }
                opened => return opened,
            }
        }
        Err(refusal.unwrap_or_else(|| SettingsError::LoopbackAddresses.into()))
    }

    /// Opens a device at `address`, where the device of `other` uses the port.
    fn open_beside(self, other: IpAddr, address: IpAddr) -> Result<Device> {
        let port = if address == other { 0 } else { self.port };
        Self { port, ..self }.open(address)
    }

    fn open(self, address: IpAddr) -> Result<Device> {
        if let IpAddr::V6(ip) = address
            && ip.is_unicast_link_local()
        {
            return Err(SettingsError::LinkLocal(ip).into());
        }
        let mut options = SoftOptions::new(address)
            .port(self.port)
            .busy_poll(BUSY_POLL);
        if let Some(shards) = self.shards {
            options = options.shards(shards);
        }
        Ok(Device::soft_with(options)?)
    }
}

/// How long a device's thread polls before it sleeps. A network card does not sleep between two steps of an iteration,
/// so the time to wake a thread must not be measured either.
const BUSY_POLL: Duration = Duration::from_millis(2);

/// Returns the address after `address` if that is certain to belong to this host, which holds for IPv4 loopback
/// addresses.
fn beside(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(ip) if ip.is_loopback() => {
            let next = Ipv4Addr::from_bits(ip.to_bits() + 1);
            // Stay clear of the end of 127.0.0.0/8, the broadcast address.
            let room = ip < Ipv4Addr::new(127, 255, 255, 0);
            Some(if room { next } else { OTHER_LOOPBACK })
        }
        _ => None,
    }
}

/// Returns the largest path MTU that works in both directions.
pub(super) fn mutual_mtu(from: &Device, to: &Device) -> Result<Mtu> {
    let there = from.path_mtu(to.address().ip())?;
    let back = to.path_mtu(from.address().ip())?;
    Ok(there.min(back))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_is_beside_the_first() {
        let [one, two, six]: [IpAddr; 3] =
            ["127.0.0.1", "127.0.0.2", "::1"].map(|text| text.parse().unwrap());
        assert_eq!(beside(one).map(IpAddr::from), Some(two));
        assert_eq!(beside(two), Some(Ipv4Addr::new(127, 0, 0, 3)));
        let last = Ipv4Addr::new(127, 255, 255, 254);
        assert_eq!(beside(last.into()), Some(OTHER_LOOPBACK));
        assert_eq!(beside(six), None);
        assert_eq!(Device::soft_address_towards(one).unwrap(), one);
    }

    #[test]
    fn listening_everywhere_needs_an_address_for_rdma() {
        let everywhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let refused = open_listener(everywhere, None, 0);
        assert!(matches!(refused, Err(Error::Settings(_))));
        open_listener(everywhere, Some(Ipv4Addr::LOCALHOST.into()), 0).unwrap();
    }

    #[test]
    fn runs_on_one_host_take_other_loopback_addresses_than_each_other() {
        // A port that is free at the first address, and then taken there.
        let (from, to) = open_both(None, None, 0).unwrap();
        let port = to.address().port();
        let (other_from, other_to) = open_both(None, None, port).unwrap();
        let connector = open_connector(Ipv4Addr::LOCALHOST.into(), None, port).unwrap();
        let all = [&from, &to, &other_from, &other_to, &connector].map(Device::address);
        for (at, address) in all.iter().enumerate() {
            assert!(address.ip().is_loopback());
            assert!(!all[..at].contains(address), "{all:?}");
        }
        // An address that the caller names is not replaced by another.
        let taken = open_both(None, Some(to.address().ip()), port);
        assert!(matches!(
            taken,
            Err(Error::Rdma(gdr_rdma::Error::Nic(
                gdr_rdma::NicError::Socket(gdr_rdma::SocketError::PortInUse { .. })
            )))
        ));
    }

    #[test]
    fn a_link_local_address_is_refused_with_what_to_use_instead() {
        let refused = open_listener("fe80::1".parse().unwrap(), None, 0);
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("IPv4 or a global IPv6 address"), "{text}");
    }

    #[test]
    fn a_peer_that_no_packet_can_be_sent_to_is_named_with_what_to_do() {
        let text = |peer: &str| {
            let error = open_connector(peer.parse().unwrap(), None, 0).unwrap_err();
            error.to_string()
        };
        let broadcast = text("255.255.255.255");
        assert!(broadcast.contains("broadcast"), "{broadcast}");
    }

    #[test]
    fn two_devices_at_one_address_have_two_ports() {
        let address = Some(Ipv4Addr::LOCALHOST.into());
        let (from, to) = open_both(address, address, 0).unwrap();
        assert_ne!(from.address(), to.address());
    }
}
