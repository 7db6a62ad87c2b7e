//! Registered host or GPU memory, which is filled, compared and copied in place.

use std::sync::Arc;
use std::time::Duration;

use gdr_cuda::{DeviceBuffer, Stream};
use gdr_rdma::{
    Access, Buffer, MemoryRegion, ProtectionDomain, Provider, RegistrationMethod, Remote,
    RemoteMemory, Segment, StripedRange,
};

use crate::bench_target::BenchTarget;
use crate::error::{Error, Result, SettingsError, compare};
use crate::loopback::compare::{self as pattern, CHUNK, Comparison};
use crate::loopback::registration::{GpuRange, Registration};
use crate::loopback::staging::StagingBuffer;
use crate::loopback::{Destination, Outcome, TransferPreference};
use crate::memory_facts::MemoryFacts;

/// The memory that an end sends from and receives into.
#[derive(Clone, Copy, Debug)]
pub enum TransferMemory<'a> {
    /// Host memory.
    Host,
    /// Memory of this GPU.
    Gpu(&'a BenchTarget, Destination),
}

impl TransferMemory<'_> {
    /// Returns whether it is GPU memory that is staged, as far as that is known before registration.
    pub(crate) fn is_staged(&self) -> bool {
        match self {
            Self::Host => false,
            Self::Gpu(target, destination) => match destination.transfer {
                TransferPreference::Staged => true,
                TransferPreference::Auto => target.context().is_err(),
                TransferPreference::Direct => false,
            },
        }
    }
}

/// What to do with GPU memory that a kernel device cannot access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StandIn {
    /// Refuse it: figures of other memory would say nothing about GPU memory.
    Refused,
    /// Register page-locked host memory instead, which [`RegisteredBuffer::before_sending`] and
    /// [`RegisteredBuffer::after_receiving`] copy.
    Allowed,
}

enum BufferMemory {
    Host(Buffer),
    Gpu {
        buffer: Arc<DeviceBuffer>,
        stream: Stream,
        stage: Option<StagingBuffer>,
    },
}

/// A registered range of memory.
pub(crate) struct RegisteredBuffer {
    // Fields drop in order: the region before the memory.
    region: MemoryRegion,
    memory: BufferMemory,
}

/// Deadline of a kernel that fills or compares one slot of at most 1 GiB.
const KERNEL_LIMIT: Duration = Duration::from_secs(60);

impl RegisteredBuffer {
    /// Registers `len` bytes, and says how they are reached.
    pub(crate) fn new(
        domain: &ProtectionDomain,
        memory: TransferMemory<'_>,
        len: u64,
        access: Access,
        stand_in: StandIn,
    ) -> Result<(Self, MemoryFacts)> {
        match memory {
            TransferMemory::Host => Ok((Self::host(domain, len, access)?, MemoryFacts::host())),
            TransferMemory::Gpu(target, destination) => {
                Self::gpu(domain, target, destination, len, access, stand_in)
            }
        }
    }

    fn host(domain: &ProtectionDomain, len: u64, access: Access) -> Result<Self> {
        let bytes = usize::try_from(len).map_err(|_| SettingsError::TooLarge { bytes: len })?;
        let buffer = Buffer::host(bytes)?;
        Ok(Self {
            region: domain.register(&buffer, access)?,
            memory: BufferMemory::Host(buffer),
        })
    }

    fn gpu(
        domain: &ProtectionDomain,
        target: &BenchTarget,
        destination: Destination,
        len: u64,
        access: Access,
        stand_in: StandIn,
    ) -> Result<(Self, MemoryFacts)> {
        let is_verbs = domain.device().provider() == Provider::Verbs;
        let transfer = match (is_verbs, stand_in, destination.transfer) {
            (true, StandIn::Refused, TransferPreference::Staged) => {
                return Err(SettingsError::StagedByDevice.into());
            }
            (true, StandIn::Refused, _) => TransferPreference::Direct,
            (_, _, wanted) => wanted,
        };
        let destination = Destination {
            transfer,
            ..destination
        };
        let buffer = target.allocate(destination.memory, len)?;
        let range = GpuRange {
            buffer: &buffer,
            offset: 0,
            len,
        };
        let made = Registration::new(target, domain, range, access, destination)?;
        let memory = BufferMemory::Gpu {
            stream: target.gpu().stream()?,
            stage: made.stage,
            buffer,
        };
        let registered = Self {
            region: made.region,
            memory,
        };
        Ok((registered, made.memory.into()))
    }

    /// Returns how the device reaches it.
    pub(crate) fn method(&self) -> RegistrationMethod {
        self.region.route()
    }

    pub(crate) fn remote(&self) -> RemoteMemory {
        self.region.remote()
    }

    pub(crate) fn segment(&self, offset: u64, len: u64) -> Result<Segment> {
        Ok(self.region.segment(offset, len)?)
    }

