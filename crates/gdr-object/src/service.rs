//! What an owner does for one link: it executes the link's requests one after another.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gdr_rdma::{Deadline, Session};

use crate::connection::{CELLS, LANES, common_mtu};
use crate::epoch::Epoch;
use crate::error::{BusyReason, Error, Result};
use crate::link_table::LinkRecord;
use crate::mode::{Mode, Rights};
use crate::name::ObjectName;
use crate::object_server::{LOOK, ServerShared};
use crate::peer_channel::{PeerChannel, Watcher};
use crate::protocol::{
    self, Domain, ObjectId, Obstacle, Opened, PAGE, Refused, Request, Response, VERSION,
};
use crate::put::PutEnd;
use crate::shared_object::SharedObject;
use crate::slots::LeaseId;

/// How long a message that the link has started may take to arrive, or an answer to leave.
const MESSAGE: Duration = Duration::from_secs(5);
/// When to give up a link whose host does not answer.
const GIVE_UP_AFTER: Duration = Duration::from_secs(20);
/// The longest duration of a lease or a put.
const LONGEST: Duration = Duration::from_secs(60);
/// The most leases that a link may have.
const LEASES: u16 = 64;

/// The state of one link at its owner. All of it ends with the link.
pub(crate) struct Service {
    shared: Arc<ServerShared>,
    record: Arc<LinkRecord>,
    session: Session,
    peer: SocketAddr,
    channels: [Option<Arc<PeerChannel>>; 2],
    /// The object of each cell, for each domain.
    cells: [Vec<Option<ObjectId>>; 2],
    open: HashMap<ObjectId, Reader>,
    leases: Vec<Lease>,
    /// How many leases the link has been given.
    leased: u64,
    /// The object that the link has begun to put.
    put: Option<Arc<SharedObject>>,
}

/// An object that the link has open.
struct Reader {
    object: Arc<SharedObject>,
    watcher: Arc<Watcher>,
}

/// An epoch that the owner keeps for the link.
struct Lease {
    id: LeaseId,
    object: Arc<SharedObject>,
    epoch: Epoch,
    until: Instant,
}

