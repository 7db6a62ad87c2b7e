//! The slot of an object that a stream's work fills.

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// GPU memory for an object's next epoch, to be filled by work on the stream of the publication. Passed by
/// Object.write_on().
#[pyclass(frozen, module = "gdr")]
#[derive(Debug)]
pub(crate) struct DeviceSlot {
    address: u64,
    nbytes: u64,
    device: u32,
}

impl From<&gdr_object::DeviceSlot<'_>> for DeviceSlot {
    fn from(slot: &gdr_object::DeviceSlot<'_>) -> Self {
        Self {
            address: slot.ptr().get(),
            nbytes: slot.len(),
            device: slot.gpu().info().ordinal.0,
        }
    }
}

#[pymethods]
impl DeviceSlot {
    /// Returns the address in GPU memory, a multiple of 256.
    #[getter]
    fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.nbytes
    }

    /// Returns the number of the GPU in this process.
    #[getter]
    fn device(&self) -> u32 {
        self.device
    }

    /// Returns the description by which other libraries use it: an array of bytes.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        crate::device_memory::array_of_bytes(py, self.address, self.nbytes)
    }

    fn __repr__(&self) -> String {
        let (nbytes, address) = (self.nbytes, self.address);
        format!(
            "<gdr.DeviceSlot of {nbytes} bytes at {address:#x} on GPU {}>",
            self.device
        )
    }
}
