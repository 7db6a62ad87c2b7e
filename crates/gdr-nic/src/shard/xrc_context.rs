//! The engine's state of an XRC domain.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use gdr_process::lock;
use gdr_roce::{XrcDomain, XrcSrqn};

use super::cq_entries::CqProducer;
use super::srq_context::SrqContext;
use crate::error::{Error, Result};
use crate::types::Domain;

/// The most queues of a domain: their numbers occupy the upper bits of receive numbers.
const MOST: u32 = 1 << 16;
const SHIFT: u32 = 48;

/// An XRC domain: the protocol's state, and its queues.
#[derive(Debug, Default)]
pub(crate) struct XrcContext {
    roce: XrcDomain,
    queues: RwLock<BTreeMap<u32, Arc<XrcQueue>>>,
}

/// A shared receive queue of an XRC domain.
#[derive(Debug)]
pub(crate) struct XrcQueue {
    pub(crate) receives: Arc<SrqContext>,
    /// Its completion queue registrations, by the queue pair's shard.
    producers: Box<[CqProducer]>,
}

impl XrcQueue {
    /// Returns where receives taken by a queue pair of this shard complete.
    pub(crate) fn completions(&self, shard: usize) -> &CqProducer {
        &self.producers[shard]
    }
}

impl XrcContext {
    pub(crate) fn roce(&self) -> &XrcDomain {
        &self.roce
    }

    /// Returns the queue that a receive number belongs to.
    pub(crate) fn of_receive(&self, number: u64) -> Option<Arc<XrcQueue>> {
        let number = (number >> SHIFT) as u32;
        lock::read(&self.queues).get(&number).cloned()
    }

    /// Returns whether some queue belongs to this protection domain. A peer may name any queue, and thereby reach the
    /// regions of each.
    pub(crate) fn has(&self, domain: Domain) -> bool {
        let queues = lock::read(&self.queues);
        queues
            .values()
            .any(|queue| queue.receives.domain() == domain)
    }

    /// Calls a function for the receives of each queue.
    pub(crate) fn for_each(&self, mut act: impl FnMut(&SrqContext)) {
        let queues = lock::read(&self.queues);
        queues.values().for_each(|queue| act(&queue.receives));
    }
}

/// Keeps a queue in its domain until dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    number: u32,
    domain: Arc<XrcContext>,
    receives: Arc<SrqContext>,
}

impl Registration {
    /// Creates a queue under the lowest free number.
    pub(crate) fn new(
        xrc: &Arc<XrcContext>,
        domain: Domain,
        max_wr: u32,
        producers: Box<[CqProducer]>,
    ) -> Result<Self> {
        let mut queues = lock::write(&xrc.queues);
        let free = (1..MOST).find(|number| !queues.contains_key(number));
        let number = free.ok_or(Error::TooManyQueuePairs {
            most: MOST as usize,
        })?;
        let first = u64::from(number) << SHIFT;
        let receives = Arc::new(SrqContext::new(domain, max_wr, first));
        let queue = XrcQueue {
            receives: Arc::clone(&receives),
            producers,
        };
        queues.insert(number, Arc::new(queue));
        xrc.roce.insert(XrcSrqn::new(number), receives.roce());
        Ok(Self {
            number,
            domain: Arc::clone(xrc),
            receives,
        })
    }

    pub(crate) fn number(&self) -> XrcSrqn {
        XrcSrqn::new(self.number)
    }

    pub(crate) fn receives(&self) -> &Arc<SrqContext> {
        &self.receives
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.domain.roce.remove(self.number());
        // The producers are dropped only after the lock is released.
        let removed = lock::write(&self.domain.queues).remove(&self.number);
        drop(removed);
    }
}
