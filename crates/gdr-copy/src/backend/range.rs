//! What every backend checks before it holds a range.

use gdr_cuda::{Driver, PointerInfo, PointerKind};

use super::PinRequest;
use crate::error::{Error, Result};

/// The allocation that the whole of `request` lies in.
///
/// Refuses what has no lasting place on a GPU (managed and host memory, freed and unknown
/// addresses) and what runs past its allocation.
pub(crate) fn locate(driver: &dyn Driver, request: &PinRequest) -> Result<PointerInfo> {
    let PinRequest { ptr, len, .. } = *request;
    let info = driver.pointer_info(ptr)?;
    if info.kind != PointerKind::Device {
        return Err(Error::NotDeviceMemory {
            ptr,
            kind: info.kind,
        });
    }
    if len > info.remaining(ptr) {
        return Err(Error::PastAllocation {
            ptr,
            len,
            base: info.base,
            size: info.size,
        });
    }
    Ok(info)
}
