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
use crate::error::{Error, Foreign, Result};
use crate::provider::soft::qp_context::{Peer, QpContext};
use crate::provider::soft::shared_engine::QpParts;
use crate::types::SourcePort;

/// A queue pair (RC). Dropping it destroys it: its requests get no completion.
#[derive(Debug)]
pub struct QueuePair {
    device: Device,
    qpn: Qpn,
}

impl QueuePair {
    pub(super) fn new(
        device: &Device,
        domain: Domain,
        (send_queue, recv_queue): (&CompletionQueue, &CompletionQueue),
        capabilities: Capabilities,
    ) -> Result<Self> {
        device.check_process()?;
        if [send_queue, recv_queue]
            .iter()
            .any(|queue| !queue.device().is_same(device))
        {
            return Err(Error::Foreign(Foreign::CompletionQueue));
        }
        let qpn = device.soft().create_qp(QpParts {
            domain: domain.0,
            capabilities,
            send_completions: Arc::clone(send_queue.entries()),
            recv_completions: Arc::clone(recv_queue.entries()),
        })?;
        Ok(Self {
            device: device.clone(),
            qpn,
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
pub struct RecvQueue<'a>(&'a mut QpContext);

impl RecvQueue<'_> {
    /// Posts a request.
    ///
    /// # Errors
    /// [`PostError`]; the request was not posted.
    pub fn push(&mut self, request: &RecvRequest<'_>) -> std::result::Result<(), PostError> {
        self.0.post_raw_recv(request)
    }
}
