//! Facts about each GPU from NVIDIA's management library (NVML).

use std::fs;

use gdr_node::{Absence, Bdf, Datum, GpuFacts, GpuProcess, NvLinkEnd, NvLinkKind, Probe};
use nvml_wrapper::Device;
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::ComputeMode;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::nv_link::NvLink;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

/// Maximum number of NVLinks of a GPU of any generation.
const LINKS: u32 = 36;

/// IBM's PCI vendor ID.
const IBM: u32 = 0x1014;

pub(super) fn devices() -> Datum<Vec<u8>> {
    match ask() {
        Ok(devices) => Probe::of(devices).to_file(),
        Err(NvmlError::LibloadingError(_)) => Err(Absence::Missing),
        Err(error) => Probe::<GpuFacts>::failed(error.to_string()).to_file(),
    }
}

fn ask() -> Result<Vec<GpuFacts>, NvmlError> {
    let nvml = Nvml::init()?;
    let count = nvml.device_count()?;
    let mut gpus = Vec::new();
    for index in 0..count {
        let device = nvml.device_by_index(index)?;
        // A lost GPU must not hide the others.
        if let Some(at) = device.pci_info().ok().and_then(|pci| address(&pci.bus_id)) {
            gpus.push((at, device));
        }
    }
    let known: Vec<Bdf> = gpus.iter().map(|(at, _)| *at).collect();
    Ok(gpus
        .iter()
        .map(|(at, device)| {
            let links = (0..LINKS)
                .map_while(|link| {
                    let link = device.link_wrapper_for(link);
                    // A number beyond the last link is an invalid argument.
                    let active = link.is_active().ok()?;
                    Some((active, link))
                })
                .filter(|(active, _)| *active)
                .map(|(_, link)| remote(&link, &known));
            GpuFacts {
                pci: at.to_string(),
                compute_mode: device.compute_mode().ok().map(mode),
                ecc_enabled: (device.is_ecc_enabled().ok()).map(|ecc| ecc.currently_enabled),
                nvlinks: links.collect(),
                processes: processes(device),
                ..GpuFacts::default()
            }
        })
        .collect())
}

/// Returns the processes that use a GPU, for computing and for graphics.
fn processes(device: &Device<'_>) -> Option<Vec<GpuProcess>> {
    let mut all = device.running_compute_processes().ok()?;
    all.extend(device.running_graphics_processes().unwrap_or_default());
    all.sort_unstable_by_key(|process| process.pid);
    all.dedup_by_key(|process| process.pid);
    let of = |pid: u32| fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    let process = |process: ProcessInfo| GpuProcess {
        pid: process.pid,
        name: of(process.pid).map(|name| name.trim_end().to_owned()),
        memory: match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        },
    };
    Some(all.into_iter().map(process).collect())
}

/// Returns the compute mode as CUDA numbers it.
fn mode(mode: ComputeMode) -> u32 {
    match mode {
        ComputeMode::Default => 0,
        ComputeMode::ExclusiveThread => 1,
        ComputeMode::Prohibited => 2,
        ComputeMode::ExclusiveProcess => 3,
    }
}

/// Returns the other end of a link: one of the GPUs, or a switch. A switch that is not a PCI function of this machine,
/// in a guest or below another host, has no address.
fn remote(link: &NvLink<'_, '_>, gpus: &[Bdf]) -> NvLinkEnd {
    let pci = link.remote_pci_info().ok();
    let at = pci.as_ref().and_then(|pci| address(&pci.bus_id));
    let vendor = pci.map(|pci| pci.pci_device_id & 0xffff);
    let kind = match at {
        Some(at) if gpus.contains(&at) => NvLinkKind::Gpu,
        // POWER processors have their own links.
        _ if vendor == Some(IBM) => NvLinkKind::Other,
        _ => NvLinkKind::Switch,
    };
    NvLinkEnd {
        kind,
        pci: at.map(|at| at.to_string()),
    }
}

/// Parses a PCI address. NVML writes the domain with eight digits.
fn address(text: &str) -> Option<Bdf> {
    text.parse().ok()
}
