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
    /// Receives are processed.
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
    /// The state of a value.
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

/// Whether a queue pair has a peer that its requests go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// It is connected, and the device may send a request again.
    Connected,
    /// Each datagram has an address of its own, and is sent once.
    Datagram,
}

/// A queue pair that the program created.
#[derive(Clone, Copy, Debug)]
pub struct NewQueuePair {
    /// The device context, by its address.
    pub context: Object,
    /// The address of the structure.
    pub object: Object,
    /// Its number.
    pub number: u32,
    /// Its kind.
    pub service: Service,
    /// The queue of its sends' completions.
    pub send_cq: Object,
    /// The queue of its receives' completions.
    pub receive_cq: Object,
    /// The shared receive queue, if it has one.
    pub srq: Option<Object>,
    /// The most requests that its send queue holds, as it was created.
    pub max_sends: u32,
    /// The most receives that its own receive queue holds.
    pub max_receives: u32,
    /// Whether requests are signaled that do not say so.
    pub default_signal: Signal,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) new: NewQueuePair,
    pub(crate) state: State,
    /// The program itself moved it to the error state.
    pub(crate) failed_by_program: bool,
    /// The first completion with an error, which the program polled there.
    pub(crate) failed: Option<(u32, StackId)>,
    pub(crate) sends: VecDeque<Outstanding>,
    /// The receives of its own receive queue.
    pub(crate) receives: ReceiveQueue,
    pub(crate) signaled: u32,
    /// The transport waits for an answer without end.
    pub(crate) waits: Waits,
    /// The tick of the last post to an empty queue or completion.
    pub(crate) progress: u64,
}

/// Whether a queue pair gives up on a peer that does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waits {
    pub(crate) without_timeout: bool,
    pub(crate) for_receives: bool,
}

impl QueuePair {
    /// Forgets the completion that a request would have been signaled by.
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

    /// How it is named in findings.
    pub(crate) fn name(&self) -> String {
        format!("queue pair {}", self.new.number)
    }

    /// The sends that a completion will tell the end of: those up to the last one that is signaled.
    pub(crate) fn announced(&self) -> impl Iterator<Item = &Outstanding> {
        let last = self
            .sends
            .iter()
            .rposition(|it| it.signal == Signal::Signaled);
        self.sends.iter().take(last.map_or(0, |last| last + 1))
    }
}
