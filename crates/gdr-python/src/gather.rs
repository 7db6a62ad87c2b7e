//! Tensors that one kernel copies together.

use std::sync::Arc;

use gdr_cuda::Ordinal;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::IntoException;
use crate::runtime::Runtime;
use crate::tensor::Tensor;

/// Tensors of one GPU, each with its offset in an epoch's memory. Object.write_on() copies all of them with one kernel.
/// The tensors are kept alive.
#[pyclass(frozen, module = "gdr")]
#[derive(Debug)]
pub(crate) struct Gather {
    pub(crate) gather: Arc<gdr_cuda::Gather>,
    count: usize,
}

#[pymethods]
impl Gather {
    #[new]
    fn new(py: Python<'_>, tensors: Vec<(Bound<'_, PyAny>, u64)>) -> PyResult<Self> {
        let count = tensors.len();
        let tensors = tensors
            .iter()
            .map(|(tensor, to)| Ok((Tensor::of(tensor)?, *to)));
        let tensors: Vec<_> = tensors.collect::<PyResult<_>>()?;
        let first = tensors.first().map(|(tensor, _)| tensor.ptr);
        let none = || PyValueError::new_err("there are no tensors: pass at least one");
        let first = first.ok_or_else(none)?;
        py.detach(|| {
            let runtime = Runtime::get()?;
            let device: Ordinal = runtime.gpu_of(first)?.gpu.info().ordinal;
            let pieces = tensors.into_iter().map(|(tensor, to)| {
                let buffer = tensor.into_buffer(&runtime)?;
                Ok((Arc::new(buffer), to))
            });
            let pieces = pieces.collect::<PyResult<_>>()?;
            let gather = gdr_cuda::Gather::new(&runtime.gpu(device)?.gpu, pieces);
            let gather = Arc::new(gather.map_err(IntoException::into_exception)?);
            Ok(Self { gather, count })
        })
    }

    /// Returns the end of the tensor that extends furthest: the epoch has at least this many bytes.
    #[getter]
    fn end(&self) -> u64 {
        self.gather.end()
    }

    fn __repr__(&self) -> String {
        format!("<gdr.Gather of {} tensors>", self.count)
    }
}
