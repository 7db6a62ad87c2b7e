//! A netlink socket that tracks a device's interface.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::link_filter;
use super::link_state::{LinkCondition, LinkState, is_own};
use super::route_message::{Interface, interface, kind, request};
use crate::address::SoftAddress;
use crate::filter;
use crate::process_fd::ProcessFd;

/// The buffer size for the description of an interface.
const ROOM: usize = 1 << 14;
/// The time limit of a query. The kernel answers during the request.
const LIMIT: Duration = Duration::from_secs(5);
/// The maximum number of rounds that follow a state which keeps changing.
const MOST_CHANGES: usize = 8;

/// A change of a device's interface or address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkEvent {
    /// The interface can carry packets again (`IBV_EVENT_PORT_ACTIVE`).
    Up,
    /// The interface can no longer carry packets (`IBV_EVENT_PORT_ERR`).
    Down,
    /// The address was removed or added back (`IBV_EVENT_GID_CHANGE`).
    AddressChanged,
}

/// Tracks the interface and address of a device.
#[derive(Debug)]
pub struct LinkWatch {
    device: SoftAddress,
    state: LinkState,
    /// The socket for queries. Without it the state never changes.
    requests: Option<ProcessFd>,
    /// The socket for the kernel's change notifications.
    reports: Option<Reports>,
    room: Box<[u8]>,
}

#[derive(Debug)]
struct Reports {
    socket: ProcessFd,
    /// The state that the current filter was built for.
    filtered: Option<Filtered>,
}

/// The inputs of a filter: activity, interface index, presence of the address.
type Filtered = (bool, u32, bool);

impl LinkWatch {
    /// Starts tracking the interface of a device. If this process cannot open netlink sockets, the interface counts as
    /// active.
    pub fn new(device: &SoftAddress) -> Self {
        let unfollowed = |error: &io::Error| {
            tracing::debug!(%error, interface = device.interface, "the link is not followed");
        };
        let mut watch = Self {
            device: device.clone(),
            state: LinkState::assumed(device),
            requests: requests().inspect_err(unfollowed).ok(),
            reports: reports().inspect_err(unfollowed).ok(),
            room: vec![0; ROOM].into(),
        };
        watch.state = watch.read();
        watch.follow(&mut |_| {});
        watch
    }

