//! The tree that PCI functions form.

use std::collections::BTreeMap;
use std::fmt;

use gdr_cuda::Bdf;

use super::function::Function;

/// A root bus: the one right below a host bridge.
///
/// This is what Linux calls `pci0000:3a`. Socket, chiplet or virtual machine may have many.
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

/// What a function hangs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Parent {
    /// A root bus.
    Root(RootBus),
    /// A bridge, or the function that a domain of its own lies behind (VMD).
    Bridge(Bdf),
}

/// The PCI functions of a node and how they hang together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    functions: BTreeMap<Bdf, Function>,
    parents: BTreeMap<Bdf, Parent>,
}

impl Tree {
    /// A tree of functions whose parents are known.
    ///
    /// A parent that is not itself among the functions, and one that would close a circle, is
    /// replaced by the root bus with the number of the function's own bus.
    pub fn new(functions: impl IntoIterator<Item = (Function, Parent)>) -> Self {
        let mut tree = Self::default();
        for (function, parent) in functions {
            tree.parents.insert(function.bdf, parent);
            tree.functions.insert(function.bdf, function);
        }
        tree.cut_impossible_parents();
        tree
    }

    /// A tree that is worked out from the bus numbers of its bridges, which is all that lspci
    /// tells.
    ///
    /// Virtual functions may lie on buses that no bridge has as its secondary one; they hang on
    /// the deepest bridge whose range holds their bus.
    pub fn from_bus_numbers(functions: impl IntoIterator<Item = Function>) -> Self {
        let functions: Vec<Function> = functions.into_iter().collect();
        let mut bridges: BTreeMap<u32, Vec<&Function>> = BTreeMap::new();
        for function in functions
            .iter()
            .filter(|function| function.bridge.is_some())
        {
            bridges
                .entry(function.bdf.domain)
                .or_default()
                .push(function);
        }
        let parent = |function: &Function| {
            let bdf = function.bdf;
            let candidates = bridges
                .get(&bdf.domain)
                .map(Vec::as_slice)
                .unwrap_or_default();
            let deepest = candidates
                .iter()
                .filter_map(|bridge| Some((bridge.bdf, bridge.bridge?)))
                .filter(|(at, range)| range.contains(bdf.bus) && at.bus != bdf.bus && *at != bdf)
                .max_by_key(|(_, range)| range.secondary);
            match deepest {
                Some((bridge, _)) => Parent::Bridge(bridge),
                None => Parent::Root(RootBus {
                    domain: bdf.domain,
                    bus: bdf.bus,
                }),
            }
        };
        let parents: Vec<Parent> = functions.iter().map(parent).collect();
        Self::new(functions.into_iter().zip(parents))
    }

    /// The function at an address.
    pub fn get(&self, bdf: Bdf) -> Option<&Function> {
        self.functions.get(&bdf)
    }

    /// All functions, ordered by address.
    pub fn functions(&self) -> impl ExactSizeIterator<Item = &Function> {
        self.functions.values()
    }

    /// How many functions there are.
    pub fn len(&self) -> usize {
        self.functions.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// What a function hangs on.
    pub fn parent(&self, bdf: Bdf) -> Option<Parent> {
        self.parents.get(&bdf).copied()
    }

    /// The functions that hang on this one, ordered by address.
    pub fn children(&self, of: Parent) -> impl Iterator<Item = &Function> {
        self.functions
            .values()
            .filter(move |child| self.parent(child.bdf) == Some(of))
    }

    /// The root buses, in order.
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

    /// The other functions of the same device.
    pub fn siblings(&self, bdf: Bdf) -> impl Iterator<Item = &Function> {
        let first = Bdf { function: 0, ..bdf };
        let last = Bdf { function: 7, ..bdf };
        self.functions
            .range(first..=last)
            .map(|(_, f)| f)
            .filter(move |f| f.bdf != bdf)
    }

    /// The virtual functions of a physical one.
    pub fn virtual_functions(&self, physical: Bdf) -> impl Iterator<Item = &Function> {
        self.functions
            .values()
            .filter(move |function| function.physical_function.present() == Some(&physical))
    }

    /// The root bus and the bridges above a function, from the root down. `None` for a function
    /// that is not in the tree.
    pub fn chain(&self, bdf: Bdf) -> Option<(RootBus, Vec<Bdf>)> {
        let mut bridges = Vec::new();
        let mut at = bdf;
        // No circle is left in the parents; the bound keeps a mistake from becoming a hang.
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
        // Functions whose way to a root is already known to end there.
        let mut rooted: std::collections::BTreeSet<Bdf> = std::collections::BTreeSet::new();
        for start in all {
            let mut way = vec![start];
            let mut at = start;
            while let Some(Parent::Bridge(bridge)) = self.parents.get(&at).copied() {
                if rooted.contains(&bridge) {
                    break;
                }
                if way.contains(&bridge) {
                    self.parents.insert(bridge, own_root(bridge));
                    break;
                }
                way.push(bridge);
                at = bridge;
            }
            rooted.extend(way);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pci::BusRange;
    use crate::source::Datum;

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

    /// A root port, a switch with two ports, a device with two functions, one with virtual
    /// functions on the next bus.
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
                physical_function: Datum::Present(bdf("44:00.0")),
                ..device("45:00.2")
            },
            device("00:1f.0"),
        ]
    }

    #[test]
    fn bus_numbers_alone_give_the_tree() {
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
    fn bridges_that_name_themselves_or_nothing_have_no_children() {
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
