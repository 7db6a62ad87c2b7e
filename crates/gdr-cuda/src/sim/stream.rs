//! A simulated stream: a thread that runs the queued work in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use super::kernel::Kernel;
use crate::driver::StreamState;
use crate::error::{CuResult, Error, Result};

/// The sender of a stream's queue. When it is dropped, the thread completes the queue and ends.
#[derive(Debug)]
pub(super) struct Worker {
    queue: Sender<Kernel>,
    submitted: u64,
    completed: Arc<AtomicU64>,
}

impl Worker {
    /// Starts the thread.
    pub(super) fn start() -> Result<Self> {
        let (queue, work) = channel::<Kernel>();
        let completed = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&completed);
        thread::Builder::new()
            .name("gdr-sim-stream".to_owned())
            .spawn(move || {
                for kernel in work {
                    kernel.run();
                    // Pairs with the load in `state`: a thread that finds the stream idle sees its results.
                    count.fetch_add(1, Ordering::Release);
                }
            })
            .map_err(|source| Error::Os {
                what: "starting the thread of a simulated stream failed",
                source,
            })?;
        Ok(Self {
            queue,
            submitted: 0,
            completed,
        })
    }

    /// Queues one kernel.
    pub(super) fn submit(&mut self, call: &'static str, kernel: Kernel) -> Result<()> {
        // The thread ends before its queue only if a kernel panics.
        let gone = |_| Error::Call {
            call,
            result: CuResult::LAUNCH_FAILED,
        };
        self.queue.send(kernel).map_err(gone)?;
        self.submitted += 1;
        Ok(())
    }

    /// Returns whether all kernels queued so far have run.
    pub(super) fn state(&self) -> StreamState {
        if self.completed.load(Ordering::Acquire) == self.submitted {
            StreamState::Idle
        } else {
            StreamState::Busy
        }
    }
}
