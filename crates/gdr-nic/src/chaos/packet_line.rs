//! Held packets.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use gdr_roce::Time;

use super::packet_stream::PacketNumber;

/// A held packet.
#[derive(Clone, Debug)]
pub(crate) struct HeldPacket {
    pub(crate) bytes: Vec<u8>,
    /// The destination of an outbound packet, or the source of an inbound one.
    pub(crate) address: SocketAddr,
    /// The multicast group at which it arrived.
    pub(crate) group: Option<SocketAddr>,
    /// Sent with a wrong ICRC.
    pub(crate) is_corrupt: bool,
    /// Its number, unless it is a retransmission.
    pub(super) number: Option<PacketNumber>,
    due: Time,
    /// Also released once this many more packets have overtaken it.
    behind: Option<u32>,
}

/// The held packets of a queue pair in one direction, in arrival order.
#[derive(Debug, Default)]
pub(super) struct PacketLine {
    held: VecDeque<HeldPacket>,
    /// The earliest release time of the next packet, unless it is reordered.
    floor: Option<Time>,
    /// When the rate limit next lets a packet pass.
    free: Option<Time>,
}

/// A packet that enters a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) address: SocketAddr,
    pub(super) group: Option<SocketAddr>,
    pub(super) number: Option<PacketNumber>,
}

/// When and how a packet is released.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Schedule {
    /// Delays the packet and all later ones.
    pub(super) delay: Duration,
    /// A limit in bytes per second.
    pub(super) rate: Option<u64>,
    /// Reorders the packet: it is released after this many have overtaken it, or after this time.
    pub(super) overtaken: Option<(u32, Duration)>,
    /// The number of duplicates.
    pub(super) copies: u32,
    pub(super) is_corrupt: bool,
    /// The index of a byte with one bit flipped, under a checksum that is correct for it.
    pub(super) changed: Option<usize>,
}

impl PacketLine {
    /// Adds a packet and its duplicates.
    pub(super) fn add(&mut self, now: Time, packet: Arrival<'_>, schedule: Schedule) {
        let mut due = now + schedule.delay;
        let mut behind = None;
        match schedule.overtaken {
            Some((packets, by)) => (due, behind) = (due + by, Some(packets)),
            None => {
                due = self.floor.map_or(due, |floor| due.max(floor));
                if let Some(rate) = schedule.rate {
                    due = self.free.map_or(due, |free| due.max(free));
                    let nanoseconds = packet.bytes.len() as u64 * 1_000_000_000 / rate.max(1);
                    self.free = Some(due + Duration::from_nanos(nanoseconds));
                }
                self.floor = Some(due);
                self.pass();
            }
        }
        let mut held = HeldPacket {
            bytes: packet.bytes.to_vec(),
            address: packet.address,
            group: packet.group,
            is_corrupt: schedule.is_corrupt,
            number: packet.number,
            due,
            behind,
        };
        if let Some(byte) = schedule.changed.and_then(|at| held.bytes.get_mut(at)) {
            *byte ^= 1;
        }
        let before = match schedule.overtaken {
            Some(_) => None,
            // Insert before the packets that this one releases by overtaking them.
            None => self.held.iter().position(|held| held.behind == Some(0)),
        };
        let at = before.unwrap_or(self.held.len());
        for copy in 0..=schedule.copies as usize {
            self.held.insert(at + copy, held.clone());
            held.number = None;
        }
    }

    /// Counts down the packets still to overtake each reordered one.
    fn pass(&mut self) {
        for held in &mut self.held {
            held.behind = held.behind.map(|packets| packets.saturating_sub(1));
        }
    }

    /// Takes the first packet that is due.
    pub(super) fn take(&mut self, now: Time) -> Option<HeldPacket> {
        let is_due = |held: &HeldPacket| held.due <= now || held.behind == Some(0);
        let at = self.held.iter().position(is_due)?;
        // An overtaken packet is released only after the one that overtook it.
        let waits = self.held.get(at)?.due > now
            && self.held.iter().take(at).any(|held| held.behind.is_none());
        if waits {
            return None;
        }
        self.held.remove(at)
    }

    /// Puts back a packet that could not be sent.
    pub(super) fn put_back(&mut self, packet: HeldPacket) {
        self.held.push_front(packet);
    }

    /// Returns when the next packet is due.
    pub(super) fn next(&self) -> Option<Time> {
        self.held.iter().map(|held| held.due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(schedules: &[Schedule]) -> PacketLine {
        let mut line = PacketLine::default();
        for (n, schedule) in schedules.iter().enumerate() {
            add(&mut line, 0, n as u8, *schedule);
        }
        line
    }

    fn add(line: &mut PacketLine, us: u64, byte: u8, schedule: Schedule) {
        let packet = Arrival {
            bytes: &[byte],
            address: here(),
            group: None,
            number: None,
        };
        line.add(at(us), packet, schedule);
    }

    fn here() -> SocketAddr {
        "127.0.0.1:4791".parse().unwrap()
    }

    fn at(us: u64) -> Time {
        Time::since_epoch(Duration::from_micros(us))
    }

    fn taken(line: &mut PacketLine, us: u64) -> Vec<u8> {
        std::iter::from_fn(|| line.take(at(us)))
            .map(|packet| packet.bytes[0])
            .collect()
    }

    #[test]
    fn what_is_behind_a_late_packet_waits_for_it() {
        let late = Schedule {
            delay: Duration::from_micros(10),
            ..Schedule::default()
        };
        let mut line = line(&[Schedule::default(), late, Schedule::default()]);
        assert_eq!(taken(&mut line, 9), [0]);
        assert_eq!(line.next(), Some(at(10)));
        assert_eq!(taken(&mut line, 10), [1, 2]);
    }

    #[test]
    fn a_packet_is_overtaken_by_as_many_as_the_rule_says_or_waits_no_longer() {
        let overtaken = Schedule {
            overtaken: Some((2, Duration::from_micros(10))),
            ..Schedule::default()
        };
        let none = Schedule::default();
        let mut line = line(&[overtaken, none]);
        assert_eq!(taken(&mut line, 9), [1]);
        add(&mut line, 9, 2, none);
        assert_eq!(taken(&mut line, 9), [2, 0]);
        add(&mut line, 9, 3, overtaken);
        assert_eq!(taken(&mut line, 18), []);
        assert_eq!(taken(&mut line, 19), [3]);
    }

    #[test]
    fn a_rate_spreads_packets() {
        let slow = Schedule {
            rate: Some(100_000),
            ..Schedule::default()
        };
        let mut line = line(&[slow; 3]);
        assert_eq!(taken(&mut line, 0), [0]);
        assert_eq!(taken(&mut line, 10), [1]);
        assert_eq!(taken(&mut line, 20), [2]);
    }
}
