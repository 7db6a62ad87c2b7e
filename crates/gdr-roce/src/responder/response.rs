//! Queued responses, in request order.

use super::{Nak, Responder};
use crate::completion::{Event, WcStatus};
use crate::connection::{Connection, Notifications, emit, emit_empty};
use crate::ids::Key;
use crate::memory::{AccessError, Extent, Memory};
use crate::payload::{MOST_MERGED, choose_merged};
use crate::psn::{Msn, Psn};
use crate::wire::{Aeth, AtomicAckEth, NakCode, Opcode, Position, Syndrome};

/// Whether a request was executed before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestKind {
    New,
    Duplicate,
}

/// A response that still has packets to send.
#[derive(Debug)]
pub(super) enum Response {
    Acknowledge {
        psn: Psn,
        syndrome: Syndrome,
        msn: Msn,
    },
    /// The NAK that terminates the connection. The receive in use completes with `status`.
    FatalNak {
        psn: Psn,
        code: NakCode,
        status: WcStatus,
    },
    Atomic {
        psn: Psn,
        original: u64,
        msn: Msn,
        request: RequestKind,
    },
    /// READ responses. Each packet is built when it is sent.
    Read {
        psn: Psn,
        key: Key,
        /// The bytes not yet sent.
        extent: Extent,
        /// The length of the whole response in bytes.
        len: u32,
        /// Index of the next packet.
        index: u32,
        packets: u32,
        msn: Msn,
        request: RequestKind,
    },
}

impl Response {
    pub(super) const fn read(
        psn: Psn,
        key: Key,
        extent: Extent,
        packets: u32,
        msn: Msn,
        request: RequestKind,
    ) -> Self {
        Self::Read {
            psn,
            key,
            extent,
            len: extent.len,
            index: 0,
            packets,
            msn,
            request,
        }
    }

    /// Returns whether a response packet with this PSN is still to be sent.
    pub(super) const fn will_send(&self, wanted: Psn) -> bool {
        match self {
            Self::Read {
                psn,
                index,
                packets,
                ..
            } => wanted.distance_from(*psn) < *packets - *index,
            Self::Atomic { psn, .. } => wanted.distance_from(*psn) == 0,
            Self::Acknowledge { .. } | Self::FatalNak { .. } => false,
        }
    }

    /// Returns whether this responds to a READ or atomic that is not a duplicate.
    pub(super) const fn counts_as_outstanding(&self) -> bool {
        matches!(
            self,
            Self::Read {
                request: RequestKind::New,
                ..
            } | Self::Atomic {
                request: RequestKind::New,
                ..
            }
        )
    }
}

/// An acknowledgement waiting to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owed {
    psn: Psn,
    msn: Msn,
}

impl Owed {
    /// Writes the acknowledgement packet to `out`. Returns its length.
    pub(crate) fn emit(self, connection: &Connection, out: &mut [u8]) -> usize {
        emit_ack(connection, self.psn, Syndrome::ACK, self.msn, out)
    }
}

/// The result of [`Responder::poll`].
pub(crate) enum Polled {
    Nothing,
    /// A packet of this length was written.
    Packet(usize),
    /// A NAK of this length was written that terminates the connection: the queue pair must enter ERR.
    FatalNak(usize),
}

/// The result of [`Response::emit_next`].
enum Emitted {
    /// A packet of this length was written, and more follow.
    Partial(usize),
    /// The last packet of the response was written, of this length.
    Last(usize),
    /// No packet; the response is dropped.
    Nothing,
    /// No packet, because a READ's memory cannot be read.
    MemoryError(AccessError, Psn),
    FatalNak(Psn, NakCode, WcStatus),
}

impl Responder {
    /// Returns whether the next response is a READ response. Only READs have many response packets.
    pub(crate) fn is_reading(&self) -> bool {
        matches!(self.responses.front(), Some(Response::Read { .. }))
    }

    pub(crate) fn has_responses(&self) -> bool {
        !self.responses.is_empty()
    }

    /// Returns the queued acknowledgement, if it is the only response.
    pub(crate) fn owed_acknowledgement(&self) -> Option<Owed> {
        match (self.responses.front(), self.responses.len()) {
            (
                Some(&Response::Acknowledge {
                    psn,
                    syndrome: Syndrome::ACK,
                    msn,
                }),
                1,
            ) => Some(Owed { psn, msn }),
            _ => None,
        }
    }

    /// Removes and returns it.
    pub(crate) fn take_owed_acknowledgement(&mut self) -> Option<Owed> {
        let owed = self.owed_acknowledgement()?;
        self.responses.clear();
        Some(owed)
    }

