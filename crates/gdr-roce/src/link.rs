//! What both halves of a queue pair share: whom they talk to, and where results go.

use std::collections::VecDeque;

use crate::completion::{Completion, Event};
use crate::key::{PartitionKey, Qpn};
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::wire::{Bth, Headers, Opcode, icrc, padding};

/// The connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) qpn: Qpn,
    pub(crate) dest_qpn: Qpn,
    pub(crate) mtu: Mtu,
}

impl Link {
    /// Headers of a packet to the peer.
    pub(crate) const fn headers(&self, opcode: Opcode, psn: Psn) -> Headers {
        let bth = Bth {
            opcode: opcode.byte(),
            solicited: false,
            migrated: true,
            pad: 0,
            version: 0,
            partition: PartitionKey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qpn: self.dest_qpn,
            ack_request: false,
            psn,
        };
        Headers::new(opcode, bth)
    }
}

/// What the program will poll.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) events: VecDeque<Event>,
}

/// The connection is over: the queue pair goes to ERR and flushes.
#[derive(Debug)]
pub(crate) struct Broken;

/// Writes a whole datagram: headers, `len` bytes of payload by `fill`, padding, and zeros where
/// the ICRC goes.
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
