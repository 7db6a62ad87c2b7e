//! Queue pairs for datagrams.

use gdr_nic::Datagrams;
use gdr_roce::{Capabilities, Mtu, PostError, Psn, Qkey, Qpn, State};

use crate::completion_queue::CompletionQueue;
use crate::error::{Feature, Result, SocketError};
use crate::pair_queues::PairQueues;
use crate::protection_domain::ProtectionDomain;
use crate::provider::nic::work_request::{KeyedSegments, data, take};
use crate::provider::nic::{post_recv, with_queues};
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::types::UdEndpoint;
use crate::work_request::{RecvRequest, UdSendRequest};
use gdr_nic::random_number;

/// Options for creating a queue pair for datagrams.
#[derive(Clone, Debug)]
#[must_use]
pub struct UdQueuePairOptions {
    queues: PairQueues,
    qkey: Qkey,
    mtu: Mtu,
}

impl UdQueuePairOptions {
    /// Accepts datagrams with the queue key `qkey`. The defaults are `queue` for the completions of sends
    /// and receives, 128 requests in each direction, 256 inline bytes, and messages of up to 1024 bytes,
    /// which fit into one Ethernet packet.
    pub fn new(queue: &CompletionQueue, qkey: Qkey) -> Self {
        Self {
            queues: PairQueues::new(queue),
            qkey,
            mtu: Mtu::B1024,
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

    /// Sets the maximum message length, for both directions.
    pub fn mtu(mut self, mtu: Mtu) -> Self {
        self.mtu = mtu;
        self
    }
}

/// A queue pair for unreliable datagrams (UD), which sends single-packet messages to any queue pair for
/// datagrams, and receives them from any host. It is destroyed on drop.
///
/// A message may be lost without notice: a successful completion only means that the message was passed
/// to the kernel. The receiver drops a message if its queue key is wrong or no receive is posted.
///
/// A header of 40 bytes precedes each received message ([`Grh`](gdr_roce::wire::Grh)) and contains the
/// sender's address: an IPv6 header, or 20 zeros and an IPv4 header.
/// [`Completion::byte_len`](crate::Completion::byte_len) includes it, and
/// [`Completion::source_qpn`](crate::Completion::source_qpn) is the sender's queue pair. The packet's
/// type of service, hop limit and identification are in the header only if a raw socket received the
/// packet (see [`Integrity::IcrcOrChecksum`](crate::Integrity::IcrcOrChecksum)).
///
/// If a message does not fit into its receive, the receive completes with
/// [`WcStatus::LocalLength`](crate::WcStatus::LocalLength), and the queue pair continues. A request to
/// send more than the path MTU completes with the same status, and moves the queue pair to SQE, in which
/// it still receives, while its sends are flushed.
#[derive(Debug)]
pub struct UdQueuePair {
    // Field order is drop order: it is destroyed before what it was made from.
    pair: gdr_nic::QueuePair<Datagrams>,
    domain: ProtectionDomain,
    queues: PairQueues,
    qkey: Qkey,
}

impl ProtectionDomain {
    /// Creates a queue pair for datagrams (`ibv_create_qp` with `IBV_QPT_UD`) in INIT, in which receives
    /// can be posted.
    ///
    /// # Errors
    /// [`Error::NotOffered`](crate::Error::NotOffered) with the verbs provider; [`NicError::Foreign`](crate::NicError::Foreign) for completion queues of
    /// another device, or a shared receive queue of another domain; [`NicError::DeviceFailed`](crate::NicError::DeviceFailed),
    /// [`NicError::ForkedChild`](crate::NicError::ForkedChild).
    pub fn ud_queue_pair(&self, options: &UdQueuePairOptions) -> Result<UdQueuePair> {
        self.device().check_process()?;
        let queues = options.queues.of(self)?;
        let nic = self.device().nic(Feature::Datagrams)?;
        let pair = with_queues(&queues, |queues_of_nic| {
            nic.ud_queue_pair(self.id(), queues_of_nic, queues.capabilities, options.mtu)
        })?;
        pair.to_init(options.qkey)?;
        Ok(UdQueuePair {
            pair,
            domain: self.clone(),
            queues: options.queues.clone(),
            qkey: options.qkey,
        })
    }
}

impl UdQueuePair {
    /// Returns the queue pair's number.
    pub fn qpn(&self) -> Qpn {
        self.pair.qpn()
    }

    /// Returns what a sender needs to know.
    pub fn endpoint(&self) -> UdEndpoint {
        UdEndpoint {
            address: self.domain.device().address(),
            qpn: self.qpn(),
            qkey: self.qkey,
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

    /// Moves the queue pair from INIT to RTR, in which it receives datagrams from any address.
    ///
    /// # Errors
    /// [`NicError::State`](crate::NicError::State), [`NicError::DeviceFailed`](crate::NicError::DeviceFailed), [`NicError::ForkedChild`](crate::NicError::ForkedChild); [`SocketError::Os`](crate::SocketError::Os) if the
    /// kernel accepts no filter for it.
    pub fn to_rtr(&self) -> Result<()> {
        Ok(self.pair.to_rtr()?)
    }

    /// Moves the queue pair from RTR to RTS, in which requests can be posted.
    ///
    /// # Errors
    /// [`NicError::State`](crate::NicError::State), [`NicError::DeviceFailed`](crate::NicError::DeviceFailed), [`NicError::ForkedChild`](crate::NicError::ForkedChild), [`SocketError::Os`](crate::SocketError::Os).
    pub fn to_rts(&self) -> Result<()> {
        Ok(self.pair.to_rts(Psn::new(random_number()?))?)
    }

    /// Moves the queue pair to ERR: all posted requests are flushed, and complete with that status.
    pub fn to_error(&self) {
        // In a forked child the queue pair belongs to the parent.
        let _ = self.pair.to_error();
    }

    /// Posts a request to the send queue. Its packet is sent within this call, if the kernel has room.
    ///
    /// # Errors
    /// [`SocketError::AddressFamily`](crate::SocketError::AddressFamily) for an address of another family than the device's;
    /// [`NicError::Post`](crate::NicError::Post), [`NicError::Foreign`](crate::NicError::Foreign), [`NicError::ForkedChild`](crate::NicError::ForkedChild); the request was not posted.
    pub fn post_send(&self, mut request: UdSendRequest) -> Result<()> {
        let local = self.domain.device().address().ip();
        let peer = request.to.address.ip();
        if local.is_ipv4() != peer.is_ipv4() {
            return Err(SocketError::AddressFamily { local, peer }.into());
        }
        self.domain.check_segments(request.segments())?;
        let mut segments = KeyedSegments::new();
        let posted = self.pair.post_sends(|queue| {
            queue.push(&gdr_roce::UdSendRequest {
                id: request.id,
                to: request.to.address,
                dest_qpn: request.to.qpn,
                qkey: request.to.qkey,
                immediate: request.immediate,
                data: data(&request.data, &mut segments),
                flags: request.flags,
            })?;
            queue.retain(take(&mut request.data));
            Ok::<(), PostError>(())
        })?;
        Ok(posted?)
    }

    /// Posts a receive. Its segments need room for 40 bytes besides the message.
    ///
    /// # Errors
    /// [`NicError::Post`](crate::NicError::Post), [`NicError::Foreign`](crate::NicError::Foreign), [`NicError::ForkedChild`](crate::NicError::ForkedChild); the request was not posted.
    pub fn post_recv(&self, request: RecvRequest) -> Result<()> {
        self.domain.check_segments(&request.segments)?;
        post_recv(&self.pair, request)
    }
}
