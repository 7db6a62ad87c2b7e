//! Memory of GPUs that a program registers by its CUDA address.
//!
//! Nothing here loads or initializes CUDA for a program: an address is looked up only if the process
//! has the driver's library already. The memory is mapped through `gdr-copy`, so the engine's thread
//! stores to it without a CUDA context.

use std::sync::{Arc, Mutex};

use gdr_copy::{Context, PerProcess, PinGranularity, PinOptions};
use gdr_cuda::{Cuda, DevicePtr, Driver, Gpu, Ordinal, PointerKind};
use gdr_rdma::Buffer;

use crate::device::lock;
use crate::errno::Errno;

/// What an address belongs to.
pub(crate) enum Place {
    /// Host memory, also if a GPU's driver page-locked it.
    Host,
    /// Memory that stays on a GPU.
    Gpu(Ordinal),
}

/// The driver, if this process has loaded it.
fn driver() -> Option<&'static Arc<Cuda>> {
    Cuda::of_process()
        .inspect_err(|error| tracing::debug!(%error, "the CUDA driver cannot be asked"))
        .ok()?
}

/// What an address belongs to; host memory if CUDA is not in use, or does not know it.
pub(crate) fn place(address: usize) -> Place {
    let info = driver().and_then(|driver| driver.pointer_info(DevicePtr::new(address as u64)).ok());
    match info {
        Some(info) if info.kind == PointerKind::Device => Place::Gpu(info.device),
        _ => Place::Host,
    }
}

/// Whether GPU memory can be taken: the driver is there, and its memory can be mapped.
pub(crate) fn is_supported() -> bool {
    driver().is_some_and(|driver| context(driver, Ordinal(0)).is_ok())
}

/// The way to map memory of a GPU. It is found once for each GPU, and kept where there is none, too.
fn context(driver: &Arc<Cuda>, ordinal: Ordinal) -> Result<Arc<Context>, Errno> {
    type Contexts = Vec<(Ordinal, Option<Arc<Context>>)>;
    static CONTEXTS: PerProcess<Mutex<Contexts>> = PerProcess::new();
    let mut contexts = lock(CONTEXTS.get());
    let known = contexts.iter().find(|(of, _)| *of == ordinal);
    let context = if let Some((_, context)) = known {
        context.clone()
    } else {
        let gpu = Gpu::open(Arc::clone(driver) as Arc<dyn Driver>, ordinal)
            .inspect_err(|error| tracing::warn!(%error, "no GPU memory can be registered"));
        let context = gpu.ok().and_then(|gpu| {
            Context::open_for(&gpu)
                .inspect_err(|error| tracing::warn!(%error, "no GPU memory can be registered"))
                .ok()
        });
        let context = context.map(Arc::new);
        contexts.push((ordinal, context.clone()));
        context
    };
    context.ok_or(Errno::OPNOTSUPP)
}

/// Maps memory of a GPU.
///
/// # Errors
/// `EOPNOTSUPP` where no backend of `gdr-copy` works; `EFAULT` for memory that cannot be mapped.
pub(crate) fn map(ordinal: Ordinal, address: usize, len: usize) -> Result<Buffer, Errno> {
    let driver = driver().ok_or(Errno::OPNOTSUPP)?;
    let context = context(driver, ordinal)?;
    map_pages(&context, address, len)
}

/// Maps the GPU pages of a range.
///
/// As with a network card, only pages have to be allocated: programs round the ranges that they
/// register, UCX to 16 bytes, and CUDA reports the length of an allocation as it was asked for.
fn map_pages(context: &Context, address: usize, len: usize) -> Result<Buffer, Errno> {
    let options = PinOptions::new().with_granularity(PinGranularity::GpuPages);
    let pinned = context
        .pin_with(DevicePtr::new(address as u64), len as u64, options)
        .and_then(|pinned| pinned.map())
        .map_err(|error| {
            tracing::warn!(%error, address, len, "GPU memory cannot be registered");
            Errno::FAULT
        })?;
    Ok(Buffer::direct(pinned)?)
}

#[cfg(test)]
mod tests {
    use gdr_cuda::{MemoryKind, SimDriver};

    use super::*;

    #[test]
    fn a_range_may_end_after_its_allocation_on_the_last_page_of_that() {
        const PAGE: usize = 64 << 10;
        let gpu = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
        let context = Context::builder().gpu(&gpu).unwrap().open().unwrap();
        let memory = gpu.allocate(MemoryKind::Plain, PAGE as u64 + 8).unwrap();
        let address = memory.ptr().get() as usize;

        let buffer = map_pages(&context, address, PAGE + 16).unwrap();
        assert_eq!(buffer.len(), PAGE as u64 + 16);
        buffer.write_at(PAGE as u64, b"the last").unwrap();
        let mut seen = [0; 8];
        memory.read(PAGE as u64, &mut seen).unwrap();
        assert_eq!(&seen, b"the last");

        assert_eq!(
            buffer_len(map_pages(&context, address, 2 * PAGE)),
            Ok(2 * PAGE as u64)
        );
        let past = map_pages(&context, address, 2 * PAGE + 1);
        assert_eq!(buffer_len(past), Err(Errno::FAULT));
    }

    fn buffer_len(mapped: Result<Buffer, Errno>) -> Result<u64, Errno> {
        mapped.map(|buffer| buffer.len())
    }
}
