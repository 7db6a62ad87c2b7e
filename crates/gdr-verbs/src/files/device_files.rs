//! The files of a device in sysfs and `/dev`, as Linux's RDMA core has them (`drivers/infiniband/core/sysfs.c`
//! and `uverbs_main.c`).

use std::net::Ipv6Addr;

use gdr_nic::Counters;

use super::place::{BUSES, FUNCTIONS, Place, configuration};
use super::tree::{DeviceNumber, Node, Tree};
use crate::device::NODE_MAJOR;
use crate::rdma_cm;

/// `IB_USER_VERBS_ABI_VERSION`, and the one of `ib_umad`, without which libibumad lists no device.
const VERBS_ABI: &str = "6";
const UMAD_ABI: &str = "5";

/// What a file has.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Text(String),
    Bytes(&'static [u8]),
    /// What changes, of the device with this index.
    Live(usize, Attribute),
}

/// What changes of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Attribute {
    State,
    PhysicalState,
    Gid,
    Counter(Count),
}

/// A number of what an engine has counted.
type Count = fn(&Counters) -> u64;

/// What does not change of a device.
#[derive(Debug)]
pub(crate) struct Facts {
    /// Its index among the devices.
    pub(crate) index: usize,
    pub(crate) name: String,
    /// The name of its character device.
    pub(crate) node: String,
    pub(crate) minor: u32,
    pub(crate) guid: u64,
    pub(crate) interface: String,
    pub(crate) place: Place,
}

/// The counters of a port by their names. A word has four bytes.
const COUNTERS: [(&str, Count); 21] = [
    ("VL15_dropped", |_| 0),
    ("excessive_buffer_overrun_errors", |_| 0),
    ("link_downed", |_| 0),
    ("link_error_recovery", |_| 0),
    ("local_link_integrity_errors", |_| 0),
    ("multicast_rcv_packets", |all| all.received_by_groups),
    ("multicast_xmit_packets", |all| all.sent_to_groups),
    ("port_rcv_constraint_errors", |_| 0),
    ("port_rcv_data", |all| all.bytes_received / 4),
    ("port_rcv_errors", |all| all.malformed + all.icrc_mismatches),
    ("port_rcv_packets", |all| all.packets_received),
    ("port_rcv_remote_physical_errors", |_| 0),
    ("port_rcv_switch_relay_errors", |_| 0),
    ("port_xmit_constraint_errors", |_| 0),
    ("port_xmit_data", |all| all.bytes_sent / 4),
    ("port_xmit_discards", |all| all.sends_failed),
    ("port_xmit_packets", |all| all.packets_sent),
    ("port_xmit_wait", |_| 0),
    ("symbol_error", |_| 0),
    // The subtraction saturates, because a packet may be counted between the loads of the two counters.
    ("unicast_rcv_packets", |all| {
        all.packets_received.saturating_sub(all.received_by_groups)
    }),
    ("unicast_xmit_packets", |all| {
        all.packets_sent.saturating_sub(all.sent_to_groups)
    }),
];

/// The counters that depend on the device, by the names that rxe and mlx5 have for them.
const HARDWARE_COUNTERS: [(&str, Count); 10] = [
    ("frames_received", |all| all.frames_received),
    ("frames_sent", |all| all.frames_sent),
    ("out_of_sequence", |all| all.sequence_naks_sent),
    ("packet_seq_err", |all| all.sequence_naks_received),
    ("rcvd_pkts", |all| all.packets_received),
    ("resources_exceeded_pkts", |all| all.no_receive),
    ("rx_icrc_encapsulated", |all| all.icrc_mismatches),
    ("send_err", |all| all.sends_failed),
    ("sent_pkts", |all| all.packets_sent),
    ("unknown_qp", |all| all.unknown_queue_pair),
];

/// The tree of these devices.
pub(crate) fn tree(devices: &[Facts]) -> Tree<Content> {
    let mut tree = Tree::new();
    if !devices.is_empty() {
        add_text(
            &mut tree,
            "/sys/class/infiniband_verbs",
            "abi_version",
            VERBS_ABI,
        );
        add_text(
            &mut tree,
            "/sys/class/infiniband_mad",
            "abi_version",
            UMAD_ABI,
        );
        let (major, minor) = rdma_cm::NUMBER;
        let connections = "/sys/class/misc/rdma_cm";
        add_text(
            &mut tree,
            connections,
            "abi_version",
            &rdma_cm::ABI_VERSION.to_string(),
        );
        add_text(&mut tree, connections, "dev", &format!("{major}:{minor}"));
        tree.add(
            "/dev/infiniband/rdma_cm",
            Node::Device(DeviceNumber { major, minor }),
        );
    }
    for device in devices {
        device.add_to(&mut tree);
    }
    tree
}

