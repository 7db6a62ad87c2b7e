//! Which GPU and which backend a command works with.

use std::sync::Arc;

use anyhow::Context as _;
use gdr_copy::{BackendKind, Context};
use gdr_cuda::{CuResult, Cuda, Driver, Gpu, SimDriver};
use gdr_perf::Site;

use crate::args::{Backend, Global};

/// GPUs of a simulation: two, so that a mix-up of GPUs shows.
const SIMULATED_GPUS: u32 = 2;

/// The GPUs of this process, the one that was chosen, and the backend.
pub(crate) struct Machine {
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) site: Site,
    /// Why no hardware is involved, where that is so.
    pub(crate) simulated: Option<String>,
}

impl Machine {
    /// NVIDIA's driver where there is one and it has a GPU; else, and on request, the simulation.
    pub(crate) fn open(global: &Global) -> anyhow::Result<Self> {
        let wanted = wanted(global)?;
        if wanted == Some(BackendKind::Sim) {
            return Self::simulate(global, "asked for by name".to_owned());
        }
        match find_gpus() {
            Ok((cuda, gpus)) => {
                // A GPU that is there but cannot be mapped is a failure, never a simulation.
                let builder = Context::builder().cuda(cuda.clone());
                let context = match wanted {
                    Some(kind) => builder.backend(kind).open()?,
                    None => builder.open()?,
                };
                Self::with(global, cuda, gpus, context, None)
            }
            Err(Absent::NoGpu(reason)) if wanted.is_none() => Self::simulate(global, reason),
            Err(Absent::NoGpu(reason)) => anyhow::bail!(
                "there is no GPU for the backend that was asked for: {reason}; --backend sim \
                 simulates one"
            ),
            Err(Absent::Broken(error)) => Err(error).context("the GPU cannot be used"),
        }
    }

    fn simulate(global: &Global, reason: String) -> anyhow::Result<Self> {
        let driver = SimDriver::new(SIMULATED_GPUS);
        let gpus = Gpu::all(driver.clone())?;
        let context = Context::builder()
            .simulated(driver.clone())
            .backend(BackendKind::Sim)
            .open()?;
        Self::with(global, driver, gpus, context, Some(reason))
    }

    fn with(
        global: &Global,
        driver: Arc<dyn Driver>,
        gpus: Vec<Gpu>,
        context: Context,
        simulated: Option<String>,
    ) -> anyhow::Result<Self> {
        let gpu = Gpu::open(driver, gdr_cuda::Ordinal(global.gpu))?;
        Ok(Self {
            gpus,
            site: Site::new(gpu, Arc::new(context)),
            simulated,
        })
    }
}

/// The backend that the command line or, without its word, `GDR_BACKEND` names.
fn wanted(global: &Global) -> anyhow::Result<Option<BackendKind>> {
    match global.backend {
        Some(Backend::Auto) => Ok(None),
        Some(Backend::Named(kind)) => Ok(Some(kind)),
        None => match std::env::var("GDR_BACKEND") {
            Ok(name) if !name.is_empty() => Ok(Some(name.parse().map_err(gdr_copy::Error::from)?)),
            _ => Ok(None),
        },
    }
}

/// Why there is no GPU to work with.
enum Absent {
    /// There is none.
    NoGpu(String),
    /// There seems to be one, but it does not work.
    Broken(anyhow::Error),
}

fn find_gpus() -> Result<(Arc<Cuda>, Vec<Gpu>), Absent> {
    let absent = |error: gdr_cuda::Error| match &error {
        gdr_cuda::Error::Library { library, reason } => Absent::NoGpu(format!(
            "no NVIDIA driver ({})",
            if reason.contains(library.as_str()) {
                reason.clone()
            } else {
                format!("{library}: {reason}")
            }
        )),
        // The stub library of the CUDA toolkit stands for no driver either.
        _ if error.cu_result() == Some(CuResult::NO_DEVICE) || is_stub(&error) => {
            Absent::NoGpu(format!("no NVIDIA GPU ({error})"))
        }
        _ => Absent::Broken(error.into()),
    };
    let cuda = Cuda::load().map_err(absent)?;
    let gpus = Gpu::all(cuda.clone()).map_err(absent)?;
    if gpus.is_empty() {
        return Err(Absent::NoGpu(
            "the NVIDIA driver shows no GPU to this process".to_owned(),
        ));
    }
    Ok((cuda, gpus))
}

fn is_stub(error: &gdr_cuda::Error) -> bool {
    error.cu_result().and_then(CuResult::name) == Some("CUDA_ERROR_STUB_LIBRARY")
}
