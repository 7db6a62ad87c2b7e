//! Devices of the soft provider.

use std::fmt;
use std::mem;
use std::ops::Deref;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use gdr_roce::wire::UDP_PORT;

use super::shared_engine::SharedEngine;
use crate::bounded_queue::Stored;
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::types::{AsyncEvent, SoftOptions};

/// The limit for the end of the progress thread. One poll of the engine takes well below a
/// millisecond; copies to a GPU that hangs take longer.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// An engine and its progress thread, which ends when this is dropped.
pub(crate) struct SoftDevice {
    engine: Arc<SharedEngine>,
    name: String,
    /// The thread, and a channel that disconnects when it ends.
    thread: Mutex<Option<(JoinHandle<()>, Receiver<()>)>>,
}

impl SoftDevice {
    pub(crate) fn open(options: &SoftOptions) -> Result<Self> {
        Self::open_watched(options, None)
    }

    /// Opens a device that calls `on_event` after each asynchronous event that it queued.
    pub(super) fn open_watched(
        options: &SoftOptions,
        on_event: Option<Stored<AsyncEvent>>,
    ) -> Result<Self> {
        let ip = options.address.ip();
        if ip.is_unspecified() || ip.is_multicast() {
            return Err(Error::AddressNotUnicast(ip));
        }
        let (alive, ended) = channel();
        let (engine, thread) = SharedEngine::start(options, on_event, alive)?;
        let name = match engine.local() {
            local if local.port() == UDP_PORT => format!("soft-{}", local.ip()),
            local => format!("soft-{local}"),
        };
        tracing::debug!(%name, receive_buffer = engine.receive_buffer(), "device opened");
        Ok(Self {
            engine,
            name,
            thread: Mutex::new(Some((thread, ended))),
        })
    }

    pub(super) fn device_name(&self) -> &str {
        &self.name
    }
}

impl Deref for SoftDevice {
    type Target = SharedEngine;

    fn deref(&self) -> &SharedEngine {
        &self.engine
    }
}

impl fmt::Debug for SoftDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SoftDevice")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Drop for SoftDevice {
    fn drop(&mut self) {
        let Some((thread, ended)) = lock(&self.thread).take() else {
            return;
        };
        if !self.engine.origin().is_current() {
            // The thread belongs to the parent process, and so does the eventfd that wakes it.
            return mem::forget((thread, ended));
        }
        self.engine.stop();
        match ended.recv_timeout(STOP_LIMIT) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                if thread.join().is_err() {
                    tracing::error!(device = self.name, "the progress thread panicked");
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                tracing::error!(
                    device = self.name,
                    "the progress thread does not stop; it ends with the process"
                );
            }
        }
    }
}