impl Facts {
    fn add_to(&self, tree: &mut Tree<Content>) {
        let place = &self.place.folder;
        self.add_function(tree);
        let folder = format!("{place}/infiniband/{}", self.name);
        self.add_class(tree, "infiniband", &self.name, &folder);
        self.add_device(tree, &folder);
        self.add_port(tree, &format!("{folder}/ports/1"));
        let folder = format!("{place}/infiniband_verbs/{}", self.node);
        self.add_class(tree, "infiniband_verbs", &self.node, &folder);
        let number = format!("{NODE_MAJOR}:{}", self.minor);
        let uevent = format!(
            "MAJOR={NODE_MAJOR}\nMINOR={}\nDEVNAME=infiniband/{}\nDEVMODE=0666\n",
            self.minor, self.node
        );
        for (name, text) in [
            ("abi_version", "1"),
            ("dev", &number),
            ("ibdev", &self.name),
            ("uevent", uevent.trim_end()),
        ] {
            add_text(tree, &folder, name, text);
        }
        let number = DeviceNumber {
            major: NODE_MAJOR,
            minor: self.minor,
        };
        tree.add(
            &format!("/dev/infiniband/{}", self.node),
            Node::Device(number),
        );
    }

    /// The PCI function, where only this library shows it.
    fn add_function(&self, tree: &mut Tree<Content>) {
        if self.place.shown.is_empty() {
            return;
        }
        let (place, address) = (&self.place.folder, self.place.address());
        for (name, text) in &self.place.shown {
            add_text(tree, place, name, text.trim_end());
        }
        // Programs that list all functions read it, and some fail at one without it.
        static CONFIGURATION: [u8; 256] = configuration();
        let configuration = Node::File(Content::Bytes(&CONFIGURATION));
        tree.add(&format!("{place}/config"), configuration);
        // Programs look here for the interface of a device.
        tree.add(&format!("{place}/net/{}", self.interface), Node::Folder);
        let subsystem = format!("{}bus/pci", up_to_sys(place));
        tree.add(&format!("{place}/subsystem"), Node::Link(subsystem));
        let below = place.trim_start_matches("/sys/");
        tree.add(
            &format!("{FUNCTIONS}/{address}"),
            Node::Link(format!("../../../{below}")),
        );
        // NCCL finds a function by its bus.
        let (folder, bus) = self.place.bus();
        tree.add(&format!("{folder}/pci_bus/{bus}"), Node::Folder);
        let below = folder.trim_start_matches("/sys/");
        let target = format!("../../{below}/pci_bus/{bus}");
        tree.add(&format!("{BUSES}/{bus}"), Node::Link(target));
    }

    /// The links between the folder of a class and the one of its member.
    fn add_class(&self, tree: &mut Tree<Content>, class: &str, name: &str, folder: &str) {
        let below = folder.trim_start_matches("/sys/");
        tree.add(
            &format!("/sys/class/{class}/{name}"),
            Node::Link(format!("../../{below}")),
        );
        let device = format!("../../../{}", self.place.address());
        tree.add(&format!("{folder}/device"), Node::Link(device));
        let subsystem = format!("{}class/{class}", up_to_sys(folder));
        tree.add(&format!("{folder}/subsystem"), Node::Link(subsystem));
    }

    fn add_device(&self, tree: &mut Tree<Content>, folder: &str) {
        let guid = guid(self.guid);
        let description = format!("gdr software NIC at {}", self.interface);
        let uevent = format!("NAME={}", self.name);
        for (name, text) in [
            ("board_id", "gdr"),
            ("fw_ver", env!("CARGO_PKG_VERSION")),
            ("hca_type", "gdr"),
            ("hw_rev", "0x0"),
            ("node_desc", &description),
            ("node_guid", &guid),
            ("node_type", "1: CA"),
            ("sys_image_guid", &guid),
            ("uevent", &uevent),
        ] {
            add_text(tree, folder, name, text);
        }
    }

    fn add_port(&self, tree: &mut Tree<Content>, folder: &str) {
        for (name, text) in [
            ("cap_mask", "0x04000000"),
            ("gid_attrs/ndevs/0", self.interface.as_str()),
            ("gid_attrs/types/0", "RoCE v2"),
            ("lid", "0x0"),
            ("lid_mask_count", "0"),
            ("link_layer", "Ethernet"),
            ("pkeys/0", "0xffff"),
            ("rate", "100 Gb/sec (4X EDR)"),
            ("sm_lid", "0x0"),
            ("sm_sl", "0"),
            ("hw_counters/lifespan", "10"),
        ] {
            add_text(tree, folder, name, text);
        }
        let mut live = |name: &str, attribute| {
            let content = Content::Live(self.index, attribute);
            tree.add(&format!("{folder}/{name}"), Node::File(content));
        };
        live("state", Attribute::State);
        live("phys_state", Attribute::PhysicalState);
        live("gids/0", Attribute::Gid);
        for (name, count) in COUNTERS {
            live(&format!("counters/{name}"), Attribute::Counter(count));
        }
        for (name, count) in HARDWARE_COUNTERS {
            live(&format!("hw_counters/{name}"), Attribute::Counter(count));
        }
    }
}

fn add_text(tree: &mut Tree<Content>, folder: &str, name: &str, text: &str) {
    tree.add(
        &format!("{folder}/{name}"),
        Node::File(Content::Text(format!("{text}\n"))),
    );
}

/// The way from a link in a folder of sysfs up to `/sys`.
fn up_to_sys(folder: &str) -> String {
    "../".repeat(folder.matches('/').count() - 1)
}

