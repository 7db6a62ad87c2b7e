//! What every report says of the machine it was made on.

use std::fs;

use gdr_copy::Pinned;
use gdr_cuda::{DriverKind, Gpu};
use serde::{Deserialize, Serialize};

use crate::site::Site;

/// The name and version of a report's layout: the first two fields of its JSON.
///
/// The version grows when a field changes its meaning or goes away; new fields may appear
/// without.
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

/// What a report is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// No hardware was involved: the figures say nothing of any GPU.
    pub simulated: bool,
    /// The backend, by the name that `GDR_BACKEND` takes; `none` where none works.
    pub backend: String,
    /// How the memory was reached; absent where nothing could be pinned.
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
    /// Of `site`, where memory is reached as `pinned` is.
    pub fn new(site: &Site, pinned: Option<&Pinned>) -> Self {
        Self {
            backend: site.context().backend().name().to_owned(),
            route: pinned.map(|pinned| pinned.route().to_string()),
            ..Self::without_backend(site.gpu())
        }
    }

    /// Of `gpu`, whose memory no backend maps.
    pub fn without_backend(gpu: &Gpu) -> Self {
        let (info, driver) = (gpu.info(), gpu.driver());
        let simulated = driver.kind() == DriverKind::Simulated;
        Self {
            simulated,
            backend: "none".to_owned(),
            route: None,
            gpu: info.name.clone(),
            pci: info.bdf.to_string(),
            cuda: driver.cuda_version().to_string(),
            // A simulated run owes nothing to a driver that happens to be loaded.
            driver: if simulated { None } else { driver_version() },
        }
    }
}

/// The version of the NVIDIA kernel driver that is loaded, e.g. `580.142`.
pub fn driver_version() -> Option<String> {
    let text = fs::read_to_string("/sys/module/nvidia/version").ok();
    let version = text
        .map(|text| text.trim().to_owned())
        .filter(|text| !text.is_empty());
    version.or_else(|| {
        version_in(&fs::read_to_string("/proc/driver/nvidia/version").ok()?).map(str::to_owned)
    })
}

/// The version in the text of `/proc/driver/nvidia/version`: the first word of its first line
/// that looks like one.
fn version_in(text: &str) -> Option<&str> {
    let numbers =
        |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    text.lines().next()?.split_whitespace().find(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_names_its_version_in_either_flavor() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.142  Release \
                    Build  (dvs-builder@U22)\nGCC version:  gcc version 12.2.0\n";
        assert_eq!(version_in(open), Some("580.142"));
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n";
        assert_eq!(version_in(closed), Some("535.104.05"));
        assert_eq!(version_in("nothing of the kind\nGCC 12.2.0"), None);
    }
}
