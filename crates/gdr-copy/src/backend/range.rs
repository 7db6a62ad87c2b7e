//! What every backend checks before it holds a range.

use gdr_cuda::{DevicePtr, Driver, PointerInfo, PointerKind};

use super::{GPU_PAGE, PinRequest};
use crate::error::{Error, Result};
use crate::pinned::Extent;

/// The part of a request that lies in an allocation, and the allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Located {
    pub(crate) ptr: DevicePtr,
    pub(crate) len: u64,
    pub(crate) info: PointerInfo,
}

/// Small allocations start at multiples of this (CUDA C++ Programming Guide, "Device Memory
/// Accesses": at least 256 bytes).
const SMALL_STEP: u64 = 256;

/// Finds the allocation that `request` lies in.
///
/// Refuses what has no lasting place on a GPU (managed and host memory, freed and unknown
/// addresses) and what runs past its allocation. Counted in GPU pages, a range may begin before
/// its allocation and end after it, in pages that the allocation has a part of.
pub(crate) fn locate(driver: &dyn Driver, request: &PinRequest) -> Result<Located> {
    let refusal = match at(driver, request, request.ptr) {
        Ok(located) => return Ok(located),
        Err(refusal) => refusal,
    };
    if request.options.extent == Extent::Bytes || !may_begin_later(&refusal) {
        return Err(refusal);
    }
    let first_page_ends = request.ptr.align_down(GPU_PAGE).get() + GPU_PAGE;
    let last = first_page_ends.min(request.ptr.get() + request.len);
    let mut next = (request.ptr.get() + 1).next_multiple_of(SMALL_STEP);
    while next < last {
        match at(driver, request, DevicePtr::new(next)) {
            Ok(located) => return Ok(located),
            // Behind this one there may be another.
            Err(Error::PastAllocation { base, size, .. }) => {
                let end = base.get().saturating_add(size).max(next + 1);
                next = end.checked_next_multiple_of(SMALL_STEP).unwrap_or(last);
            }
            Err(_) => next += SMALL_STEP,
        }
    }
    Err(refusal)
}

/// Whether the range might begin before its allocation: nothing is allocated where it begins, or
/// something shorter.
fn may_begin_later(refusal: &Error) -> bool {
    matches!(
        refusal,
        Error::PastAllocation { .. } | Error::Gpu(gdr_cuda::Error::UnknownPointer { .. })
    )
}

/// The part of `request` from `ptr` on, if all of it lies in the allocation at `ptr`.
fn at(driver: &dyn Driver, request: &PinRequest, ptr: DevicePtr) -> Result<Located> {
    let info = driver.pointer_info(ptr)?;
    if info.kind != PointerKind::Device {
        return Err(Error::NotDeviceMemory {
            ptr,
            kind: info.kind,
        });
    }
    let len = request.ptr.get() + request.len - ptr.get();
    let remaining = info.remaining(ptr);
    let allowed = match request.options.extent {
        Extent::Bytes => remaining,
        Extent::GpuPages => {
            let end = ptr.get().saturating_add(remaining);
            end.checked_next_multiple_of(GPU_PAGE).unwrap_or(end) - ptr.get()
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
    Ok(Located {
        ptr,
        len: len.min(remaining),
        info,
    })
}

#[cfg(test)]
mod tests {
    use gdr_cuda::{Gpu, MemoryKind, Ordinal, SimDriver};

    use super::*;
    use crate::pinned::PinOptions;

    fn request(ptr: u64, len: u64, extent: Extent) -> PinRequest {
        let options = PinOptions::default().extent(extent);
        PinRequest::new(DevicePtr::new(ptr), len, options).unwrap()
    }

    #[test]
    fn counted_in_bytes_a_range_ends_where_its_allocation_does() {
        let driver = SimDriver::new(1);
        let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
        let buffer = gpu.allocate(MemoryKind::Plain, 5000).unwrap();
        let at = buffer.ptr().get();
        let find = |ptr, len| locate(&*driver, &request(ptr, len, Extent::Bytes));
        assert_eq!(find(at, 5000).unwrap().len, 5000);
        assert_eq!(find(at + 4999, 1).unwrap().len, 1);
        assert!(matches!(
            find(at, 5001),
            Err(Error::PastAllocation { size: 5000, .. })
        ));
    }

    #[test]
    fn counted_in_pages_a_range_may_round_to_the_pages_of_its_allocation() {
        let driver = SimDriver::new(1);
        let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
        // Three small neighbours in one page; the first is freed.
        let first = gpu.allocate(MemoryKind::Plain, 512).unwrap();
        let second = gpu.allocate(MemoryKind::Plain, 512).unwrap();
        let third = gpu.allocate(MemoryKind::Plain, 5000).unwrap();
        let page = first.ptr().get();
        assert!(page.is_multiple_of(GPU_PAGE) && third.ptr().get() < page + GPU_PAGE);
        drop(first);

        let find = |ptr, len| locate(&*driver, &request(ptr, len, Extent::GpuPages));
        let whole = find(page, GPU_PAGE).unwrap();
        assert_eq!((whole.ptr, whole.info.base), (second.ptr(), second.ptr()));
        let tail = find(third.ptr().get(), page + GPU_PAGE - third.ptr().get()).unwrap();
        assert_eq!((tail.ptr, tail.len), (third.ptr(), 5000));
        assert!(matches!(find(page, GPU_PAGE + 1), Err(Error::Gpu(_))));
        assert!(locate(&*driver, &request(page, GPU_PAGE, Extent::Bytes)).is_err());
    }

    #[test]
    fn memory_that_moves_or_is_the_hosts_is_refused_by_kind() {
        let driver = SimDriver::new(1);
        let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
        let managed = gpu.allocate(MemoryKind::Managed, 4096).unwrap();
        let host = gpu.allocate_host(4096).unwrap();
        for ptr in [managed.ptr(), host.gpu_ptr()] {
            for extent in [Extent::Bytes, Extent::GpuPages] {
                let refusal = locate(&*driver, &request(ptr.get(), 8, extent)).unwrap_err();
                assert!(
                    matches!(refusal, Error::NotDeviceMemory { .. }),
                    "{refusal}"
                );
            }
        }
    }
}
