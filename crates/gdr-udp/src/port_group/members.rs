//! The members of a port group, and how they find each other.
//!
//! Each member listens at an abstract Unix name made of address, port and slot, and gives the
//! sockets of the group to every process of the same user that connects. A name exists while a
//! process has the listening socket, so a slot is free again when its process ended, in whatever way.
//! One more name is the lock under which devices join: it exists while one does.
//!
//! Any process of the network namespace can take any of these names. So none of them is waited for that a
//! process of another user has, or one that is stopped: a slot whose name is taken is not free, and that
//! is all. The lock only keeps devices that join at the same time from disturbing each other. Without it,
//! one of those that make a group at once does, as the kernel binds the first socket of one of them only,
//! and the others find it; and a slot is its device's once its name is bound.

use std::io::{IoSlice, IoSliceMut};
use std::mem::{self, MaybeUninit};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, thread};

use gdr_process::PeerUser;
use gdr_process::block_signals;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::deadline::Deadline;
use crate::error::{Error, PortSharingError, Result};
use crate::local_socket::{self, Connected};
use crate::process_fd::ProcessFd;
use crate::slot::{SLOTS, SOCKETS, Slot};

use super::sockets;

type Shared<T> = std::result::Result<T, PortSharingError>;

/// How long a device waits while others of its user join.
const JOIN_LIMIT: Duration = Duration::from_secs(30);
/// How long it waits while so many processes wait for the lock that the kernel does not tell whose it is.
const CROWD_LIMIT: Duration = Duration::from_millis(200);
/// How often a wait looks whether the process that it waits for is stopped.
const LOOK: Duration = Duration::from_millis(50);
/// How long the members may take to answer. Where more threads are runnable than there are processors,
/// their threads may wait long for one. It passes if none of them runs: each is stopped, or is a child of a
/// member that ended which was not made by `fork` (see [`ProcessFd`]).
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long one member may take to answer before the next one is asked as well.
const STAGGER: Duration = Duration::from_millis(20);
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
const GREETING: &[u8] = b"gdr port group 2";

/// The name of a slot, or of the lock.
fn name(address: SocketAddr, what: &str) -> Shared<SocketAddrUnix> {
    let name = format!("gdr-roce/{address}/{what}");
    SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(os("naming a port group"))
}

fn slot_name(address: SocketAddr, slot: Slot) -> Shared<SocketAddrUnix> {
    name(address, &slot.index().to_string())
}

fn bind(name: &SocketAddrUnix) -> Shared<Option<ProcessFd>> {
    local_socket::listen(name, SocketType::STREAM, BACKLOG)
        .map_err(os("listening at a Unix socket"))
}

fn connect(name: &SocketAddrUnix) -> Shared<Connected> {
    let connected = local_socket::connect(name, SocketType::STREAM);
    connected.map_err(os("connecting to a member of a port group"))
}

fn os(call: &'static str) -> impl Fn(Errno) -> PortSharingError {
    move |errno| PortSharingError::Os {
        call,
        source: errno.into(),
    }
}

/// The right to join a group or to make it. Dropping it lets the next device join.
pub(super) struct JoinLock {
    address: SocketAddr,
    /// `None` if a process has the name that is not waited for.
    _listener: Option<ProcessFd>,
}

impl JoinLock {
    /// Waits until no other device of this user joins.
    pub(super) fn acquire(address: SocketAddr) -> Shared<Self> {
        let deadline = Deadline::after(JOIN_LIMIT);
        let crowd_deadline = Deadline::after(CROWD_LIMIT);
        let name = name(address, "lock")?;
        loop {
            let listener = bind(&name)?;
            let is_over = match &listener {
                Some(_) => true,
                // No connection is accepted. It ends when the other device has joined.
                None => match connect(&name)? {
                    Connected::Free => false,
                    Connected::Crowded => {
                        thread::sleep(STAGGER);
                        crowd_deadline.has_passed()
                    }
                    Connected::To(holder) => match PeerUser::of_unix(holder.as_fd()) {
                        (PeerUser::Own, process) if !is_stopped(process) => {
                            wait_readable(&[holder.as_fd()], Some(LOOK));
                            false
                        }
                        _ => true,
                    },
                },
            };
            if is_over || deadline.has_passed() {
                if listener.is_none() {
                    tracing::debug!(%address, "joining a port group without its lock");
                }
                return Ok(Self {
                    address,
                    _listener: listener,
                });
            }
        }
    }
}

/// What [`find`] finds.
pub(super) struct Found {
    /// The sockets of the group, by slot and with the one for management datagrams, if it has a member.
    pub(super) sockets: Option<Vec<ProcessFd>>,
    /// The slots that no device has.
    pub(super) free: Vec<Slot>,
}

/// A member that was asked.
struct Asked {
    slot: Slot,
    socket: OwnedFd,
    process: i32,
}

/// Asks the members of a group for its sockets.
pub(super) fn find(lock: &JoinLock) -> Shared<Found> {
    let mut search = Search {
        address: lock.address,
        deadline: Deadline::after(ANSWER_LIMIT),
        asked: Vec::new(),
        crowded: Vec::new(),
        left: [ATTEMPTS; SLOTS],
        is_unknown: false,
        failed: None,
        found: Found {
            sockets: None,
            free: Vec::new(),
        },
    };
    for slot in Slot::all() {
        let asked = search.asked.len();
        search.ask(slot)?;
        // Once there is an answer, the rest is asked only whether it exists.
        if search.asked[asked..].iter().any(Asked::may_answer) {
            search.collect(STAGGER)?;
        }
    }
    search.wait()?;
    if search.found.sockets.is_none() {
        if let Some(error) = search.failed {
            return Err(error);
        }
        if search.is_unknown && sockets::is_bound(lock.address)? {
            return Err(PortSharingError::UnknownUser);
        }
    }
    search.found.free.sort_unstable_by_key(|slot| slot.index());
    Ok(search.found)
}

