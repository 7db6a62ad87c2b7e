//! Queue pairs for datagrams of the soft provider.

use std::sync::Arc;

use gdr_roce::{Psn, Qpn, State};

use super::device::SoftDevice;
use super::queue_pair::create;
use super::shared_engine::Service;
use crate::error::Result;
use crate::provider::{UdQueuePairInit, UdQueuePairOps};
use crate::types::DomainId;
use crate::work_request::{RecvRequest, UdSendRequest};

/// A queue pair for datagrams. Its state is in the engine, which knows it by its number.
#[derive(Debug)]
pub(super) struct SoftUdQueuePair {
    device: Arc<SoftDevice>,
    qpn: Qpn,
}

impl SoftUdQueuePair {
    pub(super) fn new(
        device: &Arc<SoftDevice>,
        domain: DomainId,
        init: &UdQueuePairInit<'_>,
    ) -> Result<Self> {
        let qpn = create(device, domain, init.queues, Service::Datagrams(init.mtu))?;
        device.engine(qpn).ud_to_init(qpn, init.qkey)?;
        Ok(Self {
            device: Arc::clone(device),
            qpn,
        })
    }
}

impl UdQueuePairOps for SoftUdQueuePair {
    fn qpn(&self) -> Qpn {
        self.qpn
    }

    fn state(&self) -> State {
        match self.device.check_process() {
            Ok(()) => self.device.engine(self.qpn).qp_state(self.qpn),
            Err(_) => State::Error,
        }
    }

    fn to_rtr(&self) -> Result<()> {
        self.device.check_process()?;
        self.device.engine(self.qpn).ud_to_rtr(self.qpn)
    }

    fn to_rts(&self, sq_psn: Psn) -> Result<()> {
        self.device.check_process()?;
        self.device.engine(self.qpn).ud_to_rts(self.qpn, sq_psn)
    }

    fn to_error(&self) {
        // In a forked child the queue pair belongs to the parent.
        if self.device.check_process().is_ok() {
            self.device.engine(self.qpn).qp_to_error(self.qpn);
        }
    }

    fn post_sends(&self, requests: &mut [UdSendRequest]) -> (usize, Result<()>) {
        match self.device.check_process() {
            Ok(()) => self
                .device
                .engine(self.qpn)
                .post_ud_sends(self.qpn, requests),
            Err(error) => (0, Err(error)),
        }
    }

    fn post_recv(&self, request: RecvRequest) -> Result<()> {
        self.device.check_process()?;
        self.device.engine(self.qpn).post_recv(self.qpn, request)
    }
}

impl Drop for SoftUdQueuePair {
    fn drop(&mut self) {
        // In a forked child the queue pair belongs to the parent.
        if self.device.check_process().is_ok() {
            self.device.engine(self.qpn).destroy_qp(self.qpn);
        }
    }
}
