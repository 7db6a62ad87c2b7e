//! Members of a port group, and how they find one another.
//!
//! Each member listens at an abstract Unix name derived from address, port and slot, and passes the group's sockets to
//! any process of the same user that connects. A name exists while a process holds its listening socket, so a slot
//! becomes free as soon as its process ends, however it ends. One more name serves as the lock for joining: it exists
//! while some device joins.
//!
//! Any process of the network namespace can take any of these names. So a device never waits for a name that is held by
//! another user's process, or by a stopped one: such a slot is merely not free. The lock only keeps devices that join
//! at the same time from disturbing one another, and is not needed for correctness. Without it, of several devices that
//! create a group at once exactly one succeeds, as the kernel binds the first socket of only one, and the others find
//! its group. And a device owns a slot as soon as it has bound the slot's name.

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
/// How long it waits while the lock's backlog is full, so that the kernel does not reveal the holder.
const CROWD_LIMIT: Duration = Duration::from_millis(200);
/// How often a waiting device checks whether the lock holder is stopped.
const LOOK: Duration = Duration::from_millis(50);
/// How long to wait for any member to answer. On an overloaded host their threads may have to wait long for a CPU. The
/// limit is reached if no member's thread can run: each is stopped, or is a child of an exited member that was not made
/// by `fork` (see [`ProcessFd`]).
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long to wait for one member before asking the next one as well.
const STAGGER: Duration = Duration::from_millis(20);
/// How often a member that closes the connection is asked again: it is exiting, or cannot send the sockets.
const ATTEMPTS: usize = 8;
/// How long a member pauses after accepting a connection failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The maximum number of pending connections.
const BACKLOG: i32 = 64;
/// The last part of the name held by a device that has its port to itself.
const SOLE: &str = "sole";
/// The message that accompanies the sockets. It must change whenever the number of slots or their place in a queue pair
/// number changes.
const GREETING: &[u8] = b"gdr port group 2";

/// Returns the name of a slot, or of the lock.
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

/// The right to join or create a group. Dropping it lets the next device proceed.
pub(super) struct JoinLock {
    address: SocketAddr,
    /// `None` if the name is held by a process that must not be waited for.
    _listener: Option<ProcessFd>,
}

impl JoinLock {
    /// Waits until no other device of this user is joining.
    pub(super) fn acquire(address: SocketAddr) -> Shared<Self> {
        let deadline = Deadline::after(JOIN_LIMIT);
        let crowd_deadline = Deadline::after(CROWD_LIMIT);
        let name = name(address, "lock")?;
        loop {
            let listener = bind(&name)?;
            let is_over = match &listener {
                Some(_) => true,
                // The holder accepts no connections; this one is closed when the holder is done.
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

/// The result of [`find`].
pub(super) struct Found {
    /// The group's sockets, by slot and then the management socket, if some member sent them.
    pub(super) sockets: Option<Vec<ProcessFd>>,
    /// Slots that no device holds.
    pub(super) free: Vec<Slot>,
}

/// A member that was asked and has not answered.
struct Asked {
    slot: Slot,
    socket: OwnedFd,
    process: i32,
}

/// Asks the members of a group for its sockets, and finds the free slots.
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
        // Once a member has answered, the others are only probed for existence.
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

/// The state of a search for members.
struct Search {
    address: SocketAddr,
    deadline: Deadline,
    asked: Vec<Asked>,
    /// Slots whose backlog is full, so that their holder is unknown.
    crowded: Vec<Slot>,
    /// Attempts left for each slot.
    left: [usize; SLOTS],
    /// Whether the user of some name's holder cannot be determined.
    is_unknown: bool,
    /// Why a member's answer was unusable.
    failed: Option<PortSharingError>,
    found: Found,
}

impl Search {
    /// Asks the member that holds a slot, if it runs as this user.
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

    /// Takes answers for up to `limit`, until one has the sockets.
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
                // Either it is exiting, and the name will be free soon, or it cannot send.
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

    /// Waits for outstanding answers, if a group exists.
    fn wait(&mut self) -> Shared<()> {
        while self.found.sockets.is_none()
            && !(self.asked.is_empty() && self.crowded.is_empty())
            // A group's sockets are bound as long as it has a member.
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
    /// Returns whether its process is not stopped.
    fn may_answer(&self) -> bool {
        !is_stopped(self.process)
    }
}

/// Returns whether a process is stopped by a signal or debugger, as far as this process can see.
fn is_stopped(process: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // proc_pid_stat(5): the state follows the name, which may contain any character.
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|state| state.starts_with(['T', 't']))
}

/// Claims the name of a slot. Returns `None` if another process holds it.
pub(super) fn claim(lock: &JoinLock, slot: Slot) -> Shared<Option<ProcessFd>> {
    bind(&slot_name(lock.address, slot)?)
}

/// The name of a device that has a port to itself but binds its sockets with `SO_REUSEPORT`. Dropping it releases the
/// name.
pub(in super::super) struct SolePort {
    _listener: ProcessFd,
}

/// Claims the name that shows port groups that a port is not shared. Returns `None` if another process holds it.
pub(in super::super) fn claim_port(address: SocketAddr) -> Result<Option<SolePort>> {
    let failed = |reason| Error::PortSharing { address, reason };
    let listener = name(address, SOLE).and_then(|name| bind(&name));
    let listener = listener.map_err(failed)?;
    Ok(listener.map(|listener| SolePort {
        _listener: listener,
    }))
}

/// Fails if a device has the port to itself.
pub(super) fn check_unclaimed(lock: &JoinLock) -> Result<()> {
    let address = lock.address;
    let failed = |reason| Error::PortSharing { address, reason };
    let name = name(address, SOLE).map_err(failed)?;
    match connect(&name).map_err(failed)? {
        Connected::To(_) | Connected::Crowded if sockets::is_bound(address).map_err(failed)? => {
            Err(Error::binding(address, Errno::ADDRINUSE))
        }
        // A process of another user, which can take any name, does not count.
        _ => Ok(()),
    }
}

/// Receives the sockets sent by a member of this user. Returns `None` if the member closed the connection.
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

/// Waits until a descriptor is readable, or its peer has closed.
fn wait_readable(descriptors: &[BorrowedFd<'_>], limit: Option<Duration>) -> Vec<bool> {
    let mut fds: Vec<_> = descriptors
        .iter()
        .map(|descriptor| PollFd::from_borrowed_fd(*descriptor, PollFlags::IN))
        .collect();
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    // EINTR and the like end the wait early; the caller repeats it.
    match rustix::event::poll(&mut fds, limit.as_ref()) {
        Ok(_) => fds.iter().map(|fd| !fd.revents().is_empty()).collect(),
        Err(_) => vec![false; fds.len()],
    }
}

/// The thread of a member that passes the sockets to joining devices. Dropping it ends the thread and frees the slots.
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
                // The order matters: a device that finds the names free may create a new group.
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

/// Accepts one connection and sends it the sockets.
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
        // The device only probed whether this member exists, and has closed the connection.
        Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
        Err(errno) => Err(os("sending the sockets of a port group")(errno)),
    }
}
