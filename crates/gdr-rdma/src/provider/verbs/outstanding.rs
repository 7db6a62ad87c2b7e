//! Outstanding requests of a queue pair, by the number that the device knows them by.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use gdr_roce::{WcOpcode, WrId};
use smallvec::SmallVec;

use crate::work_request::Segments;
use gdr_nic::outstanding::{Outstanding, OutstandingQueue};
use gdr_process::lock::lock;

/// Set in the number of a receive.
const RECEIVE: u64 = 1 << 63;

/// How many numbers a queue pair reserves from [`NUMBERS`] at a time.
const BLOCK: u64 = 1 << 16;

/// First number that no queue pair of this process has reserved. Firmware reuses the number of a destroyed queue pair,
/// and some devices keep completions of the old one. Request numbers that are never reused tell them apart.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// Properties that a completion does not report reliably.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Posted {
    pub(super) id: WrId,
    pub(super) opcode: WcOpcode,
    /// The length of a send in bytes.
    pub(super) len: u32,
}

/// The outstanding requests of a queue pair. Their numbers are the `wr_id` that the device sees: on
/// an error completion only `wr_id` and `status` are valid (ibv_poll_cq(3)).
#[derive(Debug, Default)]
pub(super) struct OutstandingRequests(Mutex<Queues>);

#[derive(Debug, Default)]
struct Queues {
    /// Next number, and end of the reserved numbers.
    next: u64,
    end: u64,
    sends: OutstandingQueue<Segments, Posted>,
    receives: OutstandingQueue<Segments, Posted>,
}

impl Queues {
    /// Returns the queue of the request of this number.
    fn queue(&mut self, number: u64) -> &mut OutstandingQueue<Segments, Posted> {
        match number & RECEIVE {
            0 => &mut self.sends,
            _ => &mut self.receives,
        }
    }
}

impl OutstandingRequests {
    /// Locks the table until requests are posted and added to it.
    ///
    /// The requests of a queue complete in the order of posting. The lock is held during both steps, so that device and
    /// table have the same order, and a request is in the table before its completion is looked up.
    pub(super) fn begin_post(&self) -> Posting<'_> {
        Posting(lock(&self.0))
    }

    /// Removes the completed request with this number, and all before it in its queue.
    #[inline]
    pub(super) fn complete(&self, number: u64) -> Option<Posted> {
        let mut queues = lock(&self.0);
        match queues.queue(number).complete_first(number) {
            // Its regions may end with it, which takes other locks.
            Some(request) => {
                drop(queues);
                Some(request.detail)
            }
            None => Self::complete_several(queues, number),
        }
    }

    #[inline(never)]
    fn complete_several(mut queues: MutexGuard<'_, Queues>, number: u64) -> Option<Posted> {
        let queue = queues.queue(number);
        let mut segments = SmallVec::<[Segments; 4]>::new();
        let mut last = None;
        for mut request in queue.complete(number) {
            segments.push(mem::take(&mut request.retained));
            last = Some(request.detail);
        }
        drop(queues);
        drop(segments);
        last
    }
}

/// The locked table, while requests are posted.
pub(super) struct Posting<'a>(MutexGuard<'a, Queues>);

impl Posting<'_> {
    /// Returns the number of the next receive.
    pub(super) fn receive_number(&mut self) -> u64 {
        self.send_numbers(1) | RECEIVE
    }

    /// Returns the first of `count` consecutive numbers for sends. [`Posting::add_send`] uses them up.
    pub(super) fn send_numbers(&mut self, count: usize) -> u64 {
        let (count, queues) = (count as u64, &mut *self.0);
        if queues.end - queues.next < count {
            let reserved = count.max(BLOCK);
            queues.next = NUMBERS.fetch_add(reserved, Ordering::Relaxed);
            queues.end = queues.next + reserved;
        }
        queues.next
    }

    /// Adds a send that was posted.
    pub(super) fn add_send(&mut self, posted: Posted, segments: Segments) {
        let request = self.request(0, posted, segments);
        self.0.sends.push(request);
    }

    /// Adds a receive that was posted.
    pub(super) fn add_receive(&mut self, posted: Posted, segments: Segments) {
        let request = self.request(RECEIVE, posted, segments);
        self.0.receives.push(request);
    }

    fn request(
        &mut self,
        mark: u64,
        posted: Posted,
        segments: Segments,
    ) -> Outstanding<Segments, Posted> {
        let number = self.0.next | mark;
        self.0.next += 1;
        Outstanding {
            number,
            id: posted.id,
            retained: segments,
            detail: posted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posted(id: u64, opcode: WcOpcode) -> Posted {
        Posted {
            id: WrId(id),
            opcode,
            len: 0,
        }
    }

    /// Posts a request; returns its number.
    fn post(requests: &OutstandingRequests, what: Posted) -> u64 {
        let mut posting = requests.begin_post();
        if what.opcode.is_receive() {
            let number = posting.receive_number();
            posting.add_receive(what, Segments::new());
            return number;
        }
        let number = posting.send_numbers(1);
        posting.add_send(what, Segments::new());
        number
    }

    #[test]
    fn a_completed_request_ends_those_before_it_in_its_queue() {
        let requests = OutstandingRequests::default();
        let numbers = [
            (1, WcOpcode::Send),
            (2, WcOpcode::Recv),
            (3, WcOpcode::Write),
            (4, WcOpcode::Read),
        ]
        .map(|(id, opcode)| post(&requests, posted(id, opcode)));
        let write = posted(3, WcOpcode::Write);
        assert_eq!(requests.complete(numbers[2]), Some(write));
        assert_eq!(
            requests.complete(numbers[0]),
            None,
            "it ended with a later one"
        );
        let recv = posted(2, WcOpcode::Recv);
        assert_eq!(requests.complete(numbers[1]), Some(recv));
        let read = posted(4, WcOpcode::Read);
        assert_eq!(requests.complete(numbers[3]), Some(read));
        assert_eq!(requests.complete(u64::MAX >> 1), None);
    }

    #[test]
    fn requests_that_complete_one_by_one_end_in_their_order() {
        let requests = OutstandingRequests::default();
        let numbers = [1, 2, 3].map(|id| post(&requests, posted(id, WcOpcode::Write)));
        for (id, number) in (1..).zip(numbers) {
            assert_eq!(requests.complete(number), Some(posted(id, WcOpcode::Write)));
            assert_eq!(requests.complete(number), None, "it is complete already");
        }
    }

    #[test]
    #[cfg_attr(
        miri,
        ignore = "hundreds of thousands of numbers are too many to interpret"
    )]
    fn no_number_is_used_by_two_queue_pairs() {
        let mut used = std::collections::HashSet::new();
        for _ in 0..3 {
            let requests = OutstandingRequests::default();
            for count in [1, 3, BLOCK - 2, BLOCK + 1, 1] {
                let mut posting = requests.begin_post();
                let first = posting.send_numbers(count as usize);
                for _ in 0..count {
                    posting.add_send(posted(0, WcOpcode::Send), Segments::new());
                }
                drop(posting);
                assert!((first..first + count).all(|number| used.insert(number)));
                assert!(requests.complete(first + count - 1).is_some());
            }
        }
    }

    #[test]
    fn a_request_that_was_not_posted_is_unknown() {
        let requests = OutstandingRequests::default();
        let number = requests.begin_post().send_numbers(1);
        assert_eq!(requests.complete(number), None);
    }
}
