//! One exchange that resolves the queue pair of a datagram service (SIDR).

use std::net::IpAddr;
use std::time::Duration;

use super::ServiceId;
use super::event::CmEvent;
use super::mad::Mad;
use super::manager::{CmStateError, Output};
use super::message::{CommId, Message, SidrRep, SidrReq};
use super::retransmission::{Due, Retransmission};
use gdr_roce::Time;

/// How long a reply is kept for repeated requests: as long as a peer may repeat them.
const ANSWER_KEPT: Duration = Duration::from_secs(60);

/// One end of an exchange.
#[derive(Debug)]
pub(super) struct Resolution {
    pub(super) peer: IpAddr,
    /// The local ID.
    id: CommId,
    /// The ID on the wire, which is the requesting side's.
    pub(super) sent_id: CommId,
    transaction: u64,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Asked(Retransmission),
    /// Waits for the program's reply.
    Received(ServiceId),
    Answered(Mad, Time),
    Closed,
}

impl Resolution {
    pub(super) fn ask(now: Time, peer: IpAddr, req: &SidrReq, out: &mut Output) -> Self {
        let transaction = req.id.0.into();
        let mad = Message::SidrReq(*req).emit(transaction);
        out.send(peer, mad);
        Self {
            peer,
            id: req.id,
            sent_id: req.id,
            transaction,
            phase: Phase::Asked(Retransmission::new(now, mad)),
        }
    }

    pub(super) fn asked(
        peer: IpAddr,
        id: CommId,
        req: &SidrReq,
        transaction: u64,
        out: &mut Output,
    ) -> Self {
        out.report(CmEvent::Resolving {
            id,
            from: peer,
            req: Box::new(*req),
        });
        Self {
            peer,
            id,
            sent_id: req.id,
            transaction,
            phase: Phase::Received(req.service),
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    /// Returns whether this is the passive side.
    pub(super) fn is_passive(&self) -> bool {
        matches!(self.phase, Phase::Received(_) | Phase::Answered(..))
    }

    pub(super) fn is_waiting_for_program(&self) -> bool {
        matches!(self.phase, Phase::Received(_))
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        match &self.phase {
            Phase::Asked(message) => Some(message.deadline()),
            Phase::Answered(_, until) => Some(*until),
            Phase::Received(_) | Phase::Closed => None,
        }
    }

    pub(super) fn answer(
        &mut self,
        now: Time,
        rep: &SidrRep,
        out: &mut Output,
    ) -> Result<(), CmStateError> {
        let Phase::Received(service) = self.phase else {
            return Err(CmStateError);
        };
        let id = self.sent_id;
        let rep = Message::SidrRep(SidrRep {
            id,
            service,
            ..*rep
        });
        let mad = rep.emit(self.transaction);
        out.send(self.peer, mad);
        self.phase = Phase::Answered(mad, now + ANSWER_KEPT);
        Ok(())
    }

    /// Handles a repeated request: the reply was lost, or the program is slow.
    pub(super) fn receive_again(&self, out: &mut Output) {
        if let Phase::Answered(mad, _) = &self.phase {
            out.send(self.peer, *mad);
        }
    }

    pub(super) fn receive(&mut self, rep: &SidrRep, out: &mut Output) {
        if let Phase::Asked(_) = self.phase {
            self.phase = Phase::Closed;
            out.report(CmEvent::Resolved {
                id: self.id,
                rep: Box::new(*rep),
            });
        }
    }

    pub(super) fn poll(&mut self, now: Time, out: &mut Output) {
        match &mut self.phase {
            Phase::Asked(message) => match message.poll(now) {
                Due::Later => {}
                Due::Send(mad) => out.send(self.peer, *mad),
                Due::GiveUp => {
                    self.phase = Phase::Closed;
                    out.report(CmEvent::Unreachable { id: self.id });
                }
            },
            Phase::Answered(_, until) if *until <= now => self.phase = Phase::Closed,
            _ => {}
        }
    }
}
