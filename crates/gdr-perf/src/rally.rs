//! A ping-pong with a running kernel, as an owner that cannot leave the kernel behind.

#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::time::Duration;

use gdr_copy::{MapOptions, Mapping};
use gdr_cuda::{DeviceBuffer, DevicePtr, Direction, HostBuffer, Launch, MemoryKind, Stream};

use crate::error::{Error, Result};
use crate::patience::poll_until;
use crate::site::Site;

/// How long a kernel that was told to stop may take.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Where a flag or the payload lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// GPU memory; the CPU reaches it through a mapping.
    #[serde(rename = "gpumem")]
    Gpu,
    /// Page-locked host memory; the GPU reaches it over the bus.
    #[serde(rename = "hostmem")]
    Host,
}

impl Place {
    /// The name that `gdrcopy_pplat` gives it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpumem",
            Self::Host => "hostmem",
        }
    }
}

/// The setting of a rally.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Court {
    pub(crate) rounds: u32,
    /// The flag that the CPU writes.
    pub(crate) ping: Place,
    /// The flag that the GPU writes.
    pub(crate) pong: Place,
    pub(crate) data: Place,
    /// 32-bit words of payload a round; 0 for none.
    pub(crate) data_words: u64,
    pub(crate) direction: Direction,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) kind: MemoryKind,
    pub(crate) mapping: MapOptions,
}

impl Court {
    /// Flags only, in the places that are fastest: each polled where its reader is near.
    pub(crate) fn flags(rounds: u32) -> Self {
        Self {
            rounds,
            ping: Place::Gpu,
            pong: Place::Host,
            data: Place::Gpu,
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
enum Shared {
    // The mapping goes first: the order in which fields are dropped.
    Gpu {
        mapping: Mapping,
        buffer: DeviceBuffer,
    },
    Host(HostBuffer),
}

impl Shared {
    fn new(site: &Site, court: &Court, place: Place, len: u64) -> Result<Self> {
        let zeros = vec![0; len as usize];
        Ok(match place {
            Place::Gpu => {
                let buffer = site.gpu().allocate(court.kind, len)?;
                buffer.write(0, &zeros)?;
                Self::Gpu {
                    mapping: site.map_with(&buffer, court.mapping)?,
                    buffer,
                }
            }
            Place::Host => {
                let host = site.gpu().allocate_host(zeros.len())?;
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

    /// With acquire ordering: what was written before the flag is seen after it.
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
struct Table {
    ping: Shared,
    pong: Shared,
    data: Option<Shared>,
    stop: HostBuffer,
    /// The blocks' barrier and the count of mismatches.
    counters: DeviceBuffer,
    stream: Stream,
}

const BARRIER: u64 = 0;
const MISMATCHES: u64 = 8;

/// A kernel that answers, and the memory it uses; stopped on drop.
pub(crate) struct Rally {
    court: Court,
    table: ManuallyDrop<Table>,
}

impl Rally {
    /// Starts the kernel.
    pub(crate) fn start(site: &Site, court: Court) -> Result<Self> {
        let gpu = site.gpu();
        let data = match court.data_words {
            0 => None,
            words => Some(Shared::new(site, &court, court.data, 4 * words)?),
        };
        let stop = gpu.allocate_host(4)?;
        stop.store_u32(0, 0)?;
        let counters = gpu.allocate(MemoryKind::Plain, 16)?;
        counters.write(0, &[0; 16])?;
        let ping = Shared::new(site, &court, court.ping, 4)?;
        let pong = Shared::new(site, &court, court.pong, 4)?;
        let table = Table {
            ping,
            pong,
            data,
            stop,
            counters,
            stream: gpu.stream()?,
        };

        let counters = table.counters.ptr();
        let at = |offset| DevicePtr::new(counters.get() + offset);
        let launch = Launch::PingPong {
            ping: table.ping.gpu_ptr(),
            pong: table.pong.gpu_ptr(),
            stop: table.stop.gpu_ptr(),
            iterations: court.rounds,
            data: table.data.as_ref().map_or(counters, Shared::gpu_ptr),
            data_words: court.data_words,
            direction: court.direction,
            blocks: court.blocks,
            threads: court.threads,
            barrier: at(BARRIER),
            mismatches: at(MISMATCHES),
        };
        // Owned by the rally before the kernel can run: from here on every way out stops it.
        let rally = Self {
            court,
            table: ManuallyDrop::new(table),
        };
        // SAFETY: every address is memory of `table`, allocated above with the length that the
        // kernel's documentation states, on this GPU or page-locked for it. `Drop` gives it back
        // only once the stream is idle and otherwise leaks it.
        unsafe { rally.table.stream.launch(&launch)? };
        Ok(rally)
    }

    /// Writes the payload of a round.
    pub(crate) fn write_payload(&self, bytes: &[u8]) -> Result<()> {
        self.table
            .data
            .as_ref()
            .map_or(Ok(()), |data| data.write(bytes))
    }

    /// Reads the payload.
    pub(crate) fn read_payload(&self, bytes: &mut [u8]) -> Result<()> {
        self.table
            .data
            .as_ref()
            .map_or(Ok(()), |data| data.read(bytes))
    }

    /// Tells the kernel that `round` (from 1) is on.
    pub(crate) fn ping(&self, round: u32) -> Result<()> {
        self.table.ping.store_flag(round)
    }

    /// The last round that the kernel answered.
    pub(crate) fn answered(&self) -> Result<u32> {
        self.table.pong.load_flag()
    }

    /// Waits until the kernel answered `round`.
    pub(crate) fn await_answer(&self, round: u32, limit: Option<Duration>) -> Result<()> {
        if poll_until(limit, || Ok::<_, Error>(self.answered()? == round))? {
            return Ok(());
        }
        let (rounds, limit) = (self.court.rounds, limit.unwrap_or_default());
        Err(Error::NoAnswer {
            round,
            rounds,
            limit,
        })
    }

    /// Waits for the end of the kernel: the payload words that it found wrong.
    pub(crate) fn finish(self, limit: Duration) -> Result<u64> {
        self.table.stream.wait(limit)?;
        let mut count = [0; 8];
        self.table.counters.read(MISMATCHES, &mut count)?;
        Ok(u64::from_le_bytes(count))
    }
}

impl Drop for Rally {
    fn drop(&mut self) {
        let stopped = self
            .table
            .stop
            .store_u32(0, 1)
            .and_then(|()| self.table.stream.wait(STOP_LIMIT));
        if stopped.is_ok() {
            // SAFETY: dropped once, here, and not used afterwards. The stream is idle, so the
            // kernel uses none of this memory any more. Otherwise it is leaked.
            unsafe { ManuallyDrop::drop(&mut self.table) };
        }
    }
}
