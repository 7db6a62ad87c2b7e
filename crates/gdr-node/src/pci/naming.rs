//! Classifying functions by their names in the PCI ID database, for captures without numeric IDs.
//!
//! A name is decisive only if it contains decisive words. A product unknown to the machine's database (`Device 1021`)
//! is classified by its number, and stays unclassified if the number is unknown, too.

use super::identity::{Class, DeviceId, VendorId};

/// Words in the names of network cards.
const NETWORK: [&str; 22] = [
    "Ethernet",
    "Network",
    "NetXtreme",
    "InfiniBand",
    "Infiniband",
    "Omni-Path",
    "Elastic Fabric Adapter",
    "RDMA",
    "SmartNIC",
    "gVNIC",
    "HFI",
    "Unified Wire",
    "FastLinQ",
    "GbE",
    "Wireless",
    "Wi-Fi",
    "E810",
    "E830",
    "X710",
    "BCM57",
    "virtual NIC",
    "ConnectX",
];

/// Words in the names of everything that is neither a GPU nor a network card.
const OTHER: [&str; 58] = [
    "Bridge",
    "bridge",
    "Root Port",
    "Root Complex",
    "PCI Express Port",
    "PCIe Port",
    "Switch",
    "switch",
    "SATA",
    "AHCI",
    "NVMe",
    "SSD",
    "RAID",
    "SAS",
    "IDE",
    "USB",
    "xHCI",
    "XHCI",
    "UCSI",
    "Audio",
    "audio",
    "SMBus",
    "LPC",
    "eSPI",
    "ISA",
    "ACPI",
    "VGA",
    "Graphics",
    "Virtio",
    "QEMU",
    "DRAM",
    "Memory",
    "memory",
    "IOMMU",
    "VT-d",
    "SPI",
    "Thermal",
    "HECI",
    "MEI",
    "Management Engine",
    "PMC",
    "Encryption",
    "Crypto",
    "UPI",
    "Ubox",
    "RAS",
    "Performance",
    "Dummy",
    "Serial",
    "I/O APIC",
    "Timer",
    "DMA",
    "Volume Management",
    "Data Fabric",
    "Data Streaming",
    "Non-Transparent",
    "Sensor",
    "Flash",
];

fn has(name: &str, words: &[&str]) -> bool {
    words.iter().any(|word| name.contains(word))
}

fn hex(text: &str) -> Option<u16> {
    u16::from_str_radix(text, 16)
        .ok()
        .filter(|_| text.len() == 4)
}

/// Parses a pair of numbers, `10de:2330`.
fn pair(text: &str) -> Option<(VendorId, DeviceId)> {
    let (vendor, device) = text.split_once(':')?;
    Some((VendorId(hex(vendor)?), DeviceId(hex(device)?)))
}

/// Finds the last `[10de:2330]` in a name.
pub(crate) fn ids_in_brackets(name: &str) -> Option<(VendorId, DeviceId)> {
    pair(name.rsplit_once('[')?.1.split_once(']')?.0)
}

/// Returns the vendor and product that a name shows: by bracketed numbers, bare numbers (`10de:2330`, `Device
/// 10de:2330`), or the vendor's name and `Device 2330`.
pub(crate) fn ids(name: &str) -> (Option<VendorId>, Option<DeviceId>) {
    let bare = name.strip_prefix("Device ").unwrap_or(name);
    let bare = bare.split_whitespace().next().unwrap_or_default();
    if let Some((vendor, device)) = ids_in_brackets(name).or_else(|| pair(bare)) {
        return (Some(vendor), Some(device));
    }
    let product = name
        .split_once(" Device ")
        .and_then(|(_, rest)| hex(rest.split([' ', ',']).next()?));
    (VendorId::from_name(name), product.map(DeviceId))
}

/// Infers the class of a function from its number or name, if the capture lacks it.
pub(crate) fn class(
    vendor: Option<VendorId>,
    device: Option<DeviceId>,
    name: &str,
    function: u8,
) -> Option<Class> {
    const NETWORK_CONTROLLER: Class = Class(0x02_0000);
    let unnamed = name.contains("Device") || pair(name).is_some();
    match (vendor, device.filter(|_| unnamed)) {
        (Some(VendorId::NVIDIA), Some(device)) => nvidia(device, function),
        (Some(VendorId::NVIDIA), None) => nvidia_by_name(name, function),
        // pci.ids: adapters and their virtual functions, and the networks of BlueField.
        (Some(VendorId::MELLANOX), Some(DeviceId(0x1000..=0x10ff | 0xa2d0..=0xa2df))) => {
            Some(NETWORK_CONTROLLER)
        }
        (Some(VendorId::MELLANOX), None) => {
            let is_nic = has(
                name,
                &["ConnectX", "Connect-IB", "Ethernet", "InfiniBand", "MT2"],
            );
            let is_part = has(
                name,
                &["Bridge", "DMA", "SoC", "management", "Flash", "Switch"],
            );
            (is_nic && !is_part).then_some(NETWORK_CONTROLLER)
        }
        (Some(vendor), Some(device)) if is_rdma_product(vendor, device) => Some(NETWORK_CONTROLLER),
        // Broadcom's NetXtreme-C, -E and Thor.
        (Some(VendorId::BROADCOM), Some(DeviceId(0x1600..=0x17ff))) => Some(NETWORK_CONTROLLER),
        _ if has(name, &["Omni-Path HFI"]) => Some(Class(0x02_0800)),
        _ => {
            (has(name, &NETWORK) && !has(name, &["Bridge", "Switch"])).then_some(NETWORK_CONTROLLER)
        }
    }
}

