//! Options that name a GPU and a backend.

use clap::{Args, ValueEnum};
use gdr_copy::BackendKind;
use gdr_cuda::{Bdf, DeviceInfo, MemoryKind, Ordinal};

use crate::exit::UsageError;
use crate::host_source;

/// Options of the commands that use a GPU.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct GpuOptions {
    /// GPU to use, by index (within CUDA_VISIBLE_DEVICES), UUID (GPU-...) or PCI address
    /// [default: 0]
    #[arg(short = 'd', long, value_name = "GPU", value_parser = GpuName::parse, help_heading = "GPU")]
    pub(crate) gpu: Option<GpuName>,

    /// How to map GPU memory: auto, gdrdrv, dmabuf, rm or sim [default: GDR_BACKEND, else auto]
    #[arg(long, value_name = "NAME", value_parser = Backend::parse, help_heading = "GPU")]
    backend: Option<Backend>,

    /// Simulate a GPU; the results say nothing about hardware
    #[arg(long, help_heading = "GPU")]
    simulate: bool,

    /// Exit with status 2 unless a real GPU is used, for job prologs and health checks
    #[arg(long, conflicts_with = "simulate", help_heading = "GPU")]
    pub(crate) require_gpu: bool,

    /// Rank of this process on its host, which chooses a GPU if no option names one.
    #[arg(skip)]
    pub(crate) local_rank: Option<usize>,
}

impl GpuOptions {
    /// Returns whether an option asks for a GPU, a simulated one included.
    pub(crate) const fn is_named(&self) -> bool {
        self.gpu.is_some() || self.simulate || self.require_gpu
    }
}

/// A CUDA function that allocates.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Allocator {
    #[value(name = "cuMemAlloc")]
    Plain,
    /// VMM memory, exportable as a POSIX file descriptor
    #[value(name = "cuMemCreate")]
    VmmPosixFd,
    /// VMM memory that cannot be exported
    #[value(name = "cuMemCreate-no-handle")]
    Vmm,
    /// From the stream-ordered memory pool
    #[value(name = "cuMemAllocAsync")]
    Pool,
}

impl From<Allocator> for MemoryKind {
    fn from(allocator: Allocator) -> Self {
        match allocator {
            Allocator::Plain => Self::Plain,
            Allocator::VmmPosixFd => Self::VmmPosixFd,
            Allocator::Vmm => Self::Vmm,
            Allocator::Pool => Self::Pool,
        }
    }
}

/// The value of `--backend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Auto,
    Named(BackendKind),
}

impl Backend {
    fn parse(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Self::Auto);
        }
        text.parse()
            .map(Self::Named)
            .map_err(|error: gdr_copy::ParseBackendError| error.to_string())
    }
}

/// The GPU that the command line and the environment ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A simulated GPU, for this reason.
    Simulated(&'static str),
    /// A real GPU.
    Real(RealGpu),
}

/// A request for a real GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RealGpu {
    /// The backend, if one is named.
    pub(crate) backend: Option<BackendKind>,
    /// What happens without one.
    pub(crate) demand: Demand,
}

/// How strictly a real GPU is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    /// No option or variable names a GPU or a backend.
    Unsaid,
    /// An option or `GDR_BACKEND` names one.
    Named,
    /// `--require-gpu`.
    Required,
}

impl GpuOptions {
    /// Returns whether an option asks for a GPU.
    pub(crate) fn is_given(&self) -> bool {
        self.gpu.is_some() || self.backend.is_some() || self.simulate || self.require_gpu
    }

    /// Returns the same options for a command in which another option may name a second GPU. A GPU is then required,
    /// and without a name the first one stays the default.
    pub(crate) fn beside(&self, other: Option<&GpuName>) -> Self {
        let first = other.map(|_| GpuName::Index(0));
        Self {
            gpu: self.gpu.clone().or(first),
            ..self.clone()
        }
    }

    /// Returns the same options, with this GPU.
    pub(crate) fn with_gpu(&self, name: &GpuName) -> Self {
        Self {
            gpu: Some(name.clone()),
            ..self.clone()
        }
    }