fn guid(guid: u64) -> String {
    let part = |shift: u32| guid >> shift & 0xffff;
    format!(
        "{:04x}:{:04x}:{:04x}:{:04x}",
        part(48),
        part(32),
        part(16),
        part(0)
    )
}

/// A GID in the words of the kernel (`%pI6`).
pub(crate) fn gid(gid: Ipv6Addr) -> String {
    gid.segments().map(|part| format!("{part:04x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::super::tree::{Found, LastLink};
    use super::*;

    fn facts(place: Place) -> Facts {
        Facts {
            index: 0,
            name: "gdr0".to_owned(),
            node: "uverbs0".to_owned(),
            minor: 192,
            guid: 0x0200_00ff_7f00_0001,
            interface: "lo".to_owned(),
            place,
        }
    }

    fn text(tree: &Tree<Content>, path: &str) -> String {
        match tree.look_up(path.as_bytes(), LastLink::Follow) {
            Found::Here(_, Node::File(Content::Text(text))) => text.clone(),
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn files_are_printed_as_the_kernel_prints_them() {
        let place = Place {
            folder: "/sys/devices/pci0000:00/0000:00:03.0".to_owned(),
            shown: Vec::new(),
        };
        let tree = tree(&[facts(place)]);
        for (path, expected) in [
            ("infiniband/gdr0/node_guid", "0200:00ff:7f00:0001\n"),
            ("infiniband/gdr0/node_type", "1: CA\n"),
            ("infiniband/gdr0/ports/1/rate", "100 Gb/sec (4X EDR)\n"),
            ("infiniband/gdr0/ports/1/gid_attrs/types/0", "RoCE v2\n"),
            ("infiniband/gdr0/ports/1/gid_attrs/ndevs/0", "lo\n"),
            ("infiniband_verbs/abi_version", "6\n"),
            ("misc/rdma_cm/abi_version", "4\n"),
            ("misc/rdma_cm/dev", "10:122\n"),
            ("infiniband_verbs/uverbs0/ibdev", "gdr0\n"),
            ("infiniband_verbs/uverbs0/dev", "231:192\n"),
        ] {
            assert_eq!(
                text(&tree, &format!("/sys/class/{path}")),
                expected,
                "{path}"
            );
        }
        assert_eq!(
            gid(std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped()),
            "0000:0000:0000:0000:0000:ffff:7f00:0001"
        );
    }

    #[test]
    fn packets_to_groups_are_not_unicast_packets() {
        let mut all = Counters::default();
        (all.packets_sent, all.sent_to_groups) = (9, 4);
        (all.packets_received, all.received_by_groups) = (7, 1);
        let count = |name| {
            let found = COUNTERS.iter().find(|(counter, _)| *counter == name);
            found.map(|(_, count)| count(&all))
        };
        for (name, expected) in [
            ("port_xmit_packets", 9),
            ("unicast_xmit_packets", 5),
            ("multicast_xmit_packets", 4),
            ("port_rcv_packets", 7),
            // The subtraction saturates, because a packet may be counted between the loads of the two
            // counters.
            ("unicast_rcv_packets", 6),
            ("multicast_rcv_packets", 1),
        ] {
            assert_eq!(count(name), Some(expected), "{name}");
        }
    }

    #[test]
    fn every_way_to_the_function_of_a_device_ends_there() {
        let folder = "/sys/devices/pci0000:40/0000:40:01.0/0000:fe:00.0";
        let shown = vec![("class", "0x020000\n".to_owned())];
        let place = Place {
            folder: folder.to_owned(),
            shown,
        };
        let tree = tree(&[facts(place)]);
        for path in [
            "/sys/class/infiniband/gdr0/device",
            "/sys/class/infiniband_verbs/uverbs0/device",
            "/sys/bus/pci/devices/0000:fe:00.0",
            "/sys/class/pci_bus/0000:fe/../../0000:fe:00.0",
        ] {
            match tree.look_up(path.as_bytes(), LastLink::Follow) {
                Found::Here(found, Node::Folder) => assert_eq!(found, folder, "{path}"),
                other => panic!("{path}: {other:?}"),
            }
            assert_eq!(text(&tree, &format!("{path}/class")), "0x020000\n");
        }
        for (path, class) in [
            ("infiniband/gdr0", "infiniband"),
            ("infiniband_verbs/uverbs0", "infiniband_verbs"),
        ] {
            let path = format!("/sys/class/{path}/subsystem");
            match tree.look_up(path.as_bytes(), LastLink::Follow) {
                Found::Here(found, _) => assert_eq!(found, format!("/sys/class/{class}")),
                other => panic!("{path}: {other:?}"),
            }
        }
        // What the tree does not have of a function, the kernel may have.
        match tree.look_up(
            b"/sys/class/infiniband/gdr0/device/../driver",
            LastLink::Follow,
        ) {
            Found::Elsewhere(path) => {
                assert_eq!(path, b"/sys/devices/pci0000:40/0000:40:01.0/driver");
            }
            other => panic!("{other:?}"),
        }
    }
}
