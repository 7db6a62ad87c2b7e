//! One connection: the state machine of either side.

use std::net::IpAddr;
use std::time::Duration;

use super::event::CmEvent;
use super::mad::Mad;
use super::manager::{CmStateError, Output};
use super::message::{CommId, Dreq, IdPair, Message, Mra, Rej, RejectReason, Rejected, Rep, Req};
use super::retransmission::{Due, Retransmission};
use gdr_roce::{AckTimeout, Qpn, Reliability, Time};

/// How long packets of an ended connection may be in flight: 4.096 us * 2^19.
const TIME_WAIT: Duration = Duration::from_micros(2_147_484);
/// How long a refusal is kept for repeated REQs: as long as a peer may repeat them.
const REFUSAL_KEPT: Duration = Duration::from_secs(60);
/// How long a program may take to reply to a REQ or REP, as announced in an MRA: 4.096 us * 2^24 = 69 s, like rdma_cm.
const SERVICE_TIMEOUT: u8 = 24;

/// A peer's queue pair, and its device's GUID.
pub(super) type RemotePair = (Qpn, u64);

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) peer: IpAddr,
    pub(super) ids: IdPair,
    transaction: u64,
    /// The remote queue pair, once known.
    pub(super) remote: Option<RemotePair>,
    /// The GUID of the active side's device.
    ca_guid: u64,
    reliability: Option<Reliability>,
    phase: Phase,
    owner: Owner,
}

/// Whether the connection's events are reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    Program,
    /// The program has abandoned it; it ends on its own.
    None,
}

#[derive(Debug)]
enum Phase {
    /// Active side: waiting for a REP.
    ReqSent(Retransmission),
    /// Active side: waiting for the program to confirm.
    RepReceived,
    /// Passive side: waiting for the program to accept.
    ReqReceived,
    /// Passive side: waiting for an RTU.
    RepSent(Retransmission),
    /// The active side keeps its RTU, for a repeated REP.
    Established(Option<Mad>),
    DreqSent(Retransmission),
    TimeWait(Time),
    /// Passive side: a repeated REQ gets the same reply.
    Refused(Mad, Time),
    Closed,
}

impl Connection {
    pub(super) fn request(now: Time, peer: IpAddr, req: &Req, out: &mut Output) -> Self {
        let transaction = req.id.0.into();
        let mad = Message::Req(*req).emit(transaction);
        out.send(peer, mad);
        Self {
            peer,
            ids: IdPair {
                local: req.id,
                remote: CommId::default(),
            },
            transaction,
            remote: None,
            ca_guid: req.ca_guid,
            reliability: req.reliability,
            phase: Phase::ReqSent(Retransmission::new(now, mad)),
            owner: Owner::Program,
        }
    }

    pub(super) fn requested(
        peer: IpAddr,
        id: CommId,
        req: &Req,
        transaction: u64,
        out: &mut Output,
    ) -> Self {
        out.report(CmEvent::Requested {
            id,
            from: peer,
            req: Box::new(*req),
        });
        Self {
            peer,
            ids: IdPair {
                local: id,
                remote: req.id,
            },
            transaction,
            remote: Some((req.qpn, req.ca_guid)),
            ca_guid: req.ca_guid,
            reliability: req.reliability,
            phase: Phase::ReqReceived,
            owner: Owner::Program,
        }
    }

    /// Returns whether the connection is over and abandoned by the program.
    pub(super) fn is_forgotten(&self) -> bool {
        matches!(self.phase, Phase::Closed) && self.owner == Owner::None
    }

    pub(super) fn is_waiting_for_program(&self) -> bool {
        matches!(self.phase, Phase::ReqReceived)
    }

    /// Returns whether this connection occupies the given remote queue pair.
    pub(super) fn has_remote(&self, peer: IpAddr, remote: RemotePair) -> bool {
        self.peer == peer
            && self.remote == Some(remote)
            && !matches!(self.phase, Phase::Refused(..) | Phase::Closed)
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        match &self.phase {
            Phase::ReqSent(message) | Phase::RepSent(message) | Phase::DreqSent(message) => {
                Some(message.deadline())
            }
            Phase::TimeWait(until) | Phase::Refused(_, until) => Some(*until),
            _ => None,
        }
    }

    fn report(&self, out: &mut Output, event: CmEvent) {
        if self.owner == Owner::Program {
            out.report(event);
        }
    }

    fn send(&self, out: &mut Output, message: &Message) -> Mad {
        let mad = message.emit(self.transaction);
        out.send(self.peer, mad);
        mad
    }

