//! Slots for PCI cards.

use gdr_node::Bdf;
use gdr_node::pci::Tree;
use gdr_node::topology::Relation;

use crate::context::Context;

/// The directory of the slots that firmware describes (Linux
/// `Documentation/ABI/testing/sysfs-bus-pci`).
const SLOTS: &str = "/sys/bus/pci/slots";

/// Returns the names of the empty slots that are nearer to a GPU than its NIC: those below a bridge that is also above
/// the GPU, or below its root bus if the path to the NIC leaves it.
pub(super) fn nearer_to(context: &Context<'_>, gpu: Bdf, than: &Relation) -> Vec<String> {
    let Some(tree) = context.inventory.tree.as_ref().ok() else {
        return Vec::new();
    };
    let Some((root, above)) = tree.chain(gpu) else {
        return Vec::new();
    };
    let names = context.source.list(SLOTS).ok().unwrap_or_default();
    let mut near = Vec::new();
    for name in names {
        let Some(place) = address(context, &name) else {
            continue;
        };
        if tree
            .functions()
            .any(|function| same_device(function.bdf, place))
        {
            continue;
        }
        let Some(bridge) = bridge_to(tree, place) else {
            continue;
        };
        let Some((other_root, mut chain)) = tree.chain(bridge) else {
            continue;
        };
        chain.push(bridge);
        let shared = chain.iter().zip(&above).take_while(|(a, b)| a == b).count();
        let crosses_root = !matches!(
            than.ancestor,
            gdr_node::topology::Ancestor::Bridge(_) | gdr_node::topology::Ancestor::Root(_)
        );
        if other_root == root && (shared > 0 || crosses_root) {
            near.push(name);
        }
    }
    near
}

/// Returns the address in a slot's file (`0000:41:00`), as the address of function 0 of a card there.
fn address(context: &Context<'_>, slot: &str) -> Option<Bdf> {
    let text = context.text(&format!("{SLOTS}/{slot}/address")).ok()?;
    format!("{text}.0").parse().ok()
}

fn same_device(a: Bdf, b: Bdf) -> bool {
    (a.domain, a.bus, a.device) == (b.domain, b.bus, b.device)
}

/// Returns the bridge whose secondary bus has an address.
fn bridge_to(tree: &Tree, place: Bdf) -> Option<Bdf> {
    tree.functions()
        .find(|function| {
            function.bdf.domain == place.domain
                && function
                    .bridge
                    .is_some_and(|buses| buses.secondary == place.bus)
        })
        .map(|function| function.bdf)
}
