//! Owners of objects.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gdr_cuda::Ordinal;
use gdr_object::{
    Checksum, Element, Grantee, Mode, ObjectName, ObjectOptions, Place, Rights, ServerOptions,
    Shape,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::dtype::Dtype;
use crate::error::IntoException;
use crate::link::connect;
use crate::local_memory::Memory;
use crate::object::Object;
use crate::relay::Relay;
use crate::runtime::Runtime;
use crate::security::{address, device, security};
use crate::tensor::Access;
use crate::waiting::{deadline, limit, wait};

/// Serves named memory of this process, which other processes read, write and watch by RDMA.
///
/// `address` is the IP address and port to listen at; port 0 picks a free port. `key` is a shared key (bytes, at least
/// 16, or the path of a file that contains them); without a key, only processes on this host of the same user or root
/// are accepted. `nic` names an RDMA device; by default, gdr itself speaks RoCE at the address. `limit` is the maximum
/// number of bytes per second to send to all readers together; it cannot be combined with `nic`, because network cards
/// do not enforce it. RDMA packets are neither encrypted nor authenticated.
///
/// Serves until it is closed, or until neither it nor any of its objects is in use.
#[pyclass(frozen, module = "gdr")]
#[derive(Debug)]
pub(crate) struct ObjectServer {
    address: SocketAddr,
    open: Arc<OpenServer>,
}

/// An owner, until it is closed. Its objects share it.
#[derive(Debug)]
pub(crate) struct OpenServer(Mutex<Option<Served>>);

/// An owner with its open objects.
#[derive(Debug)]
struct Served {
    // Fields drop in order: peers lose the connection before the objects.
    server: gdr_object::ObjectServer,
    objects: Vec<Arc<gdr_object::Object>>,
}

impl OpenServer {
    /// Locks the value, which is set as a whole and so stays valid after a panic.
    fn lock(&self) -> MutexGuard<'_, Option<Served>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        let closed = self.lock().take();
        drop(closed);
    }

    /// Ends an object, unless another thread uses it.
    pub(crate) fn end(&self, object: &Arc<gdr_object::Object>) {
        if let Some(served) = &mut *self.lock() {
            served.objects.retain(|it| !Arc::ptr_eq(it, object));
        }
    }
}

impl Drop for OpenServer {
    fn drop(&mut self) {
        // Closing waits for threads, so release the GIL, which this thread holds if Python drops the value.
        let _ended = Python::try_attach(|py| py.detach(|| self.close()));
    }
}

/// Template of an object.
struct Model {
    element: Element,
    shape: Shape,
    /// The GPU; `None` for host memory.
    device: Option<Ordinal>,
}

impl Model {
    fn of_bytes(nbytes: u64, device: Option<u32>) -> PyResult<Self> {
        Ok(Self {
            element: Element::U8,
            shape: Shape::row(nbytes).map_err(IntoException::into_exception)?,
            device: device.map(Ordinal),
        })
    }

    fn of_memory(like: &Bound<'_, PyAny>) -> PyResult<Self> {
        match Memory::of(like, Access::ReadOnly)? {
            Memory::Host(host) => Self::new(host.dtype(), host.shape(), host.len() as u64, None),
            Memory::Gpu(tensor) => {
                let runtime = Runtime::get()?;
                let gpu = runtime.gpu_of(tensor.ptr)?.gpu.info().ordinal;
                Self::new(tensor.dtype, &tensor.shape, tensor.bytes, Some(gpu))
            }
        }
    }

    /// Elements of a type that objects do not support become a row of bytes.
    fn new(dtype: Dtype, shape: &[u64], nbytes: u64, device: Option<Ordinal>) -> PyResult<Self> {
        let (element, shape) = match dtype.element() {
            Some(element) => (element, Shape::new(shape)),
            None => (Element::U8, Shape::row(nbytes)),
        };
        Ok(Self {
            element,
            shape: shape.map_err(IntoException::into_exception)?,
            device,
        })
    }
}

context_manager!(ObjectServer);

#[pymethods]
impl ObjectServer {
    #[new]
    #[pyo3(signature = (address = "127.0.0.1:0", *, key = None, nic = None, limit = None))]
    fn new(
        py: Python<'_>,
        address: &str,
        key: Option<&Bound<'_, PyAny>>,
        nic: Option<String>,
        limit: Option<NonZeroU64>,
    ) -> PyResult<Self> {
        let (address, security) = (self::address(py, address)?, security(key)?);
        py.detach(|| {
            let mut options = ServerOptions::new(security);
            if let Some(device) = device(nic)? {
                options = options.device(&device);
            }
            if let Some(limit) = limit {
                options = options.limit(limit);
            }
            let server = gdr_object::ObjectServer::bind(address, options);
            let server = server.map_err(IntoException::into_exception)?;
            Ok(Self {
                address: server.address(),
                open: Arc::new(OpenServer(Mutex::new(Some(Served {
                    server,
                    objects: Vec::new(),
                })))),
            })
        })
    }

