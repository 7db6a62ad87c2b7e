//! The GPU and the backend that a command uses.

use std::path::Path;
use std::sync::Arc;

use gdr_copy::{BackendKind, Context};
use gdr_cuda::{Bdf, Cuda, DeviceInfo, Driver, Gpu, SimDriver};
use gdr_perf::BenchTarget;
use gdr_perf::loopback::TransferPreference;

use crate::exit::Exit;
use crate::gpu::{Demand, GpuName, GpuOptions, RealGpu, Wanted};
use crate::hardware::{Found, look};

/// Number of simulated GPUs: two, so that mixing them up is detected.
const SIMULATED_GPUS: u32 = 2;

/// The GPUs of this process, the chosen one, and its backend.
pub(crate) struct GpuContext {
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) target: BenchTarget,
    /// Why the GPU is simulated; `None` for a real one.
    pub(crate) simulated: Option<String>,
}

/// What a command does on a machine without a GPU, a driver and device nodes, if no option asks for a real GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WithoutGpu {
    /// Exits, because its result would describe hardware.
    Exit,
    /// Simulates a GPU, and prints that it does.
    Simulates,
    /// Fails, because its options require real hardware.
    Fails,
}

/// Why no GPU can be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoGpu {
    #[error(
        "there is no GPU: no NVIDIA function is on the PCI bus, and no NVIDIA driver \
         (libcuda.so.1, /dev/nvidia*) is installed; run this on a machine with a GPU, or \
         simulate one with --simulate"
    )]
    Absent { exit: Exit },
    #[error(
        "the GPU cannot be used: {reason}; `gdr doctor` finds the cause, and --simulate uses a \
         simulated GPU"
    )]
    Unusable { reason: String },
}

impl NoGpu {
    /// Returns the status that a command ends with.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Absent { exit } => *exit,
            Self::Unusable { .. } => Exit::Failure,
        }
    }

    /// Returns the code of this error for programs.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::Absent { .. } => "no_gpu",
            Self::Unusable { .. } => "gpu_unusable",
        }
    }
}

impl GpuContext {
    /// Opens the GPU that the options name. Simulates it only if the options ask for that, or if `without` permits it
    /// and the machine shows no trace of a real GPU.
    pub(crate) fn open(options: &GpuOptions, without: WithoutGpu) -> anyhow::Result<Self> {
        let variable = std::env::var_os("GDR_BACKEND");
        let variable = variable.map(|name| name.to_string_lossy().into_owned());
        let real = match options.wanted(variable.as_deref())? {
            Wanted::Simulated(why) => return Self::simulate(options, why.to_owned()),
            Wanted::Real(real) => real,
        };
        match look(Path::new("/"), find_gpus) {
            Found::Gpus((cuda, gpus)) => {
                // A real GPU that cannot be mapped is a failure, and is never replaced by a simulated one.
                let builder = Context::builder().cuda(cuda.clone());
                let context = match real.backend {
                    Some(kind) => builder.backend(kind).open()?,
                    None => builder.open()?,
                };
                Self::with(options, cuda, gpus, context, None)
            }
            Found::Nothing => match settle(real, without) {
                Ok(why) => Self::simulate(options, why.to_owned()),
                Err(none) => Err(none.into()),
            },
            Found::Unusable(reason) => Err(NoGpu::Unusable { reason }.into()),
        }
    }

    fn simulate(options: &GpuOptions, reason: String) -> anyhow::Result<Self> {
        let driver = SimDriver::new(SIMULATED_GPUS);
        let gpus = Gpu::all(driver.clone())?;
        let context = Context::builder()
            .simulated(driver.clone())
            .backend(BackendKind::Sim)
            .open()?;
        Self::with(options, driver, gpus, context, Some(reason))
    }

    fn with(
        options: &GpuOptions,
        driver: Arc<dyn Driver>,
        gpus: Vec<Gpu>,
        context: Context,
        simulated: Option<String>,
    ) -> anyhow::Result<Self> {
        let gpu = named(options, driver, &gpus)?;
        Ok(Self {
            gpus,
            target: BenchTarget::new(gpu, Arc::new(context)),
            simulated,
        })
    }

    /// Returns the GPU of this name; without one, the chosen GPU.
    pub(crate) fn gpu(&self, name: Option<&GpuName>) -> anyhow::Result<Gpu> {
        let Some(name) = name else {
            return Ok(self.target.gpu().clone());
        };
        let seen: Vec<&DeviceInfo> = self.gpus.iter().map(Gpu::info).collect();
        let ordinal = name.find(&seen)?;
        let found = self.gpus.iter().find(|gpu| gpu.info().ordinal == ordinal);
        let count = self.gpus.len() as u32;
        let missing = gdr_cuda::Error::NoSuchDevice { ordinal, count };
        Ok(found.ok_or(missing)?.clone())
    }

