//! The checks of a range before it is pinned, common to all backends.

use gdr_cuda::{DevicePtr, Family, PointerInfo, PointerKind};

use super::{GPU_PAGE, PinRequest};
use crate::error::{Error, Result};
use crate::options::PinGranularity;

/// The part of a request that lies in an allocation, and the allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Located {
    pub(crate) ptr: DevicePtr,
    pub(crate) len: u64,
    pub(crate) info: PointerInfo,
}

/// Small allocations start at multiples of this (CUDA C++ Programming Guide, "Device Memory Accesses": at least 256
/// bytes).
const SMALL_STEP: u64 = 256;

/// Queries the driver about an address: [`gdr_cuda::Driver::pointer_info`].
pub(crate) type LookUp<'a> = &'a dyn Fn(DevicePtr) -> gdr_cuda::Result<PointerInfo>;

/// Finds the allocation of `request`.
///
/// Refuses memory that may not stay on a GPU (managed and host memory, freed and unknown addresses) and ranges that end
/// after their allocation. In units of GPU pages, a range may begin before its allocation and end after it, in pages
/// that contain a part of the allocation. It may also continue into further allocations of the same block, as GDRCopy
/// permits.
pub(crate) fn locate(look: LookUp<'_>, request: &PinRequest) -> Result<Located> {
    let refusal = match at(look, request, request.ptr) {
        Ok(located) => return Ok(located),
        Err(refusal) => refusal,
    };
    if request.options.granularity() == PinGranularity::Bytes || !may_begin_later(&refusal) {
        return Err(refusal);
    }
    let first_page_ends = request.ptr.align_down(GPU_PAGE).get() + GPU_PAGE;
    let last = first_page_ends.min(request.ptr.get() + request.len);
    let mut next = (request.ptr.get() + 1).next_multiple_of(SMALL_STEP);
    while next < last {
        match at(look, request, DevicePtr::new(next)) {
            Ok(located) => return Ok(located),
            // Another allocation may follow.
            Err(Error::PastAllocation { base, size, .. }) => {
                // Advances by at least one byte, so that the search ends.
                let end = base.get().saturating_add(size).max(next + 1);
                next = end.checked_next_multiple_of(SMALL_STEP).unwrap_or(last);
            }
            Err(_) => next += SMALL_STEP,
        }
    }
    Err(refusal)
}

/// Returns whether the range may begin before its allocation: its first address is unallocated, or in another, shorter
/// allocation.
fn may_begin_later(refusal: &Error) -> bool {
    matches!(
        refusal,
        Error::PastAllocation { .. } | Error::Gpu(gdr_cuda::Error::UnknownPointer { .. })
    )
}

/// Returns the part of `request` from `ptr` on, if the allocation at `ptr` contains all of it.
fn at(look: LookUp<'_>, request: &PinRequest, ptr: DevicePtr) -> Result<Located> {
    let info = look(ptr)?;
    if info.kind != PointerKind::Device {
        return Err(Error::NotDeviceMemory {
            ptr,
            kind: info.kind,
        });
    }
    let len = request.ptr.get() + request.len - ptr.get();
    let remaining = info.remaining(ptr);
    let allowed = match request.options.granularity() {
        PinGranularity::Bytes => remaining,
        PinGranularity::GpuPages => {
            let end = ptr.get().saturating_add(remaining);
            let whole = end.checked_next_multiple_of(GPU_PAGE).unwrap_or(end);
            whole.max(block_end(&info)) - ptr.get()
        }
    };
    if len > allowed || remaining == 0 {
        return Err(Error::PastAllocation {
            ptr,
            len,
            base: info.base,
            size: info.size,
        });
    }
    // The last page is pinned whole anyway: only a range that continues into the block is longer than its allocation.
    let is_further = len > remaining.next_multiple_of(GPU_PAGE);
    Ok(Located {
        ptr,
        len: if is_further { len } else { len.min(remaining) },
        info,
    })
}

