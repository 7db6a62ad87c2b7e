//! Queue pairs.

use std::net::SocketAddr;

use gdr_roce::{
    Access, AckTimeout, Capabilities, Mtu, Psn, Qpn, RetryCount, RnrRetry, RnrTimer, RtrAttributes,
    RtsAttributes, State,
};

use crate::completion::CompletionQueue;
use crate::error::{Error, Result};
use crate::random;
use crate::region::{ProtectionDomain, Segment};
use crate::request::{RecvRequest, SendRequest};
use crate::soft::PairParts;

/// How to make a queue pair (`struct ibv_qp_init_attr`).
#[derive(Clone, Debug)]
#[must_use]
pub struct QueuePairOptions {
    send_queue: CompletionQueue,
    recv_queue: CompletionQueue,
    capabilities: Capabilities,
    access: Access,
}

impl QueuePairOptions {
    /// With `queue` for the completions of both directions, 128 requests in each, 256 inline
    /// bytes, and a peer that may write, read and do atomics where regions permit it.
    pub fn new(queue: &CompletionQueue) -> Self {
        Self {
            send_queue: queue.clone(),
            recv_queue: queue.clone(),
            capabilities: Capabilities {
                max_send_wr: 128,
                max_recv_wr: 128,
                max_inline: 256,
            },
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        }
    }

    /// With another queue for the completions of receives.
    pub fn recv_queue(mut self, queue: &CompletionQueue) -> Self {
        self.recv_queue = queue.clone();
        self
    }

    /// Of another size.
    pub fn capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// With a peer that may do this at all.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }
}

/// A list of requests that was posted in part.
#[derive(Debug, thiserror::Error)]
#[error("{error}; {posted} requests before it were posted")]
pub struct PostRefusal {
    /// How many were posted.
    pub posted: usize,
    /// Why the next one was not.
    #[source]
    pub error: Error,
}

/// What a peer must know to connect to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Where its device receives.
    pub address: SocketAddr,
    /// The queue pair.
    pub qpn: Qpn,
    /// The first PSN it will send.
    pub psn: Psn,
}

/// How a connection behaves (the rest of `struct ibv_qp_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct ConnectionOptions {
    /// Payload of a packet; the same on both sides.
    pub path_mtu: Mtu,
    /// How long to wait for an answer before sending again.
    pub timeout: AckTimeout,
    /// How often, without progress in between.
    pub retry_count: RetryCount,
    /// How often when the peer has no receive posted.
    pub rnr_retry: RnrRetry,
    /// How long the peer is asked to wait when this side has none.
    pub min_rnr_timer: RnrTimer,
    /// READs and atomics this side may have outstanding; at most the peer's `max_dest_rd_atomic`.
    pub max_rd_atomic: u8,
    /// READs and atomics of the peer that this side takes.
    pub max_dest_rd_atomic: u8,
}

impl ConnectionOptions {
    /// perftest's values: a timeout of 67 ms, 7 retries, endless ones for a receiver that is not
    /// ready (0.64 ms apart), 16 READs or atomics each way.
    pub const fn new(path_mtu: Mtu) -> Self {
        Self {
            path_mtu,
            timeout: AckTimeout::new(14),
            retry_count: RetryCount::new(7),
            rnr_retry: RnrRetry::FOREVER,
            min_rnr_timer: RnrTimer::new(12),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
        }
    }
}

/// One end of a reliable connection (RC). Destroyed on drop: requests not yet complete are never
/// told of, and the peer's fail once its retries are used up.
#[derive(Debug)]
pub struct QueuePair {
    domain: ProtectionDomain,
    send_queue: CompletionQueue,
    recv_queue: CompletionQueue,
    qpn: Qpn,
    psn: Psn,
}

impl ProtectionDomain {
    /// Makes a queue pair (`ibv_create_qp`), in INIT: receives can be posted.
    ///
    /// # Errors
    /// [`Error::Foreign`] for completion queues of another device; [`Error::Os`].
    pub fn queue_pair(&self, options: &QueuePairOptions) -> Result<QueuePair> {
        let queues = [&options.send_queue, &options.recv_queue];
        if queues.iter().any(|q| !q.device().is_same(self.device())) {
            return Err(Error::Foreign {
                what: "a completion queue",
                owner: "device",
            });
        }
        let psn = Psn::new(random::number()?);
        let qpn = self.device().engine().create_pair(PairParts {
            domain: self.id(),
            capabilities: options.capabilities,
            access: options.access,
            send_completions: options.send_queue.mailbox().clone(),
            recv_completions: options.recv_queue.mailbox().clone(),
        })?;
        Ok(QueuePair {
            domain: self.clone(),
            send_queue: options.send_queue.clone(),
            recv_queue: options.recv_queue.clone(),
            qpn,
            psn,
        })
    }
}

