//! Devices.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::ops::Deref;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use gdr_roce::Mtu;
use gdr_roce::wire::UDP_PORT;
use rustix::net::sockopt;

use crate::completion::CompletionQueue;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::event::AsyncEvent;
use crate::lid::Lid;
use crate::region::ProtectionDomain;
use crate::soft::{Counters, HEADERS, Soft, SoftAddress};
use crate::verbs::{ChosenGid, Context, Domain, Queue, VerbsDevice, VerbsOptions};

/// How long a device's thread is given to end. A turn takes well below a millisecond; copies to a
/// GPU that hangs take longer.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// What moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Provider {
    /// This process, by RoCEv2 over a UDP socket.
    Soft,
    /// A device of the kernel through libibverbs: InfiniBand, RoCE, iWARP, Linux's rxe and siw.
    Verbs,
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Soft => "soft (RoCEv2 in user space)",
            Self::Verbs => "verbs (a device of the kernel)",
        })
    }
}

/// How far an arriving packet is checked before its bytes are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Integrity {
    /// RoCE's own CRC over headers and payload, from end to end.
    Icrc,
    /// The same over IPv4, with a raw socket (CAP_NET_RAW), for packets without a UDP checksum:
    /// those of network cards and of the kernel's rxe. Of packets that have one, such as this
    /// provider's own, the kernel checks it, and this process 16 bits of the ICRC as in
    /// [`Integrity::IcrcOfAnyIdentification`].
    IcrcOrChecksum,
    /// The same as far as a UDP socket over IPv4 can: the ICRC covers the identification field,
    /// which the socket does not tell, so one that some value of this field explains is taken.
    /// That leaves 16 of its 32 bits: no single flipped bit goes unseen, and one in 65536 of
    /// other changes. UDP's own checksum comes on top, where the sender set one.
    IcrcOfAnyIdentification,
}

impl fmt::Display for Integrity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Icrc => "ICRC checked",
            Self::IcrcOrChecksum => {
                "ICRC checked (where UDP has a checksum, that and 16 of the ICRC's 32 bits)"
            }
            Self::IcrcOfAnyIdentification => {
                "ICRC checked to 16 of its 32 bits (IPv4's identification field is hidden without \
                 CAP_NET_RAW)"
            }
        })
    }
}

/// How to open a device of the soft provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct SoftOptions {
    pub(crate) address: SocketAddr,
    pub(crate) busy_poll: Duration,
    pub(crate) receive_buffer: usize,
}

impl SoftOptions {
    /// At `address`, on RoCE's UDP port 4791.
    pub const fn new(address: IpAddr) -> Self {
        Self {
            address: SocketAddr::new(address, UDP_PORT),
            busy_poll: Duration::from_micros(50),
            receive_buffer: 8 << 20,
        }
    }

    /// On another port; 0 takes a free one. Only peers that are told of it can send there: network
    /// cards and the kernel use 4791.
    pub const fn port(mut self, port: u16) -> Self {
        self.address.set_port(port);
        self
    }

    /// How long threads that wait, the engine's own and those in [`CompletionQueue::wait`], stay
    /// awake after the last packet before they sleep: 50 us unless said otherwise. Longer is
    /// faster (waking takes some microseconds) and takes CPU time that others may need.
    pub const fn busy_poll(mut self, busy_poll: Duration) -> Self {
        self.busy_poll = busy_poll;
        self
    }

    /// How many bytes the kernel is asked to keep of what arrived and was not yet taken: 8 MiB
    /// unless said otherwise. What it grants is [`Device::receive_buffer`].
    pub const fn receive_buffer(mut self, bytes: usize) -> Self {
        self.receive_buffer = bytes;
        self
    }
}

impl Default for SoftOptions {
    /// At 127.0.0.1.
    fn default() -> Self {
        Self::new(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }
}

/// An RDMA device. A clone is the same device.
///
/// Everything made from a device holds it. It closes when the last of them is gone: its thread
/// ends and its sockets close before that drop returns.
///
/// Every method of this crate may be called from any thread, and two threads may post to and poll
/// the same queues. The engine is behind one lock a device: threads that post at the same time
/// wait for each other for the time of a few packets.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    engine: Engine,
    name: String,
}

/// What a device is made of.
pub(crate) enum Engine {
    /// An engine of this process.
    Soft(SoftEngine),
    /// A device of the kernel.
    Verbs(Arc<Context>),
}

/// An engine of this process and its thread, which ends with this.
pub(crate) struct SoftEngine {
    soft: Arc<Soft>,
    name: String,
    thread: Option<JoinHandle<()>>,
    /// Disconnects when the thread ends. Locked by nobody: only the drop looks at it.
    ended: Mutex<Receiver<()>>,
}

