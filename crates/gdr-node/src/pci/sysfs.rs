//! Reading PCI functions from sysfs.

use gdr_cuda::Bdf;

use super::bar;
use super::config::{ConfigSpace, Unread};
use super::function::{Function, NumaNode};
use super::identity::{Class, DeviceId, Identity, VendorId};
use super::link::{Link, LinkWidth};
use super::tree::{Parent, RootBus, Tree};
use crate::source::{Datum, Source};

/// Where Linux lists the PCI functions.
const DEVICES: &str = "/sys/bus/pci/devices";

/// Reads the PCI functions of a node from `/sys/bus/pci/devices` (Linux
/// `Documentation/ABI/testing/sysfs-bus-pci`).
///
/// Names there that are no addresses are left out. What cannot be said of a function stays an
/// absence in it.
pub fn read_functions(source: &impl Source) -> Datum<Tree> {
    source.list(DEVICES).map(|names| {
        let addresses = names.iter().filter_map(|name| name.parse().ok());
        Tree::new(addresses.map(|bdf| (function(source, bdf), parent(source, bdf))))
    })
}

fn function(source: &impl Source, bdf: Bdf) -> Function {
    let path = |name: &str| format!("{DEVICES}/{bdf}/{name}");
    let text = |name: &str| source.text(&path(name));
    let hex = |name: &str| {
        text(name)
            .into_present()
            .and_then(|text| u32::from_str_radix(text.strip_prefix("0x").unwrap_or(&text), 16).ok())
    };
    let half = |name: &str| hex(name).and_then(|value| u16::try_from(value).ok());
    let link = |speed: &str, width: &str| {
        text(speed).and_then(|speed| {
            text(width).and_then(|width| {
                // "Unknown" and 0 stand for a link that is down or not there.
                let link = || {
                    let width = LinkWidth(width.parse().ok().filter(|width| *width != 0)?);
                    Some(Link {
                        speed: speed.parse().ok()?,
                        width,
                    })
                };
                link().into()
            })
        })
    };
    let mut function = Function {
        identity: Identity {
            class: hex("class").map(Class),
            vendor: half("vendor").map(VendorId),
            device: half("device").map(DeviceId),
            subsystem_vendor: half("subsystem_vendor").map(VendorId),
            subsystem_device: half("subsystem_device").map(DeviceId),
            name: None,
        },
        // -1 where firmware did not say, and in kernels without NUMA no file at all.
        numa: text("numa_node").and_then(|text| text.parse().ok().map(NumaNode).into()),
        driver: source.link_name(&path("driver")),
        iommu_group: source
            .link_name(&path("iommu_group"))
            .and_then(|name| name.parse().ok().into()),
        physical_function: source
            .link_name(&path("physfn"))
            .and_then(|name| name.parse().ok().into()),
        bars: text("resource").map(|text| bar::parse_resource(&text)),
        link: link("current_link_speed", "current_link_width"),
        link_capable: link("max_link_speed", "max_link_width"),
        ..Function::new(bdf)
    };
    match source.read(&path("config")) {
        Datum::Present(bytes) => {
            // Without CAP_SYS_ADMIN Linux ends the file after the header.
            let unread = if bytes.len() <= 64 {
                Unread::Denied
            } else {
                Unread::NotCollected
            };
            if let Ok(config) = ConfigSpace::new(bytes, unread) {
                function.apply(&config);
            }
        }
        absent => {
            function.express = absent.as_ref().and_then(|_| Datum::Missing);
            function.acs = absent.as_ref().and_then(|_| Datum::Missing);
            function.ats = absent.as_ref().and_then(|_| Datum::Missing);
            function.aer = absent.as_ref().and_then(|_| Datum::Missing);
            function.sriov = absent.as_ref().and_then(|_| Datum::Missing);
            function.resizable_bars = absent.and_then(|_| Datum::Missing);
        }
    }
    function
}

/// What a function hangs on, by the names of the directories above it: root buses are called
/// `pciDDDD:BB`, bridges by their addresses. A domain behind a function (VMD) has a root bus of
/// its own below that function, which is then the parent.
fn parent(source: &impl Source, bdf: Bdf) -> Parent {
    let mut parent = Parent::Root(RootBus {
        domain: bdf.domain,
        bus: bdf.bus,
    });
    let Datum::Present(path) = source.resolve(&format!("{DEVICES}/{bdf}")) else {
        return parent;
    };
    let mut rooted = false;
    let above = path.rsplit_once('/').map_or("", |(above, _)| above);
    for name in above.split('/') {
        if let Ok(bridge) = name.parse() {
            parent = Parent::Bridge(bridge);
        } else if let Some(root) = root_bus(name).filter(|_| !rooted) {
            rooted = true;
            parent = Parent::Root(root);
        }
    }
    parent
}

