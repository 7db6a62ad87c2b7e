//! The tree of PCI functions.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use gdr_pci::Bdf;

use super::function::{Function, NumaNode};
use crate::source::Absence;

/// A root bus: the bus directly below a host bridge, `pci0000:3a` in sysfs. A socket may have many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RootBus {
    /// Its PCI domain.
    pub domain: u32,
    /// Its bus number.
    pub bus: u8,
}

impl fmt::Display for RootBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pci{:04x}:{:02x}", self.domain, self.bus)
    }
}

/// The parent of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Parent {
    /// A root bus.
    Root(RootBus),
    /// A bridge, or a function with a separate PCI domain behind it (VMD).
    Bridge(Bdf),
}

/// The PCI functions of a node and their parents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    functions: BTreeMap<Bdf, Function>,
    parents: BTreeMap<Bdf, Parent>,
    /// The inverse of `parents`, kept because it is used for every pair of devices.
    children: BTreeMap<Parent, Vec<Bdf>>,
    severed: BTreeSet<RootBus>,
}

impl Tree {
    /// Builds a tree of functions with known parents.
    ///
    /// A parent that is not among the functions, or would close a cycle, is replaced by the root bus with the
    /// function's own bus number.
    pub fn new(functions: impl IntoIterator<Item = (Function, Parent)>) -> Self {
        let mut tree = Self::default();
        for (function, parent) in functions {
            tree.parents.insert(function.bdf, parent);
            tree.functions.insert(function.bdf, function);
        }
        tree.cut_impossible_parents();
        for (bdf, parent) in &tree.parents {
            tree.children.entry(*parent).or_default().push(*bdf);
        }
        tree
    }

    /// Derives a tree from the bus numbers of its bridges, for lspci listings.
    ///
    /// Virtual functions may be on buses that are not the secondary bus of any bridge. Their parent is the deepest
    /// bridge whose range contains their bus.
    pub fn from_bus_numbers(functions: impl IntoIterator<Item = Function>) -> Self {
        let functions: Vec<Function> = functions.into_iter().collect();
        let mut above: BTreeMap<u32, Vec<Option<Above>>> = BTreeMap::new();
        for bridge in &functions {
            let Some(range) = bridge.bridge else { continue };
            let buses = (above.entry(bridge.bdf.domain)).or_insert_with(|| vec![None; 256]);
            for bus in range.secondary..=range.subordinate {
                // A bridge is not on a bus behind itself.
                if !range.contains(bus) || bus == bridge.bdf.bus {
                    continue;
                }
                let deepest = &mut buses[usize::from(bus)];
                if deepest.is_none_or(|known| known.secondary <= range.secondary) {
                    *deepest = Some(Above {
                        bridge: bridge.bdf,
                        secondary: range.secondary,
                    });
                }
            }
        }
        let parent = |function: &Function| {
            let bdf = function.bdf;
            let deepest = (above.get(&bdf.domain)).and_then(|buses| buses[usize::from(bdf.bus)]);
            match deepest {
                Some(deepest) => Parent::Bridge(deepest.bridge),
                None => Parent::Root(RootBus {
                    domain: bdf.domain,
                    bus: bdf.bus,
                }),
            }
        };
        let parents: Vec<Parent> = functions.iter().map(parent).collect();
        Self::new(functions.into_iter().zip(parents))
    }

    /// Returns the function at an address.
    pub fn get(&self, bdf: Bdf) -> Option<&Function> {
        self.functions.get(&bdf)
    }

    /// Returns all functions, ordered by address.
    pub fn functions(&self) -> impl ExactSizeIterator<Item = &Function> {
        self.functions.values()
    }

    /// Returns the number of functions.
    pub fn len(&self) -> usize {
        self.functions.len()
    }

    /// Returns whether the tree has no functions.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// Returns the parent of a function.
    pub fn parent(&self, bdf: Bdf) -> Option<Parent> {
        self.parents.get(&bdf).copied()
    }

    /// Returns the children of a root bus or bridge, ordered by address.
    pub fn children(&self, of: Parent) -> impl Iterator<Item = &Function> {
        let children = self.children.get(&of).map_or(&[][..], Vec::as_slice);
        children.iter().filter_map(|bdf| self.get(*bdf))
    }

    /// Returns whether a bus counts as a root bus only because the capture lacks the bridges above it.
    pub fn is_severed(&self, root: RootBus) -> bool {
        self.severed.contains(&root)
    }

