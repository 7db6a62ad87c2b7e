//! The subject of a report and how the report was made.

use serde::Serialize;

pub use crate::context::Capture;
use crate::context::Context;
use crate::gpudirect_support::{self, nic_model};
use crate::process::Process;
use crate::timestamp::Timestamp;
use crate::version::NvidiaDriver;

/// The subject of a report and how the report was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct About {
    /// When the report was made; `None` if the caller did not give the time.
    pub made: Option<Timestamp>,
    /// The file that it was made from, and when that was collected if the file has the time; `None`
    /// for the node itself.
    pub capture: Option<Capture>,
    /// The version of gdr that made it.
    pub gdr: &'static str,
    /// The release of the node's kernel.
    pub kernel: Option<String>,
    /// The version of NVIDIA's driver, and whether its modules are open.
    pub driver: Option<String>,
    /// Whether the collecting process ran as root, which can read more; `None` if it is not known.
    pub root: Option<bool>,
    /// The GPUs, in their order.
    pub gpus: Vec<Model>,
    /// The RDMA NICs, in their order.
    pub nics: Vec<Model>,
}

/// A device and its model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Model {
    /// `GPU0`, `mlx5_0`.
    pub name: String,
    /// Its PCI address.
    pub pci: String,
    /// Its model, as its driver or a listing names it.
    pub model: Option<String>,
}

impl About {
    pub(crate) fn read(context: &Context<'_>) -> Self {
        let gpus = context.gpus().map(|gpu| Model {
            name: gpu.index.to_string(),
            pci: gpu.bdf.to_string(),
            model: gpudirect_support::model(context, gpu.bdf),
        });
        let nics = context.nics().iter().map(|nic| Model {
            name: nic.name.clone(),
            pci: nic.bdf.to_string(),
            model: nic_model(context, nic),
        });
        Self {
            made: context.made,
            capture: context.capture.clone(),
            gdr: env!("CARGO_PKG_VERSION"),
            kernel: context
                .text("/proc/sys/kernel/osrelease")
                .ok()
                .filter(|release| !release.is_empty()),
            driver: (context.facts().nvidia.as_ref().ok()).map(NvidiaDriver::described),
            root: Process::read(context.source).is_root().ok(),
            gpus: gpus.collect(),
            nics: nics.collect(),
        }
    }

    /// Returns the report in a few lines for people: the node's software, its devices, and how it was looked at. What
    /// is not known is left out.
    pub fn lines(&self) -> Vec<String> {
        let software = [
            self.kernel.as_ref().map(|it| format!("kernel {it}")),
            self.driver.as_ref().map(|it| format!("NVIDIA driver {it}")),
        ];
        let devices = [
            some(&self.gpus, "GPU", "GPUs"),
            some(&self.nics, "NIC", "NICs"),
        ];
        let looked = [
            Some(format!("gdr {}", self.gdr)),
            self.made.map(|made| made.to_string()),
            self.capture.as_ref().map(ToString::to_string),
            self.root.map(|root| {
                let who = if root { "root: yes" } else { "root: no" };
                who.to_owned()
            }),
        ];
        let [software, devices, looked] = [software.to_vec(), devices.to_vec(), looked.to_vec()]
            .map(|parts| parts.into_iter().flatten().collect::<Vec<_>>().join("; "));
        [software, devices, looked]
            .into_iter()
            .filter(|line| !line.is_empty())
            .collect()
    }
}

/// `8 GPUs: NVIDIA H100 80GB HBM3`, `3 NICs: 2 MT4129, 1 of unknown model`.
fn some(devices: &[Model], one: &str, many: &str) -> Option<String> {
    if devices.is_empty() {
        return None;
    }
    let mut models: Vec<(&str, usize)> = Vec::new();
    for device in devices {
        let model = device.model.as_deref().unwrap_or("of unknown model");
        match models.iter_mut().find(|(known, _)| *known == model) {
            Some((_, count)) => *count += 1,
            None => models.push((model, 1)),
        }
    }
    let names: Vec<String> = match models.as_slice() {
        [(model, _)] => vec![(*model).to_owned()],
        models => (models.iter())
            .map(|(model, count)| format!("{count} {model}"))
            .collect(),
    };
    let kind = if devices.len() == 1 { one } else { many };
    Some(format!("{} {kind}: {}", devices.len(), names.join(", ")))
}

#[cfg(test)]
mod tests {
    use gdr_node::{Inventory, MemorySource, example};

    use super::*;

    #[test]
    fn a_report_names_the_software_the_devices_and_the_look() {
        let node = example::node();
        let inventory = Inventory::read(&node);
        let context = Context::new(&node, &inventory).made(Timestamp(1_795_335_300));
        let lines = About::read(&context).lines();
        assert!(
            lines[0].contains("NVIDIA driver 580.95.05 (open)"),
            "{lines:?}"
        );
        assert!(lines[1].starts_with("8 GPUs: NVIDIA H100"), "{lines:?}");
        assert!(lines[1].contains("10 NICs: "), "{lines:?}");
        assert!(lines[2].contains("2026-11-22T08:15:00Z"), "{lines:?}");
        assert!(lines[2].contains("root: "), "{lines:?}");
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let node = MemorySource::partial();
        let inventory = Inventory::read(&node);
        let capture = Capture {
            file: "lspci.txt".to_owned(),
            collected: None,
        };
        let context = Context::new(&node, &inventory).captured(capture);
        let lines = About::read(&context).lines();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].ends_with("; from lspci.txt"), "{lines:?}");
    }
}
