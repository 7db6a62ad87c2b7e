//! The receiving half: which of the peer's requests is served, refused, or was served before.

mod execute;
mod reply;

use std::collections::VecDeque;

use crate::completion::{Completion, Event, WcOpcode, WcStatus};
use crate::error::PostError;
use crate::key::{Key, Qpn, WrId};
use crate::link::{Broken, Link, Results};
use crate::memory::{Access, AccessError, Extent, Memory};
use crate::psn::{Msn, Psn};
use crate::queue_pair::{Capabilities, Pace, RtrAttributes};
use crate::request::RecvRequest;
use crate::scatter::{self, Segments};
use crate::timer::RnrTimer;
use crate::wire::{NakCode, Packet, Syndrome};
use reply::Reply;

/// The longest message of the specification.
const MAX_DMA_LEN: u32 = 1 << 31;

/// Replies that may wait, besides those to READs and atomics that were agreed on. A peer that
/// talks on without listening is not answered: as if the answer were lost.
const MAX_WAITING: usize = 64;

/// A request on the receive queue.
#[derive(Debug)]
struct Receive {
    id: WrId,
    segments: Segments,
    capacity: u64,
}

/// The message whose packets are coming in.
#[derive(Debug)]
enum Message {
    /// None: the next packet begins one.
    None,
    Send {
        receive: Receive,
        /// Bytes so far.
        placed: u32,
    },
    Write {
        key: Key,
        /// Where the next byte goes.
        addr: u64,
        /// Bytes to come.
        left: u32,
        /// Bytes of the message.
        len: u32,
    },
}

/// Why a request is not served.
#[derive(Debug)]
enum Refusal {
    /// No receive is posted. Not the end.
    ReceiverNotReady,
    /// The end, and how the receive in use ends.
    Fatal(NakCode, WcStatus),
}

impl Refusal {
    const INVALID: Self = Self::Fatal(NakCode::InvalidRequest, WcStatus::RemoteInvalidRequest);

    /// The peer may not access this side's memory so, or this side cannot.
    const fn remote(error: AccessError) -> Self {
        match error {
            AccessError::Failed => Self::Fatal(NakCode::RemoteOperation, WcStatus::RemoteOperation),
            _ => Self::Fatal(NakCode::RemoteAccess, WcStatus::RemoteAccess),
        }
    }

    /// The receive's own memory cannot be accessed.
    const fn local(_: AccessError) -> Self {
        Self::Fatal(NakCode::RemoteOperation, WcStatus::LocalProtection)
    }
}

#[derive(Debug)]
pub(crate) struct Responder {
    qpn: Qpn,
    access: Access,
    max_rd_atomic: usize,
    rnr_timer: RnrTimer,
    ack_every: u32,
    expected: Psn,
    /// The latest packet of a SEND or WRITE.
    taken: Psn,
    msn: Msn,
    receives: VecDeque<Receive>,
    message: Message,
    /// The peer was told to send again from `expected` on; until it does, nothing more is said.
    told: bool,
    /// The latest atomics and what they answered.
    atomics: VecDeque<(Psn, u64)>,
    replies: VecDeque<Reply>,
    /// READs and atomics among the replies that are no duplicates.
    fresh: usize,
    /// Packets that were not acknowledged yet.
    unacknowledged: u32,
}

impl Responder {
    pub(crate) fn new(qpn: Qpn, pace: &Pace) -> Self {
        Self {
            qpn,
            access: Access::empty(),
            max_rd_atomic: 0,
            rnr_timer: RnrTimer::new(0),
            ack_every: pace.ack_every,
            expected: Psn::default(),
            taken: Psn::default(),
            msn: Msn::default(),
            receives: VecDeque::new(),
            message: Message::None,
            told: false,
            atomics: VecDeque::new(),
            replies: VecDeque::new(),
            fresh: 0,
            unacknowledged: 0,
        }
    }

    pub(crate) fn allow(&mut self, access: Access) {
        self.access = access;
    }

    pub(crate) fn connect(&mut self, attributes: &RtrAttributes) {
        self.expected = attributes.rq_psn;
        self.taken = attributes.rq_psn.wrapping_sub(1);
        self.max_rd_atomic = attributes.max_dest_rd_atomic.into();
        self.rnr_timer = attributes.min_rnr_timer;
    }

    pub(crate) fn post(
        &mut self,
        request: &RecvRequest<'_>,
        caps: &Capabilities,
    ) -> Result<(), PostError> {
        let in_use = usize::from(matches!(self.message, Message::Send { .. }));
        if self.receives.len() + in_use >= caps.max_recv_wr as usize {
            return Err(PostError::Full(caps.max_recv_wr));
        }
        self.receives.push_back(Receive {
            id: request.id,
            segments: request.segments.into(),
            capacity: scatter::total(request.segments),
        });
        Ok(())
    }

    /// Ends every receive that is queued; the one in use first.
    pub(crate) fn flush(&mut self, results: &mut Results) {
        self.end_message(WcStatus::WrFlushed, results);
        for receive in std::mem::take(&mut self.receives) {
            results
                .completions
                .push_back(self.failure(receive.id, WcStatus::WrFlushed));
        }
    }

