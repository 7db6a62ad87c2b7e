//! No input makes a reader panic.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use gdr_node::import::{lspci, nccl_xml, topo_matrix};
use gdr_node::pci::{BusRange, ConfigSpace, Function, Parent, Tree, Unread};
use gdr_node::topology::{Ancestor, NcclGraph, RelationError, Topology};
use gdr_node::{Bdf, MemorySource, NumaLayout, Source};
use proptest::prelude::*;

fn bdf() -> impl Strategy<Value = Bdf> {
    // From few addresses, so that bridges, devices and cycles coincide.
    (0_u32..2, 0_u8..6, 0_u8..3, 0_u8..2).prop_map(|(domain, bus, device, function)| Bdf {
        domain,
        bus,
        device,
        function,
    })
}

fn function() -> impl Strategy<Value = Function> {
    (bdf(), any::<Option<(u8, u8)>>(), 0_u8..8, 0_u8..8).prop_map(|(bdf, bridge, first, more)| {
        let mut function = Function::new(bdf);
        function.bridge = bridge.map(|_| BusRange {
            secondary: first,
            subordinate: first + more,
        });
        function
    })
}

/// Generates lines that a tool might print, out of order and truncated.
fn lines(of: &'static [&'static str]) -> impl Strategy<Value = String> {
    let line = prop_oneof![
        4 => proptest::sample::select(of).prop_map(str::to_owned),
        1 => any::<String>(),
    ];
    (
        proptest::collection::vec(line, 0..40),
        any::<proptest::sample::Index>(),
    )
        .prop_map(|(lines, cut)| {
            let text = lines.join("\n");
            let end = if text.is_empty() {
                0
            } else {
                cut.index(text.len() + 1)
            };
            (0..=end)
                .rev()
                .find_map(|end| text.get(..end))
                .unwrap_or_default()
                .to_owned()
        })
}

const LSPCI: &[&str] = &[
    "00:01.0 PCI bridge: Intel Corporation Device 1 (rev 01)",
    "01:00.0 3D controller [0302]: NVIDIA Corporation X [10de:2330]",
    "10000:01:00.0 0207: 15b3:1021",
    "\tStatus: Cap+",
    "\tBus: primary=00, secondary=01, subordinate=01",
    "\tBus: primary=, secondary=zz",
    "\tNUMA node: 4294967296",
    "\tRegion 9: Memory at x [size=99999999999999999999T]",
    "\tRegion 1: Memory at 0 (64-bit, prefetchable) [size=18446744073709551615T]",
    "\tCapabilities: <access denied>",
    "\tCapabilities: [60] Express (v2) Endpoint, MSI 00",
    "\t\tDevCap:\tMaxPayload 99999 bytes",
    "\t\t\tMaxPayload 256 bytes, MaxReadReq 512 bytes",
    "\t\tLnkSta:\tSpeed GT/s, Width x999",
    "\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16",
    "\tCapabilities: [148 v1] Access Control Services",
    "\t\tACSCtl:\tSrcValid+ ReqRedir+ é+",
    "\tCapabilities: [bb0 v1] Physical Resizable BAR",
    "\t\tBAR 1: current size: 64GB, supported: 1B 99T",
    "00: de 10 30 23 06 04 10 00 a1 00 02 03 00 00 00 00",
    "10: ff",
    "ffffffffffffffffffff: 00",
];

const MATRIX: &[&str] = &[
    "\t\u{1b}[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\u{1b}[0m",
    "\u{1b}",
    "\u{1b}[é",
    "GPU0\t X \tNV18\tPIX\t0-3\t0",
    "GPU1 NV X",
    "NIC0 PIX é X",
    "  NIC0: mlx5_0",
    "GPU0 GPU1",
    "GPU99999999999",
];

const XML: &[&str] = &[
    "<system version=\"1\">",
    "<cpu numaid=\"0\" arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\">",
    "<pci busid=\"0000:01:00.0\" class=\"0x060400\" link_speed=\"\" link_width=\"0\">",
    "<pci busid=\"0000:01:00.0\" class=\"0x030200\"/>",
    "<pci busid=\"0000:02:00.0\" class=\"0x020000\"><nic><net name=\"a\" dev=\"-1\"/></nic></pci>",
    "<pci busid=\"0000:03:00.0\"><gpu sm=\"90\"><nvlink target=\"0000:03:00.0\" count=\"4294967295\" tclass=\"0x030200\"/><c2c count=\"1\"/></gpu></pci>",
    "<pcilink target=\"0000:01:00.0\"/>",
    "</pci>",
    "</cpu>",
    "</system>",
    "<!-- < -->",
    "<!DOCTYPE x [<!ENTITY a \"aaaa\">]>",
    "<",
];

