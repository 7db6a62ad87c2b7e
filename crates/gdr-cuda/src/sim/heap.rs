//! Simulated device addresses and their memory.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::memfd::{Memfd, MemfdName, View};
use crate::device::Ordinal;
use crate::error::{CuResult, Error, Result};
use crate::pointer::{AddressRange, BufferId, DevicePtr, Family, PointerInfo, PointerKind};

/// The alignment of blocks, and the size of the block that small allocations share, as for `cuMemAlloc` on hardware.
pub(super) const BLOCK: u64 = 2 << 20;
/// The size of a GPU page.
pub(super) const GPU_PAGE: u64 = 64 << 10;
/// The alignment of small allocations.
const SMALL_STEP: u64 = 512;

/// The next serial number. Serial numbers are unique in the process, not only in one simulation.
static NEXT_BUFFER: AtomicU64 = AtomicU64::new(1);

/// The permitted placement of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// In a shared block if it is smaller than a GPU page, otherwise in a block of its own.
    Packed,
    /// In a block of its own, whose length is rounded up to a multiple of this.
    Alone(u64),
}

/// A request for an allocation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// The CUDA function that is simulated.
    pub(super) call: &'static str,
    /// The GPU.
    pub(super) device: Ordinal,
    /// The kind that [`PointerInfo`] reports.
    pub(super) kind: PointerKind,
    /// The allocator that [`PointerInfo`] reports.
    pub(super) family: Family,
    /// The permitted placement.
    pub(super) placement: Placement,
    /// The length in bytes.
    pub(super) len: u64,
}

#[derive(Debug)]
struct Block {
    memfd: Arc<Memfd>,
    size: u64,
    /// The number of bytes allocated so far; they are not reused.
    filled: u64,
    live: u32,
}

#[derive(Debug)]
struct Allocation {
    info: PointerInfo,
    block: u64,
}

/// A range of addresses, allocated in ascending order and never reused.
#[derive(Debug)]
pub(super) struct Heap {
    next: u64,
    end: u64,
    capacity: u64,
    used: u64,
    /// The block for small allocations.
    shared: Option<u64>,
    blocks: BTreeMap<u64, Block>,
    allocations: BTreeMap<u64, Allocation>,
}

impl Heap {
    /// Creates a heap of the addresses `start..end`, with at most `capacity` bytes of memory at a time.
    pub(super) fn new(start: u64, end: u64, capacity: u64) -> Self {
        Self {
            next: start,
            end,
            capacity,
            used: 0,
            shared: None,
            blocks: BTreeMap::new(),
            allocations: BTreeMap::new(),
        }
    }

    /// Allocates memory; the returned `size` is the one that the driver would report.
    pub(super) fn allocate(&mut self, request: Request) -> Result<PointerInfo> {
        let fail = |result| Error::Call {
            call: request.call,
            result,
        };
        if request.len == 0 {
            return Err(fail(CuResult::INVALID_VALUE));
        }
        if request.len > self.capacity {
            return Err(fail(CuResult::OUT_OF_MEMORY));
        }
        let (block, base, size) = match request.placement {
            Placement::Packed if request.len < GPU_PAGE => {
                let (block, base) = self.pack(request)?;
                (block, base, request.len)
            }
            Placement::Packed => {
                let block = self.add_block(request.call, round_up(request.len, GPU_PAGE))?;
                (block, block, request.len)
            }
            Placement::Alone(granularity) => {
                let size = round_up(request.len, granularity);
                let block = self.add_block(request.call, size)?;
                (block, block, size)
            }
        };
        let info = PointerInfo {
            kind: request.kind,
            device: request.device,
            buffer: BufferId(NEXT_BUFFER.fetch_add(1, Ordering::Relaxed)),
            base: DevicePtr::new(base),
            size,
            family: request.family,
            mapping: self.blocks.get(&block).map(|whole| AddressRange {
                base: DevicePtr::new(block),
                size: whole.size,
            }),
        };
        self.add(info, block);
        Ok(info)
    }

    /// Finds a place in the shared block, or in a new block if it is full.
    fn pack(&mut self, request: Request) -> Result<(u64, u64)> {
        let step = round_up(request.len, SMALL_STEP);
        let room = |block: &Block| block.size - block.filled >= step;
        let base = match self
            .shared
            .filter(|base| self.blocks.get(base).is_some_and(room))
        {
            Some(base) => base,
            None => self.add_block(request.call, BLOCK)?,
        };
        self.shared = Some(base);
        let filled = self.blocks.get_mut(&base).map_or(0, |block| {
            block.filled += step;
            block.filled
        });
        Ok((base, base + filled - step))
    }

    fn add_block(&mut self, call: &'static str, size: u64) -> Result<u64> {
        let full = Error::Call {
            call,
            result: CuResult::OUT_OF_MEMORY,
        };
        let base = self.next;
        let next = base + round_up(size, BLOCK);
        if size > self.capacity - self.used || next > self.end {
            return Err(full);
        }
        let memfd = Memfd::new(size)?;
        Ok(self.insert(memfd, size))
    }

