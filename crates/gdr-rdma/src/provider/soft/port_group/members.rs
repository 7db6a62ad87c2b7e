//! The members of a port group, and how they find each other.
//!
//! Each member listens at an abstract Unix name made of address, port and slot, and gives the
//! sockets of the group to every process of the same user that connects. A name exists while a
//! process has the listening socket, so a slot is free again when its process ended, in whatever way.
//! One more name is the lock under which devices join: it exists while one does.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::deadline::Deadline;
use crate::error::{Error, PortSharingError, Result};
use crate::os::block_signals;
use crate::provider::soft::process_fd::ProcessFd;
use crate::provider::soft::slot::{SLOTS, Slot};

type Shared<T> = std::result::Result<T, PortSharingError>;

/// How long a device waits to join, while others do.
const JOIN_LIMIT: Duration = Duration::from_secs(30);
/// How long one member may take to answer. Where more threads are runnable than there are processors,
/// its thread may wait long for one. It fails if the process is stopped, or is a child of a member that
/// ended which was not made by `fork` (see [`ProcessFd`]).
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How often a member is asked that closes the connection: it ends, or cannot send the sockets.
const ATTEMPTS: usize = 8;
/// How long a member does not accept connections after that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How many processes may wait to connect.
const BACKLOG: i32 = 64;
/// What the name of a device that has its port for itself ends with.
const SOLE: &str = "sole";
/// What a member sends along with the sockets. It changes with the number of slots and their place
/// in a queue pair number.
const GREETING: &[u8] = b"gdr port group 1";

/// The name of a slot, or of the lock.
fn name(address: SocketAddr, what: &str) -> Shared<SocketAddrUnix> {
    let name = format!("gdr-roce/{address}/{what}");
    SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(os("naming a port group"))
}

fn slot_name(address: SocketAddr, slot: Slot) -> Shared<SocketAddrUnix> {
    name(address, &slot.index().to_string())
}

fn os(call: &'static str) -> impl Fn(Errno) -> PortSharingError {
    move |errno| PortSharingError::Os {
        call,
        source: errno.into(),
    }
}

fn unix_socket() -> Shared<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(os("opening a Unix socket"))
}

/// Binds a name; `None` if another process has it.
fn listen(name: &SocketAddrUnix) -> Shared<Option<ProcessFd>> {
    let socket = ProcessFd::from(unix_socket()?);
    match rustix::net::bind(&socket, name) {
        Ok(()) => {}
        Err(Errno::ADDRINUSE) => return Ok(None),
        Err(errno) => return Err(os("binding a Unix socket")(errno)),
    }
    rustix::net::listen(&socket, BACKLOG).map_err(os("listening at a Unix socket"))?;
    Ok(Some(socket))
}

/// The result of connecting to a name.
enum Connected {
    /// No process has the name.
    Free,
    /// A process has it, and may answer.
    To(OwnedFd),
    /// A process has it and does not accept connections.
    Silent,
}

fn connect(name: &SocketAddrUnix, limit: Duration) -> Shared<Connected> {
    let socket = unix_socket()?;
    // The kernel reads a limit of zero as none.
    let limit = Some(limit.max(Duration::from_millis(1)));
    for side in [Timeout::Send, Timeout::Recv] {
        sockopt::set_socket_timeout(&socket, side, limit)
            .map_err(os("setting a limit of a Unix socket"))?;
    }
    match rustix::net::connect(&socket, name) {
        Ok(()) => Ok(Connected::To(socket)),
        Err(Errno::CONNREFUSED) => Ok(Connected::Free),
        Err(Errno::AGAIN) => Ok(Connected::Silent),
        Err(errno) => Err(os("connecting to a member of a port group")(errno)),
    }
}

/// The right to join a group or to make it. Dropping it lets the next device join.
pub(super) struct JoinLock {
    address: SocketAddr,
    _listener: ProcessFd,
}

