//! Protection domains of the kernel.

use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use gdr_verbs_sys::{VerbError, ibv_pd};

use super::context::Context;
use super::error::VerbsError;

/// A protection domain, made when it is first needed.
#[derive(Debug)]
pub(crate) struct Domain {
    context: Arc<Context>,
    made: OnceLock<Result<Raw, VerbError>>,
}

/// The domain itself.
#[derive(Clone, Copy, Debug)]
struct Raw(NonNull<ibv_pd>);

// SAFETY: as for `Context`.
unsafe impl Send for Raw {}
// SAFETY: as for `Context`.
unsafe impl Sync for Raw {}

impl Domain {
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        Self {
            context: Arc::clone(context),
            made: OnceLock::new(),
        }
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The number that this crate gives it.
    pub(crate) fn number(context: &Context) -> u32 {
        context.next_domain()
    }

    pub(super) fn raw(&self) -> Result<*mut ibv_pd, VerbsError> {
        let made = self.made.get_or_init(|| {
            // SAFETY: the context is open, and this holds it.
            unsafe { self.context.verbs().ibv_alloc_pd(self.context.raw()) }.map(Raw)
        });
        match made {
            Ok(raw) => Ok(raw.0.as_ptr()),
            Err(error) => Err(self.context.failed(*error)),
        }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        let Some(Ok(raw)) = self.made.get() else {
            return;
        };
        // SAFETY: regions and queue pairs of the domain hold it, so that none is left.
        if let Err(error) = unsafe { self.context.verbs().ibv_dealloc_pd(raw.0.as_ptr()) } {
            tracing::warn!(%error, "a protection domain is not given back");
        }
    }
}
