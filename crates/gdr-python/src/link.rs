//! Connections to owners.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use gdr_object::{Deadline, LinkOptions, ObjectName, Security};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::IntoException;
use crate::local_memory::{LocalMemory, Memory};
use crate::object_info;
use crate::remote_object::RemoteObject;
use crate::security::{address, device, security};
use crate::tensor::Access;
use crate::waiting::{deadline, wait};

/// A connection to an owner of objects.
///
/// `address` is the owner's ObjectServer.address, and `key` its key, as for ObjectServer. `nic` names an RDMA device;
/// by default, gdr itself speaks RoCE at the local address that routes to the owner.
///
/// A link serves one thread at a time; others wait for their turn, up to their timeout. Open a separate link for each
/// thread that waits for long. A disconnected link reconnects in the next call.
#[pyclass(frozen, module = "gdr")]
#[derive(Debug)]
pub(crate) struct Link {
    owner: SocketAddr,
    open: Arc<OpenLink>,
}

/// A connection, until it is closed. Objects opened over it share it.
#[derive(Debug)]
pub(crate) struct OpenLink(Mutex<Option<gdr_object::Link>>);

impl OpenLink {
    pub(crate) fn get(&self) -> PyResult<gdr_object::Link> {
        // The value is set as a whole, so it stays valid after a panic.
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = || PyValueError::new_err("the link is closed: open another one");
        open.clone().ok_or_else(closed)
    }
}

/// Connects to an owner by the device that `nic` names.
pub(crate) fn connect(
    owner: SocketAddr,
    security: Security,
    nic: Option<String>,
    until: Deadline,
) -> PyResult<gdr_object::Link> {
    let mut options = LinkOptions::new(security);
    if let Some(device) = device(nic)? {
        options = options.device(&device);
    }
    let connected = gdr_object::Link::connect(owner, options, until);
    connected.map_err(IntoException::into_exception)
}

context_manager!(Link);

#[pymethods]
impl Link {
    #[new]
    #[pyo3(signature = (address, *, key = None, nic = None, timeout = 30.0))]
    fn new(
        py: Python<'_>,
        address: &str,
        key: Option<&Bound<'_, PyAny>>,
        nic: Option<String>,
        timeout: f64,
    ) -> PyResult<Self> {
        let (owner, security) = (self::address(py, address)?, security(key)?);
        let until = deadline(timeout)?;
        let link = wait(py, None, move || connect(owner, security, nic, until))??;
        let open = Arc::new(OpenLink(Mutex::new(Some(link))));
        Ok(Self { owner, open })
    }

    /// Returns what the owner has for this peer, as a list of dicts.
    #[pyo3(signature = (*, timeout = 30.0))]
    fn list<'py>(&self, py: Python<'py>, timeout: f64) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let (link, until) = (self.open.get()?, deadline(timeout)?);
        let asked = link.clone();
        let listed = wait(py, Some(&link), move || asked.list(until))?;
        let listed = listed.map_err(IntoException::into_exception)?;
        listed
            .iter()
            .map(|info| object_info::to_dict(py, info))
            .collect()
    }

    /// Opens an object.
    #[pyo3(signature = (name, /, *, timeout = 30.0))]
    fn open(&self, py: Python<'_>, name: String, timeout: f64) -> PyResult<RemoteObject> {
        let (link, until) = (self.open.get()?, deadline(timeout)?);
        let name =
            ObjectName::new(name).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let asked = link.clone();
        let object = wait(py, Some(&link), move || asked.open(name, until))?;
        let object = object.map_err(IntoException::into_exception)?;
        Ok(RemoteObject::new(object, Arc::clone(&self.open)))
    }

    /// Registers memory once for many transfers over this link: a GPU tensor, or writable host memory (a bytearray, a
    /// NumPy array, a CPU tensor).
    #[pyo3(signature = (memory, /))]
    fn memory(&self, memory: &Bound<'_, PyAny>) -> PyResult<LocalMemory> {
        let (py, link) = (memory.py(), self.open.get()?);
        let memory = Memory::of(memory, Access::ReadWrite)?;
        py.detach(|| memory.register(&link).map(LocalMemory::new))
    }

    /// Ends the connection, and calls of other threads over it. Further calls do nothing.
    fn close(&self, py: Python<'_>) {
        let mut open = self.open.0.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = open.take();
        drop(open);
        py.detach(|| {
            if let Some(link) = closed {
                link.interrupt();
            }
        });
    }

    /// Returns the address and the port of the owner.
    #[getter]
    fn owner(&self) -> String {
        self.owner.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<gdr.Link to {}>", self.owner)
    }
}