impl JoinLock {
    /// Waits until no other device joins.
    pub(super) fn acquire(address: SocketAddr) -> Shared<Self> {
        let deadline = Deadline::after(JOIN_LIMIT);
        let name = name(address, "lock")?;
        loop {
            if let Some(listener) = listen(&name)? {
                return Ok(Self {
                    address,
                    _listener: listener,
                });
            }
            if deadline.has_passed() {
                return Err(PortSharingError::Locked);
            }
            // No connection is accepted. It ends when the other device has joined.
            if let Connected::To(other) = connect(&name, deadline.remaining())? {
                wait_readable(&[other.as_fd()], Some(deadline.remaining()));
            }
        }
    }
}

/// What [`find`] finds.
pub(super) struct Found {
    /// The sockets of the group, by slot, if it has a member.
    pub(super) sockets: Option<Vec<ProcessFd>>,
    /// The slots that no device has.
    pub(super) free: Vec<Slot>,
}

/// Asks the members of a group for its sockets.
pub(super) fn find(lock: &JoinLock) -> Shared<Found> {
    let (mut sockets, mut free) = (None, Vec::new());
    let mut failed = None;
    for slot in Slot::all() {
        let name = slot_name(lock.address, slot)?;
        for _ in 0..ATTEMPTS {
            // Once there is an answer, the rest is asked only whether it exists.
            match connect(&name, ANSWER_LIMIT)? {
                Connected::Free => free.push(slot),
                Connected::Silent => failed = Some(PortSharingError::Silent),
                Connected::To(_) if sockets.is_some() => {}
                Connected::To(member) => match request_sockets(member.as_fd()) {
                    Ok(Some(received)) => sockets = Some(received),
                    // It ends: the name is free soon.
                    Ok(None) => continue,
                    // A name of another user's process is not one of this user's group.
                    Err(PortSharingError::OtherUser) => {}
                    Err(error) => failed = Some(error),
                },
            }
            break;
        }
    }
    match failed {
        Some(error) if sockets.is_none() => Err(error),
        _ => Ok(Found { sockets, free }),
    }
}

/// Takes the first of these slots, up to `most`.
pub(super) fn claim(lock: &JoinLock, free: &[Slot], most: usize) -> Shared<Vec<(Slot, ProcessFd)>> {
    let mut claimed = Vec::new();
    for slot in free {
        if claimed.len() == most {
            break;
        }
        // A process of another user can take a name at any time.
        if let Some(listener) = listen(&slot_name(lock.address, *slot)?)? {
            claimed.push((*slot, listener));
        }
    }
    Ok(claimed)
}

/// The name of a device that has a port for itself though its sockets are bound with `SO_REUSEPORT`.
/// It exists until this is dropped.
pub(in super::super) struct SolePort {
    _listener: ProcessFd,
}

/// Takes the name by which port groups find that a port is not shared. `None` if another process has it.
pub(in super::super) fn claim_port(address: SocketAddr) -> Result<Option<SolePort>> {
    let failed = |reason| Error::PortSharing { address, reason };
    let listener = name(address, SOLE).and_then(|name| listen(&name));
    let listener = listener.map_err(failed)?;
    Ok(listener.map(|listener| SolePort {
        _listener: listener,
    }))
}

/// Fails if a device has the port for itself.
pub(super) fn check_unclaimed(lock: &JoinLock) -> Result<()> {
    let address = lock.address;
    let failed = |reason| Error::PortSharing { address, reason };
    let name = name(address, SOLE).map_err(failed)?;
    match connect(&name, ANSWER_LIMIT).map_err(failed)? {
        Connected::Free => Ok(()),
        Connected::To(_) | Connected::Silent => Err(Error::binding(address, Errno::ADDRINUSE)),
    }
}

/// Whether the process at the other end belongs to the user of this one.
fn is_same_user(socket: BorrowedFd<'_>) -> bool {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of_val(&peer) as libc::socklen_t;
    // SAFETY: the option fills at most `len` bytes of the structure, which lives for the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    result == 0 && peer.uid == rustix::process::geteuid().as_raw()
}

