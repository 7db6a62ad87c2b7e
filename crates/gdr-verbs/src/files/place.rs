//! Where a device is among the PCI functions of the host, from which programs compute how near a GPU is.
//!
//! A device is at the PCI function of its network interface. One whose interface has none (loopback, a
//! virtual interface) is at a function that only this library shows, in a domain of its own, which is near to
//! nothing. `GDR_VERBS_NEAR` names a PCI function: all devices are at functions that only this library shows
//! then, under the bridge of that one. Each is alone on a bus that the host does not have: NCCL takes the
//! functions of a bus for one card, by putting zeros for the number of the device and of the function.

use std::path::Path;

use rustix::fs::{self, Mode, OFlags};

/// The PCI function that all devices are near to.
const NEAR: &str = "GDR_VERBS_NEAR";
/// The domain of devices that are near to nothing, and its folder. No host has this one: ACPI gives small
/// numbers, and the domains that drivers make begin at 0x10000.
const FAR_DOMAIN: &str = "ffff";
const FAR_FOLDER: &str = "/sys/devices/pciffff:00";
/// PCI functions by their address, and buses by their number.
pub(crate) const FUNCTIONS: &str = "/sys/bus/pci/devices";
pub(crate) const BUSES: &str = "/sys/class/pci_bus";

/// The place of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The folder of the function in sysfs; its path goes through no links.
    pub(crate) folder: String,
    /// The files of a function that only this library shows; none of one that the kernel shows.
    pub(crate) shown: Vec<(&'static str, String)>,
}

impl Place {
    /// The address of the function.
    pub(crate) fn address(&self) -> &str {
        self.folder.rsplit_once('/').map_or("", |(_, name)| name)
    }

    /// The folder of its bus, and the number of the bus.
    pub(crate) fn bus(&self) -> (&str, &str) {
        let (folder, address) = self.folder.rsplit_once('/').unwrap_or_default();
        (folder, address.rsplit_once(':').map_or("", |(bus, _)| bus))
    }
}

/// The places of devices, by their network interfaces.
pub(crate) fn places<'a>(interfaces: impl Iterator<Item = &'a str>) -> Vec<Place> {
    let near = gdr_process::variable(NEAR).and_then(|near| near.into_string().ok());
    let near = near.filter(|near| !near.is_empty()).and_then(|near| {
        let found = real_path(&format!("{FUNCTIONS}/{near}"));
        if found.is_none() {
            tracing::error!(near, "{NEAR} names no PCI function of this host");
        }
        found
    });
    let (bridge, domain) = match &near {
        Some(folder) => {
            let (bridge, address) = folder.rsplit_once('/').unwrap_or_default();
            (bridge, address.split(':').next().unwrap_or_default())
        }
        None => (FAR_FOLDER, FAR_DOMAIN),
    };
    let free = buses(domain).filter(|bus| !exists(&format!("{BUSES}/{bus}")));
    let mut free = free.map(|bus| {
        let address = format!("{bus}:00.0");
        Place {
            folder: format!("{bridge}/{address}"),
            shown: files(&address, near.as_deref()),
        }
    });
    let found = interfaces.map(|interface| match &near {
        None => function_of(interface).or_else(|| free.next()),
        Some(_) => free.next(),
    });
    // A domain has 256 buses; devices beyond the free ones have no place.
    found.map_while(|place| place).collect()
}

/// The buses of a domain, from the last one, which hosts use least.
fn buses(domain: &str) -> impl Iterator<Item = String> {
    (0..=u8::MAX)
        .rev()
        .map(move |bus| format!("{domain}:{bus:02x}"))
}

/// The PCI function of a network interface.
fn function_of(interface: &str) -> Option<Place> {
    let mut folder = real_path(&format!("/sys/class/net/{interface}/device"))?;
    // A device on another bus, such as virtio, may be between the two.
    while !exists(&format!("{FUNCTIONS}/{}", folder.rsplit_once('/')?.1)) {
        folder.truncate(folder.rfind('/')?);
    }
    Some(Place {
        folder,
        shown: Vec::new(),
    })
}

