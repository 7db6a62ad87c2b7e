//! The addresses and ports of identifiers, and the devices that have them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use gdr_cm::ephemeral_port;

use super::abi::Event;
use super::channel::Channel;
use super::id::Step;
use super::state::State;
use crate::device::Device;
use crate::errno::Errno;

/// Returns whether an address stands for any. As in the kernel, one of loopback does: libfabric binds to it. One
/// that a device has stands for that.
pub(super) fn is_any(ip: IpAddr) -> bool {
    ip.is_unspecified() || ip.is_loopback() && Device::at(ip).is_none()
}

/// The address whose port is bound: an unspecified one in place of any that stands for all.
fn port_address(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        ip if !is_any(ip) => ip,
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, address.port())
}

pub(super) fn bind(
    state: &mut State,
    channel: &Arc<Channel>,
    handle: u32,
    address: Option<SocketAddr>,
) -> Result<(), Errno> {
    let address = address.ok_or(Errno::INVAL)?;
    let id = state.id(channel, handle)?;
    if id.step != Step::New || id.source.is_some() {
        return Err(Errno::INVAL);
    }
    let device = match address.ip() {
        any if is_any(any) => None,
        ip => {
            let device = Device::at(ip).ok_or(Errno::NODEV)?;
            state.agent(&device)?;
            Some(device.index())
        }
    };
    let id = state.id(channel, handle)?;
    let bound = id.bind(port_address(address))?;
    id.source = Some(SocketAddr::new(address.ip(), bound.port()));
    id.device = device;
    Ok(())
}

/// The device from which packets go to an address.
fn device_to(source: Option<IpAddr>, destination: IpAddr) -> Option<Arc<Device>> {
    if let Some(source) = source {
        return Device::at(source);
    }
    let any = match destination {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    // The kernel selects the source by its routes; nothing is sent.
    let routed = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((destination, 1))?;
        socket.local_addr()
    });
    let routed = routed.ok().and_then(|local| Device::at(local.ip()));
    // Any loopback address can reach the others. No route leads from them to a group, but the group can be
    // reached.
    let is_near = destination.is_loopback() || destination.is_multicast();
    let on_loopback = |device: &&Arc<Device>| {
        let own = device.nic().address;
        own.is_loopback() && is_near && own.is_ipv4() == destination.is_ipv4()
    };
    routed.or_else(|| Device::all().iter().find(on_loopback).cloned())
}

pub(super) fn resolve_address(
    state: &mut State,
    channel: &Arc<Channel>,
    handle: u32,
    (source, destination): (Option<SocketAddr>, Option<SocketAddr>),
) -> Result<(), Errno> {
    let destination = destination.ok_or(Errno::INVAL)?;
    let id = state.id(channel, handle)?;
    if id.step != Step::New {
        return Err(Errno::INVAL);
    }
    let bound = id.source.or(source);
    let given = bound.map(|it| it.ip()).filter(|ip| !is_any(*ip));
    let Some(device) = device_to(given, destination.ip()) else {
        state.report(handle, Event::AddrError, -libc::ENODEV);
        return Ok(());
    };
    state.agent(&device)?;
    let own = device.nic().address;
    let id = state.id(channel, handle)?;
    let port = match bound.map_or(0, |it| it.port()) {
        0 => ephemeral_port()?,
        port if id.port.is_some() => port,
        port => id.bind(SocketAddr::new(own, port))?.port(),
    };
    let source = SocketAddr::new(own, port);
    id.source = Some(source);
    id.destination = Some(destination);
    id.device = Some(device.index());
    id.step = Step::AddressResolved;
    state.report(handle, Event::AddrResolved, 0);
    Ok(())
}