    /// Marks root buses above which the capture lacks bridges.
    pub(crate) fn sever(&mut self, roots: impl IntoIterator<Item = RootBus>) {
        self.severed.extend(roots);
    }

    /// Fills in facts from another capture of the node.
    pub(crate) fn complete(&mut self, other: Self) {
        for (bdf, function) in other.functions {
            if let Some(known) = self.functions.get_mut(&bdf) {
                known.complete(function);
            }
        }
    }

    /// Infers NUMA nodes that were not collected: a function's card's, or else the common node of the other functions
    /// below its root bus. Linux assigns all functions below a host bridge to the bridge's node.
    pub(crate) fn infer_nodes(&mut self) {
        let mut cards: BTreeMap<Bdf, Option<NumaNode>> = BTreeMap::new();
        let mut roots: BTreeMap<RootBus, Option<NumaNode>> = BTreeMap::new();
        let mut unknown = Vec::new();
        for function in self.functions.values() {
            let root = self.chain(function.bdf).map(|(root, _)| root);
            match (&function.numa, root) {
                (Ok(node), root) => {
                    agree(&mut cards, card(function.bdf), *node);
                    if let Some(root) = root {
                        agree(&mut roots, root, *node);
                    }
                }
                (Err(Absence::NotCollected), root) => unknown.push((function.bdf, root)),
                _ => {}
            }
        }
        for (bdf, root) in unknown {
            let of_card = cards.get(&card(bdf)).copied().flatten();
            let of_root = || roots.get(&root?).copied().flatten();
            if let (Some(node), Some(function)) =
                (of_card.or_else(of_root), self.functions.get_mut(&bdf))
            {
                function.numa = Ok(node);
            }
        }
    }

    /// Returns the root buses, in order.
    pub fn roots(&self) -> Vec<RootBus> {
        let mut roots: Vec<RootBus> = self
            .parents
            .values()
            .filter_map(|parent| match parent {
                Parent::Root(root) => Some(*root),
                Parent::Bridge(_) => None,
            })
            .collect();
        roots.sort();
        roots.dedup();
        roots
    }

    /// Returns the other functions of the same device.
    pub fn siblings(&self, bdf: Bdf) -> impl Iterator<Item = &Function> {
        let first = Bdf { function: 0, ..bdf };
        let last = Bdf { function: 7, ..bdf };
        self.functions
            .range(first..=last)
            .map(|(_, f)| f)
            .filter(move |f| f.bdf != bdf)
    }

    /// Returns the virtual functions of a physical one.
    pub fn virtual_functions(&self, physical: Bdf) -> impl Iterator<Item = &Function> {
        self.functions
            .values()
            .filter(move |function| function.physical_function.as_ref().ok() == Some(&physical))
    }

    /// Returns the root bus and the bridges above a function, from the root down; `None` for a function outside the
    /// tree.
    pub fn chain(&self, bdf: Bdf) -> Option<(RootBus, Vec<Bdf>)> {
        let mut bridges = Vec::new();
        let mut at = bdf;
        // Parents form no cycle; the bound turns a bug here into a wrong result instead of a hang.
        for _ in 0..=self.functions.len() {
            match self.parent(at)? {
                Parent::Root(root) => {
                    bridges.reverse();
                    return Some((root, bridges));
                }
                Parent::Bridge(bridge) => {
                    bridges.push(bridge);
                    at = bridge;
                }
            }
        }
        None
    }

    fn cut_impossible_parents(&mut self) {
        let own_root = |bdf: Bdf| {
            Parent::Root(RootBus {
                domain: bdf.domain,
                bus: bdf.bus,
            })
        };
        for (bdf, parent) in &mut self.parents {
            if matches!(parent, Parent::Bridge(bridge) if !self.functions.contains_key(bridge)) {
                *parent = own_root(*bdf);
            }
        }
        let all: Vec<Bdf> = self.functions.keys().copied().collect();
        // Functions whose path is known to end at a root.
        let mut rooted: BTreeSet<Bdf> = BTreeSet::new();
        for start in all {
            let mut path = vec![start];
            let mut at = start;
            while let Some(Parent::Bridge(bridge)) = self.parents.get(&at).copied() {
                if rooted.contains(&bridge) {
                    break;
                }
                if path.contains(&bridge) {
                    self.parents.insert(bridge, own_root(bridge));
                    break;
                }
                path.push(bridge);
                at = bridge;
            }
            rooted.extend(path);
        }
    }
}

