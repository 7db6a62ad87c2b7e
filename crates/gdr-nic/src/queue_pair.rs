//! Queue pairs.

use std::marker::PhantomData;
use std::sync::Arc;

use gdr_roce::{Capabilities, Qpn, State};

use crate::completion_queue::CompletionQueue;
use crate::device::Device;
use crate::error::{Error, Foreign, Result};
use crate::recv_queue::RecvQueue;
use crate::send_queue::SendQueue;
use crate::service::Service;
use crate::shard::completion_counting::{CompletionCounter, CountedOperation};
use crate::shard::shared_engine::{QpParts, SharedEngine};
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::types::Domain;

/// The queues of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Queues<'a> {
    /// For the completions of sends.
    pub send: &'a CompletionQueue,
    /// For the completions of receives.
    pub recv: &'a CompletionQueue,
    /// Where its receives come from, instead of a queue of its own.
    pub shared_receives: Option<&'a SharedReceiveQueue>,
}

impl<'a> Queues<'a> {
    /// One queue for the completions of sends and receives, and receives of its own.
    pub fn completing_in(queue: &'a CompletionQueue) -> Self {
        Self {
            send: queue,
            recv: queue,
            shared_receives: None,
        }
    }

    /// What a queue pair with these queues is made from.
    pub(crate) fn parts(
        self,
        device: &Device,
        domain: Domain,
        capabilities: Capabilities,
    ) -> Result<QpParts> {
        device.check_process()?;
        let completions = [self.send, self.recv];
        if completions
            .iter()
            .any(|queue| !queue.device().is_same(device))
        {
            return Err(Error::Foreign(Foreign::CompletionQueue));
        }
        let shared = self.shared_receives;
        if shared
            .is_some_and(|queue| !queue.is_of(device, domain) || queue.registration().is_some())
        {
            return Err(Error::Foreign(Foreign::SharedReceiveQueue));
        }
        Ok(QpParts {
            domain,
            capabilities,
            srq: shared.map(|queue| Arc::clone(queue.context())),
            xrc: None,
            send_completions: Arc::clone(self.send.entries()),
            recv_completions: Arc::clone(self.recv.entries()),
        })
    }
}

/// A queue pair. It goes through the states of libibverbs one by one. Dropping it destroys it: its
/// requests get no completion.
#[derive(Debug)]
pub struct QueuePair<S: Service> {
    device: Device,
    qpn: Qpn,
    service: PhantomData<fn() -> S>,
}

impl<S: Service> QueuePair<S> {
    /// The handle of a queue pair that the device has just made for it.
    pub(crate) fn of(device: &Device, qpn: Qpn) -> Self {
        Self {
            device: device.clone(),
            qpn,
            service: PhantomData,
        }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// The engine, unless the caller is a child of the process that made the queue pair.
    pub(crate) fn engine(&self) -> Result<&Arc<SharedEngine>> {
        self.device.check_process()?;
        Ok(self.device.shards().engine(self.qpn))
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Its state; ERR in a forked child.
    pub fn state(&self) -> State {
        match self.engine() {
            Ok(engine) => engine.qp_state(self.qpn),
            Err(_) => State::Error,
        }
    }

    /// To RESET, from any state. Posted requests are discarded without a completion, and completions
    /// that were not taken are removed.
    ///
    /// # Errors
    /// [`Error::ForkedChild`].
    pub fn reset(&self) -> Result<()> {
        self.engine()?.reset_qp(self.qpn);
        Ok(())
    }

    /// From RTS to SQD: requests that were begun are finished, others stay on the queue.
    /// [`Event::SendQueueDrained`](gdr_roce::Event::SendQueueDrained) follows.
    ///
    /// # Errors
    /// [`Error::State`], [`Error::ForkedChild`].
    pub fn to_sqd(&self) -> Result<()> {
        self.engine()?.qp_to_sqd(self.qpn)
    }

    /// Whether the state is SQD, and requests that were begun are not complete; `false` in a forked
    /// child. Datagrams and frames never are half sent.
    pub fn is_draining(&self) -> bool {
        self.engine()
            .is_ok_and(|engine| engine.is_draining(self.qpn))
    }

    /// From SQD, or from SQE where the service has that state, to RTS.
    ///
    /// # Errors
    /// [`Error::State`], [`Error::DeviceFailed`], [`Error::ForkedChild`].
    pub fn resume(&self) -> Result<()> {
        self.engine()?.resume_qp(self.qpn)
    }

    /// To ERR, from any state but RESET: all posted requests are flushed.
    ///
    /// # Errors
    /// [`Error::ForkedChild`].
    pub fn to_error(&self) -> Result<()> {
        self.engine()?.qp_to_error(self.qpn);
        Ok(())
    }

    /// Runs `post` on the send queue while the engine is locked; what it posted is sent then.
    ///
    /// # Errors
    /// [`Error::ForkedChild`].
    pub fn post_sends<T>(&self, post: impl FnOnce(&mut SendQueue<'_, S>) -> T) -> Result<T> {
        let engine = self.engine()?;
        engine.post_sends(engine.begin_posts(), self.qpn, post)
    }

    /// Runs `post` on the receive queue while the engine is locked.
    ///
    /// # Errors
    /// [`Error::ForkedChild`].
    pub fn post_recvs<T>(&self, post: impl FnOnce(&mut RecvQueue<'_>) -> T) -> Result<T> {
        self.engine()?.post_recvs(self.qpn, post)
    }

    /// Counts these operations by a counter, instead of by one that counted them. Sends that were posted
    /// before are counted only if they were signalled.
    ///
    /// # Errors
    /// [`Error::ForkedChild`].
    pub fn count_completions(
        &self,
        operations: &[CountedOperation],
        counter: &CompletionCounter,
    ) -> Result<()> {
        self.engine()?
            .count_completions(self.qpn, operations, counter);
        Ok(())
    }
}

impl<S: Service> Drop for QueuePair<S> {
    fn drop(&mut self) {
        // In a forked child the queue pair belongs to the parent.
        if let Ok(engine) = self.engine() {
            self.device.shards().detach_all(self.qpn);
            engine.destroy_qp(self.qpn);
        }
    }
}
