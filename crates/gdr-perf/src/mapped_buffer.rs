//! The mapped buffer of a measurement.

pub use gdr_copy::plan::CopyDirection;
use gdr_copy::{Caching, MapOptions, Mapping, Pinned};
use gdr_cuda::{DeviceBuffer, MemoryKind, pattern_word};
use serde::{Serialize, Serializer};

use crate::bench_target::BenchTarget;
use crate::error::{Result, SettingsError, compare};
use crate::page_locked::PageLocked;
use crate::stats::Samples;
use crate::timer::Batches;

/// Bytes of a GPU page, the unit in which GDRCopy's tools allocate.
pub const GPU_PAGE: u64 = 64 << 10;

/// How to allocate and map.
#[derive(Clone, Copy, Debug)]
pub struct BufferOptions {
    /// How to allocate.
    pub kind: MemoryKind,
    /// How to map.
    pub mapping: MapOptions,
}

impl Default for BufferOptions {
    fn default() -> Self {
        Self {
            kind: MemoryKind::Plain,
            mapping: MapOptions::default(),
        }
    }
}

/// A buffer that is allocated, pinned and mapped, and host memory to copy from and to.
pub(crate) struct MappedBuffer {
    // Fields drop in order: unmap, unpin, free.
    pub(crate) mapping: Mapping,
    pub(crate) pinned: Pinned,
    pub(crate) buffer: DeviceBuffer,
    /// Bytes to write: the pattern of the kernels.
    pub(crate) source: PageLocked,
    /// The destination of reads.
    pub(crate) sink: PageLocked,
}

/// Serializes a direction by its name.
pub(crate) fn direction_name<S: Serializer>(
    direction: &CopyDirection,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(direction.name())
}

/// The buffer of a measurement, as GDRCopy's tools describe it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Setup {
    /// Bytes that were requested.
    pub requested_bytes: u64,
    /// Bytes allocated: whole GPU pages.
    pub allocated_bytes: u64,
    /// The CUDA function that allocated them.
    pub allocated_by: &'static str,
    /// The buffer's device address.
    #[serde(skip)]
    pub device_ptr: u64,
    /// The start of the mapping in this process.
    #[serde(skip)]
    pub map_ptr: usize,
    /// The buffer's address in this process.
    #[serde(skip)]
    pub user_ptr: usize,
    /// The start of the pinned pages.
    #[serde(skip)]
    pub va: u64,
    /// Bytes from the start of the pinned pages to the buffer.
    pub page_offset: u64,
    /// Bytes pinned.
    pub mapped_bytes: u64,
    /// Bytes per pinned page.
    pub page_bytes: u32,
    /// Whether the mapping is write-combined.
    pub write_combined: bool,
}

impl MappedBuffer {
    /// Allocates `len` bytes in whole GPU pages, pins and maps them.
    pub(crate) fn new(target: &BenchTarget, memory: BufferOptions, len: u64) -> Result<Self> {
        let len = whole_pages(len)?;
        let bytes = usize::try_from(len).map_err(|_| SettingsError::TooLarge { bytes: len })?;
        let buffer = target.gpu().allocate(memory.kind, len)?;
        let pinned = target.pin(buffer.ptr(), buffer.len())?;
        let mapping = pinned.map_with(memory.mapping)?;
        let mut source = PageLocked::zeroed(target.gpu(), bytes)?;
        for (i, word) in (0..).zip(source.chunks_exact_mut(4)) {
            word.copy_from_slice(&pattern_word(1, i).to_le_bytes());
        }
        let sink = PageLocked::zeroed(target.gpu(), bytes)?;
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

    /// Clears the destination of copies of `len` bytes, so that only these copies can put the right bytes there: on the
    /// GPU for copies to it, in the sink for copies from it.
    pub(crate) fn prepare(
        &mut self,
        direction: CopyDirection,
        offset: u64,
        len: usize,
    ) -> Result<()> {
        self.sink[..len].fill(0);
        let on_the_gpu = match direction {
            CopyDirection::ToGpu => &self.sink[..len],
            CopyDirection::FromGpu => &self.source[..len],
        };
        Ok(self.buffer.write(offset, on_the_gpu)?)
    }

    /// Copies `len` bytes through the mapping.
    pub(crate) fn copy(&mut self, direction: CopyDirection, offset: u64, len: usize) -> Result<()> {
        match direction {
            CopyDirection::ToGpu => self.mapping.write_at(offset, &self.source[..len])?,
            CopyDirection::FromGpu => self.mapping.read_at(offset, &mut self.sink[..len])?,
        }
        Ok(())
    }

    /// Times copies of `len` bytes through the mapping.
    pub(crate) fn time(
        &mut self,
        direction: CopyDirection,
        offset: u64,
        len: usize,
        batches: Batches,
    ) -> Result<Samples> {
        batches.time(|| self.copy(direction, offset, len))
    }

    /// Times copies of `len` bytes by `cuMemcpy` from and to page-locked memory.
    pub(crate) fn time_cu_memcpy(
        &mut self,
        direction: CopyDirection,
        offset: u64,
        len: usize,
        batches: Batches,
    ) -> Result<Samples> {
        let Self {
            buffer,
            source,
            sink,
            ..
        } = self;
        match direction {
            CopyDirection::ToGpu => batches.time(|| Ok(buffer.write(offset, &source[..len])?)),
            CopyDirection::FromGpu => batches.time(|| Ok(buffer.read(offset, &mut sink[..len])?)),
        }
    }

    /// Compares what the prepared copies wrote with the beginning of the source.
    pub(crate) fn check(
        &mut self,
        what: &str,
        direction: CopyDirection,
        offset: u64,
        len: usize,
    ) -> Result<()> {
        if direction == CopyDirection::ToGpu {
            self.buffer.read(offset, &mut self.sink[..len])?;
        }
        compare(what, &self.source[..len], &self.sink[..len])
    }

    /// Unmaps and unpins, and calls `before` ahead of each.
    pub(crate) fn release(self, mut before: impl FnMut(Release) -> Result<()>) -> Result<()> {
        let Self {
            mapping, pinned, ..
        } = self;
        before(Release::Unmap)?;
        drop(mapping);
        before(Release::Unpin)?;
        drop(pinned);
        Ok(())
    }
}

/// Steps in which a mapped buffer is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    Unmap,
    Unpin,
}

/// Rounds `bytes` up to whole GPU pages, at least one.
pub(crate) fn whole_pages(bytes: u64) -> Result<u64> {
    let rounded = bytes.max(1).checked_next_multiple_of(GPU_PAGE);
    Ok(rounded.ok_or(SettingsError::TooLarge { bytes })?)
}

/// Checks that copies of `sizes` at `offset` lie in `len` bytes.
pub(crate) fn check_sizes(sizes: &[u64], offset: u64, len: u64) -> Result<(), SettingsError> {
    if sizes.is_empty() {
        return Err(SettingsError::NoSize);
    }
    for &size in sizes {
        if size == 0 {
            return Err(SettingsError::EmptySize);
        }
        if offset.checked_add(size).is_none_or(|end| end > len) {
            return Err(SettingsError::PastEnd { size, offset, len });
        }
    }
    Ok(())
}
