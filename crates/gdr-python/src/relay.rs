//! Objects that mirror another owner's object.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gdr_object::{Deadline, Epoch};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::IntoException;
use crate::object_server::OpenServer;
use crate::waiting::{INTERRUPTIBLE, deadline};

/// An object that mirrors the epochs of another owner's object, to spare that owner some of its readers. Created by
/// ObjectServer.relay(). It is gone once that owner is gone.
#[pyclass(frozen, module = "gdr")]
#[derive(Debug)]
pub(crate) struct Relay {
    name: String,
    /// None once closed.
    open: Mutex<Option<Arc<gdr_object::Relay>>>,
    /// Keeps the server running.
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

    /// The value is set as a whole, so it stays valid after a panic.
    fn lock(&self) -> MutexGuard<'_, Option<Arc<gdr_object::Relay>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

context_manager!(Relay);

#[pymethods]
impl Relay {
    /// Waits until the original owner is gone, and raises the error that says so; returns after `timeout` seconds.
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

    /// Ends the relay: readers get gdr.Gone. Further calls do nothing.
    fn close(&self, py: Python<'_>) {
        let closed = self.lock().take();
        py.detach(|| drop(closed));
    }

    /// Returns the name of its object.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Returns the newest epoch that it offers; None before the first one, and after its end.
    #[getter]
    fn newest(&self) -> Option<u64> {
        self.lock().as_ref()?.newest().map(Epoch::get)
    }

    /// Returns how many links have it open.
    #[getter]
    fn readers(&self) -> usize {
        self.lock().as_ref().map_or(0, |relay| relay.readers())
    }

    fn __repr__(&self) -> String {
        format!("<gdr.Relay {}>", self.name)
    }
}
