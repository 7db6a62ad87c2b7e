//! Protection domains of kernel devices.

use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use gdr_verbs_sys::{VerbError, ibv_pd};

use super::context::Context;
use super::memory_region;
use super::queue_pair::VerbsQueuePair;
use crate::error::{Result, VerbsError};
use crate::memory_region::{MemoryRange, Registration, RejectedMethods};
use crate::provider::{DomainOps, QueuePairInit, QueuePairOps};

/// A protection domain, allocated when first needed.
#[derive(Debug)]
pub(super) struct VerbsDomain {
    context: Arc<Context>,
    allocated: OnceLock<std::result::Result<Raw, VerbError>>,
}

/// The domain itself.
#[derive(Clone, Copy, Debug)]
struct Raw(NonNull<ibv_pd>);

// SAFETY: as for `Context`.
unsafe impl Send for Raw {}
// SAFETY: as for `Context`.
unsafe impl Sync for Raw {}

impl VerbsDomain {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            allocated: OnceLock::new(),
        }
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn raw(&self) -> std::result::Result<*mut ibv_pd, VerbsError> {
        let allocated = self.allocated.get_or_init(|| {
            // SAFETY: the context is open, and held by this.
            unsafe { self.context.verbs().ibv_alloc_pd(self.context.raw()) }.map(Raw)
        });
        match allocated {
            Ok(raw) => Ok(raw.0.as_ptr()),
            Err(error) => Err(self.context.failed(*error)),
        }
    }
}

impl DomainOps for VerbsDomain {
    fn register(
        self: Arc<Self>,
        range: &MemoryRange,
        rejected: &mut RejectedMethods,
    ) -> Result<Registration> {
        Ok(memory_region::register(&self, range, rejected)?)
    }

    fn create_queue_pair(
        self: Arc<Self>,
        init: &QueuePairInit<'_>,
    ) -> Result<Box<dyn QueuePairOps>> {
        Ok(Box::new(VerbsQueuePair::new(self, init)?))
    }
}

impl Drop for VerbsDomain {
    fn drop(&mut self) {
        let Some(Ok(raw)) = self.allocated.get() else {
            return;
        };
        if !self.context.may_destroy() {
            return;
        }
        // SAFETY: regions and queue pairs of the domain hold it, so none are left.
        if let Err(error) = unsafe { self.context.verbs().ibv_dealloc_pd(raw.0.as_ptr()) } {
            tracing::warn!(%error, "a protection domain is not released");
        }
    }
}
