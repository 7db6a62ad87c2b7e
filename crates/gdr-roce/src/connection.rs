//! The state that the requester and the responder of a queue pair share.

use std::collections::VecDeque;

use crate::completion::{Completion, Event};
use crate::ids::{PartitionKey, Qpn};
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::wire::{Bth, Headers, Opcode, SERVICE, icrc, padding};

/// The service of a connection: whether it retransmits what is lost, and where its receives come from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Reliability {
    /// The reliable connection service (RC): requests are acknowledged, and retransmitted if they are not.
    Reliable = 0x00,
    /// The unreliable connection service (UC), which has only SEND and WRITE, and completes them when they are
    /// sent. A message that loses a packet is dropped.
    Unreliable = 0x20,
    /// The extended reliable connection service (XRC): like the reliable one, but in one direction, and with receives
    /// from the shared queue that each request names.
    Extended = 0xa0,
}

impl Reliability {
    /// Returns the byte for a connection opcode in packets of this service.
    pub const fn byte(self, opcode: Opcode) -> u8 {
        opcode.byte() | self as u8
    }

    /// Returns the service that an opcode byte belongs to; [`Reliable`](Self::Reliable) for services without
    /// connections.
    pub const fn of(byte: u8) -> Self {
        match byte & SERVICE {
            0x20 => Self::Unreliable,
            0xa0 => Self::Extended,
            _ => Self::Reliable,
        }
    }
}

/// How a reliable connection recovers from losses. Both ends must agree.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum LossRecovery {
    /// As specified: the responder drops what arrives after a gap, and reports the gap once; the requester sends
    /// everything from the gap on again.
    #[default]
    GoBackN,
    /// Between two ends of this crate: the responder keeps SENDs, WRITEs and requests that arrive after a gap,
    /// executes them in order once the gap is closed, and reports each missing packet with a NAK for its PSN;
    /// the requester sends only these packets again. It also places READ responses that arrive after a missing
    /// one, and requests only the missing ones again. The packets have the specified format.
    Selective,
}

/// The service, the addresses and the path MTU of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    pub(crate) reliability: Reliability,
    pub(crate) qpn: Qpn,
    pub(crate) dest_qpn: Qpn,
    pub(crate) mtu: Mtu,
}

impl Connection {
    /// The headers of a packet to the peer.
    pub(crate) const fn headers(&self, opcode: Opcode, psn: Psn) -> Headers {
        let byte = self.reliability.byte(opcode);
        Headers::new(opcode, bth(byte, self.dest_qpn, psn))
    }
}

/// The base transport header of a packet to `dest_qpn`, with the byte of its opcode.
pub(crate) const fn bth(opcode: u8, dest_qpn: Qpn, psn: Psn) -> Bth {
    Bth {
        opcode,
        solicited: false,
        migrated: true,
        pad: 0,
        version: 0,
        partition: PartitionKey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qpn,
        ack_request: false,
        filled: false,
        psn,
    }
}

/// The completions and events that the owner has not polled.
#[derive(Debug, Default)]
pub(crate) struct Notifications {
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) events: VecDeque<Event>,
}

impl Notifications {
    /// Takes back the completions of requests that were flushed when they were posted, the last of all
    /// calls.
    pub(crate) fn withdraw(&mut self, count: usize) {
        let left = self.completions.len().saturating_sub(count);
        self.completions.truncate(left);
    }
}

/// The connection has failed: the queue pair must change to ERR.
#[derive(Debug)]
pub(crate) struct ConnectionFailed;

/// Writes a packet without payload, or whose payload is passed by reference, and returns its length: the headers, and
/// zeros in place of the ICRC.
pub(crate) fn emit_empty(headers: &Headers, out: &mut [u8]) -> usize {
    let at = headers.emit(0, out);
    let end = at + icrc::LEN;
    out[at..end].fill(0);
    end
}

/// Writes a whole datagram and returns its length: the headers, `len` bytes of payload from
/// `fill`, the padding, and zeros in place of the ICRC.
pub(crate) fn emit<E>(
    headers: &Headers,
    len: usize,
    out: &mut [u8],
    fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<usize, E> {
    let at = headers.emit(len, out);
    fill(&mut out[at..at + len])?;
    let end = at + len + padding(len) + icrc::LEN;
    out[at + len..end].fill(0);
    Ok(end)
}
