//! Servers, which own objects.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use gdr_rdma::{
    Deadline, Device, Error as RdmaError, Listener, ProtectionDomain, Security, Session,
    SoftOptions,
};

use crate::content::Place;
use crate::epoch::Generation;
use crate::error::{Error, Result};
use crate::info::ObjectInfo;
use crate::link_table::{LinkTable, Most, Source};
use crate::lock::{lock, read, write};
use crate::mode::{Mode, Rights};
use crate::name::ObjectName;
use crate::object::{Object, ObjectOptions};
use crate::protocol::{Domain, ObjectId, SERVICE};
use crate::publisher::Publisher;
use crate::service::Service;
use crate::shared_object::{Identity, SharedObject};

/// How long a thread waits before it checks whether the server has ended.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// Options of an owner.
#[derive(Clone, Debug)]
#[must_use]
pub struct ServerOptions {
    security: Security,
    device: Option<Device>,
    limit: Option<NonZeroU64>,
    most_peers: usize,
    most_peers_of_one: Option<usize>,
    most_objects: usize,
    door: Door,
}

/// Whether links are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    Open,
    /// Not before [`ObjectServer::open`] is called.
    Closed,
}

impl ServerOptions {
    /// Serves peers that `security` accepts, through a device of the soft provider at the address that the
    /// server is bound to. The defaults are at most 256 links, 192 of them from one host, and 65,536 objects.
    pub fn new(security: Security) -> Self {
        Self {
            security,
            device: None,
            limit: None,
            most_peers: 256,
            most_peers_of_one: None,
            most_objects: 1 << 16,
            door: Door::Open,
        }
    }

    /// Serves through this device.
    pub fn device(mut self, device: &Device) -> Self {
        self.device = Some(device.clone());
        self
    }

    /// Limits the total rate at which the device sends to all peers, in bytes per second ([`Device::limit_sending`]).
    /// Readers share it, and a reader that gets nothing for 10 s fails. By default, the device's limit is unchanged.
    pub fn limit(mut self, bytes_per_second: NonZeroU64) -> Self {
        self.limit = Some(bytes_per_second);
        self
    }

    /// Sets how many links are served at a time. Each one takes a thread, and 64 or 128 KiB of memory.
    ///
    /// When the limit is reached, the link without open objects that has been idle for the longest time makes
    /// room for a new one; it reconnects in its next call. If every link has an object open, the new link is
    /// refused.
    pub fn most_peers(mut self, most: usize) -> Self {
        self.most_peers = most;
        self
    }

    /// Sets how many of these links may come from one host, which is an IPv4 address, a /64 IPv6 network, or
    /// a user of this host who connects through loopback addresses. The default is three quarters, so that no
    /// host can lock out the others.
    pub fn most_peers_of_one_host(mut self, most: usize) -> Self {
        self.most_peers_of_one = Some(most);
        self
    }

    /// Accepts no links before [`ObjectServer::open`] is called, so that the first link finds all objects. Until
    /// then, connections wait.
    pub fn closed(mut self) -> Self {
        self.door = Door::Closed;
        self
    }

    /// Sets the maximum number of objects.
    pub fn most_objects(mut self, most: usize) -> Self {
        self.most_objects = most;
        self
    }
}

/// An owner, which serves objects to links. It ends when it is dropped, and peers then get
/// [`Error::Gone`].
///
/// [`Security`] defines how peers are authenticated. **RDMA packets are neither encrypted nor
/// authenticated**: anyone who can read the network can read the objects' bytes and the keys of their
/// memory, and anyone who can forge packets can write to objects that peers may write.
pub struct ObjectServer {
    address: SocketAddr,
    shared: Arc<ServerShared>,
    acceptor: Option<JoinHandle<()>>,
}

