//! The congestion window and the pacing of packets.
//!
//! The window begins short and doubles in a round trip (slow start, RFC 5681, 3.1) up to the length that
//! a path with a short round trip needs. On a path with a long one it goes on to double as long as no
//! packets wait in queues. Packets are not paced until the first loss by congestion.
//!
//! A loss while packets wait in queues halves the window, but not below what the path itself holds: the
//! measured rate times the shortest round trip. A loss without such a wait counts as random, and the
//! window stays (compare TCP Westwood: Mascolo et al., "TCP Westwood: bandwidth estimation for enhanced
//! transport over wireless links", MobiCom 2001). After a loss by congestion packets are paced, so that
//! queues shorter than the window suffice, and the window grows by one packet in a round trip, so that
//! flows that share a link become equal. With go-back-N, and on all but short paths,
//! every loss begins the pacing: the packets of a window that are sent at once are too many to lose. A flow
//! that began while others kept the queues full does not know the shortest round trip. So the estimate only
//! limits how far the window is reduced: if it were the new window, such a flow would keep more of the link
//! than the others.
//!
//! Hosts delay packets, too: a thread wakes up late or has no CPU for a time slice. Such delays vary from
//! one packet to the next, where a queue's last. With selective retransmission, on a short path, a wait
//! counts as one in a queue only if it lasts and is longer than the usual variation of the round trip. The
//! same is true of a path on which round trips differ from one to the next by milliseconds, unless many
//! packets are lost.

use std::time::Duration;

use super::round_trip::RoundTrip;
use crate::connection::LossRecovery;
use crate::timer::Time;

/// The smallest window in packets.
const SMALLEST: u32 = 2;
/// The window before the first acknowledgement.
const INITIAL: u32 = 16;
/// For how many rounds a measured rate counts.
const RATES: usize = 8;
/// After this many rounds without a loss that counts, with the window of a short path, packets are not paced
/// any more.
const CALM: u32 = 16;
/// How many packets may be sent at a time in spite of the pacing.
const BURST: u32 = 4;
/// For how long a caller that comes too late may catch up. Where it waited for the pacing, it catches up for
/// as long as a round trip takes: timers of some hosts expire milliseconds late.
const CATCH_UP: Duration = Duration::from_micros(50);
/// The round trip of a path on which packets are mostly under way. On a shorter one they are mostly in
/// the receive buffer of the peer, which a longer window would overflow.
const LONG_PATH: Duration = Duration::from_micros(500);
/// The round trip of a path within a machine or a rack is shorter, however long its links' queues.
const SHORT_PATH: Duration = Duration::from_micros(200);
/// By how much hosts delay packets now and then, at least, without any queue of a link. A window that
/// fills this time as well is for [`LossRecovery::Selective`]: with go-back-N all of it is sent again.
const HOST_DELAY: Duration = Duration::from_micros(100);
/// By how much they delay packets usually, at most: a longer queue counts however the delays vary.
const LONGEST_HOST_DELAY: Duration = Duration::from_millis(1);
/// A round trip in which the thread or GPU that copies what merged packets stand for is never idle. A longer window only adds waits.
const BUSY_ROUND: Duration = Duration::from_millis(1);
/// How many READ requests fill the window with merged responses.
const MERGED_READS: u32 = 4;

/// Where the payloads of long messages are, and who copies them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Payloads {
    /// In the packets, which a network may lose.
    Carried,
    /// [Elsewhere](crate::Contents::At), in memory that both ends share, as their packets are: none is lost for want of room. The
    /// receiver copies them.
    InPlace,
    /// There, and one packet [stands for many](crate::PayloadBy::Reference). They are copied while the receiver goes on.
    Merged,
}

/// Returns whether hosts cause most of the round-trip time and of its variation.
fn is_short(round_trip: &RoundTrip) -> bool {
    round_trip
        .shortest()
        .is_some_and(|shortest| shortest < SHORT_PATH)
}

