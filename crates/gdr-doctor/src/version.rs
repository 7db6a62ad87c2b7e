//! The versions of the kernel and of NVIDIA's kernel driver.

use gdr_node::{Absence, Datum, Source};

/// The version of a kernel or a driver: its leading numbers.
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

    /// Whether it is at least a version.
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

impl NvidiaDriver {
    /// Reads the version and the flavour of the loaded driver.
    pub(crate) fn read(source: &dyn Source) -> Datum<Self> {
        let text = source.text("/proc/driver/nvidia/version")?;
        let flavour = if text.contains("Open Kernel Module") {
            Flavour::Open
        } else {
            Flavour::Proprietary
        };
        let first = text.lines().next().unwrap_or_default();
        let version = Version::find(first).ok_or(Absence::Missing)?;
        Ok(Self { version, flavour })
    }
}

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
        assert_eq!(open.flavour, Flavour::Open);
        assert_eq!(open.to_string(), "580.95.05");
        let closed = of("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu\n");
        assert_eq!(closed.flavour, Flavour::Proprietary);
        assert!(closed.version.is_at_least(&[535]) && !closed.version.is_at_least(&[535, 130]));
    }
}
