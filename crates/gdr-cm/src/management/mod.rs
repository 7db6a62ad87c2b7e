//! The management queue pair (number 1) of an address, shared by the processes of its port group.
//!
//! The group has one socket for packets to that queue pair, which every member holds. A single process at a time, the
//! *keeper*, receives from it and forwards messages for other processes. Like the group's slots, this is organized
//! through abstract Unix names:
//!
//! - `cm/keeper` is held by the keeper. The others are connected to it: the kernel closes these connections when the
//!   keeper ends, however it ends, and the first process to notice claims the name.
//! - `cm/N` is held by the process whose communication IDs have the prefix N.
//! - `cm/alive/N` is also held by that process. Processes of the host that have connections with it connect there, and
//!   so notice its end.
//! - `cm/service/N` is held by the process that listens for a service, so at most one does.
//!
//! Each message is forwarded over a connection of its own, whose ends see each other's user: other users of the host
//! neither receive nor inject messages. The keeper replies to messages that concern no process; to requests for a
//! service only after some time, during which a process may start to listen.

mod packet;
mod peers;
mod requests;
mod role;
mod strays;
mod watched;

use std::collections::BTreeMap;
use std::fmt;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;

use crate::{Addressee, MAD_LEN, Mad, Manager, Message, ServiceId};
use gdr_process::PeerUser;
use gdr_process::lock::lock;
use quinn_udp::{UdpSockRef, UdpSocketState};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

use self::packet::Packets;
pub use self::peers::PeerProcess;
use self::peers::Peers;
use self::requests::Requests;
use self::role::Role;
use self::strays::Strays;
use self::watched::Watched;
use gdr_nic::Device;
use gdr_nic::{Error, Result};
use gdr_udp::Deadline;
use gdr_udp::ProcessFd;
use gdr_udp::accept_without_checksum;
use gdr_udp::drain;
use gdr_udp::local_socket::{self, Connected, wait_readable};

/// The number of communication ID prefixes.
const PREFIXES: u16 = 1 << 12;
/// How many processes may wait to forward a message.
const BACKLOG: i32 = 1024;
/// Receive buffer size for packets waiting for the keeper.
const RECEIVE_BUFFER: usize = 1 << 20;
/// How long a forwarding process may take between connecting and sending.
const HAND_ON_LIMIT: Duration = Duration::from_millis(100);
/// A forwarded message: the sender's address, then the message.
const HANDED_ON: usize = ADDRESS + MAD_LEN;
const ADDRESS: usize = 16;
/// How often a process tries to become the keeper while another user holds the name.
const SEEK_INTERVAL: Duration = Duration::from_secs(1);

/// epoll keys.
const WOKEN: u64 = 0;
const PACKET: u64 = 1;
const INBOX: u64 = 2;
/// The connection to the keeper closed.
const KEEPER: u64 = 3;
/// A process connects, watching this one as the keeper.
const WATCHER: u64 = 4;
/// A process connects, watching this one as its peer.
const WATCHING_PEER: u64 = 5;
/// A peer ended; the first of these keys.
const PEER: u64 = 1 << 32;
/// A service; its identifier is in the other bits.
const SERVICE: u64 = 1 << 63;

/// A received message.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedMad {
    /// The sender's address.
    pub from: IpAddr,
    /// The untrusted message.
    pub mad: Mad,
}

/// A result of [`Management::receive`].
#[derive(Clone, Copy, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "there is one value at a time, and nearly every one is a message"
)]
pub enum Arrival {
    /// A message.
    Mad(ReceivedMad),
    /// A process passed to [`Management::watch`] has ended.
    Ended(PeerProcess),
}

/// A process's share of the management queue pair of an address: it receives messages for its own connections and
/// services, and sends to any host.
pub struct Management {
    local: SocketAddr,
    prefix: u16,
    sender: UdpSocket,
    packets: Packets,
    /// The group's socket.
    shared: ProcessFd,
    inbox: ProcessFd,
    alive: Mutex<Watched>,
    peers: Mutex<Peers>,
    services: Mutex<BTreeMap<ServiceId, ProcessFd>>,
    role: Mutex<Role>,
    strays: Mutex<Strays>,
    requests: Mutex<Requests>,
    wakeup: OwnedFd,
    /// The epoll instance over all descriptors.
    readiness: OwnedFd,
    /// Declared last: once it is dropped others may take the port, so the sockets must be closed by then.
    _device: Device,
}

