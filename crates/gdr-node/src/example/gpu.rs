//! The example's GPUs: H100 with 80 GB, below switches.

use gdr_pci::Bdf;

use super::GPUS;
use super::config_builder::{ConfigBuilder, Ids, Port};
use super::function::{Attributes, BEST, put as put_function};
use crate::pci::ExtendedId;
use crate::probe::{GpuFacts, Probe};
use crate::source::MemorySource;

/// H100 PCIe.
const H100: Ids = Ids {
    vendor: 0x10de,
    device: 0x2331,
    class: 0x030200,
    subsystem: (0x10de, 0x1626),
};

/// The driver version, as found in the module's files and its library names.
pub(super) const DRIVER: &str = "580.95.05";

/// Adds the GPU with this number.
pub(super) fn put(
    node: MemorySource,
    number: usize,
    above: &str,
    numa: u32,
    iommu_group: u32,
) -> MemorySource {
    let Ok(bdf) = GPUS[number].parse::<Bdf>() else {
        return node;
    };
    let mut space = ConfigBuilder::new(H100, Port::Endpoint);
    space.link_capable(BEST.speed, BEST.width);
    // BAR 2: 64 MiB to 128 GiB, now 128 GiB (1 MiB << 17).
    let rebar = space.extended(ExtendedId::RESIZABLE_BAR, 1, 12);
    space.put_word(rebar + 4, 0xfff << (6 + 4));
    space.put_word(rebar + 8, 17 << 8 | 1 << 5 | 2);
    // 64-bit prefetchable ranges: 16 MiB of registers, 128 GiB of memory, 32 MiB.
    let base = 0x2000_0000_0000_u64 + ((number as u64) << 38);
    let registers = base + (1 << 37);
    let range = |start: u64, size: u64| {
        let end = start + size - 1;
        format!("{start:#018x} {end:#018x} 0x000000000014220c\n")
    };
    let unused = format!("{0:#018x} {0:#018x} {0:#018x}\n", 0);
    let resource = [
        &range(registers, 16 << 20),
        &unused,
        &range(base, 128 << 30),
        &unused,
        &range(registers + (64 << 20), 32 << 20),
        &unused,
    ]
    .map(String::as_str)
    .concat();
    let about = Attributes {
        above,
        driver: "nvidia",
        numa,
        iommu_group,
        resource: &resource,
    };
    put_function(node, bdf, space, &about)
        .file(
            &format!("/proc/driver/nvidia/gpus/{bdf}/information"),
            format!(
                "Model: \t\t NVIDIA H100 PCIe\n\
                 IRQ:   \t\t {}\n\
                 GPU UUID: \t {}\n\
                 Video BIOS: \t 96.00.61.00.01\n\
                 Bus Type: \t PCIe\n\
                 DMA Size: \t 52 bits\n\
                 DMA Mask: \t 0xfffffffffffff\n\
                 Bus Location: \t {bdf}\n\
                 Device Minor: \t {number}\n\
                 GPU Firmware: \t {DRIVER}\n\
                 GPU Excluded:\t No\n",
                400 + number,
                uuid(number),
            ),
        )
        .file(
            &format!("/proc/driver/nvidia/capabilities/gpu{number}/mig/monitor"),
            "DeviceFileMinor: 2\nDeviceFileMode: 292\nDeviceFileModify: 1\n",
        )
}

pub(super) fn uuid(number: usize) -> String {
    format!("GPU-6d1c3a52-8e0f-4b7a-9c15-2f40b7e6a1{number:02x}")
}

/// Returns the CUDA facts of the GPUs.
pub(super) fn cuda_devices() -> Vec<u8> {
    let device = |(number, bdf): (usize, &str)| GpuFacts {
        ordinal: u32::try_from(number).ok(),
        name: Some("NVIDIA H100 PCIe".to_owned()),
        pci: bdf.to_owned(),
        uuid: Some(uuid(number)),
        compute_capability: Some("9.0".to_owned()),
        total_memory: Some(85_017_493_504),
        gpu_direct_rdma_supported: Some(true),
        dma_buf_supported: Some(true),
        ..GpuFacts::default()
    };
    let probe = Probe {
        driver_version: Some("13.0".to_owned()),
        ..Probe::of((0..).zip(GPUS).map(device).collect())
    };
    probe.to_file().unwrap_or_default()
}
