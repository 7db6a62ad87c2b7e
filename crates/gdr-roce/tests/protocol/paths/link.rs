//! One direction of a bottleneck link, in virtual time.
#![allow(dead_code)] // The example `goodput` uses only a part of this module.

use std::collections::VecDeque;
use std::time::Duration;

use gdr_roce::Time;

use crate::fixture::Random;

/// Overhead of a RoCE datagram on Ethernet in bytes: preamble, MAC header and FCS, inter-packet gap, IPv4 and UDP
/// header.
const OVERHEAD: u64 = 8 + 18 + 12 + 20 + 8;

/// The properties of a link, equal in both directions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// Rate in bits per second.
    pub(crate) rate: u64,
    /// Propagation delay of one direction.
    pub(crate) delay: Duration,
    /// The queue limit in packets; a packet that finds the queue full is dropped.
    pub(crate) queue: usize,
    /// The number of packets lost out of 10,000.
    pub(crate) lose: u32,
    /// The number of consecutive packets lost at a time, like the packets of one segmented send.
    pub(crate) burst: u32,
    /// The number of packets out of 10,000 that are overtaken by their successors.
    pub(crate) reorder: u32,
    /// The maximum delay of such packets.
    pub(crate) late: Duration,
    /// The maximum variation of the delay; packets stay in order.
    pub(crate) jitter: Duration,
}

impl Link {
    /// Returns a link without faults, whose queue is longer than any window.
    pub(crate) const fn new(rate: u64, delay: Duration) -> Self {
        Self {
            rate,
            delay,
            queue: 100_000,
            lose: 0,
            burst: 1,
            reorder: 0,
            late: Duration::ZERO,
            jitter: Duration::ZERO,
        }
    }

    /// Returns this link with `lose` of 10,000 packets lost.
    pub(crate) const fn losing(mut self, lose: u32) -> Self {
        self.lose = lose;
        self
    }

    /// Returns this link with packets lost `burst` at a time.
    pub(crate) const fn in_bursts(mut self, burst: u32) -> Self {
        self.burst = burst;
        self
    }

    /// Returns this link with `reorder` of 10,000 packets delayed by up to `late`.
    pub(crate) const fn reordering(mut self, reorder: u32, late: Duration) -> Self {
        (self.reorder, self.late) = (reorder, late);
        self
    }

    /// Returns this link with a queue of `queue` packets.
    pub(crate) const fn queueing(mut self, queue: usize) -> Self {
        self.queue = queue;
        self
    }

    /// Returns this link with delays that vary by up to `jitter`.
    pub(crate) const fn jittering(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// Returns the transmission time of a datagram of `len` bytes.
    fn serialization(&self, len: usize) -> Duration {
        Duration::from_nanos((len as u64 + OVERHEAD) * 8_000_000_000 / self.rate)
    }

    /// Returns the payload rate in bytes per second of packets with `mtu` bytes of payload and only BTH and ICRC.
    pub(crate) fn goodput(&self, mtu: usize) -> f64 {
        mtu as f64 / self.serialization(mtu + 16).as_secs_f64()
    }
}

/// One direction of a link, with its queue.
#[derive(Debug)]
pub(crate) struct Direction {
    link: Link,
    random: Random,
    /// When each queued packet leaves the queue.
    departures: VecDeque<Time>,
    /// The arrival time of the latest packet that is not reordered.
    arrived: Time,
    /// The number of next packets to lose.
    losing: u32,
}

impl Direction {
    pub(crate) fn new(link: Link, seed: u64) -> Self {
        Self {
            link,
            random: Random(seed),
            departures: VecDeque::new(),
            arrived: Time::EPOCH,
            losing: 0,
        }
    }

    /// Returns when a datagram sent at `now` arrives, or `None` if it is lost.
    pub(crate) fn carry(&mut self, now: Time, len: usize) -> Option<Time> {
        while self.departures.front().is_some_and(|left| *left <= now) {
            self.departures.pop_front();
        }
        if self.departures.len() > self.link.queue {
            return None;
        }
        let begins = self.departures.back().copied().unwrap_or(now);
        let ends = begins + self.link.serialization(len);
        self.departures.push_back(ends);
        if self.losing > 0 {
            self.losing -= 1;
            return None;
        }
        // Bursts start at `1 / burst` of the rate of single losses, so that `lose` of 10,000 packets are lost in total.
        let burst = self.link.burst;
        if self.random.happens(self.link.lose)
            && (burst == 1 || self.random.below(burst.into()) == 0)
        {
            self.losing = burst - 1;
            return None;
        }
        let mut arrives = ends + self.link.delay;
        if self.link.jitter > Duration::ZERO {
            let jitter = self.random.below(self.link.jitter.as_nanos() as u64);
            arrives = self.arrived.max(arrives + Duration::from_nanos(jitter));
            self.arrived = arrives;
        }
        if self.random.happens(self.link.reorder) {
            let late = self.random.below(self.link.late.as_nanos() as u64);
            return Some(arrives + Duration::from_nanos(late));
        }
        Some(arrives)
    }
}
