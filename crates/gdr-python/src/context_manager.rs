//! Classes whose values end with a `with` block.

/// Gives a class with a Python method `close` the methods of a `with` block, which calls it at its end.
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

pub(crate) use context_manager;
