//! The registered memory of one end.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use gdr_cuda::{CuResult, DeviceBuffer, Stream};
use gdr_rdma::{
    Access, Buffer, MemoryRegion, ProtectionDomain, Provider, Remote, RemoteMemory, Segment,
    StripedRange,
};
use serde::{Deserialize, Serialize};

use crate::bench_target::BenchTarget;
use crate::error::{Error, Result, SettingsError, compare};
use crate::loopback::{Destination, TransferMode, TransferPreference};
use crate::loopback::{compare as pattern, gpu};
use crate::report::{CpuPlacement, Subject};

/// The memory that an end sends from and receives into.
#[derive(Clone, Copy, Debug)]
pub enum TransferMemory<'a> {
    /// Host memory.
    Host,
    /// Memory of this GPU.
    Gpu(&'a BenchTarget, Destination),
}

/// What an end brings along.
#[derive(Clone, Debug)]
pub struct LocalEnd<'a> {
    /// Its memory.
    pub memory: TransferMemory<'a>,
    /// The address from which it connects; `None` for that of its device, or with a key any.
    pub connect_from: Option<IpAddr>,
    /// The CPUs that its process was bound to, for the report.
    pub cpus: Option<CpuPlacement>,
}

impl<'a> From<TransferMemory<'a>> for LocalEnd<'a> {
    fn from(memory: TransferMemory<'a>) -> Self {
        Self {
            memory,
            connect_from: None,
            cpus: None,
        }
    }
}

/// The memory of an end in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryFacts {
    /// `host` or `gpu`.
    pub kind: String,
    /// The GPU and the backend, with `simulated`.
    pub gpu: Option<Subject>,
    /// The CUDA function that allocated it.
    pub allocated_by: Option<String>,
    /// How bytes get into GPU memory.
    pub reached: Option<TransferMode>,
    /// Why it is reached in this way, and how it was registered.
    pub why: Option<String>,
}

impl MemoryFacts {
    /// Whether figures with this memory describe no hardware.
    pub fn is_simulated(&self) -> bool {
        self.gpu.as_ref().is_some_and(|gpu| gpu.simulated)
    }
}

enum AreaMemory {
    Host(Buffer),
    Gpu {
        buffer: Arc<DeviceBuffer>,
        stream: Stream,
    },
}

/// A registered range of memory.
pub(super) struct Area {
    // The region goes before the memory.
    region: MemoryRegion,
    memory: AreaMemory,
}

/// The deadline of a kernel that fills or compares one slot of at most 1 GiB.
const KERNEL_LIMIT: Duration = Duration::from_secs(60);

/// Bytes that are compared at a time in host memory.
const CHUNK: usize = 1 << 20;

fn access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

impl Area {
    fn host(domain: &ProtectionDomain, len: u64) -> Result<Self> {
        let bytes = usize::try_from(len).map_err(|_| SettingsError::TooLarge { bytes: len })?;
        let buffer = Buffer::host(bytes)?;
        Ok(Self {
            region: domain.register(&buffer, access())?,
            memory: AreaMemory::Host(buffer),
        })
    }

    /// GPU memory, and how it is reached.
    fn gpu(
        domain: &ProtectionDomain,
        target: &BenchTarget,
        destination: Destination,
        len: u64,
    ) -> Result<(Self, MemoryFacts)> {
        let buffer = target.gpu().allocate(destination.memory, len);
        let buffer = Arc::new(buffer.map_err(|source| match source.cu_result() {
            Some(CuResult::OUT_OF_MEMORY) => Error::GpuMemory { bytes: len, source },
            _ => source.into(),
        })?);
        let mut facts = MemoryFacts {
            kind: "gpu".to_owned(),
            gpu: Some(Subject::new(target, None)),
            allocated_by: Some(destination.memory.function().to_owned()),
            reached: None,
            why: None,
        };
        let region = if domain.device().provider() == Provider::Verbs {
            if destination.transfer == TransferPreference::Staged {
                return Err(SettingsError::StagedByDevice.into());
            }
            let memory = Buffer::staged(Arc::clone(&buffer))?;
            let region = domain.register(&memory, access())?;
            facts.reached = Some(TransferMode::Device);
            facts.why = Some(crate::loopback::device_memory::why(&region));
            region
        } else {
            let found = gpu::map_or_stage(target, &buffer, destination.transfer)?;
            let memory = match &found.mapping {
                Some(mapping) => gpu::direct(Arc::clone(mapping), &buffer)?,
                None => Buffer::staged(Arc::clone(&buffer))?,
            };
            facts.reached = Some(match found.mapping {
                Some(_) => TransferMode::Direct,
                None => TransferMode::Staged,
            });
            facts.gpu = Some(found.subject);
            facts.why = Some(found.why);
            domain.register(&memory, access())?
        };
        let stream = target.gpu().stream()?;
        let memory = AreaMemory::Gpu { buffer, stream };
        Ok((Self { region, memory }, facts))
    }

    pub(super) fn remote(&self) -> RemoteMemory {
        self.region.remote()
    }

    pub(super) fn segment(&self, offset: u64, len: u64) -> Result<Segment> {
        Ok(self.region.segment(offset, len)?)
    }

