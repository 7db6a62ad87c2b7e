//! Each distance rule, on a small tree of its own.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use gdr_node::pci::{
    BusRange, Class, Function, Link, LinkSpeed, LinkWidth, NumaNode, Tree, VendorId,
};
use gdr_node::topology::{
    Ancestor, NcclClass, NcclGraph, Note, Place, Relation, SmiClass, Topology, UcxClass,
};
use gdr_node::{Absence, Bdf, Datum, NumaLayout, import::nccl_xml};
use snapshot::assert_contains;

fn bdf(text: &str) -> Bdf {
    text.parse().unwrap()
}

fn on_node(at: &str, class: u32, node: u32) -> Function {
    let mut function = Function::new(bdf(at));
    function.identity.class = Some(Class(class));
    function.numa = Ok(NumaNode(node));
    function
}

fn gpu(at: &str, node: u32) -> Function {
    let mut gpu = on_node(at, 0x03_0200, node);
    gpu.identity.vendor = Some(VendorId::NVIDIA);
    gpu
}

fn nic(at: &str, node: u32) -> Function {
    on_node(at, 0x02_0700, node)
}

fn bridge(at: &str, secondary: u8, subordinate: u8, node: u32) -> Function {
    let mut bridge = on_node(at, 0x06_0400, node);
    bridge.bridge = Some(BusRange {
        secondary,
        subordinate,
    });
    bridge
}

fn with_link(mut function: Function, speed: LinkSpeed, width: u8) -> Function {
    let link = Link {
        speed,
        width: LinkWidth(width),
    };
    function.link_capable = Ok(link);
    function.link = Ok(Link {
        speed: LinkSpeed::GEN1,
        ..link
    });
    function
}

/// Returns a server with two sockets. The first has a switch with a GPU, a NIC with two ports and a nested switch with
/// a GPU; a GPU on another root port of the same host bridge; and a NIC on another host bridge.
fn server() -> Tree {
    Tree::from_bus_numbers([
        bridge("40:01.1", 0x41, 0x4f, 0),
        bridge("41:00.0", 0x42, 0x4f, 0),
        bridge("42:00.0", 0x43, 0x43, 0),
        bridge("42:01.0", 0x44, 0x44, 0),
        bridge("42:02.0", 0x45, 0x4f, 0),
        with_link(gpu("43:00.0", 0), LinkSpeed::GEN5, 16),
        with_link(nic("44:00.0", 0), LinkSpeed::GEN4, 16),
        nic("44:00.1", 0),
        bridge("45:00.0", 0x46, 0x4f, 0),
        bridge("46:00.0", 0x47, 0x47, 0),
        gpu("47:00.0", 0),
        bridge("40:03.1", 0x50, 0x50, 0),
        gpu("50:00.0", 0),
        bridge("60:01.1", 0x61, 0x61, 0),
        nic("61:00.0", 0),
        bridge("c0:01.1", 0xc1, 0xc1, 1),
        gpu("c1:00.0", 1),
    ])
}

fn between(tree: &Tree, numa: &NumaLayout, a: &str, b: &str) -> Relation {
    let forth = Topology::new(tree, numa).relation(bdf(a), bdf(b)).unwrap();
    let back = Topology::new(tree, numa).relation(bdf(b), bdf(a)).unwrap();
    assert_eq!(
        (forth.smi, forth.nccl, forth.ucx),
        (back.smi, back.nccl, back.ucx),
        "{a} {b}"
    );
    forth
}

#[test]
fn every_class_has_its_place_in_a_server() {
    let (tree, numa) = (server(), NumaLayout::of_nodes(2));
    let classes = |a: &str, b: &str| {
        let relation = between(&tree, &numa, a, b);
        (relation.smi, relation.nccl, relation.ucx.class)
    };
    use {NcclClass as N, SmiClass as S, UcxClass as U};
    assert_eq!(classes("43:00.0", "43:00.0"), (S::Same, N::Loc, U::Default));
    assert_eq!(classes("44:00.0", "44:00.1"), (S::Pix, N::Loc, U::Default));
    assert_eq!(classes("43:00.0", "44:00.0"), (S::Pix, N::Pix, U::Default));
    assert_eq!(classes("47:00.0", "44:00.1"), (S::Pxb, N::Pxb, U::Default));
    assert_eq!(classes("50:00.0", "44:00.0"), (S::Phb, N::Phb, U::Phb));
    assert_eq!(classes("43:00.0", "61:00.0"), (S::Node, N::Phb, U::Node));
    assert_eq!(classes("c1:00.0", "61:00.0"), (S::Sys, N::Sys, U::Sys));
}