fn exercise(tree: &Tree) {
    let numa = NumaLayout::of_nodes(2);
    let all: Vec<Bdf> = tree
        .functions()
        .map(|function| function.bdf)
        .take(6)
        .collect();
    let topology = Topology::new(tree, &numa);
    let distances = topology.distances(all.iter().copied());
    for (i, a) in all.iter().enumerate() {
        for (j, b) in all.iter().enumerate() {
            let relation = match topology.relation(*a, *b) {
                Ok(relation) => relation,
                Err(error) => {
                    assert_eq!(error, RelationError::Severed(*a, *b));
                    assert_eq!((distances.smi(i, j), distances.nccl(i, j)), (None, None));
                    continue;
                }
            };
            let steps = &relation.steps;
            assert!(!steps.is_empty() && !relation.why.is_empty());
            assert!(steps.len() <= 2 * tree.len() + 6);
            assert_eq!(distances.smi(i, j), Some(relation.smi));
            assert_eq!(distances.ucx(i, j), Some(relation.ucx.class));
            // The graph has too little information about two devices on a bus whose bridge is missing.
            if !matches!(relation.ancestor, Ancestor::Bus(_)) {
                let graph = NcclGraph::from_tree(tree, &[*a, *b]);
                assert_eq!(Some(relation.nccl), graph.class(*a, *b), "{a} {b}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_bytes_are_a_config_space_or_too_short(bytes in proptest::collection::vec(any::<u8>(), 0..4200)) {
        let len = bytes.len();
        match ConfigSpace::new(bytes, Unread::Denied) {
            Ok(config) => {
                prop_assert!(config.capabilities().entries.len() <= 48);
                prop_assert!(config.extended_capabilities().entries.len() <= 960);
                Function::new("01:00.0".parse().unwrap()).apply(config);
            }
            Err(_) => prop_assert!(len < 64),
        }
    }

    #[test]
    fn chains_that_point_anywhere_end(
        mut bytes in proptest::collection::vec(any::<u8>(), 4096..=4096),
        pointer in 0x40_u8..,
    ) {
        // There is a capability list, and its first entry is PCI Express.
        bytes[0x00] = 0;
        bytes[0x06] |= 0x10;
        bytes[0x0e] = 0;
        bytes[0x34] = pointer;
        bytes[usize::from(pointer & 0xfc)] = 0x10;
        let config = ConfigSpace::new(bytes, Unread::NotCollected).unwrap();
        prop_assert!(config.express().is_ok());
        prop_assert!(!config.extended_capabilities().entries.is_empty());
    }

    #[test]
    fn any_parents_make_a_tree(pairs in proptest::collection::vec((function(), bdf()), 0..20)) {
        let tree = Tree::new(pairs.into_iter().map(|(f, parent)| (f, Parent::Bridge(parent))));
        for function in tree.functions() {
            let (_, chain) = tree.chain(function.bdf).unwrap();
            prop_assert!(!chain.contains(&function.bdf));
        }
        exercise(&tree);
    }

    #[test]
    fn any_bus_numbers_make_a_tree(functions in proptest::collection::vec(function(), 0..20)) {
        let tree = Tree::from_bus_numbers(functions);
        prop_assert!(tree.functions().all(|f| tree.chain(f.bdf).is_some()));
        exercise(&tree);
    }

    #[test]
    fn any_lines_of_lspci_are_read_or_refused(text in lines(LSPCI)) {
        if let Ok(listing) = lspci::read(&text) {
            exercise(&listing.into_tree());
        }
    }

    #[test]
    fn any_lines_of_nvidia_smi_are_read_or_refused(text in lines(MATRIX)) {
        for matrix in topo_matrix::read_all(&text).unwrap_or_default() {
            for row in &matrix.rows {
                prop_assert_eq!(row.classes.len(), matrix.devices.len());
            }
        }
    }

    #[test]
    fn any_elements_of_nccl_are_read_or_refused(text in lines(XML)) {
        if let Ok(topology) = nccl_xml::read(&text) {
            let graph = NcclGraph::from_topology(&topology);
            for gpu in graph.gpus() {
                for nic in graph.nics() {
                    graph.route(gpu, nic);
                }
            }
        }
    }

    #[test]
    fn any_text_at_all_is_read_or_refused(text in any::<String>()) {
        let _ = lspci::read(&text);
        let _ = topo_matrix::read_all(&text);
        let _ = nccl_xml::read(&text);
    }

    #[test]
    fn links_that_lead_anywhere_end(
        links in proptest::collection::vec(("[abc/.]{1,8}", "[abc/.]{0,12}"), 0..12),
        path in "[abc/.]{0,12}",
    ) {
        let node = links
            .iter()
            .fold(MemorySource::new(), |node, (at, to)| node.link_to(&format!("/{at}"), to));
        let _ = node.resolve(&path);
        let _ = node.read(&path);
        let _ = node.list(&path);
        let _ = node.link(&path);
    }
}
