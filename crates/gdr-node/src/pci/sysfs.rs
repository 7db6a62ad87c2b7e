//! Reading PCI functions from sysfs.

use gdr_pci::Bdf;

use super::bar;
use super::config::{ConfigSpace, Unread};
use super::function::{Function, NumaNode};
use super::identity::{Class, DeviceId, Identity, VendorId};
use super::link::{Link, LinkWidth};
use super::tree::{Parent, RootBus, Tree};
use crate::source::{Absence, Datum, Source};

/// Where Linux lists the PCI functions.
const DEVICES: &str = "/sys/bus/pci/devices";

/// Reads the PCI functions of a node from `/sys/bus/pci/devices` (Linux
/// `Documentation/ABI/testing/sysfs-bus-pci`).
///
/// Names that are not PCI addresses are skipped. Unreadable facts become absences in the function.
pub fn read_functions(source: &impl Source) -> Datum<Tree> {
    source.list(DEVICES).map(|names| {
        let addresses = names.iter().filter_map(|name| name.parse().ok());
        let mut functions: Vec<(Function, Parent)> = addresses
            .map(|bdf| (function(source, bdf), parent(source, bdf)))
            .collect();
        mark_switch_managers(source, &mut functions);
        Tree::new(functions)
    })
}

/// Marks the NICs that manage NVSwitches. Only Blackwell and later baseboards have them, and a NIC takes long to return
/// its vital product data, so others are not read.
fn mark_switch_managers(source: &impl Source, functions: &mut [(Function, Parent)]) {
    // pci.ids: B100 is 0x2900.
    const FIRST_BLACKWELL: DeviceId = DeviceId(0x2900);
    let is_blackwell = |identity: &Identity| {
        identity.is_nvidia_gpu() && identity.device.is_some_and(|it| it >= FIRST_BLACKWELL)
    };
    if !functions.iter().any(|(it, _)| is_blackwell(&it.identity)) {
        return;
    }
    for (function, _) in functions {
        let identity = &function.identity;
        if identity.vendor == Some(VendorId::MELLANOX) && identity.is_network() {
            let vpd = source.read(&format!("{DEVICES}/{}/vpd", function.bdf));
            function.manages_switches = vpd.is_ok_and(|vpd| has_switch_mark(&vpd));
        }
    }
}

/// The marker in the vital product data of a NIC that manages NVSwitches.
pub(crate) const SWITCH_MARK: &str = "SW_MNG";

/// Returns whether vital product data belongs to a NIC that manages NVSwitches.
pub(crate) fn has_switch_mark(vpd: &[u8]) -> bool {
    let mark = SWITCH_MARK.as_bytes();
    vpd.windows(mark.len()).any(|window| window == mark)
}