/// Returns the end of the block that `cuMemAlloc` cut the allocation from. The block is one memory object, which a pin
/// keeps allocated as a whole.
fn block_end(info: &PointerInfo) -> u64 {
    match (info.family, info.mapping) {
        (Family::Plain, Some(block)) => block.base.get().saturating_add(block.size),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use gdr_cuda::{AddressRange, BufferId, Driver, Gpu, MemoryKind, Ordinal, SimDriver};

    use super::*;
    use crate::options::PinOptions;

    const BLOCK: u64 = 0x20_0000;

    fn look(driver: &SimDriver) -> impl Fn(DevicePtr) -> gdr_cuda::Result<PointerInfo> + '_ {
        |ptr| driver.pointer_info(ptr)
    }

    fn request(ptr: u64, len: u64, granularity: PinGranularity) -> PinRequest {
        let options = PinOptions::new().with_granularity(granularity);
        PinRequest::new(DevicePtr::new(ptr), len, options).unwrap()
    }

    #[test]
    fn in_bytes_a_range_ends_with_its_allocation() {
        let driver = SimDriver::new(1);
        let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
        let buffer = gpu.allocate(MemoryKind::Plain, 5000).unwrap();
        let at = buffer.ptr().get();
        let find = |ptr, len| locate(&look(&driver), &request(ptr, len, PinGranularity::Bytes));
        assert_eq!(find(at, 5000).unwrap().len, 5000);
        assert_eq!(find(at + 4999, 1).unwrap().len, 1);
        assert!(matches!(
            find(at, 5001),
            Err(Error::PastAllocation { size: 5000, .. })
        ));
    }

    #[test]
    fn in_pages_a_range_may_be_rounded_to_the_pages_of_its_allocation() {
        let driver = SimDriver::new(1);
        let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
        // Three small allocations in one page; the first is freed.
        let first = gpu.allocate(MemoryKind::Plain, 512).unwrap();
        let second = gpu.allocate(MemoryKind::Plain, 512).unwrap();
        let third = gpu.allocate(MemoryKind::Plain, 5000).unwrap();
        let page = first.ptr().get();
        assert!(page.is_multiple_of(GPU_PAGE) && third.ptr().get() < page + GPU_PAGE);
        drop(first);

        let find = |ptr, len| locate(&look(&driver), &request(ptr, len, PinGranularity::GpuPages));
        let whole = find(page, GPU_PAGE).unwrap();
        assert_eq!((whole.ptr, whole.info.base), (second.ptr(), second.ptr()));
        let tail = find(third.ptr().get(), page + GPU_PAGE - third.ptr().get()).unwrap();
        assert_eq!((tail.ptr, tail.len), (third.ptr(), 5000));
        assert!(matches!(find(page, BLOCK + 1), Err(Error::Gpu(_))));
        assert!(
            locate(
                &look(&driver),
                &request(page, GPU_PAGE, PinGranularity::Bytes)
            )
            .is_err()
        );
    }

    #[test]
    fn in_pages_a_range_may_go_on_into_the_block_of_its_allocation_and_no_farther() {
        let look = |family| {
            move |ptr: DevicePtr| {
                Ok(PointerInfo {
                    kind: PointerKind::Device,
                    device: Ordinal(0),
                    buffer: BufferId(1),
                    base: ptr.align_down(GPU_PAGE),
                    size: GPU_PAGE,
                    family,
                    mapping: Some(AddressRange {
                        base: DevicePtr::new(BLOCK),
                        size: BLOCK,
                    }),
                })
            }
        };
        let find =
            |family, ptr, len, granularity| locate(&look(family), &request(ptr, len, granularity));
        let (start, pages) = (BLOCK + GPU_PAGE, PinGranularity::GpuPages);
        let two = find(Family::Plain, start, 2 * GPU_PAGE, pages).unwrap();
        assert_eq!((two.ptr.get(), two.len), (start, 2 * GPU_PAGE));
        let rest = find(Family::Plain, start, BLOCK - GPU_PAGE, pages).unwrap();
        assert_eq!(rest.len, BLOCK - GPU_PAGE);
        for (family, len, granularity) in [
            (Family::Plain, BLOCK, pages),
            (Family::Plain, 2 * GPU_PAGE, PinGranularity::Bytes),
            // A pool may give the rest of the chunk to other allocations.
            (Family::Pool, 2 * GPU_PAGE, pages),
        ] {
            let refused = find(family, start, len, granularity);
            assert!(
                matches!(refused, Err(Error::PastAllocation { .. })),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn managed_and_host_memory_are_refused_by_kind() {
        let driver = SimDriver::new(1);
        let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
        let managed = gpu.allocate(MemoryKind::Managed, 4096).unwrap();
        let host = gpu.allocate_host(4096).unwrap();
        for ptr in [managed.ptr(), host.gpu_ptr()] {
            for granularity in [PinGranularity::Bytes, PinGranularity::GpuPages] {
                let refusal =
                    locate(&look(&driver), &request(ptr.get(), 8, granularity)).unwrap_err();
                assert!(
                    matches!(refusal, Error::NotDeviceMemory { .. }),
                    "{refusal}"
                );
            }
        }
    }
}
