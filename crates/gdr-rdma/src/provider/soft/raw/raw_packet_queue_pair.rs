//! Raw packet queue pairs that a front end takes through their states, and their flows.

use gdr_roce::{Capabilities, FrameSendRequest, PostError, Qpn, State};

use super::device::Device;
use super::qp_handle::{QpHandle, methods_of_all_services};
use super::queue_pair::{Queues, RecvQueue, parts};
use super::region::Domain;
use crate::error::{Error, Foreign, Result};
use crate::provider::soft::packets::FlowId;
use crate::provider::soft::packets::flow::FlowRule;
use crate::provider::soft::qp_context::QpContext;
use crate::provider::soft::shared_engine::Service;

/// A raw packet queue pair: it sends and receives whole Ethernet frames at the network interface
/// that has the device's address. Dropping it destroys it with its flows: its requests get no
/// completion.
///
/// It receives the frames of its [flows](RawPacketQueuePair::create_flow) that arrive at the
/// interface, as they are on the wire, but for the frame check sequence. What this host sends
/// arrives on the loopback interface only. The kernel gets a copy of every frame, too. Flows stay in
/// every state.
#[derive(Debug)]
pub struct RawPacketQueuePair {
    handle: QpHandle,
}

/// A flow, which ends when it is dropped.
#[derive(Debug)]
pub struct Flow {
    device: Device,
    qpn: Qpn,
    id: FlowId,
}

impl Device {
    /// Makes a raw packet queue pair in RESET. The first one of a device opens a packet socket.
    ///
    /// # Errors
    /// As [`Device::queue_pair`]; [`Error::Foreign`] for a shared receive queue, which raw packets
    /// cannot use; [`Error::PacketSocketDenied`] without CAP_NET_RAW; [`Error::NotEthernet`];
    /// [`Error::AddressNotLocal`]; [`Error::Os`].
    pub fn raw_packet_queue_pair(
        &self,
        domain: Domain,
        queues: Queues<'_>,
        capabilities: Capabilities,
    ) -> Result<RawPacketQueuePair> {
        if queues.shared_receives.is_some() {
            return Err(Error::Foreign(Foreign::SharedReceiveQueue));
        }
        let parts = parts(self, domain, queues, capabilities, Service::RawPackets)?;
        Ok(RawPacketQueuePair {
            handle: QpHandle::new(self, parts)?,
        })
    }
}

impl RawPacketQueuePair {
    /// From RESET to INIT.
    ///
    /// # Errors
    /// [`Error::State`], [`Error::DeviceFailed`], [`Error::ForkedChild`].
    pub fn to_init(&self) -> Result<()> {
        let soft = self.handle.soft()?;
        soft.change_raw_packets(self.qpn(), State::Init, |pair| pair.to_init())
    }

    /// From INIT to RTR: the frames of its flows are received.
    ///
    /// # Errors
    /// As [`RawPacketQueuePair::to_init`].
    pub fn to_rtr(&self) -> Result<()> {
        let soft = self.handle.soft()?;
        soft.change_raw_packets(self.qpn(), State::ReadyToReceive, |pair| pair.to_rtr())
    }

    /// From RTR to RTS: frames can be posted.
    ///
    /// # Errors
    /// As [`RawPacketQueuePair::to_init`].
    pub fn to_rts(&self) -> Result<()> {
        let soft = self.handle.soft()?;
        soft.change_raw_packets(self.qpn(), State::ReadyToSend, |pair| pair.to_rts())
    }

    /// Lets it receive the frames of a flow.
    ///
    /// # Errors
    /// [`Error::Os`] if the interface cannot receive such frames; [`Error::DeviceFailed`],
    /// [`Error::ForkedChild`].
    pub fn create_flow(&self, rule: FlowRule) -> Result<Flow> {
        Ok(Flow {
            id: self.handle.soft()?.add_flow(self.qpn(), rule)?,
            qpn: self.qpn(),
            device: self.handle.device().clone(),
        })
    }
}

methods_of_all_services!(RawPacketQueuePair posts FrameSendQueue);

impl Drop for Flow {
    fn drop(&mut self) {
        // As above.
        if self.device.check_process().is_ok() {
            let soft = self.device.soft();
            soft.engine(self.qpn).remove_flow(self.id);
        }
    }
}

/// The send queue of a raw packet queue pair whose engine is locked.
pub struct FrameSendQueue<'a>(&'a mut QpContext);

impl FrameSendQueue<'_> {
    /// Posts a frame.
    ///
    /// # Errors
    /// [`PostError`]; the frame was not posted.
    pub fn push(&mut self, request: &FrameSendRequest<'_>) -> std::result::Result<(), PostError> {
        self.0.post_frame(request)
    }
}
