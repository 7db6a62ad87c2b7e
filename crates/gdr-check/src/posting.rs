//! Posts: applying rules to requests before the device gets them.

use crate::checksum::Checksum;
use crate::completion_queue::Arming;
use crate::finding::{Findings, Place, StackId};
use crate::queue_pair::{QueuePair, State};
use crate::receive_queue::ReceiveQueue;
use crate::region::{Key, Regions};
use crate::request::{Operation, Outstanding, Receive, Segment, Segments, Send, Signal};
use crate::rights::Rights;
use crate::rule::Rule;
use crate::shadow::{Memory, Object, Shadow, forget_writable, place};
use crate::writable::{Overlap, Writable};

impl Shadow {
    /// Records that sends are about to be posted.
    pub fn sending(&mut self, object: Object, send: &Send<'_>, memory: &impl Memory) {
        let Some(pair) = self.pairs.get_mut(&object) else {
            return;
        };
        let stack = send.stack;
        if !pair.state.takes_sends() {
            let detail = format!("a send is posted in {}", pair.state.name());
            let key = (Rule::PostNotReady, Some(stack));
            let places = vec![place("posted", stack)];
            self.findings.report(key, pair.name(), detail, places);
        } else if let Some((status, failed)) = pair.failed
            && !pair.failed_by_program
        {
            let detail = format!("a completion with status {status} was polled before");
            let places = vec![place("posted", stack), place("polled the error", failed)];
            let key = (Rule::PostInError, Some(stack));
            self.findings.report(key, pair.name(), detail, places);
        } else if pair.signaled == 0
            && pair.sends.len() >= pair.new.max_sends as usize
            && pair.new.max_sends != 0
        {
            let detail = format!(
                "{} requests are outstanding, all unsignaled, but the queue has room for only {}",
                pair.sends.len() + 1,
                pair.new.max_sends
            );
            let key = (Rule::UnsignaledOverflow, Some(stack));
            let places = vec![place("posted", stack)];
            self.findings.report(key, pair.name(), detail, places);
            // Bounds the shadow for a program that never signals.
            if let Some(oldest) = pair.sends.pop_front() {
                forget_writable(&mut self.writable, &oldest);
            }
        }
        let signal = pair.new.default_signal.or(send.signal);
        if pair.sends.is_empty() {
            pair.progress = self.now;
        }
        let context = pair.new.context;
        let checked = Self::check_segments(
            (&self.regions, &mut self.rights),
            &mut self.findings,
            (context, pair),
            (send.operation, send.segments),
            stack,
            memory,
        );
        let request = Outstanding {
            id: send.id,
            operation: send.operation,
            signal,
            segments: checked.segments,
            sum: checked.sum,
            receives_before: self.receives,
            stack,
        };
        if signal == Signal::Signaled {
            pair.signaled += 1;
            if let Some(queue) = self.queues.get_mut(&pair.new.send_cq) {
                queue.unpolled_sends += 1;
                // Its completion will raise the event.
                queue.arming = Arming::Polled;
                if queue.unpolled_sends > queue.size {
                    let detail = format!(
                        "{} signaled requests are outstanding, and the completion queue has room for {}",
                        queue.unpolled_sends, queue.size
                    );
                    let key = (Rule::CqOverrun, Some(stack));
                    let places = vec![place("posted", stack)];
                    self.findings.report(key, pair.name(), detail, places);
                }
            }
        }
        let name = |pair: &QueuePair| pair.name();
        if send.operation == Operation::Scatters {
            Self::add_writable(
                &mut self.writable,
                &mut self.findings,
                || name(pair),
                &request,
            );
        }
        pair.sends.push_back(request);
    }

    /// Records that the library accepted sends of a queue pair.
    pub fn sends_accepted(&mut self, object: Object) {
        let Some(pair) = self.pairs.get(&object) else {
            return;
        };
        let (outstanding, most) = (pair.sends.len(), pair.new.max_sends as usize);
        if let Some(last) = pair.sends.back()
            && outstanding > most
            && most != 0
        {
            let detail = format!(
                "{outstanding} requests are outstanding, but the queue has room for {most}"
            );
            let key = (Rule::SendQueueOverflow, Some(last.stack));
            let places = vec![place("posted", last.stack)];
            self.findings.report(key, pair.name(), detail, places);
        }
    }

