//! Queue pairs that a front end takes through their states.

use std::net::SocketAddr;
use std::sync::Arc;

use gdr_roce::{
    Access, Capabilities, PostError, Qpn, RecvRequest, RtrAttributes, RtsAttributes, SendRequest,
    State,
};

use super::completion_queue::CompletionQueue;
use super::device::Device;
use super::region::Domain;
use super::shared_receive_queue::SharedReceiveQueue;
use crate::error::{Error, Foreign, Result};
use crate::provider::soft::qp_context::{Peer, QpContext};
use crate::provider::soft::shared_engine::{QpParts, Service};
use crate::types::SourcePort;

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

/// What a queue pair of this service is made from.
pub(super) fn parts(
    device: &Device,
    domain: Domain,
    queues: Queues<'_>,
    capabilities: Capabilities,
    service: Service,
) -> Result<QpParts> {
    device.check_process()?;
    let completions = [queues.send, queues.recv];
    if completions
        .iter()
        .any(|queue| !queue.device().is_same(device))
    {
        return Err(Error::Foreign(Foreign::CompletionQueue));
    }
    let shared = queues.shared_receives;
    if shared.is_some_and(|queue| !queue.is_of(device, domain)) {
        return Err(Error::Foreign(Foreign::SharedReceiveQueue));
    }
    Ok(QpParts {
        domain: domain.0,
        capabilities,
        service,
        srq: shared.map(|queue| Arc::clone(queue.context())),
        send_completions: Arc::clone(queues.send.entries()),
        recv_completions: Arc::clone(queues.recv.entries()),
    })
}

/// A queue pair (RC). Dropping it destroys it: its requests get no completion.
#[derive(Debug)]
pub struct QueuePair {
    device: Device,
    qpn: Qpn,
}

impl Device {
    /// Makes a queue pair in RESET.
    ///
    /// # Errors
    /// [`Error::Foreign`](crate::Error::Foreign) for completion queues of another device; [`Error::DeviceFailed`](crate::Error::DeviceFailed),
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn queue_pair(
        &self,
        domain: Domain,
        send_queue: &CompletionQueue,
        recv_queue: &CompletionQueue,
        capabilities: Capabilities,
    ) -> Result<QueuePair> {
        let queues = Queues {
            send: send_queue,
            recv: recv_queue,
            shared_receives: None,
        };
        self.queue_pair_with(domain, queues, capabilities)
    }

    /// As [`Device::queue_pair`], with receives from a shared queue if one is given.
    ///
    /// # Errors
    /// As [`Device::queue_pair`]; [`Error::Foreign`](crate::Error::Foreign) for a shared queue of
    /// another domain.
    pub fn queue_pair_with(
        &self,
        domain: Domain,
        queues: Queues<'_>,
        capabilities: Capabilities,
    ) -> Result<QueuePair> {
        QueuePair::new(self, domain, queues, capabilities)
    }
}

impl QueuePair {
    pub(super) fn new(
        device: &Device,
        domain: Domain,
        queues: Queues<'_>,
        capabilities: Capabilities,
    ) -> Result<Self> {
        let parts = parts(device, domain, queues, capabilities, Service::Connection)?;
        Ok(Self {
            device: device.clone(),
            qpn: device.soft().create_qp(parts)?,
        })
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Its state; ERR in a forked child.
    pub fn state(&self) -> State {
        match self.device.check_process() {
            Ok(()) => self.device.soft().qp_state(self.qpn),
            Err(_) => State::Error,
        }
    }

    /// To RESET, from any state. Posted requests are discarded without a completion.
    ///
    /// # Errors
    /// [`Error::ForkedChild`].
    pub fn reset(&self) -> Result<()> {
        self.device.check_process()?;
        self.device.soft().reset_qp(self.qpn);
        Ok(())
    }

    /// From RESET to INIT. The peer is allowed `access` at most.
    ///
    /// # Errors
    /// [`Error::State`], [`Error::ForkedChild`].
    pub fn to_init(&self, access: Access) -> Result<()> {
        self.device.check_process()?;
        self.device.soft().qp_to_init(self.qpn, access)
    }

    /// Changes what the peer is allowed, in any state but RESET.
    ///
    /// # Errors
    /// [`Error::ForkedChild`].
    pub fn set_access(&self, access: Access) -> Result<()> {
        self.device.check_process()?;
        self.device.soft().set_qp_access(self.qpn, access);
        Ok(())
    }

    /// From INIT to RTR: requests of the peer are served. Packets are sent to `peer`, and accepted
    /// from every port of its address.
    ///
    /// # Errors
    /// As [`crate::QueuePair::to_rtr`].
    pub fn to_rtr(&self, peer: SocketAddr, attributes: &RtrAttributes) -> Result<()> {
        self.device.check_process()?;
        let local = self.device.address().ip();
        if local.is_ipv4() != peer.is_ipv4() {
            let peer = peer.ip();
            return Err(Error::AddressFamily { local, peer });
        }
        let peer = Peer {
            address: peer,
            source_port: SourcePort::Any,
        };
        self.device.soft().qp_to_rtr(self.qpn, peer, attributes)
    }

    /// From RTR to RTS: requests can be posted.
    ///
    /// # Errors
    /// [`Error::State`], [`Error::DeviceFailed`], [`Error::ForkedChild`].
    pub fn to_rts(&self, attributes: &RtsAttributes) -> Result<()> {
        self.device.check_process()?;
        self.device.soft().qp_to_rts(self.qpn, attributes)
    }

    /// To ERR, from any state but RESET: all posted requests are flushed.
    ///
    /// # Errors
    /// [`Error::ForkedChild`].
    pub fn to_error(&self) -> Result<()> {
        self.device.check_process()?;
        self.device.soft().qp_to_error(self.qpn);
        Ok(())
    }

    /// Runs `post` on the send queue while the engine is locked; what it posted is sent then.
    ///
    /// # Errors
    /// [`Error::ForkedChild`].
    pub fn post_sends<T>(&self, post: impl FnOnce(&mut SendQueue<'_>) -> T) -> Result<T> {
        self.device.check_process()?;
        let soft = self.device.soft();
        soft.post_with(self.qpn, |qp| post(&mut SendQueue(qp)))
    }

    /// Runs `post` on the receive queue while the engine is locked.
    ///
    /// # Errors
    /// [`Error::ForkedChild`].
    pub fn post_recvs<T>(&self, post: impl FnOnce(&mut RecvQueue<'_>) -> T) -> Result<T> {
        self.device.check_process()?;
        let soft = self.device.soft();
        soft.post_recv_with(self.qpn, |qp| post(&mut RecvQueue(qp)))
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // In a forked child the queue pair belongs to the parent.
        if self.device.check_process().is_ok() {
            self.device.soft().destroy_qp(self.qpn);
        }
    }
}

/// The send queue of a queue pair whose engine is locked.
pub struct SendQueue<'a>(&'a mut QpContext);

impl SendQueue<'_> {
    /// Posts a request.
    ///
    /// # Errors
    /// [`PostError`]; the request was not posted.
    pub fn push(&mut self, request: &SendRequest<'_>) -> std::result::Result<(), PostError> {
        self.0.post_raw_send(request)
    }
}

/// The receive queue of a queue pair whose engine is locked.
pub struct RecvQueue<'a>(pub(super) &'a mut QpContext);

impl RecvQueue<'_> {
    /// Posts a request.
    ///
    /// # Errors
    /// [`PostError`]; the request was not posted.
    pub fn push(&mut self, request: &RecvRequest<'_>) -> std::result::Result<(), PostError> {
        self.0.post_raw_recv(request)
    }
}
