//! The example's NICs: ConnectX-7 for 400 Gb/s InfiniBand, and ConnectX-6 Dx for 100 Gb/s Ethernet.

use gdr_pci::Bdf;

use super::NICS;
use super::config_builder::{ConfigBuilder, Ids, Port};
use super::function::{Attributes, BEST, put as put_function};
use crate::pci::{ExtendedId, LinkSpeed};
use crate::probe::{DmaBufImport, PortFacts, Probe, RdmaFacts};
use crate::source::MemorySource;

const CONNECTX_7: Ids = Ids {
    vendor: 0x15b3,
    device: 0x1021,
    class: 0x020700,
    subsystem: (0x15b3, 0x0041),
};

const CONNECTX_6_DX: Ids = Ids {
    vendor: 0x15b3,
    device: 0x101d,
    class: 0x020000,
    subsystem: (0x15b3, 0x0016),
};

/// The size of a port's GID table.
const GIDS: usize = 8;

/// The differences between the two kinds.
struct Kind {
    ids: Ids,
    speed: LinkSpeed,
    firmware: &'static str,
    board: &'static str,
    model: &'static str,
    rate: &'static str,
    layer: &'static str,
    lid: u32,
    sm_lid: u32,
}

fn kind(number: usize) -> Kind {
    if is_ethernet(number) {
        Kind {
            ids: CONNECTX_6_DX,
            speed: LinkSpeed::GEN4,
            firmware: "22.41.1000",
            board: "MT_0000000359",
            model: "MT4125",
            rate: "100 Gb/sec (4X EDR)",
            layer: "Ethernet",
            lid: 0,
            sm_lid: 0,
        }
    } else {
        Kind {
            ids: CONNECTX_7,
            speed: LinkSpeed::GEN5,
            firmware: "28.41.1000",
            board: "MT_0000000838",
            model: "MT4129",
            rate: "400 Gb/sec (4X NDR)",
            layer: "InfiniBand",
            lid: 20 + number as u32,
            sm_lid: 1,
        }
    }
}

/// Returns whether the mlx5 device with this number is Ethernet.
fn is_ethernet(number: usize) -> bool {
    matches!(number, 0 | 5)
}

/// Returns the interface of a NIC, named after its bus as systemd does.
fn interface(number: usize, bdf: Bdf) -> String {
    let kind = if is_ethernet(number) { "en" } else { "ib" };
    let tail = if is_ethernet(number) { "np0" } else { "" };
    format!("{kind}p{}s0{tail}", bdf.bus)
}

/// Returns the last three bytes of the NIC's address.
fn serial(number: usize) -> [u8; 3] {
    [0x5e, 0x41, 0x10 + number as u8]
}

/// Returns the port GUID: the Ethernet address with `fffe` in its middle.
fn guid(number: usize, middle: [u8; 2]) -> String {
    let [a, b, c] = serial(number);
    let [x, y] = middle;
    format!("9c63:c0{x:02x}:{y:02x}{a:02x}:{b:02x}{c:02x}")
}

