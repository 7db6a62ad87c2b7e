//! An owner's objects, accessed over a link.

use std::sync::Arc;

use gdr_object::{Deadline, Epoch};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::error::IntoException;
use crate::extents::Extents;
use crate::link::OpenLink;
use crate::local_memory::Operand;
use crate::object_info;
use crate::tensor::Access;
use crate::tensor_index::TensorIndex;
use crate::waiting::{deadline, wait};

/// An object of an owner. Created by Link.open().
///
/// Ctrl-C ends any call, and calls of other threads over the same link. A call that has raised an exception no longer
/// writes to the memory of this process.
#[pyclass(frozen, module = "gdr")]
#[derive(Debug)]
pub(crate) struct RemoteObject {
    link: Arc<OpenLink>,
    object: Arc<gdr_object::RemoteObject>,
}

impl RemoteObject {
    pub(crate) fn new(object: gdr_object::RemoteObject, link: Arc<OpenLink>) -> Self {
        let object = Arc::new(object);
        Self { link, object }
    }

    /// Calls `call` with the link and the object, without holding the GIL.
    fn call<R: Send + 'static>(
        &self,
        py: Python<'_>,
        timeout: f64,
        call: impl FnOnce(&gdr_object::Link, &gdr_object::RemoteObject, Deadline) -> PyResult<R>
        + Send
        + 'static,
    ) -> PyResult<R> {
        let (link, until) = (self.link.get()?, deadline(timeout)?);
        let (over, object) = (link.clone(), Arc::clone(&self.object));
        wait(py, Some(&link), move || call(&over, &object, until))?
    }
}

#[pymethods]
impl RemoteObject {
    /// Reads the newest epoch into the beginning of `out`, and returns its number. Except in mode "live", all bytes
    /// come from one publication.
    ///
    /// `out` is GPU memory as for map(), host memory (a bytearray, a NumPy array, a CPU tensor), or a result of
    /// Link.memory(). With `extents`, only these parts are read, to the given places, and no checksum is compared.
    #[pyo3(signature = (out, /, *, extents = None, timeout = 30.0))]
    fn get_into(
        &self,
        py: Python<'_>,
        out: &Bound<'_, PyAny>,
        extents: Option<&Bound<'_, Extents>>,
        timeout: f64,
    ) -> PyResult<u64> {
        let operand = Operand::of(out, Access::ReadWrite)?;
        let extents = extents.map(|it| Arc::clone(&it.get().0));
        self.call(py, timeout, move |link, object, until| {
            let memory = operand.register(link)?;
            number(match extents {
                Some(extents) => object.get_extents(&extents, &memory, until),
                None => object.get_into(&memory, until),
            })
        })
    }

    /// Reads the newest epoch, and returns its number and its bytes.
    #[pyo3(signature = (*, timeout = 30.0))]
    fn get<'py>(&self, py: Python<'py>, timeout: f64) -> PyResult<(u64, Bound<'py, PyBytes>)> {
        let (epoch, bytes) = self.call(py, timeout, move |_, object, until| {
            let (epoch, bytes) = object.get(until).map_err(IntoException::into_exception)?;
            Ok((epoch.get(), bytes))
        })?;
        Ok((epoch, PyBytes::new(py, &bytes)))
    }

    /// Reads len(`out`) bytes of the newest epoch, starting at `offset`, and returns its number.
    #[pyo3(signature = (offset, out, /, *, timeout = 30.0))]
    fn read_at(
        &self,
        py: Python<'_>,
        offset: u64,
        out: &Bound<'_, PyAny>,
        timeout: f64,
    ) -> PyResult<u64> {
        let operand = Operand::of(out, Access::ReadWrite)?;
        self.call(py, timeout, move |link, object, until| {
            let memory = operand.register(link)?;
            number(object.read_at(offset, memory.len(), &memory, 0, until))
        })
    }

    /// Reads which tensors the object holds, if a gdr.torch publisher or `gdr serve --safetensors` offers it.
    #[pyo3(signature = (*, timeout = 30.0))]
    fn tensors(&self, py: Python<'_>, timeout: f64) -> PyResult<TensorIndex> {
        self.call(py, timeout, |_, object, until| {
            let index = object.tensors(until);
            Ok(index.map_err(IntoException::into_exception)?.into())
        })
    }

    /// Waits until an epoch after `epoch` is published (any epoch, for None), and returns the newest one. Raises
    /// gdr.NothingNewer after `timeout` seconds.
    #[pyo3(signature = (epoch = None, *, timeout = 30.0))]
    fn wait_newer(&self, py: Python<'_>, epoch: Option<u64>, timeout: f64) -> PyResult<u64> {
        let seen = epoch.map(|number| {
            let wrong =
                || PyValueError::new_err(format!("{number} is not an epoch: pass one, or None"));
            Epoch::new(number).ok_or_else(wrong)
        });
        let seen = seen.transpose()?;
        self.call(py, timeout, move |_, object, until| {
            number(object.wait_newer(seen, until))
        })
    }

    /// Publishes all of `source` as the next epoch, and returns its number. Readers see it once all bytes have arrived;
    /// if the call fails, nothing is published. The owner must permit this.
    #[pyo3(signature = (source, /, *, timeout = 30.0))]
    fn put_from(&self, py: Python<'_>, source: &Bound<'_, PyAny>, timeout: f64) -> PyResult<u64> {
        let operand = Operand::of(source, Access::ReadOnly)?;
        self.call(py, timeout, move |link, object, until| {
            let memory = operand.register(link)?;
            number(object.put_from(&memory, until))
        })
    }

    /// Returns the newest epoch; None if nothing has been published.
    #[pyo3(signature = (*, timeout = 30.0))]
    fn newest(&self, py: Python<'_>, timeout: f64) -> PyResult<Option<u64>> {
        self.call(py, timeout, |_, object, until| {
            let newest = object
                .newest(until)
                .map_err(IntoException::into_exception)?;
            Ok(newest.map(Epoch::get))
        })
    }

    /// Returns its name.
    #[getter]
    fn name(&self) -> &str {
        self.object.name().as_str()
    }

    /// Bytes per epoch, as of the last time the object was opened, or reopened after a change.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.object.info().bytes
    }

    /// Returns the owner's description, as of the last time the object was opened, or reopened after a change.
    #[getter]
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        object_info::to_dict(py, &self.object.info())
    }

    fn __repr__(&self) -> String {
        format!(
            "<gdr.RemoteObject {} of {} bytes>",
            self.name(),
            self.nbytes()
        )
    }
}

fn number(epoch: gdr_object::Result<Epoch>) -> PyResult<u64> {
    epoch.map(Epoch::get).map_err(IntoException::into_exception)
}
