//! The vendor, the device ID and the class of a function.

use std::fmt;

use super::naming;

/// A vendor ID, assigned by the PCI-SIG.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VendorId(pub u16);

impl VendorId {
    /// NVIDIA, without the makers it bought.
    pub const NVIDIA: Self = Self(0x10de);
    /// Mellanox, whose number NVIDIA's network devices keep.
    pub const MELLANOX: Self = Self(0x15b3);
    /// AMD.
    pub const AMD: Self = Self(0x1022);
    /// ATI, whose number AMD's GPUs keep.
    pub const ATI: Self = Self(0x1002);
    /// Intel.
    pub const INTEL: Self = Self(0x8086);
    /// Broadcom (LSI), the number of its PEX 89000 switches.
    pub const BROADCOM_LSI: Self = Self(0x1000);
    /// Broadcom, the number of its network cards.
    pub const BROADCOM: Self = Self(0x14e4);
    /// Amazon.
    pub const AMAZON: Self = Self(0x1d0f);
    /// Alibaba.
    pub const ALIBABA: Self = Self(0x1ded);
    /// VMware.
    pub const VMWARE: Self = Self(0x15ad);
    /// Red Hat, the number of the devices that QEMU emulates.
    pub const QEMU: Self = Self(0x1b36);

    /// Makers of RDMA NICs: these, then Pensando, Chelsio, Cornelis, Huawei, Microsoft, Marvell.
    const RDMA: [Self; 11] = [
        Self::MELLANOX,
        Self::BROADCOM,
        Self::AMAZON,
        Self::ALIBABA,
        Self::VMWARE,
        Self(0x1dd8),
        Self(0x1425),
        Self(0x434e),
        Self(0x19e5),
        Self(0x1414),
        Self(0x1077),
    ];

    /// The beginnings of names in the PCI ID database, for captures that print no numbers.
    const NAMES: [(&str, Self); 23] = [
        ("NVIDIA Corporation", Self::NVIDIA),
        ("Mellanox Technologies", Self::MELLANOX),
        ("Advanced Micro Devices, Inc. [AMD/ATI]", Self::ATI),
        ("Advanced Micro Devices", Self::AMD),
        ("Intel Corporation", Self::INTEL),
        ("Broadcom / LSI", Self::BROADCOM_LSI),
        ("LSI Logic", Self::BROADCOM_LSI),
        ("PLX Technology", Self(0x10b5)),
        ("Broadcom Inc", Self::BROADCOM),
        ("Broadcom Limited", Self::BROADCOM),
        ("Broadcom Corporation", Self::BROADCOM),
        ("Amazon.com", Self::AMAZON),
        ("Alibaba", Self::ALIBABA),
        ("VMware", Self::VMWARE),
        ("Red Hat, Inc. QEMU", Self::QEMU),
        ("Pensando Systems", Self(0x1dd8)),
        ("AMD Pensando", Self(0x1dd8)),
        ("Chelsio", Self(0x1425)),
        ("Cornelis", Self(0x434e)),
        ("Huawei", Self(0x19e5)),
        ("Microsoft", Self(0x1414)),
        ("QLogic", Self(0x1077)),
        ("Red Hat, Inc. Virtio", Self(0x1af4)),
    ];

    /// Returns the maker that a name of the PCI ID database begins with, of those that matter here.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::NAMES
            .iter()
            .find(|(start, _)| name.starts_with(start))
            .map(|(_, id)| *id)
    }
}

impl fmt::Display for VendorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}", self.0)
    }
}

/// A device ID, assigned by the vendor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub u16);

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}", self.0)
    }
}

/// A class code: base class, subclass and interface, 8 bits each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Class(pub u32);