/// The window of a requester, in packets, and when the next packet may be sent.
#[derive(Clone, Debug)]
pub(super) struct Congestion {
    /// The longest window on a short path, and on any.
    usual: u32,
    longest: u32,
    payloads: Payloads,
    window: u32,
    /// Acknowledged packets that have not yet lengthened the window.
    acknowledged: u32,
    paced: bool,
    /// When the packets that were sent have left at the paced rate.
    sent_until: Time,
    /// For how long it may catch up.
    catch_up: Duration,
    round: Round,
    /// The rates of the latest rounds, in packets a second; 0 before the first.
    rates: [u64; RATES],
    next_rate: usize,
    calm_rounds: u32,
    /// How many packets that were sent before the window was last reduced are not acknowledged. Another
    /// loss among them belongs to the same congestion (RFC 6582, 3.2).
    before_reduction: u32,
    /// The packets of the latest rounds that were acknowledged, and that were lost: a round counts half of
    /// the next one.
    recent: [u32; 2],
}

/// About one round-trip time.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    began: Time,
    acknowledged: u32,
    /// Whether the window kept packets back: only then is the rate the path's.
    limited: bool,
    /// A loss began or prolonged the pacing.
    lossy: bool,
}

impl Congestion {
    /// A window of up to `usual` packets, or `longest` if the path is long.
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

    /// How many packets may be unacknowledged.
    pub(super) const fn window(&self) -> u32 {
        self.window
    }

    /// Follows where payloads are. Merged ones have a longer window: none of them waits in the receive buffer of a socket, or
    /// is copied through a cache.
    pub(super) fn follow(&mut self, payloads: Payloads) {
        if self.payloads != payloads {
            self.payloads = payloads;
            // What shared memory holds need not be found out.
            self.window = match payloads {
                // What shared memory carried says nothing about the network, so a longer window is
                // not kept.
                Payloads::Carried => self.window.min(self.usual),
                Payloads::InPlace | Payloads::Merged => self.usual,
            };
            // In shared memory no packet is lost that the pacing would save.
            self.paced &= payloads == Payloads::Carried;
        }
    }

    /// Like [`Congestion::follow`], if they were carried before.
    pub(super) fn leave_carried(&mut self) {
        self.follow(self.payloads.max(Payloads::InPlace));
    }

    /// Like [`Congestion::follow`], if they were merged before.
    pub(super) fn leave_merged(&mut self) {
        self.follow(self.payloads.min(Payloads::InPlace));
    }

    /// How many packets one request or acknowledgement may stand for, at most `longest`, so that the
    /// packets of a window are spread over the round trip.
    pub(super) fn share(&self, longest: u32) -> u32 {
        match self.paced {
            // At least four acknowledgements in a round trip, so that the window moves in small
            // steps and not in bursts.
            true => longest.min(self.window / 4).max(1),
            // At least two while the window still grows, so that it does not run empty before the
            // first one arrives.
            false if self.window < self.usual => longest.min(self.window / 2).max(1),
            false => longest,
        }
    }

    /// How many response packets one READ request stands for: at most `longest`, but enough that `requests`
    /// of them fill a window that is longer than usual, or a few if the responses are merged.
    pub(super) fn read_share(&self, longest: u32, requests: u8) -> u32 {
        let requests = u32::from(requests.max(1));
        let filling = match (self.window > self.usual, self.payloads) {
            // The peer keeps resources for only so many requests: to fill a longer window, each is
            // for more.
            (true, Payloads::Carried | Payloads::InPlace) => self.window.div_ceil(requests),
            (true, Payloads::Merged) => self.window.div_ceil(requests.min(MERGED_READS)),
            (false, _) => 0,
        };
        self.share(longest.max(filling))
    }

    /// When the next packet may be sent, if that is later than `now`.
    pub(super) fn wait(&mut self, now: Time, round_trip: &RoundTrip) -> Option<Time> {
        if !self.paced {
            return None;
        }
        // Packets may leave ahead of the pacing by a burst, so that not each of them waits for a
        // timer.
        let ahead = self.interval(round_trip).saturating_mul(BURST);
        let may = Time::since_epoch(self.sent_until.elapsed().saturating_sub(ahead));
        if may <= now {
            return None;
        }
        self.catch_up = round_trip.smoothed().unwrap_or_default().max(CATCH_UP);
        Some(may)
    }

