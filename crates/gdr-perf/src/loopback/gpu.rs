//! The end that owns the GPU memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gdr_copy::Mapping;
use gdr_cuda::{DeviceBuffer, Stream};
use gdr_rdma::{
    Access, Device, Endpoint, Immediate, MemoryRegion, Mtu, RecvRequest, RemoteMemory, WcOpcode,
    WrId,
};

use super::compare::{CHUNK, Comparison, by_kernel, pieces};
use super::connection::Connection;
use super::event::Observer;
use super::registration::{GpuRange, Registration};
use super::report::{Checks, Ended, Outcome};
use super::settings::{Destination, Fault, Seeds, Settings};
use super::staging::StagingBuffer;
use crate::bench_target::BenchTarget;
use crate::error::Result;
use crate::memory_facts::Memory;

/// Bytes before and after the target that must stay unchanged.
const GUARD: u64 = 4096;

/// GPU memory, registered with a device.
pub(super) struct GpuSide {
    // Fields drop in order: the connection and the region before the memory.
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
    injected: Option<Fault>,
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
        let size = settings.size;
        let buffer = target.allocate(destination.memory, size + 2 * GUARD)?;
        let stream = target.gpu().stream()?;
        let domain = device.protection_domain();
        let range = GpuRange {
            buffer: &buffer,
            offset: GUARD,
            len: size,
        };
        let registration = Registration::new(target, &domain, range, access(), destination)?;
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
            injected: settings.injected,
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

    /// Fills GPU memory with pattern A and verifies it, both by a kernel. Then posts the receive for the WRITE's
    /// immediate, which arrives on the first queue pair.
    pub(super) fn fill(&mut self, number: u32, seeds: Seeds) -> Outcome {
        Outcome::of(self.try_fill(number, seeds))
    }

    fn try_fill(&mut self, number: u32, seeds: Seeds) -> Result<Outcome> {
        for offset in self.guards() {
            self.write(offset, GUARD, seeds.guard)?;
        }
        self.write(GUARD, self.size, seeds.before)?;
        let filled = self.by_kernel(seeds.before, None)?;
        // Overwrite what the previous iteration left in the staging buffer.
        if let Some(stage) = &self.stage {
            stage.copy_out()?;
        }
        if filled == Outcome::Equal {
            let receive = RecvRequest::new(WrId(u64::from(number)));
            self.connection.pair().post_recv(receive)?;
        }
        Ok(filled)
    }

    /// Writes the pattern of `seed`, from its first word on, by a kernel.
    fn write(&self, offset: u64, len: u64, seed: u32) -> Result<()> {
        Ok(self
            .stream
            .fill_pattern(&self.buffer, offset, len / 4, seed, self.limit)?)
    }

    /// Applies the rehearsed fault to the bytes that arrived.
    pub(super) fn inject(&self, seeds: Seeds) -> Result<()> {
        let middle = (self.size / 8) * 4;
        match self.injected {
            None | Some(Fault::Stale) => Ok(()),
            Some(Fault::Lost) => self.write(GUARD, self.size, seeds.before),
            Some(Fault::Part) => {
                // The pattern starts with its first word, so a shorter fill cannot begin in the middle.
                let mut arrived = vec![0; middle as usize];
                self.buffer.read(GUARD, &mut arrived)?;
                self.write(GUARD, self.size, seeds.before)?;
                Ok(self.buffer.write(GUARD, &arrived)?)
            }
            Some(Fault::Damaged) => self.write(GUARD + middle, 4, seeds.guard),
        }
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
        let kernel = Outcome::of(self.by_kernel(seeds.sent, Some(seeds.before)));
        if self.injected == Some(Fault::Stale)
            && let Err(error) = self.write(GUARD, self.size, seeds.before)
        {
            let undone = || Outcome::NotDone {
                reason: "the fault was not injected".to_owned(),
            };
            return Checks {
                kernel: Outcome::of(Err(error)),
                copy: undone(),
                mapping: undone(),
                guards: undone(),
            };
        }
        let checks = Checks {
            kernel,
            copy: Outcome::of(self.by_copy(seeds)),
            mapping: Outcome::of(self.by_mapping(seeds)),
            guards: Outcome::of(self.look_at_guards(seeds)),
        };
        // The READ must return the GPU's bytes, not those that arrived in the staging buffer.
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
        let range = GpuRange {
            buffer: &self.buffer,
            offset: GUARD,
            len: self.size,
        };
        by_kernel(&self.stream, range, seed, before, self.limit)
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

/// Returns the access of the peer to the target.
fn access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ
}
