//! Messages between the two ends.

use gdr_rdma::Service;
use serde::{Deserialize, Serialize};

use super::plan::Request;
use super::report::{TransferEnd, TransferRow};
use super::round_trips::Immediates;
use crate::error::{PeerError, Result};
use crate::memory_facts::MemoryFacts;

/// Name of the service in the greetings of both ends.
pub const SERVICE: Service = Service::new("gdr-transfer");
/// Version of the protocol.
pub(super) const VERSION: u32 = 6;

/// A message. The connecting end sends the first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "measurement", rename_all = "snake_case")]
pub(super) enum Message {
    /// The connecting end asks for a measurement.
    Ask(Box<Ask>),
    /// The listening end accepts.
    Ready(Box<Offer>),
    /// The connecting end has chosen the path MTU, encoded as in the InfiniBand specification.
    Agreed { mtu: u8 },
    /// An end has filled its memory for the next size and posted its receives.
    Prepared { row: usize },
    /// The connecting end begins a round: how many messages each queue pair sends, and whether they are measured. A
    /// round of 0 messages ends a size.
    Round { messages: u64, phase: Phase },
    /// An end has sent all of a size: the messages of each queue pair, or the striped messages.
    Sent { messages: Vec<u64> },
    /// The listening end has measured and compared a size.
    Measured(Measured),
    /// The connecting end has judged a size.
    Row(Box<TransferRow>),
}

/// What messages are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    WarmUp,
    Measured,
}

/// The connecting end's request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Ask {
    pub(super) version: u32,
    #[serde(flatten)]
    pub(super) request: Request,
    pub(super) end: TransferEnd,
}

/// The listening end's offer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Offer {
    pub(super) end: TransferEnd,
    /// The path MTU as this end sees it.
    pub(super) mtu: u8,
}

/// What the listening end measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured {
    /// Warm-up messages that it sent.
    pub(super) warm_up: u64,
    /// Messages that it sent in the measured time, and the length of that time.
    pub(super) messages: u64,
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    pub(super) verified_bytes: u64,
}

/// Returns whether WRITEs to an end with this memory need an immediate in a round trip.
pub(super) fn immediates(memory: &MemoryFacts) -> Immediates {
    match memory.kind.as_str() {
        "host" => Immediates::No,
        _ => Immediates::Yes,
    }
}

/// Fails because `message` is out of order.
pub(super) fn unexpected<T>(message: &Message) -> Result<T> {
    let name = match message {
        Message::Ask(_) => "ask",
        Message::Ready(_) => "ready",
        Message::Agreed { .. } => "agreed",
        Message::Prepared { .. } => "prepared",
        Message::Round { .. } => "round",
        Message::Sent { .. } => "sent",
        Message::Measured(_) => "measured",
        Message::Row(_) => "row",
    };
    Err(PeerError::OutOfTurn(name).into())
}