    /// The bytes at `offset`, and those of the peer with which a striped message exchanges them.
    pub(super) const fn range(&self, offset: u64, remote: Remote, len: u64) -> StripedRange<'_> {
        StripedRange {
            local: &self.region,
            offset,
            remote,
            len,
        }
    }

    /// Writes the pattern of `seed` to `len` bytes at a multiple of 4, in whole words.
    pub(super) fn fill(&self, offset: u64, len: u64, seed: u32) -> Result<()> {
        let words = len.div_ceil(4);
        match &self.memory {
            AreaMemory::Gpu { buffer, stream } => {
                Ok(stream.fill_pattern(buffer, offset, words, seed, KERNEL_LIMIT)?)
            }
            AreaMemory::Host(buffer) => {
                let mut chunk = vec![0; CHUNK.min(4 * words as usize)];
                for (at, len) in pattern::pieces(4 * words, CHUNK as u64) {
                    let bytes = &mut chunk[..len as usize];
                    pattern::fill(bytes, seed, at / 4);
                    buffer.write_at(offset + at, bytes)?;
                }
                Ok(())
            }
        }
    }

    /// Compares `len` bytes at a multiple of 4 with the pattern of `seed`: in GPU memory the words by
    /// a kernel, and the bytes after the last whole word by a copy.
    ///
    /// # Errors
    /// [`Error::WrongData`] with the first byte that differs.
    pub(super) fn compare(&self, what: &str, offset: u64, len: u64, seed: u32) -> Result<()> {
        let mut from = 0;
        if let AreaMemory::Gpu { buffer, stream } = &self.memory {
            let words = len / 4;
            let found = stream.verify_pattern(buffer, offset, words, seed, KERNEL_LIMIT)?;
            if found.mismatches > 0 {
                return Err(wrong_word(
                    what,
                    4 * found.first,
                    found.expected,
                    found.found,
                ));
            }
            from = 4 * words;
        }
        let longest = CHUNK.min((len - from) as usize).next_multiple_of(4);
        let mut chunk = vec![0; longest];
        let mut expected = vec![0; longest];
        for (at, len) in pattern::pieces(len - from, CHUNK as u64) {
            let at = from + at;
            let found = &mut chunk[..len as usize];
            self.read(offset + at, found)?;
            let whole = (len as usize).next_multiple_of(4);
            pattern::fill(&mut expected[..whole], seed, at / 4);
            compare(what, &expected[..len as usize], found).map_err(|error| moved(error, at))?;
        }
        Ok(())
    }

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        match &self.memory {
            AreaMemory::Host(buffer) => Ok(buffer.read_at(offset, bytes)?),
            AreaMemory::Gpu { buffer, .. } => Ok(buffer.read(offset, bytes)?),
        }
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        match &self.memory {
            AreaMemory::Host(buffer) => Ok(buffer.write_at(offset, bytes)?),
            AreaMemory::Gpu { buffer, .. } => Ok(buffer.write(offset, bytes)?),
        }
    }

    /// The word at `offset`, a multiple of 8.
    pub(super) fn word(&self, offset: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.read(offset, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// The host memory, whose bytes can be watched while a peer writes them.
    pub(super) fn host_buffer(&self) -> Option<&Buffer> {
        match &self.memory {
            AreaMemory::Host(buffer) => Some(buffer),
            AreaMemory::Gpu { .. } => None,
        }
    }
}

/// The first byte in which two words differ.
fn wrong_word(what: &str, offset: u64, expected: u32, found: u32) -> Error {
    let (expected, found) = (expected.to_le_bytes(), found.to_le_bytes());
    let at = (0..4)
        .find(|at| expected[*at] != found[*at])
        .unwrap_or_default();
    Error::WrongData {
        what: what.to_owned(),
        offset: offset + at as u64,
        expected: expected[at],
        found: found[at],
    }
}

/// The same error about a piece that begins at `at`.
fn moved(error: Error, at: u64) -> Error {
    match error {
        Error::WrongData {
            what,
            offset,
            expected,
            found,
        } => Error::WrongData {
            what,
            offset: offset + at,
            expected,
            found,
        },
        other => other,
    }
}

/// Both areas of an end.
pub(super) struct EndMemory {
    /// What it sends, and offers for READ; the results of its atomic operations.
    pub(super) outgoing: Area,
    /// What it receives, and what the peer writes and changes; the results of its READs.
    pub(super) incoming: Area,
    pub(super) facts: MemoryFacts,
}

impl EndMemory {
    pub(super) fn new(
        domain: &ProtectionDomain,
        memory: TransferMemory<'_>,
        len: u64,
    ) -> Result<Self> {
        match memory {
            TransferMemory::Host => Ok(Self {
                outgoing: Area::host(domain, len)?,
                incoming: Area::host(domain, len)?,
                facts: MemoryFacts {
                    kind: "host".to_owned(),
                    gpu: None,
                    allocated_by: None,
                    reached: None,
                    why: None,
                },
            }),
            TransferMemory::Gpu(target, destination) => {
                let (outgoing, _) = Area::gpu(domain, target, destination, len)?;
                let (incoming, facts) = Area::gpu(domain, target, destination, len)?;
                Ok(Self {
                    outgoing,
                    incoming,
                    facts,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use gdr_rdma::{Device, SoftOptions};

    use super::*;

    #[test]
    fn a_comparison_names_the_first_byte_that_differs() {
        let device = Device::soft_with(SoftOptions::default().port(0)).unwrap();
        let area = Area::host(&device.protection_domain(), 4 << 20).unwrap();
        for len in [1, 3, 4, 4093, (1 << 20) + 7, 3 << 20] {
            area.fill(64, len, 7).unwrap();
            area.compare("the test", 64, len, 7).unwrap();
            let mut byte = [0];
            area.read(64 + len - 1, &mut byte).unwrap();
            area.write(64 + len - 1, &[byte[0] ^ 1]).unwrap();
            match area.compare("the test", 64, len, 7) {
                Err(Error::WrongData { offset, .. }) => assert_eq!(offset, len - 1),
                other => panic!("{other:?}"),
            }
        }
    }
}
