//! Protection domains.

use std::sync::Arc;

use crate::device::Device;
use crate::provider::DomainOps;
use crate::types::Domain;

/// A protection domain: a group of regions and queue pairs that may be used together.
///
/// A queue pair can access only regions in its own domain, both for its own requests and for its
/// peer's. A clone refers to the same domain.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    device: Device,
    id: Domain,
    domain: Arc<dyn DomainOps>,
}

impl Device {
    /// Creates a protection domain (`ibv_alloc_pd`).
    pub fn protection_domain(&self) -> ProtectionDomain {
        let id = Domain::new();
        ProtectionDomain {
            device: self.clone(),
            id,
            domain: self.ops().create_domain(id),
        }
    }
}

impl ProtectionDomain {
    /// Returns the device that the domain belongs to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    #[inline]
    pub(crate) fn id(&self) -> Domain {
        self.id
    }

    pub(crate) fn ops(&self) -> &Arc<dyn DomainOps> {
        &self.domain
    }
}