/// Statistics of an owner, for monitoring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStats {
    /// Objects that exist.
    pub objects: u64,
    /// Links that are connected.
    pub links: u64,
    /// Links accepted since the start.
    pub links_accepted: u64,
    /// Connections that did not prove the key or spoke another protocol.
    pub connections_failed: u64,
    /// Links refused because there were too many.
    pub links_refused: u64,
    /// Idle links ended because there were too many.
    pub links_displaced: u64,
    /// Requests executed.
    pub requests: u64,
    /// Requests that were refused, for example because of missing rights or unknown objects.
    pub requests_refused: u64,
    /// Malformed messages; each ended its link.
    pub requests_malformed: u64,
}

/// The state that an owner's threads share.
#[derive(Debug)]
pub(crate) struct ServerShared {
    pub(crate) device: Device,
    pub(crate) generation: Generation,
    domains: [ProtectionDomain; 2],
    objects: RwLock<BTreeMap<ObjectName, Arc<SharedObject>>>,
    most_objects: usize,
    next_id: AtomicU64,
    pub(crate) publisher: Publisher,
    links: AtomicU64,
    pub(crate) counts: Counts,
    stopping: AtomicBool,
    door: Mutex<Door>,
    /// Signaled when the door changes, and when the server ends.
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    links_accepted: AtomicU64,
    connections_failed: AtomicU64,
    links_refused: AtomicU64,
    links_displaced: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) requests_refused: AtomicU64,
    pub(crate) requests_malformed: AtomicU64,
}

impl ObjectServer {
    /// Listens on a TCP address, and starts serving now or, if the options say so, with [`ObjectServer::open`]. Port 0
    /// picks a free port. Without [`ServerOptions::device`] the address must belong to a single interface,
    /// because the device is opened there, on a free UDP port.
    ///
    /// # Errors
    /// [`Error::Rdma`] if the address or the port cannot be used, if a key is required there, or if the device does not
    /// support a limit.
    pub fn bind(address: SocketAddr, options: ServerOptions) -> Result<Self> {
        let listener = Listener::bind(address)?;
        let device = match options.device {
            Some(device) => device,
            None => Device::soft_with(SoftOptions::new(address.ip()).port(0))?,
        };
        if options.limit.is_some() {
            device.limit_sending(options.limit)?;
        }
        let os = |source| Error::Os {
            call: "getrandom",
            source,
        };
        let generation = Generation::random().map_err(|error| os(std::io::Error::other(error)))?;
        let shared = Arc::new(ServerShared {
            generation,
            domains: [device.protection_domain(), device.protection_domain()],
            device,
            objects: RwLock::default(),
            most_objects: options.most_objects,
            next_id: AtomicU64::new(1),
            publisher: Publisher::start()?,
            links: AtomicU64::new(0),
            counts: Counts::default(),
            stopping: AtomicBool::new(false),
            door: Mutex::new(options.door),
            changed: Condvar::new(),
        });
        let bound = listener.address()?;
        // Fails at once if a key is required but missing.
        listener.check(&options.security)?;
        let all = options.most_peers;
        let of_one = options.most_peers_of_one.unwrap_or(all - all / 4).min(all);
        let acceptor = Acceptor {
            shared: Arc::clone(&shared),
            listener,
            security: options.security,
            links: LinkTable::new(Most { all, of_one }),
        };
        let acceptor = thread::Builder::new()
            .name("gdr-object-server".to_owned())
            .spawn(move || acceptor.run())
            .map_err(|source| Error::Os {
                call: "starting a thread",
                source,
            })?;
        Ok(Self {
            address: bound,
            shared,
            acceptor: Some(acceptor),
        })
    }

    /// Starts accepting links, if the server does not yet.
    pub fn open(&self) {
        *lock(&self.shared.door) = Door::Open;
        self.shared.changed.notify_all();
    }

    /// Returns the TCP address that links connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the generation, which identifies this run of the owner.
    pub fn generation(&self) -> Generation {
        self.shared.generation
    }

