//! A link's connection, which its objects share.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use gdr_rdma::{
    Access, Awaited, Buffer, Deadline, Device, Error as RdmaError, HandshakeError, MemoryRegion,
    Mtu, PeerText, ProtectionDomain, Security, Session, Watch,
};

use crate::checksum::Summer;
use crate::connection::path_mtu;
use crate::epoch::Generation;
use crate::error::{BusyReason, Error, GoneReason, Result};
use crate::link_channel::{LinkChannel, QueuePairs};
use crate::lock::{DeadlineGuard, DeadlineMutex, lock};
use crate::protocol::{self, Domain, ObjectId, Opened, Request, Response, SERVICE, VERSION};

/// When to give up a link whose owner's host does not answer, even while it waits.
const GIVE_UP_AFTER: Duration = Duration::from_secs(20);

/// Memory of this process, for objects to be read into or put from.
#[derive(Clone, Debug)]
pub struct LocalMemory {
    region: MemoryRegion,
    summer: Arc<Summer>,
}

impl LocalMemory {
    /// Returns the memory itself.
    pub fn buffer(&self) -> &Buffer {
        self.region.buffer()
    }

    /// Returns its length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no buffer is empty")]
    pub fn len(&self) -> u64 {
        self.region.len()
    }

    /// Returns the queue pairs for `bytes` between this memory and an object.
    pub(crate) fn pairs(&self, bytes: u64, opened: &Opened) -> QueuePairs {
        QueuePairs::of(bytes, self.buffer().kind(), &opened.info.path)
    }

    pub(crate) fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Returns the checksum of `len` bytes at `at`.
    pub(crate) fn checksum(&self, at: u64, len: u64, deadline: Deadline) -> Result<u64> {
        self.summer.sum(self.buffer(), at, len, deadline)
    }
}

/// The state shared by a link's clones and the objects opened over it.
#[derive(Debug)]
pub(crate) struct LinkShared {
    pub(crate) owner: SocketAddr,
    security: Security,
    device: Device,
    domain: ProtectionDomain,
    mutex: DeadlineMutex<LinkState>,
    /// How often calls have been interrupted: so far, and before the call in progress began.
    interrupts: AtomicU64,
    interrupts_before: AtomicU64,
    /// The connection, for threads that end it while a call uses it.
    connection: Mutex<Weak<Watch>>,
    /// Followers that ended while another thread used the link, as connection number and object.
    ended_followers: Mutex<Vec<(u64, ObjectId)>>,
}

/// A link's connection, used by one thread at a time.
#[derive(Debug)]
pub(crate) struct LinkState {
    // Fields are dropped in this order.
    channels: [Option<LinkChannel>; 2],
    control: Option<Control>,
    /// How many times it was connected.
    pub(crate) connections: u64,
}

/// The authenticated connection.
#[derive(Debug)]
pub(crate) struct Control {
    session: Session,
    pub(crate) watch: Arc<Watch>,
    pub(crate) generation: Generation,
}

impl LinkShared {
    /// Creates a link that is not connected yet.
    pub(crate) fn new(owner: SocketAddr, security: Security, device: Device) -> Self {
        Self {
            owner,
            security,
            domain: device.protection_domain(),
            device,
            mutex: DeadlineMutex::new(LinkState {
                channels: [None, None],
                control: None,
                connections: 0,
            }),
            interrupts: AtomicU64::new(0),
            interrupts_before: AtomicU64::new(0),
            connection: Mutex::default(),
            ended_followers: Mutex::default(),
        }
    }

    /// Returns the device that carries the transfers.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Registers memory.
    pub(crate) fn memory(&self, buffer: &Buffer) -> Result<LocalMemory> {
        let region = self.domain.register(buffer, Access::LOCAL_WRITE)?;
        let summer = Arc::default();
        Ok(LocalMemory { region, summer })
    }

