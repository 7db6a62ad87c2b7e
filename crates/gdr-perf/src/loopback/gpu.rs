//! The end that owns GPU memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gdr_copy::Mapping;
use gdr_cuda::{DeviceBuffer, Stream};
use gdr_rdma::{
    Access, Buffer, Device, Endpoint, Immediate, LongReads, MemoryRegion, Mtu, ProtectionDomain,
    Provider, RecvRequest, RemoteMemory, WcOpcode, WrId,
};

use super::compare::{CHUNK, Comparison, pieces};
use super::link::Link;
use super::registered::Registered;
use super::report::{Checks, Difference, Ended, Memory, Outcome, Reached};
use super::settings::{Destination, Reach, Seeds, Settings};
use super::stage::Stage;
use super::{Observer, Place};
use crate::error::Result;
use crate::report::Subject;

/// Bytes before and after the target that nobody may write.
const GUARD: u64 = 4096;

/// GPU memory, registered with a device.
pub(super) struct GpuSide {
    // Field order is drop order: nothing reaches the memory any more when it goes.
    link: Link,
    region: MemoryRegion,
    stage: Option<Stage>,
    mapping: Option<Arc<Mapping>>,
    stream: Stream,
    buffer: Arc<DeviceBuffer>,
    place: Place,
    memory: Memory,
    size: u64,
    limit: Duration,
    chunk: Vec<u8>,
}

impl GpuSide {
    pub(super) fn new(
        place: &Place,
        device: &Device,
        destination: Destination,
        settings: &Settings,
    ) -> Result<Self> {
        let gpu = place.gpu();
        let size = settings.size;
        let buffer = Arc::new(gpu.allocate(destination.memory, size + 2 * GUARD)?);
        let stream = gpu.stream()?;
        let domain = device.protection_domain();
        let target = match device.provider() {
            Provider::Verbs => Target::registered(place, &domain, &buffer, destination, size)?,
            _ => Target::placed(place, &domain, &buffer, destination, size)?,
        };
        Ok(Self {
            link: Link::new(&domain)?,
            region: target.region,
            stage: target.stage,
            mapping: target.mapping,
            stream,
            buffer,
            place: place.clone(),
            memory: target.memory,
            size,
            limit: settings.limit(),
            chunk: vec![0; CHUNK],
        })
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        self.link.pair().endpoint()
    }

    pub(super) fn remote(&self) -> RemoteMemory {
        self.region.remote()
    }

    pub(super) fn connect(&self, peer: &Endpoint, mtu: Mtu) -> Result<()> {
        self.link.connect(peer, mtu, self.limit)
    }

    /// Makes the GPU fill its memory with pattern A, and look whether it is there; then posts the
    /// receive that the WRITE's immediate will take.
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
        // Nothing that an earlier iteration left there may pass for what arrives.
        if let Some(stage) = &self.stage {
            stage.copy_out()?;
        }
        if filled == Outcome::Equal {
            let receive = RecvRequest::new(WrId(u64::from(number)));
            self.link.pair().post_recv(receive)?;
        }
        Ok(filled)
    }

    /// Waits for the completion that the last WRITE's immediate brings.
    pub(super) fn arrived(&mut self, number: u32, observer: &mut Observer<'_>) -> Result<Ended> {
        let ended = self
            .link
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
                    reason: format!("what arrived cannot be copied to the GPU: {error}"),
                }),
            },
            _ => Ok(ended),
        }
    }

    /// Looks at GPU memory in every way there is.
    pub(super) fn verify(&mut self, seeds: Seeds) -> Checks {
        let checks = Checks {
            kernel: Outcome::of(self.by_kernel(seeds.sent, Some(seeds.before))),
            copy: Outcome::of(self.by_copy(seeds)),
            mapping: Outcome::of(self.by_mapping(seeds)),
            guards: Outcome::of(self.look_at_guards(seeds)),
        };
        // The READ that follows is to bring what the GPU has, not what once arrived.
        if let Some(stage) = &self.stage
            && let Err(error) = stage.copy_out()
        {
            let reason = format!("it cannot be copied to where the device reads it: {error}");
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
            None => match self.place.map(&self.buffer) {
                Ok((mapping, _)) => Arc::new(mapping),
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

/// What peers may do to the target.
fn access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ
}

/// The part of GPU memory that the bytes go to, as a device knows it.
struct Target {
    region: MemoryRegion,
    stage: Option<Stage>,
    mapping: Option<Arc<Mapping>>,
    memory: Memory,
}

impl Target {
    /// With a device of this process, which places the bytes itself.
    fn placed(
        place: &Place,
        domain: &ProtectionDomain,
        buffer: &Arc<DeviceBuffer>,
        destination: Destination,
        size: u64,
    ) -> Result<Self> {
        let reached = reach(place, buffer, destination.reach)?;
        let target = match &reached.mapping {
            Some(mapping) => direct(Arc::clone(mapping), buffer)?,
            None => Buffer::staged(Arc::clone(buffer))?,
        };
        let region = domain.register_range(&target, GUARD, size, access())?;
        let memory = Memory {
            subject: reached.subject,
            allocated_by: destination.memory.function().to_owned(),
            reached: match reached.mapping {
                Some(_) => Reached::Direct,
                None => Reached::Staged,
            },
            why: reached.why,
            refusals: Vec::new(),
            long_reads_from: target.long_reads_from(),
        };
        Ok(Self {
            region,
            stage: None,
            mapping: reached.mapping,
            memory,
        })
    }

    /// With a device of the kernel.
    fn registered(
        place: &Place,
        domain: &ProtectionDomain,
        buffer: &Arc<DeviceBuffer>,
        destination: Destination,
        size: u64,
    ) -> Result<Self> {
        let made = Registered::new(domain, buffer, GUARD, size, access(), destination.reach)?;
        let memory = Memory {
            subject: place.subject(),
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

/// How GPU memory is reached.
pub(super) struct Way {
    pub(super) mapping: Option<Arc<Mapping>>,
    pub(super) subject: Subject,
    pub(super) why: String,
}

/// What is stored into through `mapping`; what is long to read, the copy engine reads.
pub(super) fn direct(mapping: Arc<Mapping>, buffer: &Arc<DeviceBuffer>) -> Result<Buffer> {
    let (copied, from) = (Arc::clone(buffer), LongReads::Measured);
    match Buffer::direct_with_copies(Arc::clone(&mapping), copied, from) {
        // A backend that maps other memory: what that leads to is for the run to find out.
        Err(gdr_rdma::Error::MappedElsewhere { .. }) => Ok(Buffer::direct(mapping)?),
        made => Ok(made?),
    }
}

pub(super) fn reach(place: &Place, buffer: &DeviceBuffer, wanted: Reach) -> Result<Way> {
    let staged = |why: String| Way {
        mapping: None,
        subject: place.subject(),
        why,
    };
    if wanted == Reach::Staged {
        return Ok(staged("asked for".into()));
    }
    match place.map(buffer) {
        Ok((mapping, subject)) => Ok(Way {
            mapping: Some(Arc::new(mapping)),
            subject,
            why: match wanted {
                Reach::Direct => "asked for".into(),
                _ => "this memory can be mapped".into(),
            },
        }),
        Err(error) if wanted == Reach::Auto => {
            Ok(staged(format!("this memory cannot be mapped: {error}")))
        }
        Err(error) => Err(error),
    }
}
