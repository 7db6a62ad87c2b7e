//! A queue pair in the engine, and what its requests hold on to.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use gdr_roce::{Capabilities, Completion, Pace, PostError, QueuePair, State, Time, WrId};
use smallvec::SmallVec;

use crate::mailbox::Mailbox;
use crate::region::{DomainId, Segment};
use crate::request::{Data, RecvRequest, SendRequest};

/// The least that a request counts where posts are held back, bytes: eight of them go together.
const SHORT: usize = 4096;

/// Pieces of one request.
pub(crate) type Segments = SmallVec<[Segment; 2]>;

/// A posted request: its name in the program, and the regions it needs.
pub(super) struct Held {
    number: u64,
    id: WrId,
    /// Kept, so that the regions outlive the request.
    _segments: Segments,
}

/// A queue pair with what the protocol does not know of it.
pub(super) struct Pair {
    pub(super) roce: QueuePair,
    pub(super) domain: DomainId,
    pub(super) peer: Option<SocketAddr>,
    /// It is connected, and its peer may be one that sets no UDP checksums.
    pub(super) unproved: bool,
    /// Whether it is on the engine's list of those with something to do.
    pub(super) listed: bool,
    /// What was posted since the engine last sent of it, bytes; short requests count as
    /// [`SHORT`].
    pub(super) held_back: usize,
    /// The deadline under which the engine has it in its timers.
    pub(super) timer: Option<Time>,
    send_completions: Arc<Mailbox<Completion>>,
    recv_completions: Arc<Mailbox<Completion>>,
    sends: VecDeque<Held>,
    receives: VecDeque<Held>,
    next: u64,
}

impl Pair {
    pub(super) fn new(
        roce: QueuePair,
        domain: DomainId,
        send_completions: Arc<Mailbox<Completion>>,
        recv_completions: Arc<Mailbox<Completion>>,
    ) -> Self {
        Self {
            roce,
            domain,
            peer: None,
            unproved: false,
            listed: false,
            held_back: 0,
            timer: None,
            send_completions,
            recv_completions,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            next: 0,
        }
    }

    pub(super) fn post_send(&mut self, request: SendRequest) -> Result<(), PostError> {
        let mut raw = SmallVec::<[gdr_roce::Segment; 2]>::new();
        let data = match &request.data {
            Data::Segments(segments) => {
                raw.extend(segments.iter().map(Segment::raw));
                gdr_roce::Data::Segments(&raw)
            }
            Data::Inline(bytes) => gdr_roce::Data::Inline(bytes),
        };
        // The protocol knows the request by a number of ours: names of the program's may repeat.
        self.roce.post_send(&gdr_roce::SendRequest {
            id: WrId(self.next),
            operation: request.operation,
            data,
            flags: request.flags,
        })?;
        let (segments, len) = match request.data {
            Data::Segments(segments) => {
                let len = raw.iter().map(|segment| segment.len as usize).sum();
                (segments, len)
            }
            Data::Inline(_) => (Segments::new(), 0),
        };
        self.held_back = self.held_back.saturating_add(SHORT.max(len));
        self.sends.push_back(Held {
            number: self.next,
            id: request.id,
            _segments: segments,
        });
        self.next += 1;
        Ok(())
    }

    pub(super) fn post_recv(&mut self, request: RecvRequest) -> Result<(), PostError> {
        let raw: SmallVec<[gdr_roce::Segment; 2]> =
            request.segments.iter().map(Segment::raw).collect();
        self.roce.post_recv(&gdr_roce::RecvRequest {
            id: WrId(self.next),
            segments: &raw,
        })?;
        self.receives.push_back(Held {
            number: self.next,
            id: request.id,
            _segments: request.segments,
        });
        self.next += 1;
        Ok(())
    }

    /// Hands completions to their queues; what their requests held goes to `retired`. Calls
    /// `overrun` with the queue that had no room.
    pub(super) fn complete(
        &mut self,
        retired: &mut Vec<Held>,
        overrun: &mut dyn FnMut(&Mailbox<Completion>),
    ) {
        let mut lost = false;
        while let Some(mut completion) = self.roce.poll_completion() {
            let (held, mailbox) = if completion.opcode.is_receive() {
                (&mut self.receives, &self.recv_completions)
            } else {
                (&mut self.sends, &self.send_completions)
            };
            let number = completion.id.0;
            // Requests of a queue end in order: those before it that were not signalled have, too.
            while held.front().is_some_and(|held| held.number <= number) {
                let Some(done) = held.pop_front() else { break };
                if done.number == number {
                    completion.id = done.id;
                }
                retired.push(done);
            }
            if !mailbox.push(completion) {
                overrun(mailbox);
                lost = true;
            }
        }
        if lost && self.roce.state() != State::Error {
            // As libibverbs has it: with completions lost, nothing about its requests is certain.
            self.roce.to_error();
            self.complete(retired, &mut |_| {});
        }
    }
}

/// A queue pair of the protocol whose window fits the receiver's kernel.
pub(super) fn protocol(
    qpn: gdr_roce::Qpn,
    capabilities: Capabilities,
    receive_buffer: usize,
) -> QueuePair {
    /// What a full packet takes of a socket's receive buffer, bookkeeping included, bytes.
    const PACKET: usize = 4608;
    // Both ends are taken to be alike. 128 is what Linux's rxe has; on one host more bring no more
    // throughput and push each other out of the CPU's cache.
    let window = (receive_buffer / 2 / PACKET).clamp(16, 128) as u32;
    let pace = Pace {
        window,
        read_packets: window / 2,
        ack_request_every: window / 4,
        ack_every: window / 4,
    };
    QueuePair::with_pace(qpn, capabilities, pace)
}
