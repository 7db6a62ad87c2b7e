//! The native module `gdr._gdr` of the Python package `gdr`.
//!
//! `mapping::Mapping` lets the CPU read and write GPU memory from any library (PyTorch, CuPy, Numba, JAX).
//! `signal::Signal` is a word that a stream writes and a Python thread polls. `probe` reports the routes by
//! which the CPU and each RDMA device can access memory. `object_server::ObjectServer` serves named memory,
//! which `link::Link` reads and writes by RDMA.
//!
//! The module does not link against CUDA, a tensor library or a specific Python version: the driver is
//! loaded at run time, tensors arrive through `__cuda_array_interface__` or DLPack, and the module uses
//! Python's stable ABI. Functions that may wait release the GIL.

#![warn(clippy::disallowed_methods)]

/// Lets a class with a Python method `close` be used in a `with` block, which calls it on exit.
macro_rules! context_manager {
    ($class:ty) => {
        #[pyo3::pymethods]
        impl $class {
            fn __enter__(this: pyo3::Py<Self>) -> pyo3::Py<Self> {
                this
            }

            #[pyo3(signature = (*_exception))]
            fn __exit__(
                &self,
                py: pyo3::Python<'_>,
                _exception: &pyo3::Bound<'_, pyo3::types::PyTuple>,
            ) {
                self.close(py);
            }
        }
    };
}

mod device_memory;
mod device_slot;
mod dlpack;
mod dtype;
mod error;
mod extents;
mod gather;
mod host_memory;
mod link;
mod local_memory;
mod mapping;
mod object;
mod object_error;
mod object_info;
mod object_server;
mod probe;
mod relay;
mod remote_object;
mod runtime;
mod security;
mod signal;
mod stream;
mod tensor;
mod tensor_index;
mod waiting;

use pyo3::prelude::*;

/// The module.
#[pymodule]
mod _gdr {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::device_memory::DeviceMemory;
    #[pymodule_export]
    use crate::device_slot::DeviceSlot;
    #[pymodule_export]
    use crate::error::Error;
    #[pymodule_export]
    use crate::extents::Extents;
    #[pymodule_export]
    use crate::gather::Gather;
    #[pymodule_export]
    use crate::link::Link;
    #[pymodule_export]
    use crate::local_memory::LocalMemory;
    #[pymodule_export]
    use crate::mapping::{Mapping, map};
    #[pymodule_export]
    use crate::object::Object;
    #[pymodule_export]
    use crate::object_server::ObjectServer;
    #[pymodule_export]
    use crate::probe::probe;
    #[pymodule_export]
    use crate::relay::Relay;
    #[pymodule_export]
    use crate::remote_object::RemoteObject;
    #[pymodule_export]
    use crate::signal::Signal;
    #[pymodule_export]
    use crate::tensor_index::TensorIndex;

    /// Adds what is neither a class nor a function.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
