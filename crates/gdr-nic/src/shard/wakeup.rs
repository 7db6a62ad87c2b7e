//! The events that wake a thread sleeping on behalf of the engine, besides packets.

use gdr_roce::Time;

/// The events that wake a sleeping thread, besides packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wakeup {
    pub(crate) at: Option<Time>,
    /// Whether the UDP socket becoming writable does.
    pub(crate) when_writable: bool,
    /// Whether the packet socket becoming writable does.
    pub(crate) when_frames_fit: bool,
}

impl Wakeup {
    /// Returns whether a thread sleeping with `old` must be woken to sleep with this instead.
    pub(crate) fn needs_more_than(&self, old: &Self) -> bool {
        let is_earlier = match (self.at, old.at) {
            (Some(new), Some(old)) => new < old,
            (Some(_), None) => true,
            (None, _) => false,
        };
        is_earlier
            || (self.when_writable && !old.when_writable)
            || (self.when_frames_fit && !old.when_frames_fit)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_sleeper_is_woken_for_what_it_does_not_wait_for() {
        let at = |ms| Wakeup {
            at: Some(Time::since_epoch(Duration::from_millis(ms))),
            ..Wakeup::default()
        };
        let none = Wakeup::default();
        let room = [
            Wakeup {
                when_writable: true,
                ..none
            },
            Wakeup {
                when_frames_fit: true,
                ..none
            },
        ];
        for more in room.into_iter().chain([at(1)]) {
            assert!(more.needs_more_than(&none), "{more:?}");
            assert!(!more.needs_more_than(&more), "{more:?}");
            assert!(!none.needs_more_than(&more), "{more:?}");
        }
        assert!(at(1).needs_more_than(&at(2)));
        assert!(!at(2).needs_more_than(&at(1)));
    }
}
