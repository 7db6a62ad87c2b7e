//! Queue pairs.

use std::{fmt, slice};

use gdr_roce::{Access, Capabilities, Psn, Qpn, State};
use smallvec::SmallVec;

use crate::completion_queue::CompletionQueue;
use crate::error::{Error, Foreign, NicError, Result, SocketError};
use crate::memory_region::Segment;
use crate::pair_queues::PairQueues;
use crate::protection_domain::ProtectionDomain;
use crate::provider::{PreparedSendOps, QueuePairInit, QueuePairOps};
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::types::{ConnectionOptions, Endpoint};
use crate::work_request::{RecvRequest, SendRequest};
use gdr_nic::random_number;

/// Options for creating a queue pair (`struct ibv_qp_init_attr`).
#[derive(Clone, Debug)]
#[must_use]
pub struct QueuePairOptions {
    queues: PairQueues,
    access: Access,
}

impl QueuePairOptions {
    /// Returns the defaults: `queue` for the completions of sends and receives, 128 requests in each direction, 256
    /// inline bytes, and all kinds of access by the peer, as far as regions permit.
    pub fn new(queue: &CompletionQueue) -> Self {
        Self {
            queues: PairQueues::new(queue),
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        }
    }

    /// Uses a separate queue for the completions of receives.
    pub fn recv_queue(mut self, queue: &CompletionQueue) -> Self {
        self.queues.recv = queue.clone();
        self
    }

    /// Takes receives from this shared queue. The queue pair then has no receive queue of its own.
    pub fn shared_receive_queue(mut self, queue: &SharedReceiveQueue) -> Self {
        self.queues.shared = Some(queue.clone());
        self
    }

    /// Sets the sizes of the queues and of inline data.
    pub fn capabilities(mut self, capabilities: Capabilities) -> Self {
        self.queues.capabilities = capabilities;
        self
    }

    /// Limits what the peer may do, whatever regions permit.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }
}

/// Only part of a list of requests was posted.
#[derive(Debug, thiserror::Error)]
#[error("{error}; {posted} requests before it were posted")]
pub struct BatchPostError {
    /// How many requests were posted.
    pub posted: usize,
    /// Why the next one was refused.
    #[source]
    pub error: Error,
}

/// One end of a reliable connection (RC). It is destroyed on drop: its outstanding requests never
/// complete, and the peer's requests fail once their retries are exhausted.
#[derive(Debug)]
pub struct QueuePair {
    // Field order is drop order: it is destroyed before what it was made from.
    pair: Box<dyn QueuePairOps>,
    domain: ProtectionDomain,
    queues: PairQueues,
    psn: Psn,
}

impl ProtectionDomain {
    /// Creates a queue pair (`ibv_create_qp`) in INIT, in which receives can be posted.
    ///
    /// # Errors
    /// [`NicError::Foreign`](crate::NicError::Foreign) for completion queues of another device, or a shared receive queue of
    /// another domain; [`NicError::DeviceFailed`](crate::NicError::DeviceFailed), [`NicError::ForkedChild`](crate::NicError::ForkedChild), [`SocketError::Os`](crate::SocketError::Os),
    /// [`Error::Verbs`].
    pub fn queue_pair(&self, options: &QueuePairOptions) -> Result<QueuePair> {
        self.device().check_process()?;
        let psn = Psn::new(random_number()?);
        let init = QueuePairInit {
            queues: &options.queues.of(self)?,
            access: options.access,
        };
        Ok(QueuePair {
            pair: self.ops().clone().create_queue_pair(&init)?,
            domain: self.clone(),
            queues: options.queues.clone(),
            psn,
        })
    }

    /// Checks that the regions of a request belong to this domain.
    pub(crate) fn check_segments(&self, segments: &[Segment]) -> Result<()> {
        match self.owns(segments) {
            true => Ok(()),
            false => Err(NicError::Foreign(Foreign::MemoryRegion).into()),
        }
    }

