//! Requests for rings to the destinations of datagrams.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
use std::time::Duration;

use gdr_roce::{Qpn, Time};

use gdr_udp::Slot;

/// The minimum interval between two requests to a device, and the maximum number of devices remembered.
const ASK_AGAIN: Duration = Duration::from_secs(10);
const MOST: usize = 4096;

/// The devices that receive datagrams without a ring, and when each was asked for one.
#[derive(Debug, Default)]
pub(crate) struct RingWishes(HashMap<(SocketAddr, Slot), Time>);

impl RingWishes {
    /// Returns whether to ask a device for a ring to a queue pair now. If so, records that the caller does.
    pub(crate) fn is_due(&mut self, to: SocketAddr, qpn: Qpn, now: Time) -> bool {
        if self.0.len() >= MOST {
            self.0.clear();
        }
        match self.0.entry((to, Slot::of(qpn))) {
            Entry::Occupied(asked) if now.saturating_since(*asked.get()) < ASK_AGAIN => false,
            entry => {
                entry.insert_entry(now);
                true
            }
        }
    }

    /// Forgets all devices: a ring has ended, and its device may be reachable again.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_asked_again_after_a_while_or_when_a_ring_has_ended() {
        let at = |seconds| Time::since_epoch(Duration::from_secs(seconds));
        let mut wishes = RingWishes::default();
        let to = "127.0.0.1:4791".parse().unwrap();
        assert!(wishes.is_due(to, Qpn::new(5), at(1)));
        assert!(!wishes.is_due(to, Qpn::new(6), at(2)), "of the same device");
        assert!(
            wishes.is_due(to, Qpn::new(1 << 18), at(2)),
            "of another slot"
        );
        assert!(wishes.is_due(to, Qpn::new(5), at(11)));
        wishes.clear();
        assert!(wishes.is_due(to, Qpn::new(5), at(12)));
    }

    #[test]
    fn few_devices_are_remembered() {
        let mut wishes = RingWishes::default();
        for port in 0..=u16::MAX {
            let to = SocketAddr::from(([127, 0, 0, 1], port));
            assert!(wishes.is_due(to, Qpn::new(5), Time::EPOCH));
            assert!(wishes.0.len() <= MOST);
        }
    }
}
