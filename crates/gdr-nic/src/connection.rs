//! Connections (RC, UC).

use gdr_roce::{
    Access, Capabilities, Operation, PostError, Reliability, RnrTimer, RtrAttributes,
    RtsAttributes, SendRequest, State, StateError, Time, TransportConfig, XrcSrqn,
};

use crate::device::Device;
use crate::error::Result;
use crate::peer::Peer;
use crate::queue_pair::{QueuePair, Queues};
use crate::send_queue::SendQueue;
use crate::service::Service;
use crate::shard::transport::Transport;
use crate::types::Domain;
use gdr_udp::SourcePort;

/// The service of a connection: [`QueuePair<Connection>`](QueuePair) is one end of it, reliable (RC) or
/// unreliable (UC).
#[derive(Debug)]
pub enum Connection {}

impl Service for Connection {
    type State = gdr_roce::QueuePair;

    fn of(transport: &mut Transport) -> Option<&mut Self::State> {
        transport.connection()
    }

    fn withdraw_sends(protocol: &mut Self::State, count: usize) {
        protocol.withdraw_sends(count);
    }
}

impl SendQueue<'_, Connection> {
    /// Posts a request.
    ///
    /// # Errors
    /// [`PostError`]; the request was not posted.
    pub fn push(&mut self, request: &SendRequest<'_>) -> std::result::Result<(), PostError> {
        if let Some(mut ring) = self.ring.take()
            && let Some(len) = ring.write(self, request)
        {
            ring.rings.push(len);
            (self.ring, self.has_written) = (Some(ring), true);
            return Ok(());
        }
        // Later requests wait for this one.
        let numbered = self.numbered(request);
        self.protocol.post_send(&numbered)?;
        self.record(request);
        Ok(())
    }

    /// Posts a request of an extended connection, whose receive is in the peer's shared queue with this number.
    ///
    /// # Errors
    /// [`PostError`]; the request was not posted.
    pub fn push_to(
        &mut self,
        receives: XrcSrqn,
        request: &SendRequest<'_>,
    ) -> std::result::Result<(), PostError> {
        let numbered = self.numbered(request);
        self.protocol.post_send_to(receives, &numbered)?;
        self.record(request);
        Ok(())
    }

    /// Posts a request and writes its only packet to `out`. Returns `None`, with nothing posted, unless it is a usual
    /// one; see [`gdr_roce::QueuePair::post_and_transmit`].
    #[inline(always)]
    pub(crate) fn push_and_transmit<E>(
        &mut self,
        request: &SendRequest<'_>,
        now: Time,
        fill: impl FnOnce(&mut [u8]) -> std::result::Result<(), E>,
        out: &mut [u8],
    ) -> Option<usize> {
        let numbered = self.numbered(request);
        let len = self.protocol.post_and_transmit(&numbered, now, fill, out)?;
        self.record(request);
        Some(len)
    }

    /// The request as the protocol knows it.
    fn numbered<'r>(&self, request: &SendRequest<'r>) -> SendRequest<'r> {
        SendRequest {
            id: self.requests.next(),
            flags: self.requests.flags(request.flags),
            ..*request
        }
    }

    /// Records a request that was posted.
    fn record(&mut self, request: &SendRequest<'_>) {
        let requests = &mut *self.requests;
        let len = requests.add_send(request.id, request.data, request.flags);
        let payload = &mut requests.payload;
        let counted = match request.operation {
            Operation::Send { .. } | Operation::SendInvalidate { .. } => &mut payload.send,
            Operation::Bind { .. } | Operation::Invalidate { .. } | Operation::Flush { .. } => {
                return;
            }
            Operation::Write { .. } | Operation::AtomicWrite { .. } => &mut payload.write,
            Operation::Read { .. } => &mut payload.read,
            Operation::Atomic { .. } => &mut payload.atomic,
        };
        *counted += len;
    }
}

impl Device {
    /// Makes one end of a connection, in RESET; of an extended one, the end that sends requests.
    ///
    /// # Errors
    /// [`Error::Foreign`](crate::Error::Foreign) for completion queues of another device, or a shared receive queue of another
    /// domain; [`Error::TooManyQueuePairs`](crate::Error::TooManyQueuePairs), [`Error::DeviceFailed`](crate::Error::DeviceFailed), [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn queue_pair(
        &self,
        domain: Domain,
        queues: Queues<'_>,
        capabilities: Capabilities,
        reliability: Reliability,
    ) -> Result<QueuePair<Connection>> {
        let parts = queues.parts(self, domain, capabilities)?;
        let shard = self.shards().assign(&parts);
        let qpn = shard.create_qp(parts, |qpn, capabilities, shared| {
            Transport::Connection(match (reliability, shared) {
                (Reliability::Unreliable, shared) => {
                    gdr_roce::QueuePair::unreliable(qpn, capabilities, shared)
                }
                (Reliability::Extended, _) => {
                    let config = config(shard.receive_buffer());
                    gdr_roce::QueuePair::initiator(qpn, capabilities, config)
                        .with_packet_budget(shard.packet_budget())
                }
                (Reliability::Reliable, Some(shared)) => {
                    let config = config(shard.receive_buffer());
                    gdr_roce::QueuePair::with_shared_receives(qpn, capabilities, config, shared)
                        .with_packet_budget(shard.packet_budget())
                }
                (Reliability::Reliable, None) => {
                    let config = config(shard.receive_buffer());
                    gdr_roce::QueuePair::with_config(qpn, capabilities, config)
                        .with_packet_budget(shard.packet_budget())
                }
            })
        })?;
        Ok(QueuePair::of(self, qpn))
    }
}

