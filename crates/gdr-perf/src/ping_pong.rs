//! A ping-pong with a running kernel. Dropping it stops the kernel.

#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::time::Duration;

use gdr_copy::{MapOptions, Mapping};
use gdr_cuda::{DeviceBuffer, DevicePtr, Direction, HostBuffer, Launch, MemoryKind, Stream};

use crate::bench_target::BenchTarget;
use crate::error::{Error, Result};
use crate::poll::poll_until;

/// Deadline for a kernel to end after its stop flag is set.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Memory that holds a flag or the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryLocation {
    /// GPU memory, which the CPU accesses through a mapping.
    #[serde(rename = "gpumem")]
    Gpu,
    /// Page-locked host memory, which the GPU accesses over the bus.
    #[serde(rename = "hostmem")]
    Host,
}

impl MemoryLocation {
    /// Returns the name that `gdrcopy_pplat` gives it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpumem",
            Self::Host => "hostmem",
        }
    }
}

/// The memory and the launch configuration of a ping-pong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) rounds: u32,
    /// The flag that the CPU writes.
    pub(crate) ping: MemoryLocation,
    /// The flag that the GPU writes.
    pub(crate) pong: MemoryLocation,
    pub(crate) data: MemoryLocation,
    /// 32-bit words of payload per round; 0 for none.
    pub(crate) data_words: u64,
    pub(crate) direction: Direction,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) kind: MemoryKind,
    pub(crate) mapping: MapOptions,
}

impl Layout {
    /// Returns a layout with flags only, each in the memory of the processor that polls it.
    pub(crate) fn flags(rounds: u32) -> Self {
        Self {
            rounds,
            ping: MemoryLocation::Gpu,
            pong: MemoryLocation::Host,
            data: MemoryLocation::Gpu,
            data_words: 0,
            direction: Direction::CpuToGpu,
            blocks: 1,
            threads: 1,
            kind: MemoryKind::Plain,
            mapping: MapOptions::default(),
        }
    }
}

/// Memory that both sides use.
enum SharedBuffer {
    // Fields drop in order: the mapping before the buffer.
    Gpu {
        mapping: Mapping,
        buffer: DeviceBuffer,
    },
    Host(HostBuffer),
}

impl SharedBuffer {
    fn new(
        target: &BenchTarget,
        layout: &Layout,
        location: MemoryLocation,
        len: u64,
    ) -> Result<Self> {
        let zeros = vec![0; len as usize];
        Ok(match location {
            MemoryLocation::Gpu => {
                let buffer = target.gpu().allocate(layout.kind, len)?;
                buffer.write(0, &zeros)?;
                Self::Gpu {
                    mapping: target.map_with(&buffer, layout.mapping)?,
                    buffer,
                }
            }
            MemoryLocation::Host => {
                let host = target.gpu().allocate_host(zeros.len())?;
                host.write(0, &zeros)?;
                Self::Host(host)
            }
        })
    }

    fn gpu_ptr(&self) -> DevicePtr {
        match self {
            Self::Gpu { buffer, .. } => buffer.ptr(),
            Self::Host(host) => host.gpu_ptr(),
        }
    }

    fn store_flag(&self, value: u32) -> Result<()> {
        match self {
            Self::Gpu { mapping, .. } => mapping.flag::<u32>(0)?.store(value),
            Self::Host(host) => host.store_u32(0, value)?,
        }
        Ok(())
    }

    /// Loads with acquire ordering: writes that precede the flag are visible after it.
    fn load_flag(&self) -> Result<u32> {
        Ok(match self {
            Self::Gpu { mapping, .. } => mapping.flag::<u32>(0)?.load_acquire(),
            Self::Host(host) => host.load_u32(0)?,
        })
    }

    fn write(&self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Gpu { mapping, .. } => mapping.write_at(0, bytes)?,
            Self::Host(host) => host.write(0, bytes)?,
        }
        Ok(())
    }

    fn read(&self, bytes: &mut [u8]) -> Result<()> {
        match self {
            Self::Gpu { mapping, .. } => mapping.read_at(0, bytes)?,
            Self::Host(host) => host.read(0, bytes)?,
        }
        Ok(())
    }
}

/// Everything the kernel uses.
struct KernelMemory {
    ping: SharedBuffer,
    pong: SharedBuffer,
    data: Option<SharedBuffer>,
    stop: HostBuffer,
    /// The blocks' barrier and the count of mismatches.
    counters: DeviceBuffer,
    stream: Stream,
}

