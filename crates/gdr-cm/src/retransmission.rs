//! A message that is retransmitted until it is answered.

use std::time::Duration;

use super::mad::Mad;
use gdr_roce::Time;

/// The initial delay. Nearby hosts answer much sooner, so a loss costs little.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// The maximum delay: 4.096 us * 2^20, as in rdma_cm.
const LONGEST_WAIT: Duration = Duration::from_micros(4_294_967);
/// The number of retransmissions, as in rdma_cm: the sender gives up after about 52 s.
const REPETITIONS: u8 = 15;

/// A message, and when to send it next.
#[derive(Debug)]
pub(super) struct Retransmission {
    mad: Mad,
    due: Time,
    wait: Duration,
    left: u8,
}

/// What a [`Retransmission`] calls for.
#[derive(Debug)]
pub(super) enum Due {
    Later,
    Send(Box<Mad>),
    GiveUp,
}

impl Retransmission {
    /// Returns the state for a message sent at `now`.
    pub(super) fn new(now: Time, mad: Mad) -> Self {
        Self {
            mad,
            due: now + FIRST_WAIT,
            wait: FIRST_WAIT,
            left: REPETITIONS,
        }
    }

    pub(super) const fn deadline(&self) -> Time {
        self.due
    }

    pub(super) fn poll(&mut self, now: Time) -> Due {
        if now < self.due {
            return Due::Later;
        }
        if self.left == 0 {
            return Due::GiveUp;
        }
        self.left -= 1;
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
        self.due = now + self.wait;
        Due::Send(Box::new(self.mad))
    }

    /// Postpones retransmission until the reply announced by an MRA is due.
    pub(super) fn postpone(&mut self, now: Time, service_timeout: Duration) {
        self.due = self.due.max(now + service_timeout + LONGEST_WAIT);
    }
}
