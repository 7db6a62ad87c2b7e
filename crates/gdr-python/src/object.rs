//! Objects of this process.

use std::sync::{Arc, Mutex, PoisonError};

use gdr_cuda::Ordinal;
use gdr_object::{Deadline, Error, Location};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::device_slot::DeviceSlot;
use crate::error::IntoException;
use crate::gather::Gather;
use crate::host_memory::HostMemory;
use crate::local_memory::Memory;
use crate::object_info;
use crate::object_server::OpenServer;
use crate::runtime::Runtime;
use crate::stream::{ProgramStream, Streams};
use crate::tensor::Access;
use crate::waiting::{INTERRUPTIBLE, deadline};

/// An object of this process, which peers can access until it or its server is closed. The server keeps it. Created by
/// ObjectServer.object().
#[pyclass(frozen, module = "gdr")]
#[derive(Debug)]
pub(crate) struct Object {
    name: String,
    nbytes: u64,
    /// `None` once closed.
    open: Mutex<Option<Arc<gdr_object::Object>>>,
    /// Streams that it was published from.
    streams: Streams,
    server: Arc<OpenServer>,
}

impl Object {
    pub(crate) fn new(object: Arc<gdr_object::Object>, server: Arc<OpenServer>) -> Self {
        Self {
            name: object.name().to_string(),
            nbytes: object.info().map_or(0, |info| info.bytes),
            open: Mutex::new(Some(object)),
            streams: Streams::default(),
            server,
        }
    }

    fn open(&self) -> PyResult<Arc<gdr_object::Object>> {
        // The value is set as a whole, so it stays valid after a panic.
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = || PyValueError::new_err("the object is closed: make it again");
        open.clone().ok_or_else(closed)
    }

    fn publish_host(&self, py: Python<'_>, host: &HostMemory, until: Deadline) -> PyResult<u64> {
        if host.len() as u64 != self.nbytes {
            return Err(PyValueError::new_err(format!(
                "{} has {} bytes, and the memory has {}: pass memory of that size",
                self.name,
                self.nbytes,
                host.len()
            )));
        }
        let object = self.open()?;
        loop {
            let pause = Deadline::after(until.remaining().min(INTERRUPTIBLE));
            let published = py.detach(|| {
                object.write_with(pause, |slot| {
                    host.copy_out(|offset, part| slot.write_at(offset, part))
                })
            });
            match published {
                // A blocking ring waits for its followers.
                Err(Error::RingFull { .. }) if !until.has_passed() => py.check_signals()?,
                published => {
                    let epoch = published.map_err(IntoException::into_exception)?;
                    return Ok(epoch.get());
                }
            }
        }
    }
}

context_manager!(Object);

#[pymethods]
impl Object {
    /// Publishes all of `source` as the next epoch, and returns its number.
    ///
    /// Host memory (bytes, a NumPy array, a CPU tensor) is copied at once; only a blocking ring waits for its
    /// followers, up to `timeout` seconds. For GPU memory, a copy followed by the publication is queued on `stream`.
    /// The call does not wait for them, and later work on that stream may overwrite the tensor. `stream` is a stream of
    /// PyTorch or CuPy, None for the legacy default stream, or the address of a stream that exists as long as this
    /// object.
    #[pyo3(signature = (source, /, stream = None, *, timeout = 30.0))]
    fn publish_from(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
        timeout: f64,
    ) -> PyResult<u64> {
        let until = deadline(timeout)?;
        let tensor = match Memory::of(source, Access::ReadOnly)? {
            Memory::Host(host) => return self.publish_host(py, &host, until),
            Memory::Gpu(tensor) => tensor,
        };
        let object = self.open()?;
        let stream = ProgramStream::of(stream)?;
        py.detach(|| {
            let buffer = Arc::new(tensor.into_buffer(&*Runtime::get()?)?);
            let stream = self.streams.get(buffer.gpu(), stream);
            let published = object.publish_from_kept(&buffer, &stream);
            let epoch = published.map_err(IntoException::into_exception)?;
            Ok(epoch.get())
        })
    }

    /// Publishes what work on `stream` writes, as the next epoch, and returns its number. `write` is called at once
    /// with the GPU memory of that epoch, a DeviceSlot, and queues the work. A copy of the tensors of `gather` and the
    /// publication are queued after it; the call does not wait for them. Only work queued by this call may write to the
    /// memory. If `write` raises an exception, nothing is published.
    ///
    /// `stream` as for publish_from().
    #[pyo3(signature = (write, /, stream = None, *, gather = None))]
    fn write_on(
        &self,
        py: Python<'_>,
        write: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
        gather: Option<&Bound<'_, Gather>>,
    ) -> PyResult<u64> {
        let (object, write) = (self.open()?, write.clone().unbind());
        let stream = ProgramStream::of(stream)?;
        let gather = gather.map(|gather| Arc::clone(&gather.get().gather));
        py.detach(|| {
            let info = object.info().map_err(IntoException::into_exception)?;
            let Location::Gpu { ordinal, .. } = info.location else {
                let name = object.name().clone();
                return Err(Error::NotOnGpu { name }.into_exception());
            };
            let runtime = Runtime::get()?;
            let stream = self
                .streams
                .get(&runtime.gpu(Ordinal(ordinal))?.gpu, stream);
            let mut raised = None;
            let queue = |slot: &gdr_object::DeviceSlot<'_>| {
                let called =
                    Python::attach(|py| write.call1(py, (DeviceSlot::from(slot),)).map(drop));
                called.map_err(|error| {
                    raised = Some(error);
                    Error::Writer("it raised an exception".into())
                })?;
                gather
                    .as_ref()
                    .map_or(Ok(()), |gather| slot.queue_gather(gather, &stream))
            };
            let published = match &gather {
                None => object.write_on(&stream, queue),
                Some(kept) => {
                    object.write_on_kept(Arc::<gdr_cuda::Gather>::clone(kept), &stream, queue)
                }
            };
            match (raised, published) {
                (Some(raised), _) => Err(raised),
                (None, published) => Ok(published.map_err(IntoException::into_exception)?.get()),
            }
        })
    }

    /// Ends the object: peers get gdr.Gone, and its memory is freed. Further calls do nothing.
    fn close(&self, py: Python<'_>) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = open.take();
        drop(open);
        py.detach(|| {
            if let Some(object) = closed {
                self.server.end(&object);
            }
        });
    }

    /// Returns its name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of an epoch.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.nbytes
    }

    /// Returns the newest epoch; None if nothing has been published.
    #[getter]
    fn newest(&self) -> PyResult<Option<u64>> {
        Ok(self.open()?.newest().map(gdr_object::Epoch::get))
    }

    /// Returns how many links have it open.
    #[getter]
    fn readers(&self) -> PyResult<usize> {
        Ok(self.open()?.readers())
    }

    /// Returns what it is and where, and how RDMA reaches it.
    #[getter]
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let info = self.open()?.info().map_err(IntoException::into_exception)?;
        object_info::to_dict(py, &info)
    }

    fn __repr__(&self) -> String {
        format!("<gdr.Object {} of {} bytes>", self.name, self.nbytes)
    }
}