    /// Assigns addresses to `memfd`, for which there is room.
    fn insert(&mut self, memfd: Memfd, size: u64) -> u64 {
        let base = self.next;
        self.blocks.insert(
            base,
            Block {
                memfd: Arc::new(memfd),
                size,
                filled: 0,
                live: 0,
            },
        );
        self.next = base + round_up(size, BLOCK);
        self.used += size;
        base
    }

    /// Opens an allocation of another heap, which may belong to another process.
    pub(super) fn open(&mut self, device: Ordinal, handle: &[u8; 64]) -> Result<PointerInfo> {
        let fail = |result| Error::Call {
            call: "cuIpcOpenMemHandle",
            result,
        };
        let [process, fd, inode, offset, size] = handle::parse(handle);
        let name = MemfdName {
            process: u32::try_from(process).map_err(|_| fail(CuResult::INVALID_VALUE))?,
            fd: u32::try_from(fd).map_err(|_| fail(CuResult::INVALID_VALUE))?,
            inode,
        };
        self.map_import(
            device,
            Memfd::open(name)?,
            offset..offset.saturating_add(size),
        )
        .map_err(fail)
    }

    /// Opens VMM memory of another heap through a duplicate of its descriptor.
    pub(super) fn import(&mut self, device: Ordinal, descriptor: OwnedFd) -> Result<PointerInfo> {
        let memfd = Memfd::import(descriptor)?;
        let len = memfd.len();
        self.map_import(device, memfd, 0..len)
            .map_err(|result| Error::Call {
                call: "cuMemImportFromShareableHandle",
                result,
            })
    }

    /// Adds the allocation at a range of another heap's block.
    fn map_import(
        &mut self,
        device: Ordinal,
        memfd: Memfd,
        allocation: Range<u64>,
    ) -> std::result::Result<PointerInfo, CuResult> {
        let block_size = memfd.len();
        if allocation.is_empty() || allocation.end > block_size {
            return Err(CuResult::INVALID_VALUE);
        }
        let room = self.end - self.next;
        if block_size > room.min(self.capacity - self.used).saturating_sub(BLOCK) {
            return Err(CuResult::OUT_OF_MEMORY);
        }
        let block = self.insert(memfd, block_size);
        let info = PointerInfo {
            kind: PointerKind::Device,
            device,
            buffer: BufferId(NEXT_BUFFER.fetch_add(1, Ordering::Relaxed)),
            base: DevicePtr::new(block + allocation.start),
            size: allocation.end - allocation.start,
            family: Family::Unknown,
            mapping: None,
        };
        self.add(info, block);
        Ok(info)
    }

    /// Returns the handle by which the allocation of `ptr` is opened.
    pub(super) fn handle(&self, ptr: DevicePtr) -> Option<Result<[u8; 64]>> {
        let (allocation, block) = self.find(ptr)?;
        let (info, offset) = (
            &allocation.info,
            allocation.info.base.get() - allocation.block,
        );
        let words = |name: MemfdName| {
            let (process, fd) = (u64::from(name.process), u64::from(name.fd));
            handle::of([process, fd, name.inode, offset, info.size])
        };
        Some(block.memfd.name().map(words))
    }

    fn add(&mut self, info: PointerInfo, block: u64) {
        if let Some(block) = self.blocks.get_mut(&block) {
            block.live += 1;
        }
        self.allocations
            .insert(info.base.get(), Allocation { info, block });
    }

    /// Frees the allocation that starts at `base`.
    pub(super) fn free(&mut self, base: DevicePtr) -> Result<()> {
        let allocation = self
            .allocations
            .remove(&base.get())
            .ok_or(Error::UnknownPointer { ptr: base })?;
        if let Some(block) = self.blocks.get_mut(&allocation.block) {
            block.live -= 1;
            if block.live == 0 {
                self.used -= block.size;
                self.blocks.remove(&allocation.block);
                self.shared = self.shared.filter(|shared| *shared != allocation.block);
            }
        }
        Ok(())
    }

    fn find(&self, ptr: DevicePtr) -> Option<(&Allocation, &Block)> {
        let (_, allocation) = self.allocations.range(..=ptr.get()).next_back()?;
        let inside = allocation.info.remaining(ptr) > 0;
        inside
            .then(|| Some((allocation, self.blocks.get(&allocation.block)?)))
            .flatten()
    }

    /// Returns the allocation of `ptr`.
    pub(super) fn info(&self, ptr: DevicePtr) -> Option<PointerInfo> {
        self.find(ptr).map(|(allocation, _)| allocation.info)
    }

    /// Returns the number of allocations.
    pub(super) fn allocations(&self) -> usize {
        self.allocations.len()
    }

