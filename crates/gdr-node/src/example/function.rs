//! Adding a fictional PCI function to sysfs.

use gdr_pci::Bdf;

use super::config_builder::ConfigBuilder;
use crate::pci::{Link, LinkSpeed, LinkWidth};
use crate::source::{MemorySource, Source};

/// Where Linux lists the PCI functions.
const DEVICES: &str = "/sys/bus/pci/devices";

/// The best speed and width of every link.
pub(super) const BEST: Link = Link {
    speed: LinkSpeed::GEN5,
    width: LinkWidth(16),
};

/// A function's sysfs attributes other than its config space.
pub(super) struct Attributes<'a> {
    /// The resolved directory above: a host bridge's or bridge's.
    pub(super) above: &'a str,
    pub(super) driver: &'a str,
    pub(super) numa: u32,
    pub(super) iommu_group: u32,
    /// The six lines of BARs.
    pub(super) resource: &'a str,
}

/// Returns a function's resolved directory.
pub(super) fn directory(above: &str, bdf: Bdf) -> String {
    format!("{above}/{bdf}")
}

/// Adds a function: its directory, the link by address, and the driver's link.
pub(super) fn put(
    node: MemorySource,
    bdf: Bdf,
    mut space: ConfigBuilder,
    about: &Attributes<'_>,
) -> MemorySource {
    space.link(BEST.speed, BEST.width);
    let path = directory(about.above, bdf);
    let up = "../".repeat(path.matches('/').count() - 1);
    let ids = space.bytes().to_vec();
    let half = |at: usize| u16::from_le_bytes([ids[at], ids[at + 1]]);
    let class = u32::from_le_bytes([ids[0x08], ids[0x09], ids[0x0a], ids[0x0b]]) >> 8;
    let group = about.iommu_group;
    let cpus = local_cpus(about.numa);
    let node = node
        .link_to(
            &format!("{DEVICES}/{bdf}"),
            &format!("../../../{}", &path["/sys/".len()..]),
        )
        .file(&format!("{path}/vendor"), format!("{:#06x}\n", half(0)))
        .file(&format!("{path}/device"), format!("{:#06x}\n", half(2)))
        .file(&format!("{path}/class"), format!("{class:#08x}\n"))
        .file(&format!("{path}/revision"), format!("{:#04x}\n", ids[0x08]))
        .file(
            &format!("{path}/subsystem_vendor"),
            format!("{:#06x}\n", half(0x2c)),
        )
        .file(
            &format!("{path}/subsystem_device"),
            format!("{:#06x}\n", half(0x2e)),
        )
        .file(&format!("{path}/numa_node"), format!("{}\n", about.numa))
        .file(&format!("{path}/local_cpulist"), format!("{cpus}\n"))
        .file(&format!("{path}/resource"), about.resource)
        .file(&format!("{path}/enable"), "1\n")
        .file(&format!("{path}/d3cold_allowed"), "0\n")
        .file(&format!("{path}/power/control"), "on\n")
        .file(&format!("{path}/power/runtime_status"), "active\n")
        .link_to(
            &format!("{path}/driver"),
            &format!("{up}bus/pci/drivers/{}", about.driver),
        )
        .link_to(
            &format!("{path}/iommu_group"),
            &format!("{up}kernel/iommu_groups/{group}"),
        )
        .file(
            &format!("/sys/kernel/iommu_groups/{group}/type"),
            "identity\n",
        )
        .link_to(
            &format!("/sys/kernel/iommu_groups/{group}/devices/{bdf}"),
            &format!("../../../../{}", &path["/sys/".len()..]),
        )
        .link_to(
            &format!("/sys/bus/pci/drivers/{}/{bdf}", about.driver),
            &format!("../../../../{}", &path["/sys/".len()..]),
        );
    write(aer_counters(node, &path), &path, &space)
}

/// Changes a function's config space and its link's sysfs attributes.
///
/// Does nothing if the function does not exist.
///
/// ```
/// use gdr_node::{example, pci::AcsBits};
///
/// let node = example::edit(example::healthy(), example::GPU_PORTS[3], |port| {
///     port.acs_control(AcsBits::REQUEST_REDIRECT);
/// });
/// ```
pub fn edit(
    node: MemorySource,
    bdf: &str,
    change: impl FnOnce(&mut ConfigBuilder),
) -> MemorySource {
    let path = format!("{DEVICES}/{bdf}");
    let Some(bytes) = node.read(&format!("{path}/config")).ok() else {
        return node;
    };
    let mut space = ConfigBuilder::of_bytes(bytes);
    change(&mut space);
    write(node, &path, &space)
}

/// Writes the config space, and the files that Linux derives from its link registers.
fn write(node: MemorySource, path: &str, space: &ConfigBuilder) -> MemorySource {
    let mut node = node.file(&format!("{path}/config"), space.bytes());
    for (kind, link) in [("current", space.link_now()), ("max", space.link_best())] {
        if let Some(link) = link {
            // Formatted like pci_speed_string() of Linux drivers/pci/probe.c.
            let tenths = if link.speed == LinkSpeed::GEN1 {
                "2.5 GT/s PCIe\n".to_owned()
            } else {
                link.speed.to_string().replace(" GT/s", ".0 GT/s PCIe\n")
            };
            node = node
                .file(&format!("{path}/{kind}_link_speed"), tenths)
                .file(
                    &format!("{path}/{kind}_link_width"),
                    format!("{}\n", link.width.0),
                );
        }
    }
    node
}

/// Adds the counters of Linux `Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats`, all zero.
fn aer_counters(node: MemorySource, path: &str) -> MemorySource {
    let correctable = [
        "RxErr",
        "BadTLP",
        "BadDLLP",
        "Rollover",
        "Timeout",
        "NonFatalErr",
        "CorrIntErr",
        "HeaderOF",
        "TOTAL_ERR_COR",
    ];
    let uncorrectable = [
        "Undefined",
        "DLP",
        "SDES",
        "TLP",
        "FCP",
        "CmpltTO",
        "CmpltAbrt",
        "UnxCmplt",
        "RxOF",
        "MalfTLP",
        "ECRC",
        "UnsupReq",
        "ACSViol",
        "UncorrIntErr",
        "BlockedTLP",
        "AtomicOpBlocked",
        "TLPBlockedErr",
        "PoisonTLPBlocked",
    ];
    let lines = |names: &[&str], total: Option<&str>| {
        let all = names.iter().copied().chain(total);
        all.map(|name| format!("{name} 0\n")).collect::<String>()
    };
    node.file(
        &format!("{path}/aer_dev_correctable"),
        lines(&correctable, None),
    )
    .file(
        &format!("{path}/aer_dev_nonfatal"),
        lines(&uncorrectable, Some("TOTAL_ERR_NONFATAL")),
    )
    .file(
        &format!("{path}/aer_dev_fatal"),
        lines(&uncorrectable, Some("TOTAL_ERR_FATAL")),
    )
}

/// Returns a NUMA node's CPUs: two sockets of 48 cores with two threads each.
pub(super) fn local_cpus(numa: u32) -> &'static str {
    if numa == 0 {
        "0-47,96-143"
    } else {
        "48-95,144-191"
    }
}