impl Deref for SoftEngine {
    type Target = Soft;

    fn deref(&self) -> &Soft {
        &self.soft
    }
}

impl Device {
    /// Opens a device of the soft provider at `address`, an address of this host, on UDP port
    /// 4791. Each device of a host needs an address of its own; 127.0.0.0/8 has many.
    ///
    /// # Errors
    /// As [`Device::soft_with`].
    pub fn soft(address: IpAddr) -> Result<Self> {
        Self::soft_with(SoftOptions::new(address))
    }

    /// As [`Device::soft`], with choices.
    ///
    /// # Errors
    /// [`Error::PortInUse`], [`Error::AddressNotLocal`], [`Error::AddressNotUnicast`],
    /// [`Error::Os`].
    pub fn soft_with(options: SoftOptions) -> Result<Self> {
        let ip = options.address.ip();
        if ip.is_unspecified() || ip.is_multicast() {
            return Err(Error::AddressNotUnicast(ip));
        }
        let (alive, ended) = channel();
        let (soft, thread) = Soft::start(&options, alive)?;
        let name = match soft.local() {
            local if local.port() == UDP_PORT => format!("soft-{}", local.ip()),
            local => format!("soft-{local}"),
        };
        tracing::debug!(%name, receive_buffer = soft.receive_buffer(), "device opened");
        let engine = Engine::Soft(SoftEngine {
            soft,
            name: name.clone(),
            thread: Some(thread),
            ended: Mutex::new(ended),
        });
        Ok(Self(Arc::new(Inner { engine, name })))
    }

    /// Opens a device of the kernel through libibverbs, which is loaded at run time
    /// (`libibverbs.so.1`, or what `GDR_LIBIBVERBS` names).
    ///
    /// # Errors
    /// [`Error::Verbs`]: no library, no device, no such device, a port that is down, no GID that
    /// routes.
    pub fn verbs(options: &VerbsOptions) -> Result<Self> {
        let context = Arc::new(Context::open(options)?);
        let name = context.name().to_owned();
        tracing::debug!(%name, gid = context.gid().why, "device opened");
        let engine = Engine::Verbs(context);
        Ok(Self(Arc::new(Inner { engine, name })))
    }

