//! The thread that publishes what streams have copied.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use crate::error::{Error, Result};
use crate::shared_object::{SharedObject, Writing};

/// A slot whose bytes a stream has copied.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) object: Arc<SharedObject>,
    pub(crate) writing: Writing,
    /// What it was copied from, if nothing else keeps that alive.
    pub(crate) source: Option<Kept>,
}

/// Memory that work of a stream reads.
#[derive(Clone)]
pub(crate) struct Kept(
    #[expect(dead_code, reason = "it is only dropped")] pub(crate) Arc<dyn Any + Send + Sync>,
);

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

/// The thread that publishes what streams have copied. A function called by a stream must not publish by itself,
/// because publishing sends a wake-up and may drop GPU memory, both of which may call the driver.
///
/// The thread ends when the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Publisher(Sender<Copied>);

impl Publisher {
    /// Starts the thread.
    pub(crate) fn start() -> Result<Self> {
        let (sender, receiver) = channel();
        thread::Builder::new()
            .name("gdr-object-publish".to_owned())
            .spawn(move || publish(&receiver))
            .map_err(|source| Error::Os {
                call: "starting a thread",
                source,
            })?;
        Ok(Self(sender))
    }

    /// Publishes soon, without waiting.
    pub(crate) fn send(&self, copied: Copied) {
        if self.0.send(copied).is_err() {
            // The thread ends before its senders only if it panics.
            tracing::error!("an epoch was not published: the thread that does so has ended");
        }
    }
}

fn publish(receiver: &Receiver<Copied>) {
    for copied in receiver {
        let Copied {
            object,
            writing,
            source,
        } = copied;
        drop(source);
        if let Err(error) = object.commit(&writing) {
            // The object was closed in the meantime.
            tracing::debug!(%error, "an epoch was not published");
        }
    }
}
