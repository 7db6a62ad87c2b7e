//! Connections of the software NIC.

use std::slice;

use gdr_nic::{CompletionQueue, Connection, Device, Peer, QueuePair, Queues, Service};
use gdr_roce::{
    LossRecovery, PostError, Psn, Qpn, Reliability, RetryLimit, RtrAttributes, RtsAttributes, State,
};

use super::work_request::{KeyedSegments, data, keyed, take, take_recv};
use crate::error::{Error, Result};
use crate::provider::{PreparedSendOps, QueuePairInit, QueuePairOps, QueuesInit, downcast_queue};
use crate::types::{ConnectionOptions, Domain, Endpoint, SourcePort};
use crate::work_request::{Data, RecvRequest, SendRequest};

/// Makes one end of a reliable connection, in INIT.
pub(super) fn connection(
    device: &Device,
    domain: Domain,
    init: &QueuePairInit<'_>,
) -> Result<QueuePair<Connection>> {
    let capabilities = init.queues.capabilities;
    let pair = with_queues(init.queues, |queues| {
        device.queue_pair(domain, queues, capabilities, Reliability::Reliable)
    })?;
    pair.to_init(init.access)?;
    Ok(pair)
}

/// Makes a queue pair with queues of this provider.
pub(crate) fn with_queues<T>(
    queues: &QueuesInit<'_>,
    make: impl FnOnce(Queues<'_>) -> gdr_nic::Result<T>,
) -> Result<T> {
    let send = downcast_queue::<CompletionQueue>(queues.send_queue)?;
    let recv = downcast_queue::<CompletionQueue>(queues.recv_queue)?;
    Ok(make(Queues {
        send: &send,
        recv: &recv,
        shared_receives: queues.shared_receives,
    })?)
}

impl QueuePairOps for QueuePair<Connection> {
    fn qpn(&self) -> Qpn {
        self.qpn()
    }

    fn source_port(&self) -> SourcePort {
        self.source_port()
    }

    fn loss_recovery(&self) -> LossRecovery {
        LossRecovery::Selective
    }

    fn state(&self) -> State {
        self.state()
    }

    fn to_rtr(&self, peer: &Endpoint, options: &ConnectionOptions) -> Result<()> {
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
        Ok(self.to_rtr(peer, &attributes)?)
    }

    fn to_rts(&self, psn: Psn, options: &ConnectionOptions) -> Result<()> {
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
        Ok(self.to_rts(&attributes)?)
    }

    fn to_error(&self) {
        // In a forked child the queue pair belongs to the parent.
        let _ = self.to_error();
    }

    fn post_sends(&self, requests: &mut [SendRequest]) -> (usize, Result<()>) {
        if requests.is_empty() {
            return (0, Ok(()));
        }
        // It retains nothing, so it may be sent at once, or be left to another thread that has the engine.
        if let [request] = requests
            && let Data::Inline(bytes) = &request.data
        {
            let outcome = self.post_send(&gdr_roce::SendRequest {
                id: request.id,
                operation: request.operation,
                data: gdr_roce::Data::Inline(bytes),
                flags: request.flags,
            });
            return (usize::from(outcome.is_ok()), outcome.map_err(Error::from));
        }
        let mut posted = 0;
        let outcome = self.post_sends(|queue| {
            // What the last request still has to retain. Consecutive requests on one region leave that to the last of
            // them, which completes after the others.
            let mut last: Option<&mut Data> = None;
            let mut outcome = Ok::<(), PostError>(());
            for request in requests {
                if let Some(data) = last.take_if(|last| !last.has_region_of(&request.data)) {
                    queue.retain(take(data));
                }
                let mut segments = KeyedSegments::new();
                outcome = queue.push(&gdr_roce::SendRequest {
                    id: request.id,
                    operation: request.operation,
                    data: data(&request.data, &mut segments),
                    flags: request.flags,
                });
                if outcome.is_err() {
                    break;
                }
                posted += 1;
                last = Some(&mut request.data);
            }
            if let Some(data) = last {
                queue.retain(take(data));
            }
            outcome
        });
        (
            posted,
            outcome
                .and_then(|refused| Ok(refused?))
                .map_err(Error::from),
        )
    }

    fn prepare(&self, request: SendRequest) -> Result<Box<dyn PreparedSendOps + '_>> {
        Ok(Box::new(PreparedRequest {
            queue_pair: self,
            next: request.clone(),
            request,
        }))
    }

    fn post_recv(&self, request: RecvRequest) -> Result<()> {
        post_recv(self, request)
    }
}

/// Posts a receive. A refused request stays whole, and is dropped after the engine is unlocked, because parameters are
/// dropped last.
pub(crate) fn post_recv<S: Service>(pair: &QueuePair<S>, mut request: RecvRequest) -> Result<()> {
    let posted = pair.post_recvs(|queue| {
        queue.push(&gdr_roce::RecvRequest {
            id: request.id,
            segments: &keyed(&request.segments),
        })?;
        queue.retain(take_recv(&mut request));
        Ok::<(), PostError>(())
    })?;
    Ok(posted?)
}

/// A request to post later.
struct PreparedRequest<'a> {
    queue_pair: &'a QueuePair<Connection>,
    request: SendRequest,
    /// A copy for the next post, which passes its segments to the engine.
    next: SendRequest,
}

impl PreparedSendOps for PreparedRequest<'_> {
    fn post(&mut self) -> Result<()> {
        QueuePairOps::post_sends(self.queue_pair, slice::from_mut(&mut self.next)).1?;
        self.next = self.request.clone();
        Ok(())
    }
}
