//! Queue pairs.

use std::net::SocketAddr;

use gdr_roce::{
    Access, AckTimeout, Capabilities, Mtu, Psn, Qpn, RetryCount, RnrRetry, RnrTimer, RtrAttributes,
    RtsAttributes, State,
};

use crate::completion::{CompletionQueue, Entries};
use crate::device::Engine;
use crate::error::{Error, Result};
use crate::lid::Lid;
use crate::random;
use crate::region::{ProtectionDomain, Segment};
use crate::request::{RecvRequest, SendRequest};
use crate::soft::{PairParts, Soft};
use crate::verbs::Pair;

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
    /// Where its port is in an InfiniBand subnet; `None` on Ethernet.
    pub lid: Option<Lid>,
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
    // The kernel's goes before what it was made from.
    end: End,
    domain: ProtectionDomain,
    send_queue: CompletionQueue,
    recv_queue: CompletionQueue,
    psn: Psn,
}

/// What carries it out.
#[derive(Debug)]
enum End {
    /// The engine of this process, which knows it by its number.
    Soft(Qpn),
    /// A device of the kernel.
    Verbs(Pair),
}

impl ProtectionDomain {
    /// Makes a queue pair (`ibv_create_qp`), in INIT: receives can be posted.
    ///
    /// # Errors
    /// [`Error::Foreign`] for completion queues of another device; [`Error::Os`],
    /// [`Error::Verbs`].
    pub fn queue_pair(&self, options: &QueuePairOptions) -> Result<QueuePair> {
        let queues = [&options.send_queue, &options.recv_queue];
        let foreign = || Error::Foreign {
            what: "a completion queue",
            owner: "device",
        };
        if queues.iter().any(|q| !q.device().is_same(self.device())) {
            return Err(foreign());
        }
        let psn = Psn::new(random::number()?);
        let end = match (
            self.device().engine(),
            self.of_kernel(),
            queues.map(|q| q.entries()),
        ) {
            (Engine::Soft(soft), None, [Entries::Soft(sends), Entries::Soft(receives)]) => {
                End::Soft(soft.create_pair(PairParts {
                    domain: self.id(),
                    capabilities: options.capabilities,
                    access: options.access,
                    send_completions: sends.clone(),
                    recv_completions: receives.clone(),
                })?)
            }
            (Engine::Verbs(_), Some(domain), [Entries::Verbs(sends), Entries::Verbs(receives)]) => {
                End::Verbs(Pair::new(
                    domain,
                    [sends, receives],
                    options.capabilities,
                    options.access,
                )?)
            }
            _ => return Err(foreign()),
        };
        Ok(QueuePair {
            end,
            domain: self.clone(),
            send_queue: options.send_queue.clone(),
            recv_queue: options.recv_queue.clone(),
            psn,
        })
    }
}

impl QueuePair {
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        match &self.end {
            End::Soft(qpn) => *qpn,
            End::Verbs(pair) => pair.qpn(),
        }
    }

    /// What the peer must know.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint {
            address: self.domain.device().address(),
            qpn: self.qpn(),
            psn: self.psn,
            lid: self.domain.device().lid(),
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

    /// The engine of this process, where it is the one that carries this out.
    fn soft(&self) -> Result<&Soft> {
        match self.domain.device().engine() {
            Engine::Soft(soft) => Ok(soft),
            Engine::Verbs(_) => Err(Error::Foreign {
                what: "the queue pair",
                owner: "provider",
            }),
        }
    }

    /// Where it stands.
    pub fn state(&self) -> State {
        match &self.end {
            End::Soft(qpn) => self
                .soft()
                .map_or(State::Error, |soft| soft.pair_state(*qpn)),
            End::Verbs(pair) => pair.state(),
        }
    }

    /// From INIT to RTR: the peer's requests are served.
    ///
    /// # Errors
    /// [`Error::State`], [`Error::AddressFamily`]; [`Error::Verbs`] where a device of the kernel
    /// finds no way to the peer.
    pub fn to_rtr(&self, peer: &Endpoint, options: &ConnectionOptions) -> Result<()> {
        let (local, remote) = (self.domain.device().address().ip(), peer.address.ip());
        if local.is_ipv4() != remote.is_ipv4() {
            return Err(Error::AddressFamily {
                local,
                peer: remote,
            });
        }
        let qpn = match &self.end {
            End::Soft(qpn) => *qpn,
            End::Verbs(pair) => return pair.to_rtr(peer, options),
        };
        let attributes = RtrAttributes {
            dest_qpn: peer.qpn,
            rq_psn: peer.psn,
            path_mtu: options.path_mtu,
            max_dest_rd_atomic: options.max_dest_rd_atomic,
            min_rnr_timer: options.min_rnr_timer,
        };
        self.soft()?.pair_to_rtr(qpn, peer.address, &attributes)
    }

    /// From RTR to RTS: requests can be posted.
    ///
    /// # Errors
    /// [`Error::State`], [`Error::Verbs`].
    pub fn to_rts(&self, options: &ConnectionOptions) -> Result<()> {
        let qpn = match &self.end {
            End::Soft(qpn) => *qpn,
            End::Verbs(pair) => return pair.to_rts(self.psn, options),
        };
        let attributes = RtsAttributes {
            sq_psn: self.psn,
            timeout: options.timeout,
            retry_count: options.retry_count,
            rnr_retry: options.rnr_retry,
            max_rd_atomic: options.max_rd_atomic,
        };
        self.soft()?.pair_to_rts(qpn, &attributes)
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
        match (&self.end, self.soft()) {
            (End::Verbs(pair), _) => pair.to_error(),
            (End::Soft(qpn), Ok(soft)) => soft.pair_to_error(*qpn),
            (End::Soft(_), Err(_)) => {}
        }
    }

    /// Posts a request to the send queue (`ibv_post_send`). Its first packets leave within this
    /// call. Where earlier ones of this queue pair are on their way, the soft provider may hold
    /// back up to eight short requests, to send them together with the next post, poll or wait;
    /// they leave a millisecond later at most, also if none of these comes.
    ///
    /// # Errors
    /// [`Error::Post`], [`Error::Foreign`], [`Error::Verbs`]; nothing was posted then.
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
        let (posted, refusal) = match (&self.end, self.soft()) {
            (End::Verbs(pair), _) => pair.post_sends(requests),
            (End::Soft(qpn), Ok(soft)) => soft.post_sends(*qpn, requests),
            (End::Soft(_), Err(error)) => (0, Err(error)),
        };
        refusal.map_err(|error| PostRefusal { posted, error })
    }

    /// Posts a receive (`ibv_post_recv`).
    ///
    /// # Errors
    /// [`Error::Post`], [`Error::Foreign`], [`Error::Verbs`]; nothing was posted then.
    pub fn post_recv(&self, request: RecvRequest) -> Result<()> {
        self.check(&request.segments)?;
        match &self.end {
            End::Soft(qpn) => self.soft()?.post_recv(*qpn, request),
            End::Verbs(pair) => pair.post_recv(request),
        }
    }

    fn check(&self, segments: &[Segment]) -> Result<()> {
        let ours = |segment: &Segment| segment.region().is_of(&self.domain);
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
        if let (End::Soft(qpn), Ok(soft)) = (&self.end, self.soft()) {
            soft.destroy_pair(*qpn);
        }
    }
}
