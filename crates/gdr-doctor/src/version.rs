//! The versions of the kernel and of NVIDIA's kernel driver.

use gdr_node::kernel_log::records;
use gdr_node::{Absence, Datum, GpuFacts, Probe, Source, virtual_path};

/// The version of a kernel or a driver: its leading numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub Vec<u32>);

impl Version {
    /// Returns the first version number in a text: `580.159.04` of "NVRM version: … 580.159.04 Release".
    pub fn find(text: &str) -> Option<Self> {
        text.split(|c: char| c.is_whitespace() || c == '-' || c == '~' || c == '+')
            .find_map(|word| {
                let numbers: Option<Vec<u32>> =
                    word.split('.').map(|part| part.parse().ok()).collect();
                numbers.filter(|numbers| numbers.len() > 1).map(Self)
            })
    }

    /// Returns whether it is at least a version.
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

/// The flavour of NVIDIA's kernel modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// The open modules, which export dma-buf.
    Open,
    /// The proprietary modules, which do not.
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
    /// The flavour of its modules.
    pub flavour: Datum<Flavour>,
}

impl std::fmt::Display for NvidiaDriver {
    /// Writes the version as NVIDIA does, with two digits in the third place: `580.95.05`.
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

impl NvidiaDriver {
    /// Reads the version and the flavour of the loaded driver: from `/proc`, or from what the driver
    /// logged when it was loaded, or from nvidia-smi, which has no flavour.
    pub(crate) fn read(source: &dyn Source) -> Datum<Self> {
        match source.text("/proc/driver/nvidia/version") {
            Ok(text) => Self::parse(text.lines().next().unwrap_or_default()),
            Err(Absence::NotCollected) => {
                let logged = || {
                    let log = source.text(virtual_path::KERNEL_LOG).ok()?;
                    let loaded = records(&log).filter(|record| record.text.starts_with(LOADING));
                    Self::parse(&loaded.last()?.text).ok()
                };
                let reported = || {
                    let answer =
                        Probe::<GpuFacts>::read(source, virtual_path::NVML_DEVICES).ok()?;
                    Some(Self {
                        version: Version::find(&answer.kernel_driver?)?,
                        flavour: Err(Absence::NotCollected),
                    })
                };
                logged().or_else(reported).ok_or(Absence::NotCollected)
            }
            Err(absence) => Err(absence),
        }
    }

    /// `NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build`
    fn parse(line: &str) -> Datum<Self> {
        let flavour = if line.contains("Open Kernel Module") {
            Flavour::Open
        } else {
            Flavour::Proprietary
        };
        let version = Version::find(line).ok_or(Absence::Missing)?;
        Ok(Self {
            version,
            flavour: Ok(flavour),
        })
    }

    /// Returns its version and its flavour, if that is known: `580.95.05 (open)`.
    pub(crate) fn described(&self) -> String {
        match self.flavour {
            Ok(flavour) => format!("{self} ({flavour})"),
            Err(_) => self.to_string(),
        }
    }
}

/// How the driver's message begins when it is loaded.
const LOADING: &str = "NVRM: loading NVIDIA UNIX";

#[cfg(test)]
mod tests {
    use gdr_node::MemorySource;

    use super::*;

    #[test]
    fn the_driver_and_its_flavour_are_distinguished() {
        let of = |text: &str| {
            let node = MemorySource::new().file("/proc/driver/nvidia/version", text);
            NvidiaDriver::read(&node).unwrap()
        };
        let open = of(
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  \
                       Release Build  (dvs-builder@x)  Tue\nGCC version:  gcc 12.2.0\n",
        );
        assert_eq!(open.flavour, Ok(Flavour::Open));
        assert_eq!(open.to_string(), "580.95.05");
        let logged = "[ 2.0] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86.15\n";
        let node = MemorySource::partial().file(virtual_path::KERNEL_LOG, logged);
        assert_eq!(NvidiaDriver::read(&node).unwrap().to_string(), "570.86.15");
        assert!(NvidiaDriver::read(&MemorySource::partial()).is_err());
        let closed = of("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu\n");
        assert_eq!(closed.flavour, Ok(Flavour::Proprietary));
        assert!(closed.version.is_at_least(&[535]) && !closed.version.is_at_least(&[535, 130]));
    }
}