impl fmt::Debug for Management {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Management")
            .field("local", &self.local)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl Management {
    /// Opens the management queue pair of a device. To be called once per process.
    ///
    /// # Errors
    /// [`SocketError::PortNotShared`](gdr_udp::Error::PortNotShared) unless the device was opened with
    /// [`PortUse::Shared`](gdr_nic::PortUse::Shared); [`Error::ForkedChild`], [`SocketError::Os`](gdr_udp::Error::Os).
    pub fn open(device: &Device) -> Result<Self> {
        let local = device.address();
        let shared = device.management_socket()?;
        if local.is_ipv6() {
            accept_without_checksum(&shared)
                .map_err(|source| Error::os("setsockopt(UDP_NO_CHECK6_RX)", source))?;
        }
        let sender = UdpSocket::bind((local.ip(), 0))
            .map_err(|source| Error::os("binding a UDP socket", source))?;
        // Forbids fragmentation, on which the ICRC relies.
        UdpSocketState::new(UdpSockRef::from(&sender))
            .map_err(|source| Error::os("preparing a UDP socket", source))?;
        let port = sender
            .local_addr()
            .map_err(|source| Error::os("getsockname", source))?
            .port();
        let (prefix, inbox) = own_prefix(local)?;
        let wakeup = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::os("eventfd", errno))?;
        let readiness = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| Error::os("epoll_create", errno))?;
        watch(&readiness, wakeup.as_fd(), WOKEN)?;
        watch(&readiness, inbox.as_fd(), INBOX)?;
        let alive = listen(&name(local, &alive_name(prefix))?)?
            .ok_or_else(|| Error::os("taking a name for peers", Errno::ADDRINUSE))?;
        watch(&readiness, alive.as_fd(), WATCHING_PEER)?;
        Ok(Self {
            local,
            prefix,
            sender,
            packets: Packets::new(SocketAddr::new(local.ip(), port), local.port()),
            shared,
            inbox,
            alive: Mutex::new(Watched::new(alive)),
            peers: Mutex::default(),
            services: Mutex::default(),
            role: Mutex::default(),
            strays: Mutex::default(),
            requests: Mutex::default(),
            wakeup,
            readiness,
            _device: device.clone(),
        })
    }
}

/// Claims a free prefix. The search starts at random, as a peer may remember the IDs of a process that ended.
fn own_prefix(local: SocketAddr) -> Result<(u16, ProcessFd)> {
    let first = gdr_nic::random_number()? as u16;
    for offset in 0..PREFIXES {
        let prefix = first.wrapping_add(offset) % PREFIXES;
        if let Some(inbox) = listen(&name(local, &prefix.to_string())?)? {
            return Ok((prefix, inbox));
        }
    }
    Err(Error::os("taking a communication prefix", Errno::ADDRINUSE))
}

fn name(local: SocketAddr, what: &str) -> Result<SocketAddrUnix> {
    let name = format!("gdr-roce/{local}/cm/{what}");
    SocketAddrUnix::new_abstract_name(name.as_bytes())
        .map_err(|errno| Error::os("naming a Unix socket", errno))
}

fn listen(name: &SocketAddrUnix) -> Result<Option<ProcessFd>> {
    let listener = local_socket::listen(name, SocketType::SEQPACKET, BACKLOG)
        .map_err(|errno| Error::os("listening at a Unix socket", errno))?;
    if let Some(listener) = &listener {
        rustix::io::ioctl_fionbio(listener, true)
            .map_err(|errno| Error::os("ioctl(FIONBIO)", errno))?;
    }
    Ok(listener)
}

fn service_name(service: ServiceId) -> String {
    format!("service/{:x}", service.0)
}

fn alive_name(prefix: u16) -> String {
    format!("alive/{prefix}")
}