/// Adds the NIC with this number.
pub(super) fn put(
    node: MemorySource,
    number: usize,
    above: &str,
    numa: u32,
    iommu_group: u32,
) -> MemorySource {
    let Ok(bdf) = NICS[number].parse::<Bdf>() else {
        return node;
    };
    let kind = kind(number);
    let mut space = ConfigBuilder::new(kind.ids, Port::Endpoint);
    space
        .link_capable(kind.speed, BEST.width)
        .read_request(4096);
    let ats = space.extended(ExtendedId::ATS, 1, 8);
    space.put_half(ats + 4, 0x0020);
    let sriov = space.extended(ExtendedId::SRIOV, 1, 0x40);
    space.put_half(sriov + 0x0c, 16);
    space.put_half(sriov + 0x0e, 16);
    // Device Serial Number (0x0003), derived from the Ethernet address.
    let [a, b, c] = serial(number);
    let at = space.extended(ExtendedId(0x0003), 1, 12);
    space.put_word(at + 4, u32::from_le_bytes([c, b, a, 0x03]));
    space.put_word(at + 8, u32::from_le_bytes([0x00, 0xc0, 0x63, 0x9c]));

    let start = 0x3000_0000_0000_u64 + ((number as u64) << 32);
    let unused = format!("{0:#018x} {0:#018x} {0:#018x}\n", 0);
    let resource = format!(
        "{start:#018x} {:#018x} 0x000000000014220c\n{}",
        start + (32 << 20) - 1,
        unused.repeat(5)
    );
    let about = Attributes {
        above,
        driver: "mlx5_core",
        numa,
        iommu_group,
        resource: &resource,
    };
    let path = format!("/sys/bus/pci/devices/{bdf}");
    let mut node = put_function(node, bdf, space, &about)
        .file(&format!("{path}/sriov_numvfs"), "0\n")
        .file(&format!("{path}/sriov_totalvfs"), "16\n");
    if kind.speed != BEST.speed {
        node = super::edit(node, NICS[number], |nic| {
            nic.link(kind.speed, BEST.width);
        });
        node = super::edit(node, super::NIC_PORTS[number], |port| {
            port.link(kind.speed, BEST.width);
        });
    }
    for vector in 0..4_u32 {
        let irq = 200 + 8 * number as u32 + vector;
        let cpu = if numa == 0 { vector } else { 48 + vector };
        node = node
            .file(&format!("{path}/msi_irqs/{irq}"), "msix\n")
            .file(
                &format!("/proc/irq/{irq}/effective_affinity_list"),
                format!("{cpu}\n"),
            )
            .file(
                &format!("/proc/irq/{irq}/smp_affinity_list"),
                format!("{}\n", super::function::local_cpus(numa)),
            );
    }
    let directory = super::directory(above, bdf);
    let node = put_interface(node, number, bdf, &directory);
    put_rdma(node, number, bdf, &directory, &kind)
}

/// Adds a class device below a function, and the class's link to it.
fn class(node: MemorySource, class: &str, directory: &str, name: &str, bdf: Bdf) -> MemorySource {
    let path = format!("{directory}/{class}/{name}");
    node.link_to(
        &format!("/sys/class/{class}/{name}"),
        &format!("../../{}", &path["/sys/".len()..]),
    )
    .link_to(&format!("{path}/device"), &format!("../../../{bdf}"))
}

fn put_interface(node: MemorySource, number: usize, bdf: Bdf, directory: &str) -> MemorySource {
    let name = interface(number, bdf);
    let [a, b, c] = serial(number);
    let ethernet = is_ethernet(number);
    let address = if ethernet {
        format!("9c:63:c0:{a:02x}:{b:02x}:{c:02x}\n")
    } else {
        format!("00:00:10:49:fe:80:00:00:00:00:00:00:9c:63:c0:03:00:{a:02x}:{b:02x}:{c:02x}\n")
    };
    let node = class(node, "net", directory, &name, bdf);
    let path = format!("/sys/class/net/{name}");
    let file =
        |node: MemorySource, name: &str, text: &str| node.file(&format!("{path}/{name}"), text);
    let node = file(node, "address", &address);
    let node = file(node, "mtu", if ethernet { "9000\n" } else { "4092\n" });
    let node = file(node, "type", if ethernet { "1\n" } else { "32\n" });
    let node = file(
        node,
        "speed",
        if ethernet { "100000\n" } else { "400000\n" },
    );
    let node = file(node, "operstate", "up\n");
    let node = file(node, "carrier", "1\n");
    let node = file(node, "carrier_changes", "2\n");
    let node = file(node, "dev_port", "0\n");
    let node = file(node, "dev_id", "0x0\n");
    file(node, "ifindex", &format!("{}\n", number + 2))
}

