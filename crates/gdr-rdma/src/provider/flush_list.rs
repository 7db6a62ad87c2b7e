//! What a device flushes before it returns completions of bytes that arrived in GPU memory.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use gdr_copy::ProcessId;

use crate::error::FlushError;
use gdr_process::lock::lock;

/// Makes writes of a device into one GPU's memory visible.
pub(crate) trait RdmaWriteFlush: Send + Sync {
    fn flush(&self) -> Result<(), FlushError>;
}

/// Flushes of a device, one or more for each GPU whose memory it writes.
pub(crate) struct FlushList {
    origin: ProcessId,
    entries: Mutex<Entries>,
    /// Number of entries, readable without the lock. Usually 0.
    len: AtomicUsize,
}

#[derive(Default)]
struct Entries {
    last_id: u64,
    list: Vec<Entry>,
}

struct Entry {
    id: u64,
    /// UUID of the GPU: one flush covers all of its memory.
    gpu: [u8; 16],
    flush: Arc<dyn RdmaWriteFlush>,
}

impl FlushList {
    pub(crate) fn new() -> Self {
        Self {
            origin: ProcessId::current(),
            entries: Mutex::default(),
            len: AtomicUsize::new(0),
        }
    }

    /// Adds a flush for a GPU, until the returned guard is dropped.
    pub(crate) fn add(
        self: &Arc<Self>,
        gpu: [u8; 16],
        flush: Arc<dyn RdmaWriteFlush>,
    ) -> FlushGuard {
        let mut entries = lock(&self.entries);
        entries.last_id += 1;
        let id = entries.last_id;
        entries.list.push(Entry { id, gpu, flush });
        self.len.store(entries.list.len(), Ordering::Release);
        FlushGuard {
            list: Arc::clone(self),
            id,
        }
    }

    fn remove(&self, id: u64) {
        let mut entries = lock(&self.entries);
        let index = entries.list.iter().position(|entry| entry.id == id);
        let removed = index.map(|index| entries.list.swap_remove(index));
        self.len.store(entries.list.len(), Ordering::Release);
        drop(entries);
        // The flush may own queue pairs, whose destruction takes other locks.
        drop(removed);
    }

    /// Returns whether there is no memory to flush.
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Flushes the memory of every GPU once.
    pub(crate) fn run(&self) -> Result<(), FlushError> {
        if self.is_empty() {
            return Ok(());
        }
        let mut due: Vec<([u8; 16], Arc<dyn RdmaWriteFlush>)> = Vec::new();
        for entry in &lock(&self.entries).list {
            if due.iter().all(|(gpu, _)| *gpu != entry.gpu) {
                due.push((entry.gpu, Arc::clone(&entry.flush)));
            }
        }
        due.iter().try_for_each(|(_, flush)| flush.flush())
    }
}

impl fmt::Debug for FlushList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlushList")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// Keeps an entry in a [`FlushList`] while it exists.
pub(crate) struct FlushGuard {
    list: Arc<FlushList>,
    id: u64,
}

impl Drop for FlushGuard {
    fn drop(&mut self) {
        // In a forked child the lock may be held by a thread that exists only in the parent.
        if self.list.origin.is_current() {
            self.list.remove(self.id);
        }
    }
}