/// The configuration space of a function that only this library shows, as in PCI 3.0, 6.1: a header of type 0, no
/// capabilities, no ranges of memory.
pub(crate) const fn configuration() -> [u8; 256] {
    let mut bytes = [0; 256];
    // The vendor and device IDs of the function, and of its subsystem.
    let mut at = 0;
    while at < 4 {
        bytes[at] = 0xff;
        bytes[0x2c + at] = 0xff;
        at += 1;
    }
    // An Ethernet controller.
    bytes[0x0b] = 0x02;
    bytes
}

/// The files of a function that only this library shows: those that programs compute distances from have what
/// the neighbour's have.
fn files(address: &str, near: Option<&str>) -> Vec<(&'static str, String)> {
    let of_neighbour = |name: &str| text(&format!("{}/{name}", near?));
    let online = || text("/sys/devices/system/cpu/online");
    let speed = |name| of_neighbour(name).unwrap_or_else(|| "16.0 GT/s PCIe\n".to_owned());
    let width = |name| of_neighbour(name).unwrap_or_else(|| "16\n".to_owned());
    let mut files = vec![
        // An Ethernet controller without a vendor.
        ("class", "0x020000\n".to_owned()),
        ("vendor", "0xffff\n".to_owned()),
        ("device", "0xffff\n".to_owned()),
        ("subsystem_vendor", "0xffff\n".to_owned()),
        ("subsystem_device", "0xffff\n".to_owned()),
        ("revision", "0x00\n".to_owned()),
        ("irq", "0\n".to_owned()),
        // There are no memory ranges, but programs that list all functions fail at one without this file.
        (
            "resource",
            "0x0000000000000000 0x0000000000000000 0x0000000000000000\n".repeat(13),
        ),
        (
            "numa_node",
            of_neighbour("numa_node").unwrap_or_else(|| "-1\n".to_owned()),
        ),
        ("max_link_speed", speed("max_link_speed")),
        ("current_link_speed", speed("current_link_speed")),
        ("max_link_width", width("max_link_width")),
        ("current_link_width", width("current_link_width")),
        (
            "uevent",
            format!("PCI_CLASS=20000\nPCI_ID=FFFF:FFFF\nPCI_SLOT_NAME={address}\n"),
        ),
    ];
    let cpus = of_neighbour("local_cpulist").or_else(online);
    files.extend(cpus.map(|cpus| ("local_cpulist", cpus)));
    files.extend(of_neighbour("local_cpus").map(|cpus| ("local_cpus", cpus)));
    files
}

// By system calls: the functions of the C library ask this module where the kernel has nothing.

fn exists(path: &str) -> bool {
    fs::access(path, fs::Access::EXISTS).is_ok()
}

/// The path without links.
fn real_path(path: &str) -> Option<String> {
    let file = fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    crate::files::handle::path_of(&file)?.into_string().ok()
}

/// A file of the kernel, which is short.
fn text(path: &str) -> Option<String> {
    let file = fs::open(
        Path::new(path),
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()?;
    let mut bytes = vec![0; 4096];
    let len = rustix::io::read(&file, &mut bytes).ok()?;
    bytes.truncate(len);
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_without_a_function_are_at_functions_of_a_domain_of_their_own() {
        let all = places(["lo", "no-such-interface"].into_iter());
        let folders: Vec<_> = all.iter().map(|place| place.folder.as_str()).collect();
        assert_eq!(
            folders,
            [
                "/sys/devices/pciffff:00/ffff:ff:00.0",
                "/sys/devices/pciffff:00/ffff:fe:00.0"
            ]
        );
        assert_eq!(all[0].address(), "ffff:ff:00.0");
        assert_eq!(all[0].bus(), ("/sys/devices/pciffff:00", "ffff:ff"));
        let numa = all[0].shown.iter().find(|(name, _)| *name == "numa_node");
        assert_eq!(numa.unwrap().1, "-1\n");
    }
}