impl QueuePair {
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// What the peer must know.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint {
            address: self.domain.device().address(),
            qpn: self.qpn,
            psn: self.psn,
        }
    }

    /// The domain whose regions it reaches.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Where the ends of its sends are told.
    pub fn send_queue(&self) -> &CompletionQueue {
        &self.send_queue
    }

    /// Where the ends of its receives are told.
    pub fn recv_queue(&self) -> &CompletionQueue {
        &self.recv_queue
    }

    /// Where it stands.
    pub fn state(&self) -> State {
        self.domain.device().engine().pair_state(self.qpn)
    }

    /// From INIT to RTR: the peer's requests are served.
    ///
    /// # Errors
    /// [`Error::State`], [`Error::AddressFamily`].
    pub fn to_rtr(&self, peer: &Endpoint, options: &ConnectionOptions) -> Result<()> {
        let soft = self.domain.device().engine();
        let (local, remote) = (soft.local().ip(), peer.address.ip());
        if local.is_ipv4() != remote.is_ipv4() {
            return Err(Error::AddressFamily {
                local,
                peer: remote,
            });
        }
        let attributes = RtrAttributes {
            dest_qpn: peer.qpn,
            rq_psn: peer.psn,
            path_mtu: options.path_mtu,
            max_dest_rd_atomic: options.max_dest_rd_atomic,
            min_rnr_timer: options.min_rnr_timer,
        };
        soft.pair_to_rtr(self.qpn, peer.address, &attributes)
    }

    /// From RTR to RTS: requests can be posted.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn to_rts(&self, options: &ConnectionOptions) -> Result<()> {
        let attributes = RtsAttributes {
            sq_psn: self.psn,
            timeout: options.timeout,
            retry_count: options.retry_count,
            rnr_retry: options.rnr_retry,
            max_rd_atomic: options.max_rd_atomic,
        };
        self.domain
            .device()
            .engine()
            .pair_to_rts(self.qpn, &attributes)
    }

    /// From INIT to RTS. Requests of a side that is there first are sent again until the other is,
    /// too.
    ///
    /// # Errors
    /// As [`QueuePair::to_rtr`].
    pub fn connect(&self, peer: &Endpoint, options: &ConnectionOptions) -> Result<()> {
        self.to_rtr(peer, options)?;
        self.to_rts(options)
    }

    /// To ERR: all that is posted is flushed, with completions that say so.
    pub fn to_error(&self) {
        self.domain.device().engine().pair_to_error(self.qpn);
    }

    /// Posts a request to the send queue (`ibv_post_send`); its first packets leave within this
    /// call.
    ///
    /// # Errors
    /// [`Error::Post`], [`Error::Foreign`]; nothing was posted then.
    pub fn post_send(&self, request: SendRequest) -> Result<()> {
        self.post_sends([request]).map_err(|refusal| refusal.error)
    }

    /// Posts several requests, in order; together they take fewer system calls, as short messages
    /// share them.
    ///
    /// # Errors
    /// That of the first request that was refused, and how many before it were posted.
    pub fn post_sends(
        &self,
        requests: impl IntoIterator<Item = SendRequest>,
    ) -> std::result::Result<(), PostRefusal> {
        let requests = requests.into_iter().map(|request| {
            self.check(request.segments())?;
            Ok(request)
        });
        let (posted, refusal) = self.domain.device().engine().post_sends(self.qpn, requests);
        refusal.map_err(|error| PostRefusal { posted, error })
    }

    /// Posts a receive (`ibv_post_recv`).
    ///
    /// # Errors
    /// [`Error::Post`], [`Error::Foreign`]; nothing was posted then.
    pub fn post_recv(&self, request: RecvRequest) -> Result<()> {
        self.check(&request.segments)?;
        self.domain.device().engine().post_recv(self.qpn, request)
    }

    fn check(&self, segments: &[Segment]) -> Result<()> {
        let table = self.domain.device().engine().regions();
        let ours = |segment: &Segment| {
            segment.region().is_of(table) && segment.region().domain() == self.domain.id()
        };
        if segments.iter().all(ours) {
            return Ok(());
        }
        Err(Error::Foreign {
            what: "a memory region",
            owner: "protection domain",
        })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.domain.device().engine().destroy_pair(self.qpn);
    }
}
