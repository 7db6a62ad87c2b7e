//! All connections of an address.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use super::ServiceId;
use super::connection::{Connection, Received};
use super::event::CmEvent;
use super::mad::Mad;
use super::message::{
    CommId, IdPair, Message, Rej, RejectReason, Rejected, Rep, Req, SidrRep, SidrReq, SidrStatus,
};
use super::resolution::Resolution;
use gdr_roce::Time;

/// The most peer requests that may wait for the program. Further ones are dropped, and peers repeat them.
const MOST_WAITING: usize = 1024;
/// The number of bits of an ID below its prefix.
const NUMBER_BITS: u32 = 20;

/// The connection or exchange is unknown, or its state does not allow the call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("connection management: the call is not allowed in the connection's current state")]
pub struct CmStateError;

/// The messages and events produced by a manager.
#[derive(Debug, Default)]
pub(super) struct Output {
    messages: VecDeque<(IpAddr, Mad)>,
    events: VecDeque<CmEvent>,
}

impl Output {
    pub(super) fn send(&mut self, to: IpAddr, mad: Mad) {
        self.messages.push_back((to, mad));
    }

    pub(super) fn report(&mut self, event: CmEvent) {
        self.events.push_back(event);
    }
}

/// This end of all connections of an address, and of its datagram service exchanges.
///
/// Its owner must:
///
/// 1. pass every message to [`receive`](Self::receive),
/// 2. call [`poll`](Self::poll) when [`deadline`](Self::deadline) has passed,
/// 3. after each of these calls and each other call, send what [`poll_transmit`](Self::poll_transmit) returns and
///    handle [`poll_event`](Self::poll_event).
///
/// Messages are repeated until they are answered, for about 52 s. Whatever a program has started must be released by
/// [`abandon`](Self::abandon), even after a failure.
#[derive(Debug)]
pub struct Manager {
    prefix: u32,
    next: u32,
    services: BTreeSet<ServiceId>,
    connections: BTreeMap<CommId, Connection>,
    resolutions: BTreeMap<CommId, Resolution>,
    out: Output,
}

impl Manager {
    /// Returns a manager whose IDs have this 12-bit prefix and start at `first`, so that IDs of processes that ended
    /// are not reused immediately.
    pub fn new(prefix: u16, first: u32) -> Self {
        Self {
            prefix: u32::from(prefix) << NUMBER_BITS,
            next: first,
            services: BTreeSet::new(),
            connections: BTreeMap::new(),
            resolutions: BTreeMap::new(),
            out: Output::default(),
        }
    }

    /// Returns the prefix of an ID.
    pub const fn prefix_of(id: CommId) -> u16 {
        (id.0 >> NUMBER_BITS) as u16
    }

    /// Returns an unused, nonzero ID.
    fn new_id(&mut self) -> CommId {
        loop {
            self.next = self.next.wrapping_add(1);
            let id = CommId(self.prefix | self.next & ((1 << NUMBER_BITS) - 1));
            let is_used = self.connections.contains_key(&id) || self.resolutions.contains_key(&id);
            if id != CommId::default() && !is_used {
                return id;
            }
        }
    }

    /// Starts to accept requests for a service.
    pub fn listen(&mut self, service: ServiceId) {
        self.services.insert(service);
    }

    /// Starts to refuse requests for a service.
    pub fn ignore(&mut self, service: ServiceId) {
        self.services.remove(&service);
    }

    /// Returns whether requests for a service are accepted.
    pub fn listens(&self, service: ServiceId) -> bool {
        self.services.contains(&service)
    }

    /// Requests a connection. The ID in `req` is replaced by the returned one.
    pub fn connect(&mut self, now: Time, peer: IpAddr, req: &Req) -> CommId {
        let id = self.new_id();
        let req = Req { id, ..*req };
        let connection = Connection::request(now, peer, &req, &mut self.out);
        self.connections.insert(id, connection);
        id
    }

    /// Requests the queue pair of a datagram service. The ID in `req` is replaced by the returned one.
    pub fn resolve(&mut self, now: Time, peer: IpAddr, req: &SidrReq) -> CommId {
        let id = self.new_id();
        let req = SidrReq { id, ..*req };
        let resolution = Resolution::ask(now, peer, &req, &mut self.out);
        self.resolutions.insert(id, resolution);
        id
    }

    fn with_connection(
        &mut self,
        id: CommId,
        act: impl FnOnce(&mut Connection, &mut Output) -> Result<(), CmStateError>,
    ) -> Result<(), CmStateError> {
        let connection = self.connections.get_mut(&id).ok_or(CmStateError)?;
        act(connection, &mut self.out)
    }

