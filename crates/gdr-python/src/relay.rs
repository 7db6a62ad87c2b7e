//! Objects that stand for an object of another owner.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gdr_object::{Deadline, Epoch};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::IntoException;
use crate::object_server::OpenServer;
use crate::waiting::{INTERRUPTIBLE, deadline};

/// An object with the epochs of another owner's object, for readers that are not all to read from that owner.
/// ObjectServer.relay() makes it. Once the owner is gone, so is the object.
#[pyclass(frozen, module = "gdr")]
#[derive(Debug)]
pub(crate) struct Relay {
    name: String,
    /// None once it is closed.
    open: Mutex<Option<Arc<gdr_object::Relay>>>,
    /// It serves as long as this does.
    _server: Arc<OpenServer>,
}

impl Relay {
    pub(crate) fn new(relay: gdr_object::Relay, server: Arc<OpenServer>) -> Self {
        Self {
            name: relay.name().to_string(),
            open: Mutex::new(Some(Arc::new(relay))),
            _server: server,
        }
    }

    /// It is set as a whole, so it is valid after a panic.
    fn lock(&self) -> MutexGuard<'_, Option<Arc<gdr_object::Relay>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

context_manager!(Relay);

#[pymethods]
impl Relay {
    /// Waits until its owner is gone, and raises what says so; returns after `timeout` seconds.
    #[pyo3(signature = (*, timeout = 30.0))]
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let until = deadline(timeout)?;
        let closed = || PyValueError::new_err("the relay is closed");
        let relay = self.lock().clone().ok_or_else(closed)?;
        loop {
            let pause = Deadline::after(until.remaining().min(INTERRUPTIBLE));
            match py.detach(|| relay.wait(pause)) {
                Some(error) => return Err(error.into_exception()),
                None if until.has_passed() => return Ok(()),
                None => py.check_signals()?,
            }
        }
    }

    /// Ends it: readers get gdr.Gone. A second call does nothing.
    fn close(&self, py: Python<'_>) {
        let closed = self.lock().take();
        py.detach(|| drop(closed));
    }

    /// The name of its object.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The newest epoch that it offers; None before the first one, and once it has ended.
    #[getter]
    fn newest(&self) -> Option<u64> {
        self.lock().as_ref()?.newest().map(Epoch::get)
    }

    /// How many links have it open.
    #[getter]
    fn readers(&self) -> usize {
        self.lock().as_ref().map_or(0, |relay| relay.readers())
    }

    fn __repr__(&self) -> String {
        format!("<gdr.Relay {}>", self.name)
    }
}
