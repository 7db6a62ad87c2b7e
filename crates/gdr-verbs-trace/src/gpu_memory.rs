//! Finds out which memory belongs to a GPU.

use gdr_cuda::{Cuda, DevicePtr, Driver, Ordinal, PointerKind};
use gdr_trace::layout::flag;

use crate::recorder::Recorder;

/// Returns the GPU that an address belongs to. `None` for host memory, even if a GPU's driver page-locked it, and if
/// this process does not use CUDA.
pub(crate) fn gpu_of(recorder: &Recorder, address: u64) -> Option<u32> {
    let driver = match Cuda::of_process() {
        Ok(driver) => driver?,
        Err(_) => {
            recorder.set_flags(flag::NO_CUDA);
            return None;
        }
    };
    let info = driver.pointer_info(DevicePtr::new(address)).ok()?;
    ordinal(info.kind, info.device)
}

fn ordinal(kind: PointerKind, device: Ordinal) -> Option<u32> {
    (kind == PointerKind::Device).then_some(device.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memory_that_stays_on_a_gpu_is_that_gpus() {
        assert_eq!(ordinal(PointerKind::Device, Ordinal(3)), Some(3));
        for kind in [
            PointerKind::Host,
            PointerKind::Managed,
            PointerKind::Other(9),
        ] {
            assert_eq!(ordinal(kind, Ordinal(3)), None);
        }
    }
}
