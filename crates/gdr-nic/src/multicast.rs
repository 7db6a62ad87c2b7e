//! Multicast groups: the queue pairs attached to each group, and the thread that receives for them.
//!
//! A datagram to a group does not name a queue pair, and arrives at the group's socket, so the path of other packets
//! need not check for it. A thread, which is started with the first attachment, copies it to all attached queue pairs.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use gdr_process::lock::lock;
use gdr_process::{ProcessId, block_signals};
use gdr_roce::Qpn;
use gdr_roce::wire::{MAX_DATAGRAM, Packet};
use gdr_udp::{Datagram, MulticastSocket, Received};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::ending_thread::EndingThread;
use crate::error::{Error, Result};
use crate::shard::shared_engine::SharedEngine;
use crate::types::Counters;

/// The maximum number of groups that a device receives from.
pub const MOST_GROUPS: usize = 256;
/// The maximum number of queue pairs attached to a group.
pub const MOST_ATTACHED: usize = 64;
/// The number of datagrams received from one group before the next group has its turn.
const RECEIVES: usize = 64;

/// The multicast groups of a device. The thread ends when this is dropped.
pub(crate) struct MulticastGroups {
    origin: ProcessId,
    shared: Arc<Shared>,
    thread: Option<EndingThread>,
}

/// State shared by the thread and the threads that attach queue pairs.
struct Shared {
    local: SocketAddr,
    engines: Vec<Arc<SharedEngine>>,
    /// Locked before an engine.
    groups: Mutex<BTreeMap<IpAddr, Group>>,
    /// Counters of received datagrams.
    counters: Mutex<Counters>,
    /// The epoll instance of the groups' sockets and the wake-up event.
    readiness: OwnedFd,
    notify: OwnedFd,
    is_stopped: AtomicBool,
}

struct Group {
    socket: MulticastSocket,
    attached: Vec<Qpn>,
}

impl MulticastGroups {
    /// Starts the thread, for these engines of the device at `local`.
    pub(crate) fn start(local: SocketAddr, engines: Vec<Arc<SharedEngine>>) -> Result<Self> {
        let failed = |call| move |errno: Errno| Error::os(call, errno);
        let readiness =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("epoll_create"))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let shared = Arc::new(Shared {
            local,
            engines,
            groups: Mutex::default(),
            counters: Mutex::default(),
            readiness,
            notify: eventfd(0, flags).map_err(failed("eventfd"))?,
            is_stopped: AtomicBool::new(false),
        });
        shared.watch(shared.notify.as_fd())?;
        let for_thread = Arc::clone(&shared);
        let thread = EndingThread::start("gdr-multicast", move || for_thread.run())?;
        Ok(Self {
            origin: ProcessId::current(),
            shared,
            thread: Some(thread),
        })
    }

    /// Returns counters of the datagrams received from groups.
    pub(crate) fn counters(&self) -> Counters {
        *lock(&self.shared.counters)
    }

    /// Attaches a queue pair to a group. Does nothing if it is already attached.
    pub(crate) fn attach(&self, qpn: Qpn, group: IpAddr) -> Result<()> {
        let mut groups = lock(&self.shared.groups);
        if let Some(group) = groups.get_mut(&group) {
            if group.attached.contains(&qpn) {
                return Ok(());
            }
            if group.attached.len() >= MOST_ATTACHED {
                return Err(Error::TooManyAttached {
                    most: MOST_ATTACHED,
                });
            }
            group.attached.push(qpn);
            return Ok(());
        }
        if groups.len() >= MOST_GROUPS {
            return Err(Error::TooManyGroups { most: MOST_GROUPS });
        }
        let socket = MulticastSocket::join(self.shared.local, group)?;
        self.shared.watch(socket.as_fd())?;
        let attached = vec![qpn];
        groups.insert(group, Group { socket, attached });
        Ok(())
    }

    /// Reverses [`MulticastGroups::attach`]: once this has returned, the queue pair receives nothing from the group.
    pub(crate) fn detach(&self, qpn: Qpn, group: IpAddr) -> Result<()> {
        let mut groups = lock(&self.shared.groups);
        let found = groups.get_mut(&group).ok_or(Error::NotAttached)?;
        let place = found.attached.iter().position(|attached| *attached == qpn);
        found.attached.remove(place.ok_or(Error::NotAttached)?);
        if found.attached.is_empty() {
            self.shared.ignore(&found.socket);
            groups.remove(&group);
        }
        Ok(())
    }

    /// Detaches a queue pair from all groups.
    pub(crate) fn detach_all(&self, qpn: Qpn) {
        lock(&self.shared.groups).retain(|_, group| {
            group.attached.retain(|attached| *attached != qpn);
            let stays = !group.attached.is_empty();
            if !stays {
                self.shared.ignore(&group.socket);
            }
            stays
        });
    }
}

