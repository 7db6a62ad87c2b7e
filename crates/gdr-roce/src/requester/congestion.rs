//! Congestion window and pacing.
//!
//! The window starts small and doubles every round trip (slow start, RFC 5681, 3.1), up to the length that a path with
//! a short round trip needs. On a path with a long round trip it keeps doubling as long as no packets are queued.
//! Packets are not paced until the first congestion loss.
//!
//! A loss while packets are queued halves the window, though not below what the path itself holds: the measured rate
//! times the shortest round trip. Without queueing a loss counts as random, and the window stays (compare TCP Westwood:
//! Mascolo et al., "TCP Westwood: bandwidth estimation for enhanced transport over wireless links", MobiCom 2001).
//! After a congestion loss packets are paced, so that queues shorter than the window suffice, and the window grows by
//! one packet per round trip, so that flows sharing a link converge. With go-back-N, and on all but short paths, every
//! loss starts pacing: a window sent back to back is too much to lose. A flow that started while others kept the queues
//! full does not know the shortest round trip. So the estimate only limits how far the window is reduced; if it became
//! the new window, such a flow would keep more of the link than the others.
//!
//! Hosts delay packets, too: a thread wakes up late or loses its CPU for a time slice. Such delays vary from packet to
//! packet, while a queue's delay persists. With selective retransmission on a short path, a delay counts as queueing
//! only if it persists and exceeds the usual variation of the round trip. The same applies to paths whose round trips
//! differ by milliseconds from one to the next, unless many packets are lost.

use std::time::Duration;

use super::round_trip::RoundTrip;
use crate::connection::LossRecovery;
use crate::timer::Time;

/// The minimum window in packets.
const SMALLEST: u32 = 2;
/// The initial window in packets, before the first acknowledgement.
const INITIAL: u32 = 16;
/// The number of rounds for which a measured rate counts.
const RATES: usize = 8;
/// Pacing ends after this many rounds without a loss that counts, once the window is back at a short path's length.
const CALM: u32 = 16;
/// How many packets may be sent ahead of the pacing.
const BURST: u32 = 4;
/// How far a late caller may catch up. If pacing made it wait, it may catch up for a whole round trip instead, as some
/// hosts' timers expire milliseconds late.
const CATCH_UP: Duration = Duration::from_micros(50);
/// From this round trip on, packets are mostly in flight. On a shorter path they mostly sit in the peer's receive
/// buffer, which a longer window would overflow.
const LONG_PATH: Duration = Duration::from_micros(500);
/// The round trip within a machine or rack stays below this, however long the links' queues are.
const SHORT_PATH: Duration = Duration::from_micros(200);
/// A lower bound for occasional host delays, without any queueing on links. With [`LossRecovery::Selective`] the window
/// covers this time as well; with go-back-N all of it would be retransmitted.
const HOST_DELAY: Duration = Duration::from_micros(100);
/// An upper bound for usual host delays. Queueing beyond it counts, however much delays vary.
const LONGEST_HOST_DELAY: Duration = Duration::from_millis(1);
/// A round trip in which the thread or GPU that copies merged payloads never idles. A longer window only adds latency.
const BUSY_ROUND: Duration = Duration::from_millis(1);
/// The number of READ requests that fill the window with merged responses.
const MERGED_READS: u32 = 4;

/// Where the payloads of long messages are stored, and who copies them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Payloads {
    /// In the packets, which a network may lose.
    Carried,
    /// [Elsewhere](crate::Contents::At), in memory shared by both ends, as the packets themselves are; so none is
    /// dropped for lack of space. The receiver copies them.
    InPlace,
    /// Likewise, with one packet [standing for many](crate::PayloadBy::Reference). They are copied while the receiver
    /// continues.
    Merged,
}

/// Returns whether hosts cause most of the round-trip time and of its variation.
fn is_short(round_trip: &RoundTrip) -> bool {
    round_trip
        .shortest()
        .is_some_and(|shortest| shortest < SHORT_PATH)
}