    /// Allocates and registers host memory.
    pub(crate) fn host_memory(&self, len: u64) -> Result<LocalMemory> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.memory(&Buffer::host(len)?)
    }

    /// Waits until no other thread uses the link.
    pub(crate) fn lock(&self, deadline: Deadline) -> Result<DeadlineGuard<'_, LinkState>> {
        let before = self.interrupts.load(Ordering::SeqCst);
        let state = self.mutex.take(deadline).ok_or_else(|| Error::Busy {
            what: format!("the link to {}", self.owner),
            by: BusyReason::LinkInUse,
        })?;
        self.interrupts_before.store(before, Ordering::SeqCst);
        Ok(state)
    }

    /// Ends the calls in progress, and the calls that wait for their turn.
    pub(crate) fn interrupt(&self) {
        // Counted first: a call that is about to connect sees the count, and one that has connected
        // loses its connection.
        self.interrupts.fetch_add(1, Ordering::SeqCst);
        let connection = lock(&self.connection).upgrade();
        if let Some(connection) = connection {
            connection.end_connection();
        }
    }

    /// Makes the call that uses the link, or the next one, tell the owner that a follower has
    /// ended.
    pub(crate) fn unfollow_later(&self, connection: u64, object: ObjectId) {
        lock(&self.ended_followers).push((connection, object));
    }

    /// Returns whether the call in progress was interrupted.
    fn is_interrupted(&self) -> bool {
        let before = self.interrupts_before.load(Ordering::SeqCst);
        self.interrupts.load(Ordering::SeqCst) != before
    }

    /// Returns why the connection ended.
    pub(crate) fn disconnected(&self) -> GoneReason {
        match self.is_interrupted() {
            true => GoneReason::Interrupted,
            false => GoneReason::Disconnected,
        }
    }

    /// Returns the error for a peer that breaks the protocol.
    pub(crate) fn unexpected(&self, what: &str) -> Error {
        Error::Protocol {
            peer: self.owner,
            what: PeerText::new(what).into_string(),
        }
    }

    pub(crate) fn unexpected_answer(&self, answer: &Response) -> Error {
        /// As much of the text as an error shows.
        const SHOWN: usize = 200;
        let text: String = format!("{answer:?}").chars().take(SHOWN).collect();
        self.unexpected(&format!("an unexpected answer, {text}"))
    }

    pub(crate) fn gone(&self, why: GoneReason) -> Error {
        let what = format!("the owner at {}", self.owner);
        Error::Gone { what, why }
    }

    /// Translates an error of the authenticated connection.
    fn control_error(&self, error: RdmaError, what: &'static str) -> Error {
        let owner = self.owner;
        match error {
            RdmaError::Deadline(Awaited::Handshake(_)) => Error::NoAnswer { owner, what },
            RdmaError::Handshake(HandshakeError::Gone { .. }) => self.gone(self.disconnected()),
            RdmaError::Handshake(HandshakeError::Lost { .. }) => self.gone(GoneReason::Unreachable),
            error => error.into(),
        }
    }

    fn connect(&self, deadline: Deadline) -> Result<Control> {
        let failed = |error| self.control_error(error, "connecting");
        let Self {
            device,
            owner,
            security,
            ..
        } = self;
        let terms = security.with_service(SERVICE);
        let session = Session::connect_for(device, *owner, terms, deadline).map_err(failed)?;
        session.give_up_after(GIVE_UP_AFTER)?;
        let watch = Arc::new(session.watch()?);
        *lock(&self.connection) = Arc::downgrade(&watch);
        if self.is_interrupted() {
            return Err(self.gone(GoneReason::Interrupted));
        }
        let mut control = Control {
            watch,
            session,
            generation: Generation(0),
        };
        let hello = Request::Hello { version: VERSION };
        match control.ask(self, &hello, deadline)? {
            Response::Welcome { generation } => control.generation = generation,
            other => return Err(self.unexpected_answer(&other)),
        }
        Ok(control)
    }
}

impl Control {
    fn ask(
        &mut self,
        link: &LinkShared,
        request: &Request,
        deadline: Deadline,
    ) -> Result<Response> {
        let bytes =
            protocol::encode(request).map_err(|error| link.unexpected(&error.to_string()))?;
        let sent = self.session.send(&bytes, deadline);
        sent.map_err(|error| link.control_error(error, "sending a request"))?;
        self.answer(link, deadline)
    }

    fn answer(&mut self, link: &LinkShared, deadline: Deadline) -> Result<Response> {
        let received = self.session.receive(deadline);
        let bytes = received.map_err(|error| link.control_error(error, "the answer"))?;
        protocol::decode(&bytes)
            .map_err(|error| link.unexpected(&format!("a message that is not an answer: {error}")))
    }

    fn connect_channel(
        &mut self,
        link: &LinkShared,
        domain: Domain,
        deadline: Deadline,
    ) -> Result<LinkChannel> {
        let mtu = path_mtu(&link.device, &self.session)?.code();
        self.connect_pair(
            link,
            &Request::Connect { domain, mtu },
            deadline,
            |session, mtu| LinkChannel::connect(&link.domain, session, mtu, deadline),
        )
    }

    /// Connects another queue pair of a channel.
    fn widen(
        &mut self,
        link: &LinkShared,
        domain: Domain,
        channel: &mut LinkChannel,
        deadline: Deadline,
    ) -> Result<()> {
        let mtu = path_mtu(&link.device, &self.session)?.code();
        self.connect_pair(
            link,
            &Request::Widen { domain, mtu },
            deadline,
            |session, mtu| channel.widen(&link.domain, session, mtu, deadline),
        )
    }