    /// Takes a request packet.
    pub(crate) fn receive(
        &mut self,
        packet: &Packet<'_>,
        link: &Link,
        memory: &mut dyn Memory,
        results: &mut Results,
    ) -> Result<(), Broken> {
        let psn = packet.bth().psn;
        if psn != self.expected {
            if psn.compare(self.expected).is_lt() {
                self.duplicate(packet, link, memory);
            } else if !self.told {
                self.told = true;
                self.say(Syndrome::Nak(NakCode::SequenceError), self.expected);
            }
            return Ok(());
        }
        self.told = false;
        match self.execute(packet, link, memory, results) {
            Ok(()) => Ok(()),
            Err(Refusal::ReceiverNotReady) => {
                self.told = true;
                self.say(Syndrome::ReceiverNotReady(self.rnr_timer), psn);
                Ok(())
            }
            Err(Refusal::Fatal(code, status)) => {
                self.replies.push_back(Reply::Acknowledge {
                    psn,
                    syndrome: Syndrome::Nak(code),
                    msn: self.msn,
                });
                self.end_message(status, results);
                results.events.push_back(match code {
                    NakCode::RemoteAccess => Event::AccessViolation,
                    NakCode::InvalidRequest | NakCode::SequenceError => Event::InvalidRequest,
                    NakCode::RemoteOperation => Event::Fatal,
                });
                Err(Broken)
            }
        }
    }

    /// A packet that was taken before: its answer may be lost, so it is answered again, but
    /// nothing is done again that changes memory.
    fn duplicate(&mut self, packet: &Packet<'_>, link: &Link, memory: &dyn Memory) {
        if self.is_congested() {
            return;
        }
        let psn = packet.bth().psn;
        if let Some(reth) = packet.reth().filter(|_| !packet.opcode().is_write()) {
            let packets = link.mtu.packets(reth.dma_len);
            let known = packets <= self.expected.distance_from(psn);
            let coming = self.replies.iter().any(|reply| reply.will_answer(psn));
            if !known || coming || !self.access.contains(Access::REMOTE_READ) {
                return;
            }
            let extent = Extent {
                addr: reth.addr,
                len: reth.dma_len,
            };
            let key = Key::Remote(reth.rkey);
            if reth.dma_len > MAX_DMA_LEN
                || check(memory, key, extent, Access::REMOTE_READ).is_err()
            {
                return;
            }
            self.replies
                .push_back(Reply::read(psn, key, extent, packets, self.msn, false));
        } else if packet.opcode().has_atomic() {
            if let Some((_, original)) = self.atomics.iter().rev().find(|(done, _)| *done == psn) {
                let (original, msn) = (*original, self.msn);
                self.replies.push_back(Reply::Atomic {
                    psn,
                    original,
                    msn,
                    fresh: false,
                });
            }
        } else {
            // Not of a READ or an atomic behind it, which only its own answer can complete: rxe
            // takes this for that answer when it has that very PSN, and leaves memory as it was.
            self.say(Syndrome::ACK, self.taken);
        }
    }

    /// Whether so many replies wait that no more are queued but those that must be.
    fn is_congested(&self) -> bool {
        self.replies.len() >= MAX_WAITING + 2 * self.max_rd_atomic
    }

    /// Queues an acknowledgement, in place of one that it includes and that has not left yet.
    fn say(&mut self, syndrome: Syndrome, psn: Psn) {
        let said = Reply::Acknowledge {
            psn,
            syndrome,
            msn: self.msn,
        };
        let positive = matches!(syndrome, Syndrome::Ack { .. });
        let congested = self.is_congested();
        match self.replies.back_mut() {
            Some(
                last @ Reply::Acknowledge {
                    syndrome: Syndrome::Ack { .. },
                    ..
                },
            ) if positive => {
                *last = said;
            }
            _ if congested => {}
            _ => self.replies.push_back(said),
        }
    }

    /// Queues an answer that acknowledges all before it, in place of an acknowledgement that says
    /// only that. Linux's rxe (since 5.19) fails a READ when such an acknowledgement is overtaken
    /// by the READ's first response.
    fn answer(&mut self, reply: Reply) {
        let positive = matches!(
            self.replies.back(),
            Some(Reply::Acknowledge {
                syndrome: Syndrome::Ack { .. },
                ..
            })
        );
        if positive {
            self.replies.pop_back();
        }
        self.replies.push_back(reply);
        self.unacknowledged = 0;
    }

    /// The receive in use, if any, ends with a failure.
    fn end_message(&mut self, status: WcStatus, results: &mut Results) {
        if let Message::Send { receive, .. } = std::mem::replace(&mut self.message, Message::None) {
            results
                .completions
                .push_back(self.failure(receive.id, status));
        }
    }

    fn failure(&self, id: WrId, status: WcStatus) -> Completion {
        Completion {
            id,
            status,
            opcode: WcOpcode::Recv,
            byte_len: 0,
            immediate: None,
            solicited: false,
            qpn: self.qpn,
        }
    }
}

/// Checks a range; nothing need be there for no bytes (IBTA C9-88).
fn check(memory: &dyn Memory, key: Key, extent: Extent, access: Access) -> Result<(), AccessError> {
    if extent.len == 0 {
        Ok(())
    } else {
        memory.check(key, extent, access)
    }
}
