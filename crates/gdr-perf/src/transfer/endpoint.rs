//! A device and its memory, for consecutive measurements.

use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;

use gdr_rdma::{Device, Listener, ProtectionDomain, Security};

use super::memory::{EndMemory, LocalEnd};
use super::plan::{Plan, Request};
use super::report::{TransferEvent, TransferReport};
use super::run;
use super::threshold::Thresholds;
use crate::error::Result;
use crate::loopback::Timeouts;
use crate::report::CpuPlacement;

/// A device and its memory, for consecutive measurements with the same peer or with different ones.
///
/// The memory is allocated and registered for the first measurement, and again only if a measurement needs a different
/// length. Each measurement has its own queue pairs and overwrites the memory before its first request, so bytes of one
/// measurement do not pass in the next.
pub struct TransferEndpoint<'a> {
    // Fields drop in order: the regions before their domain.
    registered: Option<(u64, EndMemory)>,
    domain: ProtectionDomain,
    own: LocalEnd<'a>,
}

impl<'a> TransferEndpoint<'a> {
    /// Creates an end that has no memory yet.
    pub fn new(device: &Device, own: impl Into<LocalEnd<'a>>) -> Self {
        Self {
            registered: None,
            domain: device.protection_domain(),
            own: own.into(),
        }
    }

    /// Like [`measure`](super::measure).
    ///
    /// # Errors
    /// Same as [`measure`](super::measure).
    pub fn measure(
        &mut self,
        peer: SocketAddr,
        security: &Security,
        plan: &Plan,
        thresholds: &Thresholds,
        observe: &mut dyn FnMut(TransferEvent<'_>) -> ControlFlow<()>,
    ) -> Result<TransferReport> {
        run::measure_at(self, peer, security, plan, thresholds, observe)
    }

    /// Like [`serve`](super::serve).
    ///
    /// # Errors
    /// Same as [`serve`](super::serve).
    pub fn serve(
        &mut self,
        listener: &Listener,
        security: &Security,
        timeouts: Timeouts,
        observe: &mut dyn FnMut(TransferEvent<'_>) -> ControlFlow<()>,
    ) -> Result<TransferReport> {
        run::serve_at(self, listener, security, timeouts, observe)
    }

    pub(super) fn device(&self) -> &Device {
        self.domain.device()
    }

    /// Returns the address from which it connects, if it differs from its device's.
    pub(super) fn connect_from(&self) -> Option<IpAddr> {
        self.own.connect_from
    }

    /// Refuses a choice of the peer that this end does not accept.
    pub(super) fn expects(&self, request: &Request) -> Result<()> {
        match &self.own.expected {
            Some(expected) => Ok(expected.check(request)?),
            None => Ok(()),
        }
    }

    /// Returns the CPUs that its process was bound to.
    pub(super) fn cpus(&self) -> Option<&CpuPlacement> {
        self.own.cpus.as_ref()
    }

    /// Returns the domain, and both buffers with `len` bytes each.
    pub(super) fn registered(&mut self, len: u64) -> Result<(&ProtectionDomain, &EndMemory)> {
        let kept = self.registered.take().filter(|(kept, _)| *kept == len);
        let (_, memory) = match kept {
            Some(kept) => self.registered.insert(kept),
            None => {
                let memory = EndMemory::new(&self.domain, &self.own, len)?;
                self.registered.insert((len, memory))
            }
        };
        Ok((&self.domain, memory))
    }
}