/// The congestion window of a requester in packets, and its pacing.
#[derive(Clone, Debug)]
pub(super) struct Congestion {
    /// The maximum window on a short path (`usual`), and on any path (`longest`).
    usual: u32,
    longest: u32,
    payloads: Payloads,
    window: u32,
    /// Acknowledged packets not yet credited to the window.
    acknowledged: u32,
    paced: bool,
    /// When everything sent so far would have left at the paced rate.
    sent_until: Time,
    /// How far a late caller may catch up.
    catch_up: Duration,
    round: Round,
    /// The rates of the latest rounds in packets per second; 0 where not measured.
    rates: [u64; RATES],
    next_rate: usize,
    calm_rounds: u32,
    /// Unacknowledged packets that were sent before the latest reduction. Further losses among them belong to the same
    /// congestion event (RFC 6582, 3.2).
    before_reduction: u32,
    /// Packets acknowledged and lost in recent rounds; each round's weight halves with the next.
    recent: [u32; 2],
}

/// A measurement period of about one round-trip time.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    began: Time,
    acknowledged: u32,
    /// Set if the window held packets back; only then is the measured rate the path's.
    limited: bool,
    /// Set if a loss started or prolonged pacing.
    lossy: bool,
}

impl Congestion {
    /// Returns a window of up to `usual` packets, or `longest` on a long path.
    pub(super) const fn new(usual: u32, longest: u32) -> Self {
        Self {
            usual,
            longest,
            payloads: Payloads::Carried,
            window: if usual < INITIAL { usual } else { INITIAL },
            acknowledged: 0,
            paced: false,
            sent_until: Time::EPOCH,
            catch_up: CATCH_UP,
            round: Round {
                began: Time::EPOCH,
                acknowledged: 0,
                limited: false,
                lossy: false,
            },
            rates: [0; RATES],
            next_rate: 0,
            calm_rounds: 0,
            before_reduction: 0,
            recent: [0; 2],
        }
    }

    /// Returns how many packets may be unacknowledged.
    pub(super) const fn window(&self) -> u32 {
        self.window
    }

    /// Records where payloads are stored. The window may be longer for merged ones, because they neither occupy a
    /// socket's receive buffer nor pass through a cache.
    pub(super) fn follow(&mut self, payloads: Payloads) {
        if self.payloads != payloads {
            self.payloads = payloads;
            // There is nothing to probe for in shared memory.
            self.window = match payloads {
                // Shared memory provides no information about the network, so a longer window is not kept.
                Payloads::Carried => self.window.min(self.usual),
                Payloads::InPlace | Payloads::Merged => self.usual,
            };
            // Nothing is lost in shared memory that pacing could save.
            self.paced &= payloads == Payloads::Carried;
        }
    }

    /// Switches to [`Payloads::InPlace`] if payloads were carried before.
    pub(super) fn leave_carried(&mut self) {
        self.follow(self.payloads.max(Payloads::InPlace));
    }

    /// Switches to [`Payloads::InPlace`] if payloads were merged before.
    pub(super) fn leave_merged(&mut self) {
        self.follow(self.payloads.min(Payloads::InPlace));
    }

    /// Returns how many packets one request or acknowledgement may cover, at most `longest`, so that the packets of a
    /// window spread over the round trip.
    pub(super) fn share(&self, longest: u32) -> u32 {
        match self.paced {
            // At least four acknowledgements per round trip, so that the window moves in small steps and not in bursts.
            true => longest.min(self.window / 4).max(1),
            // At least two while the window is growing, so that it does not drain before the first acknowledgement
            // arrives.
            false if self.window < self.usual => longest.min(self.window / 2).max(1),
            false => longest,
        }
    }

