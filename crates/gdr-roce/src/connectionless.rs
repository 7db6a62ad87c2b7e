//! States and queues common to the connectionless services (UD, raw packets). Messages are single packets and never
//! retransmitted, so no request is ever half sent.

use std::collections::VecDeque;

use crate::attributes::{Capabilities, State};
use crate::completion::{Completion, Event, WcOpcode, WcStatus};
use crate::connection::Notifications;
use crate::error::{PostError, StateError};
use crate::ids::{Qpn, WrId};
use crate::payload::Payload;
use crate::receive_queue::{ReceiveQueue, RecvWqe};
use crate::request::{Data, RecvRequest, SendFlags};

/// A request on the send queue. `T` is the data that the service adds.
#[derive(Debug)]
pub(crate) struct SendWqe<T> {
    id: WrId,
    pub(crate) payload: Payload,
    pub(crate) len: u32,
    pub(crate) flags: SendFlags,
    pub(crate) detail: T,
}

impl<T> SendWqe<T> {
    const fn completion(&self, status: WcStatus, qpn: Qpn) -> Completion {
        Completion {
            id: self.id,
            status,
            opcode: WcOpcode::Send,
            byte_len: match status {
                WcStatus::Success => self.len,
                _ => 0,
            },
            immediate: None,
            invalidated: None,
            time: None,
            solicited: false,
            qpn,
            source_qpn: None,
            has_network_header: false,
            ip_checksum_ok: false,
        }
    }
}

/// Returns the successful completion of a receive, for the service to complete with its details.
pub(crate) const fn received(receive: &RecvWqe, byte_len: u32, qpn: Qpn) -> Completion {
    Completion {
        status: WcStatus::Success,
        byte_len,
        ..receive.failed(WcStatus::Success, qpn)
    }
}

/// State and queues of a queue pair.
#[derive(Debug)]
pub(crate) struct Connectionless<T> {
    qpn: Qpn,
    caps: Capabilities,
    state: State,
    send_queue: VecDeque<SendWqe<T>>,
    receives: ReceiveQueue,
    notifications: Notifications,
}

impl<T> Connectionless<T> {
    /// Returns a queue pair in RESET.
    pub(crate) fn new(qpn: Qpn, caps: Capabilities, receives: ReceiveQueue) -> Self {
        Self {
            qpn,
            caps,
            state: State::Reset,
            send_queue: VecDeque::new(),
            receives,
            notifications: Notifications::default(),
        }
    }

    pub(crate) const fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(crate) const fn capabilities(&self) -> &Capabilities {
        &self.caps
    }

    pub(crate) const fn state(&self) -> State {
        self.state
    }

    pub(crate) fn enter_init(&mut self) -> Result<(), StateError> {
        self.state.transition(State::Reset, State::Init)
    }

    pub(crate) fn enter_rtr(&mut self) -> Result<(), StateError> {
        self.state.transition(State::Init, State::ReadyToReceive)
    }

    pub(crate) fn enter_rts(&mut self) -> Result<(), StateError> {
        self.state
            .transition(State::ReadyToReceive, State::ReadyToSend)
    }

    /// Enters SQD. [`Event::SendQueueDrained`] is raised immediately.
    pub(crate) fn enter_sqd(&mut self) -> Result<(), StateError> {
        self.state
            .transition(State::ReadyToSend, State::SendQueueDrained)?;
        self.notifications.events.push_back(Event::SendQueueDrained);
        Ok(())
    }

    pub(crate) fn resume(&mut self) -> Result<(), StateError> {
        self.state.resume()
    }

    /// Enters SQE: flushes the send queue, while receives continue.
    pub(crate) fn enter_sqe(&mut self) {
        self.state = State::SendQueueError;
        self.flush_sends();
    }

    /// Enters ERR from any state but RESET: flushes all requests except those on a shared queue.
    pub(crate) fn enter_error(&mut self) {
        if matches!(self.state, State::Reset | State::Error) {
            return;
        }
        self.state = State::Error;
        self.flush_sends();
        self.flush_receives();
        if self.receives.is_shared() {
            self.notifications.events.push_back(Event::LastWqeReached);
        }
    }

