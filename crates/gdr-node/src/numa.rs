//! The NUMA layout of a node.

use std::collections::BTreeMap;

use crate::cpu_set::CpuSet;
use crate::pci::NumaNode;
use crate::source::{Absence, Datum, Source};

/// Where Linux describes the NUMA nodes.
const NODES: &str = "/sys/devices/system/node";

/// The most numbers in a list such as `0-63,128-191`.
const MOST_NUMBERS: u32 = 1 << 16;

/// The NUMA nodes of a node: which are online, how far apart they are, and in which socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaLayout {
    /// The online nodes, ascending.
    pub online: Datum<Vec<NumaNode>>,
    /// Distances from each node to the online nodes, in ACPI SLIT units: 10 from a node to itself.
    pub distances: BTreeMap<NumaNode, Vec<u32>>,
    /// The socket of each node, by its first CPU. Memory without CPUs has none.
    pub sockets: BTreeMap<NumaNode, u32>,
    /// The CPUs of each node.
    pub cpus: BTreeMap<NumaNode, CpuSet>,
}

impl NumaLayout {
    /// Returns a layout about which nothing is known.
    pub fn unknown() -> Self {
        Self {
            online: Err(Absence::NotCollected),
            distances: BTreeMap::new(),
            sockets: BTreeMap::new(),
            cpus: BTreeMap::new(),
        }
    }

    /// Returns a layout of this many nodes, numbered from 0, about which nothing else is known.
    pub fn of_nodes(count: u32) -> Self {
        Self {
            online: Ok((0..count.min(MOST_NUMBERS)).map(NumaNode).collect()),
            ..Self::unknown()
        }
    }

    /// Reads the layout from `/sys/devices/system/node` and the CPUs' topology.
    pub fn read(source: &impl Source) -> Self {
        let online = source
            .text(&format!("{NODES}/online"))
            .and_then(|text| parse_list(&text).ok_or(Absence::Missing))
            .map(|numbers| numbers.into_iter().map(NumaNode).collect::<Vec<_>>());
        let mut layout = Self {
            online,
            ..Self::unknown()
        };
        for node in layout.online.as_ref().ok().cloned().unwrap_or_default() {
            if let Ok(text) = source.text(&format!("{NODES}/node{node}/distance")) {
                let distances = text.split_whitespace().map_while(|word| word.parse().ok());
                layout.distances.insert(node, distances.collect());
            }
            let cpus: Datum<CpuSet> = source
                .text(&format!("{NODES}/node{node}/cpulist"))
                .and_then(|text| text.parse().map_err(|_| Absence::Missing));
            let first_cpu = cpus
                .as_ref()
                .ok()
                .and_then(|cpus| cpus.iter().next())
                .ok_or(Absence::Missing);
            if let Ok(cpus) = cpus {
                layout.cpus.insert(node, cpus);
            }
            let socket = first_cpu.and_then(|cpu| {
                source
                    .text(&format!(
                        "/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"
                    ))
                    .and_then(|text| text.parse().ok().ok_or(Absence::Missing))
            });
            if let Ok(socket) = socket {
                layout.sockets.insert(node, socket);
            }
        }
        layout
    }

    /// Returns the only node, if there is exactly one.
    pub fn only_node(&self) -> Option<NumaNode> {
        match self.online.as_ref().ok().map(Vec::as_slice) {
            Some([node]) => Some(*node),
            _ => None,
        }
    }

    /// Returns whether two nodes share a socket, like the quadrants of an EPYC (NPS2, NPS4) or the clusters of a Xeon
    /// (SNC).
    pub fn same_socket(&self, a: NumaNode, b: NumaNode) -> Option<bool> {
        Some(self.sockets.get(&a)? == self.sockets.get(&b)?)
    }
}

/// Parses a list of numbers and ranges, such as `0-2,5`. Returns `None` if the text is not such a list.
pub(crate) fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse::<u32>().ok()?);
        if last.checked_sub(first)? >= MOST_NUMBERS - numbers.len() as u32 {
            return None;
        }
        numbers.extend(first..=last);
    }
    numbers.sort_unstable();
    numbers.dedup();
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MemorySource;

    #[test]
    fn lists_of_the_kernel_are_read_and_others_are_not() {
        assert_eq!(parse_list("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_list(""), Some(vec![]));
        for bad in ["x", "3-1", "0-4294967295", "1-", "-1"] {
            assert_eq!(parse_list(bad), None, "{bad}");
        }
    }

    #[test]
    fn quadrants_of_one_socket_are_distinguished_from_other_sockets() {
        let mut node = MemorySource::new().file(&format!("{NODES}/online"), "0-2\n");
        for (number, socket, distances) in
            [(0, 0, "10 12 32"), (1, 0, "12 10 32"), (2, 1, "32 32 10")]
        {
            node = node
                .file(
                    &format!("{NODES}/node{number}/cpulist"),
                    format!("{number}-{number}"),
                )
                .file(&format!("{NODES}/node{number}/distance"), distances)
                .file(
                    &format!("/sys/devices/system/cpu/cpu{number}/topology/physical_package_id"),
                    socket.to_string(),
                );
        }
        let layout = NumaLayout::read(&node);
        assert_eq!(layout.same_socket(NumaNode(0), NumaNode(1)), Some(true));
        assert_eq!(layout.same_socket(NumaNode(0), NumaNode(2)), Some(false));
        assert_eq!(layout.same_socket(NumaNode(0), NumaNode(9)), None);
        assert_eq!(layout.distances[&NumaNode(1)], [12, 10, 32]);
        assert_eq!(layout.cpus[&NumaNode(2)].to_string(), "2");
        assert_eq!(layout.only_node(), None);
        assert_eq!(NumaLayout::of_nodes(1).only_node(), Some(NumaNode(0)));
    }
}
