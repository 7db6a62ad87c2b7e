//! Waiting for an epoch: a wake-up by the owner, and periodic checks of the header in case the wake-up is lost.

use std::time::{Duration, Instant};

use gdr_rdma::Deadline;

use crate::binding::{Attempt, Binding};
use crate::epoch::Epoch;
use crate::link_channel::{Fault, Step};
use crate::link_shared::LinkState;
use crate::peer_channel::WANTED;
use crate::protocol::Opened;

/// How long a wait relies on being woken before it checks the header itself.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How long an owner may take to answer a check before that says something about the owner.
const ANSWER: Duration = Duration::from_secs(1);

impl Binding {
    /// Waits as [`RemoteObject::wait_newer`](crate::RemoteObject::wait_newer); `None` at the deadline.
    pub(crate) fn await_newer(
        &self,
        state: &mut LinkState,
        opened: &Opened,
        seen: Option<Epoch>,
        deadline: Deadline,
    ) -> Result<Option<Epoch>, Attempt> {
        let after = seen.map_or(0, Epoch::get);
        let mut answers = Answers::None;
        loop {
            let (channel, watch) = state.channel(&self.link, opened.domain, deadline)?;
            let wanted = Step::Store {
                word: after + 1,
                to: channel.cell(opened.cell, WANTED),
            };
            let began = Instant::now();
            let line = match self.object_line(channel, watch, opened, [wanted], deadline) {
                Err(Attempt::Fault {
                    fault: Fault::Deadline { .. },
                    ..
                }) if answers.outlast(began.elapsed()) => {
                    // Its requests are outstanding and end with the queue pair.
                    state.drop_channel(opened.domain);
                    return Ok(None);
                }
                line => line?,
            };
            answers = Answers::Some;
            if let Some((newest, _)) = line.newest
                && newest.get() > after
            {
                return Ok(Some(newest));
            }
            let look_again = Deadline::after(pause(deadline.remaining()));
            while !look_again.has_passed() {
                channel.wait_for_wake_up(look_again, watch)?;
                let woken = Epoch::new(channel.woken(opened.cell)?);
                if let Some(newest) = woken.filter(|newest| newest.get() > after) {
                    return Ok(Some(newest));
                }
            }
            if deadline.has_passed() {
                return Ok(None);
            }
        }
    }
}

/// Whether the owner has answered a check of this wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    None,
    Some,
}

impl Answers {
    /// Returns whether the owner counts as present although the deadline passed while a check had lasted this long.
    fn outlast(self, outstanding: Duration) -> bool {
        self == Self::Some && outstanding < ANSWER
    }
}

/// Returns how long to rely on being woken, given the remaining time. No check begins so late that it would fail for
/// lack of time.
fn pause(remaining: Duration) -> Duration {
    match remaining < 2 * LOOK_AGAIN {
        true => remaining,
        false => LOOK_AGAIN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_look_begins_shortly_before_the_deadline() {
        for milliseconds in 0..300 {
            let remaining = Duration::from_millis(milliseconds);
            let left = remaining - pause(remaining);
            assert!(left.is_zero() || left >= LOOK_AGAIN, "{remaining:?}");
            assert!(pause(remaining) < 2 * LOOK_AGAIN);
        }
    }

    #[test]
    fn an_owner_that_answered_is_there_unless_a_later_look_stalls() {
        assert!(Answers::Some.outlast(Duration::from_millis(5)));
        assert!(!Answers::Some.outlast(ANSWER));
        assert!(!Answers::None.outlast(Duration::ZERO));
    }
}
