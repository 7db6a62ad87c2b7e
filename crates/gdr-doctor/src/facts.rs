//! Facts about a node that several checks need.

use gdr_node::{Absence, Datum, DatumExt, Source};

use crate::probes::{CudaProbe, VerbsProbe};

/// The version of a kernel or a driver: as many numbers as it begins with.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub Vec<u32>);

impl Version {
    /// The first version number in a text: `580.159.04` of "NVRM version: … 580.159.04 Release".
    pub fn find(text: &str) -> Option<Self> {
        text.split(|c: char| c.is_whitespace() || c == '-' || c == '~' || c == '+')
            .find_map(|word| {
                let numbers: Option<Vec<u32>> =
                    word.split('.').map(|part| part.parse().ok()).collect();
                numbers.filter(|numbers| numbers.len() > 1).map(Self)
            })
    }

    /// Whether it is this version or a later one.
    pub fn is_at_least(&self, numbers: &[u32]) -> bool {
        self.0.as_slice() >= numbers
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&numbers.join("."))
    }
}

/// Which of NVIDIA's kernel modules is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// The open one, which exports dma-buf.
    Open,
    /// The proprietary one, which does not.
    Proprietary,
}

impl std::fmt::Display for Flavour {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Proprietary => "proprietary",
        })
    }
}

/// NVIDIA's kernel driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvidiaDriver {
    /// Its version.
    pub version: Version,
    /// Which one.
    pub flavour: Flavour,
}

impl std::fmt::Display for NvidiaDriver {
    /// Its version as NVIDIA writes it, with two digits in the third place: `580.95.05`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (place, number) in self.version.0.iter().enumerate() {
            match place {
                0 => write!(f, "{number}")?,
                2 => write!(f, ".{number:02}")?,
                _ => write!(f, ".{number}")?,
            }
        }
        Ok(())
    }
}

/// What the machine is, seen from inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// No hypervisor is to be seen.
    Bare,
    /// A guest of a hypervisor.
    Virtual,
}

/// Whether this is a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// Not to be seen from here.
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
    /// A guest, or not.
    pub machine: Datum<Machine>,
    /// A container, or not.
    pub container: Datum<Container>,
    /// The kernel's command line, by argument.
    pub arguments: Datum<Vec<String>>,
    /// The modules of `/proc/modules`: name, and who uses it.
    pub modules: Datum<Vec<Module>>,
    /// What the CUDA driver answered.
    pub cuda: Datum<CudaProbe>,
    /// What libibverbs answered.
    pub verbs: Datum<VerbsProbe>,
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
    /// Reads them.
    pub fn read(source: &dyn Source) -> Self {
        Self {
            kernel: source
                .text("/proc/sys/kernel/osrelease")
                .and_then(|text| Version::find(&text).ok_or(Absence::Missing)),
            nvidia: nvidia(source),
            machine: source.text("/proc/cpuinfo").map(|text| {
                let guest = text.lines().any(|line| {
                    line.starts_with("flags") && line.split_whitespace().any(|f| f == "hypervisor")
                });
                if guest {
                    Machine::Virtual
                } else {
                    Machine::Bare
                }
            }),
            container: container(source),
            arguments: source
                .text("/proc/cmdline")
                .map(|text| text.split_whitespace().map(str::to_owned).collect()),
            modules: source.text("/proc/modules").map(|text| modules(&text)),
            cuda: CudaProbe::read(source),
            verbs: VerbsProbe::read(source),
        }
    }

    /// A module of `/proc/modules`.
    pub fn module(&self, name: &str) -> Datum<&Module> {
        self.modules.by_ref().and_then(|all| {
            all.iter()
                .find(|module| module.name == name)
                .ok_or(Absence::Missing)
        })
    }

    /// What an argument of the kernel's command line says: `on` of `intel_iommu=on`. Of one that
    /// stands there several times, the last.
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

fn nvidia(source: &dyn Source) -> Datum<NvidiaDriver> {
    source.text("/proc/driver/nvidia/version").and_then(|text| {
        let flavour = if text.contains("Open Kernel Module") {
            Flavour::Open
        } else {
            Flavour::Proprietary
        };
        let first = text.lines().next().unwrap_or_default();
        Version::find(first)
            .map(|version| NvidiaDriver { version, flavour })
            .ok_or(Absence::Missing)
    })
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
    use gdr_node::MemorySource;

    use super::*;

    #[test]
    fn the_driver_and_its_flavour_are_distinguished() {
        let of = |text: &str| {
            let node = MemorySource::new().file("/proc/driver/nvidia/version", text);
            Facts::read(&node).nvidia.unwrap()
        };
        let open = of(
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  \
                       Release Build  (dvs-builder@x)  Tue\nGCC version:  gcc 12.2.0\n",
        );
        assert_eq!(open.flavour, Flavour::Open);
        assert_eq!(open.to_string(), "580.95.05");
        let closed = of("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu\n");
        assert_eq!(closed.flavour, Flavour::Proprietary);
        assert!(closed.version.is_at_least(&[535]) && !closed.version.is_at_least(&[535, 130]));
    }

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
    fn the_last_argument_of_a_name_counts() {
        let node = MemorySource::new().file("/proc/cmdline", "quiet iommu=on iommu=pt\n");
        let facts = Facts::read(&node);
        assert_eq!(facts.argument("iommu"), Ok("pt"));
        assert_eq!(facts.argument("quiet"), Ok(""));
        assert_eq!(facts.argument("amd_iommu"), Err(Absence::Missing));
    }

    #[test]
    fn nothing_is_claimed_of_a_node_that_was_not_read() {
        let facts = Facts::read(&MemorySource::partial());
        assert_eq!(facts.machine, Err(Absence::NotCollected));
        assert_eq!(facts.module("ib_core"), Err(Absence::NotCollected));
        assert_eq!(facts.container, Err(Absence::NotCollected));
    }
}