#[test]
fn the_way_over_a_switch_names_its_ports_and_its_narrowest_link() {
    let (tree, numa) = (server(), NumaLayout::of_nodes(2));
    let relation = between(&tree, &numa, "43:00.0", "44:00.0");
    assert_eq!(relation.ancestor, Ancestor::Bridge(bdf("41:00.0")));
    assert_eq!(relation.ports, [bdf("42:00.0"), bdf("42:01.0")]);
    let places: Vec<String> = relation.steps.iter().map(|s| s.place.to_string()).collect();
    let expected = ["43:00.0", "42:00.0", "41:00.0", "42:01.0", "44:00.0"];
    assert_eq!(places, expected.map(|at| format!("0000:{at}")));
    let (capable, place) = relation.capable.unwrap();
    assert_eq!(
        (capable.to_string().as_str(), place),
        ("31.5 GB/s", Place::Function(bdf("44:00.0")))
    );
    assert_eq!(relation.current.unwrap().0.to_string(), "4.0 GB/s");
    assert_eq!(
        relation.why,
        "both are below bridge 0000:41:00.0, with 2 bridges between it and them"
    );
}

#[test]
fn the_way_over_a_host_bridge_ends_at_root_ports() {
    let (tree, numa) = (server(), NumaLayout::of_nodes(2));
    let relation = between(&tree, &numa, "50:00.0", "43:00.0");
    assert_eq!(
        relation.ports,
        ["40:03.1", "40:01.1", "41:00.0", "42:00.0"].map(bdf)
    );
    assert_contains!(relation.why, "pci0000:40");
    // 3500 MB/s, or 19200 MB/s shared by the six path components that differ.
    let bandwidth = relation.ucx.bandwidth.unwrap().0;
    assert_eq!(bandwidth, 19_200 * (1 << 20) / 6);
}

#[test]
fn the_way_between_sockets_passes_both_nodes() {
    let (tree, numa) = (server(), NumaLayout::of_nodes(2));
    let relation = between(&tree, &numa, "c1:00.0", "61:00.0");
    let nodes: Vec<Place> = relation
        .steps
        .iter()
        .map(|step| step.place)
        .filter(|place| matches!(place, Place::Node(_)))
        .collect();
    assert_eq!(nodes, [Place::Node(NumaNode(1)), Place::Node(NumaNode(0))]);
    assert_contains!(relation.why, "NUMA node 1");
}

#[test]
fn nvlink_overrides_pci_but_not_in_the_matrix_of_pci() {
    let (tree, numa) = (server(), NumaLayout::of_nodes(2));
    let (a, b) = (bdf("43:00.0"), bdf("c1:00.0"));
    let topology = Topology::new(&tree, &numa).with_nvlinks(b, a, 18);
    let relation = topology.relation(a, b).unwrap();
    assert_eq!(
        (relation.smi, relation.smi_pci),
        (SmiClass::Nv(18), SmiClass::Sys)
    );
    assert_eq!(relation.nccl, NcclClass::Nvl);
    assert!(relation.why.starts_with("18 NVLinks"), "{}", relation.why);
}

#[test]
fn two_functions_of_a_card_under_a_root_port_are_pix() {
    let tree = Tree::from_bus_numbers([
        bridge("00:01.0", 1, 1, 0),
        nic("01:00.0", 0),
        nic("01:00.1", 0),
    ]);
    let relation = between(&tree, &NumaLayout::of_nodes(1), "01:00.0", "01:00.1");
    assert_eq!((relation.smi, relation.ports.len()), (SmiClass::Pix, 0));
}

/// A NIC's virtual functions spill over to the next bus, which is no bridge's secondary bus.
#[test]
fn a_virtual_function_is_as_near_as_the_physical_one() {
    let mut virtual_function = nic("44:00.1", 0);
    virtual_function.physical_function = Ok(bdf("43:00.0"));
    let tree = Tree::from_bus_numbers([
        bridge("40:01.1", 0x41, 0x4f, 0),
        bridge("41:00.0", 0x42, 0x4f, 0),
        bridge("42:00.0", 0x43, 0x44, 0),
        nic("43:00.0", 0),
        virtual_function,
        bridge("42:01.0", 0x45, 0x45, 0),
        gpu("45:00.0", 0),
    ]);
    let numa = NumaLayout::of_nodes(2);
    for function in ["43:00.0", "44:00.1"] {
        let relation = between(&tree, &numa, "45:00.0", function);
        assert_eq!(relation.smi, SmiClass::Pix, "{function}");
        assert_eq!(relation.ancestor.to_string(), "bridge 0000:41:00.0");
        assert_eq!(relation.ports, [bdf("42:01.0"), bdf("42:00.0")]);
    }
    let of = tree.virtual_functions(bdf("43:00.0"));
    assert_eq!(of.map(|it| it.bdf).collect::<Vec<_>>(), [bdf("44:00.1")]);
}

fn without_proximity(mut function: Function, numa: Datum<NumaNode>) -> Function {
    function.numa = numa;
    function
}

