//! GPU memory that the CPU reads and writes.

use std::sync::{Arc, Mutex, PoisonError};

use gdr_copy::{Copier, cpu};
use gdr_cuda::Ordinal;
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::dtype::{Dtype, LONGEST};
use crate::error::IntoException;
use crate::host_memory::{HostAddress, HostMemory};
use crate::runtime::Runtime;
use crate::tensor::{Access, Tensor};

/// Copies up to this length keep the GIL. They take a few microseconds, and a thread that releases the GIL may wait 5
/// ms to get it back.
const SHORT_WRITE: usize = 16 << 10;
/// The same limit for reads, which need a PCIe round trip per 64 bytes.
const SHORT_READ: usize = 256;

/// Maps GPU memory for the CPU.
///
/// `memory` is a tensor of PyTorch, CuPy, Numba or JAX, or a tuple (address, bytes). It is kept alive until the mapping
/// is closed. Nothing is copied, and no kernel module is needed.
#[pyfunction]
#[pyo3(signature = (memory, /))]
pub(crate) fn map(memory: &Bound<'_, PyAny>) -> PyResult<Mapping> {
    let py = memory.py();
    let tensor = Tensor::of(memory)?;
    py.detach(|| Mapping::new(tensor))
}

/// GPU memory that the CPU reads and writes in place, over PCIe.
///
/// Reads and writes access the memory in its current state: they do not wait for streams, and streams do not wait for
/// them. Use Signal to find out how far a stream has come.
#[pyclass(frozen, module = "gdr")]
#[derive(Debug)]
pub(crate) struct Mapping {
    dtype: Dtype,
    access: Access,
    address: u64,
    len: usize,
    device: Ordinal,
    backend: &'static str,
    /// `None` once closed. A copy in progress ends first.
    open: Mutex<Option<Arc<Open>>>,
}

#[derive(Debug)]
struct Open {
    copier: Copier,
    runtime: Arc<Runtime>,
}

/// The part of a mapping that a call accesses.
#[derive(Clone, Copy, Debug)]
struct Span {
    offset: u64,
    len: usize,
}

impl Mapping {
    fn new(tensor: Tensor) -> PyResult<Self> {
        let (dtype, access, ptr) = (tensor.dtype, tensor.access, tensor.ptr);
        let len = usize::try_from(tensor.bytes)
            .map_err(|_| PyValueError::new_err("the array does not fit into memory"))?;
        let runtime = Runtime::get()?;
        let buffer = Arc::new(tensor.into_buffer(&runtime)?);
        let pinned = runtime
            .context()
            .pin_buffer(&buffer)
            .map_err(IntoException::into_exception)?;
        let mapping = pinned.map().map_err(IntoException::into_exception)?;
        let device = buffer.gpu().info().ordinal;
        let planner = runtime.gpu(device)?.planner(&mapping)?;
        let copier = Copier::new(mapping, buffer, planner);
        Ok(Self {
            dtype,
            access,
            address: ptr.get(),
            len,
            device,
            backend: pinned.backend().name(),
            open: Mutex::new(Some(Arc::new(Open {
                copier: copier.map_err(IntoException::into_exception)?,
                runtime,
            }))),
        })
    }

    fn open(&self) -> PyResult<Arc<Open>> {
        // The value is set as a whole, so it stays valid after a panic.
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = || PyValueError::new_err("the mapping is closed: map the memory again");
        open.clone().ok_or_else(closed)
    }

    fn span(&self, offset: usize, len: usize) -> PyResult<Span> {
        let end = offset.checked_add(len).filter(|end| *end <= self.len);
        if end.is_none() {
            return Err(PyValueError::new_err(format!(
                "{len} bytes at offset {offset} are not within the mapping of {} bytes",
                self.len
            )));
        }
        let offset = offset as u64;
        Ok(Span { offset, len })
    }
}

impl Open {
    /// Copies GPU memory to the host.
    ///
    /// # Safety
    /// `to` is writable for the length of `span`, which lies within the mapping.
    unsafe fn read(&self, span: Span, to: HostAddress) -> PyResult<()> {
        // SAFETY: the caller's promise.
        let read = unsafe { self.copier.read_raw(span.offset, to.0, span.len) };
        read.map_err(IntoException::into_exception)
    }

    /// Copies host memory to the GPU.
    ///
    /// # Safety
    /// `from` is readable for the length of `span`, which lies within the mapping.
    unsafe fn write(&self, span: Span, from: HostAddress) -> PyResult<()> {
        self.check_process()?;
        let mapping = self.copier.mapping();
        let to = mapping.as_ptr().wrapping_add(span.offset as usize);
        let (routine, caching) = (mapping.routine(), mapping.caching());
        // SAFETY: guaranteed by the caller; the mapping exists in this process as long as `self`.
        unsafe { cpu::copy_to(routine, caching, to, from.0, span.len) };
        Ok(())
    }

