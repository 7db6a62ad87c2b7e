//! What to measure: the bandwidth or the latency of an operation.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An operation and the figure to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verb {
    /// RDMA WRITEs, several in flight.
    WriteBw,
    /// RDMA WRITEs back and forth.
    WriteLat,
    /// RDMA READs, several in flight.
    ReadBw,
    /// RDMA READs one by one.
    ReadLat,
    /// SENDs, several in flight.
    SendBw,
    /// SENDs back and forth.
    SendLat,
    /// Atomic operations, several in flight.
    AtomicBw,
    /// Atomic operations one by one.
    AtomicLat,
}

/// The operation of a [`Verb`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Write,
    Read,
    Send,
    Atomic,
}

/// The figure that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Bytes per time, with several requests in flight.
    Bandwidth,
    /// Time of one request, or half of a round trip.
    Latency,
}

/// A text that is not a valid verb.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a measurement: choose one of {names}", names = names())]
pub struct UnknownVerb(String);

fn names() -> String {
    Verb::ALL.map(Verb::name).join(", ")
}

impl Verb {
    /// Every verb.
    pub const ALL: [Self; 8] = [
        Self::WriteBw,
        Self::WriteLat,
        Self::ReadBw,
        Self::ReadLat,
        Self::SendBw,
        Self::SendLat,
        Self::AtomicBw,
        Self::AtomicLat,
    ];

    /// Returns its name: `write-bw`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WriteBw => "write-bw",
            Self::WriteLat => "write-lat",
            Self::ReadBw => "read-bw",
            Self::ReadLat => "read-lat",
            Self::SendBw => "send-bw",
            Self::SendLat => "send-lat",
            Self::AtomicBw => "atomic-bw",
            Self::AtomicLat => "atomic-lat",
        }
    }

    /// Returns the figure that it measures.
    pub const fn metric(self) -> Metric {
        match self {
            Self::WriteBw | Self::ReadBw | Self::SendBw | Self::AtomicBw => Metric::Bandwidth,
            Self::WriteLat | Self::ReadLat | Self::SendLat | Self::AtomicLat => Metric::Latency,
        }
    }

    /// Returns the name of its operation in InfiniBand's words.
    pub const fn operation_name(self) -> &'static str {
        match self.operation() {
            Operation::Write => "RDMA WRITE",
            Operation::Read => "RDMA READ",
            Operation::Send => "SEND",
            Operation::Atomic => "an atomic operation",
        }
    }

    pub(super) const fn operation(self) -> Operation {
        match self {
            Self::WriteBw | Self::WriteLat => Operation::Write,
            Self::ReadBw | Self::ReadLat => Operation::Read,
            Self::SendBw | Self::SendLat => Operation::Send,
            Self::AtomicBw | Self::AtomicLat => Operation::Atomic,
        }
    }

    /// Returns whether both ends send in turn, so that a sample is half of a round trip.
    pub const fn is_ping_pong(self) -> bool {
        matches!(self, Self::WriteLat | Self::SendLat)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Verb {
    type Err = UnknownVerb;

    fn from_str(text: &str) -> Result<Self, UnknownVerb> {
        let found = Self::ALL.into_iter().find(|verb| verb.name() == text);
        found.ok_or_else(|| UnknownVerb(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_the_name_that_it_is_parsed_and_serialized_by() {
        for verb in Verb::ALL {
            assert_eq!(verb.name().parse(), Ok(verb));
            assert_eq!(serde_json::to_value(verb).unwrap(), verb.name());
        }
        let error = "write_bw".parse::<Verb>().unwrap_err().to_string();
        assert!(
            error.contains("choose one of write-bw, write-lat"),
            "{error}"
        );
    }
}