    /// Accepts a connection requested by a peer. The IDs in `rep` are replaced, and its `qpn` is put into the field
    /// that the connection's service uses for it.
    ///
    /// # Errors
    ///
    /// [`CmStateError`].
    pub fn accept(&mut self, now: Time, id: CommId, rep: &Rep) -> Result<(), CmStateError> {
        self.with_connection(id, |connection, out| connection.accept(now, rep, out))
    }

    /// Confirms a connection that the peer accepted.
    ///
    /// # Errors
    ///
    /// [`CmStateError`].
    pub fn confirm(&mut self, id: CommId) -> Result<(), CmStateError> {
        self.with_connection(id, Connection::confirm)
    }

    /// Refuses a connection that a peer requested or accepted.
    ///
    /// # Errors
    ///
    /// [`CmStateError`].
    pub fn reject(
        &mut self,
        now: Time,
        id: CommId,
        reason: RejectReason,
        private_data: &[u8; Rej::PRIVATE],
    ) -> Result<(), CmStateError> {
        self.with_connection(id, |connection, out| {
            connection.reject(now, reason, private_data, out)
        })
    }

    /// Replies to a peer's request for a datagram service's queue pair. ID and service in `rep` are replaced.
    ///
    /// # Errors
    ///
    /// [`CmStateError`].
    pub fn answer(&mut self, now: Time, id: CommId, rep: &SidrRep) -> Result<(), CmStateError> {
        let resolution = self.resolutions.get_mut(&id).ok_or(CmStateError)?;
        resolution.answer(now, rep, &mut self.out)
    }

    /// Disconnects. Succeeds if the connection is already ending.
    ///
    /// # Errors
    ///
    /// [`CmStateError`].
    pub fn disconnect(&mut self, now: Time, id: CommId) -> Result<(), CmStateError> {
        self.with_connection(id, |connection, out| connection.disconnect(now, out))
    }

    /// Records that a packet of the connection arrived: it is established even though the peer's RTU is missing.
    ///
    /// # Errors
    ///
    /// [`CmStateError`].
    pub fn note_traffic(&mut self, id: CommId) -> Result<(), CmStateError> {
        self.with_connection(id, |connection, out| {
            connection.note_traffic(out);
            Ok(())
        })
    }