    /// Counts packets that are sent at `now`.
    pub(super) fn sent(&mut self, now: Time, packets: u32, round_trip: &RoundTrip) {
        if self.paced {
            // What a late caller did not send in time is not saved up any longer: it would leave as
            // one burst.
            let earliest = Time::since_epoch(now.elapsed().saturating_sub(self.catch_up));
            let time = self.interval(round_trip).saturating_mul(packets);
            self.sent_until = self.sent_until.max(earliest) + time;
        }
    }

    /// Notes that the window or the pacing kept a packet back.
    pub(super) const fn limit(&mut self) {
        self.round.limited = true;
    }

    /// Notes that the window kept one back, so that none waits for the pacing.
    pub(super) const fn limit_by_window(&mut self) {
        self.limit();
        self.catch_up = CATCH_UP;
    }

    /// Notes that the number of outstanding READs kept one back. With a window that is longer than usual
    /// this is a limit of the window, too: the requests become longer with it.
    pub(super) const fn limit_reads(&mut self) {
        self.round.limited |= self.window > self.usual;
    }

    /// Counts packets that were acknowledged at `now`.
    pub(super) fn acknowledge(&mut self, now: Time, packets: u32, round_trip: &RoundTrip) {
        self.round.acknowledged += packets;
        self.recent[0] = self.recent[0].saturating_add(packets);
        self.before_reduction = self.before_reduction.saturating_sub(packets);
        // In shared memory all of a window may be acknowledged at once, when its round ends.
        let was_limited = self.round.limited && self.payloads != Payloads::Carried;
        let elapsed = now.saturating_since(self.round.began);
        let smoothed = round_trip.smoothed().unwrap_or_default();
        // A round takes one round trip, so that its rate counts each packet of a window once.
        if elapsed >= smoothed {
            self.end_round(now, elapsed, smoothed);
            // Twice as long as the copying side needs to stay busy: the window only makes packets
            // wait.
            if self.payloads == Payloads::Merged && round_trip.latest() > 2 * BUSY_ROUND {
                self.window = self.window.min((self.window / 2).max(self.usual));
            }
        }
        let limit = self.longest_on(round_trip);
        // A window that was not used up shows nothing about the path, so it does not grow
        // (RFC 9438, 5.8).
        if self.window >= limit || !(self.round.limited || was_limited) {
            return;
        }
        let empty = round_trip.has_empty_queues();
        if !self.paced {
            // Slow start: one packet more for each acknowledged one doubles the window in a round
            // trip (RFC 5681, 3.1).
            if self.window < self.usual || empty || self.payloads == Payloads::Merged {
                self.window = (self.window + packets).min(limit);
            }
            return;
        }
        // Congestion avoidance: one packet more in a round trip (RFC 5681, 3.1), counted by
        // acknowledged packets, because one acknowledgement may stand for many (RFC 3465, 2.1).
        self.acknowledged += packets;
        while self.acknowledged >= self.window && self.window < limit {
            self.acknowledged -= self.window;
            // While no packets wait in queues, there is room for all flows of the path.
            let more = if empty { self.window / 8 } else { 1 };
            self.window = (self.window + more.max(1)).min(limit);
        }
    }

    /// How long the window may become on a path with this round trip: twice what the path holds, or the
    /// usual length.
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

    /// Shortens the window to the usual length: after a pause, a longer one would be sent at once.
    pub(super) fn restart(&mut self, now: Time, paused_since: Time, round_trip: &RoundTrip) {
        self.catch_up = CATCH_UP;
        let paused = now.saturating_since(paused_since);
        let is_long = round_trip.smoothed().is_some_and(|time| paused > time);
        // RFC 5681, 4.1 shortens the window after a pause, too: no acknowledgements are left that
        // would space the packets of a longer one.
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
        // A much longer round shows an outage, not the rate of the path.
        // A round that the program did not fill measures the program, so only a higher rate counts.
        if elapsed < smoothed * 4 && (limited || rate > self.rate()) {
            self.rates[self.next_rate] = rate;
            self.next_rate = (self.next_rate + 1) % RATES;
        }
        self.recent = self.recent.map(|packets| packets / 2);
        self.calm_rounds = if lossy { 0 } else { self.calm_rounds + 1 };
        // Only a window that is back at its usual length, with no loss for long, may leave in
        // bursts again.
        self.paced &= self.window < self.usual || self.calm_rounds < CALM;
        self.round = Round {
            began: now,
            // What keeps packets back now does so in the next round, too, until a packet is sent.
            ..Round::default()
        };
    }

