//! What every report contains about the machine.

use std::fs;

use gdr_copy::Pinned;
pub use gdr_copy::driver_version;
use gdr_cuda::DriverKind;
use serde::{Deserialize, Serialize};

use crate::bench_target::BenchTarget;

/// The name and version of a report's layout: the first two fields of its JSON.
///
/// The version is raised when a field changes its meaning or is removed, not when one is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Schema {
    /// e.g. `gdr.copylat`.
    pub schema: &'static str,
    /// Of that schema.
    pub version: u32,
}

impl Schema {
    /// The first version of `schema`.
    pub const fn first(schema: &'static str) -> Self {
        Self { schema, version: 1 }
    }
}

/// A process that takes part in a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessFacts {
    /// The name of its host.
    pub host: Option<String>,
    /// Its version of gdr.
    pub gdr: String,
    /// The CPUs that it may use, where it chose them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuPlacement>,
}

/// The CPUs of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuPlacement {
    /// As the kernel writes lists of CPUs: `0-15,32-47`.
    pub list: String,
    /// Why these; `None` where none is nearer than another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl ProcessFacts {
    /// Describes this process.
    pub(crate) fn of_this_one() -> Self {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").ok();
        Self {
            host: host
                .map(|name| name.trim().to_owned())
                .filter(|name| !name.is_empty()),
            gdr: env!("CARGO_PKG_VERSION").to_owned(),
            cpus: None,
        }
    }
}

/// The machine and the mapping that a report is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// Whether the GPU was simulated; the figures then describe no hardware.
    pub simulated: bool,
    /// The backend, by the name that `GDR_BACKEND` takes; `none` where none works.
    pub backend: String,
    /// How the memory is mapped; `None` where nothing was pinned.
    pub route: Option<String>,
    /// The GPU's name.
    pub gpu: String,
    /// The GPU's PCI address.
    pub pci: String,
    /// The CUDA version that the driver offers.
    pub cuda: String,
    /// The NVIDIA kernel driver's version, where one is loaded.
    pub driver: Option<String>,
}

impl Subject {
    /// Describes `target`, whose memory is mapped like `pinned`.
    pub fn new(target: &BenchTarget, pinned: Option<&Pinned>) -> Self {
        let (info, driver) = (target.gpu().info(), target.gpu().driver());
        let backend = match target.context() {
            Ok(context) => context.backend().name(),
            Err(_) => "none",
        };
        let simulated = driver.kind() == DriverKind::Simulated;
        Self {
            simulated,
            backend: backend.to_owned(),
            route: pinned.map(|pinned| pinned.route().to_string()),
            gpu: info.name.clone(),
            pci: info.bdf.to_string(),
            cuda: driver.cuda_version().to_string(),
            // A simulated GPU does not use the driver, even if one is loaded.
            driver: if simulated { None } else { driver_version() },
        }
    }
}
