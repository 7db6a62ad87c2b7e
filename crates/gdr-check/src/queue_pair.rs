//! Queue pairs.

use std::collections::{HashMap, VecDeque};

use crate::completion_queue::CompletionQueue;
use crate::finding::StackId;
use crate::receive_queue::ReceiveQueue;
use crate::request::{Outstanding, Signal};
use crate::shadow::Object;

/// The state of a queue pair, with the values of `enum ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing can be posted.
    Reset,
    /// Receives can be posted.
    Init,
    /// The peer's messages are received.
    ReadyToReceive,
    /// Sends are processed.
    ReadyToSend,
    /// Sends are drained.
    SendQueueDrained,
    /// A send has failed.
    SendQueueError,
    /// Requests are flushed.
    Error,
}

impl State {
    /// Converts a value of `enum ibv_qp_state`.
    pub fn from_raw(value: u32) -> Option<Self> {
        Some(match value {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::ReadyToReceive,
            3 => Self::ReadyToSend,
            4 => Self::SendQueueDrained,
            5 => Self::SendQueueError,
            6 => Self::Error,
            _ => return None,
        })
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::ReadyToReceive => "RTR",
            Self::ReadyToSend => "RTS",
            Self::SendQueueDrained => "SQD",
            Self::SendQueueError => "SQE",
            Self::Error => "ERR",
        }
    }

    pub(crate) const fn takes_sends(self) -> bool {
        !matches!(self, Self::Reset | Self::Init | Self::ReadyToReceive)
    }

    /// Returns whether the device processes requests.
    pub(crate) const fn is_working(self) -> bool {
        matches!(
            self,
            Self::Init | Self::ReadyToReceive | Self::ReadyToSend | Self::SendQueueDrained
        )
    }
}

/// Whether a queue pair is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Connected; the device may retransmit requests.
    Connected,
    /// Connectionless; each datagram has its own destination, and is sent once.
    Datagram,
}

/// A queue pair that the program created.
#[derive(Clone, Copy, Debug)]
pub struct NewQueuePair {
    /// The device context, by its address.
    pub context: Object,
    /// The address of the queue pair's structure.
    pub object: Object,
    /// The queue pair number.
    pub number: u32,
    /// The kind of service.
    pub service: Service,
    /// The completion queue of its sends.
    pub send_cq: Object,
    /// The completion queue of its receives.
    pub receive_cq: Object,
    /// The shared receive queue, if it has one.
    pub srq: Option<Object>,
    /// The capacity of the send queue at creation.
    pub max_sends: u32,
    /// The capacity of its own receive queue.
    pub max_receives: u32,
    /// Whether requests are signaled by default.
    pub default_signal: Signal,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) new: NewQueuePair,
    pub(crate) state: State,
    /// The program itself moved it to ERR.
    pub(crate) failed_by_program: bool,
    /// The status of the first failed completion, and where the program polled it.
    pub(crate) failed: Option<(u32, StackId)>,
    pub(crate) sends: VecDeque<Outstanding>,
    /// Receives on its own receive queue.
    pub(crate) receives: ReceiveQueue,
    pub(crate) signaled: u32,
    /// Whether the transport may wait for an answer without limit.
    pub(crate) waits: Waits,
    /// The tick of the last completion, or of the last post to an empty queue.
    pub(crate) progress: u64,
}

/// Whether a queue pair ever gives up on an unresponsive peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waits {
    pub(crate) without_timeout: bool,
    pub(crate) for_receives: bool,
}

impl QueuePair {
    /// Accounts for the completion that a request will no longer produce.
    pub(crate) fn forget_signal(
        &mut self,
        request: &Outstanding,
        queues: &mut HashMap<Object, CompletionQueue>,
    ) {
        if request.signal == Signal::Signaled {
            self.signaled = self.signaled.saturating_sub(1);
            if let Some(queue) = queues.get_mut(&self.new.send_cq) {
                queue.unpolled_sends = queue.unpolled_sends.saturating_sub(1);
            }
        }
    }

    pub(crate) fn new(new: NewQueuePair) -> Self {
        Self {
            new,
            state: State::Reset,
            failed_by_program: false,
            failed: None,
            sends: VecDeque::new(),
            receives: ReceiveQueue::new(new.max_receives),
            signaled: 0,
            waits: Waits {
                without_timeout: false,
                for_receives: false,
            },
            progress: 0,
        }
    }

    /// Returns its name in findings.
    pub(crate) fn name(&self) -> String {
        format!("queue pair {}", self.new.number)
    }

    /// Returns the sends whose end a completion will show: up to the last signaled one.
    pub(crate) fn announced(&self) -> impl Iterator<Item = &Outstanding> {
        let last = self
            .sends
            .iter()
            .rposition(|it| it.signal == Signal::Signaled);
        self.sends.iter().take(last.map_or(0, |last| last + 1))
    }
}