    /// Returns how many response packets one READ request asks for. That is at most `longest`, except that `requests`
    /// of them (or a few, if responses are merged) must fill a window that is longer than usual.
    pub(super) fn read_share(&self, longest: u32, requests: u8) -> u32 {
        let requests = u32::from(requests.max(1));
        let filling = match (self.window > self.usual, self.payloads) {
            // The peer has resources for only so many requests, so filling a longer window takes longer ones.
            (true, Payloads::Carried | Payloads::InPlace) => self.window.div_ceil(requests),
            (true, Payloads::Merged) => self.window.div_ceil(requests.min(MERGED_READS)),
            (false, _) => 0,
        };
        self.share(longest.max(filling))
    }

    /// Returns whether [`Congestion::wait`] may hold packets back.
    pub(super) const fn is_paced(&self) -> bool {
        self.paced
    }

    /// Returns when the next packet may be sent, if that is after `now`.
    pub(super) fn wait(&mut self, now: Time, round_trip: &RoundTrip) -> Option<Time> {
        if !self.paced {
            return None;
        }
        // Packets may leave ahead of the pacing by one burst, so that not every packet waits for a timer.
        let ahead = self.interval(round_trip).saturating_mul(BURST);
        let may = Time::since_epoch(self.sent_until.elapsed().saturating_sub(ahead));
        if may <= now {
            return None;
        }
        self.catch_up = round_trip.smoothed().unwrap_or_default().max(CATCH_UP);
        Some(may)
    }

    /// Accounts for packets sent at `now`.
    pub(super) fn sent(&mut self, now: Time, packets: u32, round_trip: &RoundTrip) {
        if self.paced {
            // Send time that a late caller missed is forfeited beyond `catch_up`; otherwise it would be spent in one
            // burst.
            let earliest = Time::since_epoch(now.elapsed().saturating_sub(self.catch_up));
            let time = self.interval(round_trip).saturating_mul(packets);
            self.sent_until = self.sent_until.max(earliest) + time;
        }
    }

    /// Records that the window or the pacing held a packet back.
    pub(super) const fn limit(&mut self) {
        self.round.limited = true;
    }

    /// Records that the window held a packet back, so that none is waiting for the pacing.
    pub(super) const fn limit_by_window(&mut self) {
        self.limit();
        self.catch_up = CATCH_UP;
    }

    /// Records that the limit of outstanding READs held a packet back. If the window is longer than usual, that counts
    /// as a limit of the window, as requests grow with it.
    pub(super) const fn limit_reads(&mut self) {
        self.round.limited |= self.window > self.usual;
    }

    /// Accounts for packets acknowledged at `now`.
    pub(super) fn acknowledge(&mut self, now: Time, packets: u32, round_trip: &RoundTrip) {
        self.round.acknowledged += packets;
        self.recent[0] = self.recent[0].saturating_add(packets);
        self.before_reduction = self.before_reduction.saturating_sub(packets);
        // In shared memory a whole window may be acknowledged at once, at the end of its round.
        let was_limited = self.round.limited && self.payloads != Payloads::Carried;
        let elapsed = now.saturating_since(self.round.began);
        let smoothed = round_trip.smoothed().unwrap_or_default();
        // A round lasts at least one round trip, so that its rate counts every packet of a window once.
        if elapsed >= smoothed {
            self.end_round(now, elapsed, smoothed);
            // Twice the time that keeps the copying side busy: a longer window only adds latency.
            if self.payloads == Payloads::Merged && round_trip.latest() > 2 * BUSY_ROUND {
                self.window = self.window.min((self.window / 2).max(self.usual));
            }
        }
        let limit = self.longest_on(round_trip);
        // A window that was not filled does not show what the path can carry, so it does not grow (RFC 9438, 5.8).
        if self.window >= limit || !(self.round.limited || was_limited) {
            return;
        }
        let empty = round_trip.has_empty_queues();
        if !self.paced {
            // Slow start: one more packet per acknowledged packet doubles the window every round trip (RFC 5681, 3.1).
            if self.window < self.usual || empty || self.payloads == Payloads::Merged {
                self.window = (self.window + packets).min(limit);
            }
            return;
        }
        // Congestion avoidance: one more packet per round trip (RFC 5681, 3.1), counted in acknowledged packets, as one
        // acknowledgement may cover many (RFC 3465, 2.1).
        self.acknowledged += packets;
        while self.acknowledged >= self.window && self.window < limit {
            self.acknowledged -= self.window;
            // Without queueing the path has room for all its flows.
            let more = if empty { self.window / 8 } else { 1 };
            self.window = (self.window + more.max(1)).min(limit);
        }
    }

