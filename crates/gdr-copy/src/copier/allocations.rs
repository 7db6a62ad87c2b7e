//! The allocations of a buffer, to find out whether they were freed.

use std::ops::Range;
use std::sync::Arc;

use gdr_cuda::{AddressRange, BufferId, DeviceBuffer, DevicePtr};

use crate::error::{Error, Result};

/// The allocations of a buffer that another library owns, by their serial numbers (`CU_POINTER_ATTRIBUTE_BUFFER_ID`). A
/// changed number means that other memory is now at the address.
#[derive(Debug)]
pub struct Allocations {
    buffer: Arc<DeviceBuffer>,
    all: Vec<(AddressRange, BufferId)>,
}

impl Allocations {
    /// Returns the current allocations of `buffer`.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the driver does not know the memory.
    pub fn of(buffer: Arc<DeviceBuffer>) -> Result<Self> {
        let driver = buffer.gpu().driver();
        let end = buffer.ptr().checked_add(buffer.len());
        let end = end.unwrap_or(DevicePtr::new(u64::MAX));
        let first = driver.pointer_info(buffer.ptr())?;
        let others = first.neighbours_up_to(end, |next| driver.pointer_info(next));
        let others = others.map_err(|gap| gdr_cuda::Error::UnknownPointer { ptr: gap })?;
        let range = |base, size| AddressRange { base, size };
        let all = [first].into_iter().chain(others);
        let all = all.map(|info| (range(info.base, info.size), info.buffer));
        Ok(Self {
            all: all.collect(),
            buffer,
        })
    }

    /// Returns the buffer.
    pub fn buffer(&self) -> &Arc<DeviceBuffer> {
        &self.buffer
    }

    /// Fails if memory in this range of the buffer was freed since [`Allocations::of`]: its address may now belong to
    /// another allocation. Copies queued between two successful checks access the buffer's memory.
    ///
    /// # Errors
    /// [`Error::Freed`]; [`Error::Gpu`].
    pub fn check(&self, range: Range<u64>) -> Result<()> {
        let driver = self.buffer.gpu().driver();
        let at = |offset| self.buffer.ptr().get() + offset;
        for (allocation, id) in &self.all {
            let start = allocation.base.get();
            let overlaps = start < at(range.end) && at(range.start) < start + allocation.size;
            // An allocation outside the range may be freed.
            if !overlaps {
                continue;
            }
            let ptr = DevicePtr::new(start.max(at(range.start)));
            let freed = Error::Freed { ptr };
            match driver.pointer_info(ptr) {
                Ok(info) if info.buffer == *id => {}
                Ok(_) | Err(gdr_cuda::Error::UnknownPointer { .. }) => return Err(freed),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