    /// Returns the requested GPU, where `variable` is the value of `GDR_BACKEND`.
    pub(crate) fn wanted(&self, variable: Option<&str>) -> anyhow::Result<Wanted> {
        let usage = |what: &str| Err(UsageError(what.to_owned()).into());
        if self.simulate {
            return match self.backend {
                Some(Backend::Named(kind)) if kind != BackendKind::Sim => {
                    usage("--simulate does not use the backend of a real GPU: leave out --backend")
                }
                _ => Ok(Wanted::Simulated("--simulate was given")),
            };
        }
        let variable = variable.filter(|name| !name.is_empty());
        let backend = match (self.backend, variable) {
            (Some(Backend::Auto), _) | (None, None) => None,
            (Some(Backend::Named(kind)), _) => Some(kind),
            (None, Some(name)) => Some(name.parse().map_err(gdr_copy::Error::from)?),
        };
        match (backend, self.backend) {
            (Some(BackendKind::Sim), Some(_)) if self.require_gpu => {
                usage("--require-gpu contradicts --backend sim: leave out one of them")
            }
            (Some(BackendKind::Sim), Some(_)) => Ok(Wanted::Simulated("--backend sim was given")),
            (Some(BackendKind::Sim), None) if !self.require_gpu => {
                Ok(Wanted::Simulated("GDR_BACKEND is sim"))
            }
            (Some(BackendKind::Sim), None) => anyhow::bail!(
                "--require-gpu needs a real GPU, but GDR_BACKEND is sim: unset the variable"
            ),
            (backend, option) => {
                let named = backend.is_some() || option.is_some() || self.gpu.is_some();
                let demand = match (self.require_gpu, named) {
                    (true, _) => Demand::Required,
                    (false, true) => Demand::Named,
                    (false, false) => Demand::Unsaid,
                };
                Ok(Wanted::Real(RealGpu { backend, demand }))
            }
        }
    }

    /// Returns the named GPU, among those that this process sees.
    pub(crate) fn select(&self, gpus: &[&DeviceInfo]) -> Result<Ordinal, NoSuchGpu> {
        match (&self.gpu, self.local_rank) {
            (Some(name), _) => name.find(gpus),
            // A launcher may show each rank only its own GPU.
            (None, Some(rank)) => Ok(Ordinal((rank % gpus.len().max(1)) as u32)),
            (None, None) => Ok(Ordinal(0)),
        }
    }
}

/// The name of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GpuName {
    /// The index within `CUDA_VISIBLE_DEVICES`.
    Index(u32),
    /// A UUID or a prefix of one, in lower case.
    Uuid(String),
    /// A PCI address.
    Pci(Bdf),
}

impl GpuName {
    /// Reads an index, a UUID or a PCI address.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is not the name of a GPU: give its index (0), its UUID (GPU-6d1c3a52-...) or its PCI \
                 address (0000:18:00.0)"
            )
        };
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.parse().map(Self::Index).map_err(|_| wrong());
        }
        let lower = text.to_ascii_lowercase();
        if let Some(digits) = lower.strip_prefix("gpu-") {
            let hexadecimal = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
            let is_uuid = (1..=36).contains(&digits.len()) && digits.bytes().all(hexadecimal);
            return is_uuid.then_some(Self::Uuid(lower)).ok_or_else(wrong);
        }
        // nvidia-smi always includes the function; NCCL and GDRCopy do not.
        let address = match text.contains('.') {
            true => text.parse(),
            false => format!("{text}.0").parse(),
        };
        address.map(Self::Pci).map_err(|_| wrong())
    }

    /// Returns the GPU of this name among these.
    pub(crate) fn find(&self, gpus: &[&DeviceInfo]) -> Result<Ordinal, NoSuchGpu> {
        let missing = |what: String| {
            let seen: Vec<String> = gpus.iter().map(|gpu| describe(gpu)).collect();
            NoSuchGpu { what, seen }
        };
        let matches: Vec<_> = match self {
            // The driver rejects an index that is too large.
            Self::Index(index) => return Ok(Ordinal(*index)),
            Self::Uuid(start) => {
                let named = |gpu: &&&DeviceInfo| {
                    host_source::uuid(gpu.uuid)
                        .to_ascii_lowercase()
                        .starts_with(start)
                };
                gpus.iter().filter(named).collect()
            }
            Self::Pci(bdf) => gpus.iter().filter(|gpu| gpu.bdf == *bdf).collect(),
        };
        match (matches.as_slice(), self) {
            ([gpu], _) => Ok(gpu.ordinal),
            ([], Self::Uuid(start)) => Err(missing(format!("no GPU has a UUID of `{start}`"))),
            ([], Self::Pci(bdf)) => Err(missing(format!("no GPU is at {bdf}"))),
            _ => Err(missing("more than one GPU has this name".to_owned())),
        }
    }
}

/// `0: GPU-6d1c3a52-... at 0000:18:00.0`.
fn describe(gpu: &DeviceInfo) -> String {
    format!(
        "{}: {} at {}",
        gpu.ordinal,
        host_source::uuid(gpu.uuid),
        gpu.bdf
    )
}

/// No GPU of this process has the given name.
#[derive(Debug, thiserror::Error)]
#[error("{what}; this process sees {}; check the name and CUDA_VISIBLE_DEVICES", seen.join(", "))]
pub(crate) struct NoSuchGpu {
    what: String,
    seen: Vec<String>,
}

#[cfg(test)]
mod tests {
    use gdr_cuda::{Driver, SimDriver};
    use snapshot::assert_contains;

    use super::*;

    fn options(simulate: bool, backend: Option<Backend>) -> GpuOptions {
        GpuOptions {
            simulate,
            backend,
            ..GpuOptions::default()
        }
    }

