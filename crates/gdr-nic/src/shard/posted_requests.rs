//! The requests of a queue pair that are posted and not yet complete.

use std::mem;

use gdr_roce::{Completion, Data, SendFlags, WrId};

use super::completion_counting::{CompletionCounter, CompletionCounting, CountedOperation};
use crate::outstanding::{Outstanding, OutstandingQueue};
use crate::retained::{RetainedList, append};
use crate::types::PayloadBytes;

/// The bytes that a request counts at least while requests are deferred: eight go together.
const SHORT: usize = 4096;

/// The requests of a queue pair that are posted and not yet complete. The protocol knows them by numbers,
/// which increase: the program's own identifiers may repeat.
#[derive(Debug, Default)]
pub(crate) struct PostedRequests {
    sends: OutstandingQueue<RetainedList, ()>,
    receives: OutstandingQueue<RetainedList, ()>,
    next_number: u64,
    /// The bytes that were posted since the engine last sent for the queue pair; a short request counts as
    /// [`SHORT`].
    pub(crate) deferred: usize,
    pub(crate) payload: PayloadBytes,
    /// The counters of its completions, if it has any.
    counting: Option<Box<CompletionCounting>>,
}

/// What had been posted at some moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    next_number: u64,
    payload: PayloadBytes,
    deferred: usize,
}

impl PostedRequests {
    /// The number by which the protocol is to know the next request.
    pub(crate) fn next(&self) -> WrId {
        WrId(self.next_number)
    }

    /// The flags with which the protocol gets a send of these flags: counters count each request.
    pub(crate) fn flags(&self, wanted: SendFlags) -> SendFlags {
        match self.counting {
            Some(_) => wanted | SendFlags::SIGNALLED,
            None => wanted,
        }
    }

    /// Records a request that was posted to the send queue; returns its bytes.
    pub(crate) fn add_send(&mut self, id: WrId, data: Data<'_>, flags: SendFlags) -> u64 {
        if let Some(counting) = &mut self.counting
            && !flags.contains(SendFlags::SIGNALLED)
        {
            counting.posted_silent(self.next_number);
        }
        let (len, deferred) = match data {
            Data::Segments(segments) => {
                let len = segments.iter().map(|segment| segment.len as usize).sum();
                (len, len)
            }
            // Inline data is short, and was copied already.
            Data::Inline(bytes) => (bytes.len(), 0),
        };
        self.deferred = self.deferred.saturating_add(SHORT.max(deferred));
        let request = self.request(id);
        self.sends.push(request);
        len as u64
    }

    /// Records a request that was posted to the receive queue.
    pub(crate) fn add_receive(&mut self, id: WrId) {
        let request = self.request(id);
        self.receives.push(request);
    }

    fn request(&mut self, id: WrId) -> Outstanding<RetainedList, ()> {
        let number = self.next_number;
        self.next_number += 1;
        Outstanding {
            number,
            id,
            retained: RetainedList::new(),
            detail: (),
        }
    }

    /// Lets the request that was posted last to the send queue retain these.
    pub(crate) fn retain_send(&mut self, retained: RetainedList) {
        self.sends.retain(retained);
    }

    /// Lets the request that was posted last to the receive queue retain these.
    pub(crate) fn retain_receive(&mut self, retained: RetainedList) {
        self.receives.retain(retained);
    }

    /// What has been posted so far.
    pub(crate) fn mark(&self) -> Mark {
        Mark {
            next_number: self.next_number,
            payload: self.payload,
            deferred: self.deferred,
        }
    }

    /// Takes back all sends that were posted since; no receive was. Returns how many they are.
    pub(crate) fn withdraw_sends(&mut self, since: Mark) -> usize {
        let count = (self.next_number - since.next_number) as usize;
        self.sends.withdraw(count);
        if let Some(counting) = &mut self.counting {
            counting.withdraw(since.next_number);
        }
        (self.next_number, self.payload) = (since.next_number, since.payload);
        self.deferred = since.deferred;
        count
    }

    /// Removes the sends that end with this completion, and gives it the program's identifier.
    pub(crate) fn complete_sends(&mut self, completion: &mut Completion, ended: &mut RetainedList) {
        for request in self.sends.complete(completion.id.0) {
            completion.id = request.id;
            append(ended, request.retained);
        }
    }

    /// Like [`PostedRequests::complete_sends`], for receives.
    pub(crate) fn complete_receives(
        &mut self,
        completion: &mut Completion,
        ended: &mut RetainedList,
    ) {
        for request in self.receives.complete(completion.id.0) {
            completion.id = request.id;
            append(ended, request.retained);
        }
    }

    /// Counts these operations by a counter, for a connection that has done this for its peer.
    pub(crate) fn count(
        &mut self,
        operations: &[CountedOperation],
        counter: &CompletionCounter,
        served: gdr_roce::Served,
    ) {
        let new = || Box::new(CompletionCounting::new(served));
        let counting = self.counting.get_or_insert_with(new);
        for operation in operations {
            counting.attach(*operation, counter);
        }
    }

    /// Lets every request complete, also those that are not signalled, and keeps the completions.
    pub(crate) fn watch_all(&mut self, served: gdr_roce::Served) {
        let new = || Box::new(CompletionCounting::new(served));
        self.counting.get_or_insert_with(new).divert();
    }

    /// Its counters, if it has any.
    pub(crate) fn counting(&mut self) -> Option<&mut CompletionCounting> {
        self.counting.as_deref_mut()
    }

    /// Forgets all requests; returns what they retained.
    pub(crate) fn reset(&mut self) -> RetainedList {
        if let Some(counting) = &mut self.counting {
            counting.reset();
        }
        self.deferred = 0;
        let sends = mem::take(&mut self.sends).into_requests();
        let requests = sends.chain(mem::take(&mut self.receives).into_requests());
        requests.flat_map(|request| request.retained).collect()
    }
}
