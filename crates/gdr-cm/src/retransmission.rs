//! A message that is repeated until it is answered.

use std::time::Duration;

use super::mad::Mad;
use gdr_roce::Time;

/// The first wait. Messages of a host nearby are answered much sooner, so a loss costs little.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// The longest wait: 4.096 us * 2^20, which rdma_cm also uses.
const LONGEST_WAIT: Duration = Duration::from_micros(4_294_967);
/// How often a message is repeated, as by rdma_cm: the wait for an answer ends after about 52 s.
const REPETITIONS: u8 = 15;

/// A message, and when it is sent next.
#[derive(Debug)]
pub(super) struct Retransmission {
    mad: Mad,
    due: Time,
    wait: Duration,
    left: u8,
}

/// What a [`Retransmission`] asks for.
#[derive(Debug)]
pub(super) enum Due {
    Later,
    Send(Box<Mad>),
    GiveUp,
}

impl Retransmission {
    /// For a message that is sent at `now`.
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

    /// Repeats nothing until the answer is due that a MRA announced.
    pub(super) fn postpone(&mut self, now: Time, service_timeout: Duration) {
        self.due = self.due.max(now + service_timeout + LONGEST_WAIT);
    }
}