impl Class {
    /// lspci's names of the classes that matter here.
    const NAMES: [(&str, Self); 45] = [
        ("VGA compatible controller", Self(0x03_0000)),
        ("XGA compatible controller", Self(0x03_0100)),
        ("3D controller", Self(0x03_0200)),
        ("Display controller", Self(0x03_8000)),
        ("Ethernet controller", Self(0x02_0000)),
        ("Infiniband controller", Self(0x02_0700)),
        ("InfiniBand controller", Self(0x02_0700)),
        ("Fabric controller", Self(0x02_0800)),
        ("Network controller", Self(0x02_8000)),
        ("Host bridge", Self(0x06_0000)),
        ("ISA bridge", Self(0x06_0100)),
        ("PCI bridge", Self(0x06_0400)),
        ("RAM memory", Self(0x05_0000)),
        ("CXL", Self(0x05_0200)),
        ("Memory controller", Self(0x05_8000)),
        ("Bridge", Self(0x06_8000)),
        ("Audio device", Self(0x04_0300)),
        ("Multimedia controller", Self(0x04_8000)),
        ("Unclassified device", Self(0x00_ff00)),
        ("Non-VGA unclassified device", Self(0x00_0000)),
        ("SCSI storage controller", Self(0x01_0000)),
        ("IDE interface", Self(0x01_0100)),
        ("RAID bus controller", Self(0x01_0400)),
        ("SATA controller", Self(0x01_0601)),
        ("Serial Attached SCSI controller", Self(0x01_0700)),
        ("Non-Volatile memory controller", Self(0x01_0802)),
        ("Mass storage controller", Self(0x01_8000)),
        ("Serial controller", Self(0x07_0002)),
        ("Communication controller", Self(0x07_8000)),
        ("PIC", Self(0x08_0000)),
        ("DMA controller", Self(0x08_0100)),
        ("SD Host controller", Self(0x08_0500)),
        ("IOMMU", Self(0x08_0600)),
        ("System peripheral", Self(0x08_8000)),
        ("USB controller", Self(0x0c_0330)),
        ("SMBus", Self(0x0c_0500)),
        ("IPMI Interface", Self(0x0c_0701)),
        ("Serial bus controller", Self(0x0c_8000)),
        ("Encryption controller", Self(0x10_8000)),
        ("Performance counters", Self(0x11_0100)),
        ("Signal processing controller", Self(0x11_8000)),
        ("Processing accelerators", Self(0x12_0000)),
        ("Non-Essential Instrumentation", Self(0x13_0000)),
        ("Co-processor", Self(0x0b_4000)),
        ("Unassigned class", Self(0xff_0000)),
    ];

    /// Returns the class with this name in lspci, among those that matter here.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, class)| *class)
    }

    /// Returns the base class.
    pub fn base(self) -> u8 {
        (self.0 >> 16) as u8
    }

    /// Returns base class and subclass, as lspci prints them.
    pub fn subclass(self) -> u16 {
        (self.0 >> 8) as u16
    }

    /// Returns whether it is a display, 3D or compute device.
    pub fn is_gpu(self) -> bool {
        self.base() == 0x03
    }

    /// Returns whether it is a network device of any kind.
    pub fn is_network(self) -> bool {
        self.base() == 0x02
    }

    /// Returns whether it is a bridge from PCI to PCI.
    pub fn is_bridge(self) -> bool {
        self.subclass() == 0x0604
    }

    /// Returns whether it is a bridge from the CPU to PCI.
    pub fn is_host_bridge(self) -> bool {
        self.subclass() == 0x0600
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06x}", self.0 & 0xff_ffff)
    }
}

/// A function's identity, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The class code.
    pub class: Option<Class>,
    /// The vendor.
    pub vendor: Option<VendorId>,
    /// The product.
    pub device: Option<DeviceId>,
    /// The board's vendor.
    pub subsystem_vendor: Option<VendorId>,
    /// The board.
    pub subsystem_device: Option<DeviceId>,
    /// The name printed by a tool.
    pub name: Option<String>,
}

impl Identity {
    /// Returns whether it is an NVIDIA GPU.
    pub fn is_nvidia_gpu(&self) -> bool {
        self.vendor == Some(VendorId::NVIDIA) && self.class.is_some_and(Class::is_gpu)
    }

