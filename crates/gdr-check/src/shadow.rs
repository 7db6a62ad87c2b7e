//! The shadow of a program's objects, to which rules are applied.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::checksum::Checksum;
use crate::completion_queue::{Arming, CompletionQueue};
use crate::finding::{Finding, Findings, Place, StackId};
use crate::queue_pair::{NewQueuePair, QueuePair, Service, State, Waits};
use crate::receive_queue::ReceiveQueue;
use crate::region::{Key, NewRegion, Regions};
use crate::request::{
    Completion, FLUSHED, LOCAL_PROTECTION, Operation, Outstanding, REMOTE_ACCESS, SUCCESS, Segment,
    Signal,
};
use crate::rights::Rights;
use crate::rule::Rule;
use crate::writable::Writable;

/// An object of the program, identified by its address, which is never dereferenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Object(pub u64);

/// Access to the program's memory.
pub trait Memory {
    /// Adds a range to a checksum. Returns `None` unless all of it is mapped.
    fn sum(&self, sum: Checksum, address: u64, len: u32) -> Option<Checksum>;

    /// Returns whether all of a range is mapped.
    fn is_mapped(&self, address: u64, len: u32) -> bool;
}

/// How long a request may take, in ticks, before a missing limit is reported.
const TICKS_WITHOUT_PROGRESS: u64 = 5;

/// The shadow of a process's objects.
#[derive(Debug, Default)]
pub struct Shadow {
    pub(crate) regions: Regions,
    pub(crate) pairs: HashMap<Object, QueuePair>,
    /// Queue pairs by context and number.
    pub(crate) numbers: HashMap<(Object, u32), Object>,
    pub(crate) queues: HashMap<Object, CompletionQueue>,
    /// Receives on shared receive queues.
    pub(crate) shared: HashMap<Object, ReceiveQueue>,
    pub(crate) rights: Rights,
    pub(crate) writable: Writable,
    pub(crate) now: u64,
    /// The number of receives polled by the program.
    pub(crate) receives: u64,
    pub(crate) findings: Findings,
}

impl Shadow {
    /// Takes the findings since the last call.
    pub fn take_findings(&mut self) -> Vec<Finding> {
        self.findings.take()
    }

    /// Returns whether there are findings to take.
    pub fn has_findings(&self) -> bool {
        !self.findings.is_empty()
    }

    /// Records that a region was registered.
    pub fn registered(&mut self, region: NewRegion) {
        self.rights.registered(&region);
        self.regions.add(region);
    }

    /// Records that a region is about to be deregistered.
    pub fn deregistering(&mut self, region: Object, stack: StackId) {
        let Some(region) = self.regions.of(region) else {
            return;
        };
        let uses = |it: &Outstanding| {
            it.uses_memory() && it.segments.iter().any(|it| it.lkey == region.lkey)
        };
        let user = self
            .pairs
            .values()
            .filter(|pair| {
                pair.new.context == region.context
                    && pair.state.is_working()
                    && pair.failed.is_none()
            })
            .find_map(|pair| {
                let mut requests = pair.announced().chain(&pair.receives.receives);
                requests.find(|it| uses(it)).map(|it| (pair, it))
            });
        if let Some((pair, request)) = user {
            let detail = format!(
                "the region with lkey {:#x} was deregistered, and request {} of {} bytes that names it is \
                 outstanding",
                region.lkey,
                request.id,
                request.bytes()
            );
            let places = vec![place("deregistered", stack), place("posted", request.stack)];
            self.findings.report(
                (Rule::DeregisteredWhilePosted, Some(stack)),
                pair.name(),
                detail,
                places,
            );
        }
    }

    /// Records that a region was reregistered, with unknown properties.
    pub fn forget_region(&mut self, region: Object) {
        self.regions.forget(region);
    }

    /// Records that a region was deregistered.
    pub fn deregistered(&mut self, region: Object, stack: StackId) {
        self.regions.remove(region, stack);
    }

    /// Records that a completion queue was created with this capacity, or resized to it.
    pub fn queue_created(&mut self, queue: Object, size: u32) {
        let known = self.queues.entry(queue).or_insert(CompletionQueue {
            size,
            unpolled_sends: 0,
            unacknowledged: 0,
            last_event: StackId(0),
            arming: Arming::Polled,
            is_polled: false,
        });
        known.size = size;
    }

