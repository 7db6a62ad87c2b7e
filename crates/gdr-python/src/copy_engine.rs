//! Long reads of GPU memory: by the GPU's copy engine, through page-locked memory.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gdr_cuda::{DeviceBuffer, Gpu, HostBuffer, Result, Stream};

/// Page-locked bytes of a [`CopyEngine`].
const STAGING: usize = 4 << 20;
/// How long a copy of [`STAGING`] bytes may take: 4 MiB need 1 ms on the slowest PCIe link.
const LIMIT: Duration = Duration::from_secs(30);

/// Reads memory of one GPU on a stream of its own, which neither waits for other streams nor delays
/// them.
#[derive(Debug)]
pub(crate) struct CopyEngine {
    gpu: Gpu,
    /// Made at the first read.
    staging: Mutex<Option<Staging>>,
}

#[derive(Debug)]
struct Staging {
    stream: Stream,
    host: Arc<HostBuffer>,
}

impl CopyEngine {
    pub(crate) fn new(gpu: Gpu) -> Self {
        let staging = Mutex::new(None);
        Self { gpu, staging }
    }

    /// Calls `take` with each part of `len` bytes at `offset` of `buffer`, in order: the page-locked
    /// memory that has the part, and its length.
    pub(crate) fn read(
        &self,
        buffer: &DeviceBuffer,
        offset: u64,
        len: usize,
        mut take: impl FnMut(&HostBuffer, usize) -> Result<()>,
    ) -> Result<()> {
        // A staging that a panic left is complete, and its next use overwrites the contents.
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        let staging = match &mut *staging {
            Some(staging) => staging,
            none => none.insert(Staging {
                stream: self.gpu.stream()?,
                host: Arc::new(self.gpu.allocate_host(STAGING)?),
            }),
        };
        let mut done = 0;
        while done < len {
            let part = STAGING.min(len - done);
            let at = offset + done as u64;
            staging
                .stream
                .queue_read(buffer, at, &staging.host, 0, part)?;
            staging.stream.wait(LIMIT)?;
            take(&staging.host, part)?;
            done += part;
        }
        Ok(())
    }
}