/// Asks a member for the sockets; `None` if it closes the connection.
fn request_sockets(member: BorrowedFd<'_>) -> Shared<Option<Vec<ProcessFd>>> {
    if !is_same_user(member) {
        return Err(PortSharingError::OtherUser);
    }
    let mut greeting = [0; GREETING.len() + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SLOTS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let deadline = Deadline::after(ANSWER_LIMIT);
    let received = loop {
        let received = rustix::net::recvmsg(
            member,
            &mut [IoSliceMut::new(&mut greeting)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        );
        match received {
            // A call with a limit is not begun again by itself after a signal of the program.
            Err(Errno::INTR) if !deadline.has_passed() => {}
            received => break received,
        }
    };
    let received = match received {
        Ok(received) => received,
        Err(Errno::AGAIN) => return Err(PortSharingError::Silent),
        Err(Errno::CONNRESET) => return Ok(None),
        Err(errno) => return Err(os("receiving the sockets of a port group")(errno)),
    };
    let mut sockets = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            sockets.extend(descriptors.map(ProcessFd::from));
        }
    }
    match &greeting[..received.bytes] {
        [] => Ok(None),
        GREETING if sockets.len() == SLOTS => Ok(Some(sockets)),
        GREETING => Err(PortSharingError::TooFewDescriptors),
        _ => Err(PortSharingError::OtherVersion),
    }
}

/// Waits until one of the descriptors is readable, or its other end is closed.
fn wait_readable(descriptors: &[BorrowedFd<'_>], limit: Option<Duration>) -> Vec<bool> {
    let mut fds: Vec<_> = descriptors
        .iter()
        .map(|descriptor| PollFd::from_borrowed_fd(*descriptor, PollFlags::IN))
        .collect();
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    // EINTR and the like end the wait early, and the caller waits again.
    match rustix::event::poll(&mut fds, limit.as_ref()) {
        Ok(_) => fds.iter().map(|fd| !fd.revents().is_empty()).collect(),
        Err(_) => vec![false; fds.len()],
    }
}

/// The thread of a member that gives the sockets to those that join. It ends, and the slot is free,
/// when this is dropped.
pub(super) struct Keeper {
    stop: Arc<OwnedFd>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Keeper {
    pub(super) fn start(listeners: Vec<ProcessFd>, sockets: Arc<[ProcessFd]>) -> Result<Self> {
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::os("eventfd", errno))?;
        let stop = Arc::new(stop);
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("gdr-port-group".to_owned())
            .spawn(move || {
                block_signals();
                let mut all = vec![stopped.as_fd()];
                all.extend(listeners.iter().map(AsFd::as_fd));
                while let [false, connections @ ..] = &wait_readable(&all, None)[..] {
                    for (listener, _) in listeners.iter().zip(connections).filter(|it| *it.1) {
                        if let Err(error) = give(listener.as_fd(), &sockets) {
                            tracing::debug!(%error, "a device could not join a port group");
                            wait_readable(&[stopped.as_fd()], Some(ACCEPT_PAUSE));
                        }
                    }
                }
                // In this order: the device that finds the names free may make a new group.
                drop(sockets);
                drop(listeners);
            })
            .map_err(|source| Error::os("starting the thread of a port group", source))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Err(error) = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes()) {
            tracing::error!(%error, "the thread of a port group does not stop");
            return;
        }
        if self
            .thread
            .take()
            .is_some_and(|thread| thread.join().is_err())
        {
            tracing::error!("the thread of a port group panicked");
        }
    }
}

/// Accepts a connection and gives it the sockets.
fn give(listener: BorrowedFd<'_>, sockets: &[ProcessFd]) -> Shared<()> {
    let joining = rustix::net::accept_with(listener, SocketFlags::CLOEXEC)
        .map_err(os("accepting a device that joins a port group"))?;
    if !is_same_user(joining.as_fd()) {
        return Ok(());
    }
    let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SLOTS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&sockets));
    let sent = rustix::net::sendmsg(
        joining,
        &[IoSlice::new(GREETING)],
        &mut control,
        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    );
    match sent {
        // It asked only whether this member exists, and is gone.
        Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
        Err(errno) => Err(os("sending the sockets of a port group")(errno)),
    }
}
