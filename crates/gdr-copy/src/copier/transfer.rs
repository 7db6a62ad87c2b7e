//! Copies that run while the program does something else.

use std::sync::Arc;
use std::time::Duration;

use gdr_cuda::Stream;

use super::copy_engine::CopyEngine;
use crate::error::{Error, Result};

/// A copy that may still run, from [`Copier::start_read`] or [`Copier::start_write`].
///
/// Transfers are not ordered with each other. Until one is complete, its GPU memory and host memory stay allocated, and
/// their contents are undefined. A dropped transfer still runs to its end.
///
/// [`Copier::start_read`]: super::Copier::start_read
/// [`Copier::start_write`]: super::Copier::start_write
#[derive(Debug)]
#[must_use = "wait for it: the copy may still run"]
pub struct Transfer {
    /// `None` once the copy is complete.
    running: Option<(Arc<CopyEngine>, Stream)>,
    len: u64,
}

impl Transfer {
    pub(super) fn complete(len: u64) -> Self {
        Self { running: None, len }
    }

    pub(super) fn running(engine: Arc<CopyEngine>, stream: Stream, len: u64) -> Self {
        Self {
            running: Some((engine, stream)),
            len,
        }
    }

    /// Returns the number of bytes to copy.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a length of the copy, not of a container"
    )]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the copy is complete. Never waits.
    ///
    /// # Errors
    /// Same as [`Transfer::wait`], without the deadline.
    pub fn is_complete(&mut self) -> Result<bool> {
        let Some((engine, stream)) = &self.running else {
            return Ok(true);
        };
        let is_complete = engine
            .is_complete(stream)
            .map_err(|source| self.incomplete(source))?;
        // The stream is returned only now, because the next copy on it must not wait for this one.
        if is_complete {
            self.end();
        }
        Ok(is_complete)
    }

    /// Waits until the copy is complete: a read's bytes are in host memory, a write's bytes in GPU memory, visible to
    /// kernels that are launched afterwards.
    ///
    /// # Errors
    /// [`Error::Incomplete`]: the copy failed, or `limit` has passed. In the latter case the copy
    /// continues, and this can be called again.
    pub fn wait(&mut self, limit: Duration) -> Result<()> {
        if let Some((engine, stream)) = &self.running {
            engine
                .wait(stream, limit)
                .map_err(|source| self.incomplete(source))?;
            self.end();
        }
        Ok(())
    }

    fn end(&mut self) {
        if let Some((engine, stream)) = self.running.take() {
            engine.keep(stream);
        }
    }

    /// Returns the error for a copy whose progress is unknown.
    fn incomplete(&self, source: Error) -> Error {
        Error::Incomplete {
            copied: 0,
            len: self.len,
            source: Box::new(source),
        }
    }
}
