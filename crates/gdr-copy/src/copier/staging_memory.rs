//! Page-locked memory through which the copy engine reaches pageable memory.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use gdr_cuda::{DriverKind, Gpu, HostBuffer};

use crate::error::Result;

/// Bytes of a slot, at least the longest chunk of a plan: that is 512 KiB.
pub(super) const SLOT: usize = 512 << 10;
/// Slots: one is copied by the CPU while the others are copied by the engine.
pub(super) const SLOTS: usize = 3;

/// Memory that no copy uses. It is reused and never freed: to free page-locked memory, the driver
/// waits for every kernel of the context, and most calls of all threads wait meanwhile.
static UNUSED: Mutex<Vec<HostBuffer>> = Mutex::new(Vec::new());

/// How many are kept at most.
const MOST: usize = 16;

/// [`SLOTS`] slots of page-locked memory.
#[derive(Debug)]
pub(super) struct StagingMemory(ManuallyDrop<Arc<HostBuffer>>);

impl StagingMemory {
    pub(super) fn new(gpu: &Gpu) -> Result<Self> {
        let memory = match unused(gpu) {
            Some(memory) => memory,
            None => gpu.allocate_host(SLOT * SLOTS)?,
        };
        Ok(Self(ManuallyDrop::new(Arc::new(memory))))
    }
}

fn unused(gpu: &Gpu) -> Option<HostBuffer> {
    let mut unused = UNUSED.lock().unwrap_or_else(PoisonError::into_inner);
    let fits = |memory: &HostBuffer| {
        memory.gpu().info().ordinal == gpu.info().ordinal
            && Arc::ptr_eq(memory.gpu().driver(), gpu.driver())
    };
    let at = unused.iter().position(fits)?;
    Some(unused.swap_remove(at))
}

impl Deref for StagingMemory {
    type Target = Arc<HostBuffer>;

    fn deref(&self) -> &Arc<HostBuffer> {
        &self.0
    }
}

impl Drop for StagingMemory {
    fn drop(&mut self) {
        // SAFETY: it is taken only here, and not used afterwards.
        let memory = unsafe { ManuallyDrop::take(&mut self.0) };
        // A stream that timed out may still write there, and keeps it.
        let Some(memory) = Arc::into_inner(memory) else {
            return;
        };
        // A simulated GPU ends with its last owner, and freeing its memory waits for nothing.
        if memory.gpu().driver().kind() == DriverKind::Simulated {
            return;
        }
        let mut unused = UNUSED.lock().unwrap_or_else(PoisonError::into_inner);
        if unused.len() < MOST {
            unused.push(memory);
        } else {
            drop(unused);
            drop(memory);
        }
    }
}
