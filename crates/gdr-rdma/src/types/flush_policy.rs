//! When a NIC's writes to GPU memory are visible, and what must flush them.
//!
//! A completion means that the bytes have reached the GPU's PCI interface. Whether work submitted
//! afterwards sees them is the GPU's guarantee (CUDA's GPUDirect RDMA guide, "Synchronization and
//! memory ordering"). Without that guarantee they must be flushed: by the driver, or by a read of
//! the same memory by the same device, which PCI does not allow to pass earlier writes.

use std::fmt;

use gdr_cuda::{DeviceInfo, WritesOrdering};

/// The first compute capability whose GPUs order such writes even if the driver is too old to report
/// it: Hopper, as NCCL assumes (`ncclTopoNeedFlush`, src/graph/paths.cc).
const ORDERED_FROM: (u32, u32) = (9, 0);

/// How bytes that a device has written to GPU memory become visible before their completion is
/// returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FlushPolicy {
    /// The GPU orders them before work that is submitted later.
    Ordered,
    /// The driver flushes them (`cuFlushGPUDirectRDMAWrites`).
    Driver,
    /// The device reads from the memory that it wrote.
    ReadBack,
}

impl FlushPolicy {
    /// Returns the policy for a GPU, and the reason for it.
    pub fn of(gpu: &DeviceInfo) -> (Self, String) {
        let writes = gpu.remote_writes;
        if writes.ordering > WritesOrdering::None {
            let why = format!(
                "CUDA reports that such writes are ordered {}",
                writes.ordering
            );
            return (Self::Ordered, why);
        }
        if writes.host_flush {
            let why = "CUDA guarantees no order of such writes, and can flush them";
            return (Self::Driver, why.to_owned());
        }
        let (major, minor) = gpu.compute_capability;
        if gpu.compute_capability >= ORDERED_FROM {
            let why = format!("GPUs of compute capability {major}.{minor} order such writes");
            return (Self::Ordered, why);
        }
        let why =
            "CUDA neither guarantees an order of such writes nor can flush them (before 11.3)";
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
    fn the_gpus_guarantee_comes_before_the_drivers_flush_and_that_before_its_age() {
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
