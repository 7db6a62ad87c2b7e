//! Shared receive queues that the peers of extended connections name (XRC domains).

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::ids::XrcSrqn;
use crate::shared_receive_queue::SharedReceiveQueue;

/// The shared receive queues that the requests of extended connections may name. A clone is the same domain.
///
/// Its lock is held for one look-up, and never while another one is waited for.
#[derive(Clone, Debug, Default)]
pub struct XrcDomain(Arc<RwLock<BTreeMap<XrcSrqn, SharedReceiveQueue>>>);

impl XrcDomain {
    /// Creates a domain without queues.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a queue under a number, instead of the one that had it.
    pub fn insert(&self, number: XrcSrqn, queue: &SharedReceiveQueue) {
        // No operation leaves the table in between two states.
        let mut queues = self.0.write().unwrap_or_else(PoisonError::into_inner);
        queues.insert(number, queue.clone());
    }

    /// Removes a queue. A message that has taken a receive from it goes on.
    pub fn remove(&self, number: XrcSrqn) {
        let mut queues = self.0.write().unwrap_or_else(PoisonError::into_inner);
        queues.remove(&number);
    }

    /// The queue with this number.
    pub(crate) fn get(&self, number: XrcSrqn) -> Option<SharedReceiveQueue> {
        let queues = self.0.read().unwrap_or_else(PoisonError::into_inner);
        queues.get(&number).cloned()
    }
}
