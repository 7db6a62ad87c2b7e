//! Registration of GPU memory with either provider.

use std::sync::Arc;

use gdr_copy::Mapping;
use gdr_cuda::DeviceBuffer;
use gdr_rdma::{Access, Buffer, CopyEngineThreshold, MemoryRegion, ProtectionDomain, Provider};

use super::device_memory::DeviceMemory;
use super::settings::{Destination, TransferPreference};
use super::staging::StagingBuffer;
use crate::bench_target::BenchTarget;
use crate::error::Result;
use crate::memory_facts::{Memory, TransferMode};
use crate::report::Subject;

/// A range of an allocation of GPU memory.
#[derive(Clone, Copy)]
pub(crate) struct GpuRange<'a> {
    pub(crate) buffer: &'a Arc<DeviceBuffer>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// GPU memory, registered with a device.
pub(crate) struct Registration {
    pub(crate) region: MemoryRegion,
    /// Host memory that stands in for it, if a kernel device cannot access it.
    pub(crate) stage: Option<StagingBuffer>,
    /// The mapping through which a soft device accesses it.
    pub(crate) mapping: Option<Arc<Mapping>>,
    pub(crate) memory: Memory,
}

impl Registration {
    /// Registers `range` with the device of `domain`, in the mode that `destination` prefers.
    pub(crate) fn new(
        target: &BenchTarget,
        domain: &ProtectionDomain,
        range: GpuRange<'_>,
        access: Access,
        destination: Destination,
    ) -> Result<Self> {
        match domain.device().provider() {
            Provider::Verbs => Self::registered(target, domain, range, access, destination),
            _ => Self::placed(target, domain, range, access, destination),
        }
    }

    /// Registers it for a soft device, which stores the bytes itself.
    fn placed(
        target: &BenchTarget,
        domain: &ProtectionDomain,
        range: GpuRange<'_>,
        access: Access,
        destination: Destination,
    ) -> Result<Self> {
        let reached = map_or_stage(target, range.buffer, destination.transfer)?;
        let local = match &reached.mapping {
            Some(mapping) => direct(Arc::clone(mapping), range.buffer)?,
            None => Buffer::staged(Arc::clone(range.buffer))?,
        };
        let region = domain.register_range(&local, range.offset, range.len, access)?;
        let memory = Memory {
            subject: reached.subject,
            allocated_by: destination.memory.function().to_owned(),
            reached: match reached.mapping {
                Some(_) => TransferMode::Direct,
                None => TransferMode::Staged,
            },
            why: reached.why,
            refusals: Vec::new(),
            long_reads_from: local.long_reads_from(),
        };
        Ok(Self {
            region,
            stage: None,
            mapping: reached.mapping,
            memory,
        })
    }

    /// For a kernel device.
    fn registered(
        target: &BenchTarget,
        domain: &ProtectionDomain,
        range: GpuRange<'_>,
        access: Access,
        destination: Destination,
    ) -> Result<Self> {
        let GpuRange {
            buffer,
            offset,
            len,
        } = range;
        let made = DeviceMemory::new(domain, buffer, offset, len, access, destination.transfer)?;
        let memory = Memory {
            subject: Subject::new(target, None),
            allocated_by: destination.memory.function().to_owned(),
            reached: made.reached,
            why: made.why,
            refusals: made.refusals,
            long_reads_from: None,
        };
        Ok(Self {
            region: made.region,
            stage: made.stage,
            mapping: None,
            memory,
        })
    }
}

/// A mapping of GPU memory, or the reason for staging.
pub(crate) struct MappedOrStaged {
    pub(crate) mapping: Option<Arc<Mapping>>,
    pub(crate) subject: Subject,
    pub(crate) why: String,
}

/// Creates a buffer that is written through `mapping`. The copy engine makes its long reads.
pub(crate) fn direct(mapping: Arc<Mapping>, buffer: &Arc<DeviceBuffer>) -> Result<Buffer> {
    let (copied, from) = (Arc::clone(buffer), CopyEngineThreshold::Planned);
    match Buffer::direct_with_copies(Arc::clone(&mapping), copied, from) {
        // A backend that maps the wrong memory: let the run detect the consequence.
        Err(gdr_rdma::NicError::MappedElsewhere { .. }) => Ok(Buffer::direct(mapping)?),
        made => Ok(made?),
    }
}

/// Maps `buffer`, unless `wanted` is staged.
pub(crate) fn map_or_stage(
    target: &BenchTarget,
    buffer: &DeviceBuffer,
    wanted: TransferPreference,
) -> Result<MappedOrStaged> {
    let staged = |why: String| MappedOrStaged {
        mapping: None,
        subject: Subject::new(target, None),
        why,
    };
    if wanted == TransferPreference::Staged {
        return Ok(staged("requested".into()));
    }
    let mapped = target
        .pin(buffer.ptr(), buffer.len())
        .and_then(|pinned| Ok((pinned.map()?, Subject::new(target, Some(&pinned)))));
    match mapped {
        Ok((mapping, subject)) => Ok(MappedOrStaged {
            mapping: Some(Arc::new(mapping)),
            subject,
            why: match wanted {
                TransferPreference::Direct => "requested".into(),
                _ => "this memory can be mapped".into(),
            },
        }),
        Err(error) if wanted == TransferPreference::Auto => {
            Ok(staged(format!("this memory cannot be mapped: {error}")))
        }
        Err(error) => Err(error),
    }
}
