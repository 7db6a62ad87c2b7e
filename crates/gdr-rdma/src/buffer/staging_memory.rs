//! Page-locked memory between the network and GPU memory that the CPU does not map.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use gdr_cuda::{DriverKind, Gpu, HostBuffer};

use crate::error::Result;
use crate::lock::lock;
use crate::reaper;

/// The length of one copy in bytes, at most: all of a READ as this crate's requester splits it (64
/// packets of 4 KiB). On PCIe Gen5 it takes some 5 us, and has a fixed cost of 10 us.
pub(super) const CHUNK: usize = 256 << 10;
/// The length of the memory in bytes. To send, a requester has two such READs in flight, each chunk
/// of a longer message is followed by the next, and some room is left for other queue pairs. To
/// receive, one chunk fills while others are copied.
pub(super) const LEN: usize = 4 * CHUNK;

/// Memory that no buffer uses. It is reused and never freed: to free page-locked memory, the driver
/// waits for every kernel of the context, and most calls of all threads wait meanwhile.
static UNUSED: Mutex<Vec<HostBuffer>> = Mutex::new(Vec::new());

/// How many are kept at most.
const MOST: usize = 64;

/// [`LEN`] bytes of page-locked memory.
#[derive(Debug)]
pub(super) struct StagingMemory(ManuallyDrop<Arc<HostBuffer>>);

impl StagingMemory {
    pub(super) fn new(gpu: &Gpu) -> Result<Self> {
        let memory = match unused(gpu) {
            Some(memory) => memory,
            None => gpu.allocate_host(LEN)?,
        };
        Ok(Self(ManuallyDrop::new(Arc::new(memory))))
    }
}

fn unused(gpu: &Gpu) -> Option<HostBuffer> {
    let mut unused = lock(&UNUSED);
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
        // A simulated GPU ends with its last owner, and its driver delays no other thread.
        if memory.gpu().driver().kind() == DriverKind::Simulated {
            return reaper::drop_later(memory);
        }
        let mut unused = lock(&UNUSED);
        if unused.len() < MOST {
            unused.push(memory);
        } else {
            drop(unused);
            drop(memory);
        }
    }
}
