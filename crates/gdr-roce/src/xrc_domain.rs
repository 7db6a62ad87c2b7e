//! XRC domains: shared receive queues that peers' requests name.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::ids::XrcSrqn;
use crate::shared_receive_queue::SharedReceiveQueue;

/// The shared receive queues that requests on extended connections may name. Clones refer to the same domain.
///
/// The lock is held for one look-up, and never while waiting for another lock.
#[derive(Clone, Debug, Default)]
pub struct XrcDomain(Arc<RwLock<BTreeMap<XrcSrqn, SharedReceiveQueue>>>);

impl XrcDomain {
    /// Creates a domain without queues.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a queue under a number, replacing any previous one.
    pub fn insert(&self, number: XrcSrqn, queue: &SharedReceiveQueue) {
        // No operation panics halfway through a change, so the table is consistent even if the lock is poisoned.
        let mut queues = self.0.write().unwrap_or_else(PoisonError::into_inner);
        queues.insert(number, queue.clone());
    }

    /// Removes a queue. A message that has taken a receive from it continues.
    pub fn remove(&self, number: XrcSrqn) {
        let mut queues = self.0.write().unwrap_or_else(PoisonError::into_inner);
        queues.remove(&number);
    }

    /// Returns the queue with this number.
    pub(crate) fn get(&self, number: XrcSrqn) -> Option<SharedReceiveQueue> {
        let queues = self.0.read().unwrap_or_else(PoisonError::into_inner);
        queues.get(&number).cloned()
    }
}
