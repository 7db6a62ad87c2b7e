//! A thread that is waited for with a limit.

use std::mem;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use gdr_process::lock::lock;

use crate::error::{Error, Result};

/// The limit for the end of a thread. One poll of an engine takes well below a
/// millisecond; copies to a GPU that hangs take longer.
const LIMIT: Duration = Duration::from_secs(20);

/// A thread that ends soon after it was asked to.
#[derive(Debug)]
pub(crate) struct EndingThread {
    name: &'static str,
    thread: JoinHandle<()>,
    /// Disconnects when the thread ends. The lock is for threads that share a device, and is never waited for.
    ended: Mutex<Receiver<()>>,
}

impl EndingThread {
    /// Starts a thread.
    pub(crate) fn start(name: &'static str, run: impl FnOnce() + Send + 'static) -> Result<Self> {
        let (alive, ended): (Sender<()>, _) = channel();
        let thread = Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                // This is dropped last, even if `run` panics.
                let _alive = alive;
                run();
            })
            .map_err(|source| Error::os("starting a thread", source))?;
        Ok(Self {
            name,
            thread,
            ended: Mutex::new(ended),
        })
    }

    /// Waits until the thread has ended. One that does not within 20 seconds ends with the process.
    pub(crate) fn join(self) {
        match lock(&self.ended).recv_timeout(LIMIT) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                if self.thread.join().is_err() {
                    tracing::error!(thread = self.name, "the thread panicked");
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                tracing::error!(
                    thread = self.name,
                    "the thread does not stop; it ends with the process"
                );
            }
        }
    }

    /// Leaves the thread to the parent process, whose it is.
    pub(crate) fn forget(self) {
        mem::forget(self);
    }
}