    /// Records that the library refused the last sends of a queue pair.
    pub fn sends_refused(&mut self, object: Object, count: usize) {
        let Some(pair) = self.pairs.get_mut(&object) else {
            return;
        };
        for _ in 0..count {
            let Some(request) = pair.sends.pop_back() else {
                return;
            };
            pair.forget_signal(&request, &mut self.queues);
            forget_writable(&mut self.writable, &request);
        }
    }

    /// Checks the memory of a request.
    fn check_segments(
        (regions, rights): (&Regions, &mut Rights),
        findings: &mut Findings,
        (context, pair): (Object, &QueuePair),
        (operation, segments): (Operation, &[Segment]),
        stack: StackId,
        memory: &impl Memory,
    ) -> Checked {
        let mut checked = Checked::default();
        if !matches!(operation, Operation::Gathers | Operation::Scatters) {
            return checked;
        }
        let mut sum = (operation == Operation::Gathers).then(Checksum::new);
        for segment in segments.iter().filter(|it| it.len != 0) {
            let mut report = |rule, detail, mut places: Vec<Place>| {
                places.insert(0, place("posted", stack));
                findings.report((rule, Some(stack)), pair.name(), detail, places);
            };
            let mut offset = None;
            match regions.key(context, segment.lkey) {
                Key::Registered(region) if !region.holds(segment) => report(
                    Rule::OutsideRegion,
                    format!(
                        "{} bytes at {:#x} are not inside of the region with lkey {:#x}, which has {} bytes \
                         from {:#x}",
                        segment.len, segment.address, segment.lkey, region.len, region.first
                    ),
                    Vec::new(),
                ),
                Key::Registered(region) => {
                    if operation == Operation::Scatters {
                        rights.written(region);
                        if !region.may_be_written() {
                            let detail = format!(
                                "the region with lkey {:#x} was registered with access {:#x}",
                                segment.lkey, region.access
                            );
                            report(Rule::NotWritable, detail, Vec::new());
                        }
                    }
                    offset = region.offset;
                }
                Key::Deregistered(at) => report(
                    Rule::KeyAfterDeregistration,
                    format!("lkey {:#x} was deregistered", segment.lkey),
                    vec![place("deregistered", at)],
                ),
                Key::Unknown => {}
            }
            let Some(offset) = offset else {
                sum = None;
                // Memory that the CPU cannot address is kept for its key only.
                checked.segments.push(Segment { len: 0, ..*segment });
                continue;
            };
            let segment = Segment {
                address: segment.address.wrapping_add(offset),
                ..*segment
            };
            sum = sum.and_then(|sum| memory.sum(sum, segment.address, segment.len));
            checked.segments.push(segment);
        }
        checked.sum = sum;
        checked
    }

    fn add_writable(
        writable: &mut Writable,
        findings: &mut Findings,
        name: impl Fn() -> String,
        request: &Outstanding,
    ) {
        let stack = request.stack;
        for segment in &request.segments {
            match writable.add(segment.address, segment.len.into(), stack) {
                None => {}
                Some(Overlap::Same(other)) => {
                    if findings.is_known(Rule::SameBuffer, stack) {
                        continue;
                    }
                    let detail = format!("{} bytes at {:#x}", segment.len, segment.address);
                    let places = vec![place("posted", stack), place("posted before", other)];
                    findings.report((Rule::SameBuffer, Some(stack)), name(), detail, places);
                }
                Some(Overlap::Partial {
                    first,
                    end,
                    stack: other,
                }) => {
                    let detail = format!(
                        "{} bytes at {:#x} overlap with {} bytes at {first:#x}",
                        segment.len,
                        segment.address,
                        end - first
                    );
                    let places = vec![place("posted", stack), place("posted before", other)];
                    findings.report((Rule::ReceivesOverlap, Some(stack)), name(), detail, places);
                }
            }
        }
    }

