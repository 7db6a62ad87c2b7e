//! Outstanding work requests.

use std::collections::VecDeque;
use std::iter;

use gdr_roce::WrId;

/// A posted request, which keeps its memory, `K`, registered.
#[derive(Debug)]
pub struct Outstanding<K, T> {
    /// The number that identifies the request to the protocol or the device, because the program's own
    /// identifiers may repeat. Numbers increase within a queue.
    pub number: u64,
    /// The program's identifier.
    pub id: WrId,
    /// A value that must outlive the request.
    pub retained: K,
    /// Details needed when the request completes.
    pub detail: T,
}

/// The outstanding requests of a send or receive queue, in the order in which they were posted.
#[derive(Debug)]
pub struct OutstandingQueue<K, T>(VecDeque<Outstanding<K, T>>);

impl<K, T> Default for OutstandingQueue<K, T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<K, T> OutstandingQueue<K, T> {
    /// Adds a request, whose number must be greater than all others in the queue.
    pub fn push(&mut self, request: Outstanding<K, T>) {
        debug_assert!(
            self.0
                .back()
                .is_none_or(|last| last.number < request.number)
        );
        self.0.push_back(request);
    }

    /// Returns the number of the request that was added last.
    pub fn last(&self) -> Option<u64> {
        self.0.back().map(|last| last.number)
    }

    /// Removes the `count` requests that were added last.
    pub fn withdraw(&mut self, count: usize) {
        let left = self.0.len().saturating_sub(count);
        self.0.truncate(left);
    }

    /// Removes the first request, if it has this number.
    pub fn complete_first(&mut self, number: u64) -> Option<Outstanding<K, T>> {
        match self.0.front() {
            Some(first) if first.number == number => self.0.pop_front(),
            _ => None,
        }
    }

    /// Removes the request with this number and all before it: requests in a queue complete in order, and those
    /// before it were not signalled. Each is removed when the iterator returns it, the request with this number
    /// last. An unknown number removes nothing.
    pub fn complete(&mut self, number: u64) -> impl Iterator<Item = Outstanding<K, T>> {
        let mut ended = match self.0.front() {
            // It is nearly always the first one; skip the search.
            Some(first) if first.number == number => 1,
            _ => match self
                .0
                .binary_search_by_key(&number, |request| request.number)
            {
                Ok(index) => index + 1,
                Err(_) => 0,
            },
        };
        // `drain` would be slower for the usual single request.
        iter::from_fn(move || {
            ended = ended.checked_sub(1)?;
            self.0.pop_front()
        })
    }

    /// Removes only the request with this number: requests in a shared queue complete in any order.
    pub fn remove(&mut self, number: u64) -> Option<Outstanding<K, T>> {
        let index = self
            .0
            .binary_search_by_key(&number, |request| request.number);
        self.0.remove(index.ok()?)
    }

    /// Returns all requests, for a queue that is destroyed.
    pub fn into_requests(self) -> impl Iterator<Item = Outstanding<K, T>> {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(number: u64) -> Outstanding<(), u64> {
        Outstanding {
            number,
            id: WrId(number + 100),
            retained: (),
            detail: number,
        }
    }

    fn completed(queue: &mut OutstandingQueue<(), u64>, number: u64) -> Vec<u64> {
        queue.complete(number).map(|ended| ended.detail).collect()
    }

    #[test]
    fn a_completion_ends_the_requests_before_it_too() {
        let mut queue = OutstandingQueue::default();
        for number in [3, 4, 7, 9] {
            queue.push(request(number));
        }
        assert_eq!(completed(&mut queue, 3), [3]);
        assert_eq!(completed(&mut queue, 9), [4, 7, 9]);
        assert!(completed(&mut queue, 9).is_empty());
    }

    #[test]
    fn only_the_first_request_completes_first() {
        let mut queue = OutstandingQueue::default();
        for number in [3, 4, 7] {
            queue.push(request(number));
        }
        let mut first = |number| queue.complete_first(number).map(|ended| ended.id);
        for other in [0, 2, 4, 7, u64::MAX] {
            assert_eq!(first(other), None, "{other}");
        }
        assert_eq!(
            [3, 3, 4].map(first),
            [Some(WrId(103)), None, Some(WrId(104))]
        );
        assert_eq!(completed(&mut queue, 7), [7]);
        assert!(queue.complete_first(7).is_none(), "the queue is empty");
    }

    #[test]
    fn a_request_that_is_removed_leaves_those_before_it() {
        let mut queue = OutstandingQueue::default();
        for number in [3, 4, 7] {
            queue.push(request(number));
        }
        let mut removed = |number| queue.remove(number).map(|request| request.detail);
        assert_eq!([4, 4, 9].map(&mut removed), [Some(4), None, None]);
        assert_eq!(completed(&mut queue, 7), [3, 7]);
    }

    #[test]
    fn an_unknown_number_ends_nothing() {
        let mut queue = OutstandingQueue::default();
        for number in [3, 7] {
            queue.push(request(number));
        }
        for unknown in [0, 4, 8, u64::MAX] {
            assert!(completed(&mut queue, unknown).is_empty());
        }
        let left: Vec<_> = queue.into_requests().map(|ended| ended.id).collect();
        assert_eq!(left, [WrId(103), WrId(107)]);
    }
}
