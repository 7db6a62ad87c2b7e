//! The rings of a GPU.

use std::sync::{Arc, Mutex, Weak};

use gdr_cuda::{Driver, Gpu, Ordinal};

use super::lock;
use super::ring::Ring;

/// The number of rings that are kept for later copies.
const MOST_KEPT: usize = 8;

/// A GPU's idle rings. All copiers of the GPU share them, because a program may map hundreds of buffers. They are freed
/// with the last copier.
#[derive(Debug, Default)]
pub(super) struct Rings(Mutex<Vec<Ring>>);

/// A GPU that has had rings, and may still have them.
struct Known {
    driver: Weak<dyn Driver>,
    device: Ordinal,
    rings: Weak<Rings>,
}

static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

impl Rings {
    /// Returns the rings of this GPU.
    pub(super) fn of(gpu: &Gpu) -> Arc<Self> {
        let (driver, device) = (Arc::downgrade(gpu.driver()), gpu.info().ordinal);
        let mut known = lock(&KNOWN);
        known.retain(|it| it.rings.strong_count() > 0);
        // Compares the driver too: a simulated GPU has the same number as a real one.
        let is_same = |it: &&Known| it.device == device && Weak::ptr_eq(&it.driver, &driver);
        let found = known.iter().find(is_same);
        if let Some(rings) = found.and_then(|it| it.rings.upgrade()) {
            return rings;
        }
        let rings = Arc::<Self>::default();
        known.push(Known {
            driver,
            device,
            rings: Arc::downgrade(&rings),
        });
        rings
    }

    /// Takes an idle ring for a copy, if there is one.
    pub(super) fn take(&self) -> Option<Ring> {
        lock(&self.0).pop()
    }

    /// Keeps an idle ring. Called only after a successful copy: after a failure, the streams may not be idle.
    pub(super) fn keep(&self, ring: Ring) {
        let mut rings = lock(&self.0);
        // Concurrent copies may have made more rings; the surplus is freed here.
        if rings.len() < MOST_KEPT {
            rings.push(ring);
        }
    }

    /// Frees the idle rings.
    pub(super) fn clear(&self) {
        // Dropped after the lock is released.
        let _ended = std::mem::take(&mut *lock(&self.0));
    }
}

#[cfg(test)]
mod tests {
    use gdr_cuda::SimDriver;

    use super::*;

    #[test]
    fn copiers_of_one_gpu_share_rings_and_those_of_two_do_not() {
        let driver = SimDriver::new(2);
        let open = |number| Gpu::open(driver.clone(), Ordinal(number)).unwrap();
        let (first, second) = (open(0), open(1));
        let rings = Rings::of(&first);
        rings.keep(Ring::new(&first).unwrap());
        let again = Rings::of(&open(0));
        assert!(Arc::ptr_eq(&rings, &again));
        assert_eq!(lock(&again.0).len(), 1);
        assert!(!Arc::ptr_eq(&rings, &Rings::of(&second)));
        let other = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
        assert!(
            !Arc::ptr_eq(&rings, &Rings::of(&other)),
            "of another driver"
        );
        drop((rings, again));
        assert_eq!(
            lock(&Rings::of(&first).0).len(),
            0,
            "they ended with the last"
        );
    }

    #[test]
    fn no_more_rings_are_kept_than_are_useful() {
        let gpu = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
        let rings = Rings::of(&gpu);
        let made: Vec<_> = (0..=MOST_KEPT).map(|_| Ring::new(&gpu).unwrap()).collect();
        made.into_iter().for_each(|ring| rings.keep(ring));
        assert_eq!(lock(&rings.0).len(), MOST_KEPT);
        rings.clear();
        assert_eq!(lock(&rings.0).len(), 0);
    }
}
