//! Facts about a node that several checks need.

use gdr_node::kernel_log::records;
use gdr_node::{Absence, Bdf, Datum, DatumExt, GpuFacts, Probe, RdmaFacts, Source, virtual_path};

use crate::version::{NvidiaDriver, Version};

/// Bare metal or a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// No sign of a hypervisor.
    Bare,
    /// A guest of a hypervisor.
    Virtual,
}

/// Whether this is a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// No sign of a container.
    No,
    /// It is one.
    Yes,
}

/// Facts about a node that several checks need.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The running kernel.
    pub kernel: Datum<Version>,
    /// NVIDIA's kernel driver.
    pub nvidia: Datum<NvidiaDriver>,
    /// Whether it is a guest.
    pub machine: Datum<Machine>,
    /// Whether it is a container.
    pub container: Datum<Container>,
    /// The kernel's command line, by argument.
    pub arguments: Datum<Vec<String>>,
    /// The loaded modules (`/proc/modules`).
    pub modules: Datum<Vec<Module>>,
    /// The answer of the CUDA driver.
    pub cuda: Datum<Probe<GpuFacts>>,
    /// The answer of NVIDIA's management library (NVML).
    pub nvml: Datum<Probe<GpuFacts>>,
    /// The answer of libibverbs.
    pub verbs: Datum<Probe<RdmaFacts>>,
}

/// A library of NVIDIA's driver that reports facts about GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// The CUDA driver, libcuda.
    Cuda,
    /// The management library, libnvidia-ml.
    Nvml,
}

/// A line of `/proc/modules`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// The module.
    pub name: String,
    /// The modules that use it.
    pub users: Vec<String>,
}

impl Facts {
    /// Reads the facts.
    pub fn read(source: &dyn Source) -> Self {
        Self {
            kernel: source
                .text("/proc/sys/kernel/osrelease")
                .and_then(|text| Version::find(&text).ok_or(Absence::Missing)),
            nvidia: NvidiaDriver::read(source),
            machine: machine(source),
            container: container(source),
            arguments: source
                .text("/proc/cmdline")
                .map(|text| text.split_whitespace().map(str::to_owned).collect()),
            modules: source.text("/proc/modules").map(|text| modules(&text)),
            cuda: Probe::read(source, virtual_path::CUDA_DEVICES),
            nvml: Probe::read(source, virtual_path::NVML_DEVICES),
            verbs: Probe::read(source, virtual_path::VERBS_DEVICES),
        }
    }

    /// Returns the facts of CUDA about the GPU at an address; `None` if CUDA does not list it.
    pub fn gpu(&self, bdf: Bdf) -> Option<&GpuFacts> {
        self.cuda.as_ref().ok()?.gpu(bdf)
    }

    /// Returns one fact about a GPU that CUDA lists, or that NVML lists if CUDA's answer was not collected: from CUDA
    /// or else from NVML, and which of them. [`Absence::Missing`] if neither reports it.
    pub fn of_gpu<T>(
        &self,
        bdf: Bdf,
        fact: impl Fn(&GpuFacts) -> Option<T>,
    ) -> Datum<(T, Library)> {
        let nvml = || self.nvml.as_ref().ok()?.gpu(bdf).and_then(&fact);
        if let (Err(Absence::NotCollected), Ok(_)) = (&self.cuda, &self.nvml) {
            let by_nvml = nvml().map(|value| (value, Library::Nvml));
            return by_nvml.ok_or(Absence::NotCollected);
        }
        let by_cuda = self.cuda.by_ref()?.gpu(bdf).ok_or(Absence::Missing)?;
        let by_nvml = || nvml().map(|value| (value, Library::Nvml));
        let found = fact(by_cuda).map(|value| (value, Library::Cuda));
        found.or_else(by_nvml).ok_or(Absence::Missing)
    }

    /// Returns a module of `/proc/modules`.
    pub fn module(&self, name: &str) -> Datum<&Module> {
        self.modules.by_ref().and_then(|all| {
            all.iter()
                .find(|module| module.name == name)
                .ok_or(Absence::Missing)
        })
    }

    /// Returns the value of a kernel argument: `on` for `intel_iommu=on`. If the argument is repeated, the last value.
    pub fn argument(&self, name: &str) -> Datum<&str> {
        self.arguments.by_ref().and_then(|all| {
            all.iter()
                .rev()
                .find_map(|argument| match argument.split_once('=') {
                    Some((key, value)) if key == name => Some(value),
                    None if argument == name => Some(""),
                    _ => None,
                })
                .ok_or(Absence::Missing)
        })
    }
}