    fn flush_sends(&mut self) {
        let sends = self.send_queue.drain(..);
        let flushed = sends.map(|wqe| wqe.completion(WcStatus::WrFlushed, self.qpn));
        self.notifications.completions.extend(flushed);
    }

    fn flush_receives(&mut self) {
        let receives = self.receives.take_own().into_iter();
        let flushed = receives.map(|receive| receive.failed(WcStatus::WrFlushed, self.qpn));
        self.notifications.completions.extend(flushed);
    }

    /// Enters RESET from any state: discards requests, and keeps completions and events.
    pub(crate) fn reset(&mut self) {
        let receives = self.receives.renewed();
        *self = Self {
            notifications: std::mem::take(&mut self.notifications),
            ..Self::new(self.qpn, self.caps, receives)
        };
    }

    /// Posts to the send queue. In SQE and ERR the request is flushed immediately.
    pub(crate) fn post_send(
        &mut self,
        id: WrId,
        data: Data<'_>,
        flags: SendFlags,
        detail: T,
    ) -> Result<(), PostError> {
        let is_flushed = match self.state {
            State::ReadyToSend | State::SendQueueDrained => false,
            State::SendQueueError | State::Error => true,
            state => return Err(PostError::State(state)),
        };
        if self.send_queue.len() >= self.caps.max_send_wr as usize {
            return Err(PostError::Full(self.caps.max_send_wr));
        }
        let (payload, len) = Payload::new(data, &self.caps)?;
        self.send_queue.push_back(SendWqe {
            id,
            payload,
            len,
            flags,
            detail,
        });
        if is_flushed {
            self.flush_sends();
        }
        Ok(())
    }

    /// Withdraws the requests posted last. There must be no other call in between.
    pub(crate) fn withdraw_sends(&mut self, count: usize) {
        match self.state {
            State::SendQueueError | State::Error => self.notifications.withdraw(count),
            _ => {
                let left = self.send_queue.len().saturating_sub(count);
                self.send_queue.truncate(left);
            }
        }
    }

    /// Posts to the receive queue. In ERR the request is flushed immediately.
    pub(crate) fn post_recv(&mut self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        if self.state == State::Reset {
            return Err(PostError::State(self.state));
        }
        // A packet takes and completes a receive in one step, so none is ever in use.
        self.receives.post(request, 0, self.caps.max_recv_wr)?;
        if self.state == State::Error {
            self.flush_receives();
        }
        Ok(())
    }

    /// Takes the oldest receive.
    pub(crate) fn take_receive(&mut self) -> Option<RecvWqe> {
        self.receives.take()
    }

    /// Completes a receive. Enters ERR if local memory cannot be written, but not if the message is too long, as any
    /// peer may send one.
    pub(crate) fn complete_receive(&mut self, completion: Completion) {
        self.notifications.completions.push_back(completion);
        if completion.status == WcStatus::LocalProtection {
            self.enter_error();
        }
    }

    /// Returns the oldest request, if the state allows to send it.
    pub(crate) fn next_send(&self) -> Option<&SendWqe<T>> {
        match self.state {
            State::ReadyToSend => self.send_queue.front(),
            _ => None,
        }
    }

    /// Takes the oldest request, if the state allows to send it.
    pub(crate) fn take_send(&mut self) -> Option<SendWqe<T>> {
        self.next_send()?;
        self.send_queue.pop_front()
    }

    /// Completes a taken request. An unsuccessful one completes even if it is not signalled.
    pub(crate) fn complete_send(&mut self, wqe: &SendWqe<T>, status: WcStatus) {
        if status != WcStatus::Success || wqe.flags.contains(SendFlags::SIGNALLED) {
            let completion = wqe.completion(status, self.qpn);
            self.notifications.completions.push_back(completion);
        }
    }

    pub(crate) fn poll_completion(&mut self) -> Option<Completion> {
        self.notifications.completions.pop_front()
    }

    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.notifications.events.pop_front()
    }
}