/// Connects to a name if a process of this user holds it.
fn connect_to_own(name: &SocketAddrUnix) -> Result<Option<OwnedFd>> {
    let connected = local_socket::connect(name, SocketType::SEQPACKET)
        .map_err(|errno| Error::os("connecting to a Unix socket", errno))?;
    Ok(match connected {
        Connected::To(socket) if PeerUser::of_unix(socket.as_fd()).0 == PeerUser::Own => {
            Some(socket)
        }
        _ => None,
    })
}

/// Returns a connection whose peer is already closed.
fn ended_connection() -> Result<OwnedFd> {
    let (kept, _closed) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|errno| Error::os("socketpair", errno))?;
    Ok(kept)
}

impl Management {
    /// Returns the prefix of this process's communication IDs. Messages with such IDs are delivered here.
    pub fn prefix(&self) -> u16 {
        self.prefix
    }

    /// Returns the local address and port.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Starts to receive requests for a service. Returns false if another process does already.
    ///
    /// # Errors
    /// [`SocketError::Os`](gdr_udp::Error::Os).
    pub fn listen(&self, service: ServiceId) -> Result<bool> {
        let mut services = lock(&self.services);
        if services.contains_key(&service) {
            return Ok(false);
        }
        let listener = listen(&name(self.local, &service_name(service))?)?;
        let Some(listener) = listener else {
            return Ok(false);
        };
        watch(&self.readiness, listener.as_fd(), SERVICE | service.0)?;
        services.insert(service, listener);
        Ok(true)
    }

    /// Undoes a [`Management::listen`] that returned true.
    pub fn ignore(&self, service: ServiceId) {
        lock(&self.services).remove(&service);
    }

    /// Reports the end of a peer process, if it runs on this host as this user. The end of processes on other hosts
    /// goes unnoticed.
    pub fn watch(&self, peer: PeerProcess) {
        let is_own = peer.prefix == self.prefix && peer.address == self.local.ip();
        let mut peers = lock(&self.peers);
        if is_own || peers.watches(peer) {
            return;
        }
        let address = SocketAddr::new(peer.address, self.local.port());
        let connected = name(address, &alive_name(peer.prefix)).and_then(|it| connect_to_own(&it));
        let watched = connected.and_then(|connected| {
            let connection = match connected {
                Some(connection) => connection,
                // Any process at the same address is on this host, so this one has already ended.
                None if address == self.local => ended_connection()?,
                None => return Ok(()),
            };
            let number = peers.next(PEER);
            watch(&self.readiness, connection.as_fd(), number)?;
            peers.add(number, peer, connection);
            Ok(())
        });
        if let Err(error) = watched {
            tracing::debug!(%error, "the end of a peer will not be noticed");
        }
    }

    /// Sends a message. It is lost if the kernel has no buffer space, which the protocol tolerates.
    pub fn send(&self, to: IpAddr, mad: &Mad) {
        let packet = self.packets.seal(to, mad);
        if let Err(error) = self.sender.send_to(&packet, (to, self.local.port())) {
            tracing::debug!(%error, %to, "a management datagram was not sent");
        }
    }

    /// Ends a [`Management::receive`] in another thread, or else the next one.
    pub fn wake(&self) {
        if let Err(error) = rustix::io::write(&self.wakeup, &1_u64.to_ne_bytes()) {
            tracing::error!(%error, "a thread cannot be woken");
        }
    }