    /// Returns the model of an NVIDIA GPU or NIC by its number (`pci.ids`), for sources without names.
    pub fn model(&self) -> Option<&'static str> {
        match self.vendor? {
            VendorId::MELLANOX => self.nic_model(),
            VendorId::NVIDIA => self.gpu_model(),
            _ => None,
        }
    }

    fn gpu_model(&self) -> Option<&'static str> {
        Some(match self.device?.0 {
            0x1db1 => "V100 SXM2 16GB",
            0x1db5 => "V100 SXM2 32GB",
            0x1db6 => "V100 PCIe 32GB",
            0x1eb8 => "Tesla T4",
            0x20b0 => "A100 SXM4 40GB",
            0x20b2 => "A100 SXM4 80GB",
            0x20b5 => "A100 PCIe 80GB",
            0x20f1 => "A100 PCIe 40GB",
            0x2235 => "A40",
            0x2236 => "A10",
            0x2321 => "H100 NVL",
            0x2329 => "H20",
            0x2330 => "H100 SXM5 80GB",
            0x2331 => "H100 PCIe",
            0x2335 => "H200 SXM 141GB",
            0x233b => "H200 NVL",
            0x26b5 => "L40",
            0x26b9 => "L40S",
            0x27b8 => "L4",
            0x2901 => "B200",
            0x2bb5 => "RTX PRO 6000",
            _ => return None,
        })
    }

    fn nic_model(&self) -> Option<&'static str> {
        Some(match self.device?.0 {
            0x1003 | 0x1007 => "ConnectX-3",
            0x1013 => "ConnectX-4",
            0x1015 => "ConnectX-4 Lx",
            0x1017 | 0x1019 => "ConnectX-5",
            0x101b => "ConnectX-6",
            0x101d => "ConnectX-6 Dx",
            0x101f => "ConnectX-6 Lx",
            0x1021 => "ConnectX-7",
            0x1023 => "ConnectX-8",
            0xa2d6 => "BlueField-2",
            0xa2dc => "BlueField-3",
            _ => return None,
        })
    }

    /// Returns whether it is a network device.
    pub fn is_network(&self) -> bool {
        self.class.is_some_and(Class::is_network)
    }

    /// Returns whether it may be an NVIDIA GPU, as far as is known. Names count only if they are more than a number.
    pub fn may_be_nvidia_gpu(&self) -> bool {
        let name = self.name.as_deref();
        (self.vendor.is_none() || self.class.is_none())
            && self.class.is_none_or(Class::is_gpu)
            && match self.vendor {
                Some(vendor) => vendor == VendorId::NVIDIA && !name.is_some_and(naming::is_other),
                None => name.is_none_or(naming::is_number),
            }
    }

    /// Returns whether it may be an RDMA NIC, judged like [`may_be_nvidia_gpu`].
    ///
    /// [`may_be_nvidia_gpu`]: Self::may_be_nvidia_gpu
    pub fn may_be_rdma_nic(&self) -> bool {
        let name = self.name.as_deref();
        (self.vendor.is_none() || self.class.is_none())
            && self.class.is_none_or(Class::is_network)
            && self.vendor != Some(VendorId::NVIDIA)
            && !name.is_some_and(naming::is_other)
    }

    /// Returns whether its vendor makes RDMA NICs, or is unknown.
    pub fn maker_may_make_rdma_nics(&self) -> bool {
        match self.vendor {
            Some(vendor) => VendorId::RDMA.contains(&vendor),
            None => self.name.as_deref().is_none_or(naming::is_number),
        }
    }

    /// Returns whether it is a device emulated by a hypervisor, by its number or name.
    pub fn is_emulated(&self) -> bool {
        // Virtio alone is not conclusive: BlueField presents virtio devices to bare-metal hosts.
        const WORDS: [&str; 5] = ["QEMU", "82441FX", "VMware", "Hyper-V", "XenSource"];
        matches!(self.vendor, Some(VendorId::QEMU | VendorId::VMWARE))
            || self.vendor == Some(VendorId::INTEL) && self.device == Some(DeviceId(0x1237))
            || (self.name.as_deref())
                .is_some_and(|name| WORDS.iter().any(|word| name.contains(word)))
    }

    /// Returns these facts, with missing ones taken from `other`.
    #[must_use]
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            class: self.class.or(other.class),
            vendor: self.vendor.or(other.vendor),
            device: self.device.or(other.device),
            subsystem_vendor: self.subsystem_vendor.or(other.subsystem_vendor),
            subsystem_device: self.subsystem_device.or(other.subsystem_device),
            name: self.name.or(other.name),
        }
    }
}
