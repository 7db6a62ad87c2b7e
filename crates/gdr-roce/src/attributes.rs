//! The parameters of a queue pair, and its states.

use crate::error::StateError;
use crate::ids::Qpn;
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::timer::{AckTimeout, RetryLimit, RnrRetry, RnrTimer};

/// The maximum number of atomics outstanding between two queue pairs of this crate, even if their program permits fewer
/// (but at least one). NCCL permits one, and waits for dozens. The responder keeps a 16-byte result for each.
pub(crate) const ATOMICS_OF_OWN_KIND: usize = 16;

/// Sizes of a queue pair, as in `struct ibv_qp_cap`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Maximum number of incomplete requests on the send queue.
    pub max_send_wr: u32,
    /// Maximum number of incomplete requests on the receive queue.
    pub max_recv_wr: u32,
    /// Maximum number of bytes in a request with [`Data::Inline`](crate::Data::Inline).
    pub max_inline: u32,
}

/// Flow control and acknowledgement parameters. The two sides of a connection may differ.
///
/// Values outside a parameter's range are clamped when the queue pair is created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransportConfig {
    pub(crate) window: u32,
    pub(crate) max_window: u32,
    pub(crate) read_packets: u32,
    pub(crate) ack_request_interval: u32,
    pub(crate) ack_interval: u32,
}

impl TransportConfig {
    /// The default: a window of 128 packets, as in Linux's rxe, half of which one READ request may use, and up to 4096
    /// packets on a path with a long round trip.
    pub const DEFAULT: Self = Self {
        window: 128,
        max_window: 4096,
        read_packets: 64,
        ack_request_interval: 32,
        ack_interval: 32,
    };

    /// Sets the maximum number of unacknowledged packets, unless the round trip is long. READ responses count, too. The
    /// range is 2 to 65536; the default is 128.
    #[must_use]
    pub const fn with_window(mut self, packets: u32) -> Self {
        self.window = packets;
        self
    }

    /// Sets the maximum number of unacknowledged packets on a path whose round trip takes half a millisecond or more.
    /// There the window follows the bandwidth-delay product. With
    /// [`LossRecovery::Selective`](crate::LossRecovery::Selective) the responder buffers up to this many packets beyond
    /// a gap, each of the path MTU. The range is the window to 65536; the default is 4096.
    #[must_use]
    pub const fn with_max_window(mut self, packets: u32) -> Self {
        self.max_window = packets;
        self
    }

    /// Sets the maximum number of response packets for one READ request packet. A longer READ is split, so that the
    /// window applies to its responses. If the window exceeds the value of [`with_window`](Self::with_window) because
    /// the round trip is long, requests ask for enough packets that [`RtsAttributes::max_rd_atomic`] of them fill it.
    /// The range is 1 to the window; the default is 64.
    #[must_use]
    pub const fn with_read_packets(mut self, packets: u32) -> Self {
        self.read_packets = packets;
        self
    }

    /// Sets the interval, in packets, after which the requester asks for an acknowledgement at the latest. The default
    /// is 32.
    #[must_use]
    pub const fn with_ack_request_interval(mut self, packets: u32) -> Self {
        self.ack_request_interval = packets;
        self
    }

    /// Sets the interval, in packets, after which the responder sends an acknowledgement at the latest, even if the
    /// peer did not request one. The default is 32.
    #[must_use]
    pub const fn with_ack_interval(mut self, packets: u32) -> Self {
        self.ack_interval = packets;
        self
    }

    /// Returns the maximum number of unacknowledged packets, unless the round trip is long.
    pub const fn window(&self) -> u32 {
        self.window
    }

    /// Returns the maximum number of unacknowledged packets on a path with a long round trip.
    pub const fn max_window(&self) -> u32 {
        self.max_window
    }

    /// Returns the maximum number of response packets for one READ request packet, unless the round trip is long.
    pub const fn read_packets(&self) -> u32 {
        self.read_packets
    }

    /// Returns the maximum number of packets between two requests for an acknowledgement.
    pub const fn ack_request_interval(&self) -> u32 {
        self.ack_request_interval
    }

    /// Returns the maximum number of packets between two acknowledgements.
    pub const fn ack_interval(&self) -> u32 {
        self.ack_interval
    }
}

impl Default for TransportConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Responder attributes, set on the transition from INIT to RTR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RtrAttributes {
    /// Queue pair number of the peer.
    pub dest_qpn: Qpn,
    /// First PSN that the peer sends: its `sq_psn`.
    pub rq_psn: Psn,
    /// Path MTU, which must be the same on both sides.
    pub path_mtu: Mtu,
    /// Maximum number of READs and atomics that the peer may have outstanding; 0 refuses them.
    pub max_dest_rd_atomic: u8,
    /// The delay requested by the RNR NAK that is sent when no receive is posted.
    pub min_rnr_timer: RnrTimer,
}

/// Requester attributes, set on the transition from RTR to RTS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RtsAttributes {
    /// First PSN to send: the peer's `rq_psn`.
    pub sq_psn: Psn,
    /// How long to wait for an acknowledgement before packets are retransmitted and a retry is counted. Once the
    /// round-trip time is known, the first unacknowledged packet is retransmitted earlier.
    pub timeout: AckTimeout,
    /// When the requester gives up on retransmission.
    pub retry_limit: RetryLimit,
    /// Maximum number of retries after RNR NAKs.
    pub rnr_retry: RnrRetry,
    /// Maximum number of outstanding READs and atomics; at most the peer's `max_dest_rd_atomic`.
    pub max_rd_atomic: u8,
}

/// The state of a queue pair.
///
/// The order is RESET, INIT, RTR, RTS. RTS can change to SQD and back. Every state but RESET can change to ERR, and
/// every state to RESET.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// Initial state: nothing can be posted.
    Reset,
    /// Receives can be posted; packets are dropped.
    Init,
    /// RTR: requests of the peer are served.
    ReadyToReceive,
    /// RTS: requests can be posted.
    ReadyToSend,
    /// SQD: the send queue finishes requests that it has started, and starts no others.
    SendQueueDrained,
    /// SQE: a local failure of a request on an unreliable connection or of a datagram. The send queue is flushed, while
    /// receives continue. Can change to RTS.
    SendQueueError,
    /// ERR: posted requests are flushed; packets are dropped.
    Error,
}

impl State {
    /// Changes the state if it is `from`.
    pub(crate) fn transition(&mut self, from: Self, to: Self) -> Result<(), StateError> {
        if *self != from {
            return Err(StateError { from: *self, to });
        }
        *self = to;
        Ok(())
    }

    /// Changes SQD or SQE to RTS.
    pub(crate) fn resume(&mut self) -> Result<(), StateError> {
        let from = match *self {
            Self::SendQueueError => Self::SendQueueError,
            _ => Self::SendQueueDrained,
        };
        self.transition(from, Self::ReadyToSend)
    }

    /// Returns whether packets from the peer are processed.
    pub(crate) const fn is_receiving(self) -> bool {
        matches!(
            self,
            Self::ReadyToReceive
                | Self::ReadyToSend
                | Self::SendQueueDrained
                | Self::SendQueueError
        )
    }
}