    /// Returns the memory of `ptr..ptr + len`, if one allocation contains all of it.
    pub(super) fn view(&self, ptr: DevicePtr, len: u64) -> Option<View> {
        let (allocation, block) = self.find(ptr)?;
        let offset = ptr.get() - allocation.block;
        (len <= allocation.info.remaining(ptr))
            .then(|| View::new(Arc::clone(&block.memfd), offset, len))
            .flatten()
    }

    /// Returns a descriptor of the block that contains `ptr`, the block's address and its size.
    pub(super) fn share(&self, ptr: DevicePtr) -> Option<Result<(OwnedFd, DevicePtr, u64)>> {
        let (allocation, block) = self.find(ptr)?;
        let base = DevicePtr::new(allocation.block);
        Some(block.memfd.share().map(|fd| (fd, base, block.size)))
    }

    /// Returns the address of the allocation at `base` in this process.
    pub(super) fn cpu_address(&self, base: DevicePtr) -> Option<*mut u8> {
        let (allocation, block) = self.find(base)?;
        let offset = usize::try_from(base.get() - allocation.block).ok()?;
        Some(block.memfd.as_ptr().wrapping_add(offset))
    }
}

/// Conversion of the words of a handle: process, descriptor, inode, offset and length of the allocation.
mod handle {
    const WORDS: usize = 5;

    pub(super) fn of(words: [u64; WORDS]) -> [u8; 64] {
        let mut handle = [0; 64];
        for (place, word) in handle.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        handle
    }

    pub(super) fn parse(handle: &[u8; 64]) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        for (place, word) in handle.chunks_exact(8).zip(&mut words) {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(place);
            *word = u64::from_le_bytes(bytes);
        }
        words
    }
}

/// Rounds a size up. Sizes are at most a heap's capacity, so this cannot overflow.
fn round_up(size: u64, granularity: u64) -> u64 {
    size.div_ceil(granularity) * granularity
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn heap() -> Heap {
        Heap::new(1 << 52, (1 << 52) + 64 * MIB, 16 * MIB)
    }

    fn request(len: u64, placement: Placement) -> Request {
        let (device, kind) = (Ordinal(0), PointerKind::Device);
        Request {
            call: "cuMemAlloc",
            device,
            kind,
            family: Family::Plain,
            placement,
            len,
        }
    }

    #[test]
    fn small_allocations_share_a_block_in_steps_of_512_bytes() {
        let mut heap = heap();
        let first = heap.allocate(request(1, Placement::Packed)).unwrap();
        let second = heap.allocate(request(513, Placement::Packed)).unwrap();
        let third = heap.allocate(request(4, Placement::Packed)).unwrap();
        assert_eq!(second.base.offset_from(first.base), Some(512));
        assert_eq!(third.base.offset_from(second.base), Some(1024));
        assert_eq!(first.size, 1);
        assert_eq!(heap.info(first.base.checked_add(1).unwrap()), None);
        assert_eq!(heap.used, BLOCK);
    }

    #[test]
    fn a_freed_address_is_not_reused_and_its_block_is_freed() {
        let mut heap = heap();
        let first = heap.allocate(request(100, Placement::Packed)).unwrap();
        heap.free(first.base).unwrap();
        assert_eq!(heap.used, 0);
        let second = heap.allocate(request(100, Placement::Packed)).unwrap();
        assert_ne!(first.base, second.base);
        assert_ne!(first.buffer, second.buffer);
        assert!(matches!(
            heap.free(first.base),
            Err(Error::UnknownPointer { .. })
        ));
    }

    #[test]
    fn the_capacity_and_the_address_range_both_end_in_out_of_memory() {
        let mut heap = heap();
        let whole = request(16 * MIB, Placement::Alone(BLOCK));
        for _ in 0..4 {
            let all = heap.allocate(whole).unwrap();
            let more = heap.allocate(request(1, Placement::Packed)).unwrap_err();
            assert_eq!(more.cu_result(), Some(CuResult::OUT_OF_MEMORY));
            heap.free(all.base).unwrap();
        }
        let past_the_range = heap.allocate(whole).unwrap_err();
        assert_eq!(past_the_range.cu_result(), Some(CuResult::OUT_OF_MEMORY));
        let huge = heap
            .allocate(request(u64::MAX, Placement::Alone(BLOCK)))
            .unwrap_err();
        assert_eq!(huge.cu_result(), Some(CuResult::OUT_OF_MEMORY));
    }

    #[test]
    fn a_view_never_leaves_its_allocation() {
        let mut heap = heap();
        let small = heap.allocate(request(100, Placement::Packed)).unwrap();
        heap.allocate(request(100, Placement::Packed)).unwrap();
        assert!(heap.view(small.base, 100).is_some());
        assert!(heap.view(small.base, 101).is_none());
        assert!(heap.view(small.base.checked_add(99).unwrap(), 1).is_some());
        assert!(heap.view(small.base.checked_add(100).unwrap(), 0).is_none());
    }
}
