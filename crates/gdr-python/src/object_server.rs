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
/// `address` is the IP address and the port to listen at; port 0 takes any. `key` is a shared key
/// (bytes, at least 16, or the path of a file with them); without one, only
/// processes of the same user on this host, and of root, are accepted. `nic` names an RDMA device; without one, gdr itself speaks RoCE at the address.
/// `limit` is how many bytes it sends in a second, at most, to all readers together, which a network card does not
/// keep to: `nic` then fails. RDMA packets are neither encrypted nor authenticated.
///
/// It serves until it is closed, or neither it nor one of its objects is used any more.
#[pyclass(frozen, module = "gdr")]
#[derive(Debug)]
pub(crate) struct ObjectServer {
    address: SocketAddr,
    open: Arc<OpenServer>,
}

/// An owner, until it is closed. Its objects share it.
#[derive(Debug)]
pub(crate) struct OpenServer(Mutex<Option<Served>>);

/// An owner with the objects that are not closed.
#[derive(Debug)]
struct Served {
    // Field order is drop order: peers lose the connection before the objects.
    server: gdr_object::ObjectServer,
    objects: Vec<Arc<gdr_object::Object>>,
}

impl OpenServer {
    /// The value is set as a whole, so it is valid after a panic.
    fn lock(&self) -> MutexGuard<'_, Option<Served>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        let closed = self.lock().take();
        drop(closed);
    }

    /// Ends an object, if it is not used by another thread.
    pub(crate) fn end(&self, object: &Arc<gdr_object::Object>) {
        if let Some(served) = &mut *self.lock() {
            served.objects.retain(|it| !Arc::ptr_eq(it, object));
        }
    }
}

impl Drop for OpenServer {
    fn drop(&mut self) {
        // It waits for threads: not with the interpreter's lock, which this thread has if Python drops the
        // value.
        let _ended = Python::try_attach(|py| py.detach(|| self.close()));
    }
}

/// What an object is made like.
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

    /// Elements of a type that objects do not have become a row of bytes.
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

    /// Makes an object of `nbytes` bytes in host memory, or in memory of the GPU `device`; or one with
    /// the place, elements and shape of the tensor `like`, whose contents are not copied.
    ///
    /// `mode` is "latest" (a get returns the newest epoch, whole), "live" (one copy, which may be torn)
    /// or "ring:SLOTS" (the last epochs); `when_full` of a ring is "drop-oldest" or "block". `access` of
    /// peers is "read" or "read-write", `checksum` of each epoch "none" or "sum64".
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

    /// Offers an object of another owner under a name, in host memory: each epoch is got once, and readers get it
    /// from here. `source` is "HOST:PORT/NAME"; the link to its owner, with `key` and `nic` as for Link, is the
    /// relay's alone. An owner that does not answer for `timeout` seconds is taken as gone.
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

    /// Ends it and its objects: peers get gdr.Gone. A second call does nothing.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.open.close());
    }

    /// The address and the port that links connect to.
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
