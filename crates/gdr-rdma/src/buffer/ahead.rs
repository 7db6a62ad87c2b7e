//! GPU memory read ahead of the packets that it leaves in.
//!
//! A request that reads is announced with all of its range before its first byte is asked for.
//! From then on its bytes are copied into a ring of page-locked memory, a piece ahead of the
//! packets, so that the copy engine works while packets are made and sent.
//!
//! What is served for a request is never older than its announcement: that drops every window on
//! the range that was read before.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use gdr_cuda::{DeviceBuffer, Gpu, HostBuffer, Stream};

use crate::error::Result;

/// Bytes of one copy: all of a READ as this crate's requester asks for it (64 packets of 4 KiB),
/// some 5 us on PCIe Gen5 beside a fixed cost of 10.
const PIECE: usize = 256 << 10;
/// Bytes of the ring: a requester has two such READs in flight, each piece of a longer message is
/// followed by the next, and some room is left for other queue pairs.
const RING: usize = 4 * PIECE;
/// A copy of [`PIECE`] bytes takes some 20 us; a GPU that takes this long is lost.
const LIMIT: Duration = Duration::from_secs(10);

/// Copies of GPU memory, for the requests under way.
#[derive(Debug)]
pub(super) struct ReadAhead {
    ring: Arc<HostBuffer>,
    /// Where in the ring the next piece goes.
    head: usize,
    /// The oldest first.
    windows: VecDeque<Window>,
}

/// A piece of GPU memory in the ring.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// Of its first byte in the device buffer.
    offset: u64,
    len: usize,
    /// Of its first byte in the ring.
    at: usize,
    /// Where the range ends that it is part of.
    end: u64,
    /// Its copy was queued, and the stream not waited for since.
    pending: bool,
    /// The next piece was queued, if there is one.
    continued: bool,
}

impl Window {
    fn shows(&self, offset: u64) -> bool {
        offset >= self.offset && offset - self.offset < self.len as u64
    }

    fn meets(&self, offset: u64, len: u64) -> bool {
        self.offset < offset.saturating_add(len) && offset < self.offset + self.len as u64
    }
}

impl ReadAhead {
    pub(super) fn new(gpu: &Gpu) -> Result<Self> {
        Ok(Self {
            ring: Arc::new(gpu.allocate_host(RING)?),
            head: 0,
            windows: VecDeque::new(),
        })
    }

    /// Drops what was read of this range before.
    pub(super) fn forget(&mut self, offset: u64, len: u64) {
        self.windows.retain(|window| !window.meets(offset, len));
    }

    /// Announces a request that reads this range, which is not empty and lies in `buffer`: its
    /// first piece is on its way when this returns. All calls name one stream and one buffer.
    pub(super) fn expect(
        &mut self,
        stream: &Stream,
        buffer: &DeviceBuffer,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.forget(offset, len);
        self.queue(stream, buffer, offset, offset + len)
    }

    /// Copies from `offset` into the start of `bytes`; how many, 0 where nothing was read ahead.
    pub(super) fn serve(
        &mut self,
        stream: &Stream,
        buffer: &DeviceBuffer,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<usize> {
        let found = self.windows.iter_mut().rev().find(|w| w.shows(offset));
        let Some(window) = found else {
            return Ok(0);
        };
        let last = window.offset + window.len as u64;
        let goes_on = !window.continued && last < window.end;
        window.continued = true;
        let window = *window;
        if window.pending {
            stream.wait(LIMIT)?;
            for window in &mut self.windows {
                window.pending = false;
            }
        }
        let skip = (offset - window.offset) as usize;
        let len = (window.len - skip).min(bytes.len());
        self.ring.read(window.at + skip, &mut bytes[..len])?;
        if goes_on {
            // Only now: it takes room from the oldest, which may be this one.
            self.queue(stream, buffer, last, window.end)?;
        }
        Ok(len)
    }

    /// Starts copying the first piece of what lies between `offset` and `end`.
    fn queue(
        &mut self,
        stream: &Stream,
        buffer: &DeviceBuffer,
        offset: u64,
        end: u64,
    ) -> Result<()> {
        let len = (end - offset).min(PIECE as u64) as usize;
        if self.head + len > RING {
            self.head = 0;
        }
        let at = self.head;
        // A copy of one of these may be under way: the stream runs this one after it.
        self.windows
            .retain(|window| window.at >= at + len || window.at + window.len <= at);
        stream.queue_read(buffer, offset, &self.ring, at, len)?;
        self.head = at + len;
        self.windows.push_back(Window {
            offset,
            len,
            at,
            end,
            pending: true,
            continued: false,
        });
        Ok(())
    }
}
