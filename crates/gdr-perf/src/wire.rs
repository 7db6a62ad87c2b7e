//! The wire that carried the packets of a measurement.

use std::fmt;

use gdr_rdma::{Counters, Device};
use serde::{Deserialize, Serialize};

/// The wire between two devices of the soft provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wire {
    /// Shared memory of two processes on the same host with the same user.
    Memory,
    /// UDP.
    Udp,
}

impl Wire {
    /// Returns the wire that carried most of the packets that a device has sent since it had counted `before`; `None`
    /// if it has counted none, as on a kernel device.
    pub(crate) fn since(device: &Device, before: &Counters) -> Option<Self> {
        let now = device.counters();
        let sent = now.packets_sent.checked_sub(before.packets_sent)?;
        Self::of(
            sent,
            now.sent_by_memory.saturating_sub(before.sent_by_memory),
        )
    }

    /// Returns the wire that carried most of `sent` packets, given that `by_memory` of them went through memory;
    /// `None` if there are none.
    pub(crate) const fn of(sent: u64, by_memory: u64) -> Option<Self> {
        match sent {
            0 => None,
            _ if by_memory > sent / 2 => Some(Self::Memory),
            _ => Some(Self::Udp),
        }
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Memory => "shared memory (GDR_WIRE=udp uses UDP)",
            Self::Udp => "UDP",
        })
    }
}