    /// Records that a completion queue is about to be destroyed.
    pub fn queue_destroying(&mut self, queue: Object, stack: StackId) {
        if let Some(known) = self.queues.get(&queue)
            && known.unacknowledged != 0
        {
            let detail = format!("{} events are unacknowledged", known.unacknowledged);
            let places = vec![
                place("destroyed", stack),
                place("event taken", known.last_event),
            ];
            let key = (Rule::EventsUnacknowledged, Some(stack));
            let name = "completion queue".to_owned();
            self.findings.report(key, name, detail, places);
        }
    }

    /// Records that a completion queue was destroyed.
    pub fn queue_destroyed(&mut self, queue: Object) {
        self.queues.remove(&queue);
    }

    /// Records that the program requested an event for the next completion.
    pub fn armed(&mut self, queue: Object, stack: StackId) {
        // Earlier requests may have ended before.
        let is_used = self.pairs.values().any(|pair| {
            (pair.new.send_cq == queue && pair.signaled != 0)
                || (pair.new.receive_cq == queue && self.has_receives(pair))
        });
        if let Some(known) = self.queues.get_mut(&queue) {
            known.arming = match known.is_polled && is_used {
                true => Arming::Unpolled(stack),
                false => Arming::Polled,
            };
        }
    }

    fn has_receives(&self, pair: &QueuePair) -> bool {
        match pair.new.srq {
            Some(srq) => {
                let shared = self.shared.get(&srq);
                shared.is_some_and(|it| !it.receives.is_empty())
            }
            None => !pair.receives.receives.is_empty(),
        }
    }

    /// Records that the program is about to wait for an event of one of these queues.
    pub fn waiting(&mut self, queues: &[Object], stack: StackId) {
        for queue in queues {
            let Some(Arming::Unpolled(armed)) = self.queues.get(queue).map(|it| it.arming) else {
                continue;
            };
            let detail = "completions that arrived between the last poll and ibv_req_notify_cq raise no event";
            let places = vec![place("waits", stack), place("requested the event", armed)];
            let key = (Rule::MissedEvent, Some(stack));
            let name = "completion queue".to_owned();
            self.findings.report(key, name, detail.to_owned(), places);
        }
    }