    /// Returns the maximum window for this round trip: twice what the path holds, or the usual length.
    fn longest_on(&self, round_trip: &RoundTrip) -> u32 {
        match round_trip.shortest() {
            _ if self.payloads == Payloads::Merged => match round_trip.latest() < BUSY_ROUND {
                true => self.longest,
                false => self.usual,
            },
            Some(shortest) if shortest >= LONG_PATH => {
                let path = self.packets_in(shortest);
                // Twice, so that the window still fills the path after a loss has halved it.
                path.saturating_mul(2).min(self.longest).max(self.usual)
            }
            _ => self.usual,
        }
    }

    /// Shrinks the window to its usual length after a pause; a longer one would be sent in one burst.
    pub(super) fn restart(&mut self, now: Time, paused_since: Time, round_trip: &RoundTrip) {
        self.catch_up = CATCH_UP;
        let paused = now.saturating_since(paused_since);
        let is_long = round_trip.smoothed().is_some_and(|time| paused > time);
        // RFC 5681, 4.1 also shrinks the window after a pause: no acknowledgements are left to space the packets of a
        // longer one.
        if is_long && self.payloads != Payloads::Merged {
            self.window = self.window.min(self.usual);
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
        // A much longer round indicates an outage, not the path's rate. A round that the program did not fill measures
        // the program, so only a higher rate counts.
        if elapsed < smoothed * 4 && (limited || rate > self.rate()) {
            self.rates[self.next_rate] = rate;
            self.next_rate = (self.next_rate + 1) % RATES;
        }
        self.recent = self.recent.map(|packets| packets / 2);
        self.calm_rounds = if lossy { 0 } else { self.calm_rounds + 1 };
        // Bursts are allowed again only for a window that is back at its usual length, after a long time without loss.
        self.paced &= self.window < self.usual || self.calm_rounds < CALM;
        self.round = Round {
            began: now,
            // Whatever holds packets back now also does in the next round, until a packet is sent.
            ..Round::default()
        };
    }

    /// Reduces the window after a loss at `now`. `outstanding` packets may still be in flight; with go-back-N they are
    /// useless.
    pub(super) fn lose(
        &mut self,
        now: Time,
        outstanding: u32,
        recovery: LossRecovery,
        round_trip: &RoundTrip,
    ) {
        // Nothing is lost in shared memory, so a retransmission there does not indicate congestion.
        if self.payloads != Payloads::Carried {
            return;
        }
        let before = self.window;
        self.sent_until = self.sent_until.max(now);
        let jitter = round_trip.jitter();
        let is_short =
            recovery == LossRecovery::Selective && (jitter.is_some() || is_short(round_trip));
        let (hosts, queueing) = match (recovery, jitter) {
            (LossRecovery::GoBackN, _) => (Duration::ZERO, round_trip.queueing()),
            (LossRecovery::Selective, Some(jitter)) => (jitter * 4, round_trip.standing_queueing()),
            (LossRecovery::Selective, None) if is_short => {
                let hosts = (round_trip.variation() * 2).clamp(HOST_DELAY, LONGEST_HOST_DELAY);
                (hosts, round_trip.standing_queueing())
            }
            (LossRecovery::Selective, None) => (HOST_DELAY, round_trip.queueing()),
        };
        self.recent[1] = self.recent[1].saturating_add(1);
        let is_congested =
            self.is_congested(queueing, hosts, round_trip) || jitter.is_some() && self.loses_many();
        // Further losses within one window belong to the same congestion event (RFC 6582, 3.2; RFC 6675, 5).
        let first = !self.round.lossy && self.before_reduction == 0;
        if first && is_congested {
            self.reduce(hosts, round_trip);
            self.before_reduction = match recovery {
                // All of them are retransmitted.
                LossRecovery::GoBackN => 0,
                LossRecovery::Selective => outstanding,
            };
        }
        if is_congested || !is_short {
            self.round.lossy = true;
            self.paced = true;
        }
        // Packets in flight leave the queues first.
        let excess = outstanding.min(before).saturating_sub(self.window);
        self.sent_until = self.sent_until + self.interval(round_trip).saturating_mul(excess);
    }

    fn reduce(&mut self, hosts: Duration, round_trip: &RoundTrip) {
        let half = self.window / 2;
        let path = self.path_packets(hosts, round_trip).unwrap_or(half) + SMALLEST;
        // The first loss ends slow start, which may have far overshot what the path holds, and removes all of the
        // excess. A later loss removes half at most.
        let least = if self.paced { half } else { 0 };
        // The window shrinks by at least three tenths, as with CUBIC (RFC 9438, 4.6), in case the estimate is too high.
        let most = self.window * 7 / 10;
        self.window = path.min(most).max(least).max(SMALLEST);
        self.acknowledged = 0;
    }

    /// Returns whether packets are queued, or would be if the whole window were used: a burst of responses is lost
    /// before any round trip shows it. The threshold depends on the path alone, so that all flows sharing it detect the
    /// same congestion.
    fn is_congested(&self, queueing: Duration, hosts: Duration, round_trip: &RoundTrip) -> bool {
        let (Some(minimum), Some(path)) =
            (round_trip.minimum(), self.path_packets(hosts, round_trip))
        else {
            // Nothing is measured yet, so the loss counts as congestion, as every loss does in RFC 5681.
            return true;
        };
        if self.window > 2 * (path + BURST) {
            return true;
        }
        queueing > hosts.max(minimum / 2)
    }

    /// Returns whether more packets are lost than a faulty link would lose, because some queue is too short for the
    /// window.
    fn loses_many(&self) -> bool {
        let [acknowledged, lost] = self.recent;
        lost > self.window / 4 && lost > acknowledged / 4
    }

    /// Returns how many packets the path and its hosts hold without queueing on links; `None` until that is measured.
    fn path_packets(&self, hosts: Duration, round_trip: &RoundTrip) -> Option<u32> {
        let minimum = round_trip.minimum()?;
        (self.rate() > 0).then(|| self.packets_in(minimum.max(hosts)))
    }

    /// Returns how many packets are sent in `time` at the measured rate.
    fn packets_in(&self, time: Duration) -> u32 {
        let packets = u128::from(self.rate()) * time.as_nanos() / 1_000_000_000;
        packets.min(self.longest.into()) as u32
    }

    /// Returns the highest recent rate in packets per second.
    fn rate(&self) -> u64 {
        self.rates.iter().copied().max().unwrap_or_default()
    }

    /// Returns the time between two paced packets. It is a fifth shorter than at the measured rate, so that the window
    /// rather than the pacing determines the rate. While the packets lost before a reduction are retransmitted, the
    /// window does not limit the rate, so the pacing does.
    fn interval(&self, round_trip: &RoundTrip) -> Duration {
        let smoothed = round_trip.smoothed().unwrap_or_default();
        match self.rate() {
            _ if self.before_reduction > 0 => smoothed / self.window,
            // No rate is measured yet, so one window per round trip serves as the rate, also with a fifth less.
            0 => smoothed * 4 / (self.window * 5),
            rate => Duration::from_nanos(800_000_000 / rate),
        }
    }
}
