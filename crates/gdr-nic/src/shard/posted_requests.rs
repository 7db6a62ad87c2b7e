//! Outstanding requests of a queue pair.

use std::mem;

use gdr_roce::{Completion, Data, SendFlags, WrId};

use super::completion_counting::{CompletionCounter, CompletionCounting, CountedOperation};
use crate::outstanding::{Outstanding, OutstandingQueue};
use crate::retained::{RetainedList, RetainedQueue};
use crate::types::PayloadBytes;

/// The minimum charge in bytes for a deferred request, so that at most eight accumulate.
const SHORT: usize = 4096;

/// The outstanding requests of a queue pair. The protocol identifies them by increasing numbers, as the program's own
/// identifiers may repeat.
#[derive(Debug, Default)]
pub(crate) struct PostedRequests {
    sends: OutstandingQueue<(), ()>,
    receives: OutstandingQueue<(), ()>,
    retained_by_sends: RetainedQueue,
    retained_by_receives: RetainedQueue,
    next_number: u64,
    /// Bytes posted since the engine last sent for the queue pair; a short request counts as [`SHORT`].
    pub(crate) deferred: usize,
    pub(crate) payload: PayloadBytes,
    /// The counters of its completions, if it has any.
    counting: Option<Box<CompletionCounting>>,
}

/// The state of posting at some point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    next_number: u64,
    payload: PayloadBytes,
    deferred: usize,
}

impl PostedRequests {
    /// Returns the number by which the protocol will know the next request.
    pub(crate) fn next(&self) -> WrId {
        WrId(self.next_number)
    }

    /// Returns the flags to pass to the protocol for a send. With counters, every request must complete.
    pub(crate) fn flags(&self, wanted: SendFlags) -> SendFlags {
        match self.counting {
            Some(_) => wanted | SendFlags::SIGNALLED,
            None => wanted,
        }
    }

    /// Records a request posted to the send queue. Returns its length in bytes.
    #[inline]
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
            // Inline data is short, and already copied.
            Data::Inline(bytes) => (bytes.len(), 0),
        };
        self.deferred = self.deferred.saturating_add(SHORT.max(deferred));
        let request = self.request(id);
        self.sends.push(request);
        len as u64
    }

    /// Records a request posted to the receive queue.
    pub(crate) fn add_receive(&mut self, id: WrId) {
        let request = self.request(id);
        self.receives.push(request);
    }

    fn request(&mut self, id: WrId) -> Outstanding<(), ()> {
        let number = self.next_number;
        self.next_number += 1;
        Outstanding {
            number,
            id,
            retained: (),
            detail: (),
        }
    }

    /// Makes the request posted last to the send queue retain these.
    pub(crate) fn retain_send(&mut self, retained: RetainedList) {
        if let Some(last) = self.sends.last() {
            self.retained_by_sends.push(last, retained);
        }
    }

    /// Makes the request posted last to the receive queue retain these.
    pub(crate) fn retain_receive(&mut self, retained: RetainedList) {
        if let Some(last) = self.receives.last() {
            self.retained_by_receives.push(last, retained);
        }
    }

    /// Marks the current state of posting.
    pub(crate) fn mark(&self) -> Mark {
        Mark {
            next_number: self.next_number,
            payload: self.payload,
            deferred: self.deferred,
        }
    }

    /// Withdraws all sends posted since; no receive may have been. Returns their number.
    pub(crate) fn withdraw_sends(&mut self, since: Mark) -> usize {
        let count = (self.next_number - since.next_number) as usize;
        self.sends.withdraw(count);
        self.retained_by_sends.withdraw(since.next_number);
        if let Some(counting) = &mut self.counting {
            counting.withdraw(since.next_number);
        }
        (self.next_number, self.payload) = (since.next_number, since.payload);
        self.deferred = since.deferred;
        count
    }

    /// Removes the sends that end with this completion, and sets its identifier to the program's.
    pub(crate) fn complete_sends(&mut self, completion: &mut Completion, ended: &mut RetainedList) {
        self.retained_by_sends.complete(completion.id.0, ended);
        for request in self.sends.complete(completion.id.0) {
            completion.id = request.id;
        }
    }

    /// Like [`PostedRequests::complete_sends`], for receives.
    pub(crate) fn complete_receives(
        &mut self,
        completion: &mut Completion,
        ended: &mut RetainedList,
    ) {
        self.retained_by_receives.complete(completion.id.0, ended);
        for request in self.receives.complete(completion.id.0) {
            completion.id = request.id;
        }
    }

    /// Attaches a counter to these operations, for a connection that has already served this much.
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

    /// Makes every request complete, even unsignalled ones, and diverts the completions.
    pub(crate) fn watch_all(&mut self, served: gdr_roce::Served) {
        let new = || Box::new(CompletionCounting::new(served));
        self.counting.get_or_insert_with(new).divert();
    }

    /// Returns its counters, if it has any.
    pub(crate) fn counting(&mut self) -> Option<&mut CompletionCounting> {
        self.counting.as_deref_mut()
    }

    /// Forgets all requests. Returns what they retained.
    pub(crate) fn reset(&mut self) -> RetainedList {
        if let Some(counting) = &mut self.counting {
            counting.reset();
        }
        self.deferred = 0;
        (self.sends, self.receives) = Default::default();
        let sends = mem::take(&mut self.retained_by_sends).into_owners();
        let receives = mem::take(&mut self.retained_by_receives).into_owners();
        sends.chain(receives).collect()
    }
}
