//! Kernels on blocking streams, which the default stream waits for.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The number of running kernels and of waiting calls.
#[derive(Debug, Default)]
pub(super) struct Kernels {
    running: Mutex<usize>,
    waiting: AtomicUsize,
    ended: Condvar,
}

/// A simulated kernel on a blocking stream; it runs until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct SimBlockingKernel(Arc<Kernels>);

impl Kernels {
    pub(super) fn start(this: &Arc<Self>) -> SimBlockingKernel {
        *this.running() += 1;
        SimBlockingKernel(Arc::clone(this))
    }

    /// Waits until no kernel runs, without a deadline, as CUDA's synchronous calls do.
    pub(super) fn wait(&self) {
        let mut running = self.running();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        while *running > 0 {
            running = self
                .ended
                .wait(running)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Locks the number, which stays valid even if a thread panicked while it held the lock.
    fn running(&self) -> MutexGuard<'_, usize> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SimBlockingKernel {
    /// Returns the number of calls that wait for such kernels.
    pub fn waiting(&self) -> usize {
        self.0.waiting.load(Ordering::Relaxed)
    }
}

impl Drop for SimBlockingKernel {
    fn drop(&mut self) {
        *self.0.running() -= 1;
        self.0.ended.notify_all();
    }
}
