//! Host memory passed by a Python program.

use std::ptr::NonNull;

use gdr_rdma::Buffer;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;

use crate::dlpack::{DlTensor, device_type, not_contiguous};
use crate::dtype::Dtype;
use crate::error::IntoException;
use crate::tensor::Access;

/// Bytes to copy at a time to memory that nothing else refers to.
const PART: usize = 256 << 10;

/// Contiguous host memory of a Python object, which stays alive as long as this value.
///
/// Other threads of the program may access it at the same time, so it is used by address only.
#[derive(Debug)]
pub(crate) struct HostMemory {
    address: *mut u8,
    len: usize,
    dtype: Dtype,
    shape: Vec<u64>,
    access: Access,
    #[expect(dead_code, reason = "kept only to be dropped later")]
    owner: Owner,
}

/// What keeps the memory.
#[derive(Debug)]
#[expect(dead_code, reason = "kept only to be dropped later")]
enum Owner {
    Buffer(PyUntypedBuffer),
    Tensor(Py<PyAny>),
}

// SAFETY: any thread may use the address, and any thread may use the owner, which takes the GIL where it needs it.
unsafe impl Send for HostMemory {}
// SAFETY: as above, and nothing is changed through a shared reference.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Returns the memory of an object with Python's buffer interface (`bytes`, `bytearray`, NumPy's arrays), or of a
    /// tensor in host memory with `__dlpack__`.
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
        let format = buffer.format().to_str().unwrap_or_default();
        Ok(Self {
            address: buffer.buf_ptr().cast(),
            len: buffer.len_bytes(),
            dtype: Dtype::of_format(format, buffer.item_size()),
            shape: buffer.shape().iter().map(|&len| len as u64).collect(),
            access: if buffer.readonly() {
                Access::ReadOnly
            } else {
                Access::ReadWrite
            },
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
            dtype: Dtype::of_dlpack(read.data_type),
            shape: read.shape,
            access: Access::ReadWrite,
            owner: Owner::Tensor(read.capsule),
        })
    }

    /// Returns where it starts.
    pub(crate) fn address(&self) -> HostAddress {
        HostAddress(self.address)
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the type of its elements.
    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns its dimensions.
    pub(crate) fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Calls `take` with parts of the bytes, each a snapshot, and their offsets, in order.
    pub(crate) fn copy_out<E>(
        &self,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut part = vec![0; PART.min(self.len)];
        for offset in (0..self.len).step_by(PART) {
            let bytes = &mut part[..PART.min(self.len - offset)];
            // SAFETY: the owner keeps the memory alive, and the range is within it. Other threads of the program may
            // write there, so it is copied by address, to memory that only this function has.
            unsafe {
                let from = self.address.add(offset);
                std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len());
            }
            take(offset as u64, bytes)?;
        }
        Ok(())
    }

    /// Returns the memory for RDMA. Memory that the program may not write is copied.
    pub(crate) fn into_buffer(self) -> PyResult<Buffer> {
        let failed = IntoException::into_exception;
        let address = NonNull::new(self.address);
        if self.access == Access::ReadOnly {
            let copy = Buffer::host(self.len).map_err(failed)?;
            self.copy_out(|offset, part| copy.write_at(offset, part))
                .map_err(failed)?;
            return Ok(copy);
        }
        let Some(address) = address else {
            return Err(PyValueError::new_err("the memory has no bytes: pass some"));
        };
        // SAFETY: `self` keeps the memory alive, and it is writable. Rust code has no references to it: this crate uses
        // it by address.
        unsafe { Buffer::host_from_owner(address, self.len, self) }.map_err(failed)
    }
}

/// Address of host memory, for code that runs without the GIL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostAddress(pub(crate) *mut u8);

// SAFETY: just an address. Code that accesses it guarantees that the memory exists.
unsafe impl Send for HostAddress {}
