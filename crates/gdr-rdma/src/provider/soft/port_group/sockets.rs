//! The sockets of a port group and the program that selects among them.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::Duration;

use libc::{BPF_A, BPF_ABS, BPF_ALU, BPF_AND, BPF_K, BPF_LD, BPF_RET, BPF_RSH, BPF_W};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, sockopt};

use crate::deadline::Deadline;
use crate::error::{Error, PortSharingError, Result};
use crate::provider::soft::filter::{self, statement};
use crate::provider::soft::process_fd::ProcessFd;
use crate::provider::soft::slot::{QPN_MASK, SLOT_SHIFT, Slot};

/// The limit of the first proof that the kernel passes datagrams as the program says, and the factor
/// of each next one. A proof takes well below a millisecond where a processor is free; with many
/// runnable threads the kernel may deliver a datagram much later.
const FIRST_PROOF: Duration = Duration::from_millis(200);
const LONGER: u32 = 2;
/// No attempt to make a group begins after this. The time between two attempts.
const CREATE_LIMIT: Duration = Duration::from_secs(10);
const CREATE_INTERVAL: Duration = Duration::from_millis(5);
/// Where a packet has its slot, and the shortest packet that has one.
const OFFSET: usize = Slot::OFFSET as usize;
const LEN: usize = OFFSET + 4;

/// `address` with a free port instead of port 0. Another process may take it meanwhile.
pub(super) fn with_port(address: SocketAddr) -> Result<SocketAddr> {
    if address.port() != 0 {
        return Ok(address);
    }
    let socket = UdpSocket::bind(address).map_err(|source| Error::binding(address, source))?;
    socket
        .local_addr()
        .map_err(|source| Error::os("getsockname", source))
}

/// Binds the sockets of a new group, by slot. They hold one datagram each.
///
/// The kernel may still be closing sockets of a process that was the last member of an earlier group,
/// which are in one group with the new ones. The proof fails then, as the first of the group have the
/// first indexes. Once it holds it stays: a socket whose index is below 64 is not the last while there
/// are more than 64, so closing another one does not move it.
pub(super) fn create(address: SocketAddr) -> Result<Vec<ProcessFd>> {
    let deadline = Deadline::after(CREATE_LIMIT);
    let mut limit = FIRST_PROOF;
    loop {
        match bind_all(address, limit) {
            Err(Error::PortSharing { .. }) if !deadline.has_passed() => {
                thread::sleep(CREATE_INTERVAL);
                limit *= LONGER;
            }
            done => return done,
        }
    }
}

/// Binds the sockets and proves within a limit that the kernel selects among them.
fn bind_all(address: SocketAddr, limit: Duration) -> Result<Vec<ProcessFd>> {
    let mut sockets = Vec::new();
    for slot in Slot::all() {
        let socket = bind(address).map_err(|source| Error::binding(address, source))?;
        sockets.push(socket);
        if slot.index() == 0 {
            steer(sockets[0].as_fd())
                .map_err(|source| Error::os("setsockopt(SO_ATTACH_REUSEPORT_CBPF)", source))?;
        }
    }
    prove(&sockets, address, limit)?;
    for socket in &sockets {
        vacate(socket.as_fd())?;
    }
    Ok(sockets)
}

fn bind(address: SocketAddr) -> io::Result<ProcessFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    let socket = ProcessFd::from(socket);
    sockopt::set_socket_reuseport(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

/// Passes datagrams to the socket whose index is the slot of the destination.
fn steer(socket: BorrowedFd<'_>) -> io::Result<()> {
    // The data of the program begins with the UDP payload. The result of a datagram that is too short
    // to load from is 0.
    let program = [
        statement(BPF_LD | BPF_W | BPF_ABS, Slot::OFFSET),
        statement(BPF_ALU | BPF_AND | BPF_K, QPN_MASK),
        statement(BPF_ALU | BPF_RSH | BPF_K, SLOT_SHIFT),
        statement(BPF_RET | BPF_A, 0),
    ];
    filter::set_program(socket, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}

/// Sends a datagram to each slot and receives it from the slot's socket. That fails if sockets of
/// something else are in the group, which the kernel counts too.
fn prove(sockets: &[ProcessFd], address: SocketAddr, limit: Duration) -> Result<()> {
    let failed = |why: String| Error::PortSharing {
        address,
        reason: PortSharingError::NotSteered { why },
    };
    let os = |call| move |source| Error::os(call, source);
    let sender = UdpSocket::bind((address.ip(), 0)).map_err(os("binding a UDP socket"))?;
    let source = sender.local_addr().map_err(os("getsockname"))?;
    let deadline = Deadline::after(limit);
    for (slot, socket) in Slot::all().zip(sockets) {
        let mut datagram = [0; LEN];
        datagram[OFFSET..].copy_from_slice(&slot.qpn(u32::MAX).get().to_be_bytes());
        sender
            .send_to(&datagram, address)
            .map_err(os("sending to a port group"))?;
        loop {
            if !wait_readable(socket.as_fd(), deadline) {
                return Err(failed(format!("slot {} received nothing", slot.index())));
            }
            let mut bytes = [0; LEN];
            // Others are of peers of a process that was there before.
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

/// Whether two addresses are the same, but for the interface of an IPv6 address.
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
            // A signal of the program says nothing of the socket.
            Err(Errno::INTR) if !deadline.has_passed() => {}
            ready => return ready == Ok(1),
        }
    }
}

/// Lets the socket of a free slot hold few datagrams, and drops those that it has received.
///
/// The socket keeps its filter. The kernel frees a filter in a work queue, in which a thousand of
/// them, one for each slot of a few groups, can wait for each other forever (seen with Linux 6.18).
pub(super) fn vacate(socket: BorrowedFd<'_>) -> Result<()> {
    // The kernel takes its minimum instead, which is about one datagram.
    sockopt::set_socket_recv_buffer_size(socket, 1)
        .map_err(|errno| Error::os("setsockopt(SO_RCVBUF)", errno))?;
    drain(socket);
    Ok(())
}

/// Drops the datagrams that a socket has received.
pub(super) fn drain(socket: BorrowedFd<'_>) {
    /// More datagrams than a receive buffer holds.
    const MOST: usize = 1 << 20;
    for _ in 0..MOST {
        let received = rustix::net::recv(socket, &mut [0_u8; 1], RecvFlags::DONTWAIT);
        // Other errors are those of earlier sends.
        if received.is_err_and(|error| error == Errno::AGAIN) {
            break;
        }
    }
}
