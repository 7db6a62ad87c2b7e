//! What every report says about the machine.

use std::fs;

use gdr_copy::Pinned;
pub use gdr_copy::driver_version;
use gdr_cuda::DriverKind;
use serde::{Deserialize, Serialize};

use crate::bench_target::BenchTarget;

/// Name and version of a report's layout: the first two fields of its JSON.
///
/// The version is raised if a field changes its meaning or is removed, but not if one is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Schema {
    /// e.g. `gdr.copylat`.
    pub schema: &'static str,
    /// Of that schema.
    pub version: u32,
}

impl Schema {
    /// Returns the first version of `schema`.
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
    /// The CPUs that it may use, if it chose them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuPlacement>,
}

/// The CPUs of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuPlacement {
    /// As the kernel writes lists of CPUs: `0-15,32-47`.
    pub list: String,
    /// Why these CPUs; `None` if none is nearer than another.
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

/// The machine and the mapping of a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// Whether the GPU was simulated. If so, the figures do not describe hardware.
    pub simulated: bool,
    /// The backend, by its name in `GDR_BACKEND`; `none` if none works.
    pub backend: String,
    /// How the memory is mapped; `None` if nothing was pinned.
    pub route: Option<String>,
    /// The GPU's name.
    pub gpu: String,
    /// The GPU's PCI address.
    pub pci: String,
    /// The CUDA version of the driver.
    pub cuda: String,
    /// Version of the NVIDIA kernel driver, if one is loaded.
    pub driver: Option<String>,
}

impl Subject {
    /// Describes `target`, whose memory is mapped in the same way as `pinned`.
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
