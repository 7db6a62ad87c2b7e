//! The NICs nearest to a GPU.

use gdr_cuda::Gpu;
use gdr_node::{Bdf, Inventory, Source};
use gdr_perf::loopback::NicDistance;

/// The kernel RDMA devices by their distance to `gpu`, the nearest first; empty if the topology is
/// not known.
pub(super) fn to(gpu: &Gpu, node: &dyn Source) -> Vec<NicDistance> {
    let Ok(address) = gpu.info().bdf.to_string().parse::<Bdf>() else {
        return Vec::new();
    };
    let inventory = Inventory::read(node);
    let Ok(topology) = inventory.topology() else {
        return Vec::new();
    };
    let mut found: Vec<_> = inventory
        .rdma_functions()
        .filter_map(|(device, function)| {
            let relation = topology.relation(address, function).ok()?;
            Some((relation.smi, device.name.clone()))
        })
        .collect();
    found.sort();
    found
        .into_iter()
        .map(|(class, device)| NicDistance {
            device,
            distance: class.to_string(),
        })
        .collect()
}