    fn demand(options: &GpuOptions, variable: Option<&str>) -> Demand {
        match options.wanted(variable).unwrap() {
            Wanted::Real(real) => real.demand,
            Wanted::Simulated(why) => panic!("simulated: {why}"),
        }
    }

    #[test]
    fn only_a_word_for_it_asks_for_a_simulation() {
        let sim = Some(Backend::Named(BackendKind::Sim));
        for (options, variable) in [
            (options(true, None), None),
            (options(true, sim), None),
            (options(true, None), Some("rm")),
            (options(false, sim), None),
            (options(false, sim), Some("rm")),
            (options(false, None), Some("sim")),
        ] {
            let wanted = options.wanted(variable).unwrap();
            assert!(matches!(wanted, Wanted::Simulated(_)), "{options:?}");
        }
        let none = options(false, None);
        assert_eq!(demand(&none, None), Demand::Unsaid);
        assert_eq!(demand(&none, Some("")), Demand::Unsaid);
        assert_eq!(demand(&none, Some("rm")), Demand::Named);
        let auto = options(false, Some(Backend::Auto));
        assert_eq!(demand(&auto, None), Demand::Named);
        assert_eq!(demand(&auto, Some("sim")), Demand::Named);
        let gpu = GpuOptions {
            gpu: Some(GpuName::Index(0)),
            ..GpuOptions::default()
        };
        assert_eq!(demand(&gpu, None), Demand::Named);
        // A GPU that another option names is real, too.
        let source = GpuName::Index(1);
        assert_eq!(demand(&none.beside(Some(&source)), None), Demand::Named);
        assert_eq!(demand(&none.beside(None), None), Demand::Unsaid);
        assert_eq!(none.with_gpu(&source).gpu, Some(source));
    }

    #[test]
    fn a_required_gpu_is_never_simulated() {
        let required = GpuOptions {
            require_gpu: true,
            ..GpuOptions::default()
        };
        assert_eq!(demand(&required, None), Demand::Required);
        let error = required.wanted(Some("sim")).unwrap_err();
        assert_contains!(error.to_string(), "GDR_BACKEND", "{error}");
        let both = GpuOptions {
            backend: Some(Backend::Named(BackendKind::Sim)),
            ..required
        };
        assert!(both.wanted(None).unwrap_err().is::<UsageError>());
    }

    #[test]
    fn a_simulation_and_another_backend_contradict_each_other() {
        let rm = options(true, Some(Backend::Named(BackendKind::Rm)));
        assert!(rm.wanted(None).unwrap_err().is::<UsageError>());
    }

    #[test]
    fn every_backend_can_be_named() {
        assert_eq!(Backend::parse("auto"), Ok(Backend::Auto));
        assert_eq!(Backend::parse("RM"), Ok(Backend::Named(BackendKind::Rm)));
        assert!(
            Backend::parse("cuda")
                .unwrap_err()
                .contains("gdrdrv, dmabuf, rm or sim")
        );
    }

    #[test]
    fn a_gpu_is_named_by_index_uuid_or_pci_address_as_other_tools_write_them() {
        let address = || GpuName::Pci("0000:18:00.0".parse().unwrap());
        for (text, name) in [
            ("0", GpuName::Index(0)),
            ("17", GpuName::Index(17)),
            ("18:00.0", address()),
            ("0000:18:00.0", address()),
            ("0000:18:00", address()),
            ("00000000:18:00.0", address()),
            ("GPU-6D1C3A52", GpuName::Uuid("gpu-6d1c3a52".to_owned())),
        ] {
            assert_eq!(GpuName::parse(text), Ok(name), "{text}");
        }
        for text in [
            "",
            "-1",
            "mlx5_0",
            "GPU-",
            "GPU-xyz",
            "18",
            "all",
            "4294967296",
            "18:00.9",
        ] {
            let parsed = GpuName::parse(text);
            let wrong = !matches!(parsed, Ok(GpuName::Uuid(_) | GpuName::Pci(_)));
            assert!(wrong, "{text}: {parsed:?}");
        }
        assert!(
            GpuName::parse("mlx5_0")
                .unwrap_err()
                .contains("PCI address")
        );
    }

    #[test]
    fn a_name_selects_one_gpu_or_says_which_there_are() {
        let devices = SimDriver::new(2).devices().unwrap();
        let gpus: Vec<_> = devices.iter().collect();
        for gpu in &gpus {
            let uuid = host_source::uuid(gpu.uuid);
            let named = [uuid.clone(), uuid.to_uppercase(), gpu.bdf.to_string()];
            for text in named {
                let name = GpuName::parse(&text).unwrap();
                assert_eq!(name.find(&gpus).unwrap(), gpu.ordinal, "{text}");
            }
        }
        let other = GpuName::parse("ffff:ff:1f.7").unwrap().find(&gpus);
        let words = other.unwrap_err().to_string();
        assert_contains!(words, "no GPU is at ffff:ff:1f.7");
        assert!(words.contains(&gpus[1].bdf.to_string()), "{words}");
    }
}
