//! Publishes the content of files and standard input, epoch by epoch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use gdr_object::{Deadline, Epoch, Error, Object, ObjectName};

use crate::object_content::ContentReader;

/// How long an attempt to publish waits for a follower of a blocking ring.
const ATTEMPT: Duration = Duration::from_millis(200);
/// Pause after an attempt that found the object busy.
const PAUSE: Duration = Duration::from_millis(5);
/// How often to repeat that the ring is full.
const SAY_AGAIN: Duration = Duration::from_secs(10);

/// The content of an object.
pub(super) struct Publisher {
    object: Arc<Object>,
    content: ContentReader,
}

/// A publisher has ended.
pub(super) struct Report {
    pub(super) object: ObjectName,
    /// The last epoch.
    pub(super) result: gdr_object::Result<Option<Epoch>>,
}

impl Publisher {
    pub(super) fn new(object: Arc<Object>, content: ContentReader) -> Self {
        Self { object, content }
    }

    /// Publishes on a thread. The thread is not joined, because it may wait for standard input.
    pub(super) fn start(mut self, report: Sender<Report>, stop: Arc<AtomicBool>) -> Result<()> {
        let publish = move || {
            let result = self.publish_all(&stop);
            // Without a receiver, the command is ending.
            let _ = report.send(Report {
                object: self.object.name().clone(),
                result,
            });
        };
        thread::Builder::new()
            .name("gdr-publisher".to_owned())
            .spawn(publish)
            .context("a thread cannot be started")?;
        Ok(())
    }

    fn publish_all(&mut self, stop: &AtomicBool) -> gdr_object::Result<Option<Epoch>> {
        let mut last = None;
        while !stop.load(Ordering::Relaxed) && self.content.has_more()? {
            match self.publish(stop)? {
                Some(epoch) => last = Some(epoch),
                None => break,
            }
        }
        Ok(last)
    }

    /// Publishes one epoch; returns `None` if it was stopped.
    fn publish(&mut self, stop: &AtomicBool) -> gdr_object::Result<Option<Epoch>> {
        let mut said: Option<Instant> = None;
        loop {
            let content = &mut self.content;
            let published = self.object.write_with(Deadline::after(ATTEMPT), |slot| {
                content.read(slot.len(), |at, part| slot.write_at(at, part))
            });
            // In these cases, no content has been read.
            let reason = match published {
                Ok(epoch) => return Ok(Some(epoch)),
                Err(error @ (Error::RingFull { .. } | Error::Busy { .. })) => error,
                Err(error) => return Err(error),
            };
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            if said.is_none_or(|at| at.elapsed() >= SAY_AGAIN) {
                if matches!(reason, Error::RingFull { .. }) {
                    tracing::warn!("waiting: {reason}");
                }
                said = Some(Instant::now());
            }
            thread::sleep(PAUSE);
        }
    }
}