    /// Records that the program took an event.
    pub fn event_taken(&mut self, queue: Object, stack: StackId) {
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.unacknowledged = queue.unacknowledged.saturating_add(1);
            queue.last_event = stack;
        }
    }

    /// Records that the program acknowledged events.
    pub fn events_acknowledged(&mut self, queue: Object, count: u32) {
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.unacknowledged = queue.unacknowledged.saturating_sub(count);
        }
    }

    /// Records that the program polled, whether or not there was a completion.
    pub fn polled(&mut self, queue: Object) {
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.arming = Arming::Polled;
            queue.is_polled = true;
        }
    }

    /// Records that a shared receive queue was created with this capacity.
    pub fn shared_queue_created(&mut self, srq: Object, room: u32) {
        self.shared.insert(srq, ReceiveQueue::new(room));
    }

    /// Records that a shared receive queue was modified; its capacity may have changed.
    pub fn shared_queue_modified(&mut self, srq: Object) {
        self.count_is_uncertain(srq);
    }

    /// Records that receives of a queue may have ended unseen.
    fn count_is_uncertain(&mut self, srq: Object) {
        if let Some(shared) = self.shared.get_mut(&srq) {
            shared.room = None;
        }
    }

    /// Records that a receive of an unknown queue has ended.
    fn all_counts_are_uncertain(&mut self) {
        for shared in self.shared.values_mut() {
            shared.room = None;
        }
    }

    /// Records that a shared receive queue was destroyed.
    pub fn shared_queue_destroyed(&mut self, srq: Object) {
        if let Some(shared) = self.shared.remove(&srq) {
            self.forget_all(shared.receives);
        }
    }

    /// Records that a queue pair was created.
    pub fn pair_created(&mut self, new: NewQueuePair) {
        self.rights.permitted(new.context, 0);
        self.numbers.insert((new.context, new.number), new.object);
        self.pairs.insert(new.object, QueuePair::new(new));
    }

    /// Records that a queue pair was destroyed.
    pub fn pair_destroyed(&mut self, pair: Object) {
        self.forget_requests(pair);
        if let Some(pair) = self.pairs.remove(&pair) {
            self.numbers.remove(&(pair.new.context, pair.new.number));
        }
    }

    /// Returns whether a queue pair is known.
    pub fn knows(&self, pair: Object) -> bool {
        self.pairs.contains_key(&pair)
    }

    /// Records that the program changed the state of a queue pair.
    pub fn moved(&mut self, object: Object, state: State) {
        if state == State::Reset {
            self.forget_requests(object);
        }
        if let Some(pair) = self.pairs.get_mut(&object) {
            pair.state = state;
            match state {
                State::Error => pair.failed_by_program = true,
                State::Reset => (pair.failed_by_program, pair.failed) = (false, None),
                _ => {}
            }
        }
    }

    /// Records that the program set the access rights that a queue pair grants to its peer (`attr.qp_access_flags`).
    pub fn access_set(&mut self, pair: Object, rights: u32) {
        if let Some(pair) = self.pairs.get(&pair) {
            self.rights.permitted(pair.new.context, rights);
        }
    }

    /// Records that the program uses a queue pair that was not created through an observed function.
    pub fn unknown_pair_used(&mut self, context: Object) {
        self.rights.unknown_pair(context);
    }

    /// Records that the program set a queue pair's acknowledgement timeout (`attr.timeout`).
    pub fn timeout_set(&mut self, pair: Object, timeout: u8) {
        if let Some(pair) = self.pairs.get_mut(&pair) {
            pair.waits.without_timeout = timeout == 0;
        }
    }

    /// Records that the program set a queue pair's RNR retry count (`attr.rnr_retry`).
    pub fn rnr_retry_set(&mut self, pair: Object, rnr_retry: u8) {
        if let Some(pair) = self.pairs.get_mut(&pair) {
            pair.waits.for_receives = rnr_retry == 7;
        }
    }

    /// Forgets outstanding requests, which will not complete any more.
    fn forget_requests(&mut self, pair: Object) {
        let Some(pair) = self.pairs.get_mut(&pair) else {
            return;
        };
        let (sends, receives) = (
            std::mem::take(&mut pair.sends),
            std::mem::take(&mut pair.receives.receives),
        );
        let signaled = std::mem::take(&mut pair.signaled);
        let (queue, srq) = (pair.new.send_cq, pair.new.srq);
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.unpolled_sends = queue.unpolled_sends.saturating_sub(signaled);
        }
        // Completions that were not polled are gone, and it is unknown which receives they belonged to.
        if let Some(srq) = srq {
            self.count_is_uncertain(srq);
        }
        self.forget_all(sends.into_iter().chain(receives));
    }

    fn forget_all(&mut self, requests: impl IntoIterator<Item = Outstanding>) {
        for request in requests {
            forget_writable(&mut self.writable, &request);
        }
    }

    /// Records a completion that the program polled. `stack` is called only if it becomes part of a finding.
    pub fn completed(
        &mut self,
        (context, queue): (Object, Object),
        completion: &Completion,
        memory: &impl Memory,
        stack: impl Fn() -> StackId,
    ) {
        let Some(object) = self.numbers.get(&(context, completion.qpn)).copied() else {
            return self.all_counts_are_uncertain();
        };
        let Some(pair) = self.pairs.get_mut(&object) else {
            return;
        };
        let is_error = completion.status != SUCCESS;
        let is_receive = completion.is_receive.unwrap_or_else(|| {
            let is_send = pair.sends.iter().any(|it| it.id == completion.id);
            // A queue for receives only, or a number that no send has.
            (pair.new.send_cq != queue) || (pair.new.receive_cq == queue && !is_send)
        });
        if is_error && completion.status != FLUSHED && pair.failed.is_none() {
            pair.failed = Some((completion.status, stack()));
        }
        if is_error && pair.failed.is_none() && !pair.failed_by_program {
            pair.failed = Some((completion.status, stack()));
        }
        pair.progress = self.now;
        self.receives += u64::from(is_receive);
        if is_error {
            // The queue of the request is only a guess.
            pair.receives.room = None;
            if let Some(srq) = pair.new.srq {
                self.count_is_uncertain(srq);
            }
        }
        match is_receive {
            true => self.receive_completed(object, completion, memory, stack),
            false => self.send_completed(object, completion, memory, stack),
        }
    }

    fn send_completed(
        &mut self,
        object: Object,
        completion: &Completion,
        memory: &impl Memory,
        stack: impl Fn() -> StackId,
    ) {
        let Some(pair) = self.pairs.get_mut(&object) else {
            return;
        };
        let is_error = completion.status != SUCCESS;
        let ended = pair
            .sends
            .iter()
            .position(|it| it.id == completion.id && (is_error || it.signal == Signal::Signaled));
        let Some(ended) = ended else {
            return;
        };
        for at in 0..=ended {
            let Some(request) = pair.sends.pop_front() else {
                return;
            };
            pair.forget_signal(&request, &mut self.queues);
            forget_writable(&mut self.writable, &request);
            let findings = &mut self.findings;
            if is_error && at == ended {
                Self::explain(&self.regions, findings, pair, &request, completion, &stack);
                continue;
            }
            match request.operation {
                Operation::Gathers => {
                    let Some(before) = request.sum else {
                        continue;
                    };
                    let mut sum = Some(Checksum::new());
                    for segment in &request.segments {
                        sum = sum.and_then(|sum| memory.sum(sum, segment.address, segment.len));
                    }
                    let writable = &self.writable;
                    let may_be_received =
                        |it: &Segment| writable.may_have_written(it.address, it.len.into());
                    let (rule, what) = match sum {
                        Some(after) if after == before => continue,
                        // The change may be a reply received into the request's buffer rather than a write by the
                        // program.
                        Some(_) if request.segments.iter().any(may_be_received) => continue,
                        // A datagram is sent once, and another message may have acknowledged it.
                        Some(_)
                            if pair.new.service == Service::Datagram
                                && request.receives_before != self.receives =>
                        {
                            continue;
                        }
                        Some(_) => (Rule::SendBufferChanged, "have changed since it was posted"),
                        None => (Rule::BufferUnmapped, "are no longer mapped"),
                    };
                    Self::report_memory(findings, pair, &request, (rule, what), &stack);
                }
                Operation::Scatters => {
                    let is_mapped = |it: &Segment| memory.is_mapped(it.address, it.len);
                    if !request.segments.iter().all(is_mapped) {
                        let what = (Rule::BufferUnmapped, "are no longer mapped");
                        Self::report_memory(findings, pair, &request, what, &stack);
                    }
                }
                Operation::Inline | Operation::Other => {}
            }
        }
    }

    fn report_memory(
        findings: &mut Findings,
        pair: &QueuePair,
        request: &Outstanding,
        (rule, what): (Rule, &str),
        stack: &impl Fn() -> StackId,
    ) {
        let first = request.segments.first().map_or(0, |it| it.address);
        let detail = format!(
            "the {} bytes at {first:#x} of request {} {what}",
            request.bytes(),
            request.id
        );
        let places = vec![place("posted", request.stack), place("polled", stack())];
        findings.report((rule, Some(request.stack)), pair.name(), detail, places);
    }

    /// Reports which key a device has refused.
    fn explain(
        regions: &Regions,
        findings: &mut Findings,
        pair: &QueuePair,
        request: &Outstanding,
        completion: &Completion,
        stack: &impl Fn() -> StackId,
    ) {
        let (rule, detail) = match completion.status {
            LOCAL_PROTECTION => {
                let keys = request.segments.iter();
                let unknown = keys
                    .filter(|it| matches!(regions.key(pair.new.context, it.lkey), Key::Unknown))
                    .map(|it| {
                        format!(
                            ": lkey {:#x} does not belong to a region of this device",
                            it.lkey
                        )
                    })
                    .next()
                    .unwrap_or_default();
                let detail = format!(
                    "request {} ended with IBV_WC_LOC_PROT_ERR{unknown}",
                    request.id
                );
                (Rule::LocalProtection, detail)
            }
            REMOTE_ACCESS => {
                let detail = format!("request {} ended with IBV_WC_REM_ACCESS_ERR", request.id);
                (Rule::RemoteAccess, detail)
            }
            _ => return,
        };
        let places = vec![place("posted", request.stack), place("polled", stack())];
        findings.report((rule, Some(request.stack)), pair.name(), detail, places);
    }

    fn receive_completed(
        &mut self,
        object: Object,
        completion: &Completion,
        memory: &impl Memory,
        stack: impl Fn() -> StackId,
    ) {
        let Some(pair) = self.pairs.get_mut(&object) else {
            return;
        };
        let queue = match pair.new.srq {
            Some(srq) => self.shared.get_mut(&srq),
            None => Some(&mut pair.receives),
        };
        let Some(ReceiveQueue { receives, .. }) = queue else {
            return;
        };
        let Some(at) = receives.iter().position(|it| it.id == completion.id) else {
            return self.all_counts_are_uncertain();
        };
        let Some(request) = receives.remove(at) else {
            return;
        };
        forget_writable(&mut self.writable, &request);
        let Some(pair) = self.pairs.get(&object) else {
            return;
        };
        let findings = &mut self.findings;
        if completion.status != SUCCESS {
            Self::explain(&self.regions, findings, pair, &request, completion, &stack);
            return;
        }
        let is_mapped = |it: &Segment| memory.is_mapped(it.address, it.len);
        if !request.segments.iter().all(is_mapped) {
            let what = (Rule::BufferUnmapped, "are no longer mapped");
            Self::report_memory(findings, pair, &request, what, &stack);
        }
    }

    /// Records that a forked child used its parent's queue pair.
    pub fn used_after_fork(&mut self, number: u32, stack: StackId) {
        let places = vec![place("called", stack)];
        let name = format!("queue pair {number}");
        let detail = "the device was opened before fork".to_owned();
        let key = (Rule::AfterFork, Some(stack));
        self.findings.report(key, name, detail, places);
    }

    /// Records that a tick, about a second, has passed.
    pub fn tick(&mut self) {
        self.now += 1;
        for pair in self.pairs.values() {
            let Waits {
                without_timeout,
                for_receives,
            } = pair.waits;
            if !(without_timeout || for_receives)
                || !pair.state.is_working()
                || self.now - pair.progress < TICKS_WITHOUT_PROGRESS
            {
                continue;
            }
            let Some(request) = pair.announced().next() else {
                continue;
            };
            let detail = match (without_timeout, for_receives) {
                (true, true) => "timeout is 0, and rnr_retry is 7",
                (true, false) => "timeout is 0",
                _ => "rnr_retry is 7",
            };
            let key = (Rule::WaitsForever, Some(request.stack));
            let places = vec![place("posted", request.stack)];
            let detail = detail.to_owned();
            self.findings.report(key, pair.name(), detail, places);
        }
    }

    /// Records that a context was closed, with everything that belonged to it.
    pub fn closed(&mut self, context: Object) {
        self.regions.close(context);
    }

    /// Records that the program ends.
    pub fn ending(&mut self) {
        for pair in self.pairs.values() {
            let count = pair.signaled;
            if let Some(request) = pair.announced().next() {
                let detail = format!("{count} signaled requests");
                let key = (Rule::CompletionsUnpolled, Some(request.stack));
                let places = vec![place("posted", request.stack)];
                self.findings.report(key, pair.name(), detail, places);
            }
        }
        for (stack, names) in self.rights.unused() {
            let key = (Rule::RightsUnused, Some(stack));
            let places = vec![place("registered", stack)];
            let name = "memory regions".to_owned();
            self.findings
                .report(key, name, format!("nothing can use {names}"), places);
        }
        let counts = [
            ("queue pairs", self.pairs.len()),
            ("completion queues", self.queues.len()),
            ("shared receive queues", self.shared.len()),
            ("memory regions", self.regions.len()),
        ];
        let left: Vec<_> = counts
            .iter()
            .filter(|(_, count)| *count != 0)
            .map(|(what, count)| format!("{count} {what}"))
            .collect();
        if !left.is_empty() {
            let key = (Rule::Leaked, None);
            let name = "process".to_owned();
            self.findings.report(key, name, left.join(", "), Vec::new());
        }
    }
}

pub(crate) fn place(what: &'static str, stack: StackId) -> Place {
    Place { what, stack }
}

/// Forgets the memory that a request allows the device to write.
pub(crate) fn forget_writable(writable: &mut Writable, request: &Outstanding) {
    if request.operation == Operation::Scatters {
        for segment in &request.segments {
            writable.remove(segment.address, segment.len.into());
        }
    }
}
