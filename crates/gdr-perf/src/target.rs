//! The mapped buffer that a measurement works on.

use gdr_copy::{Caching, MapOptions, Mapping, Pinned};
use gdr_cuda::{DeviceBuffer, MemoryKind, pattern_word};
use serde::Serialize;

use crate::against::Way;
use crate::error::{Error, Result, compare};
use crate::page_locked::PageLocked;
use crate::site::Site;

/// GPU pages, the unit in which GDRCopy's tools allocate.
pub const GPU_PAGE: u64 = 64 << 10;

/// How to allocate and map.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// How to allocate.
    pub kind: MemoryKind,
    /// How to map.
    pub mapping: MapOptions,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            kind: MemoryKind::Plain,
            mapping: MapOptions::default(),
        }
    }
}

/// A buffer that is allocated, pinned and mapped, and host memory to copy from and to.
pub(crate) struct Target {
    // Field order is drop order: unmapped, unpinned, freed.
    pub(crate) mapping: Mapping,
    pub(crate) pinned: Pinned,
    pub(crate) buffer: DeviceBuffer,
    /// What is written: the pattern of the kernels.
    pub(crate) source: PageLocked,
    /// Where it is read to.
    pub(crate) sink: PageLocked,
}

/// What a measurement works on, as GDRCopy's tools describe it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Setup {
    /// Bytes that were asked for.
    pub requested_bytes: u64,
    /// Bytes allocated: those in whole GPU pages.
    pub allocated_bytes: u64,
    /// The CUDA function that allocated them.
    pub allocated_by: &'static str,
    /// The buffer's device address.
    #[serde(skip)]
    pub device_ptr: u64,
    /// Where the mapping starts in this process.
    #[serde(skip)]
    pub map_ptr: usize,
    /// The buffer's address in this process.
    #[serde(skip)]
    pub user_ptr: usize,
    /// Where the pinned pages start.
    #[serde(skip)]
    pub va: u64,
    /// Bytes from there to the buffer.
    pub page_offset: u64,
    /// Bytes pinned.
    pub mapped_bytes: u64,
    /// Their unit.
    pub page_bytes: u32,
    /// Whether the mapping is write-combined.
    pub write_combined: bool,
}

impl Target {
    /// Allocates `len` bytes in whole GPU pages, pins and maps them.
    pub(crate) fn new(site: &Site, memory: Memory, len: u64) -> Result<Self> {
        let len = len
            .max(1)
            .checked_next_multiple_of(GPU_PAGE)
            .ok_or_else(|| Error::Settings(format!("{len} bytes are more than there can be")))?;
        let bytes = usize::try_from(len)
            .map_err(|_| Error::Settings(format!("{len} bytes do not fit into this process")))?;
        let buffer = site.gpu().allocate(memory.kind, len)?;
        let pinned = site.pin(buffer.ptr(), buffer.len())?;
        let mapping = pinned.map_with(memory.mapping)?;
        let mut source = PageLocked::zeroed(site.gpu(), bytes)?;
        for (i, word) in (0..).zip(source.chunks_exact_mut(4)) {
            word.copy_from_slice(&pattern_word(1, i).to_le_bytes());
        }
        let sink = PageLocked::zeroed(site.gpu(), bytes)?;
        Ok(Self {
            mapping,
            pinned,
            buffer,
            source,
            sink,
        })
    }

    pub(crate) fn setup(&self, requested_bytes: u64) -> Setup {
        let info = self.pinned.info();
        Setup {
            requested_bytes,
            allocated_bytes: self.buffer.len(),
            allocated_by: self.buffer.kind().function(),
            device_ptr: self.buffer.ptr().get(),
            map_ptr: self.mapping.window().0.addr(),
            user_ptr: self.mapping.as_ptr().addr(),
            va: info.va.get(),
            page_offset: self.buffer.ptr().get() - info.va.get(),
            mapped_bytes: info.mapped_size,
            page_bytes: info.page_size,
            write_combined: self.mapping.caching() == Caching::WriteCombined,
        }
    }

    /// Makes sure that only the copies to come can put the right bytes where they are checked:
    /// on the GPU for copies to it, in the sink for copies from it.
    pub(crate) fn prepare(&mut self, way: Way, offset: u64, len: usize) -> Result<()> {
        self.sink[..len].fill(0);
        let on_the_gpu = match way {
            Way::ToGpu => &self.sink[..len],
            Way::FromGpu => &self.source[..len],
        };
        Ok(self.buffer.write(offset, on_the_gpu)?)
    }

    /// That the copies prepared for have brought what the source begins with.
    pub(crate) fn check(&mut self, what: &str, way: Way, offset: u64, len: usize) -> Result<()> {
        if way == Way::ToGpu {
            self.buffer.read(offset, &mut self.sink[..len])?;
        }
        compare(what, &self.source[..len], &self.sink[..len])
    }
}

/// Checks that copies of `sizes` at `offset` lie in `len` bytes.
pub(crate) fn check_sizes(sizes: &[u64], offset: u64, len: u64) -> Result<()> {
    if sizes.is_empty() {
        return Err(Error::Settings(
            "there is no size to measure: give a larger buffer".into(),
        ));
    }
    for &size in sizes {
        if size == 0 {
            return Err(Error::Settings(
                "0 bytes cannot be measured: give at least 1".into(),
            ));
        }
        if offset.checked_add(size).is_none_or(|end| end > len) {
            return Err(Error::Settings(format!(
                "offset + copy size run past the end of the buffer: {size} bytes at {offset} of \
                 {len}"
            )));
        }
    }
    Ok(())
}
