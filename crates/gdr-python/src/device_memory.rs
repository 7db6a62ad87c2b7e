//! GPU memory for programs without a tensor library.

use gdr_cuda::{DeviceBuffer, MemoryKind, Ordinal};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::IntoException;
use crate::runtime::Runtime;

/// GPU memory for programs without a tensor library. Its contents are initially undefined.
///
/// `kind` is "plain" (cuMemAlloc), "pool" (cuMemAllocAsync), "vmm" (cuMemCreate, like PyTorch's expandable segments) or
/// "vmm-posix-fd" (the same, exportable).
#[pyclass(frozen, module = "gdr")]
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    buffer: DeviceBuffer,
}

#[pymethods]
impl DeviceMemory {
    #[new]
    #[pyo3(signature = (nbytes, /, *, device = 0, kind = "plain"))]
    fn new(py: Python<'_>, nbytes: u64, device: u32, kind: &str) -> PyResult<Self> {
        let kind = match kind {
            "plain" => MemoryKind::Plain,
            "pool" => MemoryKind::Pool,
            "vmm" => MemoryKind::Vmm,
            "vmm-posix-fd" => MemoryKind::VmmPosixFd,
            other => {
                return Err(PyValueError::new_err(format!(
                    "there is no memory of kind {other:?}: choose plain, pool, vmm or vmm-posix-fd"
                )));
            }
        };
        py.detach(|| {
            let runtime = Runtime::get()?;
            let buffer = runtime.gpu(Ordinal(device))?.gpu.allocate(kind, nbytes);
            let buffer = buffer.map_err(IntoException::into_exception)?;
            Ok(Self { buffer })
        })
    }

    /// Returns the address in GPU memory.
    #[getter]
    fn address(&self) -> u64 {
        self.buffer.ptr().get()
    }

    /// Bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.buffer.len()
    }

    /// Returns the number of the GPU in this process.
    #[getter]
    fn device(&self) -> u32 {
        self.buffer.gpu().info().ordinal.0
    }

    /// Returns the description by which other libraries use it: an array of bytes.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        array_of_bytes(py, self.address(), self.nbytes())
    }

    fn __repr__(&self) -> String {
        let (len, address, device) = (self.nbytes(), self.address(), self.device());
        format!("<gdr.DeviceMemory of {len} bytes at {address:#x} on GPU {device}>")
    }
}

/// Returns the description of GPU memory as an array of bytes, for `__cuda_array_interface__`.
pub(crate) fn array_of_bytes(
    py: Python<'_>,
    address: u64,
    nbytes: u64,
) -> PyResult<Bound<'_, PyDict>> {
    let interface = PyDict::new(py);
    interface.set_item("version", 3)?;
    interface.set_item("shape", (nbytes,))?;
    interface.set_item("typestr", "|u1")?;
    interface.set_item("data", (address, false))?;
    interface.set_item("strides", py.None())?;
    Ok(interface)
}
