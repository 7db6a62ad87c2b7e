//! What a queue pair is made and connected with.

use crate::key::Qpn;
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::timer::{AckTimeout, RetryCount, RnrRetry, RnrTimer};

/// How large a queue pair is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Requests on the send queue that are not complete.
    pub max_send_wr: u32,
    /// Requests on the receive queue that are not complete.
    pub max_recv_wr: u32,
    /// Bytes of a request that carries its bytes with it.
    pub max_inline: u32,
}

/// How the engine paces itself. Neither side need know the other's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// Packets that may be on their way without an answer; a READ's answers count. At least 2.
    pub window: u32,
    /// Packets of one READ request on the wire: longer READs are split into such pieces, so that
    /// their answers are paced, too. At least 1, at most `window`.
    pub read_packets: u32,
    /// The requester asks for an acknowledgement at least every so many packets.
    pub ack_request_every: u32,
    /// The responder acknowledges at least every so many packets, unasked.
    pub ack_every: u32,
}

impl Default for Pace {
    /// A window of 128 packets, as Linux rxe has, half of it for one READ request.
    fn default() -> Self {
        Self {
            window: 128,
            read_packets: 64,
            ack_request_every: 32,
            ack_every: 32,
        }
    }
}

/// What the receiving half needs to start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RtrAttributes {
    /// The peer.
    pub dest_qpn: Qpn,
    /// The first PSN that the peer will send: its `sq_psn`.
    pub rq_psn: Psn,
    /// Payload of a packet, both ways; the same on both sides.
    pub path_mtu: Mtu,
    /// READs and atomics that the peer may have outstanding here. 0: none at all.
    pub max_dest_rd_atomic: u8,
    /// How long the peer is asked to wait when no receive is posted.
    pub min_rnr_timer: RnrTimer,
}

/// What the sending half needs to start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RtsAttributes {
    /// The first PSN that is sent: the peer's `rq_psn`.
    pub sq_psn: Psn,
    /// How long to wait for an answer.
    pub timeout: AckTimeout,
    /// How often to try again when none comes.
    pub retry_count: RetryCount,
    /// How often to try again when the peer has no receive.
    pub rnr_retry: RnrRetry,
    /// READs and atomics outstanding at the peer; at most its `max_dest_rd_atomic`.
    pub max_rd_atomic: u8,
}

/// Where a queue pair stands.
///
/// RESET, INIT, RTR, RTS, in this order; ERR from any but RESET; RESET from any.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// New. Nothing can be posted.
    Reset,
    /// Receives can be posted; packets are dropped.
    Init,
    /// Ready to receive: the peer's requests are served.
    ReadyToReceive,
    /// Ready to send.
    ReadyToSend,
    /// Failed. What is posted is flushed; packets are dropped.
    Error,
}
