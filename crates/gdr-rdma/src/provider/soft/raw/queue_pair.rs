//! Queue pairs that a front end takes through their states.

use std::net::SocketAddr;
use std::sync::Arc;

use gdr_roce::{
    Access, Capabilities, LossRecovery, PostError, Qpn, RecvRequest, Reliability, RnrTimer,
    RtrAttributes, RtsAttributes, SendRequest, State,
};

use super::completion_queue::CompletionQueue;
use super::device::Device;
use super::qp_handle::{QpHandle, methods_of_all_services};
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

/// A queue pair of a connection (RC, UC). Dropping it destroys it: its requests get no completion.
#[derive(Debug)]
pub struct QueuePair {
    handle: QpHandle,
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
        self.queue_pair_with(domain, queues, capabilities, Reliability::Reliable)
    }

    /// As [`Device::queue_pair`], of a connection of this service, with receives from a shared queue if
    /// one is given.
    ///
    /// # Errors
    /// As [`Device::queue_pair`]; [`Error::Foreign`](crate::Error::Foreign) for a shared queue of
    /// another domain.
    pub fn queue_pair_with(
        &self,
        domain: Domain,
        queues: Queues<'_>,
        capabilities: Capabilities,
        service: Reliability,
    ) -> Result<QueuePair> {
        let service = Service::Connection(service);
        let parts = parts(self, domain, queues, capabilities, service)?;
        Ok(QueuePair {
            handle: QpHandle::new(self, parts)?,
        })
    }
}

impl QueuePair {
    /// From RESET to INIT. The peer is allowed `access` at most.
    ///
    /// # Errors
    /// [`Error::State`], [`Error::ForkedChild`].
    pub fn to_init(&self, access: Access) -> Result<()> {
        self.handle.soft()?.qp_to_init(self.qpn(), access)
    }

    /// Changes what the peer is allowed, in any state but RESET.
    ///
    /// # Errors
    /// [`Error::ForkedChild`].
    pub fn set_access(&self, access: Access) -> Result<()> {
        self.change(|roce| roce.set_access(access))
    }

    /// Changes the attributes of the requester, but for its PSN.
    ///
    /// # Errors
    /// [`Error::ForkedChild`].
    pub fn set_rts_attributes(&self, attributes: &RtsAttributes) -> Result<()> {
        self.change(|roce| roce.set_rts_attributes(attributes))
    }

    /// Changes the wait time in RNR NAKs.
    ///
    /// # Errors
    /// [`Error::ForkedChild`].
    pub fn set_min_rnr_timer(&self, timer: RnrTimer) -> Result<()> {
        self.change(|roce| roce.set_min_rnr_timer(timer))
    }

    /// Changes how many READs and atomics the peer may have outstanding.
    ///
    /// # Errors
    /// [`Error::ForkedChild`].
    pub fn set_max_dest_rd_atomic(&self, most: u8) -> Result<()> {
        self.change(|roce| roce.set_max_dest_rd_atomic(most))
    }

    /// Sends packets to another address, and accepts them from every port of it only.
    ///
    /// # Errors
    /// As [`Self::to_rtr`].
    pub fn set_peer(&self, peer: SocketAddr) -> Result<()> {
        let soft = self.handle.soft()?;
        soft.move_peer(self.qpn(), self.peer(peer)?)
    }

    fn change(&self, change: impl FnOnce(&mut gdr_roce::QueuePair)) -> Result<()> {
        self.handle.soft()?.change_connection(self.qpn(), change);
        Ok(())
    }

    /// A peer at this address, which must be of the family of the device's.
    fn peer(&self, address: SocketAddr) -> Result<Peer> {
        let local = self.handle.device().address().ip();
        if local.is_ipv4() != address.is_ipv4() {
            let peer = address.ip();
            return Err(Error::AddressFamily { local, peer });
        }
        Ok(Peer {
            address,
            source_port: SourcePort::Any,
            // The peer may be any end of RC.
            loss_recovery: LossRecovery::GoBackN,
        })
    }

    /// From INIT to RTR: requests of the peer are served. Packets are sent to `peer`, and accepted
    /// from every port of its address.
    ///
    /// # Errors
    /// As [`crate::QueuePair::to_rtr`].
    pub fn to_rtr(&self, peer: SocketAddr, attributes: &RtrAttributes) -> Result<()> {
        let soft = self.handle.soft()?;
        soft.qp_to_rtr(self.qpn(), self.peer(peer)?, attributes)
    }

    /// From RTR to RTS: requests can be posted.
    ///
    /// # Errors
    /// [`Error::State`], [`Error::DeviceFailed`], [`Error::ForkedChild`].
    pub fn to_rts(&self, attributes: &RtsAttributes) -> Result<()> {
        self.handle.soft()?.qp_to_rts(self.qpn(), attributes)
    }

    /// Whether the state is SQD, and requests that were begun are not complete; `false` in a forked
    /// child.
    pub fn is_draining(&self) -> bool {
        let soft = self.handle.soft();
        soft.is_ok_and(|soft| soft.is_draining(self.qpn()))
    }
}

methods_of_all_services!(QueuePair posts SendQueue);

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
