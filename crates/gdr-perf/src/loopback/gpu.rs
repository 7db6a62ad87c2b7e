//! The end that owns the GPU memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gdr_copy::Mapping;
use gdr_cuda::{CuResult, DeviceBuffer, Stream};
use gdr_rdma::{
    Access, Buffer, CopyEngineThreshold, Device, Endpoint, Immediate, MemoryRegion, Mtu,
    ProtectionDomain, Provider, RecvRequest, RemoteMemory, WcOpcode, WrId,
};

use super::compare::{CHUNK, Comparison, pieces};
use super::connection::Connection;
use super::device_memory::DeviceMemory;
use super::event::Observer;
use super::report::{Checks, Difference, Ended, Memory, Outcome, TransferMode};
use super::settings::{Destination, Seeds, Settings, TransferPreference};
use super::staging::StagingBuffer;
use crate::bench_target::BenchTarget;
use crate::error::{Error, Result};
use crate::report::Subject;

/// Bytes before and after the target that must stay unchanged.
const GUARD: u64 = 4096;

/// GPU memory, registered with a device.
pub(super) struct GpuSide {
    // Fields drop in order: the connection and the region go before the memory.
    connection: Connection,
    region: MemoryRegion,
    stage: Option<StagingBuffer>,
    mapping: Option<Arc<Mapping>>,
    stream: Stream,
    buffer: Arc<DeviceBuffer>,
    target: BenchTarget,
    memory: Memory,
    size: u64,
    limit: Duration,
    give_up_after: Duration,
    chunk: Vec<u8>,
}

