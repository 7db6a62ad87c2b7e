//! Memory of GPUs that a program registers by its CUDA address.
//!
//! Nothing here loads or initializes CUDA for a program: an address is looked up only if the process
//! has the driver's library already. The memory is mapped through `gdr-copy`, so the engine's thread
//! stores to it without a CUDA context.

use std::sync::{Arc, Mutex, OnceLock};

use gdr_copy::Context;
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
    static DRIVER: OnceLock<Arc<Cuda>> = OnceLock::new();
    if let Some(driver) = DRIVER.get() {
        return Some(driver);
    }
    // SAFETY: a C string; the flag only looks for a library that is loaded, and does not load it.
    let loaded =
        unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW) };
    if loaded.is_null() {
        return None;
    }
    // The handle is kept: the library stays loaded.
    let driver = Cuda::load()
        .inspect_err(|error| tracing::debug!(%error, "the CUDA driver cannot be asked"))
        .ok()?;
    Some(DRIVER.get_or_init(|| driver))
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
    static CONTEXTS: Mutex<Vec<(Ordinal, Option<Arc<Context>>)>> = Mutex::new(Vec::new());
    let mut contexts = lock(&CONTEXTS);
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
    let pinned = context(driver, ordinal)?
        .pin(DevicePtr::new(address as u64), len as u64)
        .and_then(|pinned| pinned.map())
        .map_err(|error| {
            tracing::warn!(%error, address, len, "GPU memory cannot be registered");
            Errno::FAULT
        })?;
    Ok(Buffer::direct(pinned)?)
}
