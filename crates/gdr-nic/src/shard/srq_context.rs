//! The engine's state of a shared receive queue.

use std::mem;
use std::sync::{Mutex, PoisonError};

use gdr_process::lock::lock;
use gdr_roce::{PostError, RecvRequest, SharedReceiveQueue, WrId};

use crate::outstanding::{Outstanding, OutstandingQueue};
use crate::retained::{self, RetainedList};
use crate::types::{Domain, SrqNumber};

/// A shared receive queue: the protocol's state, and its outstanding requests.
///
/// Requests are posted without the engine's lock. The lock of the requests is never held while waiting for another
/// lock, except that of the protocol's queue.
#[derive(Debug)]
pub(crate) struct SrqContext {
    number: SrqNumber,
    domain: Domain,
    roce: SharedReceiveQueue,
    requests: Mutex<Requests>,
}

/// Outstanding requests, and the number of the next one.
#[derive(Debug)]
struct Requests {
    queue: OutstandingQueue<RetainedList, ()>,
    next_number: u64,
}

impl SrqContext {
    /// Returns a queue whose requests are numbered from `first`.
    pub(crate) fn new(domain: Domain, max_wr: u32, first: u64) -> Self {
        Self {
            number: SrqNumber::new(),
            domain,
            roce: SharedReceiveQueue::new(max_wr),
            requests: Mutex::new(Requests {
                queue: OutstandingQueue::default(),
                next_number: first,
            }),
        }
    }

    pub(crate) fn number(&self) -> SrqNumber {
        self.number
    }

    /// Returns the protection domain of its requests.
    pub(crate) fn domain(&self) -> Domain {
        self.domain
    }

    pub(crate) fn roce(&self) -> &SharedReceiveQueue {
        &self.roce
    }

    /// Posts a request, which retains what `retained` returns; that is not called if the request is refused.
    pub(crate) fn post(
        &self,
        request: &RecvRequest<'_>,
        retained: impl FnOnce() -> RetainedList,
    ) -> Result<(), PostError> {
        // Held until the request is recorded, because it may complete immediately.
        let mut requests = lock(&self.requests);
        let number = requests.next_number;
        self.roce.post(&RecvRequest {
            id: WrId(number),
            ..*request
        })?;
        requests.queue.push(Outstanding {
            number,
            id: request.id,
            retained: retained(),
            detail: (),
        });
        requests.next_number += 1;
        Ok(())
    }

    /// Removes a completed request.
    pub(crate) fn complete(&self, number: u64) -> Option<Outstanding<RetainedList, ()>> {
        lock(&self.requests).queue.remove(number)
    }
}

impl Drop for SrqContext {
    fn drop(&mut self) {
        let requests = self.requests.get_mut();
        let requests = requests.unwrap_or_else(PoisonError::into_inner);
        let queue = mem::take(&mut requests.queue);
        retained::release(queue.into_requests().flat_map(|request| request.retained));
    }
}