fn function(source: &impl Source, bdf: Bdf) -> Function {
    let path = |name: &str| format!("{DEVICES}/{bdf}/{name}");
    let text = |name: &str| source.text(&path(name));
    let hex = |name: &str| {
        text(name)
            .ok()
            .and_then(|text| u32::from_str_radix(text.strip_prefix("0x").unwrap_or(&text), 16).ok())
    };
    let half = |name: &str| hex(name).and_then(|value| u16::try_from(value).ok());
    // "Unknown" and 0 mean that the link is down or does not exist.
    let link = |speed: &str, width: &str| {
        let (speed, width) = (text(speed)?, text(width)?);
        let lanes = width.parse().ok().filter(|lanes| *lanes != 0);
        Ok(Link {
            speed: speed.parse().map_err(|_| Absence::Missing)?,
            width: LinkWidth(lanes.ok_or(Absence::Missing)?),
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
        // -1 if firmware assigned no node; kernels without NUMA lack the file.
        numa: text("numa_node")
            .and_then(|text| text.parse().ok().map(NumaNode).ok_or(Absence::Missing)),
        driver: source.link_name(&path("driver")),
        iommu_group: source
            .link_name(&path("iommu_group"))
            .and_then(|name| name.parse().ok().ok_or(Absence::Missing)),
        physical_function: source
            .link_name(&path("physfn"))
            .and_then(|name| name.parse().ok().ok_or(Absence::Missing)),
        bars: text("resource").map(|text| bar::parse_resource(&text)),
        link: link("current_link_speed", "current_link_width"),
        link_capable: link("max_link_speed", "max_link_width"),
        ..Function::new(bdf)
    };
    match source.read(&path("config")) {
        Ok(bytes) => {
            // Without CAP_SYS_ADMIN, Linux truncates the file after the header.
            let unread = if bytes.len() <= 64 {
                Unread::Denied
            } else {
                Unread::NotCollected
            };
            if let Ok(config) = ConfigSpace::new(bytes, unread) {
                function.apply(config);
            }
        }
        Err(absence) => function.without_config(absence),
    }
    function
}

/// Returns a function's parent, by the names of the directories above it: `pciDDDD:BB` is a root bus, an address is a
/// bridge. A domain behind a function (VMD) has its own root bus below that function, which then is the parent.
fn parent(source: &impl Source, bdf: Bdf) -> Parent {
    let mut parent = Parent::Root(RootBus {
        domain: bdf.domain,
        bus: bdf.bus,
    });
    let Ok(path) = source.resolve(&format!("{DEVICES}/{bdf}")) else {
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
    fn a_nic_that_manages_switches_is_known_by_its_vital_product_data() {
        let add = |node: MemorySource, at: &str, ids: [&str; 3]| {
            let file = |name| format!("/sys/bus/pci/devices/{at}/{name}");
            node.file(&file("vendor"), ids[0])
                .file(&file("device"), ids[1])
                .file(&file("class"), ids[2])
        };
        let vpd = "/sys/bus/pci/devices/0000:64:00.0/vpd";
        let nic = ["0x15b3\n", "0x1021\n", "0x020700\n"];
        let node = add(MemorySource::new(), "0000:64:00.0", nic)
            .file(vpd, b"\x82\x05\x00ConnX\x90\x09\x00VA\x06SW_MNG\x78");
        let manages = |node: &MemorySource| {
            let tree = read_functions(node).unwrap();
            tree.get("0000:64:00.0".parse().unwrap())
                .unwrap()
                .manages_switches
        };
        let with_gpu = |node, device| add(node, "0000:63:00.0", ["0x10de\n", device, "0x030200\n"]);
        assert!(manages(&with_gpu(node.clone(), "0x2901\n")));
        // H100 boards have no such NICs, so theirs are not read.
        assert!(!manages(&with_gpu(node.clone(), "0x2330\n")));
        assert!(!manages(&with_gpu(node.file(vpd, "other"), "0x2901\n")));
    }

    #[test]
    fn without_privilege_tree_and_links_are_read_and_capabilities_are_denied() {
        let tree = read_functions(&node()).unwrap();
        let gpu = tree.get("41:00.0".parse().unwrap()).unwrap();
        assert!(gpu.identity.is_nvidia_gpu());
        assert_eq!(gpu.numa, Err(Absence::Missing));
        assert_eq!(gpu.driver, Ok("nvidia".to_owned()));
        assert_eq!(gpu.iommu_group, Ok(17));
        assert_eq!(gpu.acs, Err(Absence::Denied));
        assert_eq!(gpu.link.as_ref().unwrap().to_string(), "2.5 GT/s x16");
        assert_eq!(
            gpu.link_capable.as_ref().unwrap().to_string(),
            "32 GT/s x16"
        );
        let (root, chain) = tree.chain(gpu.bdf).unwrap();
        assert_eq!((root.to_string().as_str(), chain.len()), ("pci0000:40", 1));
        assert_eq!(tree.get(chain[0]).unwrap().acs, Err(Absence::Denied));
    }

    #[test]
    fn a_gpu_that_reads_as_ones_is_gone_and_still_a_gpu() {
        let node = node().file(&format!("{GPU}/config"), [0xff; 64]);
        let tree = read_functions(&node).unwrap();
        let gpu = tree.get("41:00.0".parse().unwrap()).unwrap();
        assert!(gpu.gone && gpu.identity.is_nvidia_gpu());
        assert!(gpu.acs.is_err());
    }

    #[test]
    fn the_parent_of_a_domain_behind_a_function_is_that_function() {
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
        let tree = read_functions(&node).unwrap();
        let (root, chain) = tree.chain("10000:01:00.0".parse().unwrap()).unwrap();
        assert_eq!(root.to_string(), "pci0000:00");
        let names: Vec<String> = chain.iter().map(Bdf::to_string).collect();
        assert_eq!(names, ["0000:00:05.5", "10000:00:02.0"]);
    }

    #[test]
    fn a_node_that_does_not_show_its_devices_has_no_tree() {
        let node = MemorySource::new().denied("/sys/bus/pci/devices");
        assert_eq!(read_functions(&node), Err(Absence::Denied));
        assert_eq!(
            read_functions(&MemorySource::partial()),
            Err(Absence::NotCollected)
        );
    }
}