/// Returns whether a product other than NVIDIA's is certainly an RDMA NIC, by its number in Linux drivers: Amazon's EFA
/// (`efa`), Alibaba's eRDMA (`erdma`), VMware's (`vmw_pvrdma`), Intel's and Cornelis' Omni-Path (`hfi1`).
pub(crate) fn is_rdma_product(vendor: VendorId, device: DeviceId) -> bool {
    matches!(
        (vendor, device.0),
        (VendorId::AMAZON, 0xefa0..=0xefa3)
            | (VendorId::ALIBABA, 0x107f)
            | (VendorId::VMWARE, 0x0820)
            | (VendorId::INTEL, 0x24f0 | 0x24f1)
    )
}

/// Returns whether a name identifies an RDMA NIC.
pub(crate) fn names_rdma_nic(name: &str) -> bool {
    has(
        name,
        &[
            "Elastic Fabric Adapter",
            "Elastic RDMA",
            "Omni-Path HFI",
            "Paravirtual RDMA",
        ],
    )
}

/// Returns whether a name identifies something that is neither a GPU nor a network card.
pub(crate) fn is_other(name: &str) -> bool {
    has(name, &OTHER) && !has(name, &NETWORK)
}

/// Returns whether a name consists of numbers only.
pub(crate) fn is_number(name: &str) -> bool {
    name.starts_with("Device ") || pair(name.trim()).is_some()
}

/// Classifies NVIDIA's products by number (pci.ids). Only a card's first function is a GPU.
fn nvidia(device: DeviceId, function: u8) -> Option<Class> {
    Some(match device.0 {
        0x1ac0..=0x1ac2 | 0x1af1 | 0x22a0..=0x22af => Class(0x06_8000),
        0x0be2..=0x0beb | 0x0e08..=0x0e1b | 0x0fb0..=0x0fbf | 0x10ef..=0x10ff => Class(0x04_0300),
        0x1ad0..=0x1aef | 0x228b..=0x228f | 0x22ba..=0x22bf | 0x22e8..=0x22ef if function != 0 => {
            Class(0x04_0300)
        }
        // Root ports of Grace and GB10.
        0x22b0..=0x22ff => return None,
        0x1ad0..=0x1aef | 0x228b..=0x228f => return None,
        _ if function != 0 => return None,
        0x1340..=0x3fff => Class(0x03_0200),
        _ => return None,
    })
}

fn nvidia_by_name(name: &str, function: u8) -> Option<Class> {
    match name {
        _ if has(name, &["NVSwitch"]) => Some(Class(0x06_8000)),
        _ if has(name, &["Audio"]) => Some(Class(0x04_0300)),
        _ if has(
            name,
            &["USB", "UCSI", "Bridge", "Tegra", "DMA", "Root Port"],
        ) =>
        {
            None
        }
        _ if function != 0 => None,
        _ => Some(Class(0x03_0200)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classified(name: &str, function: u8) -> Option<u32> {
        let (vendor, device) = ids(name);
        class(vendor, device, name, function).map(|class| class.0 >> 8)
    }

    #[test]
    fn numbers_are_read_in_every_form_of_lspci() {
        let h100 = (Some(VendorId::NVIDIA), Some(DeviceId(0x2330)));
        for name in [
            "NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330]",
            "NVIDIA Corporation Device [10de:2330]",
            "NVIDIA Corporation Device 2330",
            "10de:2330",
            "Device 10de:2330",
            "Device [10de:2330]",
        ] {
            assert_eq!(ids(name), h100, "{name}");
        }
        assert_eq!(ids("NVIDIA Corporation GH100 [H200]").1, None);
        assert_eq!(ids("Samsung Electronics NVMe SSD"), (None, None));
    }

    #[test]
    fn a_number_or_a_name_shows_the_class_and_nothing_else_does() {
        for (name, function, expected) in [
            ("NVIDIA Corporation Device 2330", 0, Some(0x0302)),
            ("10de:2901", 0, Some(0x0302)),
            ("NVIDIA Corporation Device [10de:22a3]", 0, Some(0x0680)),
            ("NVIDIA Corporation Device 22ba", 1, Some(0x0403)),
            ("NVIDIA Corporation Device 2684", 1, None),
            ("NVIDIA Corporation Device 22b2", 0, None),
            ("Mellanox Technologies Device 1021", 0, Some(0x0200)),
            ("Mellanox Technologies Device 197b", 0, None),
            ("15b3:1023", 1, Some(0x0200)),
            (
                "Amazon.com, Inc. Elastic Fabric Adapter (EFA)",
                0,
                Some(0x0200),
            ),
            ("Amazon.com, Inc. Device efa2", 0, Some(0x0200)),
            ("Device 1d0f:efa1", 0, Some(0x0200)),
            (
                "Broadcom Inc. and subsidiaries Device 1750",
                0,
                Some(0x0200),
            ),
            ("Broadcom / LSI PEX890xx PCIe Gen 5 Switch", 0, None),
            (
                "Intel Corporation Ethernet Controller E810-C for QSFP",
                0,
                Some(0x0200),
            ),
            ("Intel Corporation Device 09a2", 0, None),
            ("Pensando Systems DSC Ethernet Controller", 0, Some(0x0200)),
        ] {
            assert_eq!(classified(name, function), expected, "{name}");
        }
        assert!(is_other("Amazon.com, Inc. NVMe EBS Controller"));
        assert!(!is_other("Intel Corporation Device 09a2"));
    }
}
