//! Page-locked memory that is reused, and is not freed while its driver exists.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::device::Ordinal;
use crate::driver::{Driver, DriverKind, RawHostAllocation};
use crate::error::Result;
use crate::gpu::Gpu;
use crate::host_buffer::HostBuffer;

/// The maximum number of bytes that are kept for later use.
const MOST_KEPT: usize = 128 << 20;

/// The unused memory of the pool.
static UNUSED: Mutex<Vec<Unused>> = Mutex::new(Vec::new());

/// Page-locked host memory from a pool of the process, to which it returns when dropped.
///
/// To free page-locked memory, NVIDIA's driver waits for every kernel of the context, and most calls of all threads
/// wait during that time. Memory that is allocated and freed while the program's kernels run is therefore kept, up to
/// 128 MiB. Its initial contents are left over from its last use.
///
/// A clone of the [`Arc`] may be queued on a [`Stream`](crate::Stream). If a stream still uses the memory when this is
/// dropped, the memory does not return to the pool.
#[derive(Debug)]
pub struct PooledHostBuffer(ManuallyDrop<Arc<HostBuffer>>);

/// An allocation in the pool.
struct Unused {
    driver: Keep,
    device: Ordinal,
    raw: RawHostAllocation,
}

/// Whether an allocation in the pool keeps its driver alive.
enum Keep {
    /// NVIDIA's driver is kept, together with the memory.
    Strong(Arc<dyn Driver>),
    /// A simulation ends with its last owner, together with its memory.
    Weak(Weak<dyn Driver>),
}

// SAFETY: nothing uses the memory while it is in the pool, and any thread may take it.
unsafe impl Send for Unused {}

impl Unused {
    fn new(memory: HostBuffer) -> Self {
        let (gpu, raw) = memory.into_raw();
        let driver = match gpu.driver().kind() {
            DriverKind::Cuda => Keep::Strong(Arc::clone(gpu.driver())),
            DriverKind::Simulated => Keep::Weak(Arc::downgrade(gpu.driver())),
        };
        Self {
            driver,
            device: gpu.info().ordinal,
            raw,
        }
    }

    fn fits(&self, gpu: &Gpu, len: usize) -> bool {
        let of_driver = match &self.driver {
            Keep::Strong(driver) => Arc::ptr_eq(driver, gpu.driver()),
            Keep::Weak(driver) => Weak::ptr_eq(driver, &Arc::downgrade(gpu.driver())),
        };
        of_driver && self.device == gpu.info().ordinal && self.raw.len == len
    }

    fn exists(&self) -> bool {
        match &self.driver {
            Keep::Strong(_) => true,
            Keep::Weak(driver) => driver.strong_count() > 0,
        }
    }
}

impl PooledHostBuffer {
    /// Returns `len` bytes that `gpu` can read and write, from the pool if it has memory of this length.
    ///
    /// # Errors
    /// Same as [`Gpu::allocate_host`].
    pub fn new(gpu: &Gpu, len: usize) -> Result<Self> {
        let mut unused = unused();
        let at = unused.iter().position(|memory| memory.fits(gpu, len));
        let found = at.map(|at| unused.swap_remove(at));
        drop(unused);
        let memory = match found {
            // SAFETY: it belongs to this driver and device, and was taken out of the pool.
            Some(memory) => unsafe { HostBuffer::from_raw(gpu.clone(), memory.raw) },
            None => gpu.allocate_host(len)?,
        };
        Ok(Self(ManuallyDrop::new(Arc::new(memory))))
    }
}

impl Deref for PooledHostBuffer {
    type Target = Arc<HostBuffer>;

    fn deref(&self) -> &Arc<HostBuffer> {
        &self.0
    }
}

impl Drop for PooledHostBuffer {
    fn drop(&mut self) {
        // SAFETY: it is taken only here, and not used afterwards.
        let memory = unsafe { ManuallyDrop::take(&mut self.0) };
        // A stream that timed out may still write to the memory, and then keeps it.
        let Some(memory) = Arc::into_inner(memory) else {
            return;
        };
        let mut unused = unused();
        unused.retain(Unused::exists);
        let kept: usize = unused.iter().map(|memory| memory.raw.len).sum();
        if kept + memory.len() <= MOST_KEPT {
            unused.push(Unused::new(memory));
        } else {
            // Freeing may wait, so the pool is unlocked first.
            drop(unused);
            drop(memory);
        }
    }
}

/// Locks the list, which stays valid even if a thread panicked while it held the lock.
fn unused() -> MutexGuard<'static, Vec<Unused>> {
    UNUSED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimDriver;

    #[test]
    fn memory_is_reused_by_the_same_gpu_only_and_only_when_nothing_uses_it() {
        let gpu = || Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
        let (one, other) = (gpu(), gpu());
        let memory = PooledHostBuffer::new(&one, 5000).unwrap();
        let address = memory.gpu_ptr();
        drop(memory);
        let elsewhere = PooledHostBuffer::new(&other, 5000).unwrap();
        elsewhere.write(0, &[7; 5000]).unwrap();
        assert_ne!(
            PooledHostBuffer::new(&one, 4096).unwrap().gpu_ptr(),
            address
        );
        let again = PooledHostBuffer::new(&one, 5000).unwrap();
        assert_eq!(again.gpu_ptr(), address);
        let user = Arc::clone(&again);
        drop(again);
        assert_ne!(
            PooledHostBuffer::new(&one, 5000).unwrap().gpu_ptr(),
            address
        );
        drop(user);
    }

    #[test]
    fn returning_memory_does_not_wait_for_a_kernel() {
        let driver = SimDriver::new(1);
        let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
        let kernel = driver.blocking_kernel();
        drop(PooledHostBuffer::new(&gpu, 64).unwrap());
        assert_eq!(kernel.waiting(), 0);
    }

    #[test]
    fn the_pool_does_not_keep_a_simulation() {
        let driver = SimDriver::new(1);
        let watch = Arc::downgrade(&driver);
        let gpu = Gpu::open(driver, Ordinal(0)).unwrap();
        drop(PooledHostBuffer::new(&gpu, 64).unwrap());
        drop(gpu);
        assert_eq!(watch.strong_count(), 0);
    }
}