    /// Returns the bytes at `offset`, and the peer's bytes that a striped message exchanges with them.
    pub(crate) const fn range(&self, offset: u64, remote: Remote, len: u64) -> StripedRange<'_> {
        StripedRange {
            local: &self.region,
            offset,
            remote,
            len,
        }
    }

    /// Writes the pattern of `seed` to `len` bytes at `offset`, a multiple of 4, in whole words.
    pub(crate) fn fill(&self, offset: u64, len: u64, seed: u32) -> Result<()> {
        let words = len.div_ceil(4);
        match &self.memory {
            BufferMemory::Gpu { buffer, stream, .. } => {
                Ok(stream.fill_pattern(buffer, offset, words, seed, KERNEL_LIMIT)?)
            }
            BufferMemory::Host(buffer) => {
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

    /// Compares `len` bytes at `offset`, a multiple of 4, with the pattern of `seed`. In GPU memory, a kernel compares
    /// the words, and the bytes after the last whole word are copied.
    ///
    /// # Errors
    /// [`Error::WrongData`] with the first byte that differs.
    pub(crate) fn compare(&self, what: &str, offset: u64, len: u64, seed: u32) -> Result<()> {
        let mut from = 0;
        if let BufferMemory::Gpu { buffer, stream, .. } = &self.memory {
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

    /// Compares the first `len` bytes, which are whole words, with the pattern of `seed`. `before` is the seed of the
    /// pattern that they may still hold.
    pub(crate) fn outcome(&self, len: u64, seed: u32, before: u32) -> Result<Outcome> {
        match &self.memory {
            BufferMemory::Gpu { buffer, stream, .. } => {
                let range = GpuRange {
                    buffer,
                    offset: 0,
                    len,
                };
                pattern::by_kernel(stream, range, seed, Some(before), KERNEL_LIMIT)
            }
            BufferMemory::Host(buffer) => {
                let mut comparison = Comparison::new(seed, Some(before));
                let mut chunk = vec![0; CHUNK.min(len as usize)];
                for (offset, len) in pattern::pieces(len, CHUNK as u64) {
                    let chunk = &mut chunk[..len as usize];
                    buffer.read_at(offset, chunk)?;
                    comparison.add(chunk);
                }
                Ok(comparison.outcome())
            }
        }
    }

    /// Copies GPU memory to the host memory that stands in for it, if any, before it is sent.
    pub(crate) fn before_sending(&self) -> Result<()> {
        self.stage().map_or(Ok(()), StagingBuffer::copy_out)
    }

    /// Copies what arrived in host memory that stands in for GPU memory, if any, to the GPU.
    pub(crate) fn after_receiving(&self) -> Result<()> {
        self.stage().map_or(Ok(()), StagingBuffer::copy_in)
    }

    fn stage(&self) -> Option<&StagingBuffer> {
        match &self.memory {
            BufferMemory::Host(_) => None,
            BufferMemory::Gpu { stage, .. } => stage.as_ref(),
        }
    }

    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        match &self.memory {
            BufferMemory::Host(buffer) => Ok(buffer.read_at(offset, bytes)?),
            BufferMemory::Gpu { buffer, .. } => Ok(buffer.read(offset, bytes)?),
        }
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        match &self.memory {
            BufferMemory::Host(buffer) => Ok(buffer.write_at(offset, bytes)?),
            BufferMemory::Gpu { buffer, .. } => Ok(buffer.write(offset, bytes)?),
        }
    }

    /// Returns the word at `offset`, a multiple of 8.
    pub(crate) fn word(&self, offset: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.read(offset, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Returns the host memory, whose bytes can be watched while a peer writes them.
    pub(crate) fn host_buffer(&self) -> Option<&Buffer> {
        match &self.memory {
            BufferMemory::Host(buffer) => Some(buffer),
            BufferMemory::Gpu { .. } => None,
        }
    }
}

/// Returns the error for the first byte in which two words differ.
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

/// Returns the same error for a piece that begins at `at`.
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

#[cfg(test)]
mod tests {
    use gdr_rdma::{Device, SoftOptions};

    use super::*;

    #[test]
    fn a_comparison_names_the_first_byte_that_differs() {
        let device = Device::soft_with(SoftOptions::default().port(0)).unwrap();
        let registered =
            RegisteredBuffer::host(&device.protection_domain(), 4 << 20, Access::empty()).unwrap();
        for len in [1, 3, 4, 4093, (1 << 20) + 7, 3 << 20] {
            registered.fill(64, len, 7).unwrap();
            registered.compare("the test", 64, len, 7).unwrap();
            let mut byte = [0];
            registered.read(64 + len - 1, &mut byte).unwrap();
            registered.write(64 + len - 1, &[byte[0] ^ 1]).unwrap();
            match registered.compare("the test", 64, len, 7) {
                Err(Error::WrongData { offset, .. }) => assert_eq!(offset, len - 1),
                other => panic!("{other:?}"),
            }
        }
    }
}