    #[inline]
    fn owns(&self, segments: &[Segment]) -> bool {
        let is_own = |segment: &Segment| segment.region().domain() == self.id();
        match segments {
            // The usual case. A loop over the segments would need the request in memory, and so a copy of it.
            [only] => is_own(only),
            all => all.iter().all(is_own),
        }
    }
}

impl QueuePair {
    /// Returns the queue pair's number.
    pub fn qpn(&self) -> Qpn {
        self.pair.qpn()
    }

    /// Returns what the peer needs to know to connect.
    pub fn endpoint(&self) -> Endpoint {
        let device = self.domain.device();
        Endpoint {
            address: device.address(),
            qpn: self.qpn(),
            psn: self.psn,
            lid: device.lid(),
            source_port: self.pair.source_port(),
            loss_recovery: self.pair.loss_recovery(),
        }
    }

    /// Returns the domain whose regions the queue pair can access.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Returns the queue for the completions of its sends.
    pub fn send_queue(&self) -> &CompletionQueue {
        &self.queues.send
    }

    /// Returns the queue for the completions of its receives.
    pub fn recv_queue(&self) -> &CompletionQueue {
        &self.queues.recv
    }

    /// Returns the queue pair's state.
    pub fn state(&self) -> State {
        self.pair.state()
    }

    /// Moves the queue pair from INIT to RTR, in which it serves the peer's requests. The soft provider
    /// accepts packets only from the peer's address and, with
    /// [`SourcePort::OfAddress`](crate::SourcePort::OfAddress), only from its port.
    ///
    /// # Errors
    /// [`NicError::State`](crate::NicError::State), [`SocketError::AddressFamily`](crate::SocketError::AddressFamily), [`NicError::DeviceFailed`](crate::NicError::DeviceFailed),
    /// [`NicError::ForkedChild`](crate::NicError::ForkedChild); [`SocketError::Os`](crate::SocketError::Os) if the kernel accepts no filter for the peer;
    /// [`Error::Verbs`] if a kernel device finds no route to the peer.
    pub fn to_rtr(&self, peer: &Endpoint, options: &ConnectionOptions) -> Result<()> {
        let (local, remote) = (self.domain.device().address().ip(), peer.address.ip());
        if local.is_ipv4() != remote.is_ipv4() {
            return Err(SocketError::AddressFamily {
                local,
                peer: remote,
            }
            .into());
        }
        self.pair.to_rtr(peer, options)
    }

    /// Moves the queue pair from RTR to RTS, in which requests can be posted.
    ///
    /// # Errors
    /// [`NicError::State`](crate::NicError::State), [`NicError::DeviceFailed`](crate::NicError::DeviceFailed), [`NicError::ForkedChild`](crate::NicError::ForkedChild), [`Error::Verbs`].
    pub fn to_rts(&self, options: &ConnectionOptions) -> Result<()> {
        self.pair.to_rts(self.psn, options)
    }

    /// Moves the queue pair from INIT to RTS. The side that connects first retransmits its requests until
    /// the other side is connected too.
    ///
    /// # Errors
    /// Same as [`QueuePair::to_rtr`].
    pub fn connect(&self, peer: &Endpoint, options: &ConnectionOptions) -> Result<()> {
        self.to_rtr(peer, options)?;
        self.to_rts(options)
    }

    /// Moves the queue pair to ERR: all posted requests are flushed, and complete with that status.
    pub fn to_error(&self) {
        self.pair.to_error();
    }

    /// Posts a request to the send queue (`ibv_post_send`). Its first packets are sent within this call.
    /// While earlier requests of this queue pair are outstanding, the soft provider may defer up to
    /// eight short requests, and send them together with the next post, poll or wait; even without one,
    /// they are sent at most a millisecond later.
    ///
    /// # Errors
    /// [`NicError::Post`](crate::NicError::Post), [`NicError::Foreign`](crate::NicError::Foreign), [`Error::Verbs`]; the request was not posted.
    pub fn post_send(&self, mut request: SendRequest) -> Result<()> {
        self.domain.check_segments(request.segments())?;
        self.pair.post_sends(slice::from_mut(&mut request)).1
    }

