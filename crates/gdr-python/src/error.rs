//! Exceptions.

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::{PyErr, create_exception};

create_exception!(
    gdr,
    Error,
    PyRuntimeError,
    "What failed, why, and what to do. Base class: RuntimeError."
);

/// Converts an error of the libraries to the exception that Python programs expect for its cause.
pub(crate) trait IntoException {
    /// Returns the exception.
    fn into_exception(self) -> PyErr;
}

impl IntoException for gdr_cuda::Error {
    fn into_exception(self) -> PyErr {
        let text = self.to_string();
        match self {
            Self::OutOfRange { .. }
            | Self::PastAllocation { .. }
            | Self::UnknownPointer { .. }
            | Self::NotDeviceMemory { .. }
            | Self::NoSuchDevice { .. } => PyValueError::new_err(text),
            Self::Deadline { .. } => PyTimeoutError::new_err(text),
            Self::Library { .. } => Error::new_err(format!(
                "{text}; without a GPU, GDR_BACKEND=sim in the environment simulates two"
            )),
            _ => Error::new_err(text),
        }
    }
}

impl IntoException for gdr_copy::Error {
    fn into_exception(self) -> PyErr {
        match self {
            Self::Gpu(error) => error.into_exception(),
            Self::Incomplete { ref source, .. }
                if matches!(**source, Self::Gpu(gdr_cuda::Error::Deadline { .. })) =>
            {
                PyTimeoutError::new_err(self.to_string())
            }
            Self::OutOfRange { .. }
            | Self::PastAllocation { .. }
            | Self::NotDeviceMemory { .. }
            | Self::EmptyRange { .. } => PyValueError::new_err(self.to_string()),
            _ => Error::new_err(self.to_string()),
        }
    }
}

impl IntoException for gdr_copy::ProfileError {
    fn into_exception(self) -> PyErr {
        Error::new_err(self.to_string())
    }
}

impl IntoException for gdr_rdma::Error {
    fn into_exception(self) -> PyErr {
        match self {
            Self::Nic(error) => error.into_exception(),
            Self::Deadline(_) => PyTimeoutError::new_err(self.to_string()),
            _ => Error::new_err(self.to_string()),
        }
    }
}

impl IntoException for gdr_rdma::NicError {
    fn into_exception(self) -> PyErr {
        match self {
            Self::Copy(error) => error.into_exception(),
            Self::Cuda(error) => error.into_exception(),
            Self::EmptyBuffer | Self::OutOfRange { .. } => PyValueError::new_err(self.to_string()),
            _ => Error::new_err(self.to_string()),
        }
    }
}