    /// Returns the device through which peers access the objects.
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// Creates an object, and allocates and registers its memory.
    ///
    /// # Errors
    /// [`Error::NameInUse`], [`Error::TooMany`], [`Error::Slots`], [`Error::Shape`];
    /// [`Error::Rdma`] and [`Error::Cuda`] if there is not enough memory or it cannot be
    /// registered.
    pub fn create(
        &self,
        name: ObjectName,
        options: ObjectOptions,
        place: &Place,
    ) -> Result<Object> {
        let ObjectOptions {
            element,
            shape,
            mode,
            checksum,
            grants,
        } = options;
        if let Mode::Ring { slots, .. } = mode
            && !(2..=Mode::MOST_SLOTS).contains(&slots)
        {
            return Err(Error::Slots(slots));
        }
        // Checked before the memory is allocated, which may take long.
        self.shared.check_new(&name)?;
        let domain = SharedObject::domain_of(&grants);
        let identity = Identity {
            id: ObjectId(self.shared.next_id.fetch_add(1, Ordering::Relaxed)),
            name,
            element,
            mode,
            checksum,
            grants,
            place: place.clone(),
            generation: self.shared.generation,
        };
        let object = SharedObject::new(identity, shape, self.shared.domain(domain))?;
        let object = Arc::new(object);
        self.shared.add(&object)?;
        Ok(Object::new(object, Arc::clone(&self.shared)))
    }

    /// Lists the owner's objects, in the order of their names.
    pub fn objects(&self) -> Vec<ObjectInfo> {
        let objects = read(&self.shared.objects);
        let describe = |it: &Arc<SharedObject>| it.describe(Rights::ReadWrite);
        let described = objects.values().filter_map(describe);
        described.map(|(info, ..)| info).collect()
    }

    /// Returns statistics.
    pub fn stats(&self) -> ServerStats {
        let count = |it: &AtomicU64| it.load(Ordering::Relaxed);
        let counts = &self.shared.counts;
        ServerStats {
            objects: read(&self.shared.objects).len() as u64,
            links: count(&self.shared.links),
            links_accepted: count(&counts.links_accepted),
            connections_failed: count(&counts.connections_failed),
            links_refused: count(&counts.links_refused),
            links_displaced: count(&counts.links_displaced),
            requests: count(&counts.requests),
            requests_refused: count(&counts.requests_refused),
            requests_malformed: count(&counts.requests_malformed),
        }
    }
}

impl Drop for ObjectServer {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(acceptor) = self.acceptor.take()
            && acceptor.join().is_err()
        {
            tracing::error!("the thread of a server panicked");
        }
    }
}

impl fmt::Debug for ObjectServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectServer")
            .field("address", &self.address)
            .field("generation", &self.shared.generation)
            .finish_non_exhaustive()
    }
}

impl ServerShared {
    pub(crate) fn domain(&self, domain: Domain) -> &ProtectionDomain {
        &self.domains[domain.index()]
    }

    pub(crate) fn object(&self, name: &ObjectName) -> Option<Arc<SharedObject>> {
        read(&self.objects).get(name).cloned()
    }