    /// Waits for a message for this process or the end of a peer. Returns `None` after the deadline, or when another
    /// thread calls [`Management::wake`]. Only one thread at a time may call this.
    pub fn receive(&self, deadline: Option<Deadline>) -> Option<Arrival> {
        loop {
            let received = match self.wait(deadline) {
                Some(WOKEN) => {
                    // Does not block: it is readable, and no other thread reads it.
                    let _read = rustix::io::read(&self.wakeup, &mut [0; 8]);
                    return None;
                }
                Some(PACKET) => self.receive_packet(),
                Some(INBOX) => take(self.inbox.as_fd()),
                Some(KEEPER) => {
                    *lock(&self.role) = Role::Orphaned;
                    None
                }
                Some(WATCHER) => {
                    if let Role::Keeper(keeper) = &mut *lock(&self.role) {
                        keeper.accept();
                    }
                    None
                }
                Some(WATCHING_PEER) => {
                    lock(&self.alive).accept();
                    None
                }
                Some(number) if number & SERVICE == 0 => {
                    let ended = lock(&self.peers).ended(number);
                    if let Some(peer) = ended {
                        return Some(Arrival::Ended(peer));
                    }
                    None
                }
                Some(service) => {
                    let services = lock(&self.services);
                    let listener = services.get(&ServiceId(service & !SERVICE));
                    listener.and_then(|listener| take(listener.as_fd()))
                }
                None => self.retry_stray(),
            };
            if received.is_some() || deadline.is_some_and(Deadline::has_passed) {
                return received.map(Arrival::Mad);
            }
        }
    }

    /// Waits until a descriptor is readable, and returns its key.
    fn wait(&self, deadline: Option<Deadline>) -> Option<u64> {
        let until_retry = self.seek_role();
        let of_strays = lock(&self.strays).deadline();
        let of_strays = of_strays.map(Deadline::remaining);
        let limits = [deadline.map(Deadline::remaining), of_strays, until_retry];
        let limit = limits.into_iter().flatten().min();
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut ready = [MaybeUninit::uninit(); 1];
        // EINTR ends the wait early.
        let (ready, _) = epoll::wait(&self.readiness, &mut ready, limit.as_ref()).ok()?;
        ready.first().map(|event| event.data.u64())
    }

    /// Becomes the keeper if there is none. Returns when to try again while the keeper is unknown.
    fn seek_role(&self) -> Option<Duration> {
        let mut role = lock(&self.role);
        let is_orphaned = match *role {
            Role::Unknown => false,
            Role::Orphaned => true,
            Role::Keeper(_) | Role::Watching(_) => return None,
        };
        *role = Role::seek(self.local).unwrap_or_else(|error| {
            tracing::debug!(%error, "no keeper of a management queue pair");
            Role::Unknown
        });
        let watched = match &*role {
            Role::Keeper(keeper) => {
                let resized = sockopt::set_socket_recv_buffer_size(&self.shared, RECEIVE_BUFFER);
                if let Err(error) = resized {
                    tracing::debug!(%error, "few management datagrams can wait");
                }
                // Packets queued while no process received may be stale, and peers repeat what they need. After a
                // keeper's end they are recent, and may include a message to this process that nothing repeats.
                if !is_orphaned {
                    drain(self.shared.as_fd());
                }
                watch(&self.readiness, self.shared.as_fd(), PACKET)
                    .and_then(|()| watch(&self.readiness, keeper.as_fd(), WATCHER))
            }
            Role::Watching(keeper) => watch(&self.readiness, keeper.as_fd(), KEEPER),
            Role::Unknown | Role::Orphaned => return Some(SEEK_INTERVAL),
        };
        if let Err(error) = watched {
            tracing::error!(%error, "management datagrams are not received");
        }
        None
    }

    /// Receives a packet as the keeper. Returns its message if it is for this process.
    fn receive_packet(&self) -> Option<ReceivedMad> {
        let mut room = [0; packet::MOST];
        let received = rustix::net::recvfrom(&self.shared, &mut room, RecvFlags::DONTWAIT);
        let (len, _, from) = received.ok()?;
        let from = SocketAddr::try_from(from?).ok()?;
        let mad = self.packets.open(from, room.get(..len)?)?;
        let received = ReceivedMad {
            from: from.ip(),
            mad,
        };
        match self.route(&received)? {
            Route::Own => return Some(received),
            Route::HandedOn => {}
            Route::NoService if lock(&self.strays).hold(received.from, mad) => {}
            Route::NoService | Route::NoConnection => self.answer(&received),
        }
        None
    }