/// Returns whether it is a guest by the flags of its processor, else by what the kernel logged at boot.
fn machine(source: &dyn Source) -> Datum<Machine> {
    let by_flags = source.text("/proc/cpuinfo").map(|text| {
        let guest = text.lines().any(|line| {
            line.starts_with("flags") && line.split_whitespace().any(|f| f == "hypervisor")
        });
        if guest {
            Machine::Virtual
        } else {
            Machine::Bare
        }
    });
    if !by_flags.is_unknown() {
        return by_flags;
    }
    // Linux arch/x86/kernel/cpu/hypervisor.c, and the makers that emulated firmware names.
    const GUEST: [&str; 6] = [
        "Hypervisor detected: ",
        "DMI: QEMU",
        "DMI: VMware",
        "DMI: Xen",
        "DMI: Google",
        "DMI: OpenStack",
    ];
    const BARE: &str = "Booting paravirtualized kernel on bare hardware";
    let Ok(log) = source.text(virtual_path::KERNEL_LOG) else {
        return by_flags;
    };
    let by_log = records(&log).find_map(|record| match &*record.text {
        text if GUEST.iter().any(|it| text.starts_with(it)) => Some(Machine::Virtual),
        BARE => Some(Machine::Bare),
        _ => None,
    });
    by_log.map_or(by_flags, Ok)
}

fn container(source: &dyn Source) -> Datum<Container> {
    let marks = ["/.dockerenv", "/run/.containerenv"];
    if marks.iter().any(|mark| source.read(mark).is_ok()) {
        return Ok(Container::Yes);
    }
    source.text("/proc/1/cgroup").map(|text| {
        let inside = ["docker", "kubepods", "containerd", "libpod", "lxc"];
        if inside.iter().any(|name| text.contains(name)) {
            Container::Yes
        } else {
            Container::No
        }
    })
}

fn modules(text: &str) -> Vec<Module> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let name = words.next()?.to_owned();
            let users = words.nth(2).unwrap_or("-");
            Some(Module {
                name,
                users: users
                    .split(',')
                    .filter(|user| !user.is_empty() && *user != "-")
                    .map(str::to_owned)
                    .collect(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;

    #[test]
    fn users_of_a_module_are_listed() {
        let node = MemorySource::new().file(
            "/proc/modules",
            "nvidia_peermem 16384 0 - Live 0x0\nib_core 495616 2 nvidia_peermem,ib_uverbs, Live 0x0\n",
        );
        let facts = Facts::read(&node);
        let users = &facts.module("ib_core").unwrap().users;
        assert_eq!(users, &["nvidia_peermem", "ib_uverbs"]);
        assert_eq!(facts.module("nouveau"), Err(Absence::Missing));
    }

    #[test]
    fn the_last_of_repeated_arguments_counts() {
        let node = MemorySource::new().file("/proc/cmdline", "quiet iommu=on iommu=pt\n");
        let facts = Facts::read(&node);
        assert_eq!(facts.argument("iommu"), Ok("pt"));
        assert_eq!(facts.argument("quiet"), Ok(""));
        assert_eq!(facts.argument("amd_iommu"), Err(Absence::Missing));
    }

    #[test]
    fn nvml_reports_what_cuda_does_not() {
        let gpu = example::GPUS[2];
        let of_nvml = format!(r#"{{"devices":[{{"pci":"0000{gpu}","compute_mode":3}}]}}"#);
        let node = example::healthy().file(virtual_path::NVML_DEVICES, of_nvml);
        let facts = Facts::read(&node);
        let mode = |gpu: &str| facts.of_gpu(gpu.parse().unwrap(), |it| it.compute_mode);
        assert_eq!(mode(gpu), Ok((3, Library::Nvml)));
        assert_eq!(mode(example::GPUS[0]), Err(Absence::Missing));
        let cuda = format!(r#"{{"devices":[{{"pci":"{gpu}","compute_mode":0}}]}}"#);
        let facts = Facts::read(&node.file(virtual_path::CUDA_DEVICES, cuda));
        let mode = facts.of_gpu(gpu.parse().unwrap(), |it| it.compute_mode);
        assert_eq!(mode, Ok((0, Library::Cuda)));
    }

    #[test]
    fn facts_of_an_unread_node_are_not_collected() {
        let facts = Facts::read(&MemorySource::partial());
        assert_eq!(facts.machine, Err(Absence::NotCollected));
        assert_eq!(facts.module("ib_core"), Err(Absence::NotCollected));
        assert_eq!(facts.container, Err(Absence::NotCollected));
    }
}
