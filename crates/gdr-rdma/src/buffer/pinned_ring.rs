//! Page-locked memory for rings.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use gdr_cuda::{DriverKind, Gpu, HostBuffer};

use crate::error::Result;
use crate::lock::lock;
use crate::reaper;

/// Rings that no buffer uses. They are reused and never freed: to free page-locked memory, the driver
/// waits for every kernel of the context, and most calls of all threads wait meanwhile.
static UNUSED: Mutex<Vec<HostBuffer>> = Mutex::new(Vec::new());

/// How many are kept at most, of some MiB each.
const MOST: usize = 64;

/// Page-locked memory of a buffer.
#[derive(Debug)]
pub(super) struct PinnedRing(ManuallyDrop<Arc<HostBuffer>>);

impl PinnedRing {
    pub(super) fn new(gpu: &Gpu, len: usize) -> Result<Self> {
        let ring = match unused(gpu, len) {
            Some(ring) => ring,
            None => gpu.allocate_host(len)?,
        };
        Ok(Self(ManuallyDrop::new(Arc::new(ring))))
    }
}

fn unused(gpu: &Gpu, len: usize) -> Option<HostBuffer> {
    let mut rings = lock(&UNUSED);
    let fits = |ring: &HostBuffer| {
        ring.len() == len
            && ring.gpu().info().ordinal == gpu.info().ordinal
            && Arc::ptr_eq(ring.gpu().driver(), gpu.driver())
    };
    let at = rings.iter().position(fits)?;
    Some(rings.swap_remove(at))
}

impl Deref for PinnedRing {
    type Target = Arc<HostBuffer>;

    fn deref(&self) -> &Arc<HostBuffer> {
        &self.0
    }
}

impl Drop for PinnedRing {
    fn drop(&mut self) {
        // SAFETY: it is taken only here, and not used afterwards.
        let ring = unsafe { ManuallyDrop::take(&mut self.0) };
        // A stream that timed out may still write there, and keeps it.
        let Some(ring) = Arc::into_inner(ring) else {
            return;
        };
        // A simulated GPU ends with its last owner, and its driver delays no other thread.
        if ring.gpu().driver().kind() == DriverKind::Simulated {
            return reaper::drop_later(ring);
        }
        let mut rings = lock(&UNUSED);
        if rings.len() < MOST {
            rings.push(ring);
        } else {
            drop(rings);
            drop(ring);
        }
    }
}
