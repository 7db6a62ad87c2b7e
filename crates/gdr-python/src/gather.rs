//! Tensors that one kernel copies together.

use std::sync::Arc;

use gdr_cuda::Ordinal;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::IntoException;
use crate::runtime::Runtime;
use crate::tensor::Tensor;

/// Tensors of one GPU, and the offset in the memory of an epoch that each goes to: Object.write_on() has all
/// of them copied by one kernel. The tensors are kept.
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

    /// The end of the tensor that goes furthest: as many bytes the epoch has at least.
    #[getter]
    fn end(&self) -> u64 {
        self.gather.end()
    }

    fn __repr__(&self) -> String {
        format!("<gdr.Gather of {} tensors>", self.count)
    }
}
