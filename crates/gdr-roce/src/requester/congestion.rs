//! The congestion window and the pacing of packets.
//!
//! Without losses the window is as long as the configuration allows, and packets are not paced. A
//! loss while packets wait in queues reduces the window to what the path itself holds: the measured
//! rate times the shortest round trip. A loss without such a wait counts as random, and the
//! window stays (compare TCP Westwood: Mascolo et al., "TCP Westwood: bandwidth estimation for
//! enhanced transport over wireless links", MobiCom 2001). From then on the window grows by one
//! packet in a round trip, so that flows that share a link become equal (RFC 5681, 3.1), and packets
//! are paced, so that queues shorter than the window suffice.

use std::time::Duration;

use super::round_trip::RoundTrip;
use crate::timer::Time;

/// The smallest window in packets.
const SMALLEST: u32 = 2;
/// For how many rounds a measured rate counts.
const RATES: usize = 8;
/// After so many rounds without a loss, with the longest window, packets are not paced any more.
const CALM: u32 = 16;
/// How many packets may be sent at a time in spite of the pacing.
const BURST: u32 = 4;
/// For how long a caller that comes too late may catch up.
const CATCH_UP: Duration = Duration::from_micros(50);

/// The window of a requester, in packets, and when the next packet may be sent.
#[derive(Clone, Debug)]
pub(super) struct Congestion {
    longest: u32,
    window: u32,
    /// Acknowledged packets that have not yet lengthened the window.
    acknowledged: u32,
    paced: bool,
    /// When the packets that were sent have left at the paced rate.
    sent_until: Time,
    round: Round,
    /// The rates of the latest rounds, in packets a second; `None` before the first.
    rates: [u64; RATES],
    next_rate: usize,
    calm_rounds: u32,
}

/// About one round-trip time.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    began: Time,
    acknowledged: u32,
    /// Whether the window kept packets back: only then the rate is that of the path.
    limited: bool,
    lossy: bool,
}

impl Congestion {
    pub(super) const fn new(longest: u32) -> Self {
        Self {
            longest,
            window: longest,
            acknowledged: 0,
            paced: false,
            sent_until: Time::EPOCH,
            round: Round {
                began: Time::EPOCH,
                acknowledged: 0,
                limited: false,
                lossy: false,
            },
            rates: [0; RATES],
            next_rate: 0,
            calm_rounds: 0,
        }
    }

    /// How many packets may be unacknowledged.
    pub(super) const fn window(&self) -> u32 {
        self.window
    }

    /// How many packets one request or acknowledgement may stand for, at most `longest`, so that the
    /// packets of a window are spread over the round trip.
    pub(super) fn share(&self, longest: u32) -> u32 {
        if self.paced {
            longest.min(self.window / 4).max(1)
        } else {
            longest
        }
    }

    /// When the next packet may be sent, if that is later than `now`.
    pub(super) fn wait(&self, now: Time, round_trip: &RoundTrip) -> Option<Time> {
        if !self.paced {
            return None;
        }
        let ahead = self.interval(round_trip).saturating_mul(BURST);
        let may = Time::since_epoch(self.sent_until.elapsed().saturating_sub(ahead));
        (may > now).then_some(may)
    }

    /// Counts packets that are sent at `now`.
    pub(super) fn sent(&mut self, now: Time, packets: u32, round_trip: &RoundTrip) {
        if self.paced {
            let earliest = Time::since_epoch(now.elapsed().saturating_sub(CATCH_UP));
            let time = self.interval(round_trip).saturating_mul(packets);
            self.sent_until = self.sent_until.max(earliest) + time;
        }
    }

    /// Notes that the window or the pacing kept a packet back.
    pub(super) const fn limit(&mut self) {
        self.round.limited = true;
    }

    /// Counts packets that were acknowledged at `now`.
    pub(super) fn acknowledge(&mut self, now: Time, packets: u32, round_trip: &RoundTrip) {
        self.round.acknowledged += packets;
        let elapsed = now.saturating_since(self.round.began);
        let smoothed = round_trip.smoothed().unwrap_or_default();
        if elapsed >= smoothed {
            self.end_round(now, elapsed, smoothed);
        }
        if self.window == self.longest || !self.round.limited {
            return;
        }
        self.acknowledged += packets;
        while self.acknowledged >= self.window && self.window < self.longest {
            self.acknowledged -= self.window;
            self.window += 1;
        }
    }

    fn end_round(&mut self, now: Time, elapsed: Duration, smoothed: Duration) {
        let Round {
            acknowledged,
            limited,
            lossy,
            ..
        } = self.round;
        let nanos = elapsed.as_nanos().max(1) as u64;
        let rate = u64::from(acknowledged) * 1_000_000_000 / nanos;
        // A much longer round shows an outage, not the rate of the path.
        if elapsed < smoothed * 4 && (limited || rate > self.rate()) {
            self.rates[self.next_rate] = rate;
            self.next_rate = (self.next_rate + 1) % RATES;
        }
        self.calm_rounds = if lossy { 0 } else { self.calm_rounds + 1 };
        self.paced &= self.window < self.longest || self.calm_rounds < CALM;
        self.round = Round {
            began: now,
            // What keeps packets back now does so in the next round, too, until a packet is sent.
            ..Round::default()
        };
    }

    /// Reduces the window after a loss at `now`, with `outstanding` packets that may still be under
    /// way though they are useless.
    pub(super) fn lose(&mut self, now: Time, outstanding: u32, round_trip: &RoundTrip) {
        let before = self.window;
        self.paced = true;
        self.sent_until = self.sent_until.max(now);
        if !self.round.lossy && self.is_congested(round_trip) {
            let most = (self.window * 7 / 10).max(SMALLEST);
            let path = self.path_packets(round_trip).unwrap_or(self.window / 2);
            self.window = (path + SMALLEST).min(most);
            self.acknowledged = 0;
        }
        self.round.lossy = true;
        // What is under way leaves the queues first.
        let excess = outstanding.min(before).saturating_sub(self.window);
        self.sent_until = self.sent_until + self.interval(round_trip).saturating_mul(excess);
    }

    /// Whether packets wait in queues longer than some packets take at the measured rate, or would
    /// if the whole window was used: a burst of responses is lost before a round trip shows it.
    fn is_congested(&self, round_trip: &RoundTrip) -> bool {
        let (Some(minimum), Some(path)) = (round_trip.minimum(), self.path_packets(round_trip))
        else {
            return true;
        };
        if self.window > 2 * (path + BURST) {
            return true;
        }
        let tolerated = Duration::from_nanos(u64::from(BURST) * 1_000_000_000 / self.rate());
        round_trip.queueing() > tolerated.max(minimum / 8)
    }

    /// How many packets the path holds without its queues, once that was measured.
    fn path_packets(&self, round_trip: &RoundTrip) -> Option<u32> {
        let minimum = round_trip.minimum()?.as_nanos() as u64;
        let packets = self.rate().checked_mul(minimum)? / 1_000_000_000;
        (self.rate() > 0).then_some(packets.min(self.longest.into()) as u32)
    }

    /// The highest recent rate in packets a second.
    fn rate(&self) -> u64 {
        self.rates.iter().copied().max().unwrap_or_default()
    }

    /// The time between two paced packets: a fifth less than at the measured rate, so that the window
    /// and not the pacing decides on the rate.
    fn interval(&self, round_trip: &RoundTrip) -> Duration {
        match self.rate() {
            0 => round_trip.smoothed().unwrap_or_default() * 4 / (self.window * 5),
            rate => Duration::from_nanos(800_000_000 / rate),
        }
    }
}
