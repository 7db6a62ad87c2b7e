//! Differences between nodes of one cluster.
//!
//! [`Facts`] are properties that should be equal on nodes of the same kind. [`differences`] compares two nodes;
//! [`outliers`] compares many nodes with the majority.
//!
//! ```
//! use gdr_node::compare::{Facts, differences};
//! use gdr_node::example;
//!
//! let (good, bad) = (Facts::read(&example::healthy()), Facts::read(&example::node()));
//! let differ: Vec<String> = differences(&good, &bad)
//!     .differ
//!     .iter()
//!     .map(|difference| difference.key.to_string())
//!     .collect();
//! assert_eq!(differ, ["mlx5_7 link width", "0000:37:02.0 ACS", "0000:97:03.0 link width"]);
//! ```

mod facts;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

pub use facts::{Facts, Key};

use crate::source::{Absence, Datum, DatumExt};

/// A part of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Category {
    /// The machine and its firmware.
    Node,
    /// The kernel and how it was started.
    Kernel,
    /// The kernel modules and their parameters.
    Modules,
    /// The GPUs.
    Gpus,
    /// The RDMA devices.
    Nics,
    /// The PCI ports between them.
    Ports,
    /// How far apart GPUs and RDMA devices are.
    Topology,
    /// Limits and services.
    Limits,
    /// The libraries.
    Libraries,
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Node => "node",
            Self::Kernel => "kernel",
            Self::Modules => "modules",
            Self::Gpus => "GPUs",
            Self::Nics => "NICs",
            Self::Ports => "PCI ports",
            Self::Topology => "topology",
            Self::Limits => "limits",
            Self::Libraries => "libraries",
        })
    }
}

/// A fact that differs between two nodes. [`Absence::Missing`] means that a node lacks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The fact.
    pub key: Key,
    /// The first node's value.
    pub first: Datum<String>,
    /// The second node's value.
    pub second: Datum<String>,
}

/// The differences between two nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// The number of facts compared.
    pub compared: usize,
    /// The facts that differ.
    pub differ: Vec<Difference>,
    /// Facts unknown for one or both nodes; a collection as root may include them.
    pub unknown: Vec<Difference>,
}

/// Compares two nodes.
pub fn differences(first: &Facts, second: &Facts) -> Differences {
    let mut found = Differences::default();
    for key in keys(&[first, second]) {
        let (Some(a), Some(b)) = (value(first, key), value(second, key)) else {
            continue;
        };
        found.compared += 1;
        let difference = || Difference {
            key: key.clone(),
            first: a.clone(),
            second: b.clone(),
        };
        if a.is_unknown() || b.is_unknown() {
            found.unknown.push(difference());
        } else if a != b {
            found.differ.push(difference());
        }
    }
    found
}

/// A fact on which the nodes of a fleet differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outliers {
    /// The fact.
    pub key: Key,
    /// The value on more than half of the nodes for which it is known; `None` without a majority.
    pub usual: Option<Datum<String>>,
    /// The number of nodes with the usual value.
    pub usual_count: usize,
    /// The number of nodes for which it is known.
    pub known: usize,
    /// The other values, rarest first, each with the indexes of its nodes in the given list.
    pub others: Vec<(Datum<String>, Vec<usize>)>,
}

/// Compares many nodes. Returns every fact on which they disagree.
pub fn outliers(fleet: &[&Facts]) -> Vec<Outliers> {
    let mut found = Vec::new();
    for key in keys(fleet) {
        let mut values: Vec<(Datum<String>, Vec<usize>)> = Vec::new();
        for (place, facts) in fleet.iter().enumerate() {
            let Some(value) = value(facts, key).filter(|value| !value.is_unknown()) else {
                continue;
            };
            match values.iter_mut().find(|(known, _)| *known == value) {
                Some((_, places)) => places.push(place),
                None => values.push((value, vec![place])),
            }
        }
        if values.len() < 2 {
            continue;
        }
        let known: usize = values.iter().map(|(_, places)| places.len()).sum();
        let majority = values
            .iter()
            .position(|(_, places)| 2 * places.len() > known);
        let usual = majority.map(|at| values.remove(at));
        values.sort_by(|(_, a), (_, b)| (a.len(), a).cmp(&(b.len(), b)));
        found.push(Outliers {
            key: key.clone(),
            usual_count: usual.as_ref().map_or(0, |(_, places)| places.len()),
            usual: usual.map(|(value, _)| value),
            known,
            others: values,
        });
    }
    found
}

/// Returns every key that any of the nodes has.
fn keys<'a>(all: &[&'a Facts]) -> BTreeSet<&'a Key> {
    let keys = all.iter().flat_map(|facts| facts.iter());
    keys.map(|(key, _)| key).collect()
}

/// Returns a node's fact; `None` if the device itself is absent, which is a different fact.
fn value(facts: &Facts, key: &Key) -> Option<Datum<String>> {
    if let Some(value) = facts.get(key) {
        return Some(value.clone());
    }
    let there = Key {
        name: Facts::THERE.to_owned(),
        ..key.clone()
    };
    let is_part = key.name != Facts::THERE && needs_thing(key.category);
    if is_part && facts.get(&there).is_none() {
        return None;
    }
    Some(Err(Absence::Missing))
}

/// Returns whether the subjects of a category are devices that may be absent.
fn needs_thing(category: Category) -> bool {
    matches!(category, Category::Gpus | Category::Nics | Category::Ports)
}

/// Returns the nodes with the number of their outlying facts, highest first.
pub fn suspects(found: &[Outliers]) -> Vec<(usize, usize)> {
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    let with_majority = found.iter().filter(|outliers| outliers.usual.is_some());
    for (_, places) in with_majority.flat_map(|outliers| &outliers.others) {
        for place in places {
            *counts.entry(*place).or_default() += 1;
        }
    }
    let mut counts: Vec<(usize, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(place, count)| (std::cmp::Reverse(*count), *place));
    counts
}
