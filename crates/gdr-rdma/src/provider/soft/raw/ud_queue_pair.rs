//! Queue pairs for datagrams that a front end takes through their states.

use std::net::SocketAddr;

use gdr_roce::{Capabilities, Mtu, PostError, Psn, Qkey, Qpn, State, UdSendRequest};

use super::device::Device;
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
    device: Device,
    qpn: Qpn,
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
            device: device.clone(),
            qpn: device.soft().create_qp(parts)?,
        })
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Its state; ERR in a forked child.
    pub fn state(&self) -> State {
        match self.device.check_process() {
            Ok(()) => self.device.soft().qp_state(self.qpn),
            Err(_) => State::Error,
        }
    }

    /// To RESET, from any state. Posted requests are discarded without a completion.
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn reset(&self) -> Result<()> {
        self.device.check_process()?;
        self.device.soft().reset_qp(self.qpn);
        Ok(())
    }

    /// From RESET to INIT.
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State), [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn to_init(&self, qkey: Qkey) -> Result<()> {
        self.device.check_process()?;
        self.device.soft().ud_to_init(self.qpn, qkey)
    }

    /// Changes the queue key, in any state but RESET.
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn set_qkey(&self, qkey: Qkey) -> Result<()> {
        self.device.check_process()?;
        self.device.soft().set_qkey(self.qpn, qkey);
        Ok(())
    }

    /// From INIT to RTR: datagrams are received.
    ///
    /// # Errors
    /// As [`crate::UdQueuePair::to_rtr`].
    pub fn to_rtr(&self) -> Result<()> {
        self.device.check_process()?;
        self.device.soft().ud_to_rtr(self.qpn)
    }

    /// From RTR to RTS: requests can be posted.
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State), [`Error::DeviceFailed`](crate::Error::DeviceFailed),
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn to_rts(&self, sq_psn: Psn) -> Result<()> {
        self.device.check_process()?;
        self.device.soft().ud_to_rts(self.qpn, sq_psn)
    }

    /// To ERR, from any state but RESET: all posted requests are flushed.
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn to_error(&self) -> Result<()> {
        self.device.check_process()?;
        self.device.soft().qp_to_error(self.qpn);
        Ok(())
    }

    /// Runs `post` on the send queue while the engine is locked; what it posted is sent then.
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn post_sends<T>(&self, post: impl FnOnce(&mut UdSendQueue<'_>) -> T) -> Result<T> {
        self.device.check_process()?;
        let soft = self.device.soft();
        soft.post_with(self.qpn, |qp| post(&mut UdSendQueue(qp)))
    }

    /// Runs `post` on the receive queue while the engine is locked.
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn post_recvs<T>(&self, post: impl FnOnce(&mut RecvQueue<'_>) -> T) -> Result<T> {
        self.device.check_process()?;
        let soft = self.device.soft();
        soft.post_recv_with(self.qpn, |qp| post(&mut RecvQueue(qp)))
    }
}

impl Drop for UdQueuePair {
    fn drop(&mut self) {
        // In a forked child the queue pair belongs to the parent.
        if self.device.check_process().is_ok() {
            self.device.soft().destroy_qp(self.qpn);
        }
    }
}

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
