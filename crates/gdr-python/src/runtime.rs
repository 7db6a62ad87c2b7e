//! The driver, the GPUs and the mapping context of this process.

use std::sync::{Arc, Mutex, PoisonError};

use gdr_copy::cpu::Caching;
use gdr_copy::plan::{PathLimits, Planner};
use gdr_copy::{BackendKind, Context, Mapping, PerProcess, calibration_for, default_threads};
use gdr_cuda::{DevicePtr, Gpu, Ordinal, open_driver};
use pyo3::PyResult;

use crate::error::IntoException;
use crate::signal::SignalWords;

/// Objects that are opened once per process, at the first use.
#[derive(Debug)]
pub(crate) struct Runtime {
    gpus: Vec<OpenGpu>,
    context: Context,
}

/// A GPU, with what is created once for it.
#[derive(Debug)]
pub(crate) struct OpenGpu {
    pub(crate) gpu: Gpu,
    pub(crate) signal_words: SignalWords,
    /// A planner for each kind of mapping, which chooses the paths of copies.
    planners: Mutex<Vec<(MappingKind, Planner)>>,
}

/// The properties that the planner of a GPU's mappings depends on.
type MappingKind = (BackendKind, Caching);

impl OpenGpu {
    /// Returns the planner of copies to and from a mapping of this GPU's memory.
    ///
    /// The profile of this machine is read at the first mapping of a kind and kept for the life of the process;
    /// otherwise a program that maps for each request would read it every time.
    pub(crate) fn planner(&self, mapping: &Mapping) -> PyResult<Planner> {
        let kind = (mapping.backend(), mapping.caching());
        // The list holds only complete planners, so it stays valid after a panic.
        let mut planners = self.planners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, planner)) = planners.iter().find(|(known, _)| *known == kind) {
            return Ok(planner.clone());
        }
        let calibration = calibration_for(&self.gpu, mapping);
        let (calibration, _) = calibration.map_err(IntoException::into_exception)?;
        let limits = PathLimits::all(default_threads(&self.gpu));
        let planner = Planner::new(&calibration, limits);
        planners.push((kind, planner.clone()));
        Ok(planner)
    }
}

impl Runtime {
    /// Returns the runtime of this process. A forked child opens its own.
    ///
    /// The GPUs are simulated if `GDR_BACKEND` is `sim`, and never otherwise.
    pub(crate) fn get() -> PyResult<Arc<Self>> {
        static RUNTIME: PerProcess<Mutex<Option<Arc<Runtime>>>> = PerProcess::new();
        // The content is set as a whole, so it stays valid after a panic.
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
        // One context can map the memory of every GPU of its driver.
        let context = Context::open_for(first).map_err(IntoException::into_exception)?;
        let gpus = gpus
            .into_iter()
            .map(|gpu| OpenGpu {
                signal_words: SignalWords::new(gpu.clone()),
                planners: Mutex::default(),
                gpu,
            })
            .collect();
        Ok(Self { gpus, context })
    }

    /// Returns the context that maps memory.
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Returns a GPU by its number in this process.
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

    /// Returns the GPU whose memory an address belongs to.
    pub(crate) fn gpu_of(&self, ptr: DevicePtr) -> PyResult<&OpenGpu> {
        // All GPUs of a process have the same driver.
        let driver = self.gpus.first().map(|open| open.gpu.driver());
        let unknown = || gdr_cuda::Error::UnknownPointer { ptr }.into_exception();
        let info = driver
            .ok_or_else(unknown)?
            .pointer_info(ptr)
            .map_err(IntoException::into_exception)?;
        self.gpu(info.device)
    }
}