    /// Creates an object of `nbytes` bytes in host memory, or in memory of the GPU `device`; or one with the location,
    /// elements and shape of the tensor `like`, whose contents are not copied.
    ///
    /// `mode` is "latest" (a get returns the newest epoch, whole), "live" (one copy, which may be torn) or "ring:SLOTS"
    /// (the last epochs); `when_full` of a ring is "drop-oldest" or "block". `access` of peers is "read" or
    /// "read-write"; `checksum` of each epoch is "none" or "sum64".
    #[pyo3(signature = (
        name, nbytes = None, *, like = None, device = None, mode = "latest", when_full = None,
        access = "read", checksum = "none"
    ))]
    #[expect(clippy::too_many_arguments, reason = "Python has keywords for them")]
    fn object(
        &self,
        py: Python<'_>,
        name: String,
        nbytes: Option<u64>,
        like: Option<&Bound<'_, PyAny>>,
        device: Option<u32>,
        mode: &str,
        when_full: Option<&str>,
        access: &str,
        checksum: &str,
    ) -> PyResult<Object> {
        let model = match (nbytes, like, device) {
            (Some(nbytes), None, device) => Model::of_bytes(nbytes, device)?,
            (None, Some(like), None) => Model::of_memory(like)?,
            _ => {
                return Err(PyTypeError::new_err(
                    "an object is described by nbytes, and device for GPU memory, or by like: pass one \
                     of the two",
                ));
            }
        };
        let rights = match access {
            "read" => Rights::Read,
            "read-write" => Rights::ReadWrite,
            other => return Err(unknown("access", other, "read or read-write")),
        };
        let checksum = match checksum {
            "none" => Checksum::None,
            "sum64" => Checksum::Sum64,
            other => return Err(unknown("checksum", other, "none or sum64")),
        };
        let mode = Mode::parse(mode, when_full)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let name =
            ObjectName::new(name).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let options = ObjectOptions::new(model.element, model.shape)
            .mode(mode)
            .checksum(checksum)
            .grant(Grantee::Everyone, rights);
        py.detach(|| {
            let place = match model.device {
                None => Place::host(),
                Some(device) => Place::gpu(&Runtime::get()?.gpu(device)?.gpu),
            };
            let mut open = self.open.lock();
            let closed = || PyValueError::new_err("the server is closed: open another one");
            let Served { server, objects } = open.as_mut().ok_or_else(closed)?;
            let object = server.create(name, options, &place);
            let object = Arc::new(object.map_err(IntoException::into_exception)?);
            objects.push(Arc::clone(&object));
            Ok(Object::new(object, Arc::clone(&self.open)))
        })
    }

    /// Offers another owner's object under a name, from host memory: each epoch is fetched once, and readers get it
    /// from here. `source` is "HOST:PORT/NAME". The link to its owner, with `key` and `nic` as for Link, is used only
    /// by the relay. An owner that does not answer for `timeout` seconds counts as gone.
    #[pyo3(signature = (name, source, *, key = None, nic = None, timeout = 30.0))]
    fn relay(
        &self,
        py: Python<'_>,
        name: String,
        source: &str,
        key: Option<&Bound<'_, PyAny>>,
        nic: Option<String>,
        timeout: f64,
    ) -> PyResult<Relay> {
        let no_name = || {
            let error = format!("{source:?} names no object: pass HOST:PORT/NAME");
            PyValueError::new_err(error)
        };
        let (owner, from) = source.split_once('/').ok_or_else(no_name)?;
        let object = |name: &str| {
            ObjectName::new(name).map_err(|error| PyValueError::new_err(error.to_string()))
        };
        let (name, from) = (object(&name)?, object(from)?);
        let (limit, until) = (limit(timeout)?, deadline(timeout)?);
        let (owner, security) = (self::address(py, owner)?, security(key)?);
        wait(py, None, {
            let server = Arc::clone(&self.open);
            move || {
                let link = connect(owner, security, nic, until)?;
                let from = link
                    .open(from, until)
                    .map_err(IntoException::into_exception)?;
                let open = server.lock();
                let closed = || PyValueError::new_err("the server is closed: open another one");
                let served = open.as_ref().ok_or_else(closed)?;
                let relay = gdr_object::Relay::start(&served.server, name, from, limit);
                let relay = relay.map_err(IntoException::into_exception)?;
                drop(open);
                Ok(Relay::new(relay, server))
            }
        })?
    }

    /// Ends the server and its objects: peers get gdr.Gone. Further calls do nothing.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.open.close());
    }

    /// Returns the address and the port that links connect to.
    #[getter]
    fn address(&self) -> String {
        self.address.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<gdr.ObjectServer at {}>", self.address)
    }
}

fn unknown(what: &str, value: &str, known: &str) -> PyErr {
    PyValueError::new_err(format!("{what} {value:?} is unknown: pass {known}"))
}
