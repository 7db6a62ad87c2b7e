//! Streams passed by a Python program.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use gdr_cuda::{Gpu, Ordinal, Stream};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;

/// A stream of the program.
#[derive(Debug)]
pub(crate) struct ProgramStream {
    /// `CUstream`; 0 is the legacy default stream.
    pub(crate) handle: u64,
    owner: Option<Py<PyAny>>,
}

impl ProgramStream {
    /// Returns a stream of PyTorch or CuPy, or its address; the legacy default stream for none.
    pub(crate) fn of(stream: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        Ok(Self {
            handle: stream.map_or(Ok(0), stream_address)?,
            owner: stream.map(|stream| stream.clone().unbind()),
        })
    }
}

/// Streams of the program on which work is queued, with one value per GPU and address. With these, an object knows that
/// one copy follows another.
#[derive(Debug, Default)]
pub(crate) struct Streams(Mutex<HashMap<(Ordinal, u64), Arc<Stream>>>);

impl Streams {
    /// Returns the stream of a GPU, for work whose memory is kept alive by those who queue it.
    pub(crate) fn get(&self, gpu: &Gpu, stream: ProgramStream) -> Arc<Stream> {
        let ProgramStream { handle, owner } = stream;
        // The map holds only complete entries, so it stays valid after a panic.
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let made = streams
            .entry((gpu.info().ordinal, handle))
            .or_insert_with(|| {
                // SAFETY: the program passed a stream of its own. Its object owns the stream, or the program guaranteed
                // the address to be valid as long as this value. Those who queue work keep its memory alive.
                Arc::new(unsafe { Stream::from_owner(gpu, handle, owner) })
            });
        Arc::clone(made)
    }
}

/// Returns the address of a stream: a number, or an object of a library that has one.
fn stream_address(stream: &Bound<'_, PyAny>) -> PyResult<u64> {
    let py = stream.py();
    if let Ok(address) = stream.extract() {
        return Ok(address);
    }
    // PyTorch's name, then CuPy's.
    for name in [intern!(py, "cuda_stream"), intern!(py, "ptr")] {
        if let Some(address) = stream.getattr_opt(name)? {
            return address.extract();
        }
    }
    let name = stream.get_type().qualname()?;
    Err(PyTypeError::new_err(format!(
        "a {name} is not a CUDA stream: pass one of PyTorch or CuPy, its address, or None"
    )))
}
