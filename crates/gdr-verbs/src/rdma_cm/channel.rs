//! An open device: the events of its identifiers, and the descriptor that programs poll.

use std::collections::VecDeque;
use std::io::{IoSliceMut, PipeReader, PipeWriter, pipe};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

use rustix::fs::Stat;
use rustix::io::ReadWriteFlags;

use super::abi::EventAnswer;
use crate::device::lock;
use crate::errno::Errno;

/// An event that waits to be fetched.
pub(super) struct QueuedEvent {
    /// The identifier that it is reported for.
    pub(super) owner: u32,
    /// The identifier of the connection that a peer asks for.
    pub(super) new: Option<u32>,
    pub(super) answer: Box<EventAnswer>,
}

/// Events, and a pipe that holds a byte while there are any. The program has its end for reading, so that
/// polling shows nothing else, and waiting is interrupted and cancelled as a system call is.
pub(super) struct Channel {
    reader: PipeReader,
    writer: PipeWriter,
    events: Mutex<VecDeque<QueuedEvent>>,
    identity: (u64, u64),
}

fn identity_of(status: &Stat) -> (u64, u64) {
    (status.st_dev, status.st_ino)
}

impl Channel {
    pub(super) fn new() -> Result<Self, Errno> {
        let (reader, writer) = pipe().map_err(|error| Errno::of_io(&error))?;
        let identity = identity_of(&rustix::fs::fstat(&reader)?);
        Ok(Self {
            reader,
            writer,
            events: Mutex::default(),
            identity,
        })
    }

    /// A descriptor for the program.
    pub(super) fn descriptor(&self) -> Result<OwnedFd, Errno> {
        let fd = self.reader.as_fd().try_clone_to_owned();
        fd.map_err(|error| Errno::of_io(&error))
    }

    /// Returns whether a descriptor is still of this channel, and was not closed and opened again for
    /// something else by a way that this library does not see.
    pub(super) fn is_at(&self, status: &Stat) -> bool {
        self.identity == identity_of(status)
    }

    pub(super) fn push(&self, event: QueuedEvent) {
        let mut events = lock(&self.events);
        if events.is_empty() {
            self.announce();
        }
        events.push_back(event);
    }

    fn announce(&self) {
        // The pipe always has room for a byte.
        if let Err(error) = rustix::io::write(&self.writer, &[0]) {
            tracing::error!(%error, "an event was not announced");
        }
    }

    /// Takes the oldest event, after its byte was read from the descriptor. The byte is there again if more wait.
    pub(super) fn take(&self) -> Option<QueuedEvent> {
        let mut events = lock(&self.events);
        let event = events.pop_front()?;
        if !events.is_empty() {
            self.announce();
        }
        Some(event)
    }

    /// Removes the events that are reported for an identifier.
    pub(super) fn remove(&self, owner: u32) -> Vec<QueuedEvent> {
        let mut events = lock(&self.events);
        let had_any = !events.is_empty();
        let all = std::mem::take(&mut *events);
        let (removed, kept): (VecDeque<_>, _) =
            all.into_iter().partition(|event| event.owner == owner);
        *events = kept;
        if had_any && events.is_empty() {
            // The byte stays if the kernel cannot read without waiting, or if another thread has just read
            // it.
            let mut byte = [0];
            let _read = rustix::io::preadv2(
                &self.reader,
                &mut [IoSliceMut::new(&mut byte)],
                u64::MAX,
                ReadWriteFlags::NOWAIT,
            );
        }
        removed.into()
    }
}
