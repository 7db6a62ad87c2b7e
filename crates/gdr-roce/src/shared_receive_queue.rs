//! Receive queues shared by queue pairs (SRQ).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::PostError;
use crate::receive_queue::RecvWqe;
use crate::request::RecvRequest;

/// A receive queue shared by several queue pairs (SRQ). Clones refer to the same queue.
///
/// Each message takes the oldest request, whichever queue pair it arrives at. If there is none, a reliable connection
/// sends an RNR NAK, and a datagram is dropped. The completion goes to the queue pair that took the request, so
/// requests do not complete in posting order.
///
/// When a queue pair enters ERR, only the request that it has taken is flushed; then
/// [`Event::LastWqeReached`](crate::Event::LastWqeReached) follows. When it enters RESET, that request is put back at
/// the head of the queue.
///
/// The lock is held for one operation on the queue, and never while [`Memory`](crate::Memory) is called.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    max_wr: u32,
    queue: VecDeque<RecvWqe>,
    /// The event is raised when fewer requests than this are queued; 0 if disarmed.
    limit: u32,
    limit_reached: bool,
}

impl Inner {
    /// Raises the event, once, if the queue is below the limit.
    fn check_limit(&mut self) {
        if self.queue.len() < self.limit as usize {
            self.limit = 0;
            self.limit_reached = true;
        }
    }
}

impl SharedReceiveQueue {
    /// Creates a queue of at most `max_wr` requests.
    pub fn new(max_wr: u32) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            max_wr,
            queue: VecDeque::new(),
            limit: 0,
            limit_reached: false,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No operation panics halfway through a change, so the state is consistent even if the lock is poisoned.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a request.
    ///
    /// # Errors
    ///
    /// [`PostError::Full`].
    pub fn post(&self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        let mut inner = self.lock();
        if inner.queue.len() >= inner.max_wr as usize {
            return Err(PostError::Full(inner.max_wr));
        }
        inner.queue.push_back(RecvWqe::new(request));
        Ok(())
    }

    /// Returns the number of requests not yet taken.
    pub fn len(&self) -> usize {
        self.lock().queue.len()
    }

    /// Returns whether every request was taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Changes the capacity, unless more than `max_wr` requests are queued. Returns whether it did.
    pub fn resize(&self, max_wr: u32) -> bool {
        let mut inner = self.lock();
        let fits = inner.queue.len() <= max_wr as usize;
        if fits {
            inner.max_wr = max_wr;
        }
        fits
    }

    /// Arms the event of [`poll_limit_reached`](Self::poll_limit_reached). It is raised once, when fewer than `limit`
    /// requests are queued, or immediately if that is already so. 0 disarms it.
    pub fn arm_limit(&self, limit: u32) {
        let mut inner = self.lock();
        inner.limit = limit;
        inner.check_limit();
    }

    /// Returns the armed limit; 0 if disarmed or already raised.
    pub fn limit(&self) -> u32 {
        self.lock().limit
    }

    /// Returns whether the queue fell below the limit since the last call (`SRQ_LIMIT_REACHED`).
    pub fn poll_limit_reached(&self) -> bool {
        std::mem::take(&mut self.lock().limit_reached)
    }

    pub(crate) fn take(&self) -> Option<RecvWqe> {
        let mut inner = self.lock();
        let taken = inner.queue.pop_front();
        if taken.is_some() {
            inner.check_limit();
        }
        taken
    }

    pub(crate) fn put_back(&self, receive: RecvWqe) {
        // Allowed even if others were posted meanwhile and the queue is full: the request had its place when it was
        // posted.
        self.lock().queue.push_front(receive);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::WrId;

    fn post(queue: &SharedReceiveQueue, id: u64) -> Result<(), PostError> {
        queue.post(&RecvRequest {
            id: WrId(id),
            segments: &[],
        })
    }

    #[test]
    fn a_full_queue_refuses_and_an_empty_one_gives_nothing() {
        let queue = SharedReceiveQueue::new(2);
        assert!(queue.take().is_none());
        assert_eq!([1, 2].map(|id| post(&queue, id)), [Ok(()); 2]);
        assert_eq!(post(&queue, 3), Err(PostError::Full(2)));
        assert_eq!(queue.take().map(|receive| receive.id), Some(WrId(1)));
        assert_eq!(post(&queue, 3), Ok(()));
    }

    #[test]
    fn the_limit_event_is_raised_once_when_the_queue_falls_below_the_limit() {
        let queue = SharedReceiveQueue::new(8);
        (0..4).for_each(|id| post(&queue, id).unwrap());
        queue.arm_limit(3);
        queue.take();
        assert!(!queue.poll_limit_reached(), "three are not below three");
        assert_eq!(queue.limit(), 3);
        queue.take();
        assert_eq!(queue.limit(), 0, "no longer armed");
        assert!(queue.poll_limit_reached());
        queue.take();
        assert!(!queue.poll_limit_reached(), "only once");
    }

    #[test]
    fn arming_a_limit_above_the_queue_raises_the_event_and_zero_disarms() {
        let queue = SharedReceiveQueue::new(8);
        queue.arm_limit(1);
        assert!(queue.poll_limit_reached());
        post(&queue, 0).unwrap();
        queue.arm_limit(1);
        queue.arm_limit(0);
        queue.take();
        assert!(!queue.poll_limit_reached());
    }

    #[test]
    fn a_queue_is_resized_to_no_less_than_it_holds() {
        let queue = SharedReceiveQueue::new(4);
        (0..4).for_each(|id| post(&queue, id).unwrap());
        assert!(!queue.resize(3));
        assert_eq!(post(&queue, 4), Err(PostError::Full(4)), "as it was");
        assert!(queue.resize(5));
        let posted = [4, 5].map(|id| post(&queue, id));
        assert_eq!(posted, [Ok(()), Err(PostError::Full(5))]);
        while queue.len() > 2 {
            queue.take();
        }
        assert!(queue.resize(2));
        assert_eq!(post(&queue, 6), Err(PostError::Full(2)));
    }

    proptest! {
        /// Compares with a plain list and counter.
        #[test]
        fn requests_leave_in_order_and_the_event_follows_the_count(
            steps in proptest::collection::vec(0_u8..8, 0..200),
        ) {
            let queue = SharedReceiveQueue::new(5);
            let (mut model, mut limit, mut next) = (VecDeque::new(), 0, 0);
            for step in steps {
                let mut raised = false;
                match step {
                    0..=2 => {
                        let room = model.len() < 5;
                        prop_assert_eq!(post(&queue, next).is_ok(), room);
                        if room {
                            model.push_back(next);
                        }
                        next += 1;
                    }
                    3..=5 => {
                        let taken = queue.take().map(|receive| receive.id.0);
                        prop_assert_eq!(taken, model.pop_front());
                        raised = taken.is_some() && model.len() < limit;
                    }
                    _ => {
                        limit = usize::from(step - 5);
                        queue.arm_limit(limit as u32);
                        raised = model.len() < limit;
                    }
                }
                if raised {
                    limit = 0;
                }
                prop_assert_eq!(queue.poll_limit_reached(), raised);
                prop_assert_eq!(queue.limit() as usize, limit);
                prop_assert_eq!(queue.len(), model.len());
            }
        }
    }
}
