//! A fictional node, for demonstrations of this command and as a starting point for tests.
//!
//! Two sockets, eight GPUs, ten RDMA devices. Each socket has two PCI Express switches with two
//! GPUs and two InfiniBand NICs each, and one Ethernet NIC of its own:
//!
//! ```text
//! socket 0  pci0000:15 - switch - GPU0 mlx5_1 GPU1 mlx5_2
//!           pci0000:35 - switch - GPU2 mlx5_3 GPU3 mlx5_4
//!           pci0000:05 -          mlx5_0 (Ethernet)
//! socket 1  pci0000:95 - switch - GPU4 mlx5_6 GPU5 mlx5_7
//!           pci0000:b5 - switch - GPU6 mlx5_8 GPU7 mlx5_9
//!           pci0000:85 -          mlx5_5 (Ethernet)
//! ```
//!
//! [`healthy`] has every file that a node is described by, as read by root, and no faults. [`node`] is the same with
//! two faults: the port above GPU3 redirects peer requests, and the link of mlx5_7 has half of its lanes. A test starts
//! from one of them and changes what it tests, through any path that leads there:
//!
//! ```
//! use gdr_node::{Absence, Source, example, pci::AcsBits};
//!
//! let node = example::healthy()
//!     .file("/sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n")
//!     .without("/sys/module/nvidia_peermem")
//!     .denied("@kmsg");
//! let node = example::edit(node, example::GPU_PORTS[0], |port| {
//!     port.acs_control(AcsBits::REQUEST_REDIRECT | AcsBits::COMPLETION_REDIRECT);
//! });
//! assert_eq!(node.read("@kmsg"), Err(Absence::Denied));
//! ```

mod config_builder;
mod function;
mod gpu;
mod nic;
mod system;
#[cfg(test)]
mod tests;

pub use config_builder::ConfigBuilder;
pub use function::edit;

use gdr_pci::Bdf;

use self::config_builder::{Ids, Port};
use self::function::{Attributes, directory, put};
use crate::pci::{AcsBits, LinkSpeed, LinkWidth};
use crate::source::MemorySource;

/// The addresses of the GPUs, GPU0 first.
pub const GPUS: [&str; 8] = [
    "0000:18:00.0",
    "0000:1a:00.0",
    "0000:38:00.0",
    "0000:3a:00.0",
    "0000:98:00.0",
    "0000:9a:00.0",
    "0000:b8:00.0",
    "0000:ba:00.0",
];

/// The switch ports above the GPUs, GPU0's first.
pub const GPU_PORTS: [&str; 8] = [
    "0000:17:00.0",
    "0000:17:02.0",
    "0000:37:00.0",
    "0000:37:02.0",
    "0000:97:00.0",
    "0000:97:02.0",
    "0000:b7:00.0",
    "0000:b7:02.0",
];

/// The addresses of the NICs, mlx5_0 first. mlx5_0 and mlx5_5 are Ethernet.
pub const NICS: [&str; 10] = [
    "0000:06:00.0",
    "0000:19:00.0",
    "0000:1b:00.0",
    "0000:39:00.0",
    "0000:3b:00.0",
    "0000:86:00.0",
    "0000:99:00.0",
    "0000:9b:00.0",
    "0000:b9:00.0",
    "0000:bb:00.0",
];

/// The ports above the NICs, mlx5_0's first: root ports for mlx5_0 and mlx5_5, ports of switches
/// for the others.
pub const NIC_PORTS: [&str; 10] = [
    "0000:05:01.0",
    "0000:17:01.0",
    "0000:17:03.0",
    "0000:37:01.0",
    "0000:37:03.0",
    "0000:85:01.0",
    "0000:97:01.0",
    "0000:97:03.0",
    "0000:b7:01.0",
    "0000:b7:03.0",
];

/// The root ports above the switches.
pub const ROOT_PORTS: [&str; 4] = [
    "0000:15:01.0",
    "0000:35:01.0",
    "0000:95:01.0",
    "0000:b5:01.0",
];

/// The redirecting port in [`node`], above GPU3.
pub const REDIRECTING_PORT: &str = GPU_PORTS[3];

