//! State shared by the requester and the responder of a queue pair.

use std::collections::VecDeque;

use crate::completion::{Completion, Event};
use crate::ids::{PartitionKey, Qpn};
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::wire::{Bth, Headers, Opcode, SERVICE, icrc, padding};

/// A connection's transport service: whether lost packets are retransmitted, and where receives come from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Reliability {
    /// The reliable connection service (RC): requests are acknowledged, and retransmitted if they are not.
    Reliable = 0x00,
    /// The unreliable connection service (UC): only SEND and WRITE, which complete when sent. A message that loses a
    /// packet is dropped.
    Unreliable = 0x20,
    /// The extended reliable connection service (XRC): like RC, but in one direction, and each request selects the
    /// shared receive queue that its receive comes from.
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
    /// As specified: the responder drops everything beyond a gap, and reports the gap once; the requester retransmits
    /// from the gap on.
    #[default]
    GoBackN,
    /// Between two ends of this crate. The responder buffers SENDs, WRITEs and other requests that arrive beyond a gap,
    /// executes them in order once the gap is closed, and reports every missing packet with a NAK for its PSN. The
    /// requester retransmits only those packets. It also places READ responses that arrive beyond a gap, and requests
    /// only the missing ones again. All packets have the specified format.
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
    /// Returns the headers of a packet to the peer.
    pub(crate) const fn headers(&self, opcode: Opcode, psn: Psn) -> Headers {
        let byte = self.reliability.byte(opcode);
        Headers::new(opcode, bth(byte, self.dest_qpn, psn))
    }
}

/// Returns the base transport header of a packet to `dest_qpn`, with the byte of its opcode.
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

/// Completions and events that the owner has not polled yet.
#[derive(Debug, Default)]
pub(crate) struct Notifications {
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) events: VecDeque<Event>,
}

impl Notifications {
    /// Withdraws the last `count` completions, of requests that were flushed when posted. Nothing may have been added
    /// since.
    pub(crate) fn withdraw(&mut self, count: usize) {
        let left = self.completions.len().saturating_sub(count);
        self.completions.truncate(left);
    }
}

/// The connection has failed: the queue pair must enter ERR.
#[derive(Debug)]
pub(crate) struct ConnectionFailed;

/// Writes a packet without payload, or whose payload is passed by reference: headers, and zeros in place of the ICRC.
/// Returns its length.
pub(crate) fn emit_empty(headers: &Headers, out: &mut [u8]) -> usize {
    let at = headers.emit(0, out);
    let end = at + icrc::LEN;
    out[at..end].fill(0);
    end
}

/// Writes a whole datagram: headers, `len` bytes of payload from `fill`, padding, and zeros in place of the ICRC.
/// Returns its length.
pub(crate) fn emit<E>(
    headers: &Headers,
    len: usize,
    out: &mut [u8],
    fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<usize, E> {
    emit_payload(headers.emit(len, out), len, out, fill)
}

/// Like [`emit`], after the headers, which end at `at`.
pub(crate) fn emit_payload<E>(
    at: usize,
    len: usize,
    out: &mut [u8],
    fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<usize, E> {
    fill(&mut out[at..at + len])?;
    let end = at + len + padding(len) + icrc::LEN;
    out[at + len..end].fill(0);
    Ok(end)
}