    pub(super) fn accept(
        &mut self,
        now: Time,
        rep: &Rep,
        out: &mut Output,
    ) -> Result<(), CmStateError> {
        if !matches!(self.phase, Phase::ReqReceived) {
            return Err(CmStateError);
        }
        let ids = self.ids;
        let mut rep = Rep { ids, ..*rep };
        if self.reliability == Some(Reliability::Extended) {
            (rep.target_qpn, rep.qpn) = (rep.qpn, Qpn::default());
        }
        let mad = self.send(out, &Message::Rep(rep));
        self.phase = Phase::RepSent(Retransmission::new(now, mad));
        Ok(())
    }

    /// Confirms a connection that the peer accepted.
    pub(super) fn confirm(&mut self, out: &mut Output) -> Result<(), CmStateError> {
        if !matches!(self.phase, Phase::RepReceived) {
            return Err(CmStateError);
        }
        let rtu = self.send(out, &Message::Rtu(self.ids));
        self.phase = Phase::Established(Some(rtu));
        Ok(())
    }

    pub(super) fn reject(
        &mut self,
        now: Time,
        reason: RejectReason,
        private_data: &[u8; Rej::PRIVATE],
        out: &mut Output,
    ) -> Result<(), CmStateError> {
        let message = match self.phase {
            Phase::ReqReceived => Rejected::Req,
            Phase::RepReceived => Rejected::Rep,
            _ => return Err(CmStateError),
        };
        let rej = Rej {
            private_data: *private_data,
            ..Rej::plain(self.ids, message, reason)
        };
        let mad = self.send(out, &Message::Rej(rej));
        self.phase = Phase::Refused(mad, now + REFUSAL_KEPT);
        Ok(())
    }

    pub(super) fn disconnect(&mut self, now: Time, out: &mut Output) -> Result<(), CmStateError> {
        match self.phase {
            Phase::Established(_) => {
                let dreq = Message::Dreq(Dreq {
                    ids: self.ids,
                    remote_qpn: self.remote.map(|(qpn, _)| qpn).unwrap_or_default(),
                    private_data: [0; Dreq::PRIVATE],
                });
                let mad = self.send(out, &dreq);
                self.phase = Phase::DreqSent(Retransmission::new(now, mad));
                Ok(())
            }
            // Already ended, by the peer or an earlier call.
            Phase::DreqSent(_) | Phase::TimeWait(_) => Ok(()),
            _ => Err(CmStateError),
        }
    }

    /// Abandons the connection on behalf of the program.
    pub(super) fn abandon(&mut self, now: Time, out: &mut Output) {
        self.owner = Owner::None;
        match &self.phase {
            Phase::ReqSent(_) => {
                self.send(out, &Message::Rej(Rej::giving_up(self.ids, self.ca_guid)));
            }
            Phase::ReqReceived | Phase::RepReceived => {
                let private_data = [0; Rej::PRIVATE];
                // Succeeds in these phases.
                let _refused = self.reject(now, RejectReason::CONSUMER, &private_data, out);
                return;
            }
            Phase::RepSent(_) => {
                let rej = Rej::plain(self.ids, Rejected::Other(2), RejectReason::CONSUMER);
                self.send(out, &Message::Rej(rej));
            }
            Phase::Established(_) => {
                // Succeeds in this phase.
                let _ended = self.disconnect(now, out);
                return;
            }
            Phase::DreqSent(_) | Phase::TimeWait(_) | Phase::Refused(..) | Phase::Closed => return,
        }
        self.phase = Phase::Closed;
    }

    /// Records that a packet of the connection has arrived, so the peer has sent its RTU.
    pub(super) fn note_traffic(&mut self, out: &mut Output) {
        if matches!(self.phase, Phase::RepSent(_)) {
            self.become_established(out);
        }
    }

    fn become_established(&mut self, out: &mut Output) {
        self.phase = Phase::Established(None);
        let id = self.ids.local;
        self.report(out, CmEvent::Established { id });
    }

    fn end(&mut self, now: Time, out: &mut Output) {
        self.phase = Phase::TimeWait(now + TIME_WAIT);
        let id = self.ids.local;
        self.report(out, CmEvent::Disconnected { id });
    }

    /// Handles the peer's end without a message, as if it had sent the appropriate one.
    pub(super) fn peer_ended(&mut self, now: Time, out: &mut Output) {
        match self.phase {
            Phase::ReqReceived | Phase::RepReceived => {
                let rej = Rej::plain(self.ids, Rejected::Other(2), RejectReason::TIMEOUT);
                self.receive_rej(&rej, out);
            }
            Phase::RepSent(_) | Phase::Established(_) | Phase::DreqSent(_) => self.end(now, out),
            Phase::ReqSent(_) | Phase::TimeWait(_) | Phase::Refused(..) | Phase::Closed => {}
        }
    }