    /// Returns what `describe` says about at most `most` objects after `after`, in the order of
    /// names. Objects that it passes over do not count.
    pub(crate) fn describe_behind<T>(
        &self,
        after: Option<&ObjectName>,
        most: usize,
        describe: impl Fn(&SharedObject) -> Option<T>,
    ) -> Vec<T> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let objects = read(&self.objects);
        let behind = objects.range::<ObjectName, _>((from, Bound::Unbounded));
        let described = behind.filter_map(|(_, object)| describe(object));
        described.take(most).collect()
    }

    fn check_new(&self, name: &ObjectName) -> Result<()> {
        Self::check_room(&read(&self.objects), name, self.most_objects)
    }

    fn check_room(
        objects: &BTreeMap<ObjectName, Arc<SharedObject>>,
        name: &ObjectName,
        most: usize,
    ) -> Result<()> {
        if objects.contains_key(name) {
            return Err(Error::NameInUse(name.clone()));
        }
        if objects.len() >= most {
            let what = "objects of this owner";
            return Err(Error::TooMany { what, most });
        }
        Ok(())
    }

    fn add(&self, object: &Arc<SharedObject>) -> Result<()> {
        let mut objects = write(&self.objects);
        Self::check_room(&objects, object.name(), self.most_objects)?;
        objects.insert(object.name().clone(), Arc::clone(object));
        Ok(())
    }

    /// Removes an object, unless another one has its name by now.
    pub(crate) fn forget(&self, object: &Arc<SharedObject>) {
        let mut objects = write(&self.objects);
        let name = object.name();
        if objects.get(name).is_some_and(|it| Arc::ptr_eq(it, object)) {
            objects.remove(name);
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        // The thread that waits at the door holds this lock until it sleeps, so it misses no
        // notice.
        drop(lock(&self.door));
        self.changed.notify_all();
    }

    /// Waits until links are accepted or the server ends.
    fn await_door(&self) {
        let is_closed = |door: &mut Door| *door == Door::Closed && !self.is_stopping();
        let waited = self.changed.wait_while(lock(&self.door), is_closed);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Accepts links until the server ends.
struct Acceptor {
    shared: Arc<ServerShared>,
    listener: Listener,
    security: Security,
    links: LinkTable,
}

impl Acceptor {
    fn run(mut self) {
        self.shared.await_door();
        while !self.shared.is_stopping() {
            match accept(&self.listener, &self.security, Deadline::after(LOOK)) {
                Ok(Some(session)) => self.serve(session),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "accepting a link failed");
                    thread::sleep(LOOK);
                }
            }
            let counts = &self.shared.counts;
            let failed = self.listener.failed();
            counts.connections_failed.store(failed, Ordering::Relaxed);
            let links = self.links.count() as u64;
            self.shared.links.store(links, Ordering::Relaxed);
        }
        // These sockets must not wait for what peers send, or fail to send.
        self.links.end();
    }

    /// Starts a thread for the link, unless there are too many links.
    fn serve(&mut self, mut session: Session) {
        let counts = &self.shared.counts;
        let (peer, watch) = match session.peer().and_then(|peer| Ok((peer, session.watch()?))) {
            Ok(parts) => parts,
            Err(error) => {
                counts.links_refused.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%error, "a link was refused");
                return;
            }
        };
        let source = Source::of(peer.ip(), || session.peer_user());
        let admitted = match self.links.admit(source, watch) {
            Ok(admitted) => admitted,
            Err(crowded) => {
                counts.links_refused.fetch_add(1, Ordering::Relaxed);
                // Best effort: the link is closed either way. A message this short fits into the
                // socket's buffer, so this does not wait.
                let _ = session.refuse(&crowded.to_string(), Deadline::after(LOOK));
                return;
            }
        };
        let displaced = u64::from(admitted.has_displaced);
        counts
            .links_displaced
            .fetch_add(displaced, Ordering::Relaxed);
        let (shared, record) = (Arc::clone(&self.shared), Arc::clone(&admitted.record));
        let service = thread::Builder::new().name("gdr-object-link".to_owned());
        match service.spawn(move || Service::run(shared, record, session)) {
            Ok(thread) => {
                counts.links_accepted.fetch_add(1, Ordering::Relaxed);
                self.links.add(admitted.record, thread);
            }
            Err(error) => {
                counts.links_refused.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%error, "a link was refused: no thread");
            }
        }
    }
}

/// Waits for the next link; returns `None` if none connects before the deadline.
fn accept(listener: &Listener, security: &Security, deadline: Deadline) -> Result<Option<Session>> {
    match listener.accept(security.with_service(SERVICE), deadline) {
        Ok(session) => Ok(Some(session)),
        Err(RdmaError::Deadline(_) | RdmaError::NoPeer { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
