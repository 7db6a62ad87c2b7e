//! The engine's part of a shared receive queue.

use std::mem;
use std::sync::{Mutex, PoisonError};

use gdr_roce::{PostError, SharedReceiveQueue, WrId};

use super::transport::RawSegments;
use crate::lock::lock;
use crate::memory_region::Segment;
use crate::outstanding::{self, Outstanding, OutstandingQueue, Segments};
use crate::types::{DomainId, SrqNumber};
use crate::work_request::RecvRequest;

/// A shared receive queue: the protocol's part and its outstanding requests.
///
/// Requests are posted without the engine's lock. The lock of the requests is never held while
/// another one is waited for, except for that of the protocol's queue.
#[derive(Debug)]
pub(super) struct SrqContext {
    number: SrqNumber,
    domain: DomainId,
    roce: SharedReceiveQueue,
    requests: Mutex<Requests>,
}

/// The outstanding requests, and the number of the next one.
#[derive(Debug, Default)]
struct Requests {
    queue: OutstandingQueue<()>,
    next_number: u64,
}

impl SrqContext {
    pub(super) fn new(domain: DomainId, max_wr: u32) -> Self {
        Self {
            number: SrqNumber::new(),
            domain,
            roce: SharedReceiveQueue::new(max_wr),
            requests: Mutex::default(),
        }
    }

    pub(super) fn number(&self) -> SrqNumber {
        self.number
    }

    /// The protection domain whose regions its requests name.
    pub(super) fn domain(&self) -> DomainId {
        self.domain
    }

    pub(super) fn roce(&self) -> &SharedReceiveQueue {
        &self.roce
    }

    /// Posts a request whose segments the caller keeps registered.
    pub(super) fn post_raw(&self, request: &gdr_roce::RecvRequest<'_>) -> Result<(), PostError> {
        self.post_with(request, Segments::new)
    }

    /// Posts a request, and takes its segments out of it. A refused request stays whole.
    pub(super) fn post(&self, request: &mut RecvRequest) -> Result<(), PostError> {
        let raw: RawSegments = request.segments.iter().map(Segment::raw).collect();
        let raw = gdr_roce::RecvRequest {
            id: request.id,
            segments: &raw,
        };
        self.post_with(&raw, || mem::take(&mut request.segments))
    }

    /// Posts a request, which keeps what `segments` returns registered.
    fn post_with(
        &self,
        request: &gdr_roce::RecvRequest<'_>,
        segments: impl FnOnce() -> Segments,
    ) -> Result<(), PostError> {
        // Held until the request is recorded: it may complete at once.
        let mut requests = lock(&self.requests);
        let number = requests.next_number;
        self.roce.post(&gdr_roce::RecvRequest {
            id: WrId(number),
            ..*request
        })?;
        requests.queue.push(Outstanding {
            number,
            id: request.id,
            segments: segments(),
            detail: (),
        });
        requests.next_number += 1;
        Ok(())
    }

    /// Removes the request that has completed.
    pub(super) fn complete(&self, number: u64) -> Option<Outstanding<()>> {
        lock(&self.requests).queue.remove(number)
    }
}

impl Drop for SrqContext {
    fn drop(&mut self) {
        let requests = self.requests.get_mut();
        let requests = requests.unwrap_or_else(PoisonError::into_inner);
        let queue = mem::take(&mut requests.queue);
        outstanding::release(queue.into_requests().flat_map(|request| request.segments));
    }
}
