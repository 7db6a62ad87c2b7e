//! Objects that mirror an object of another owner.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use gdr_rdma::Deadline;

use crate::content::Place;
use crate::epoch::Epoch;
use crate::error::{Error, GoneReason, Result};
use crate::link_shared::{LinkShared, LocalMemory};
use crate::lock::lock;
use crate::mode::Mode;
use crate::name::ObjectName;
use crate::object::{Object, ObjectOptions};
use crate::object_server::ObjectServer;
use crate::remote_object::RemoteObject;

/// How long a relay waits for an epoch before it checks whether to end.
const WAIT: Duration = Duration::from_secs(2);
/// Bytes that are copied at a time.
const PIECE: usize = 256 << 10;

/// An object of this process that mirrors an object of another owner, so that not all readers have to read
/// from that owner: a relay gets each epoch once, and serves it to its own readers. Relays of relays form a
/// tree.
///
/// Epochs keep the numbers that their owner gave them; some may be skipped. Once the owner is gone, the
/// object is closed, and readers get [`Error::Gone`], so stale content is never offered.
pub struct Relay {
    name: ObjectName,
    link: Arc<LinkShared>,
    object: Weak<Object>,
    stop: Arc<AtomicBool>,
    /// Why the relay ended.
    ended: Mutex<Receiver<Error>>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Makes `server` offer `from` under a name, in host memory. An owner that does not answer for `limit`
    /// counts as gone. Nothing else may use the link of `from`.
    ///
    /// # Errors
    /// [`Error::WrongMode`] for objects that are not in latest mode; the errors of
    /// [`ObjectServer::create`].
    pub fn start(
        server: &ObjectServer,
        name: ObjectName,
        from: RemoteObject,
        limit: Duration,
    ) -> Result<Self> {
        let info = from.info();
        if info.mode != Mode::Latest {
            return Err(Error::WrongMode {
                name: info.name,
                mode: info.mode,
                operation: "relays",
            });
        }
        let options = ObjectOptions::new(info.element, info.shape).checksum(info.checksum);
        let object = Arc::new(server.create(name.clone(), options, &Place::host())?);
        let link = Arc::clone(&from.binding().link);
        let stop = Arc::new(AtomicBool::new(false));
        let relayed = Relayed {
            memory: link.host_memory(info.bytes)?,
            from,
            object: Arc::clone(&object),
            limit,
            stop: Arc::clone(&stop),
        };
        let (send, ended) = channel();
        let weak = Arc::downgrade(&object);
        drop(object);
        let thread = thread::Builder::new()
            .name("gdr-object-relay".to_owned())
            .spawn(move || relayed.run(&send))
            .map_err(|source| Error::Os {
                call: "starting a thread",
                source,
            })?;
        Ok(Self {
            name,
            link,
            object: weak,
            stop,
            ended: Mutex::new(ended),
            thread: Some(thread),
        })
    }

    /// Returns the name of its object.
    pub fn name(&self) -> &ObjectName {
        &self.name
    }

    /// Returns the newest epoch that it offers; `None` before the first one, and after its end.
    pub fn newest(&self) -> Option<Epoch> {
        self.object.upgrade()?.newest()
    }

    /// Returns how many links have its object open.
    pub fn readers(&self) -> usize {
        self.object.upgrade().map_or(0, |object| object.readers())
    }

    /// Waits until the relay ends, and returns why; `None` at the deadline.
    pub fn wait(&self, deadline: Deadline) -> Option<Error> {
        match lock(&self.ended).recv_timeout(deadline.remaining()) {
            Ok(error) => Some(error),
            Err(RecvTimeoutError::Timeout) => None,
            // The reason was already returned.
            Err(RecvTimeoutError::Disconnected) => {
                Some(Error::gone(&self.name, GoneReason::Closed))
            }
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.link.interrupt();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of a relay panicked");
        }
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("name", &self.name)
            .field("newest", &self.newest())
            .finish_non_exhaustive()
    }
}

/// The state of a relay's thread.
struct Relayed {
    from: RemoteObject,
    memory: LocalMemory,
    object: Arc<Object>,
    limit: Duration,
    stop: Arc<AtomicBool>,
}

impl Relayed {
    fn run(self, ended: &Sender<Error>) {
        let error = match self.relay() {
            Ok(()) => Error::gone(self.object.name(), GoneReason::Closed),
            Err(error) => error,
        };
        // The object is closed before the end is reported.
        drop(self);
        // While the relay is dropped, no thread waits for it.
        let _ = ended.send(error);
    }

    /// Publishes each newer epoch until the relay stops.
    fn relay(&self) -> Result<()> {
        let (mut last, mut answered) = (None, Instant::now());
        while !self.stop.load(Ordering::SeqCst) {
            match self.next(last) {
                Ok(epoch) => last = epoch.or(last),
                Err(Error::Stalled { .. } | Error::NoAnswer { .. })
                    if answered.elapsed() < self.limit =>
                {
                    continue;
                }
                Err(error) => return Err(error),
            }
            answered = Instant::now();
        }
        Ok(())
    }

    /// Waits for an epoch after `last`, and publishes it; `None` if there is none yet.
    fn next(&self, last: Option<Epoch>) -> Result<Option<Epoch>> {
        match self.from.wait_newer(last, Deadline::after(WAIT)) {
            Err(Error::NothingNewer { .. }) => return Ok(None),
            waited => waited?,
        };
        let limit = Deadline::after(self.limit);
        let epoch = self.from.get_into(&self.memory, limit)?;
        self.object.continue_at(epoch)?;
        self.object.write_with(limit, |slot| {
            let mut piece = vec![0; PIECE];
            let mut at = 0;
            while at < slot.len() {
                let left = usize::try_from(slot.len() - at).unwrap_or(PIECE);
                let piece = &mut piece[..left.min(PIECE)];
                self.memory.buffer().read_at(at, piece)?;
                slot.write_at(at, piece)?;
                at += piece.len() as u64;
            }
            Ok(())
        })?;
        Ok(Some(epoch))
    }
}