    /// The addresses of this host at which a device of the soft provider can be opened.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn list_soft() -> Result<Vec<SoftAddress>> {
        crate::soft::addresses()
    }

    /// The devices of the kernel that libibverbs shows, by name, with their ports and GIDs, whether
    /// or not they could be used. Nothing stays open. Ask [`VerbsOptions`] for the library.
    ///
    /// # Errors
    /// [`VerbsError::Load`](crate::VerbsError::Load) in [`Error::Verbs`]: no library, none that is
    /// libibverbs, or no device.
    pub fn list_verbs(options: &VerbsOptions) -> Result<Vec<VerbsDevice>> {
        Ok(crate::verbs::list(options.library)?)
    }

    /// The GID that a device of the kernel uses, and why; `None` for the soft provider.
    pub fn gid(&self) -> Option<&ChosenGid> {
        match self.engine() {
            Engine::Soft(_) => None,
            Engine::Verbs(context) => Some(context.gid()),
        }
    }

    /// Its name, e.g. `soft-127.0.0.1`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What moves the bytes.
    pub fn provider(&self) -> Provider {
        match self.engine() {
            Engine::Soft(_) => Provider::Soft,
            Engine::Verbs(_) => Provider::Verbs,
        }
    }

    /// Where peers send to.
    pub fn address(&self) -> SocketAddr {
        match self.engine() {
            Engine::Soft(soft) => soft.local(),
            Engine::Verbs(context) => context.address(),
        }
    }

    /// Where the port is in its InfiniBand subnet; `None` on Ethernet and for the soft provider.
    pub fn lid(&self) -> Option<Lid> {
        match self.engine() {
            Engine::Soft(_) => None,
            Engine::Verbs(context) => context.lid(),
        }
    }

    /// How far arriving packets are checked.
    pub fn integrity(&self) -> Integrity {
        match self.engine() {
            Engine::Soft(soft) => soft.integrity(),
            Engine::Verbs(_) => Integrity::Icrc,
        }
    }

    /// Bytes that the kernel keeps for packets not yet taken, its bookkeeping included; 0 for a
    /// device of the kernel, which has queues of its own. Twice what
    /// [`SoftOptions::receive_buffer`] asked for, or twice `net.core.rmem_max` where that is less
    /// and this process has no CAP_NET_ADMIN. The packets that a queue pair of this device may
    /// have in flight are limited to half of it, the peer's being taken to be alike.
    pub fn receive_buffer(&self) -> usize {
        match self.engine() {
            Engine::Soft(soft) => soft.receive_buffer(),
            Engine::Verbs(_) => 0,
        }
    }

    /// What was sent, received and dropped; nothing is counted for a device of the kernel.
    pub fn counters(&self) -> Counters {
        match self.engine() {
            Engine::Soft(soft) => soft.counters(),
            Engine::Verbs(_) => Counters::default(),
        }
    }

    /// The largest path MTU that the way to `peer` carries without fragments, as far as this host
    /// knows.
    ///
    /// # Errors
    /// [`Error::AddressFamily`], [`Error::Os`], also where it carries not even the smallest.
    pub fn path_mtu(&self, peer: IpAddr) -> Result<Mtu> {
        if let Engine::Verbs(context) = self.engine() {
            return Ok(context.mtu());
        }
        let local = self.address().ip();
        if local.is_ipv4() != peer.is_ipv4() {
            return Err(Error::AddressFamily { local, peer });
        }
        let failed = |call| move |source: io::Error| Error::os(call, source);
        // Connecting a UDP socket sends nothing; it looks the route up.
        let probe = UdpSocket::bind((local, 0)).map_err(failed("bind"))?;
        probe.connect((peer, UDP_PORT)).map_err(failed("connect"))?;
        let (mtu, ip) = match peer {
            IpAddr::V4(_) => (sockopt::ip_mtu(&probe), 20),
            IpAddr::V6(_) => (sockopt::ipv6_mtu(&probe), 40),
        };
        let mtu = mtu.map_err(|errno| Error::os("getsockopt(IP_MTU)", errno))?;
        Mtu::at_most((mtu as usize).saturating_sub(ip + HEADERS)).ok_or_else(|| {
            let reason = format!("an interface MTU of {mtu} is below RoCE's smallest");
            Error::os("finding a path MTU", io::Error::other(reason))
        })
    }

    /// A new protection domain (`ibv_alloc_pd`).
    pub fn protection_domain(&self) -> ProtectionDomain {
        match self.engine() {
            Engine::Soft(soft) => ProtectionDomain::soft(self.clone(), soft.new_domain()),
            Engine::Verbs(context) => {
                ProtectionDomain::verbs(self.clone(), Arc::new(Domain::new(context)))
            }
        }
    }

    /// A new completion queue of `capacity` entries (`ibv_create_cq`): as many as the requests of
    /// all queue pairs that use it is always enough.
    pub fn completion_queue(&self, capacity: usize) -> CompletionQueue {
        match self.engine() {
            Engine::Soft(_) => CompletionQueue::soft(self.clone(), capacity),
            Engine::Verbs(context) => {
                CompletionQueue::verbs(self.clone(), Arc::new(Queue::new(context, capacity)))
            }
        }
    }

    /// The next asynchronous event, if there is one.
    pub fn poll_event(&self) -> Option<AsyncEvent> {
        match self.engine() {
            Engine::Soft(soft) => soft.events().pop(),
            Engine::Verbs(context) => context.poll_event(),
        }
    }

    /// Waits for the next asynchronous event.
    ///
    /// # Errors
    /// [`Error::Deadline`].
    pub fn wait_event(&self, deadline: Deadline) -> Result<AsyncEvent> {
        match self.engine() {
            Engine::Soft(soft) => soft.events().pop_asleep(deadline),
            Engine::Verbs(context) => context.wait_event(deadline),
        }
        .ok_or(Error::Deadline {
            what: "an asynchronous event",
            remedy: "none may be due",
        })
    }

    /// Takes what has arrived and sends what is to be sent, without waiting; whether there was
    /// anything to do.
    ///
    /// Nobody needs to call this: the device's own thread does it. A program that watches memory
    /// in a loop gains by calling it in that loop, since no other thread must run then.
    pub fn progress(&self) -> bool {
        match self.engine() {
            Engine::Soft(soft) => soft.progress(),
            // The device does it.
            Engine::Verbs(_) => false,
        }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.0.engine
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.0.name)
            .finish_non_exhaustive()
    }
}

impl Drop for SoftEngine {
    fn drop(&mut self) {
        self.soft.stop();
        let Some(thread) = self.thread.take() else {
            return;
        };
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        match ended.recv_timeout(STOP_LIMIT) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                if thread.join().is_err() {
                    tracing::error!(device = self.name, "the engine's thread had panicked");
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                tracing::error!(
                    device = self.name,
                    "the engine's thread does not stop; it ends with the process"
                );
            }
        }
    }
}