    /// Reduces the window after a loss at `now`, with `outstanding` packets that may still be under
    /// way: with go-back-N they are useless.
    pub(super) fn lose(
        &mut self,
        now: Time,
        outstanding: u32,
        recovery: LossRecovery,
        round_trip: &RoundTrip,
    ) {
        // Packets in shared memory are not lost, so one that is sent again there does not show
        // congestion.
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
        // Further losses among the packets of one window belong to the same congestion (RFC 6582, 3.2;
        // RFC 6675, 5).
        let first = !self.round.lossy && self.before_reduction == 0;
        if first && is_congested {
            self.reduce(hosts, round_trip);
            self.before_reduction = match recovery {
                // They are all sent again.
                LossRecovery::GoBackN => 0,
                LossRecovery::Selective => outstanding,
            };
        }
        if is_congested || !is_short {
            self.round.lossy = true;
            self.paced = true;
        }
        // What is under way leaves the queues first.
        let excess = outstanding.min(before).saturating_sub(self.window);
        self.sent_until = self.sent_until + self.interval(round_trip).saturating_mul(excess);
    }

    fn reduce(&mut self, hosts: Duration, round_trip: &RoundTrip) {
        let half = self.window / 2;
        let path = self.path_packets(hosts, round_trip).unwrap_or(half) + SMALLEST;
        // The first loss ends slow start, which may have gone far beyond what the path holds: all
        // of that goes. A later loss takes half at most.
        let least = if self.paced { half } else { 0 };
        // The window loses three tenths at least, as with CUBIC (RFC 9438, 4.6): an estimate that
        // is too high must not leave it as it was.
        let most = self.window * 7 / 10;
        self.window = path.min(most).max(least).max(SMALLEST);
        self.acknowledged = 0;
    }

    /// Returns whether packets wait in queues, or would if the whole window was used: a burst of
    /// responses is lost before a round trip shows it. How long a wait counts depends on the path
    /// alone, so that all flows that share it notice the same congestion.
    fn is_congested(&self, queueing: Duration, hosts: Duration, round_trip: &RoundTrip) -> bool {
        let (Some(minimum), Some(path)) =
            (round_trip.minimum(), self.path_packets(hosts, round_trip))
        else {
            // Nothing is measured yet, so the loss counts as congestion, as every loss does in
            // RFC 5681.
            return true;
        };
        if self.window > 2 * (path + BURST) {
            return true;
        }
        queueing > hosts.max(minimum / 2)
    }

    /// Returns whether more packets are lost than a faulty link loses: a queue is too short for the
    /// window.
    fn loses_many(&self) -> bool {
        let [acknowledged, lost] = self.recent;
        lost > self.window / 4 && lost > acknowledged / 4
    }

    /// How many packets the path and its hosts hold without the queues of links, once that was
    /// measured.
    fn path_packets(&self, hosts: Duration, round_trip: &RoundTrip) -> Option<u32> {
        let minimum = round_trip.minimum()?;
        (self.rate() > 0).then(|| self.packets_in(minimum.max(hosts)))
    }

    /// How many packets there are in this time at the measured rate.
    fn packets_in(&self, time: Duration) -> u32 {
        let packets = u128::from(self.rate()) * time.as_nanos() / 1_000_000_000;
        packets.min(self.longest.into()) as u32
    }

    /// The highest recent rate in packets a second.
    fn rate(&self) -> u64 {
        self.rates.iter().copied().max().unwrap_or_default()
    }

    /// The time between two paced packets: a fifth less than at the measured rate, so that the window
    /// and not the pacing decides on the rate. While what was lost with a reduction is sent again, the
    /// window does not limit the rate, and the pacing does.
    fn interval(&self, round_trip: &RoundTrip) -> Duration {
        let smoothed = round_trip.smoothed().unwrap_or_default();
        match self.rate() {
            _ if self.before_reduction > 0 => smoothed / self.window,
            // No rate is measured yet: the window in a round trip takes its place, a fifth less as
            // well.
            0 => smoothed * 4 / (self.window * 5),
            rate => Duration::from_nanos(800_000_000 / rate),
        }
    }
}