/// The windows of a reliable connection, which fit the receive buffer of a peer's socket.
pub(crate) fn config(receive_buffer: usize) -> TransportConfig {
    /// The bytes that a full packet takes of a socket's receive buffer, bookkeeping included.
    const PACKET: usize = 4608;
    // Both ends are assumed to be alike. 128 is the window of Linux's rxe; on one host a larger one
    // brings no more throughput, as the packets evict each other from the CPU's cache.
    let window = (receive_buffer / 2 / PACKET).clamp(16, 128) as u32;
    TransportConfig::DEFAULT
        .with_window(window)
        .with_read_packets(window / 2)
        .with_ack_request_interval(window / 4)
        .with_ack_interval(window / 4)
}

impl QueuePair<Connection> {
    /// The UDP port from which it sends.
    pub fn source_port(&self) -> SourcePort {
        self.device().shards().source_port()
    }

    /// Posts a request. Unlike [`post_sends`](Self::post_sends), it does not wait while another thread drives the
    /// engine, if the request is short: that thread then posts and sends it.
    ///
    /// # Errors
    /// [`Error::Post`](crate::Error::Post), [`Error::ForkedChild`](crate::Error::ForkedChild); the request was not posted.
    pub fn post_send(&self, request: &SendRequest<'_>) -> Result<()> {
        self.engine()?.post_send(self.qpn(), request)
    }

    /// From RESET to INIT. The peer is allowed `access` at most.
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State), [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn to_init(&self, access: Access) -> Result<()> {
        self.change(State::Init, |protocol| protocol.to_init(access))
    }

    /// Changes what the peer is allowed, in any state but RESET.
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn set_access(&self, access: Access) -> Result<()> {
        self.set(|protocol| protocol.set_access(access))
    }

    /// Changes the attributes of the requester, but for its PSN.
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn set_rts_attributes(&self, attributes: &RtsAttributes) -> Result<()> {
        self.set(|protocol| protocol.set_rts_attributes(attributes))
    }

    /// Changes the wait time in RNR NAKs.
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn set_min_rnr_timer(&self, timer: RnrTimer) -> Result<()> {
        self.set(|protocol| protocol.set_min_rnr_timer(timer))
    }

    /// Changes how many READs and atomics the peer may have outstanding.
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn set_max_dest_rd_atomic(&self, most: u8) -> Result<()> {
        self.set(|protocol| protocol.set_max_dest_rd_atomic(most))
    }

    /// Sends packets to another peer, and accepts packets from it only.
    ///
    /// # Errors
    /// Same as [`Self::to_rtr`].
    pub fn set_peer(&self, peer: impl Into<Peer>) -> Result<()> {
        let peer = self.check_family(peer.into())?;
        self.engine()?.move_peer(self.qpn(), peer)
    }

    /// From INIT to RTR: requests of the peer are served. Packets are sent to `peer`, and accepted only
    /// from it.
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State), [`SocketError::AddressFamily`](crate::SocketError::AddressFamily), [`Error::DeviceFailed`](crate::Error::DeviceFailed), [`Error::ForkedChild`](crate::Error::ForkedChild);
    /// [`SocketError::Os`](crate::SocketError::Os) if the kernel accepts no filter for the peer.
    pub fn to_rtr(&self, peer: impl Into<Peer>, attributes: &RtrAttributes) -> Result<()> {
        let peer = self.check_family(peer.into())?;
        let engine = self.engine()?;
        let shards = self.device().shards();
        shards.reach(engine, peer.address, attributes.dest_qpn);
        engine.qp_to_rtr(self.qpn(), peer, attributes)
    }

    /// From RTR to RTS: requests can be posted.
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State), [`Error::DeviceFailed`](crate::Error::DeviceFailed), [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn to_rts(&self, attributes: &RtsAttributes) -> Result<()> {
        let engine = self.engine()?;
        engine.advance_qp::<Connection>(self.qpn(), State::ReadyToSend, |protocol| {
            protocol.to_rts(attributes)
        })
    }

    fn set(&self, change: impl FnOnce(&mut gdr_roce::QueuePair)) -> Result<()> {
        self.change(State::ReadyToSend, |protocol| {
            change(protocol);
            Ok(())
        })
    }

    fn change(
        &self,
        to: State,
        change: impl FnOnce(&mut gdr_roce::QueuePair) -> std::result::Result<(), StateError>,
    ) -> Result<()> {
        self.engine()?
            .change_qp::<Connection>(self.qpn(), to, change)
    }

    /// Fails for a peer of another address family than the device's.
    fn check_family(&self, peer: Peer) -> Result<Peer> {
        let (local, remote) = (self.device().address().ip(), peer.address.ip());
        match local.is_ipv4() == remote.is_ipv4() {
            true => Ok(peer),
            false => Err(gdr_udp::Error::AddressFamily {
                local,
                peer: remote,
            }
            .into()),
        }
    }
}