    /// Fails in a forked child, which has no mappings.
    fn check_process(&self) -> PyResult<()> {
        if self.runtime.context().origin().is_current_fast() {
            return Ok(());
        }
        Err(gdr_copy::Error::ForkedChild.into_exception())
    }
}

context_manager!(Mapping);

#[pymethods]
impl Mapping {
    /// Returns the element at `index` as a number, as the memory has it now.
    #[pyo3(signature = (index = 0, /))]
    fn item(&self, py: Python<'_>, index: usize) -> PyResult<Py<PyAny>> {
        self.dtype.check_value()?;
        let size = self.dtype.size();
        let offset = index.checked_mul(size).filter(|at| *at < self.len);
        let offset = offset.ok_or_else(|| {
            let count = self.len / size;
            PyIndexError::new_err(format!("there is no element {index}: there are {count}"))
        })?;
        let mut bytes = [0; LONGEST];
        // One round trip takes less time than releasing and reacquiring the GIL.
        let read = self
            .open()?
            .copier
            .mapping()
            .read_at(offset as u64, &mut bytes[..size]);
        read.map_err(IntoException::into_exception)?;
        self.dtype.value(py, &bytes[..size])
    }

    /// Copies GPU memory, starting at `offset`: into all of `out`, which is returned, or as new bytes.
    #[pyo3(signature = (out = None, /, *, offset = 0, nbytes = None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        out: Option<Bound<'py, PyAny>>,
        offset: usize,
        nbytes: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let open = self.open()?;
        let Some(out) = out else {
            let len = nbytes.unwrap_or_else(|| self.len.saturating_sub(offset));
            let span = self.span(offset, len)?;
            let bytes = PyBytes::new_with(py, len, |bytes| {
                let to = HostAddress(bytes.as_mut_ptr());
                // SAFETY: `bytes` has the length of the span, which was checked.
                unlocked(py, len, SHORT_READ, move || unsafe { open.read(span, to) })
            })?;
            return Ok(bytes.into_any());
        };
        let host = HostMemory::of(&out, Access::ReadWrite)?;
        if nbytes.is_some_and(|len| len != host.len()) {
            return Err(PyTypeError::new_err(
                "out gives the number of bytes to read: leave nbytes out",
            ));
        }
        let (span, to) = (self.span(offset, host.len())?, host.address());
        // SAFETY: `host` has the length of the span, which was checked, and is kept alive until the end.
        unlocked(py, host.len(), SHORT_READ, move || unsafe {
            open.read(span, to)
        })?;
        Ok(out)
    }

    /// Copies all bytes of `src` (bytes, a NumPy array, a CPU tensor) to `offset`. On return they are in flight to the
    /// GPU, in order; kernels launched from now on see them.
    #[pyo3(signature = (src, /, *, offset = 0))]
    fn write(&self, py: Python<'_>, src: &Bound<'_, PyAny>, offset: usize) -> PyResult<()> {
        Access::ReadWrite.check_within(self.access)?;
        let open = self.open()?;
        let host = HostMemory::of(src, Access::ReadOnly)?;
        let (span, from) = (self.span(offset, host.len())?, host.address());
        // SAFETY: `host` has the length of the span, which was checked, and is kept alive until the end.
        unlocked(py, host.len(), SHORT_WRITE, move || unsafe {
            open.write(span, from)
        })
    }

    /// Unmaps the memory and releases the tensor. Further calls do nothing.
    fn close(&self, py: Python<'_>) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = open.take();
        drop(open);
        py.detach(|| drop(closed));
    }

    /// Returns the address in GPU memory.
    #[getter]
    fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.len
    }

    /// Returns the number of the GPU in this process.
    #[getter]
    fn device(&self) -> u32 {
        self.device.0
    }

    /// Returns the way by which the memory is mapped: rm, dmabuf, gdrdrv or sim.
    #[getter]
    fn backend(&self) -> &'static str {
        self.backend
    }

    fn __repr__(&self) -> String {
        let Self {
            len,
            address,
            device,
            backend,
            ..
        } = self;
        format!("<gdr.Mapping of {len} bytes at {address:#x} on GPU {device} by {backend}>")
    }
}

/// Copies `len` bytes with `copy`, releasing the GIL if they are more than `short`.
fn unlocked(
    py: Python<'_>,
    len: usize,
    short: usize,
    copy: impl FnOnce() -> PyResult<()> + Send,
) -> PyResult<()> {
    if len > short { py.detach(copy) } else { copy() }
}