    /// Abandons a connection or exchange in any state: it is refused or ended, and reports no more events.
    pub fn abandon(&mut self, now: Time, id: CommId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.abandon(now, &mut self.out);
            if connection.is_forgotten() {
                self.connections.remove(&id);
            }
        }
        if let Some(resolution) = self.resolutions.get_mut(&id) {
            // Without a reply the peer would repeat its request.
            let refusal = SidrRep::refusal(SidrStatus::REJECT);
            let _answered_before = resolution.answer(now, &refusal, &mut self.out);
            if !resolution.is_passive() {
                self.resolutions.remove(&id);
            }
        }
    }

    /// Records that the peer process with this ID prefix has ended without a message: its connections are over.
    pub fn peer_ended(&mut self, now: Time, peer: IpAddr, prefix: u16) {
        let all = self.connections.values_mut();
        let of_process = all.filter(|it| {
            it.peer == peer && it.remote.is_some() && Self::prefix_of(it.ids.remote) == prefix
        });
        for connection in of_process {
            connection.peer_ended(now, &mut self.out);
        }
    }

    /// Processes an untrusted message.
    pub fn receive(&mut self, now: Time, from: IpAddr, mad: &Mad) {
        let Ok(message) = Message::parse(mad) else {
            return;
        };
        match &message {
            Message::Req(req) => self.receive_req(now, from, req, mad),
            Message::SidrReq(req) => self.receive_sidr_req(from, req, mad),
            Message::SidrRep(rep) => {
                if let Some(resolution) = self.resolutions.get_mut(&rep.id)
                    && resolution.peer == from
                {
                    resolution.receive(rep, &mut self.out);
                }
            }
            Message::Mra(super::Mra { ids, .. })
            | Message::Rej(Rej { ids, .. })
            | Message::Rep(Rep { ids, .. })
            | Message::Rtu(ids)
            | Message::Dreq(super::Dreq { ids, .. })
            | Message::Drep(ids) => self.receive_for(now, from, *ids, &message, mad),
        }
    }

    fn receive_for(&mut self, now: Time, from: IpAddr, ids: IdPair, message: &Message, mad: &Mad) {
        // A peer that gives up before it got a reply does not know the local ID.
        let named = match ids.remote {
            CommId(0) => self.of_remote(from, ids.local).map(|it| it.ids.local),
            id => Some(id),
        };
        let connection = named.and_then(|id| self.connections.get_mut(&id));
        let received = match connection {
            Some(connection) if connection.peer == from => {
                connection.receive(now, message, &mut self.out)
            }
            _ => Received::Unknown,
        };
        if received == Received::Unknown
            && let Some(answer) = Self::answer_to_stray(mad)
        {
            self.out.send(from, answer);
        }
    }

    /// Returns the connection for which the peer uses this ID.
    fn of_remote(&mut self, peer: IpAddr, id: CommId) -> Option<&mut Connection> {
        let mut all = self.connections.values_mut();
        all.find(|it| it.peer == peer && it.ids.remote == id && it.remote.is_some())
    }

    fn receive_req(&mut self, now: Time, from: IpAddr, req: &Req, mad: &Mad) {
        let remote = (req.qpn, req.ca_guid);
        if let Some(known) = self.of_remote(from, req.id)
            && known.remote == Some(remote)
        {
            let id = known.ids.local;
            let _known = self.with_connection(id, |connection, out| {
                connection.receive_again(out);
                Ok(())
            });
            return;
        }
        let mut all = self.connections.values_mut();
        if let Some(earlier) = all.find(|it| it.has_remote(from, remote)) {
            // The peer's queue pair is new, so the connection known here is over.
            let _not_established = earlier.disconnect(now, &mut self.out);
            self.refuse(from, req, RejectReason::STALE_CONNECTION, mad);
        } else if !self.listens(req.service) {
            self.refuse(from, req, RejectReason::INVALID_SERVICE_ID, mad);
        } else if self.waiting() < MOST_WAITING {
            let id = self.new_id();
            let transaction = mad.transaction();
            let connection = Connection::requested(from, id, req, transaction, &mut self.out);
            self.connections.insert(id, connection);
        }
    }

    fn receive_sidr_req(&mut self, from: IpAddr, req: &SidrReq, mad: &Mad) {
        let known = self
            .resolutions
            .values()
            .find(|it| it.is_passive() && it.peer == from && it.sent_id == req.id);
        if let Some(known) = known {
            known.receive_again(&mut self.out);
        } else if !self.listens(req.service) {
            let rep = Message::SidrRep(SidrRep::unsupported(req));
            self.out.send(from, rep.emit(mad.transaction()));
        } else if self.waiting() < MOST_WAITING {
            let id = self.new_id();
            let asked = Resolution::asked(from, id, req, mad.transaction(), &mut self.out);
            self.resolutions.insert(id, asked);
        }
    }

    /// Returns how many requests wait for the program.
    fn waiting(&self) -> usize {
        let connections = self.connections.values();
        let resolutions = self.resolutions.values();
        connections.filter(|it| it.is_waiting_for_program()).count()
            + resolutions.filter(|it| it.is_waiting_for_program()).count()
    }

    fn refuse(&mut self, to: IpAddr, req: &Req, reason: RejectReason, mad: &Mad) {
        let ids = IdPair {
            local: CommId::default(),
            remote: req.id,
        };
        let rej = Message::Rej(Rej::plain(ids, Rejected::Req, reason));
        self.out.send(to, rej.emit(mad.transaction()));
    }

    /// Returns the reply to a message for a connection or service that no process of its address has, if it calls for
    /// one.
    pub fn answer_to_stray(mad: &Mad) -> Option<Mad> {
        let swapped = |ids: &IdPair| IdPair {
            local: ids.remote,
            remote: ids.local,
        };
        let reject = |ids, message, reason| Message::Rej(Rej::plain(ids, message, reason));
        let answer = match Message::parse(mad).ok()? {
            Message::Req(req) => {
                let ids = IdPair {
                    local: CommId::default(),
                    remote: req.id,
                };
                reject(ids, Rejected::Req, RejectReason::INVALID_SERVICE_ID)
            }
            Message::SidrReq(req) => Message::SidrRep(SidrRep::unsupported(&req)),
            Message::Rep(rep) => {
                let ids = swapped(&rep.ids);
                reject(ids, Rejected::Rep, RejectReason::INVALID_COMM_ID)
            }
            // The connection is over at this end, which is all that the peer needs to know.
            Message::Dreq(dreq) => Message::Drep(swapped(&dreq.ids)),
            _ => return None,
        };
        Some(answer.emit(mad.transaction()))
    }

    /// Returns when [`poll`](Self::poll) must be called.
    pub fn deadline(&self) -> Option<Time> {
        let connections = self.connections.values().filter_map(Connection::deadline);
        let resolutions = self.resolutions.values().filter_map(Resolution::deadline);
        connections.chain(resolutions).min()
    }

    /// Repeats messages not answered in time, and removes finished connections.
    pub fn poll(&mut self, now: Time) {
        for connection in self.connections.values_mut() {
            connection.poll(now, &mut self.out);
        }
        for resolution in self.resolutions.values_mut() {
            resolution.poll(now, &mut self.out);
        }
        self.connections.retain(|_, it| !it.is_forgotten());
        self.resolutions.retain(|_, it| !it.is_closed());
    }

    /// Returns the next message to send, and its destination.
    pub fn poll_transmit(&mut self) -> Option<(IpAddr, Mad)> {
        self.out.messages.pop_front()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<CmEvent> {
        self.out.events.pop_front()
    }
}