/// Why executing a request did not end with an answer.
enum Failure {
    /// The link gets the reason.
    Refused(Refused),
    /// The link ends.
    Ended(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Ended(error)
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl Service {
    /// Serves a link until it closes the connection, breaks the protocol, or the server ends.
    pub(crate) fn run(shared: Arc<ServerShared>, record: Arc<LinkRecord>, session: Session) {
        let Err(error) = Self::new(shared, record, session).and_then(|mut service| service.serve());
        tracing::info!(%error, "a link ended");
    }

    fn new(shared: Arc<ServerShared>, record: Arc<LinkRecord>, session: Session) -> Result<Self> {
        session.give_up_after(GIVE_UP_AFTER)?;
        Ok(Self {
            peer: session.peer()?,
            shared,
            record,
            session,
            channels: [None, None],
            cells: [Vec::new(), Vec::new()],
            open: HashMap::new(),
            leases: Vec::new(),
            leased: 0,
            put: None,
        })
    }

    fn serve(&mut self) -> Result<Infallible> {
        self.welcome()?;
        loop {
            let request = self.next(None)?;
            self.record.asks();
            let answer = match self.execute(request) {
                Ok(answer) => {
                    self.shared.counts.requests.fetch_add(1, Ordering::Relaxed);
                    answer
                }
                Err(Failure::Refused(refused)) => {
                    let count = &self.shared.counts.requests_refused;
                    count.fetch_add(1, Ordering::Relaxed);
                    Response::Refused(refused)
                }
                Err(Failure::Ended(error)) => return Err(error),
            };
            self.answer(&answer)?;
        }
    }

    /// Returns the next request, which must begin by the deadline if there is one. The end of the
    /// server ends the connection, and therefore this wait.
    fn next(&mut self, deadline: Option<Deadline>) -> Result<Request> {
        // Checked on every turn, not only when the link sends nothing, because it may send without
        // a pause.
        loop {
            if let Some(object) = &self.put {
                object.end_late_put();
            }
            if self.record.watch.wait(Deadline::after(LOOK)) {
                break;
            }
            if deadline.is_some_and(Deadline::has_passed) {
                let (peer, what) = (self.peer, "nothing".to_owned());
                return Err(Error::Protocol { peer, what });
            }
        }
        let bytes = self.session.receive(Deadline::after(MESSAGE))?;
        match protocol::decode(&bytes) {
            Ok(request) => Ok(request),
            Err(error) => {
                let count = &self.shared.counts.requests_malformed;
                count.fetch_add(1, Ordering::Relaxed);
                let what = format!("a message that is not a request: {error}");
                let _ = self.session.refuse(&what, Deadline::after(MESSAGE));
                let peer = self.peer;
                Err(Error::Protocol { peer, what })
            }
        }
    }

    fn answer(&mut self, answer: &Response) -> Result<()> {
        let bytes = protocol::encode(answer).map_err(|error| Error::Protocol {
            peer: self.peer,
            what: format!("a request whose answer cannot be written: {error}"),
        })?;
        Ok(self.session.send(&bytes, Deadline::after(MESSAGE))?)
    }

    fn welcome(&mut self) -> Result<()> {
        match self.next(Some(Deadline::after(MESSAGE)))? {
            Request::Hello { version: VERSION } => {
                let generation = self.shared.generation;
                self.answer(&Response::Welcome { generation })
            }
            Request::Hello { version } => {
                let what = format!("version {version} of the protocol, and this is {VERSION}");
                self.session
                    .refuse(&format!("your side sent {what}"), Deadline::after(MESSAGE))?;
                let peer = self.peer;
                Err(Error::Protocol { peer, what })
            }
            _ => Err(Error::Protocol {
                peer: self.peer,
                what: "a request before its version".to_owned(),
            }),
        }
    }

    fn execute(&mut self, request: Request) -> Result<Response, Failure> {
        match request {
            Request::Hello { .. } => Err(Failure::Ended(Error::Protocol {
                peer: self.peer,
                what: "its version twice".to_owned(),
            })),
            Request::Ping => Ok(Response::Done),
            Request::List { after } => Ok(self.list(after.as_ref())),
            Request::Connect { domain, mtu } => self.connect(domain, mtu),
            Request::Widen { domain, mtu } => self.widen(domain, mtu),
            Request::Open { name } => self.open(&name),
            Request::Lease {
                object,
                least,
                milliseconds,
            } => self.lease(object, least, milliseconds),
            Request::Release { object, epoch } => {
                self.release(object, epoch);
                Ok(Response::Done)
            }
            Request::Follow { object } => self.follow(object),
            Request::Unfollow { object } => {
                if let Some(reader) = self.open.get(&object) {
                    reader.watcher.follows.store(false, Ordering::Release);
                }
                Ok(Response::Done)
            }
            Request::BeginPut {
                object,
                milliseconds,
            } => self.begin_put(object, milliseconds),
            Request::EndPut {
                object,
                epoch,
                checksum,
            } => self.end_put(object, epoch, checksum),
            Request::AbandonPut { .. } => {
                self.abandon_put();
                Ok(Response::Done)
            }
        }
    }

    fn ip(&self) -> IpAddr {
        self.peer.ip().to_canonical()
    }

    fn list(&self, after: Option<&ObjectName>) -> Response {
        // One more than fits a page, to show whether there are more.
        let mut objects = self.shared.describe_behind(after, PAGE + 1, |object| {
            let rights = object.rights(self.ip());
            let described = (rights > Rights::Nothing).then(|| object.describe(rights));
            described?.map(|(info, ..)| info)
        });
        let more = objects.len() > PAGE;
        objects.truncate(PAGE);
        Response::Objects { objects, more }
    }

    fn connect(&mut self, domain: Domain, mtu: u8) -> Result<Response, Failure> {
        let mtu = common_mtu(&self.shared.device, &self.session, mtu)?;
        let slot = &mut self.channels[domain.index()];
        let channel = match slot {
            Some(channel) => Arc::clone(channel),
            None => {
                let new = PeerChannel::new(self.shared.domain(domain), self.peer)?;
                Arc::clone(slot.insert(Arc::new(new)))
            }
        };
        self.answer(&Response::Connecting { mtu: mtu.code() })?;
        channel.connect(&mut self.session, mtu, Deadline::after(MESSAGE))?;
        Ok(Response::Done)
    }

    fn widen(&mut self, domain: Domain, mtu: u8) -> Result<Response, Failure> {
        let most = LANES as u16;
        let channel = self.channels[domain.index()].clone();
        let channel = channel.filter(|it| !it.is_wide());
        let channel = channel.ok_or(Refused::TooMany { most })?;
        let mtu = common_mtu(&self.shared.device, &self.session, mtu)?;
        self.answer(&Response::Connecting { mtu: mtu.code() })?;
        channel.widen(&mut self.session, mtu, Deadline::after(MESSAGE))?;
        Ok(Response::Done)
    }

    fn open(&mut self, name: &ObjectName) -> Result<Response, Failure> {
        let object = self.shared.object(name).ok_or(Refused::NoSuchObject)?;
        let rights = object.rights(self.ip());
        if rights == Rights::Nothing {
            return Err(Refused::NoSuchObject.into());
        }
        let (info, revision, content) = object.describe(rights).ok_or(Refused::Closed)?;
        let id = object.identity.id;
        let domain = SharedObject::domain_of(&object.identity.grants);
        let cell = match self.open.get(&id) {
            Some(reader) => reader.watcher.cell,
            None => self.add_reader(object, domain)?,
        };
        Ok(Response::Opened(Box::new(Opened {
            object: id,
            info,
            domain,
            revision,
            header: content.header_region.remote().into(),
            data: content.data_region.remote().into(),
            stride: content.stride,
            cell,
        })))
    }

    /// Assigns an object a cell.
    fn add_reader(&mut self, object: Arc<SharedObject>, domain: Domain) -> Result<u16, Failure> {
        let Some(channel) = self.channels[domain.index()].clone() else {
            // The link did not know the domain before.
            let new = PeerChannel::new(self.shared.domain(domain), self.peer)?;
            self.channels[domain.index()] = Some(Arc::new(new));
            return self.add_reader(object, domain);
        };
        let cells = &mut self.cells[domain.index()];
        let free = |cells: &[Option<ObjectId>]| cells.iter().position(Option::is_none);
        let mut at = free(cells);
        if at.is_none() && cells.len() < usize::from(CELLS) {
            at = Some(cells.len());
            cells.push(None);
        }
        if at.is_none() {
            self.drop_closed();
            at = free(&self.cells[domain.index()]);
        }
        let most = CELLS;
        let at = at.ok_or(Refused::TooMany { most })?;
        let cell = at as u16;
        channel.clear(cell)?;
        self.cells[domain.index()][at] = Some(object.identity.id);
        let watcher = Arc::new(Watcher {
            channel,
            cell,
            follows: AtomicBool::new(false),
        });
        object.watch(Arc::clone(&watcher));
        let id = object.identity.id;
        self.open.insert(id, Reader { object, watcher });
        self.record.has_open(self.open.len());
        Ok(cell)
    }

    /// Ends everything that belongs to closed objects.
    fn drop_closed(&mut self) {
        let closed: Vec<ObjectId> = self
            .open
            .iter()
            .filter(|(_, reader)| reader.object.is_closed())
            .map(|(id, _)| *id)
            .collect();
        for id in closed {
            self.open.remove(&id);
            for cell in self.cells.iter_mut().flatten() {
                if *cell == Some(id) {
                    *cell = None;
                }
            }
        }
        self.record.has_open(self.open.len());
    }

    /// Returns an object that the link has open and that is not closed.
    fn opened(&self, id: ObjectId) -> Result<&Reader, Refused> {
        let reader = self.open.get(&id).ok_or(Refused::NoSuchObject)?;
        match reader.object.is_closed() {
            false => Ok(reader),
            true => Err(Refused::Closed),
        }
    }

    fn lease(
        &mut self,
        id: ObjectId,
        least: Epoch,
        milliseconds: u64,
    ) -> Result<Response, Failure> {
        let now = Instant::now();
        let until = now + Duration::from_millis(milliseconds).min(LONGEST);
        self.leases.retain(|lease| lease.until > now);
        if self.leases.len() >= usize::from(LEASES) {
            return Err(Refused::TooMany { most: LEASES }.into());
        }
        let object = Arc::clone(&self.opened(id)?.object);
        self.leased += 1;
        let id = LeaseId {
            link: self.record.id,
            number: self.leased,
        };
        let leased = object.lease(id, least, until);
        let claim = leased.ok_or(Refused::Busy(Obstacle::Leased))?;
        self.leases.push(Lease {
            id,
            object,
            epoch: claim.epoch,
            until,
        });
        Ok(Response::Leased {
            epoch: claim.epoch,
            slot: claim.slot.0,
        })
    }

    /// Ends one of the link's leases. Ending a lease twice is not an error.
    fn release(&mut self, id: ObjectId, epoch: Epoch) {
        let is_meant = |it: &Lease| it.object.identity.id == id && it.epoch == epoch;
        if let Some(held) = self.leases.iter().position(is_meant) {
            let lease = self.leases.swap_remove(held);
            lease.object.release(lease.id);
        }
    }

    fn follow(&mut self, id: ObjectId) -> Result<Response, Failure> {
        let Reader { object, watcher } = self.opened(id)?;
        if !matches!(object.identity.mode, Mode::Ring { .. }) {
            return Err(Refused::WrongMode.into());
        }
        if watcher.follows.load(Ordering::Acquire) {
            return Err(Refused::Busy(Obstacle::Followed).into());
        }
        // An epoch published between these two steps counts as not read.
        let after = object.newest();
        watcher.channel.set_last_read(watcher.cell, after)?;
        watcher.follows.store(true, Ordering::Release);
        Ok(Response::Following { after })
    }

    fn begin_put(&mut self, id: ObjectId, milliseconds: u64) -> Result<Response, Failure> {
        self.abandon_put();
        let object = Arc::clone(&self.opened(id)?.object);
        let permitted = object.rights(self.ip());
        if permitted < Rights::ReadWrite {
            return Err(Refused::Denied { permitted }.into());
        }
        let limit = Duration::from_millis(milliseconds).min(LONGEST);
        let (epoch, memory) = object.begin_put(self.record.id, limit).map_err(refused)?;
        self.put = Some(object);
        let memory = memory.into();
        Ok(Response::Writable { epoch, memory })
    }

    fn end_put(&mut self, id: ObjectId, epoch: Epoch, checksum: u64) -> Result<Response, Failure> {
        let is_meant = self.put.as_ref().is_some_and(|it| it.identity.id == id);
        let Some(object) = self.put.take_if(|_| is_meant) else {
            self.abandon_put();
            return Err(Refused::Late.into());
        };
        match object.end_put(self.record.id, epoch, checksum) {
            Ok(PutEnd::Published) => Ok(Response::Done),
            Ok(PutEnd::Late) => Err(Refused::Late.into()),
            Ok(PutEnd::Damaged) => Err(Refused::Damaged.into()),
            Err(error) => Err(refused(error).into()),
        }
    }

    /// Gives back the slot of an unfinished put.
    fn abandon_put(&mut self) {
        if let Some(object) = self.put.take() {
            object.abandon_put(self.record.id);
        }
    }
}

impl Drop for Service {
    /// Ends everything that the link holds.
    fn drop(&mut self) {
        self.abandon_put();
        for lease in &self.leases {
            lease.object.release(lease.id);
        }
        for reader in self.open.values() {
            reader.object.unwatch(&reader.watcher);
        }
    }
}

/// Translates an object's error for the link.
fn refused(error: Error) -> Refused {
    match error {
        Error::Busy { by, .. } => Refused::Busy(match by {
            BusyReason::PeerWrites => Obstacle::PeerWrites,
            BusyReason::CopiesQueued => Obstacle::CopiesQueued,
            _ => Obstacle::OwnerWrites,
        }),
        Error::Gone { .. } => Refused::Closed,
        Error::RingFull { .. } => Refused::RingFull,
        error => Refused::Failed {
            why: error.to_string(),
        },
    }
}