impl GpuSide {
    pub(super) fn new(
        target: &BenchTarget,
        device: &Device,
        destination: Destination,
        settings: &Settings,
        queue_pairs: usize,
    ) -> Result<Self> {
        let gpu = target.gpu();
        let size = settings.size;
        let bytes = size + 2 * GUARD;
        let buffer =
            gpu.allocate(destination.memory, bytes)
                .map_err(|source| match source.cu_result() {
                    Some(CuResult::OUT_OF_MEMORY) => Error::GpuMemory { bytes, source },
                    _ => source.into(),
                })?;
        let buffer = Arc::new(buffer);
        let stream = gpu.stream()?;
        let domain = device.protection_domain();
        let registration = match device.provider() {
            Provider::Verbs => {
                Registration::registered(target, &domain, &buffer, destination, size)?
            }
            _ => Registration::placed(target, &domain, &buffer, destination, size)?,
        };
        Ok(Self {
            connection: Connection::over(&domain, queue_pairs)?,
            region: registration.region,
            stage: registration.stage,
            mapping: registration.mapping,
            stream,
            buffer,
            target: target.clone(),
            memory: registration.memory,
            size,
            limit: settings.limit(),
            give_up_after: settings.give_up_after(),
            chunk: vec![0; CHUNK],
        })
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(super) fn endpoints(&self) -> Vec<Endpoint> {
        self.connection.endpoints()
    }

    pub(super) fn remote(&self) -> RemoteMemory {
        self.region.remote()
    }

    pub(super) fn connect(&self, peers: &[Endpoint], mtu: Mtu) -> Result<()> {
        self.connection.connect_all(peers, mtu, self.give_up_after)
    }

    /// Fills GPU memory with pattern A and verifies it, both by a kernel; then posts the receive for
    /// the WRITE's immediate, which comes by the first queue pair.
    pub(super) fn fill(&mut self, number: u32, seeds: Seeds) -> Outcome {
        Outcome::of(self.try_fill(number, seeds))
    }

    fn try_fill(&mut self, number: u32, seeds: Seeds) -> Result<Outcome> {
        let fill = |offset, len: u64, seed| {
            self.stream
                .fill_pattern(&self.buffer, offset, len / 4, seed, self.limit)
        };
        for offset in self.guards() {
            fill(offset, GUARD, seeds.guard)?;
        }
        fill(GUARD, self.size, seeds.before)?;
        let filled = self.by_kernel(seeds.before, None)?;
        // Overwrite what an earlier iteration left in the staging buffer.
        if let Some(stage) = &self.stage {
            stage.copy_out()?;
        }
        if filled == Outcome::Equal {
            let receive = RecvRequest::new(WrId(u64::from(number)));
            self.connection.pair().post_recv(receive)?;
        }
        Ok(filled)
    }

    /// Waits for the completion of the receive, which consumes the last WRITE's immediate.
    pub(super) fn arrived(&mut self, number: u32, observer: &mut Observer<'_>) -> Result<Ended> {
        let ended =
            self.connection
                .wait(Instant::now(), self.limit, 1, observer, |completion| {
                    let right = completion.opcode == WcOpcode::RecvWriteImmediate
                        && completion.immediate == Some(Immediate(number))
                        && completion.id == WrId(u64::from(number));
                    (!right).then(|| {
                        format!(
                            "a completion with {:?} and {:?} came instead of iteration {number}'s",
                            completion.opcode, completion.immediate
                        )
                    })
                })?;
        match (&self.stage, ended.is_done()) {
            (Some(stage), true) => match stage.copy_in() {
                Ok(()) => Ok(ended),
                Err(error) => Ok(Ended::Failed {
                    reason: format!("the received bytes cannot be copied to the GPU: {error}"),
                }),
            },
            _ => Ok(ended),
        }
    }

    /// Compares GPU memory by a kernel, by a copy and through a mapping.
    pub(super) fn verify(&mut self, seeds: Seeds) -> Checks {
        let checks = Checks {
            kernel: Outcome::of(self.by_kernel(seeds.sent, Some(seeds.before))),
            copy: Outcome::of(self.by_copy(seeds)),
            mapping: Outcome::of(self.by_mapping(seeds)),
            guards: Outcome::of(self.look_at_guards(seeds)),
        };
        // The READ has to return the GPU's bytes, not those that arrived in the staging buffer.
        if let Some(stage) = &self.stage
            && let Err(error) = stage.copy_out()
        {
            let reason = format!("GPU memory cannot be copied to the staging buffer: {error}");
            return Checks {
                copy: Outcome::Failed { reason },
                ..checks
            };
        }
        checks
    }

    fn by_kernel(&self, seed: u32, before: Option<u32>) -> Result<Outcome> {
        let words = self.size / 4;
        let look = |seed| {
            self.stream
                .verify_pattern(&self.buffer, GUARD, words, seed, self.limit)
        };
        let found = look(seed)?;
        if found.mismatches == 0 {
            return Ok(Outcome::Equal);
        }
        let still_before = match before {
            Some(before) => words.saturating_sub(look(before)?.mismatches),
            None => 0,
        };
        Ok(Outcome::Differs(Difference {
            words,
            mismatches: found.mismatches,
            still_before,
            first_offset: found.first.saturating_mul(4),
            expected: found.expected,
            found: found.found,
        }))
    }

    fn by_copy(&mut self, seeds: Seeds) -> Result<Outcome> {
        let buffer = Arc::clone(&self.buffer);
        self.compare(seeds, |offset, bytes| Ok(buffer.read(offset, bytes)?))
    }

    fn by_mapping(&mut self, seeds: Seeds) -> Result<Outcome> {
        let mapping = match &self.mapping {
            Some(mapping) => Arc::clone(mapping),
            None => match self.target.map(&self.buffer) {
                Ok(mapping) => Arc::new(mapping),
                Err(error) => {
                    let reason = format!("this memory cannot be mapped: {error}");
                    return Ok(Outcome::NotDone { reason });
                }
            },
        };
        self.compare(seeds, |offset, bytes| Ok(mapping.read_at(offset, bytes)?))
    }

    fn compare(
        &mut self,
        seeds: Seeds,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<Outcome> {
        let mut comparison = Comparison::new(seeds.sent, Some(seeds.before));
        for (offset, len) in pieces(self.size, CHUNK as u64) {
            let chunk = &mut self.chunk[..len as usize];
            read(GUARD + offset, chunk)?;
            comparison.add(chunk);
        }
        Ok(comparison.outcome())
    }

    fn look_at_guards(&self, seeds: Seeds) -> Result<Outcome> {
        for offset in self.guards() {
            let mut bytes = [0; GUARD as usize];
            self.buffer.read(offset, &mut bytes)?;
            let mut comparison = Comparison::new(seeds.guard, None);
            comparison.add(&bytes);
            let outcome = comparison.outcome();
            if outcome != Outcome::Equal {
                return Ok(outcome);
            }
        }
        Ok(Outcome::Equal)
    }

    fn guards(&self) -> [u64; 2] {
        [0, GUARD + self.size]
    }
}

/// The access of the peer to the target.
fn access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ
}

/// The target, registered with a device.
struct Registration {
    region: MemoryRegion,
    stage: Option<StagingBuffer>,
    mapping: Option<Arc<Mapping>>,
    memory: Memory,
}

impl Registration {
    /// For a soft device, which stores the bytes itself.
    fn placed(
        target: &BenchTarget,
        domain: &ProtectionDomain,
        buffer: &Arc<DeviceBuffer>,
        destination: Destination,
        size: u64,
    ) -> Result<Self> {
        let reached = map_or_stage(target, buffer, destination.transfer)?;
        let local = match &reached.mapping {
            Some(mapping) => direct(Arc::clone(mapping), buffer)?,
            None => Buffer::staged(Arc::clone(buffer))?,
        };
        let region = domain.register_range(&local, GUARD, size, access())?;
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
        buffer: &Arc<DeviceBuffer>,
        destination: Destination,
        size: u64,
    ) -> Result<Self> {
        let made = DeviceMemory::new(domain, buffer, GUARD, size, access(), destination.transfer)?;
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

/// A mapping of GPU memory, or the reason to stage.
pub(crate) struct MappedOrStaged {
    pub(crate) mapping: Option<Arc<Mapping>>,
    pub(crate) subject: Subject,
    pub(crate) why: String,
}

/// A buffer that is written through `mapping`; the copy engine makes its long reads.
pub(crate) fn direct(mapping: Arc<Mapping>, buffer: &Arc<DeviceBuffer>) -> Result<Buffer> {
    let (copied, from) = (Arc::clone(buffer), CopyEngineThreshold::Planned);
    match Buffer::direct_with_copies(Arc::clone(&mapping), copied, from) {
        // A backend that maps other memory: the run has to detect the consequence.
        Err(gdr_rdma::Error::MappedElsewhere { .. }) => Ok(Buffer::direct(mapping)?),
        made => Ok(made?),
    }
}

/// Maps `buffer` unless `wanted` is staged.
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