    /// Returns the same target on the GPU of this name, if one is named.
    pub(crate) fn second(&self, name: Option<&GpuName>) -> anyhow::Result<Option<BenchTarget>> {
        match name {
            Some(name) => Ok(Some(self.target.on(self.gpu(Some(name))?))),
            None => Ok(None),
        }
    }

    /// Like [`GpuContext::open`], for memory that RDMA transfers into. Accepts a GPU whose memory no backend can map if
    /// the options name no backend, because staged transfers work there too.
    pub(crate) fn open_for_transfer(
        options: &GpuOptions,
        without: WithoutGpu,
        transfer: TransferPreference,
    ) -> anyhow::Result<Self> {
        let error = match Self::open(options, without) {
            Err(error) if transfer != TransferPreference::Direct => error,
            opened => return opened,
        };
        match error.downcast_ref::<gdr_copy::Error>() {
            Some(none @ gdr_copy::Error::NoBackend { .. }) => Self::without_mappings(options, none),
            _ => Err(error),
        }
    }

    /// Returns the GPU that the options name, without mappings: no backend can map its memory, for the reason in
    /// `error`.
    fn without_mappings(options: &GpuOptions, error: &gdr_copy::Error) -> anyhow::Result<Self> {
        let cuda = Cuda::load()?;
        let gpus = Gpu::all(cuda.clone())?;
        let gpu = named(options, cuda, &gpus)?;
        Ok(Self {
            gpus,
            target: BenchTarget::without_mappings(gpu, error),
            simulated: None,
        })
    }
}

/// Returns the PCI address of the GPU of this name.
pub(crate) fn pci_address(name: &GpuName) -> anyhow::Result<Bdf> {
    if let GpuName::Pci(address) = name {
        return Ok(*address);
    }
    match look(Path::new("/"), find_gpus) {
        Found::Gpus((_, gpus)) => {
            let seen: Vec<&DeviceInfo> = gpus.iter().map(Gpu::info).collect();
            let ordinal = name.find(&seen)?;
            let count = seen.len() as u32;
            let found = seen.iter().find(|gpu| gpu.ordinal == ordinal);
            let missing = gdr_cuda::Error::NoSuchDevice { ordinal, count };
            Ok(found.ok_or(missing)?.bdf)
        }
        Found::Nothing => {
            let exit = Exit::Undecided;
            Err(NoGpu::Absent { exit }.into())
        }
        Found::Unusable(reason) => Err(NoGpu::Unusable { reason }.into()),
    }
}

fn named(options: &GpuOptions, driver: Arc<dyn Driver>, gpus: &[Gpu]) -> anyhow::Result<Gpu> {
    let seen: Vec<&DeviceInfo> = gpus.iter().map(Gpu::info).collect();
    Ok(Gpu::open(driver, options.select(&seen)?)?)
}

/// On a machine without any trace of a GPU, decides why one is simulated or how the command ends.
fn settle(real: RealGpu, without: WithoutGpu) -> Result<&'static str, NoGpu> {
    let exit = match (real.demand, without) {
        (Demand::Unsaid, WithoutGpu::Simulates) => {
            return Ok("no NVIDIA GPU is on the PCI bus, and no NVIDIA driver is installed");
        }
        (Demand::Required, _) => Exit::Failure,
        (Demand::Unsaid | Demand::Named, _) => Exit::Undecided,
    };
    Err(NoGpu::Absent { exit })
}

type RealGpus = (Arc<Cuda>, Vec<Gpu>);

fn find_gpus() -> gdr_cuda::Result<Option<RealGpus>> {
    let cuda = Cuda::load()?;
    let gpus = Gpu::all(cuda.clone())?;
    Ok((!gpus.is_empty()).then_some((cuda, gpus)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends_with(demand: Demand, without: WithoutGpu) -> Option<Exit> {
        let real = RealGpu {
            backend: None,
            demand,
        };
        settle(real, without).err().map(|none| none.exit())
    }

    #[test]
    fn without_a_gpu_a_simulation_takes_a_command_that_may_and_no_word_for_a_real_one() {
        assert_eq!(ends_with(Demand::Unsaid, WithoutGpu::Simulates), None);
        assert!(ends_with(Demand::Named, WithoutGpu::Simulates).is_some());
    }

    #[test]
    fn without_a_gpu_every_command_is_undecided_and_a_required_gpu_is_a_failure() {
        for without in [WithoutGpu::Exit, WithoutGpu::Fails] {
            let ends = |demand| ends_with(demand, without);
            assert_eq!(ends(Demand::Unsaid), Some(Exit::Undecided), "{without:?}");
            assert_eq!(ends(Demand::Named), Some(Exit::Undecided), "{without:?}");
            assert_eq!(ends(Demand::Required), Some(Exit::Failure), "{without:?}");
        }
        let named = ends_with(Demand::Named, WithoutGpu::Simulates);
        assert_eq!(named, Some(Exit::Undecided));
    }
}
