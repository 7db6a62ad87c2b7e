//! Groups of sockets at one address and port, among which the kernel selects by destination queue pair.
//!
//! The sockets set `SO_REUSEPORT`. A classic BPF program, which needs no privilege, maps each datagram to the index of
//! its socket, in binding order. The program is attached once, as replacing it loses datagrams.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use gdr_roce::Qpn;
use libc::{
    BPF_A, BPF_ABS, BPF_ALU, BPF_AND, BPF_K, BPF_LD, BPF_MOD, BPF_RET, BPF_RSH, BPF_W, sock_filter,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, sockopt};

use crate::deadline::Deadline;
use crate::error::{Error, PortSharingError, Result};
use crate::filter::{self, statement};
use crate::process_fd::ProcessFd;
use crate::qpn_range::{MOST_SHARDS, QpnRange, SHARD_SHIFT};
use crate::slot::{MANAGEMENT, QPN_MASK, SLOT_SHIFT, Slot};

/// The offset of the destination in a packet, and the length of the shortest packet that has one.
const OFFSET: usize = Slot::OFFSET as usize;
const LEN: usize = OFFSET + 4;
/// How long a device tries to prove that the kernel selects among its sockets. On an idle CPU it takes well below a
/// millisecond; with many runnable threads the kernel may deliver a datagram much later.
const PROOF_LIMIT: Duration = Duration::from_secs(5);

/// Loads the destination queue pair number, shifted right by `shift`.
///
/// A program sees the UDP payload. If a load reaches past its end, the program returns 0.
fn load_number(shift: u32) -> [sock_filter; 3] {
    [
        statement(BPF_LD | BPF_W | BPF_ABS, Slot::OFFSET),
        statement(BPF_ALU | BPF_AND | BPF_K, QPN_MASK),
        statement(BPF_ALU | BPF_RSH | BPF_K, shift),
    ]
}

/// Returns the program that selects the slot of the destination, or the management socket.
pub(crate) fn by_slot() -> Vec<sock_filter> {
    let [load, mask, shift] = load_number(SLOT_SHIFT);
    vec![
        load,
        mask,
        filter::if_equal(Qpn::MANAGEMENT.get(), 0, 1),
        statement(BPF_RET | BPF_K, MANAGEMENT as u32),
        shift,
        statement(BPF_RET | BPF_A, 0),
    ]
}

/// Returns the program that selects the shard of the destination, modulo `shards`.
fn by_shard(shards: usize) -> Vec<sock_filter> {
    let mut program = load_number(SHARD_SHIFT).to_vec();
    program.extend([
        statement(BPF_ALU | BPF_AND | BPF_K, MOST_SHARDS as u32 - 1),
        statement(BPF_ALU | BPF_MOD | BPF_K, shards as u32),
        statement(BPF_RET | BPF_A, 0),
    ]);
    program
}

/// Attaches a program to a whole group, through one of its sockets.
pub(crate) fn steer(socket: BorrowedFd<'_>, program: &[sock_filter]) -> Result<()> {
    filter::set_program(socket, libc::SO_ATTACH_REUSEPORT_CBPF, program)
        .map_err(|source| Error::os("setsockopt(SO_ATTACH_REUSEPORT_CBPF)", source))
}

/// Adds the sockets of the device's other shards to `first`; returns all of them, by shard. `first` must have been
/// bound without `SO_REUSEPORT`, which proved that no other socket had the address.
pub(crate) fn add_shards(
    first: UdpSocket,
    address: SocketAddr,
    shards: usize,
) -> Result<Vec<ProcessFd>> {
    let failed = |errno| Error::os("setsockopt(SO_REUSEPORT)", errno);
    sockopt::set_socket_reuseport(&first, true).map_err(failed)?;
    let mut sockets = vec![ProcessFd::from(OwnedFd::from(first))];
    for shard in 1..shards {
        let socket = bind(address).map_err(|source| Error::binding(address, source))?;
        sockets.push(socket);
        if shard == 1 {
            // The group exists once its second socket is bound.
            steer(sockets[0].as_fd(), &by_shard(shards))?;
        }
    }
    let number = |shard: usize| QpnRange::Shard(shard as u8).qpn(u32::MAX);
    prove(&sockets, number, address, PROOF_LIMIT)?;
    Ok(sockets)
}

/// Binds a socket that others may join in a group.
pub(crate) fn bind(address: SocketAddr) -> io::Result<ProcessFd> {
    let socket = unbound(address)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

/// Binds a socket that must be the only one at its port.
pub(crate) fn bind_alone(address: SocketAddr) -> io::Result<ProcessFd> {
    let socket = unbound(address)?;
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

fn unbound(address: SocketAddr) -> io::Result<ProcessFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    Ok(ProcessFd::from(socket))
}

/// Sends a datagram to the queue pair `number(index)` for each index, and expects it at the socket of that index. Fails
/// if foreign sockets are in the group, as the kernel's indexes include them.
pub(crate) fn prove(
    sockets: &[ProcessFd],
    number: impl Fn(usize) -> Qpn,
    address: SocketAddr,
    limit: Duration,
) -> Result<()> {
    let os = |call| move |source| Error::os(call, source);
    let sender = UdpSocket::bind((address.ip(), 0)).map_err(os("binding a UDP socket"))?;
    let source = sender.local_addr().map_err(os("getsockname"))?;
    let deadline = Deadline::after(limit);
    for (index, socket) in sockets.iter().enumerate() {
        let mut datagram = [0; LEN];
        datagram[OFFSET..].copy_from_slice(&number(index).get().to_be_bytes());
        sender
            .send_to(&datagram, address)
            .map_err(os("sending to a port group"))?;
        loop {
            if !wait_readable(socket.as_fd(), deadline) {
                let why = format!("socket {index} received nothing");
                let reason = PortSharingError::NotSteered { why };
                return Err(Error::PortSharing { address, reason });
            }
            let mut bytes = [0; LEN];
            // Other datagrams come from peers of a process that had the port before.
            let received = rustix::net::recvfrom(socket, &mut bytes, RecvFlags::DONTWAIT);
            if let Ok((LEN, _, Some(from))) = received
                && bytes == datagram
                && SocketAddr::try_from(from).is_ok_and(|from| is_same(from, source))
            {
                break;
            }
        }
    }
    Ok(())
}

/// Returns whether two addresses are equal, ignoring the scope of an IPv6 address.
fn is_same(one: SocketAddr, other: SocketAddr) -> bool {
    (one.ip(), one.port()) == (other.ip(), other.port())
}

fn wait_readable(socket: BorrowedFd<'_>, deadline: Deadline) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    loop {
        let Ok(left) = Timespec::try_from(deadline.remaining()) else {
            return false;
        };
        match rustix::event::poll(&mut fds, Some(&left)) {
            // A signal that interrupts the call does not depend on the socket.
            Err(Errno::INTR) if !deadline.has_passed() => {}
            ready => return ready == Ok(1),
        }
    }
}

/// Discards the datagrams queued at a socket.
pub fn drain(socket: BorrowedFd<'_>) {
    /// More datagrams than any receive buffer holds.
    const MOST: usize = 1 << 20;
    for _ in 0..MOST {
        let received = rustix::net::recv(socket, &mut [0_u8; 1], RecvFlags::DONTWAIT);
        // Other errors stem from earlier sends.
        if received.is_err_and(|error| error == Errno::AGAIN) {
            break;
        }
    }
}
