//! Queue pairs of the soft provider.

use std::slice;
use std::sync::Arc;

use gdr_roce::{
    LossRecovery, Psn, Qpn, Reliability, RetryLimit, RtrAttributes, RtsAttributes, State,
};

use super::completion_queue::SoftCompletionQueue;
use super::device::SoftDevice;
use super::qp_context::Peer;
use super::shared_engine::{QpParts, Service};
use super::shared_receive_queue::SoftSharedReceiveQueue;
use crate::error::{Error, Foreign, Result};
use crate::provider::{PreparedSendOps, QueuePairInit, QueuePairOps, QueuesInit, downcast_queue};
use crate::types::{ConnectionOptions, DomainId, Endpoint, SourcePort};
use crate::work_request::{RecvRequest, SendRequest};

const RELIABLE: Service = Service::Connection(Reliability::Reliable);

/// A queue pair. Its state is in the engine, which knows it by its number.
#[derive(Debug)]
pub(super) struct SoftQueuePair {
    device: Arc<SoftDevice>,
    qpn: Qpn,
}

impl SoftQueuePair {
    pub(super) fn new(
        device: &Arc<SoftDevice>,
        domain: DomainId,
        init: &QueuePairInit<'_>,
    ) -> Result<Self> {
        let qpn = create(device, domain, init.queues, RELIABLE)?;
        device.engine(qpn).qp_to_init(qpn, init.access)?;
        Ok(Self {
            device: Arc::clone(device),
            qpn,
        })
    }
}

/// Creates a queue pair in RESET.
pub(super) fn create(
    device: &Arc<SoftDevice>,
    domain: DomainId,
    queues: &QueuesInit<'_>,
    service: Service,
) -> Result<Qpn> {
    let entries = |queue| {
        let queue: Arc<SoftCompletionQueue> = downcast_queue(queue)?;
        if !Arc::ptr_eq(queue.device(), device) {
            return Err(Error::Foreign(Foreign::CompletionQueue));
        }
        Ok(Arc::clone(queue.entries()))
    };
    let context = |queue| SoftSharedReceiveQueue::context_of(queue, domain);
    device.create_qp(QpParts {
        domain,
        capabilities: queues.capabilities,
        service,
        srq: queues.shared_receives.map(context).transpose()?,
        send_completions: entries(queues.send_queue)?,
        recv_completions: entries(queues.recv_queue)?,
    })
}

impl QueuePairOps for SoftQueuePair {
    fn qpn(&self) -> Qpn {
        self.qpn
    }

    fn source_port(&self) -> SourcePort {
        self.device.source_port()
    }

    fn loss_recovery(&self) -> LossRecovery {
        LossRecovery::Selective
    }

    fn state(&self) -> State {
        match self.device.check_process() {
            Ok(()) => self.device.engine(self.qpn).qp_state(self.qpn),
            Err(_) => State::Error,
        }
    }

    fn to_rtr(&self, peer: &Endpoint, options: &ConnectionOptions) -> Result<()> {
        self.device.check_process()?;
        let attributes = RtrAttributes {
            dest_qpn: peer.qpn,
            rq_psn: peer.psn,
            path_mtu: options.path_mtu,
            max_dest_rd_atomic: options.max_dest_rd_atomic,
            min_rnr_timer: options.min_rnr_timer,
        };
        let peer = Peer {
            address: peer.address,
            source_port: peer.source_port,
            loss_recovery: peer.loss_recovery,
        };
        self.device
            .engine(self.qpn)
            .qp_to_rtr(self.qpn, peer, &attributes)
    }

    fn to_rts(&self, psn: Psn, options: &ConnectionOptions) -> Result<()> {
        self.device.check_process()?;
        let attributes = RtsAttributes {
            sq_psn: psn,
            timeout: options.timeout,
            retry_limit: match options.give_up_after {
                Some(limit) => RetryLimit::NoProgressFor(limit),
                None => RetryLimit::Count(options.retry_count),
            },
            rnr_retry: options.rnr_retry,
            max_rd_atomic: options.max_rd_atomic,
        };
        self.device
            .engine(self.qpn)
            .qp_to_rts(self.qpn, &attributes)
    }

    fn to_error(&self) {
        // In a forked child the queue pair belongs to the parent.
        if self.device.check_process().is_ok() {
            self.device.engine(self.qpn).qp_to_error(self.qpn);
        }
    }

    fn post_sends(&self, requests: &mut [SendRequest]) -> (usize, Result<()>) {
        match self.device.check_process() {
            Ok(()) => self.device.engine(self.qpn).post_sends(self.qpn, requests),
            Err(error) => (0, Err(error)),
        }
    }

    fn prepare(&self, request: SendRequest) -> Result<Box<dyn PreparedSendOps + '_>> {
        Ok(Box::new(PreparedRequest {
            queue_pair: self,
            next: request.clone(),
            request,
        }))
    }

    fn post_recv(&self, request: RecvRequest) -> Result<()> {
        self.device.check_process()?;
        self.device.engine(self.qpn).post_recv(self.qpn, request)
    }
}

/// A request to be posted later.
struct PreparedRequest<'a> {
    queue_pair: &'a SoftQueuePair,
    request: SendRequest,
    /// A copy for the next post, whose segments go to the engine.
    next: SendRequest,
}

impl PreparedSendOps for PreparedRequest<'_> {
    fn post(&mut self) -> Result<()> {
        self.queue_pair
            .post_sends(slice::from_mut(&mut self.next))
            .1?;
        self.next = self.request.clone();
        Ok(())
    }
}

impl Drop for SoftQueuePair {
    fn drop(&mut self) {
        // In a forked child the queue pair belongs to the parent.
        if self.device.check_process().is_ok() {
            self.device.engine(self.qpn).destroy_qp(self.qpn);
        }
    }
}
