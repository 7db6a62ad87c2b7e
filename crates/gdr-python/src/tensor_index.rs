//! Which tensors an object holds.

use std::collections::BTreeMap;

use gdr_object::InvalidTensors;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

/// Which tensors an object holds, and where: the header of a safetensors file.
///
/// `tensors` are tuples of name, element type as in safetensors ("BF16", "F32") and shape. `attributes` are texts
/// stored with the tensors. RemoteObject.tensors() returns one.
#[pyclass(frozen, module = "gdr")]
#[derive(Debug)]
pub(crate) struct TensorIndex(gdr_object::TensorIndex);

impl From<gdr_object::TensorIndex> for TensorIndex {
    fn from(index: gdr_object::TensorIndex) -> Self {
        Self(index)
    }
}

/// A tensor as Python describes it.
type Described = (String, String, Vec<u64>);

#[pymethods]
impl TensorIndex {
    #[new]
    #[pyo3(signature = (tensors, attributes = None))]
    fn new(
        tensors: Vec<Described>,
        attributes: Option<BTreeMap<String, String>>,
    ) -> PyResult<Self> {
        let tensors = tensors.into_iter().map(|(name, dtype, shape)| {
            let dtype = gdr_object::TensorIndex::dtype(&dtype)?;
            Ok((name, dtype, shape))
        });
        let tensors = tensors.collect::<Result<Vec<_>, _>>();
        let index = tensors.and_then(|tensors| {
            gdr_object::TensorIndex::new(tensors, attributes.unwrap_or_default())
        });
        let invalid = |error: InvalidTensors| PyValueError::new_err(error.to_string());
        index.map(Self).map_err(invalid)
    }

    /// Returns what the content begins with.
    #[getter]
    fn header<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.header())
    }

    /// Size of the content in bytes: the header and all tensors.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.0.bytes()
    }

    /// Returns a dict for each tensor in the order of their bytes, with its name, dtype, shape, offset and nbytes.
    #[getter]
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let tensors = self.0.tensors().iter().map(|tensor| {
            let dict = PyDict::new(py);
            dict.set_item("name", &tensor.name)?;
            dict.set_item("dtype", tensor.dtype.to_string())?;
            dict.set_item("shape", &tensor.shape)?;
            dict.set_item("offset", tensor.offset)?;
            dict.set_item("nbytes", tensor.bytes)?;
            Ok(dict)
        });
        tensors.collect()
    }

    /// Returns what is stored with the tensors.
    #[getter]
    fn attributes(&self) -> BTreeMap<String, String> {
        self.0.attributes().clone()
    }

    fn __repr__(&self) -> String {
        let (count, bytes) = (self.0.tensors().len(), self.0.bytes());
        format!("<gdr.TensorIndex of {count} tensors in {bytes} bytes>")
    }
}