    /// Writes the next response packet to `out`.
    pub(crate) fn poll(
        &mut self,
        connection: &Connection,
        memory: &mut dyn Memory,
        out: &mut [u8],
        notifications: &mut Notifications,
    ) -> Polled {
        while let Some(response) = self.responses.front_mut() {
            match response.emit_next(connection, memory, out) {
                Emitted::Partial(len) => return Polled::Packet(len),
                Emitted::Last(len) => {
                    match self.responses.pop_front() {
                        Some(Response::Acknowledge {
                            syndrome: Syndrome::Nak(NakCode::SequenceError),
                            ..
                        }) => self.statistics.sequence_naks_sent += 1,
                        Some(Response::Read {
                            len,
                            request: RequestKind::New,
                            ..
                        }) => {
                            self.served.reads += 1;
                            self.served.read_bytes += u64::from(len);
                        }
                        _ => {}
                    }
                    return Polled::Packet(len);
                }
                Emitted::Nothing => {
                    self.responses.pop_front();
                }
                Emitted::MemoryError(error, psn) => {
                    let (code, status) = Nak::access(error);
                    return self.emit_fatal_nak(psn, code, status, connection, out, notifications);
                }
                Emitted::FatalNak(psn, code, status) => {
                    return self.emit_fatal_nak(psn, code, status, connection, out, notifications);
                }
            }
        }
        Polled::Nothing
    }

    /// Writes the NAK that terminates the connection.
    fn emit_fatal_nak(
        &mut self,
        psn: Psn,
        code: NakCode,
        status: WcStatus,
        connection: &Connection,
        out: &mut [u8],
        notifications: &mut Notifications,
    ) -> Polled {
        self.end_message(status, notifications);
        notifications.events.push_back(match code {
            NakCode::RemoteAccess => Event::AccessViolation,
            NakCode::InvalidRequest | NakCode::SequenceError => Event::InvalidRequest,
            NakCode::RemoteOperation => Event::Fatal,
        });
        Polled::FatalNak(emit_ack(
            connection,
            psn,
            Syndrome::Nak(code),
            self.msn,
            out,
        ))
    }
}

impl Response {
    /// Writes the next packet of this response.
    fn emit_next(
        &mut self,
        connection: &Connection,
        memory: &mut dyn Memory,
        out: &mut [u8],
    ) -> Emitted {
        match self {
            Self::Acknowledge { psn, syndrome, msn } => {
                Emitted::Last(emit_ack(connection, *psn, *syndrome, *msn, out))
            }
            Self::FatalNak { psn, code, status } => Emitted::FatalNak(*psn, *code, *status),
            Self::Atomic {
                psn, original, msn, ..
            } => {
                let mut headers = connection.headers(Opcode::AtomicAcknowledge, *psn);
                headers.aeth = Some(Aeth {
                    syndrome: Syndrome::ACK,
                    msn: *msn,
                });
                headers.atomic_ack = Some(AtomicAckEth {
                    original: *original,
                });
                headers.bth.filled = true;
                Emitted::Last(emit_empty(&headers, out))
            }
            Self::Read {
                psn,
                key,
                extent,
                index,
                packets,
                msn,
                request,
                len: total,
            } => {
                let mtu = connection.mtu;
                let most = extent.len.min(MOST_MERGED * mtu.bytes() as u32);
                let part = Extent {
                    len: most,
                    ..*extent
                };
                let merged = match *request {
                    RequestKind::New => choose_merged(memory, *key, part, most, *total, mtu),
                    RequestKind::Duplicate => Ok(0),
                };
                let merged = match merged {
                    Ok(merged) => merged,
                    Err(error) => return Emitted::MemoryError(error, *psn),
                };
                let len = extent.len.min(merged.max(1) * mtu.bytes() as u32);
                let position = Position::of(*index, merged.max(1), *packets);
                let mut headers = connection.headers(Opcode::read_response(position), *psn);
                // Middle responses have no AETH; `emit` leaves it out.
                headers.aeth = Some(Aeth {
                    syndrome: Syndrome::ACK,
                    msn: *msn,
                });
                let sent = match merged {
                    0 => emit(&headers, len as usize, out, |payload| match payload {
                        [] => Ok(()),
                        payload => memory.read(*key, extent.addr, payload),
                    }),
                    _ => Ok(emit_empty(&headers, out)),
                };
                let sent = match sent {
                    Ok(sent) => sent,
                    // Nothing was sent yet, so the request fails as if the initial check had refused it.
                    Err(error) if *request == RequestKind::New => {
                        return Emitted::MemoryError(error, *psn);
                    }
                    // Part of the response was sent, so the request cannot fail any more.
                    Err(_) => return Emitted::Nothing,
                };
                *psn = psn.wrapping_add(merged.max(1));
                // In bounds: the whole range was checked.
                extent.addr = extent.addr.wrapping_add(len.into());
                extent.len -= len;
                *index += merged.max(1);
                if position.is_last() {
                    Emitted::Last(sent)
                } else {
                    Emitted::Partial(sent)
                }
            }
        }
    }
}

fn emit_ack(
    connection: &Connection,
    psn: Psn,
    syndrome: Syndrome,
    msn: Msn,
    out: &mut [u8],
) -> usize {
    let mut headers = connection.headers(Opcode::Acknowledge, psn);
    headers.aeth = Some(Aeth { syndrome, msn });
    headers.bth.filled = true;
    emit_empty(&headers, out)
}