    /// Records that a receive is about to be posted to a queue pair.
    pub fn receiving(&mut self, object: Object, receive: &Receive<'_>, memory: &impl Memory) {
        let Some(pair) = self.pairs.get_mut(&object) else {
            return;
        };
        if pair.state == State::Reset {
            let detail = "a receive is posted in RESET".to_owned();
            let key = (Rule::PostNotReady, Some(receive.stack));
            let places = vec![place("posted", receive.stack)];
            self.findings.report(key, pair.name(), detail, places);
        }
        let request = Self::receive(
            (&self.regions, &mut self.rights),
            &mut self.findings,
            &mut self.writable,
            pair,
            receive,
            memory,
        );
        pair.receives.receives.push_back(request);
    }

    /// Records that a receive is about to be posted to a shared receive queue.
    pub fn receiving_shared(&mut self, srq: Object, receive: &Receive<'_>, memory: &impl Memory) {
        let pair = self.pairs.values().find(|it| it.new.srq == Some(srq));
        let Some(shared) = self.shared.get_mut(&srq) else {
            return;
        };
        let request = match pair {
            Some(pair) => Self::receive(
                (&self.regions, &mut self.rights),
                &mut self.findings,
                &mut self.writable,
                pair,
                receive,
                memory,
            ),
            // The keys belong to a context that is not known yet.
            None => {
                let keys = receive.segments.iter();
                for region in keys.flat_map(|it| self.regions.with_key(it.lkey)) {
                    self.rights.written(region);
                }
                Outstanding {
                    id: receive.id,
                    operation: Operation::Other,
                    signal: Signal::Signaled,
                    segments: Segments::new(),
                    sum: None,
                    receives_before: 0,
                    stack: receive.stack,
                }
            }
        };
        shared.receives.push_back(request);
    }

    fn receive(
        regions: (&Regions, &mut Rights),
        findings: &mut Findings,
        writable: &mut Writable,
        pair: &QueuePair,
        receive: &Receive<'_>,
        memory: &impl Memory,
    ) -> Outstanding {
        let checked = Self::check_segments(
            regions,
            findings,
            (pair.new.context, pair),
            (Operation::Scatters, receive.segments),
            receive.stack,
            memory,
        );
        let request = Outstanding {
            id: receive.id,
            operation: Operation::Scatters,
            signal: Signal::Signaled,
            segments: checked.segments,
            sum: None,
            receives_before: 0,
            stack: receive.stack,
        };
        Self::add_writable(writable, findings, || pair.name(), &request);
        request
    }

    /// Records that the library accepted receives of a queue pair, except for the last `refused`.
    pub fn receives_posted(&mut self, object: Object, refused: usize) {
        let Some(pair) = self.pairs.get_mut(&object) else {
            return;
        };
        Self::refuse(&mut pair.receives, &mut self.writable, refused);
        if let Some((last, detail)) = pair.receives.overflow() {
            let key = (Rule::ReceiveQueueOverflow, Some(last.stack));
            let places = vec![place("posted", last.stack)];
            self.findings.report(key, pair.name(), detail, places);
        }
    }

    /// Records that the library accepted receives of a shared receive queue, except for the last `refused`.
    pub fn shared_receives_posted(&mut self, srq: Object, refused: usize) {
        let Some(shared) = self.shared.get_mut(&srq) else {
            return;
        };
        Self::refuse(shared, &mut self.writable, refused);
        if let Some((last, detail)) = shared.overflow() {
            let key = (Rule::ReceiveQueueOverflow, Some(last.stack));
            let places = vec![place("posted", last.stack)];
            let name = "shared receive queue".to_owned();
            self.findings.report(key, name, detail, places);
        }
    }

    fn refuse(queue: &mut ReceiveQueue, writable: &mut Writable, count: usize) {
        if count != 0 {
            // The program may legitimately post until it is refused.
            queue.room = None;
        }
        for _ in 0..count {
            if let Some(request) = queue.receives.pop_back() {
                forget_writable(writable, &request);
            }
        }
    }
}

/// The checked memory of a request.
#[derive(Default)]
struct Checked {
    segments: Segments,
    sum: Option<Checksum>,
}

impl Signal {
    /// Returns `Signaled` if either is.
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unsignaled, Self::Unsignaled) => Self::Unsignaled,
            _ => Self::Signaled,
        }
    }
}
