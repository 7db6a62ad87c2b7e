//! GPU memory passed by a Python program.

use gdr_cuda::{DeviceBuffer, DevicePtr};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use pyo3::{intern, sync::PyOnceLock};

use crate::dlpack::{DlTensor, device_type, dimensions, is_contiguous_by, not_contiguous, product};
use crate::dtype::Dtype;
use crate::error::IntoException;
use crate::runtime::Runtime;

/// What the program may do with the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    ReadOnly,
    ReadWrite,
}

/// A contiguous array in GPU memory.
#[derive(Debug)]
pub(crate) struct Tensor {
    pub(crate) ptr: DevicePtr,
    pub(crate) bytes: u64,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<u64>,
    pub(crate) access: Access,
    /// Objects that keep the memory allocated.
    pub(crate) owner: Vec<Py<PyAny>>,
}

impl Access {
    /// Fails if it is to write to what may only be read.
    pub(crate) fn check_within(self, permitted: Self) -> PyResult<()> {
        match (self, permitted) {
            (Self::ReadWrite, Self::ReadOnly) => Err(PyTypeError::new_err(
                "the array is read-only: pass one that its library allows to write",
            )),
            _ => Ok(()),
        }
    }
}

impl Tensor {
    /// Returns whether an object describes GPU memory rather than memory of the host.
    pub(crate) fn is_on_gpu(object: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = object.py();
        if object.is_instance_of::<PyTuple>() {
            return Ok(true);
        }
        if object.hasattr(intern!(py, "__dlpack_device__"))? {
            let device = object.call_method0(intern!(py, "__dlpack_device__"))?;
            let (kind, _): (i32, i32) = device.extract()?;
            return Ok(kind != device_type::CPU);
        }
        object.hasattr(intern!(py, "__cuda_array_interface__"))
    }

    /// Returns the memory, owned by the program's objects that the tensor came with.
    pub(crate) fn into_buffer(self, runtime: &Runtime) -> PyResult<DeviceBuffer> {
        let gpu = &runtime.gpu_of(self.ptr)?.gpu;
        // SAFETY: the program's objects that own the memory become the buffer's owner. If the program passed an
        // address, it made the same guarantee. What it writes there is its own decision.
        let buffer = unsafe { DeviceBuffer::from_owner(gpu, self.ptr, self.bytes, self.owner) };
        buffer.map_err(IntoException::into_exception)
    }

    /// Returns the memory of an object with `__dlpack__` or `__cuda_array_interface__`, or of a tuple `(address,
    /// bytes)`.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        if let Ok(tuple) = object.cast::<PyTuple>() {
            return Self::of_range(tuple);
        }
        if object.hasattr(intern!(py, "__dlpack__"))? {
            return Self::of_dlpack(object);
        }
        let Ok(interface) = object.getattr(intern!(py, "__cuda_array_interface__")) else {
            let name = object.get_type().qualname()?;
            return Err(PyTypeError::new_err(format!(
                "an object of type {name} is not GPU memory: pass a tensor of PyTorch, CuPy, Numba or JAX (an object \
                 with __dlpack__ or __cuda_array_interface__), or a tuple (address, bytes)"
            )));
        };
        Self::of_interface(object, interface.cast::<PyDict>()?)
    }

    fn of_range(tuple: &Bound<'_, PyTuple>) -> PyResult<Self> {
        let (address, bytes) = tuple.extract::<(u64, u64)>().map_err(|_| {
            PyTypeError::new_err("a tuple for GPU memory has two numbers: (address, bytes)")
        })?;
        let (dtype, shape) = (Dtype::BYTE, vec![bytes]);
        Self {
            ptr: DevicePtr::new(address),
            bytes,
            dtype,
            shape,
            access: Access::ReadWrite,
            owner: Vec::new(),
        }
        .checked()
    }

    fn of_dlpack(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let device = object.call_method0(intern!(py, "__dlpack_device__"))?;
        let (kind, _): (i32, i32) = device.extract()?;
        match kind {
            device_type::CUDA => {}
            device_type::CUDA_MANAGED => {
                return Err(PyValueError::new_err(
                    "managed memory migrates between GPU and CPU and cannot be mapped: allocate it by \
                     cudaMalloc; the CPU reads managed memory without a mapping",
                ));
            }
            _ => {
                return Err(PyTypeError::new_err(
                    "the array is not in the memory of an NVIDIA GPU: the CPU reads it already",
                ));
            }
        }
        // PyTorch does not export tensors that require a gradient. The detached tensor shares its memory.
        let plain = match object.getattr_opt(intern!(py, "detach"))? {
            Some(detach) => detach.call0()?,
            None => object.clone(),
        };
        // -1: no stream waits for another, because a mapping shows the memory in its current state.
        static ARGUMENTS: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
        let arguments = ARGUMENTS.get_or_try_init(py, || {
            let arguments = PyDict::new(py);
            arguments.set_item("stream", -1)?;
            Ok::<_, PyErr>(arguments.unbind())
        })?;
        let export = plain.getattr(intern!(py, "__dlpack__"))?;
        let capsule = export.call((), Some(arguments.bind(py)))?;
        let read = DlTensor::read(&capsule, device_type::CUDA)?;
        let dtype = Dtype::of_dlpack(read.data_type);
        let owner = vec![read.capsule, object.clone().unbind()];
        Self {
            ptr: DevicePtr::new(read.address),
            bytes: read.bytes,
            dtype,
            shape: read.shape,
            access: Access::ReadWrite,
            owner,
        }
        .checked()
    }

    fn of_interface<'py>(
        object: &Bound<'py, PyAny>,
        interface: &Bound<'py, PyDict>,
    ) -> PyResult<Self> {
        let py = object.py();
        let field = |name: &Bound<'py, PyString>| match interface.get_item(name)? {
            Some(value) => Ok(value),
            None => {
                let text = format!("__cuda_array_interface__ has no {name}");
                Err(PyTypeError::new_err(text))
            }
        };
        let (address, read_only): (u64, bool) = field(intern!(py, "data"))?.extract()?;
        let shape: Vec<i64> = field(intern!(py, "shape"))?.extract()?;
        let typestr: String = field(intern!(py, "typestr"))?.extract()?;
        let dtype = Dtype::of_typestr(&typestr).ok_or_else(|| {
            PyTypeError::new_err(format!(
                "__cuda_array_interface__: typestr {typestr:?} is unknown"
            ))
        })?;
        let element = dtype.size() as u64;
        let strides: Option<Vec<i64>> = match interface.get_item(intern!(py, "strides"))? {
            Some(strides) => strides.extract()?,
            None => None,
        };
        if let Some(strides) = strides
            && !is_contiguous_by(&shape, &strides, dtype.size() as i64)
        {
            return Err(not_contiguous());
        }
        let bytes = product(&shape)?.saturating_mul(element);
        let access = if read_only {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        };
        Self {
            ptr: DevicePtr::new(address),
            bytes,
            dtype,
            shape: dimensions(&shape)?,
            access,
            owner: vec![object.clone().unbind()],
        }
        .checked()
    }

    /// Returns the same tensor, if it has memory.
    fn checked(self) -> PyResult<Self> {
        if self.bytes == 0 {
            return Err(PyValueError::new_err(
                "the array has no elements, so it has no memory: pass one with elements",
            ));
        }
        Ok(self)
    }
}
