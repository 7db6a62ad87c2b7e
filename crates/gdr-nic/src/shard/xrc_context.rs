//! The engine's part of an XRC domain.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use gdr_process::lock;
use gdr_roce::{XrcDomain, XrcSrqn};

use super::cq_entries::CqProducer;
use super::srq_context::SrqContext;
use crate::error::{Error, Result};
use crate::types::Domain;

/// How many queues a domain has at most: their numbers are in the upper bits of the numbers of receives.
const MOST: u32 = 1 << 16;
const SHIFT: u32 = 48;

/// An XRC domain: the protocol's part, and its queues.
#[derive(Debug, Default)]
pub(crate) struct XrcContext {
    roce: XrcDomain,
    queues: RwLock<BTreeMap<u32, Arc<XrcQueue>>>,
}

/// A shared receive queue of an XRC domain.
#[derive(Debug)]
pub(crate) struct XrcQueue {
    pub(crate) receives: Arc<SrqContext>,
    /// Where its receives complete, by the shard of the queue pair.
    producers: Box<[CqProducer]>,
}

impl XrcQueue {
    /// Where a receive completes that a queue pair of this shard has taken.
    pub(crate) fn completions(&self, shard: usize) -> &CqProducer {
        &self.producers[shard]
    }
}

impl XrcContext {
    pub(crate) fn roce(&self) -> &XrcDomain {
        &self.roce
    }

    /// The queue of a receive with this number.
    pub(crate) fn of_receive(&self, number: u64) -> Option<Arc<XrcQueue>> {
        let number = (number >> SHIFT) as u32;
        lock::read(&self.queues).get(&number).cloned()
    }

    /// Returns whether a queue belongs to this protection domain. A peer may name any queue, and so reach the regions of each.
    pub(crate) fn has(&self, domain: Domain) -> bool {
        let queues = lock::read(&self.queues);
        queues
            .values()
            .any(|queue| queue.receives.domain() == domain)
    }

    /// Calls a function with the receives of each queue.
    pub(crate) fn for_each(&self, mut act: impl FnMut(&SrqContext)) {
        let queues = lock::read(&self.queues);
        queues.values().for_each(|queue| act(&queue.receives));
    }
}

/// Keeps a queue in its domain.
#[derive(Debug)]
pub(crate) struct Registration {
    number: u32,
    domain: Arc<XrcContext>,
    receives: Arc<SrqContext>,
}

impl Registration {
    /// Makes a queue under the lowest number that is free.
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
        // Its producers are dropped after the lock is released.
        let removed = lock::write(&self.domain.queues).remove(&self.number);
        drop(removed);
    }
}
