//! The vendor, the device ID and the class of a function.

use std::fmt;

/// The number that the PCI-SIG gave a maker.
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

    /// The beginnings of names in the PCI ID database, for captures that print no numbers.
    const NAMES: [(&str, Self); 8] = [
        ("NVIDIA Corporation", Self::NVIDIA),
        ("Mellanox Technologies", Self::MELLANOX),
        ("Advanced Micro Devices, Inc. [AMD/ATI]", Self::ATI),
        ("Advanced Micro Devices", Self::AMD),
        ("Intel Corporation", Self::INTEL),
        ("Broadcom / LSI", Self::BROADCOM_LSI),
        ("LSI Logic", Self::BROADCOM_LSI),
        ("PLX Technology", Self(0x10b5)),
    ];

    /// The maker that a name of the PCI ID database begins with, of those that matter here.
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

/// The number that a maker gave a product.
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
    const NAMES: [(&str, Self); 15] = [
        ("VGA compatible controller", Self(0x03_0000)),
        ("3D controller", Self(0x03_0200)),
        ("Display controller", Self(0x03_8000)),
        ("Ethernet controller", Self(0x02_0000)),
        ("Infiniband controller", Self(0x02_0700)),
        ("InfiniBand controller", Self(0x02_0700)),
        ("Network controller", Self(0x02_8000)),
        ("Host bridge", Self(0x06_0000)),
        ("ISA bridge", Self(0x06_0100)),
        ("PCI bridge", Self(0x06_0400)),
        ("Bridge", Self(0x06_8000)),
        ("Audio device", Self(0x04_0300)),
        ("Non-Volatile memory controller", Self(0x01_0802)),
        ("IOMMU", Self(0x08_0600)),
        ("DMA controller", Self(0x08_0100)),
    ];

    /// The class that lspci calls so, of those that matter here.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, class)| *class)
    }

    /// The base class.
    pub fn base(self) -> u8 {
        (self.0 >> 16) as u8
    }

    /// Base class and subclass, as lspci prints them.
    pub fn subclass(self) -> u16 {
        (self.0 >> 8) as u16
    }

    /// Whether it is a display, 3D or compute device.
    pub fn is_gpu(self) -> bool {
        self.base() == 0x03
    }

    /// Whether it is a network device of any kind.
    pub fn is_network(self) -> bool {
        self.base() == 0x02
    }

    /// Whether it is a bridge from PCI to PCI.
    pub fn is_bridge(self) -> bool {
        self.subclass() == 0x0604
    }

    /// Whether it is a bridge from the CPU to PCI.
    pub fn is_host_bridge(self) -> bool {
        self.subclass() == 0x0600
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06x}", self.0 & 0xff_ffff)
    }
}

/// The identity of a function, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The class code.
    pub class: Option<Class>,
    /// The maker.
    pub vendor: Option<VendorId>,
    /// The product.
    pub device: Option<DeviceId>,
    /// The maker of the board.
    pub subsystem_vendor: Option<VendorId>,
    /// The board.
    pub subsystem_device: Option<DeviceId>,
    /// The name that a tool printed.
    pub name: Option<String>,
}

impl Identity {
    /// Whether it is a GPU of NVIDIA.
    pub fn is_nvidia_gpu(&self) -> bool {
        self.vendor == Some(VendorId::NVIDIA) && self.class.is_some_and(Class::is_gpu)
    }

    /// The model of a NIC of NVIDIA's by its number (`pci.ids`), for sources that have no names.
    pub fn model(&self) -> Option<&'static str> {
        if self.vendor != Some(VendorId::MELLANOX) {
            return None;
        }
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

    /// Whether it is a network device.
    pub fn is_network(&self) -> bool {
        self.class.is_some_and(Class::is_network)
    }

    /// These facts, with what they lack taken from others.
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