    /// Returns a descriptor that becomes readable when there may be events. It stays open as long as `self`, unless the
    /// kernel fails.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.reports.as_ref().map(|reports| reports.socket.as_fd())
    }

    /// Returns the current state, after calling `on_event` for each change since the last call, in order.
    pub fn poll(&mut self, on_event: &mut dyn FnMut(LinkEvent)) -> LinkState {
        let (mut link, mut address) = (false, false);
        self.drain(|kind| match kind {
            libc::RTM_NEWLINK => link = true,
            _ => address = true,
        });
        if link || address {
            // The filter passed a report of the opposite of the known state. If the known state holds again, it changed
            // twice. This yields an event for every time that the descriptor became readable.
            let now = self.read();
            let mut between = self.state;
            if link && now.is_active() == between.is_active() {
                between.condition = match between.is_active() {
                    true => LinkCondition::NoCarrier,
                    false => LinkCondition::Active,
                };
            }
            between.has_address ^= address && now.has_address == between.has_address;
            self.change(between, on_event);
        }
        self.follow(on_event);
        self.state
    }

    /// Reads the state and rearms the notification filter for it, until the two agree.
    fn follow(&mut self, on_event: &mut dyn FnMut(LinkEvent)) {
        for _ in 0..MOST_CHANGES {
            let now = self.read();
            self.change(now, on_event);
            let wanted = (now.is_active(), now.interface, now.has_address);
            let Some(reports) = &mut self.reports else {
                return;
            };
            if reports.filtered == Some(wanted) {
                return;
            }
            let program = link_filter::program(&self.device, &now);
            if let Err(error) = filter::attach(reports.socket.as_fd(), &program) {
                tracing::debug!(%error, "changes of the link are not reported");
                self.reports = None;
                return;
            }
            reports.filtered = Some(wanted);
            // Whatever passed the former filter is already reflected in `now`.
            self.drain(|_| {});
        }
    }

    fn change(&mut self, now: LinkState, on_event: &mut dyn FnMut(LinkEvent)) {
        let before = std::mem::replace(&mut self.state, now);
        match (before.is_active(), now.is_active()) {
            (false, true) => on_event(LinkEvent::Up),
            (true, false) => on_event(LinkEvent::Down),
            _ => {}
        }
        if before.has_address != now.has_address {
            on_event(LinkEvent::AddressChanged);
        }
    }

    /// Queries the kernel.
    fn read(&mut self) -> LinkState {
        let known = self.state.interface;
        let asked = match self.ask(known) {
            // The interface may have been recreated under another index.
            Ok(None) if known != 0 => self.ask(0),
            asked => asked,
        };
        let address = self.device.address;
        let mut state = match asked {
            Ok(found) => self.state.with_interface(found, address),
            Err(_) => self.state,
        };
        state.has_address = is_own(address);
        state
    }

    /// Queries the interface with this index, or with the device's interface name if the index is 0.
    fn ask(&mut self, index: u32) -> io::Result<Option<Interface>> {
        let Some(socket) = &self.requests else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let request = request(index, &self.device.interface);
        rustix::net::send(socket, &request, SendFlags::empty())?;
        let (len, _) = rustix::net::recv(socket, &mut *self.room, RecvFlags::empty())?;
        Ok(interface(self.room.get(..len).unwrap_or_default()))
    }

    /// Reads the queued notifications.
    fn drain(&mut self, mut on_report: impl FnMut(u16)) {
        while let Some(reports) = &self.reports {
            match rustix::net::recv(&reports.socket, &mut *self.room, RecvFlags::DONTWAIT) {
                Ok((len, _)) => {
                    let report = self.room.get(..len).unwrap_or_default();
                    kind(report).into_iter().for_each(&mut on_report);
                }
                // In both cases there is more to read.
                Err(Errno::INTR | Errno::NOBUFS) => {}
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    tracing::warn!(%error, "changes of the link are no longer reported");
                    self.reports = None;
                }
            }
        }
    }
}

fn socket(groups: libc::c_int) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        // Protocol 0 is `NETLINK_ROUTE`.
        None,
    )?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups.cast_unsigned()))?;
    Ok(socket)
}

fn requests() -> io::Result<ProcessFd> {
    let socket = socket(0)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(LIMIT))?;
    Ok(socket.into())
}

fn reports() -> io::Result<Reports> {
    let groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
    Ok(Reports {
        socket: socket(groups)?.into(),
        filtered: None,
    })
}

#[cfg(test)]
mod tests {
    use gdr_roce::Mtu;

    use super::*;
    use crate::address::list as addresses;

    #[test]
    fn the_loopback_interface_is_found_active_with_its_mtu_and_address() {
        let listed = addresses().unwrap();
        let lo = listed.iter().find(|own| own.interface == "lo").unwrap();
        let mut watch = LinkWatch::new(lo);
        assert!(watch.as_fd().is_some());
        let state = watch.poll(&mut |event| panic!("{event:?}"));
        assert_eq!(state.condition, LinkCondition::Active);
        assert_eq!(state.path_mtu, lo.path_mtu);
        assert!(state.has_address && state.interface > 0);
    }

    #[test]
    fn an_interface_that_does_not_exist_is_disabled_and_keeps_its_mtu() {
        let device = SoftAddress {
            // An address reserved for documentation (RFC 5737).
            address: "192.0.2.1".parse().unwrap(),
            interface: "gone".to_owned(),
            link_mtu: Some(9000),
            path_mtu: Some(Mtu::B4096),
        };
        let expected = LinkState {
            interface: 0,
            condition: LinkCondition::Disabled,
            path_mtu: Some(Mtu::B4096),
            has_address: false,
        };
        let mut watch = LinkWatch::new(&device);
        assert_eq!(watch.poll(&mut |event| panic!("{event:?}")), expected);
    }
}