#[test]
fn without_proximity_one_node_is_taken_and_of_several_none() {
    let tree = |numa: Datum<NumaNode>| {
        Tree::from_bus_numbers([
            without_proximity(gpu("c1:00.0", 0), numa),
            without_proximity(nic("21:00.0", 0), numa),
        ])
    };
    let missing = tree(Err(Absence::Missing));
    let one = between(&missing, &NumaLayout::of_nodes(1), "c1:00.0", "21:00.0");
    assert_eq!(one.smi, SmiClass::Node);
    assert!(one.notes.contains(&Note::NoProximity(bdf("c1:00.0"))));
    let two = between(&missing, &NumaLayout::of_nodes(2), "c1:00.0", "21:00.0");
    assert_eq!(two.smi, SmiClass::Sys);
    // NCCL and UCX treat devices without a node as neighbors.
    assert_eq!((two.nccl, two.ucx.class), (NcclClass::Phb, UcxClass::Node));
    let unknown = tree(Err(Absence::NotCollected));
    let unknown = between(&unknown, &NumaLayout::unknown(), "c1:00.0", "21:00.0");
    assert_eq!(unknown.smi, SmiClass::Sys);
    assert!(
        unknown
            .notes
            .contains(&Note::ProximityUnknown(bdf("21:00.0")))
    );
    assert_contains!(unknown.why, "not known");
}

#[test]
fn quadrants_of_one_socket_carry_a_note() {
    let mut host = on_node("20:00.0", 0x06_0000, 0);
    host.identity.vendor = Some(VendorId::AMD);
    let mut other = on_node("c0:00.0", 0x06_0000, 0);
    other.identity.vendor = Some(VendorId::AMD);
    let nps1 = Tree::from_bus_numbers([
        host.clone(),
        other.clone(),
        bridge("20:01.1", 0x21, 0x21, 0),
        nic("21:00.0", 0),
        bridge("c0:01.1", 0xc1, 0xc1, 0),
        gpu("c1:00.0", 0),
    ]);
    let node = between(&nps1, &NumaLayout::of_nodes(1), "c1:00.0", "21:00.0");
    assert_eq!(
        (node.smi, node.notes),
        (SmiClass::Node, vec![Note::AmdQuadrants])
    );

    let nps4 = Tree::from_bus_numbers([nic("21:00.0", 1), gpu("c1:00.0", 3)]);
    let mut layout = NumaLayout::of_nodes(8);
    layout.sockets.extend([(NumaNode(1), 0), (NumaNode(3), 0)]);
    let sys = between(&nps4, &layout, "c1:00.0", "21:00.0");
    assert_eq!(sys.smi, SmiClass::Sys);
    assert!(sys.notes.contains(&Note::OneSocket));
}

#[test]
fn a_flat_bus_of_a_virtual_machine_is_shown_as_such() {
    let tree = Tree::from_bus_numbers([gpu("00:05.0", 0), nic("00:06.0", 0)]);
    let relation = between(&tree, &NumaLayout::of_nodes(1), "00:05.0", "00:06.0");
    assert_eq!(
        (relation.smi, relation.nccl),
        (SmiClass::Phb, NcclClass::Phb)
    );
    assert_eq!(relation.notes, [Note::FlatBus]);
}

#[test]
fn an_address_that_is_not_there_is_named() {
    let (tree, numa) = (server(), NumaLayout::of_nodes(2));
    let error = Topology::new(&tree, &numa)
        .relation(bdf("43:00.0"), bdf("99:00.0"))
        .unwrap_err();
    assert_contains!(error.to_string(), "0000:99:00.0", "{error}");
}

fn graph(inside: &str) -> NcclGraph {
    let text = format!("<system version=\"1\">{inside}</system>");
    NcclGraph::from_topology(&nccl_xml::read(&text).unwrap())
}

const BRIDGE: &str = r#"class="0x060400" link_speed="16 GT/s" link_width="16""#;
const LINK: &str = r#"link_speed="16 GT/s" link_width="16""#;

