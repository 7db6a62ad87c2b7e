//! Raw packets: whole Ethernet frames.

use std::result;

use gdr_roce::{Capabilities, FrameSendRequest, PostError, Qpn, RawPacketQueuePair, State};

use crate::device::Device;
use crate::error::{Error, Foreign, Result};
use crate::queue_pair::{QueuePair, Queues};
use crate::send_queue::SendQueue;
use crate::service::Service;
use crate::shard::transport::Transport;
use crate::types::Domain;
use gdr_udp::FlowId;
use gdr_udp::FlowRule;
use gdr_udp::Spread;

/// The service of raw packets: a [`QueuePair<RawPackets>`](QueuePair) sends and receives whole Ethernet
/// frames at the network interface that has the device's address. It is destroyed with its flows.
///
/// It receives the frames of its [flows](QueuePair::create_flow) that arrive at the interface, as they are on the
/// wire, but without the frame check sequence. Frames that this host sends arrive only on the loopback interface.
/// The kernel also gets every frame. Flows persist across all states.
#[derive(Debug)]
pub enum RawPackets {}

impl Service for RawPackets {
    type State = RawPacketQueuePair;

    fn of(transport: &mut Transport) -> Option<&mut Self::State> {
        transport.raw_packets()
    }

    fn withdraw_sends(protocol: &mut Self::State, count: usize) {
        protocol.withdraw_sends(count);
    }
}

impl SendQueue<'_, RawPackets> {
    /// Posts a request.
    ///
    /// # Errors
    /// [`PostError`]; the request was not posted.
    pub fn push(&mut self, request: &FrameSendRequest<'_>) -> result::Result<(), PostError> {
        let requests = &mut *self.requests;
        self.protocol.post_send(&FrameSendRequest {
            id: requests.next(),
            flags: requests.flags(request.flags),
            ..*request
        })?;
        requests.payload.send += requests.add_send(request.id, request.data, request.flags);
        Ok(())
    }
}

/// A flow, which ends when it is dropped.
#[derive(Debug)]
pub struct Flow {
    device: Device,
    qpn: Qpn,
    id: FlowId,
}

impl Device {
    /// Creates a raw packet queue pair in RESET. The first one on a device opens a packet socket.
    ///
    /// # Errors
    /// Same as [`Device::queue_pair`]; [`Error::Foreign`] for a shared receive queue, which raw packets
    /// cannot use; [`SocketError::PacketSocketDenied`](crate::SocketError::PacketSocketDenied) without CAP_NET_RAW; [`SocketError::NotEthernet`](crate::SocketError::NotEthernet);
    /// [`SocketError::AddressNotLocal`](crate::SocketError::AddressNotLocal); [`SocketError::Os`](crate::SocketError::Os).
    pub fn raw_packet_queue_pair(
        &self,
        domain: Domain,
        queues: Queues<'_>,
        capabilities: Capabilities,
    ) -> Result<QueuePair<RawPackets>> {
        if queues.shared_receives.is_some() {
            return Err(Error::Foreign(Foreign::SharedReceiveQueue));
        }
        let parts = queues.parts(self, domain, capabilities)?;
        // One engine owns the packet socket of a device.
        let shard = self.shards().first();
        shard.socket().open_packets()?;
        let qpn = shard.create_qp(parts, |qpn, capabilities, _| {
            Transport::RawPackets(RawPacketQueuePair::new(qpn, capabilities))
        })?;
        Ok(QueuePair::of(self, qpn))
    }
}

impl QueuePair<RawPackets> {
    /// Moves the queue pair from RESET to INIT.
    ///
    /// # Errors
    /// [`Error::State`], [`Error::DeviceFailed`], [`Error::ForkedChild`].
    pub fn to_init(&self) -> Result<()> {
        self.advance(State::Init, RawPacketQueuePair::to_init)
    }

    /// Moves the queue pair from INIT to RTR, in which it receives the frames of its flows.
    ///
    /// # Errors
    /// Same as [`QueuePair::to_init`].
    pub fn to_rtr(&self) -> Result<()> {
        self.advance(State::ReadyToReceive, RawPacketQueuePair::to_rtr)
    }

    /// Moves the queue pair from RTR to RTS, in which frames can be posted.
    ///
    /// # Errors
    /// Same as [`QueuePair::to_init`].
    pub fn to_rts(&self) -> Result<()> {
        self.advance(State::ReadyToSend, RawPacketQueuePair::to_rts)
    }

    fn advance(
        &self,
        to: State,
        change: impl FnOnce(&mut RawPacketQueuePair) -> result::Result<(), gdr_roce::StateError>,
    ) -> Result<()> {
        self.engine()?
            .advance_qp::<RawPackets>(self.qpn(), to, change)
    }

    /// Distributes the frames of its flows over other queue pairs from now on, and receives none itself. Frames for a
    /// queue pair that cannot receive are lost.
    ///
    /// # Errors
    /// [`Error::ForkedChild`].
    pub fn spread(&self, spread: Spread) -> Result<()> {
        self.engine()?.spread(self.qpn(), spread);
        Ok(())
    }

    /// Creates a flow, whose frames the queue pair receives.
    ///
    /// # Errors
    /// [`SocketError::Os`](crate::SocketError::Os) if the interface cannot receive such frames; [`Error::DeviceFailed`],
    /// [`Error::ForkedChild`].
    pub fn create_flow(&self, rule: FlowRule) -> Result<Flow> {
        Ok(Flow {
            id: self.engine()?.add_flow(self.qpn(), rule)?,
            qpn: self.qpn(),
            device: self.device().clone(),
        })
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        // In a forked child the flow belongs to the parent.
        if self.device.check_process().is_ok() {
            let shards = self.device.shards();
            shards.engine(self.qpn).remove_flow(self.id);
        }
    }
}
