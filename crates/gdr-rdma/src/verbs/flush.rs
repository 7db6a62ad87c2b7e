//! When what a device wrote into GPU memory is there for whoever looks next.
//!
//! A completion says that the bytes are at the GPU's PCI interface. Whether work that is submitted
//! from then on sees them is the GPU's promise (CUDA's GPUDirect RDMA guide, "Synchronization and
//! memory ordering"); where it makes none, somebody has to push them on: the driver, or a read of
//! the same memory by the same device, which PCI forbids to pass earlier writes.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use gdr_cuda::{DeviceBuffer, DeviceInfo, WritesOrdering};

use super::context::Context;
use super::error::VerbsError;
use super::read_back::ReadBack;

/// The first compute capability of which GPUs keep such writes in order though their driver may be
/// too old to say so: Hopper, as NCCL takes it (`ncclTopoNeedFlush`, src/graph/paths.cc).
const ORDERED_FROM: (u32, u32) = (9, 0);

/// How it is seen to that bytes which a device wrote into GPU memory are there when the completion
/// that tells of them is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FlushPolicy {
    /// The GPU itself orders them before work that is submitted later.
    Ordered,
    /// The driver pushes them on (`cuFlushGPUDirectRDMAWrites`).
    Driver,
    /// The device reads the memory that it wrote.
    ReadBack,
}

impl FlushPolicy {
    /// What a GPU needs, and why.
    pub fn of(gpu: &DeviceInfo) -> (Self, String) {
        let writes = gpu.remote_writes;
        if writes.ordering > WritesOrdering::None {
            let why = format!(
                "CUDA says that such writes are in order {}",
                writes.ordering
            );
            return (Self::Ordered, why);
        }
        if writes.host_flush {
            let why = "CUDA promises no order of such writes, and can flush them";
            return (Self::Driver, why.to_owned());
        }
        let (major, minor) = gpu.compute_capability;
        if gpu.compute_capability >= ORDERED_FROM {
            let why =
                format!("GPUs of compute capability {major}.{minor} keep such writes in order");
            return (Self::Ordered, why);
        }
        let why = "CUDA neither promises an order of such writes nor can flush them (before 11.3)";
        (Self::ReadBack, why.to_owned())
    }
}

impl fmt::Display for FlushPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ordered => "no flush",
            Self::Driver => "flushed by the driver",
            Self::ReadBack => "flushed by a read of the NIC",
        })
    }
}

/// How one GPU's memory is flushed.
pub(crate) enum How {
    Driver(Weak<DeviceBuffer>),
    ReadBack(Box<ReadBack>),
}

struct Entry {
    number: u64,
    /// Which GPU: one flush serves all memory of it.
    gpu: [u8; 16],
    how: Arc<How>,
}

/// What a device has to flush before it tells of bytes that came.
#[derive(Default)]
pub(crate) struct Flushes {
    entries: Mutex<(u64, Vec<Entry>)>,
    /// How many there are, to be looked at without the lock: mostly none.
    count: AtomicUsize,
}

impl Flushes {
    fn lock(&self) -> MutexGuard<'_, (u64, Vec<Entry>)> {
        // Nothing is ever half changed.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds memory; the number under which it is taken out.
    fn add(&self, gpu: &DeviceInfo, how: How) -> u64 {
        let mut entries = self.lock();
        let (next, list) = &mut *entries;
        *next += 1;
        list.push(Entry {
            number: *next,
            gpu: gpu.uuid,
            how: Arc::new(how),
        });
        self.count.store(list.len(), Ordering::Release);
        *next
    }

    fn remove(&self, number: u64) {
        let mut entries = self.lock();
        let (_, list) = &mut *entries;
        let place = list.iter().position(|entry| entry.number == number);
        let gone = place.map(|place| list.swap_remove(place));
        self.count.store(list.len(), Ordering::Release);
        drop(entries);
        // With it may go queue pairs, whose end needs other locks.
        drop(gone);
    }

    /// Flushes every GPU that needs it.
    pub(super) fn run(&self) -> Result<(), VerbsError> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let mut due: Vec<([u8; 16], Arc<How>)> = Vec::new();
        for entry in &self.lock().1 {
            if due.iter().all(|(gpu, _)| *gpu != entry.gpu) {
                due.push((entry.gpu, Arc::clone(&entry.how)));
            }
        }
        for (_, how) in due {
            let done = match &*how {
                // Memory that is gone needs nothing.
                How::Driver(memory) => memory
                    .upgrade()
                    .map_or(Ok(()), |memory| memory.flush_remote_writes())
                    .map_err(|error| error.to_string()),
                How::ReadBack(read) => read.run(),
            };
            done.map_err(|why| VerbsError::Flush { why })?;
        }
        Ok(())
    }
}

/// Memory on a device's list, until this is dropped.
pub(crate) struct Listed {
    context: Arc<Context>,
    number: u64,
}

impl Listed {
    pub(crate) fn new(context: &Arc<Context>, gpu: &DeviceInfo, how: How) -> Self {
        Self {
            context: Arc::clone(context),
            number: context.flushes().add(gpu, how),
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.context.flushes().remove(self.number);
    }
}

impl fmt::Debug for Flushes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flushes")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use gdr_cuda::{Driver, RemoteWrites, SimDriver};

    use super::*;

    fn gpu(ordering: WritesOrdering, host_flush: bool, capability: (u32, u32)) -> DeviceInfo {
        let writes = RemoteWrites {
            ordering,
            host_flush,
        };
        let driver = SimDriver::with_remote_writes(1, writes);
        let mut info = driver.devices().unwrap().remove(0);
        info.compute_capability = capability;
        info
    }

    #[test]
    fn the_gpu_s_promise_comes_first_then_the_driver_s_flush_then_its_age() {
        let of = |ordering, host_flush, capability| {
            FlushPolicy::of(&gpu(ordering, host_flush, capability)).0
        };
        let (old, new) = ((8, 0), (9, 0));
        for ordering in [WritesOrdering::Owner, WritesOrdering::AllDevices] {
            assert_eq!(of(ordering, true, old), FlushPolicy::Ordered);
            assert_eq!(of(ordering, false, old), FlushPolicy::Ordered);
        }
        let none = WritesOrdering::None;
        assert_eq!(of(none, true, old), FlushPolicy::Driver);
        assert_eq!(of(none, true, new), FlushPolicy::Driver);
        assert_eq!(of(none, false, new), FlushPolicy::Ordered);
        assert_eq!(of(none, false, old), FlushPolicy::ReadBack);
    }
}