/// The NIC with half of its lanes in [`node`], mlx5_7.
pub const NARROW_NIC: &str = NICS[7];

/// The six lines of BARs of a port: none in use.
const NO_BARS: &str = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                       0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                       0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                       0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                       0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                       0x0000000000000000 0x0000000000000000 0x0000000000000000\n";

/// A port of a Xeon of the fourth generation.
const ROOT: Ids = Ids {
    vendor: 0x8086,
    device: 0x352a,
    class: 0x060400,
    subsystem: (0, 0),
};

/// A port of a PEX89104.
const SWITCH: Ids = Ids {
    vendor: 0x1000,
    device: 0xc030,
    class: 0x060400,
    subsystem: (0, 0),
};

/// Returns the node with two faults.
pub fn node() -> MemorySource {
    let node = edit(healthy(), REDIRECTING_PORT, |port| {
        port.acs_control(
            AcsBits::SOURCE_VALIDATION
                | AcsBits::REQUEST_REDIRECT
                | AcsBits::COMPLETION_REDIRECT
                | AcsBits::UPSTREAM_FORWARDING,
        );
    });
    let node = edit(node, NARROW_NIC, |nic| {
        nic.link(LinkSpeed::GEN5, LinkWidth(8));
    });
    edit(node, NIC_PORTS[7], |port| {
        port.link(LinkSpeed::GEN5, LinkWidth(8));
    })
}

/// Returns the node without faults.
pub fn healthy() -> MemorySource {
    let mut node = system::put(MemorySource::new());
    let mut group = 10;
    let (mut gpus, mut nics) = (0, 0);
    for (numa, buses) in [(0, [0x05, 0x15, 0x35]), (1, [0x85, 0x95, 0xb5])] {
        let [single, switches @ ..] = buses;
        let above = root_bus(single);
        let port = address(single, 1);
        node = self::port(node, &above, port, numa, group, single + 1);
        let above = directory(&above, port);
        node = nic::put(node, nics, &above, numa, group);
        nics += 1;
        for bus in switches {
            group += 1;
            let above = root_bus(bus);
            let root = address(bus, 1);
            node = self::port(node, &above, root, numa, group, bus + 6);
            let above = directory(&above, root);
            let up = address(bus + 1, 0);
            node = self::port(node, &above, up, numa, group, bus + 6);
            let above = directory(&above, up);
            for slot in 0..4 {
                let down = address(bus + 2, slot);
                node = self::port(node, &above, down, numa, group, bus + 3 + slot);
                let above = directory(&above, down);
                if slot % 2 == 0 {
                    node = gpu::put(node, gpus, &above, numa, group);
                    gpus += 1;
                } else {
                    node = nic::put(node, nics, &above, numa, group);
                    nics += 1;
                }
            }
        }
        group += 1;
    }
    node
}

fn root_bus(bus: u8) -> String {
    format!("/sys/devices/pci0000:{bus:02x}")
}

fn address(bus: u8, device: u8) -> Bdf {
    Bdf {
        domain: 0,
        bus,
        device,
        function: 0,
    }
}

/// Adds a port with the buses up to `last` behind it.
fn port(
    node: MemorySource,
    above: &str,
    bdf: Bdf,
    numa: u32,
    group: u32,
    last: u8,
) -> MemorySource {
    // A switch's upstream port is device 0 on the bus below the root port.
    let depth = above.matches("0000:").count() - 1;
    let (ids, kind, secondary) = match depth {
        0 => (ROOT, Port::Root, bdf.bus + 1),
        1 => (SWITCH, Port::SwitchUp, bdf.bus + 1),
        _ => (SWITCH, Port::SwitchDown, last),
    };
    let mut space = ConfigBuilder::new(ids, kind);
    space
        .buses(bdf.bus, secondary, last)
        .slot_number(u32::from(last))
        .link_capable(function::BEST.speed, function::BEST.width)
        .acs_control(AcsBits::SOURCE_VALIDATION | AcsBits::UPSTREAM_FORWARDING);
    let about = Attributes {
        above,
        driver: "pcieport",
        numa,
        iommu_group: group,
        resource: NO_BARS,
    };
    put(node, bdf, space, &about)
}
