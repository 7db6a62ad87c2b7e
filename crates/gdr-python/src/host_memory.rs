//! Host memory as a Python program hands it over.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;

use crate::dlpack::{DlTensor, device_type, not_contiguous};
use crate::tensor::Access;

/// Contiguous host memory of a Python object, which is kept as long as this value.
///
/// Other threads of the program may access it meanwhile, so it is used by address only.
#[derive(Debug)]
pub(crate) struct HostMemory {
    address: *mut u8,
    len: usize,
    #[expect(dead_code, reason = "kept only to be dropped later")]
    owner: Owner,
}

#[derive(Debug)]
#[expect(dead_code, reason = "kept only to be dropped later")]
enum Owner {
    Buffer(PyUntypedBuffer),
    Tensor(Py<PyAny>),
}

impl HostMemory {
    /// The memory of an object with Python's buffer interface (`bytes`, `bytearray`, NumPy's arrays), or
    /// of a tensor in host memory with `__dlpack__`.
    pub(crate) fn of(object: &Bound<'_, PyAny>, access: Access) -> PyResult<Self> {
        let py = object.py();
        match PyUntypedBuffer::get(object) {
            Ok(buffer) => Self::of_buffer(buffer, access),
            Err(_) if object.hasattr(intern!(py, "__dlpack__"))? => Self::of_tensor(object),
            Err(_) => {
                let name = object.get_type().qualname()?;
                Err(PyTypeError::new_err(format!(
                    "a {name} is not host memory: pass a bytearray, a NumPy array or a CPU tensor"
                )))
            }
        }
    }

    fn of_buffer(buffer: PyUntypedBuffer, access: Access) -> PyResult<Self> {
        if !buffer.is_c_contiguous() {
            return Err(not_contiguous());
        }
        if access == Access::ReadWrite && buffer.readonly() {
            return Err(PyTypeError::new_err(
                "the memory is read-only: pass a bytearray or a NumPy array that can be written",
            ));
        }
        Ok(Self {
            address: buffer.buf_ptr().cast(),
            len: buffer.len_bytes(),
            owner: Owner::Buffer(buffer),
        })
    }

    fn of_tensor(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let device = object.call_method0(intern!(py, "__dlpack_device__"))?;
        let (kind, _): (i32, i32) = device.extract()?;
        if kind != device_type::CPU {
            return Err(PyTypeError::new_err(
                "the tensor is not in host memory: pass a CPU tensor, or copy by the tensor's library",
            ));
        }
        let plain = match object.getattr_opt(intern!(py, "detach"))? {
            Some(detach) => detach.call0()?,
            None => object.clone(),
        };
        let capsule = plain.call_method0(intern!(py, "__dlpack__"))?;
        let read = DlTensor::read(&capsule, device_type::CPU)?;
        Ok(Self {
            address: std::ptr::with_exposed_provenance_mut(read.address as usize),
            len: usize::try_from(read.bytes)
                .map_err(|_| PyValueError::new_err("the tensor does not fit into memory"))?,
            owner: Owner::Tensor(read.capsule),
        })
    }

    /// Where it starts.
    pub(crate) fn address(&self) -> HostAddress {
        HostAddress(self.address)
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// An address of host memory, for a part of the program without the interpreter's lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostAddress(pub(crate) *mut u8);

// SAFETY: an address; the code that accesses it promises that the memory exists.
unsafe impl Send for HostAddress {}