fn put_rdma(
    node: MemorySource,
    number: usize,
    bdf: Bdf,
    directory: &str,
    kind: &Kind,
) -> MemorySource {
    let name = format!("mlx5_{number}");
    let own = guid(number, [0x03, 0x00]);
    let node = class(node, "infiniband", directory, &name, bdf);
    let node = class(
        node,
        "infiniband_verbs",
        directory,
        &format!("uverbs{number}"),
        bdf,
    );
    let path = format!("/sys/class/infiniband/{name}");
    let port = format!("{path}/ports/1");
    let mut node = node
        .file(
            &format!("/sys/class/infiniband_verbs/uverbs{number}/ibdev"),
            format!("{name}\n"),
        )
        .file(
            &format!("/sys/class/infiniband_verbs/uverbs{number}/abi_version"),
            "1\n",
        )
        .file(&format!("{path}/node_guid"), format!("{own}\n"))
        .file(&format!("{path}/sys_image_guid"), format!("{own}\n"))
        .file(&format!("{path}/node_type"), "1: CA\n")
        .file(
            &format!("{path}/node_desc"),
            format!("{} {name}\n", super::system::HOST),
        )
        .file(&format!("{path}/fw_ver"), format!("{}\n", kind.firmware))
        .file(&format!("{path}/board_id"), format!("{}\n", kind.board))
        .file(&format!("{path}/hca_type"), format!("{}\n", kind.model))
        .file(&format!("{path}/hw_rev"), "0\n")
        .file(&format!("{port}/state"), "4: ACTIVE\n")
        .file(&format!("{port}/phys_state"), "5: LinkUp\n")
        .file(&format!("{port}/rate"), format!("{}\n", kind.rate))
        .file(&format!("{port}/link_layer"), format!("{}\n", kind.layer))
        .file(&format!("{port}/lid"), format!("{:#x}\n", kind.lid))
        .file(&format!("{port}/sm_lid"), format!("{:#x}\n", kind.sm_lid))
        .file(&format!("{port}/sm_sl"), "0\n")
        .file(&format!("{port}/lid_mask_count"), "0\n")
        .file(&format!("{port}/cap_mask"), "0xa741e848\n")
        .file(&format!("{port}/pkeys/0"), "0xffff\n")
        .file(&format!("{port}/pkeys/1"), "0x0000\n");
    let interface = interface(number, bdf);
    for index in 0..GIDS {
        let (gid, version) = gid(number, index);
        node = node.file(&format!("{port}/gids/{index}"), format!("{gid}\n"));
        if let Some(version) = version {
            node = node
                .file(
                    &format!("{port}/gid_attrs/types/{index}"),
                    format!("{version}\n"),
                )
                .file(
                    &format!("{port}/gid_attrs/ndevs/{index}"),
                    format!("{interface}\n"),
                );
        }
    }
    for counter in [
        "link_downed",
        "link_error_recovery",
        "symbol_error",
        "port_rcv_errors",
    ] {
        node = node.file(&format!("{port}/counters/{counter}"), "0\n");
    }
    for counter in [
        "out_of_sequence",
        "packet_seq_err",
        "local_ack_timeout_err",
        "rnr_nak_retry_err",
        "roce_adp_retrans",
        "np_cnp_sent",
        "rp_cnp_handled",
        "np_ecn_marked_roce_packets",
    ] {
        node = node.file(&format!("{port}/hw_counters/{counter}"), "0\n");
    }
    node
}

/// Returns the GID and type at this index, if there is one: link-local and IPv4 addresses in both versions of RoCE, or
/// the port's GID for InfiniBand.
fn gid(number: usize, index: usize) -> (String, Option<&'static str>) {
    let version = if index.is_multiple_of(2) {
        "IB/RoCE v1"
    } else {
        "RoCE v2"
    };
    match (is_ethernet(number), index) {
        (true, 0 | 1) => {
            let own = guid(number, [0xff, 0xfe]).replacen("9c63", "9e63", 1);
            (format!("fe80:0000:0000:0000:{own}"), Some(version))
        }
        (true, 2 | 3) => (
            format!("0000:0000:0000:0000:0000:ffff:0a14:1e{:02x}", 0x20 + number),
            Some(version),
        ),
        (false, 0) => (
            format!("fe80:0000:0000:0000:{}", guid(number, [0x03, 0x00])),
            Some("IB/RoCE v1"),
        ),
        _ => ("0000:0000:0000:0000:0000:0000:0000:0000".to_owned(), None),
    }
}

/// Returns the interfaces' IP addresses.
pub(super) fn addresses() -> String {
    let line = |(number, at): (usize, &&str)| {
        let network = if is_ethernet(number) { 30 } else { 40 };
        let interface = interface(number, at.parse().ok()?);
        Some(format!("{interface} 10.20.{network}.{}\n", 0x20 + number))
    };
    super::NICS.iter().enumerate().filter_map(line).collect()
}

/// Returns the verbs facts of the devices.
pub(super) fn verbs_devices() -> Vec<u8> {
    let device = |number: usize| RdmaFacts {
        name: format!("mlx5_{number}"),
        firmware: Some(kind(number).firmware.to_owned()),
        on_demand_paging: Some(true),
        dma_buf: Some(DmaBufImport::Supported),
        ports: Some(vec![PortFacts {
            number: 1,
            active_mtu: Some(4096),
        }]),
    };
    let probe = Probe::of((0..NICS.len()).map(device).collect());
    probe.to_file().unwrap_or_default()
}