#[test]
fn nvlink_through_another_gpu_is_nvb_and_goes_no_further() {
    let gpu = |n: u32, peers: &str| {
        let links: String = peers
            .split_whitespace()
            .map(|p| format!(r#"<nvlink target="000{p}:00:00.0" count="1" tclass="0x030200"/>"#))
            .collect();
        format!(
            r#"<pci busid="000{n}:00:00.0" class="0x030200" {LINK}><gpu dev="{n}" sm="70">{links}</gpu></pci>"#
        )
    };
    let cpus = format!(
        r#"<cpu numaid="0">{}{}</cpu><cpu numaid="1">{}{}</cpu>"#,
        gpu(1, "2"),
        gpu(2, "1 3"),
        gpu(3, "2 4"),
        gpu(4, "3"),
    );
    let graph = graph(&cpus);
    let class = |a: &str, b: &str| graph.class(bdf(a), bdf(b)).unwrap();
    assert_eq!(class("1:00:00.0", "2:00:00.0"), NcclClass::Nvl);
    assert_eq!(class("1:00:00.0", "3:00:00.0"), NcclClass::Nvb);
    assert_eq!(class("1:00:00.0", "4:00:00.0"), NcclClass::Sys);
}

#[test]
fn a_near_gpu_on_nvlink_relays_and_gdr_that_is_off_goes_through_the_cpu() {
    let node = |gdr: u8| {
        let gpu = |at: &str| {
            format!(
                r#"<pci busid="{at}" class="0x030200" {LINK}><gpu dev="0" sm="90" gdr="{gdr}">
                   <nvlink target="fffffff:ffff:ff" count="18" tclass="0x068000"/></gpu></pci>"#
            )
        };
        graph(&format!(
            r#"<cpu numaid="0"><pci busid="0000:10:00.0" {BRIDGE}>{}
               <pci busid="0000:12:00.0" class="0x020700" {LINK}>
                 <nic><net name="mlx5_0" dev="0" speed="400000" gdr="{gdr}"/></nic></pci></pci>
               </cpu><cpu numaid="1">{}</cpu>"#,
            gpu("0000:11:00.0"),
            gpu("0000:21:00.0"),
        ))
    };
    let (near, far, nic) = (bdf("11:00.0"), bdf("21:00.0"), bdf("12:00.0"));
    let with = node(1);
    assert_eq!(with.class(near, far), Some(NcclClass::Nvl));
    assert_eq!(with.class(far, nic), Some(NcclClass::Sys));
    assert_eq!(
        with.path_to_net(near, "mlx5_0").unwrap().class,
        NcclClass::Pix
    );
    let route = with.route(far, nic).unwrap();
    assert_eq!((route.class, route.via), (NcclClass::Pxn, Some(near)));
    assert_eq!(with.route(near, nic).unwrap().class, NcclClass::Pix);
    let without = node(0);
    assert_eq!(without.route(near, nic).unwrap().class, NcclClass::Phb);
    assert_eq!(without.route(far, nic).unwrap().class, NcclClass::Sys);
}

#[test]
fn a_chip_to_chip_link_makes_the_cpu_near() {
    let graph = graph(&format!(
        r#"<cpu numaid="0" arch="arm64">
             <pci busid="0009:01:00.0" class="0x030200" {LINK}>
               <gpu dev="0" sm="90"><c2c bw="44712" count="10"/></gpu></pci>
             <pci busid="0002:01:00.0" class="0x020700" {LINK}>
               <nic><net name="mlx5_0" dev="0" gdr="1"/></nic></pci>
           </cpu>"#
    ));
    let (gpu, nic) = (bdf("9:01:00.0"), bdf("2:01:00.0"));
    assert_eq!(graph.class(gpu, nic), Some(NcclClass::Phb));
    assert_eq!(graph.route(gpu, nic).unwrap().class, NcclClass::P2c);
}

#[test]
fn a_two_level_switch_of_broadcom_is_one_to_nccl() {
    let tree = |device: &str| {
        let switch = |at: &str, board: &str, inside: &str| {
            format!(
                r#"<pci busid="{at}" {BRIDGE} vendor="0x1000" device="{device}"
                   subsystem_vendor="0x1000" subsystem_device="{board}">{inside}</pci>"#
            )
        };
        let gpu = format!(r#"<pci busid="0000:13:00.0" class="0x030200" {LINK}/>"#);
        let nic = format!(r#"<pci busid="0000:16:00.0" class="0x020700" {LINK}/>"#);
        let lower =
            switch("0000:11:00.0", "0x1000", &gpu) + &switch("0000:14:00.0", "0x1000", &nic);
        graph(&format!(
            r#"<cpu numaid="0">{}</cpu>"#,
            switch("0000:10:00.0", "0x0000", &lower)
        ))
    };
    let (gpu, nic) = (bdf("13:00.0"), bdf("16:00.0"));
    assert_eq!(tree("0xc030").class(gpu, nic), Some(NcclClass::Pix));
    assert_eq!(tree("0xc031").class(gpu, nic), Some(NcclClass::Pxb));
}

#[test]
fn cpus_of_different_hosts_are_not_joined() {
    let cpu = |host: &str, at: &str| {
        format!(r#"<cpu numaid="0" host_hash="{host}"><pci busid="{at}" class="0x030200"/></cpu>"#)
    };
    let graph = graph(&(cpu("0x1", "0000:01:00.0") + &cpu("0x2", "0000:02:00.0")));
    assert_eq!(graph.class(bdf("01:00.0"), bdf("02:00.0")), None);
}