    /// Prepares a request, so that posting it later takes less time: for a kernel device, the request is
    /// checked and built now. The soft provider gains nothing, and checks the request when it is posted.
    ///
    /// If the time from a completion to the next post matters, prepare the next request while one is in
    /// flight:
    ///
    /// ```no_run
    /// # use gdr_rdma::{Deadline, QueuePair, Result, SendRequest};
    /// # fn one_by_one(pair: &QueuePair, requests: Vec<SendRequest>, deadline: Deadline) -> Result<()> {
    /// let mut requests = requests.into_iter();
    /// let mut next = requests.next().map(|request| pair.prepare(request)).transpose()?;
    /// while let Some(mut prepared) = next {
    ///     prepared.post()?;
    ///     next = requests.next().map(|request| pair.prepare(request)).transpose()?;
    ///     pair.send_queue().wait(deadline)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Same as [`QueuePair::post_send`].
    pub fn prepare(&self, request: SendRequest) -> Result<PreparedSend<'_>> {
        self.domain.check_segments(request.segments())?;
        Ok(PreparedSend {
            request: self.pair.prepare(request)?,
            pair: self,
        })
    }

    /// Posts several requests, in order. This takes fewer system calls than single posts, because short
    /// messages share them.
    ///
    /// Before the first request is posted, up to one more than the send queue can hold are taken from
    /// `requests`. So the iterator may use the device and its queues, but must not wait for the
    /// completion of a request that it has yielded in the same call.
    ///
    /// # Errors
    /// The error for the first request that was refused, and the number of requests posted before it.
    pub fn post_sends(
        &self,
        requests: impl IntoIterator<Item = SendRequest>,
    ) -> std::result::Result<(), BatchPostError> {
        let most = (self.queues.capabilities.max_send_wr as usize).saturating_add(1);
        let mut requests = requests.into_iter();
        let mut posted = 0;
        loop {
            // The iterator runs code of the program, so no lock may be held.
            let (least, at_most) = requests.size_hint();
            let expected = at_most.unwrap_or(least).min(most);
            let mut batch = SmallVec::<[SendRequest; 4]>::with_capacity(expected);
            let mut foreign = Ok(());
            for request in requests.by_ref().take(most) {
                if !self.domain.owns(request.segments()) {
                    foreign = self.domain.check_segments(request.segments());
                    break;
                }
                batch.push(request);
            }
            let (count, outcome) = self.pair.post_sends(&mut batch);
            posted += count;
            // More requests than the queue holds are posted only in ERR, where they are flushed at
            // once.
            if let Err(error) = outcome.and(foreign) {
                return Err(BatchPostError { posted, error });
            }
            if count < most {
                return Ok(());
            }
        }
    }

    /// Posts a receive (`ibv_post_recv`).
    ///
    /// # Errors
    /// [`NicError::Post`](crate::NicError::Post), [`NicError::Foreign`](crate::NicError::Foreign), [`Error::Verbs`]; the request was not posted.
    pub fn post_recv(&self, request: RecvRequest) -> Result<()> {
        self.domain.check_segments(&request.segments)?;
        self.pair.post_recv(request)
    }
}

/// A request that a queue pair has checked and built (see [`QueuePair::prepare`]). It can be posted more
/// than once, and keeps its regions registered until it is dropped.
#[must_use]
pub struct PreparedSend<'a> {
    request: Box<dyn PreparedSendOps + 'a>,
    pair: &'a QueuePair,
}

impl PreparedSend<'_> {
    /// Posts the request, like [`QueuePair::post_send`]. Each call posts another request with the same
    /// identifier, memory and inline bytes.
    ///
    /// # Errors
    /// Same as [`QueuePair::post_send`]; the request was not posted.
    #[inline]
    pub fn post(&mut self) -> Result<()> {
        self.request.post()
    }
}

impl fmt::Debug for PreparedSend<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedSend")
            .field("pair", self.pair)
            .finish_non_exhaustive()
    }
}
