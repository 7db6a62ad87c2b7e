//! A netlink socket that follows the interface of a device.

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

/// Room for the description of an interface.
const ROOM: usize = 1 << 14;
/// The limit for the answer to a request. The kernel makes it while it is asked.
const LIMIT: Duration = Duration::from_secs(5);
/// How often a state is followed that changes again and again.
const MOST_CHANGES: usize = 8;

/// A change of the interface or address of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkEvent {
    /// The interface can carry packets again (`IBV_EVENT_PORT_ACTIVE`).
    Up,
    /// It cannot any more (`IBV_EVENT_PORT_ERR`).
    Down,
    /// The address went, or came back (`IBV_EVENT_GID_CHANGE`).
    AddressChanged,
}

/// Follows the interface and the address of a device.
#[derive(Debug)]
pub struct LinkWatch {
    device: SoftAddress,
    state: LinkState,
    /// For requests. Without it the state never changes.
    requests: Option<ProcessFd>,
    /// Where the kernel reports changes.
    reports: Option<Reports>,
    room: Box<[u8]>,
}

#[derive(Debug)]
struct Reports {
    socket: ProcessFd,
    /// What its filter was made for.
    filtered: Option<Filtered>,
}

/// What a filter depends on: activity, interface and presence of the address.
type Filtered = (bool, u32, bool);

impl LinkWatch {
    /// Begins to follow the interface of a device. Where the kernel has no netlink sockets for this
    /// process, the interface counts as active.
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

    /// A descriptor that is readable when there may be events. It is not closed before this value ends,
    /// unless the kernel fails.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.reports.as_ref().map(|reports| reports.socket.as_fd())
    }

    /// The current state. Calls `on_event` for each change since the last call, in order.
    pub fn poll(&mut self, on_event: &mut dyn FnMut(LinkEvent)) -> LinkState {
        let (mut link, mut address) = (false, false);
        self.drain(|kind| match kind {
            libc::RTM_NEWLINK => link = true,
            _ => address = true,
        });
        if link || address {
            // The filter has passed the opposite of what was known. If that is true again, it has changed
            // twice. So there is an event for each time that the descriptor becomes readable.
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

    /// Reads the state and lets the socket report the next change, until both show the same state.
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
            // What has passed the former filter says nothing new.
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

    /// Asks the kernel.
    fn read(&mut self) -> LinkState {
        let known = self.state.interface;
        let asked = match self.ask(known) {
            // It may have been made again.
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

    /// Asks for the interface with this index, or for the one of the name if it is 0.
    fn ask(&mut self, index: u32) -> io::Result<Option<Interface>> {
        let Some(socket) = &self.requests else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let request = request(index, &self.device.interface);
        rustix::net::send(socket, &request, SendFlags::empty())?;
        let (len, _) = rustix::net::recv(socket, &mut *self.room, RecvFlags::empty())?;
        Ok(interface(self.room.get(..len).unwrap_or_default()))
    }

    /// Takes the reports that have arrived.
    fn drain(&mut self, mut on_report: impl FnMut(u16)) {
        while let Some(reports) = &self.reports {
            match rustix::net::recv(&reports.socket, &mut *self.room, RecvFlags::DONTWAIT) {
                Ok((len, _)) => {
                    let report = self.room.get(..len).unwrap_or_default();
                    kind(report).into_iter().for_each(&mut on_report);
                }
                // After either there is more to read.
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
        // `NETLINK_ROUTE`, which is 0.
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
            // For documentation (RFC 5737).
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
