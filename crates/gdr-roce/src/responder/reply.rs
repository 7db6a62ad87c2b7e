//! What is yet to be answered, in the order of the requests.

use super::{Refusal, Responder};
use crate::completion::Event;
use crate::key::Key;
use crate::link::{Broken, Link, Results, emit};
use crate::memory::{AccessError, Extent, Memory};
use crate::psn::{Msn, Psn};
use crate::wire::{Aeth, AtomicAckEth, Opcode, Position, Syndrome};

#[derive(Debug)]
pub(super) enum Reply {
    Acknowledge {
        psn: Psn,
        syndrome: Syndrome,
        msn: Msn,
    },
    Atomic {
        psn: Psn,
        original: u64,
        msn: Msn,
        fresh: bool,
    },
    /// READ responses, made one by one when they are sent.
    Read {
        psn: Psn,
        key: Key,
        /// What is not sent yet.
        extent: Extent,
        /// The next packet, counted from the first.
        index: u32,
        packets: u32,
        msn: Msn,
        fresh: bool,
    },
}

impl Reply {
    pub(super) const fn read(
        psn: Psn,
        key: Key,
        extent: Extent,
        packets: u32,
        msn: Msn,
        fresh: bool,
    ) -> Self {
        Self::Read {
            psn,
            key,
            extent,
            index: 0,
            packets,
            msn,
            fresh,
        }
    }

    /// Whether an answer with this PSN is still going to be sent.
    pub(super) const fn will_answer(&self, wanted: Psn) -> bool {
        match self {
            Self::Read {
                psn,
                index,
                packets,
                ..
            } => wanted.distance_from(*psn) < *packets - *index,
            Self::Atomic { psn, .. } => wanted.distance_from(*psn) == 0,
            Self::Acknowledge { .. } => false,
        }
    }
}

impl Responder {
    /// Whether READ responses wait: the only replies that may take long.
    pub(crate) fn is_reading(&self) -> bool {
        matches!(self.replies.front(), Some(Reply::Read { .. }))
    }

    /// Writes the next reply packet, if there is one.
    pub(crate) fn poll(
        &mut self,
        link: &Link,
        memory: &mut dyn Memory,
        out: &mut [u8],
        results: &mut Results,
    ) -> Result<Option<usize>, Broken> {
        let Some(reply) = self.replies.front_mut() else {
            return Ok(None);
        };
        let nothing = |_: &mut [u8]| Ok::<_, AccessError>(());
        let (sent, done, was_fresh) = match reply {
            Reply::Acknowledge { psn, syndrome, msn } => {
                let mut headers = link.headers(Opcode::Acknowledge, *psn);
                headers.aeth = Some(Aeth {
                    syndrome: *syndrome,
                    msn: *msn,
                });
                (emit(&headers, 0, out, nothing), true, false)
            }
            Reply::Atomic {
                psn,
                original,
                msn,
                fresh,
            } => {
                let mut headers = link.headers(Opcode::AtomicAcknowledge, *psn);
                headers.aeth = Some(Aeth {
                    syndrome: Syndrome::ACK,
                    msn: *msn,
                });
                headers.atomic_ack = Some(AtomicAckEth {
                    original: *original,
                });
                (emit(&headers, 0, out, nothing), true, *fresh)
            }
            Reply::Read {
                psn,
                key,
                extent,
                index,
                packets,
                msn,
                fresh,
            } => {
                let position = Position::of(*index, *packets);
                let mut headers = link.headers(Opcode::read_response(position), *psn);
                headers.aeth = Some(Aeth {
                    syndrome: Syndrome::ACK,
                    msn: *msn,
                });
                let len = extent.len.min(link.mtu.bytes() as u32);
                let sent = emit(&headers, len as usize, out, |payload| match payload {
                    [] => Ok(()),
                    payload => memory.read(*key, extent.addr, payload),
                });
                if let (Err(error), true) = (&sent, *fresh) {
                    let (error, psn) = (*error, *psn);
                    return self.cannot_read(error, psn, results);
                }
                *psn = psn.wrapping_add(1);
                // No overflow: the whole range was checked.
                extent.addr = extent.addr.wrapping_add(len.into());
                extent.len -= len;
                *index += 1;
                (sent, position.is_last(), *fresh)
            }
        };
        // A duplicate whose memory is gone meanwhile is dropped: it was answered once.
        if done || sent.is_err() {
            self.replies.pop_front();
            self.fresh -= usize::from(was_fresh);
        }
        Ok(sent.ok())
    }

    /// The memory of a READ went away while it was answered.
    fn cannot_read(
        &mut self,
        error: AccessError,
        psn: Psn,
        results: &mut Results,
    ) -> Result<Option<usize>, Broken> {
        self.replies.clear();
        self.fresh = 0;
        let (syndrome, event) = match Refusal::remote(error) {
            Refusal::Fatal(code, _) if error == AccessError::Failed => {
                (Syndrome::Nak(code), Event::Fatal)
            }
            Refusal::Fatal(code, _) => (Syndrome::Nak(code), Event::AccessViolation),
            Refusal::ReceiverNotReady => return Ok(None),
        };
        self.say(syndrome, psn);
        results.events.push_back(event);
        Err(Broken)
    }
}