    pub(super) fn poll(&mut self, now: Time, out: &mut Output) {
        let id = self.ids.local;
        let due = match &mut self.phase {
            Phase::ReqSent(message) | Phase::RepSent(message) | Phase::DreqSent(message) => {
                message.poll(now)
            }
            Phase::TimeWait(until) if *until <= now => {
                self.phase = Phase::Closed;
                self.report(out, CmEvent::TimeWaitOver { id });
                return;
            }
            Phase::Refused(_, until) if *until <= now => {
                self.phase = Phase::Closed;
                return;
            }
            _ => return,
        };
        match due {
            Due::Later => {}
            Due::Send(mad) => out.send(self.peer, *mad),
            Due::GiveUp if matches!(self.phase, Phase::DreqSent(_)) => self.end(now, out),
            Due::GiveUp => {
                self.phase = Phase::Closed;
                self.report(out, CmEvent::Unreachable { id });
            }
        }
    }

    /// Handles a repeated REQ: the program has not replied yet, or the reply was lost.
    pub(super) fn receive_again(&mut self, out: &mut Output) {
        match &self.phase {
            Phase::ReqReceived => {
                self.send(out, &self.mra(Rejected::Req));
            }
            Phase::Refused(rej, _) => out.send(self.peer, *rej),
            // A REP is retransmitted anyway.
            _ => {}
        }
    }

    fn mra(&self, message: Rejected) -> Message {
        Message::Mra(Mra {
            ids: self.ids,
            message,
            service_timeout: SERVICE_TIMEOUT,
            private_data: [0; Mra::PRIVATE],
        })
    }

    /// Processes a message for this connection.
    pub(super) fn receive(&mut self, now: Time, message: &Message, out: &mut Output) -> Received {
        match message {
            Message::Rep(rep) => return self.receive_rep(rep, out),
            Message::Rtu(_) => self.note_traffic(out),
            Message::Mra(mra) => self.receive_mra(now, mra),
            Message::Rej(rej) => self.receive_rej(rej, out),
            Message::Dreq(dreq) => return self.receive_dreq(now, dreq, out),
            Message::Drep(_) if matches!(self.phase, Phase::DreqSent(_)) => self.end(now, out),
            _ => {}
        }
        Received::Taken
    }

    fn receive_rep(&mut self, rep: &Rep, out: &mut Output) -> Received {
        match &self.phase {
            Phase::ReqSent(_) => {
                let mut rep = Box::new(*rep);
                if self.reliability == Some(Reliability::Extended) {
                    rep.qpn = rep.target_qpn;
                }
                self.ids.remote = rep.ids.local;
                self.remote = Some((rep.qpn, rep.ca_guid));
                self.phase = Phase::RepReceived;
                let id = self.ids.local;
                self.report(out, CmEvent::Accepted { id, rep });
            }
            // The program has not confirmed yet.
            Phase::RepReceived => {
                self.send(out, &self.mra(Rejected::Rep));
            }
            // The RTU was lost.
            Phase::Established(Some(rtu)) => out.send(self.peer, *rtu),
            Phase::Refused(..) | Phase::Closed => return Received::Unknown,
            _ => {}
        }
        Received::Taken
    }

    fn receive_mra(&mut self, now: Time, mra: &Mra) {
        let (Phase::ReqSent(waiting) | Phase::RepSent(waiting)) = &mut self.phase else {
            return;
        };
        let timeout = AckTimeout::new(mra.service_timeout).duration();
        waiting.postpone(now, timeout.unwrap_or_default());
    }

    fn receive_rej(&mut self, rej: &Rej, out: &mut Output) {
        match self.phase {
            Phase::ReqSent(_)
            | Phase::RepReceived
            | Phase::ReqReceived
            | Phase::RepSent(_)
            | Phase::Established(_) => {
                self.phase = Phase::Closed;
                let event = CmEvent::Rejected {
                    id: self.ids.local,
                    reason: rej.reason,
                    private_data: rej.private_data.into(),
                };
                self.report(out, event);
            }
            Phase::DreqSent(_) | Phase::TimeWait(_) | Phase::Refused(..) | Phase::Closed => {}
        }
    }

    fn receive_dreq(&mut self, now: Time, dreq: &Dreq, out: &mut Output) -> Received {
        let is_own = self.ids.remote == dreq.ids.local;
        match self.phase {
            // In RepSent, the RTU was lost.
            Phase::Established(_) | Phase::RepSent(_) | Phase::DreqSent(_) if is_own => {
                self.send(out, &Message::Drep(self.ids));
                self.end(now, out);
                Received::Taken
            }
            // The DREP was lost, or this connection is over.
            _ => Received::Unknown,
        }
    }
}

/// How a message was handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Received {
    Taken,
    /// To be answered as if the connection did not exist.
    Unknown,
}
