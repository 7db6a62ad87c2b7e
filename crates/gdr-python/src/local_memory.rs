//! Memory of the program, as the destination or source of transfers.

use std::sync::{Mutex, PoisonError};

use gdr_object::Link;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::IntoException;
use crate::host_memory::HostMemory;
use crate::runtime::Runtime;
use crate::tensor::{Access, Tensor};

/// Host or GPU memory of the program.
#[derive(Debug)]
pub(crate) enum Memory {
    Host(HostMemory),
    Gpu(Tensor),
}

impl Memory {
    /// Returns the memory of an object: a tensor of any library, a buffer, or a tuple `(address, bytes)` of GPU memory.
    pub(crate) fn of(object: &Bound<'_, PyAny>, access: Access) -> PyResult<Self> {
        if Tensor::is_on_gpu(object)? {
            let tensor = Tensor::of(object)?;
            access.check_within(tensor.access)?;
            return Ok(Self::Gpu(tensor));
        }
        HostMemory::of(object, access).map(Self::Host)
    }

    /// Registers it for transfers over a link.
    pub(crate) fn register(self, link: &Link) -> PyResult<gdr_object::LocalMemory> {
        let registered = match self {
            Self::Host(memory) => link.memory(&memory.into_buffer()?),
            Self::Gpu(tensor) => link.gpu_memory(tensor.into_buffer(&*Runtime::get()?)?),
        };
        registered.map_err(IntoException::into_exception)
    }
}

/// Memory registered with a link's device, so that transfers need not register it each time. Created by Link.memory(),
/// and kept until it is closed.
#[pyclass(frozen, module = "gdr")]
#[derive(Debug)]
pub(crate) struct LocalMemory {
    nbytes: u64,
    registered: Mutex<Option<gdr_object::LocalMemory>>,
}

impl LocalMemory {
    pub(crate) fn new(registered: gdr_object::LocalMemory) -> Self {
        Self {
            nbytes: registered.len(),
            registered: Mutex::new(Some(registered)),
        }
    }

    /// Opens the memory for a transfer.
    fn open(&self) -> PyResult<gdr_object::LocalMemory> {
        // The value is set as a whole, so it stays valid after a panic.
        let registered = self.registered.lock();
        let registered = registered.unwrap_or_else(PoisonError::into_inner).clone();
        registered.ok_or_else(|| PyValueError::new_err("the memory is closed: register it again"))
    }
}

context_manager!(LocalMemory);

#[pymethods]
impl LocalMemory {
    /// Ends the registration and releases the memory. Further calls do nothing.
    fn close(&self, py: Python<'_>) {
        let mut registered = self
            .registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let closed = registered.take();
        drop(registered);
        py.detach(|| drop(closed));
    }

    /// Bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.nbytes
    }
}

/// Memory for one call: registered earlier, or just for the call.
#[derive(Debug)]
pub(crate) enum Operand {
    Registered(gdr_object::LocalMemory),
    Plain(Memory),
}

impl Operand {
    pub(crate) fn of(object: &Bound<'_, PyAny>, access: Access) -> PyResult<Self> {
        match object.cast::<LocalMemory>() {
            Ok(memory) => memory.get().open().map(Self::Registered),
            Err(_) => Memory::of(object, access).map(Self::Plain),
        }
    }

    pub(crate) fn register(self, link: &Link) -> PyResult<gdr_object::LocalMemory> {
        match self {
            Self::Registered(memory) => Ok(memory),
            Self::Plain(memory) => memory.register(link),
        }
    }
}
