//! Which bytes of an object a get reads.

use std::sync::Arc;

use gdr_object::Extent;
use pyo3::prelude::*;

/// Parts of an object, which RemoteObject.get_into() reads together: tuples of offset in the object, number of bytes,
/// and offset in the destination.
#[pyclass(frozen, module = "gdr")]
#[derive(Debug)]
pub(crate) struct Extents(pub(crate) Arc<[Extent]>);

#[pymethods]
impl Extents {
    #[new]
    fn new(extents: Vec<(u64, u64, u64)>) -> Self {
        let extents = extents.into_iter();
        Self(
            extents
                .map(|(from, len, to)| Extent { from, len, to })
                .collect(),
        )
    }

    /// Total number of bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        let bytes = self.0.iter().map(|extent| extent.len);
        bytes.fold(0, u64::saturating_add)
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __repr__(&self) -> String {
        let (count, bytes) = (self.0.len(), self.nbytes());
        format!("<gdr.Extents: {count} with {bytes} bytes>")
    }
}