    /// Asks the owner for a queue pair, and connects one to it.
    fn connect_pair<R>(
        &mut self,
        link: &LinkShared,
        request: &Request,
        deadline: Deadline,
        connect: impl FnOnce(&mut Session, Mtu) -> Result<R>,
    ) -> Result<R> {
        match self.ask(link, request, deadline)? {
            Response::Connecting { mtu } => {
                let mtu = Mtu::from_code(mtu);
                let mtu = mtu.ok_or_else(|| link.unexpected("an unknown path MTU"))?;
                let connected = connect(&mut self.session, mtu);
                let connected = connected.map_err(|error| match error {
                    Error::Rdma(error) => link.control_error(error, "connecting a queue pair"),
                    other => other,
                })?;
                match self.answer(link, deadline)? {
                    Response::Done => Ok(connected),
                    other => Err(link.unexpected_answer(&other)),
                }
            }
            other => Err(link.unexpected_answer(&other)),
        }
    }
}

impl LinkState {
    /// Returns the authenticated connection. Connects if necessary.
    pub(crate) fn control(
        &mut self,
        link: &LinkShared,
        deadline: Deadline,
    ) -> Result<&mut Control> {
        if link.is_interrupted() {
            self.disconnect();
            return Err(link.gone(GoneReason::Interrupted));
        }
        if self.control.as_ref().is_some_and(|it| it.watch.is_due()) {
            // The owner sends nothing unless asked: it has closed the connection.
            self.disconnect();
        }
        if self.control.is_none() {
            let connected = link.connect(deadline);
            let control = match connected {
                // An earlier run of the owner.
                Err(Error::Rdma(RdmaError::Connect { .. })) if self.connections > 0 => {
                    return Err(link.gone(GoneReason::Disconnected));
                }
                connected => connected?,
            };
            self.connections += 1;
            self.control = Some(control);
        }
        self.send_ended_followers(link, deadline)?;
        self.control
            .as_mut()
            .ok_or_else(|| link.gone(GoneReason::Disconnected))
    }

    /// Reports the followers that have ended to the owner. Followers of earlier connections ended with
    /// those connections.
    fn send_ended_followers(&mut self, link: &LinkShared, deadline: Deadline) -> Result<()> {
        let ended = std::mem::take(&mut *lock(&link.ended_followers));
        for (connection, object) in ended {
            let Some(control) = &mut self.control else {
                break;
            };
            if connection != self.connections {
                continue;
            }
            if let Err(error) = control.ask(link, &Request::Unfollow { object }, deadline) {
                // This ends all of them.
                self.disconnect();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Sends the owner a request. After an error the connection is closed, because an answer may be
    /// outstanding.
    pub(crate) fn ask(
        &mut self,
        link: &LinkShared,
        request: &Request,
        deadline: Deadline,
    ) -> Result<Response> {
        let asked = self.control(link, deadline)?.ask(link, request, deadline);
        if asked.is_err() {
            self.disconnect();
        }
        asked
    }

    /// Returns the queue pair to a domain of the owner, connected if necessary, and the watch of the connection.
    pub(crate) fn channel(
        &mut self,
        link: &LinkShared,
        domain: Domain,
        deadline: Deadline,
    ) -> Result<(&mut LinkChannel, &Watch)> {
        self.control(link, deadline)?;
        if self.channels[domain.index()].is_none() {
            let control = self.control(link, deadline)?;
            match control.connect_channel(link, domain, deadline) {
                Ok(connected) => self.channels[domain.index()] = Some(connected),
                Err(error) => {
                    self.disconnect();
                    return Err(error);
                }
            }
        }
        match (&mut self.channels[domain.index()], &self.control) {
            (Some(channel), Some(control)) => Ok((channel, &control.watch)),
            _ => Err(link.gone(GoneReason::Disconnected)),
        }
    }

    /// Like [`LinkState::channel`], with all queue pairs that a transfer over `pairs` uses.
    pub(crate) fn channel_for(
        &mut self,
        link: &LinkShared,
        domain: Domain,
        pairs: QueuePairs,
        deadline: Deadline,
    ) -> Result<(&mut LinkChannel, &Watch)> {
        self.channel(link, domain, deadline)?;
        if let (Some(channel), Some(control)) =
            (&mut self.channels[domain.index()], &mut self.control)
            && pairs == QueuePairs::All
        {
            while channel.is_narrow() {
                if let Err(error) = control.widen(link, domain, channel, deadline) {
                    self.disconnect();
                    return Err(error);
                }
            }
        }
        self.channel(link, domain, deadline)
    }

    /// Ends the link's queue pairs. When this returns, nothing writes to local memory any more.
    pub(crate) fn drop_channel(&mut self, domain: Domain) {
        self.channels[domain.index()] = None;
    }

    /// Ends the connection and its queue pairs.
    pub(crate) fn disconnect(&mut self) {
        self.channels = [None, None];
        self.control = None;
    }
}
