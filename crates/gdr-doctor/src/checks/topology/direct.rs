//! ConnectX-8 and later with a DMA function near the GPU: traffic with the GPU uses that function
//! instead of the NIC's own, and needs different ACS bits on the two ports of the common switch.

use std::collections::BTreeSet;

use gdr_node::Bdf;

use crate::context::Context;
use crate::finding::Subject;
use crate::gpudirect_support::dma_functions;

/// The most functions of a kind that are examined: a capture may claim any number.
const MOST: usize = 64;

/// A DMA function, the GPU below the same switch, and the ports whose ACS bits matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DirectPath {
    /// The DMA function.
    pub(super) dma: Bdf,
    /// The GPU.
    pub(super) gpu: Bdf,
    /// The port of the common switch that leads to the DMA function.
    pub(super) dma_port: Bdf,
    /// The port of the common switch that leads to the GPU.
    pub(super) gpu_port: Bdf,
    /// The root port above the switch.
    pub(super) root_port: Bdf,
}

impl DirectPath {
    /// Returns the subject of findings about the path: the GPU.
    pub(super) fn subject(&self, context: &Context<'_>) -> Subject {
        let gpu = context.gpus().find(|gpu| gpu.bdf == self.gpu);
        gpu.map_or(Subject::Function(self.dma), Subject::gpu)
    }
}

/// Returns the DMA functions of the node, each with the GPU below the same switch.
pub(super) fn paths(context: &Context<'_>) -> Vec<DirectPath> {
    let Some(tree) = context.inventory.tree.as_ref().ok() else {
        return Vec::new();
    };
    let mut paths = Vec::new();
    for dma in dma_functions(context).into_iter().take(MOST) {
        let Some((_, of_dma)) = tree.chain(dma) else {
            continue;
        };
        for gpu in context.gpus().take(MOST) {
            let Some((_, of_gpu)) = tree.chain(gpu.bdf) else {
                continue;
            };
            let common = (of_dma.iter().zip(&of_gpu))
                .take_while(|(a, b)| a == b)
                .count();
            // A common root port alone is not a switch.
            if let (true, Some(&dma_port), Some(&gpu_port)) =
                (common >= 2, of_dma.get(common), of_gpu.get(common))
            {
                paths.push(DirectPath {
                    dma,
                    gpu: gpu.bdf,
                    dma_port,
                    gpu_port,
                    root_port: of_dma[0],
                });
            }
        }
    }
    paths
}

/// Returns the ports that acs.directnic checks.
pub(super) fn ports(context: &Context<'_>) -> BTreeSet<Bdf> {
    paths(context)
        .iter()
        .flat_map(|path| [path.dma_port, path.gpu_port, path.root_port])
        .collect()
}