fn root_bus(name: &str) -> Option<RootBus> {
    let (domain, bus) = name.strip_prefix("pci")?.split_once(':')?;
    Some(RootBus {
        domain: u32::from_str_radix(domain, 16).ok()?,
        bus: u8::from_str_radix(bus, 16).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MemorySource;

    const GPU: &str = "/sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0";

    fn node() -> MemorySource {
        let mut header = [0_u8; 64];
        header[0..4].copy_from_slice(&[0xde, 0x10, 0x30, 0x23]);
        header[0x06] = 0x10;
        header[0x09..0x0c].copy_from_slice(&[0x00, 0x02, 0x03]);
        header[0x34] = 0x60;
        MemorySource::new()
            .link_to(
                "/sys/bus/pci/devices/0000:40:01.1",
                "../../../devices/pci0000:40/0000:40:01.1",
            )
            .link_to(
                "/sys/bus/pci/devices/0000:41:00.0",
                &format!("../../..{}", &GPU[4..]),
            )
            .file("/sys/devices/pci0000:40/0000:40:01.1/class", "0x060400\n")
            .denied("/sys/devices/pci0000:40/0000:40:01.1/config")
            .file(&format!("{GPU}/config"), header)
            .file(&format!("{GPU}/class"), "0x030200\n")
            .file(&format!("{GPU}/vendor"), "0x10de\n")
            .file(&format!("{GPU}/numa_node"), "-1\n")
            .file(&format!("{GPU}/current_link_speed"), "2.5 GT/s PCIe\n")
            .file(&format!("{GPU}/current_link_width"), "16\n")
            .file(&format!("{GPU}/max_link_speed"), "32.0 GT/s PCIe\n")
            .file(&format!("{GPU}/max_link_width"), "16\n")
            .link_to(
                &format!("{GPU}/driver"),
                "../../../../bus/pci/drivers/nvidia",
            )
            .link_to(
                &format!("{GPU}/iommu_group"),
                "../../../../kernel/iommu_groups/17",
            )
    }

    #[test]
    fn a_user_sees_the_tree_and_the_links_but_no_capabilities() {
        let tree = read_functions(&node()).into_present().unwrap();
        let gpu = tree.get("41:00.0".parse().unwrap()).unwrap();
        assert!(gpu.identity.is_nvidia_gpu());
        assert_eq!(gpu.numa, Datum::Missing);
        assert_eq!(gpu.driver, Datum::Present("nvidia".to_owned()));
        assert_eq!(gpu.iommu_group, Datum::Present(17));
        assert_eq!(gpu.acs, Datum::Denied);
        assert_eq!(gpu.link.present().unwrap().to_string(), "2.5 GT/s x16");
        assert_eq!(
            gpu.link_capable.present().unwrap().to_string(),
            "32 GT/s x16"
        );
        let (root, chain) = tree.chain(gpu.bdf).unwrap();
        assert_eq!((root.to_string().as_str(), chain.len()), ("pci0000:40", 1));
        assert_eq!(tree.get(chain[0]).unwrap().acs, Datum::Denied);
    }

    #[test]
    fn a_domain_behind_a_function_hangs_on_that_function() {
        let node = MemorySource::new()
            .link_to(
                "/sys/bus/pci/devices/0000:00:05.5",
                "../../../devices/pci0000:00/0000:00:05.5",
            )
            .link_to(
                "/sys/bus/pci/devices/10000:01:00.0",
                "../../../devices/pci0000:00/0000:00:05.5/pci10000:00/10000:00:02.0/10000:01:00.0/",
            )
            .link_to(
                "/sys/bus/pci/devices/10000:00:02.0",
                "../../../devices/pci0000:00/0000:00:05.5/pci10000:00/10000:00:02.0",
            )
            .directory("/sys/bus/pci/devices/not an address");
        let tree = read_functions(&node).into_present().unwrap();
        let (root, chain) = tree.chain("10000:01:00.0".parse().unwrap()).unwrap();
        assert_eq!(root.to_string(), "pci0000:00");
        let names: Vec<String> = chain.iter().map(Bdf::to_string).collect();
        assert_eq!(names, ["0000:00:05.5", "10000:00:02.0"]);
    }

    #[test]
    fn a_node_that_does_not_show_its_devices_has_no_tree() {
        let node = MemorySource::new().denied("/sys/bus/pci/devices");
        assert_eq!(read_functions(&node), Datum::Denied);
        assert_eq!(
            read_functions(&MemorySource::partial()),
            Datum::NotCollected
        );
    }
}