    /// Looks again for the process that a held request is for, and replies after the last attempt. Returns the request
    /// if it is for this process.
    fn retry_stray(&self) -> Option<ReceivedMad> {
        let stray = lock(&self.strays).take()?;
        let received = ReceivedMad {
            from: stray.from,
            mad: stray.mad,
        };
        match self.route(&received)? {
            Route::Own => return Some(received),
            Route::HandedOn => {}
            Route::NoService | Route::NoConnection => {
                if !lock(&self.strays).hold_again(stray) {
                    self.answer(&received);
                }
            }
        }
        None
    }

    fn answer(&self, stray: &ReceivedMad) {
        if let Some(answer) = Manager::answer_to_stray(&stray.mad) {
            self.send(stray.from, &answer);
        }
    }

    /// Forwards a message for another process. Returns `None` if it is not a valid connection management message.
    fn route(&self, received: &ReceivedMad) -> Option<Route> {
        let message = Message::parse(&received.mad).ok()?;
        if let Message::Req(req) = &message {
            lock(&self.requests).remember(received.from, req.id, req.service);
        }
        let of_service = |service| {
            let is_own = lock(&self.services).contains_key(&service);
            (is_own, service_name(service))
        };
        let ((is_own, owner), none) = match message.addressee() {
            Addressee::Id(id) => {
                let prefix = Manager::prefix_of(id);
                let is_own = prefix == self.prefix;
                ((is_own, prefix.to_string()), Route::NoConnection)
            }
            Addressee::Service(service) => (of_service(service), Route::NoService),
            Addressee::Request(id) => {
                let service = lock(&self.requests).service(received.from, id)?;
                (of_service(service), Route::NoConnection)
            }
        };
        Some(if is_own {
            Route::Own
        } else if self.hand_on(&owner, received) {
            Route::HandedOn
        } else {
            none
        })
    }

    /// Forwards a message to the process that holds a name. Returns whether a process of this user does.
    fn hand_on(&self, owner: &str, received: &ReceivedMad) -> bool {
        let connected = name(self.local, owner)
            .ok()
            .and_then(|name| local_socket::connect(&name, SocketType::SEQPACKET).ok());
        let socket = match connected {
            None | Some(Connected::Free) => return false,
            // Counts as delivered: the sender repeats its message.
            Some(Connected::Crowded) => return true,
            Some(Connected::To(socket)) => socket,
        };
        if PeerUser::of_unix(socket.as_fd()).0 != PeerUser::Own {
            return false;
        }
        let mut bytes = [0; HANDED_ON];
        let (address, message) = bytes.split_at_mut(ADDRESS);
        let v6 = match received.from {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        address.copy_from_slice(&v6.octets());
        message.copy_from_slice(received.mad.as_bytes());
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        if let Err(error) = rustix::net::send(&socket, &bytes, flags) {
            tracing::debug!(%error, "a management datagram was not handed on");
        }
        true
    }
}

/// Where a message was routed.
enum Route {
    Own,
    /// Another process, which has received it.
    HandedOn,
    /// No process listens for the service.
    NoService,
    /// No process has the connection.
    NoConnection,
}

/// Receives a message forwarded by another process.
fn take(listener: BorrowedFd<'_>) -> Option<ReceivedMad> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let sender = rustix::net::accept_with(listener, flags).ok()?;
    if PeerUser::of_unix(sender.as_fd()).0 != PeerUser::Own {
        return None;
    }
    wait_readable(sender.as_fd(), HAND_ON_LIMIT);
    let mut bytes = [0; HANDED_ON];
    let (len, _) = rustix::net::recv(&sender, &mut bytes, RecvFlags::DONTWAIT).ok()?;
    let (address, mad) = bytes.get(..len)?.split_first_chunk::<ADDRESS>()?;
    Some(ReceivedMad {
        from: Ipv6Addr::from(*address).to_canonical(),
        mad: Mad::of(mad).ok()?,
    })
}

fn watch(readiness: &OwnedFd, source: BorrowedFd<'_>, number: u64) -> Result<()> {
    epoll::add(
        readiness,
        source,
        EventData::new_u64(number),
        EventFlags::IN,
    )
    .map_err(|errno| Error::os("epoll_ctl", errno))
}
