//! Resources that work requests keep alive.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

/// A resource that a posted request keeps alive until it completes: the owner of its memory, so that a program cannot
/// free that memory too early.
pub trait Retained: fmt::Debug + Send + Sync {
    /// Releases the hold of one request. Must not block: the calling thread drives all queue pairs of a device, or has
    /// to meet its caller's deadline. No lock of the device is held.
    fn release(self: Arc<Self>);
}

/// The resources retained by a request, or by the few requests that complete together.
pub type RetainedList = SmallVec<[Arc<dyn Retained>; 2]>;

/// Resources that the requests of a queue retain, in the order of request numbers. Most requests retain none, so they
/// have no room for any.
#[derive(Debug, Default)]
pub(crate) struct RetainedQueue(VecDeque<(u64, Arc<dyn Retained>)>);

impl RetainedQueue {
    /// Adds the resources of the last request.
    pub(crate) fn push(&mut self, number: u64, retained: RetainedList) {
        let numbered = retained.into_iter().map(|owner| (number, owner));
        self.0.extend(numbered);
    }

    /// Moves the resources of a completed request, and of all before it, to `ended`.
    #[inline]
    pub(crate) fn complete(&mut self, number: u64, ended: &mut RetainedList) {
        while self.0.front().is_some_and(|(first, _)| *first <= number) {
            ended.extend(self.0.pop_front().map(|(_, owner)| owner));
        }
    }

    /// Removes the resources of the request of this number, and of all after it.
    pub(crate) fn withdraw(&mut self, number: u64) {
        let left = self.0.partition_point(|(request, _)| *request < number);
        self.0.truncate(left);
    }

    /// Returns all resources, for a queue that is destroyed.
    pub(crate) fn into_owners(self) -> impl Iterator<Item = Arc<dyn Retained>> {
        self.0.into_iter().map(|(_, owner)| owner)
    }
}

/// Adds the resources that a request retained to a list, in any order. Usually there is a single owner, for which
/// `extend` would be slower.
pub(crate) fn append(list: &mut RetainedList, mut retained: RetainedList) {
    while let Some(owner) = retained.pop() {
        list.push(owner);
    }
}

/// Releases the resources that completed requests retained.
pub(crate) fn release(completed: impl IntoIterator<Item = Arc<dyn Retained>>) {
    completed.into_iter().for_each(Retained::release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Owner;

    impl Retained for Owner {
        fn release(self: Arc<Self>) {}
    }

    #[test]
    fn a_completion_ends_what_earlier_requests_retain_too() {
        let mut queue = RetainedQueue::default();
        let owners = [(); 4].map(|()| Arc::new(Owner));
        let one = |index: usize| -> Arc<dyn Retained> { owners[index].clone() };
        // Not every request retains something, and one retains two.
        queue.push(3, RetainedList::from_iter([one(0)]));
        queue.push(5, RetainedList::from_iter([one(1), one(2)]));
        queue.push(7, RetainedList::new());
        queue.push(9, RetainedList::from_iter([one(3)]));
        let mut counts = |number| {
            let mut ended = RetainedList::new();
            queue.complete(number, &mut ended);
            ended.len()
        };
        assert_eq!([2, 4, 4, 7].map(&mut counts), [0, 1, 0, 2]);
        queue.withdraw(10);
        queue.push(10, RetainedList::from_iter([one(0)]));
        queue.withdraw(10);
        assert_eq!(queue.into_owners().count(), 1);
        assert!(owners.iter().all(|owner| Arc::strong_count(owner) == 1));
    }
}
