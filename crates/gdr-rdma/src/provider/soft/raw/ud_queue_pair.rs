//! Queue pairs for datagrams that a front end takes through their states.

use std::net::SocketAddr;

use gdr_roce::{Capabilities, Mtu, PostError, Psn, Qkey, Qpn, State, UdSendRequest};

use super::device::Device;
use super::qp_handle::{QpHandle, methods_of_all_services};
use super::queue_pair::{Queues, RecvQueue, parts};
use super::region::Domain;
use crate::error::Result;
use crate::provider::soft::qp_context::QpContext;
use crate::provider::soft::shared_engine::Service;

/// A queue pair for datagrams (UD). Dropping it destroys it: its requests get no completion.
///
/// See [`crate::UdQueuePair`] for what receives get. A request to an address of another family than
/// the device's is sent nowhere.
#[derive(Debug)]
pub struct UdQueuePair {
    handle: QpHandle,
}

impl Device {
    /// Makes a queue pair for datagrams of at most `mtu` bytes, in RESET.
    ///
    /// # Errors
    /// As [`Device::queue_pair_with`].
    pub fn ud_queue_pair(
        &self,
        domain: Domain,
        queues: Queues<'_>,
        capabilities: Capabilities,
        mtu: Mtu,
    ) -> Result<UdQueuePair> {
        UdQueuePair::new(self, domain, queues, capabilities, mtu)
    }
}

impl UdQueuePair {
    pub(super) fn new(
        device: &Device,
        domain: Domain,
        queues: Queues<'_>,
        capabilities: Capabilities,
        mtu: Mtu,
    ) -> Result<Self> {
        let service = Service::Datagrams(mtu);
        let parts = parts(device, domain, queues, capabilities, service)?;
        Ok(Self {
            handle: QpHandle::new(device, parts)?,
        })
    }

    /// From RESET to INIT.
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State), [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn to_init(&self, qkey: Qkey) -> Result<()> {
        self.handle.soft()?.ud_to_init(self.qpn(), qkey)
    }

    /// Changes the queue key, in any state but RESET.
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn set_qkey(&self, qkey: Qkey) -> Result<()> {
        self.handle.soft()?.set_qkey(self.qpn(), qkey);
        Ok(())
    }

    /// From INIT to RTR: datagrams are received.
    ///
    /// # Errors
    /// As [`crate::UdQueuePair::to_rtr`].
    pub fn to_rtr(&self) -> Result<()> {
        self.handle.soft()?.ud_to_rtr(self.qpn())
    }

    /// From RTR to RTS: requests can be posted.
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State), [`Error::DeviceFailed`](crate::Error::DeviceFailed),
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn to_rts(&self, sq_psn: Psn) -> Result<()> {
        self.handle.soft()?.ud_to_rts(self.qpn(), sq_psn)
    }
}

methods_of_all_services!(UdQueuePair posts UdSendQueue);

/// The send queue of a queue pair for datagrams whose engine is locked.
pub struct UdSendQueue<'a>(&'a mut QpContext);

impl UdSendQueue<'_> {
    /// Posts a request.
    ///
    /// # Errors
    /// [`PostError`]; the request was not posted.
    pub fn push(
        &mut self,
        request: &UdSendRequest<'_, SocketAddr>,
    ) -> std::result::Result<(), PostError> {
        self.0.post_raw_ud_send(request)
    }
}