/// The deepest bridge above a bus.
#[derive(Clone, Copy)]
struct Above {
    bridge: Bdf,
    secondary: u8,
}

/// Returns the address that represents all functions of a card.
fn card(bdf: Bdf) -> Bdf {
    Bdf { function: 0, ..bdf }
}

/// Records the common node of all functions so far; `None` if they are on several.
fn agree<K: Ord>(nodes: &mut BTreeMap<K, Option<NumaNode>>, of: K, node: NumaNode) {
    nodes
        .entry(of)
        .and_modify(|known| *known = known.filter(|known| *known == node))
        .or_insert(Some(node));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pci::BusRange;

    fn bdf(text: &str) -> Bdf {
        text.parse().unwrap()
    }

    fn device(at: &str) -> Function {
        Function::new(bdf(at))
    }

    fn bridge(at: &str, secondary: u8, subordinate: u8) -> Function {
        Function {
            bridge: Some(BusRange {
                secondary,
                subordinate,
            }),
            ..device(at)
        }
    }

    /// Returns a root port, a switch with two ports, a device with two functions, and one with virtual functions on the
    /// next bus.
    fn switch() -> Vec<Function> {
        vec![
            bridge("40:01.1", 0x41, 0x50),
            bridge("41:00.0", 0x42, 0x50),
            bridge("42:00.0", 0x43, 0x43),
            bridge("42:01.0", 0x44, 0x46),
            device("43:00.0"),
            device("43:00.1"),
            device("44:00.0"),
            Function {
                physical_function: Ok(bdf("44:00.0")),
                ..device("45:00.2")
            },
            device("00:1f.0"),
        ]
    }

    #[test]
    fn the_tree_is_built_from_bus_numbers_alone() {
        let tree = Tree::from_bus_numbers(switch());
        let (root, chain) = tree.chain(bdf("43:00.0")).unwrap();
        assert_eq!(root.to_string(), "pci0000:40");
        assert_eq!(chain, [bdf("40:01.1"), bdf("41:00.0"), bdf("42:00.0")]);
        assert_eq!(tree.chain(bdf("00:1f.0")).unwrap().1, []);
        assert_eq!(tree.roots().len(), 2);
        assert_eq!(tree.siblings(bdf("43:00.0")).count(), 1);
        assert_eq!(tree.children(Parent::Bridge(bdf("41:00.0"))).count(), 2);
    }

    #[test]
    fn a_virtual_function_beyond_the_secondary_bus_keeps_its_bridge() {
        let tree = Tree::from_bus_numbers(switch());
        assert_eq!(
            tree.parent(bdf("45:00.2")),
            Some(Parent::Bridge(bdf("42:01.0")))
        );
        let virtuals: Vec<Bdf> = tree
            .virtual_functions(bdf("44:00.0"))
            .map(|f| f.bdf)
            .collect();
        assert_eq!(virtuals, [bdf("45:00.2")]);
    }

    #[test]
    fn domains_do_not_mix_and_may_be_wide() {
        let tree = Tree::from_bus_numbers([
            bridge("0000:00:01.0", 1, 1),
            device("0001:01:00.0"),
            device("10000:01:00.0"),
        ]);
        let (root, chain) = tree.chain(bdf("10000:01:00.0")).unwrap();
        assert_eq!((root.to_string().as_str(), chain.len()), ("pci10000:01", 0));
        assert_eq!(tree.chain(bdf("0001:01:00.0")).unwrap().0.domain, 1);
    }

    #[test]
    fn parents_that_cannot_be_are_cut() {
        let (a, b, gone) = (bdf("01:00.0"), bdf("02:00.0"), bdf("03:00.0"));
        let tree = Tree::new([
            (Function::new(a), Parent::Bridge(b)),
            (Function::new(b), Parent::Bridge(a)),
            (device("04:00.0"), Parent::Bridge(gone)),
        ]);
        assert!(tree.chain(a).is_some() && tree.chain(b).is_some());
        assert_eq!(tree.chain(bdf("04:00.0")).unwrap().0.bus, 4);
        assert_eq!(tree.chain(gone), None);
    }

    #[test]
    fn bridges_without_buses_behind_them_have_no_children() {
        let tree = Tree::from_bus_numbers([
            bridge("05:00.0", 5, 5),
            bridge("06:00.0", 0, 0),
            device("00:02.0"),
        ]);
        assert!(
            tree.functions()
                .all(|f| tree.chain(f.bdf).unwrap().1.is_empty())
        );
    }
}