impl Shared {
    /// Makes the thread watch for arrivals at this socket.
    fn watch(&self, descriptor: BorrowedFd<'_>) -> Result<()> {
        let number = EventData::new_u64(descriptor.as_raw_fd().unsigned_abs().into());
        epoll::add(&self.readiness, descriptor, number, EventFlags::IN)
            .map_err(|errno| Error::os("epoll_ctl", errno))
    }

    /// Stops watching a socket that is about to be closed. A child made by a bare `clone` may keep it open.
    fn ignore(&self, socket: &MulticastSocket) {
        if let Err(error) = epoll::delete(&self.readiness, socket) {
            tracing::debug!(%error, "the socket of a group stays watched");
        }
    }

    fn run(&self) {
        block_signals();
        let mut room = vec![0; MAX_DATAGRAM];
        let mut ready = Vec::with_capacity(MOST_GROUPS);
        while !self.is_stopped.load(Ordering::Acquire) {
            ready.clear();
            // The thread is asked to end by an event, too.
            match epoll::wait(&self.readiness, spare_capacity(&mut ready), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "nothing is received from multicast groups any more");
                    return;
                }
            }
            for event in &ready {
                self.receive(event.data.u64(), &mut room);
            }
        }
    }

    /// Receives what has arrived at the socket with this number, unless the group has been left meanwhile.
    fn receive(&self, number: u64, room: &mut [u8]) {
        let groups = lock(&self.groups);
        let is_meant =
            |group: &&Group| u64::from(group.socket.as_fd().as_raw_fd().unsigned_abs()) == number;
        let Some(group) = groups.values().find(is_meant) else {
            return;
        };
        for _ in 0..RECEIVES {
            match group.socket.receive(room) {
                Ok(Received::Datagram(datagram)) => self.deliver(&group.attached, &datagram),
                Ok(Received::Damaged) => {}
                Ok(Received::Nothing) => break,
                Err(error) => {
                    tracing::debug!(%error, "receiving from a multicast group failed");
                    break;
                }
            }
        }
    }

    /// Copies a datagram to the queue pairs that are attached to its group.
    fn deliver(&self, attached: &[Qpn], datagram: &Datagram<'_>) {
        let packet = Packet::new(datagram.payload).ok();
        let Some(packet) = packet.filter(|it| it.bth().dest_qpn == Qpn::MULTICAST) else {
            return;
        };
        let mut counters = lock(&self.counters);
        counters.packets_received += 1;
        counters.bytes_received += datagram.len() as u64;
        counters.received_by_groups += 1;
        drop(counters);
        for engine in &self.engines {
            let own: Vec<_> = attached
                .iter()
                .copied()
                .filter(|qpn| engine.owns(*qpn))
                .collect();
            if !own.is_empty() {
                engine.receive_multicast(&own, &packet, datagram);
            }
        }
    }
}

impl Drop for MulticastGroups {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if !self.origin.is_current() {
            // The thread belongs to the parent, and so does the eventfd that wakes it.
            thread.into_iter().for_each(EndingThread::forget);
            return;
        }
        self.shared.is_stopped.store(true, Ordering::Release);
        // This only fails if the counter is at its limit, which wakes the thread as well.
        let _ = rustix::io::write(&self.shared.notify, &1_u64.to_ne_bytes());
        thread.into_iter().for_each(EndingThread::join);
    }
}
