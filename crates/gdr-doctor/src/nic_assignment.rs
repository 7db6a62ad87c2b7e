//! The assignment of near NICs to GPUs.

use std::collections::BTreeMap;

use gdr_node::Bdf;

/// Assigns near NICs to GPUs, one each, for as many GPUs as possible: a maximum matching by
/// augmenting paths. Each pair is a GPU and a NIC that is near to it, the preferred NIC first.
pub(crate) fn assign(pairs: impl IntoIterator<Item = (Bdf, Bdf)>) -> BTreeMap<Bdf, Bdf> {
    let mut near: BTreeMap<Bdf, Vec<Bdf>> = BTreeMap::new();
    for (gpu, nic) in pairs {
        near.entry(gpu).or_default().push(nic);
    }
    let mut gpu_of: BTreeMap<Bdf, Bdf> = BTreeMap::new();
    for gpu in near.keys() {
        place(*gpu, &near, &mut gpu_of, &mut Vec::new());
    }
    gpu_of.into_iter().map(|(nic, gpu)| (gpu, nic)).collect()
}

/// Finds a NIC for a GPU: a free one, else one whose GPU can move to another.
fn place(
    gpu: Bdf,
    near: &BTreeMap<Bdf, Vec<Bdf>>,
    gpu_of: &mut BTreeMap<Bdf, Bdf>,
    tried: &mut Vec<Bdf>,
) -> bool {
    let own = || near.get(&gpu).into_iter().flatten();
    if let Some(free) = own().find(|nic| !gpu_of.contains_key(nic)) {
        gpu_of.insert(*free, gpu);
        return true;
    }
    for nic in own() {
        if tried.contains(nic) {
            continue;
        }
        tried.push(*nic);
        let other = gpu_of.get(nic).copied();
        if other.is_some_and(|other| place(other, near, gpu_of, tried)) {
            gpu_of.insert(*nic, gpu);
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_moves_to_another_nic_if_that_serves_one_more() {
        let at = |bus: u8| Bdf {
            domain: 0,
            bus,
            device: 0,
            function: 0,
        };
        let near = [(1, 10), (1, 11), (2, 10), (3, 11)];
        let nic_of = assign(near.map(|(gpu, nic)| (at(gpu), at(nic))));
        assert_eq!(nic_of.len(), 2);
        let nic_of = assign([(1, 10), (1, 11), (2, 10)].map(|(gpu, nic)| (at(gpu), at(nic))));
        assert_eq!((nic_of[&at(1)], nic_of[&at(2)]), (at(11), at(10)));
    }
}