const BARRIER: u64 = 0;
const MISMATCHES: u64 = 8;

/// A running kernel and its memory. Dropping it stops the kernel.
pub(crate) struct PingPong {
    layout: Layout,
    memory: ManuallyDrop<KernelMemory>,
}

impl PingPong {
    /// Starts the kernel.
    pub(crate) fn start(target: &BenchTarget, layout: Layout) -> Result<Self> {
        let gpu = target.gpu();
        let data = match layout.data_words {
            0 => None,
            words => Some(SharedBuffer::new(target, &layout, layout.data, 4 * words)?),
        };
        let stop = gpu.allocate_host(4)?;
        stop.store_u32(0, 0)?;
        let counters = gpu.allocate(MemoryKind::Plain, 16)?;
        counters.write(0, &[0; 16])?;
        let ping = SharedBuffer::new(target, &layout, layout.ping, 4)?;
        let pong = SharedBuffer::new(target, &layout, layout.pong, 4)?;
        let memory = KernelMemory {
            ping,
            pong,
            data,
            stop,
            counters,
            stream: gpu.stream()?,
        };

        let counters = memory.counters.ptr();
        let at = |offset| DevicePtr::new(counters.get() + offset);
        let launch = Launch::PingPong {
            ping: memory.ping.gpu_ptr(),
            pong: memory.pong.gpu_ptr(),
            stop: memory.stop.gpu_ptr(),
            iterations: layout.rounds,
            data: memory.data.as_ref().map_or(counters, SharedBuffer::gpu_ptr),
            data_words: layout.data_words,
            direction: layout.direction,
            blocks: layout.blocks,
            threads: layout.threads,
            barrier: at(BARRIER),
            mismatches: at(MISMATCHES),
        };
        // Construct this before the launch, so that every return from here on stops the kernel.
        let ping_pong = Self {
            layout,
            memory: ManuallyDrop::new(memory),
        };
        // SAFETY: every address is in `memory`, allocated above with the length that the kernel's documentation states,
        // on this GPU or page-locked for it. `Drop` frees it only once the stream is idle, and otherwise leaks it.
        unsafe { ping_pong.memory.stream.launch(&launch)? };
        Ok(ping_pong)
    }

    /// Writes the payload of a round.
    pub(crate) fn write_payload(&self, bytes: &[u8]) -> Result<()> {
        self.memory
            .data
            .as_ref()
            .map_or(Ok(()), |data| data.write(bytes))
    }

    /// Reads the payload.
    pub(crate) fn read_payload(&self, bytes: &mut [u8]) -> Result<()> {
        self.memory
            .data
            .as_ref()
            .map_or(Ok(()), |data| data.read(bytes))
    }

    /// Starts `round` (from 1): the kernel polls this flag.
    pub(crate) fn ping(&self, round: u32) -> Result<()> {
        self.memory.ping.store_flag(round)
    }

    /// Returns the last round that the kernel answered.
    pub(crate) fn answered(&self) -> Result<u32> {
        self.memory.pong.load_flag()
    }

    /// Waits until the kernel answered `round`.
    pub(crate) fn await_answer(&self, round: u32, limit: Option<Duration>) -> Result<()> {
        if poll_until(limit, || Ok::<_, Error>(self.answered()? == round))? {
            return Ok(());
        }
        let (rounds, limit) = (self.layout.rounds, limit.unwrap_or_default());
        Err(Error::NoAnswer {
            round,
            rounds,
            limit,
        })
    }

    /// Waits until the kernel has ended, and returns how many payload words were wrong.
    pub(crate) fn finish(self, limit: Duration) -> Result<u64> {
        self.memory.stream.wait(limit)?;
        let mut count = [0; 8];
        self.memory.counters.read(MISMATCHES, &mut count)?;
        Ok(u64::from_le_bytes(count))
    }
}

impl Drop for PingPong {
    fn drop(&mut self) {
        let stopped = self
            .memory
            .stop
            .store_u32(0, 1)
            .and_then(|()| self.memory.stream.wait(STOP_LIMIT));
        if stopped.is_ok() {
            // SAFETY: dropped once, here, and not used afterwards. The stream is idle, so the kernel no longer uses
            // this memory. Otherwise it is leaked.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}
