//! Captures of nodes from any source: what other tools wrote, and what pretends to be that.

#![no_main]

use gdr_node::import::{Assembled, Assembly, Capture};
use gdr_node::render::{self, Cells, Vocabulary};
use gdr_node::topology::NcclGraph;
use gdr_node::{Inventory, MemorySource, Source};
use libfuzzer_sys::fuzz_target;

/// Pictures show all pairs; what is drawn of more devices than this is drawn of these too.
const MOST_DEVICES: usize = 32;

fuzz_target!(|bytes: &[u8]| {
    match Capture::read(bytes) {
        Ok(Capture::Files(node)) => look(node.as_ref(), &Inventory::read(node.as_ref())),
        Ok(Capture::Devices(inventory)) => look(&MemorySource::partial(), &inventory),
        Ok(Capture::Nccl(topology)) => {
            let graph = NcclGraph::from_topology(&topology);
            for gpu in graph.gpus().take(8) {
                for nic in graph.nics().take(8) {
                    let _ = graph.route(gpu, nic);
                }
            }
        }
        Ok(_) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let mut assembly = Assembly::default();
    // Twice: what completes itself is what it was.
    for name in ["a", "b"] {
        if assembly.add(name, bytes).is_err() {
            return;
        }
    }
    if let Ok(Assembled::Node {
        source, inventory, ..
    }) = assembly.finish()
    {
        for left_out in &inventory.left_out {
            assert!(!left_out.to_string().contains(char::is_control));
        }
        look(source.as_ref(), &inventory);
    }
});

fn look(source: &dyn Source, inventory: &Inventory) {
    if inventory.devices().len() > MOST_DEVICES {
        return;
    }
    for vocabulary in [Vocabulary::Smi, Vocabulary::Nccl, Vocabulary::Ucx] {
        let cells = Cells::new(inventory, vocabulary);
        assert_eq!(cells.devices.len(), cells.classes.len());
    }
    let _ = render::tree(inventory);
    let _ = render::dot(inventory);
    let _ = render::svg(inventory);
    let _ = render::nccl_xml(source, inventory);
}
