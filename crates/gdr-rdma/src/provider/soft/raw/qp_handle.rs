//! What queue pairs of all services have in common.

use gdr_roce::{Qpn, State};

use super::device::Device;
use crate::error::Result;
use crate::provider::soft::completion_counting::{
    CompletionCounter, CompletionCounting, CountedOperation,
};
use crate::provider::soft::qp_context::QpContext;
use crate::provider::soft::shared_engine::{QpParts, SharedEngine};

/// A queue pair of a device. Dropping it destroys it: its requests get no completion.
#[derive(Debug)]
pub(super) struct QpHandle {
    device: Device,
    qpn: Qpn,
}

impl QpHandle {
    /// Makes a queue pair in RESET.
    pub(super) fn new(device: &Device, parts: QpParts) -> Result<Self> {
        Ok(Self {
            device: device.clone(),
            qpn: device.soft().create_qp(parts)?,
        })
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// The engine, unless the caller is a child of the process that made the queue pair.
    pub(super) fn soft(&self) -> Result<&SharedEngine> {
        self.device.check_process()?;
        Ok(self.device.soft().engine(self.qpn))
    }

    pub(super) fn state(&self) -> State {
        match self.soft() {
            Ok(soft) => soft.qp_state(self.qpn),
            Err(_) => State::Error,
        }
    }

    pub(super) fn post_sends<T>(&self, post: impl FnOnce(&mut QpContext) -> T) -> Result<T> {
        self.soft()?.post_with(self.qpn, post)
    }

    pub(super) fn count_completions(
        &self,
        operations: &[CountedOperation],
        counter: &CompletionCounter,
    ) -> Result<()> {
        self.post_recvs(|qp| {
            let served = qp.roce.served();
            let new = || Box::new(CompletionCounting::new(served));
            let counting = qp.counting.get_or_insert_with(new);
            for operation in operations {
                counting.attach(*operation, counter);
            }
        })
    }

    pub(super) fn post_recvs<T>(&self, post: impl FnOnce(&mut QpContext) -> T) -> Result<T> {
        self.soft()?.post_recv_with(self.qpn, post)
    }
}

impl Drop for QpHandle {
    fn drop(&mut self) {
        // In a forked child the queue pair belongs to the parent.
        if let Ok(soft) = self.soft() {
            soft.destroy_qp(self.qpn);
        }
    }
}

/// Defines the methods that are the same for all services: `QueuePair posts SendQueue`.
macro_rules! methods_of_all_services {
    ($pair:ident posts $send_queue:ident) => {
        impl $pair {
            /// Its number.
            pub fn qpn(&self) -> Qpn {
                self.handle.qpn()
            }

            /// Its state; ERR in a forked child.
            pub fn state(&self) -> State {
                self.handle.state()
            }

            /// To RESET, from any state. Posted requests are discarded without a completion, and
            /// completions that were not taken are removed.
            ///
            /// # Errors
            /// [`Error::ForkedChild`](crate::Error::ForkedChild).
            pub fn reset(&self) -> Result<()> {
                self.handle.soft()?.reset_qp(self.qpn());
                Ok(())
            }

            /// From RTS to SQD: requests that were begun are finished, others stay on the queue.
            /// [`Event::SendQueueDrained`](crate::Event::SendQueueDrained) follows.
            ///
            /// # Errors
            /// [`Error::State`](crate::Error::State), [`Error::ForkedChild`](crate::Error::ForkedChild).
            pub fn to_sqd(&self) -> Result<()> {
                self.handle.soft()?.qp_to_sqd(self.qpn())
            }

            /// From SQD, or from SQE where the service has that state, to RTS.
            ///
            /// # Errors
            /// As [`Self::to_rts`].
            pub fn resume(&self) -> Result<()> {
                self.handle.soft()?.resume_qp(self.qpn())
            }

            /// To ERR, from any state but RESET: all posted requests are flushed.
            ///
            /// # Errors
            /// [`Error::ForkedChild`](crate::Error::ForkedChild).
            pub fn to_error(&self) -> Result<()> {
                self.handle.soft()?.qp_to_error(self.qpn());
                Ok(())
            }

            /// Runs `post` on the send queue while the engine is locked; what it posted is sent then.
            ///
            /// # Errors
            /// [`Error::ForkedChild`](crate::Error::ForkedChild).
            pub fn post_sends<T>(&self, post: impl FnOnce(&mut $send_queue<'_>) -> T) -> Result<T> {
                self.handle.post_sends(|qp| post(&mut $send_queue(qp)))
            }

            /// Counts these operations by a counter, instead of by one that counted them. Sends that were
            /// posted before are counted only if they were signalled.
            ///
            /// # Errors
            /// [`Error::ForkedChild`](crate::Error::ForkedChild).
            pub fn count_completions(
                &self,
                operations: &[super::CountedOperation],
                counter: &super::CompletionCounter,
            ) -> Result<()> {
                self.handle.count_completions(operations, counter)
            }

            /// Runs `post` on the receive queue while the engine is locked.
            ///
            /// # Errors
            /// [`Error::ForkedChild`](crate::Error::ForkedChild).
            pub fn post_recvs<T>(&self, post: impl FnOnce(&mut RecvQueue<'_>) -> T) -> Result<T> {
                self.handle.post_recvs(|qp| post(&mut RecvQueue(qp)))
            }
        }

        impl $send_queue<'_> {
            /// Runs `post`, and takes back all that it has posted if it fails: nothing of that is sent
            /// or completes, and the queue is as before.
            ///
            /// # Errors
            /// Its error.
            pub fn all_or_none<E>(
                &mut self,
                post: impl FnOnce(&mut $send_queue<'_>) -> std::result::Result<(), E>,
            ) -> std::result::Result<(), E> {
                let post = |qp: &mut QpContext| post(&mut $send_queue(qp));
                self.0.all_sends_or_none(post)
            }
        }
    };
}

pub(super) use methods_of_all_services;
