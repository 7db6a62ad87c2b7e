//! NVLinks between GPUs, which NVIDIA's management library (NVML) reports and sysfs does not.

use std::collections::BTreeMap;

use gdr_pci::Bdf;

use crate::probe::{GpuFacts, NvLinkKind, Probe};
use crate::source::{Source, virtual_path};

/// A bonded set of NVLinks between two GPUs, direct or through NVSwitches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvLinks {
    /// The GPU with the lower address.
    pub a: Bdf,
    /// The GPU with the higher address.
    pub b: Bdf,
    /// The number of links.
    pub count: u8,
}

/// Returns the NVLinks of a node; empty if NVML did not report them.
///
/// For directly linked GPUs, the number counts their direct links. Two GPUs without direct links that both have links
/// to switches get the smaller of their numbers, as in nvidia-smi.
pub(crate) fn read(source: &dyn Source) -> Vec<NvLinks> {
    Probe::read(source, virtual_path::NVML_DEVICES).map_or_else(|_| Vec::new(), |it| between(&it))
}

/// The most GPUs read; machines have fewer.
const MOST: usize = 64;

fn between(answer: &Probe<GpuFacts>) -> Vec<NvLinks> {
    let gpus: BTreeMap<Bdf, &GpuFacts> = (answer.devices.iter())
        .filter_map(|device| Some((device.pci.parse().ok()?, device)))
        .take(MOST)
        .collect();
    let to_switches = |device: &GpuFacts| {
        (device.nvlinks.iter())
            .filter(|link| link.kind == NvLinkKind::Switch)
            .count()
    };
    let straight = |device: &GpuFacts, to: Bdf| {
        (device.nvlinks.iter())
            .filter(|link| link.kind == NvLinkKind::Gpu)
            .filter(|link| link.pci.as_ref().and_then(|pci| pci.parse().ok()) == Some(to))
            .count()
    };
    let mut found = Vec::new();
    for (&a, first) in &gpus {
        for (&b, second) in gpus.range(a..).skip(1) {
            let count = match straight(first, b).max(straight(second, a)) {
                0 => to_switches(first).min(to_switches(second)),
                count => count,
            };
            if let Ok(count @ 1..) = u8::try_from(count) {
                found.push(NvLinks { a, b, count });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemorySource;

    fn links(devices: &str) -> Vec<NvLinks> {
        let text = format!("{{\"devices\":[{devices}]}}");
        read(&MemorySource::new().file(virtual_path::NVML_DEVICES, text))
    }

    #[test]
    fn links_over_switches_count_for_every_pair() {
        let gpu = |at: &str| {
            let links = vec!["{\"kind\":\"switch\"}"; 18].join(",");
            format!("{{\"pci\":\"{at}\",\"nvlinks\":[{links}]}}")
        };
        let found = links(&[gpu("0:1:0.0"), gpu("0:2:0.0"), gpu("0:3:0.0")].join(","));
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|pair| pair.count == 18));
    }

    #[test]
    fn direct_links_count_for_their_pair_only() {
        let found = links(
            "{\"pci\":\"0000:01:00.0\",\"nvlinks\":[{\"kind\":\"gpu\",\"pci\":\"0000:02:00.0\"},\
             {\"kind\":\"gpu\",\"pci\":\"0000:02:00.0\"},{\"kind\":\"other\"}]},\
             {\"pci\":\"0000:02:00.0\"},{\"pci\":\"0000:03:00.0\",\"nvlinks\":[]}",
        );
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].count, found[0].b.to_string().as_str()),
            (2, "0000:02:00.0")
        );
    }

    #[test]
    fn garbage_has_no_links() {
        assert!(links("{\"pci\":7}").is_empty());
        assert!(links("{\"pci\":\"x\"}").is_empty());
        assert!(read(&MemorySource::partial()).is_empty());
    }
}
