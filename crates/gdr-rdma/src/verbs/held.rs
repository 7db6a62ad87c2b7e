//! What a queue pair has posted and not yet seen the end of.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gdr_roce::{WcOpcode, WrId};
use smallvec::SmallVec;

use crate::region::Segment;

/// Set in the number of a receive.
const RECEIVE: u64 = 1 << 63;

/// A request that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) id: WrId,
    pub(super) opcode: WcOpcode,
    /// Bytes, of a send.
    pub(super) len: u32,
}

/// A request that is under way; it keeps its memory registered.
#[derive(Debug)]
struct Posted {
    number: u64,
    ended: Ended,
    _segments: SmallVec<[Segment; 2]>,
}

/// What a queue pair has posted, by queue and in order. The numbers that it gives are the `wr_id`
/// that the device sees: a completion tells nothing else that could be trusted when it is no
/// success.
#[derive(Debug, Default)]
pub(crate) struct Held(Mutex<Queues>);

#[derive(Debug, Default)]
struct Queues {
    next: u64,
    sends: VecDeque<Posted>,
    receives: VecDeque<Posted>,
}

impl Held {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        // Nothing is ever half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a request by `post`, which gets its number. Its end is known here from before it can
    /// come.
    pub(super) fn post<E>(
        &self,
        ended: Ended,
        segments: SmallVec<[Segment; 2]>,
        post: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let mark = if ended.opcode.is_receive() {
            RECEIVE
        } else {
            0
        };
        self.post_marked(mark, [(ended, segments)], post)
    }

    /// Posts sends by one `post`, which takes all or none of them and gets the number of the first;
    /// each of the others has the next one.
    pub(super) fn post_sends<E>(
        &self,
        sends: impl IntoIterator<Item = (Ended, SmallVec<[Segment; 2]>)>,
        post: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        self.post_marked(0, sends, post)
    }

    fn post_marked<E>(
        &self,
        mark: u64,
        requests: impl IntoIterator<Item = (Ended, SmallVec<[Segment; 2]>)>,
        post: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut queues = self.lock();
        // Requests of a queue end in the order in which they were posted: the lock is held over
        // both, so that the two orders are one.
        post(queues.next | mark)?;
        for (ended, segments) in requests {
            let posted = Posted {
                number: queues.next | mark,
                ended,
                _segments: segments,
            };
            queues.next += 1;
            if mark == RECEIVE {
                queues.receives.push_back(posted);
            } else {
                queues.sends.push_back(posted);
            }
        }
        Ok(())
    }

    /// The request of this number has ended, and with it all before it in its queue.
    pub(super) fn end(&self, number: u64) -> Option<Ended> {
        let mut queues = self.lock();
        let queue = if number & RECEIVE != 0 {
            &mut queues.receives
        } else {
            &mut queues.sends
        };
        let place = queue.iter().position(|posted| posted.number == number)?;
        queue.drain(..=place).next_back().map(|posted| posted.ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(id: u64, opcode: WcOpcode) -> Ended {
        Ended {
            id: WrId(id),
            opcode,
            len: 0,
        }
    }

    #[test]
    fn the_end_of_a_request_is_the_end_of_those_before_it_in_its_queue() {
        let held = Held::default();
        let mut numbers = Vec::new();
        for (id, opcode) in [
            (1, WcOpcode::Send),
            (2, WcOpcode::Recv),
            (3, WcOpcode::Write),
            (4, WcOpcode::Read),
        ] {
            held.post(ended(id, opcode), SmallVec::new(), |number| {
                numbers.push(number);
                Ok::<(), ()>(())
            })
            .unwrap();
        }
        assert_eq!(held.end(numbers[2]), Some(ended(3, WcOpcode::Write)));
        assert_eq!(held.end(numbers[0]), None, "it ended with the one after it");
        assert_eq!(held.end(numbers[1]), Some(ended(2, WcOpcode::Recv)));
        assert_eq!(held.end(numbers[3]), Some(ended(4, WcOpcode::Read)));
        assert_eq!(held.end(99), None);
    }

    #[test]
    fn what_was_refused_is_not_held() {
        let held = Held::default();
        let refused = held.post(ended(1, WcOpcode::Send), SmallVec::new(), |_| Err("full"));
        assert_eq!(refused, Err("full"));
        assert_eq!(held.end(0), None);
    }
}