/// The members of a group as far as they were asked.
struct Search {
    address: SocketAddr,
    deadline: Deadline,
    asked: Vec<Asked>,
    /// The slots whose owner the kernel does not name.
    crowded: Vec<Slot>,
    /// How often each may still be asked.
    left: [usize; SLOTS],
    /// Whether the kernel does not tell whose process has one of the names.
    is_unknown: bool,
    /// Why the answer of a member was useless.
    failed: Option<PortSharingError>,
    found: Found,
}

impl Search {
    /// Asks the member that has a slot, if it runs as this user.
    fn ask(&mut self, slot: Slot) -> Shared<()> {
        match connect(&slot_name(self.address, slot)?)? {
            Connected::Free => self.found.free.push(slot),
            Connected::Crowded => self.crowded.push(slot),
            Connected::To(_) if self.found.sockets.is_some() => {}
            Connected::To(socket) => {
                let (user, process) = PeerUser::of_unix(socket.as_fd());
                match user {
                    PeerUser::Own => self.asked.push(Asked {
                        slot,
                        socket,
                        process,
                    }),
                    PeerUser::Unknown => self.is_unknown = true,
                    PeerUser::Root | PeerUser::Other(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Takes the answers that come within a limit, up to the first one with the sockets.
    fn collect(&mut self, limit: Duration) -> Shared<()> {
        let deadline = Deadline::after(limit);
        while self.found.sockets.is_none() && !self.asked.is_empty() {
            let sockets: Vec<_> = self.asked.iter().map(|it| it.socket.as_fd()).collect();
            let ready = wait_readable(&sockets, Some(deadline.remaining()));
            let Some(at) = ready.iter().position(|ready| *ready) else {
                if deadline.has_passed() {
                    break;
                }
                continue;
            };
            let Asked { slot, socket, .. } = self.asked.remove(at);
            match receive_sockets(socket.as_fd()) {
                Ok(Some(sockets)) => self.found.sockets = Some(sockets),
                // It ends, and the name is free soon; or it cannot send.
                Ok(None) if self.left[slot.index()] > 0 => {
                    self.left[slot.index()] -= 1;
                    self.ask(slot)?;
                }
                Ok(None) => {}
                Err(error) => self.failed = Some(error),
            }
        }
        Ok(())
    }

    /// Waits for members that have not answered, if there is a group.
    fn wait(&mut self) -> Shared<()> {
        while self.found.sockets.is_none()
            && !(self.asked.is_empty() && self.crowded.is_empty())
            // As long as a group has a member, its sockets are bound.
            && sockets::is_bound(self.address)?
        {
            if self.deadline.has_passed() {
                return Err(PortSharingError::Silent);
            }
            if self.crowded.is_empty()
                && let Some(stopped) = self.asked.first()
                && !self.asked.iter().any(Asked::may_answer)
            {
                let process = stopped.process;
                return Err(PortSharingError::Stopped { process });
            }
            for slot in mem::take(&mut self.crowded) {
                self.ask(slot)?;
            }
            match self.asked.is_empty() {
                true => thread::sleep(STAGGER),
                false => self.collect(LOOK)?,
            }
        }
        Ok(())
    }
}

impl Asked {
    /// Whether its process runs.
    fn may_answer(&self) -> bool {
        !is_stopped(self.process)
    }
}

/// Whether a process is stopped, by a signal or a debugger, as far as this process can see it.
fn is_stopped(process: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // proc_pid_stat(5): the state follows the name, which may have any character.
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|state| state.starts_with(['T', 't']))
}

/// Takes the name of a slot. `None` if another process has it.
pub(super) fn claim(lock: &JoinLock, slot: Slot) -> Shared<Option<ProcessFd>> {
    bind(&slot_name(lock.address, slot)?)
}

/// The name of a device that has a port for itself though its sockets are bound with `SO_REUSEPORT`.
/// It exists until this is dropped.
pub(in super::super) struct SolePort {
    _listener: ProcessFd,
}

/// Takes the name by which port groups find that a port is not shared. `None` if another process has it.
pub(in super::super) fn claim_port(address: SocketAddr) -> Result<Option<SolePort>> {
    let failed = |reason| Error::PortSharing { address, reason };
    let listener = name(address, SOLE).and_then(|name| bind(&name));
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
    match connect(&name).map_err(failed)? {
        Connected::To(_) | Connected::Crowded if sockets::is_bound(address).map_err(failed)? => {
            Err(Error::binding(address, Errno::ADDRINUSE))
        }
        // Any process can have taken the name.
        _ => Ok(()),
    }
}

/// Receives the sockets that a member of this user has sent; `None` if it closed the connection.
fn receive_sockets(member: BorrowedFd<'_>) -> Shared<Option<Vec<ProcessFd>>> {
    let mut greeting = [0; GREETING.len() + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        member,
        &mut [IoSliceMut::new(&mut greeting)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    );
    let received = match received {
        Ok(received) => received,
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
        GREETING if sockets.len() == SOCKETS => Ok(Some(sockets)),
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
    if PeerUser::of_unix(joining.as_fd()).0 != PeerUser::Own {
        return Ok(());
    }
    let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS))];
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
