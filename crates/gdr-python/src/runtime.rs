//! The driver, the GPUs and the mapping context of this process.

use std::sync::{Arc, Mutex, PoisonError};

use gdr_copy::{Context, PerProcess};
use gdr_cuda::{DevicePtr, Gpu, Ordinal, open_driver};
use pyo3::PyResult;

use crate::error::IntoException;
use crate::signal::SignalWords;

/// What is opened once for each process, at the first use.
#[derive(Debug)]
pub(crate) struct Runtime {
    gpus: Vec<OpenGpu>,
    context: Context,
}

/// A GPU and what is made once for it.
#[derive(Debug)]
pub(crate) struct OpenGpu {
    pub(crate) gpu: Gpu,
    pub(crate) signal_words: SignalWords,
}

impl Runtime {
    /// The runtime of this process. A forked child opens its own.
    ///
    /// The GPUs are simulated where `GDR_BACKEND` is `sim`, and never otherwise.
    pub(crate) fn get() -> PyResult<Arc<Self>> {
        static RUNTIME: PerProcess<Mutex<Option<Arc<Runtime>>>> = PerProcess::new();
        // What is inside is valid after a panic: it is set as a whole.
        let mut runtime = RUNTIME
            .get_fast()
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = &*runtime {
            return Ok(Arc::clone(runtime));
        }
        let opened = Arc::new(Self::open()?);
        *runtime = Some(Arc::clone(&opened));
        Ok(opened)
    }

    fn open() -> PyResult<Self> {
        let driver = open_driver().map_err(IntoException::into_exception)?;
        let gpus = Gpu::all(driver).map_err(IntoException::into_exception)?;
        let none = gdr_cuda::Error::NoSuchDevice {
            ordinal: Ordinal(0),
            count: 0,
        };
        let first = gpus.first().ok_or_else(|| none.into_exception())?;
        // One context reaches the memory of every GPU of its driver.
        let context = Context::open_for(first).map_err(IntoException::into_exception)?;
        let gpus = gpus
            .into_iter()
            .map(|gpu| OpenGpu {
                signal_words: SignalWords::new(gpu.clone()),
                gpu,
            })
            .collect();
        Ok(Self { gpus, context })
    }

    /// The context that maps memory.
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// A GPU by its number in this process.
    pub(crate) fn gpu(&self, ordinal: Ordinal) -> PyResult<&OpenGpu> {
        let found = self
            .gpus
            .iter()
            .find(|open| open.gpu.info().ordinal == ordinal);
        found.ok_or_else(|| {
            let count = u32::try_from(self.gpus.len()).unwrap_or(u32::MAX);
            gdr_cuda::Error::NoSuchDevice { ordinal, count }.into_exception()
        })
    }

    /// The GPU whose memory an address belongs to.
    pub(crate) fn gpu_of(&self, ptr: DevicePtr) -> PyResult<&OpenGpu> {
        // Every GPU of a process has the same driver.
        let driver = self.gpus.first().map(|open| open.gpu.driver());
        let unknown = || gdr_cuda::Error::UnknownPointer { ptr }.into_exception();
        let info = driver
            .ok_or_else(unknown)?
            .pointer_info(ptr)
            .map_err(IntoException::into_exception)?;
        self.gpu(info.device)
    }
}
