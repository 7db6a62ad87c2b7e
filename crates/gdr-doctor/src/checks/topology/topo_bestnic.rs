use std::collections::BTreeMap;

use gdr_node::RdmaPort;

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("topo.bestnic"),
    title: "each GPU has a near NIC of its own, or shares fairly",
    why: "Jobs use for each GPU the NIC nearest to it. Where two GPUs have the same one nearest \
          while a like NIC is nearest to none, half of the network is idle.",
    inputs: "The classes of every GPU with every NIC, and of each NIC the state, the link layer \
          and the rate of its ports.",
    criteria: "pass: each GPU finds a near NIC of its own, or no like NIC is left over. warn: GPUs \
          share a NIC while one of the same rate and link layer that is up is left over. skip: no \
          GPU or no NIC.",
    sources: &[
        "NCCL_IB_HCA, UCX_NET_DEVICES: documentation of NCCL and UCX",
        "OCI BM.GPU.H100.8 and AWS p4d topologies of NCCL",
    ],
    symptom_of: &["topo.pair", "nic.driver"],
    scope: Scope::Node(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Judgement {
    let pairs = runner::pairs(context)?;
    let nic_of = assign(&pairs);
    let name = |bdf: Bdf| {
        (context.nics().iter().find(|nic| nic.bdf == bdf))
            .map_or_else(|| bdf.to_string(), |nic| nic.name.clone())
    };
    let mut best = Vec::new();
    let mut sharing = Vec::new();
    for gpu in context.gpus() {
        match nic_of.get(&gpu.bdf) {
            Some(nic) => best.push(format!("{}: {}", gpu.index, name(*nic))),
            None => sharing.push(*gpu),
        }
    }
    let used: Vec<Bdf> = nic_of.values().copied().collect();
    let idle = idle(context, &used);
    let mut finding = if sharing.is_empty() {
        Finding::pass("each GPU has a near NIC of its own")
    } else if idle.is_empty() {
        Finding::pass("GPUs outnumber the NICs near them and share them; no like NIC is idle")
    } else {
        let gpus: Vec<String> = sharing.iter().map(|gpu| gpu.index.to_string()).collect();
        let idle: Vec<&str> = idle.iter().map(|nic| nic.name.as_str()).collect();
        let mut wanted: Vec<String> = used.iter().map(|nic| name(*nic)).collect();
        wanted.extend(idle.iter().map(|name| (*name).to_owned()));
        Finding::warn(format!(
            "{} {} a NIC with other GPUs while {} of the same kind {} nearest to none",
            gpus.join(", "),
            if gpus.len() == 1 { "shares" } else { "share" },
            idle.join(", "),
            if idle.len() == 1 { "is" } else { "are" },
        ))
        .fix(
            Fix::manual(
                "Move cards so that each GPU has a NIC below its switch",
                format!(
                    "{} could go to the switch of {}",
                    idle.join(", "),
                    gpus.join(", ")
                ),
            )
            .risk(Risk::Low, "addresses of cards change"),
        )
        .fix(Fix::user(
            "Until then name the NICs for each rank yourself and measure",
            format!("export NCCL_IB_HCA=={}", wanted.join(",")),
        ))
    };
    for line in best {
        finding = finding.evidence("nearest NIC", line);
    }
    Ok(finding)
}

/// A near NIC for as many GPUs as can have one to themselves: the largest matching, found by
/// lengthening it one GPU at a time.
fn assign(pairs: &[&Pair<'_>]) -> BTreeMap<Bdf, Bdf> {
    let mut near: BTreeMap<Bdf, Vec<Bdf>> = BTreeMap::new();
    for pair in pairs {
        near.entry(pair.gpu.bdf).or_default().push(pair.nic.bdf);
    }
    let mut gpu_of: BTreeMap<Bdf, Bdf> = BTreeMap::new();
    for gpu in near.keys() {
        place(*gpu, &near, &mut gpu_of, &mut Vec::new());
    }
    gpu_of.into_iter().map(|(nic, gpu)| (gpu, nic)).collect()
}

/// Finds a NIC for a GPU, moving others to another of theirs where that helps.
fn place(
    gpu: Bdf,
    near: &BTreeMap<Bdf, Vec<Bdf>>,
    gpu_of: &mut BTreeMap<Bdf, Bdf>,
    tried: &mut Vec<Bdf>,
) -> bool {
    for nic in near.get(&gpu).into_iter().flatten() {
        if tried.contains(nic) {
            continue;
        }
        tried.push(*nic);
        let free = match gpu_of.get(nic).copied() {
            None => true,
            Some(other) => place(other, near, gpu_of, tried),
        };
        if free {
            gpu_of.insert(*nic, gpu);
            return true;
        }
    }
    false
}

/// What a NIC is to a job: link layer and rate of its first port.
fn kind(nic: &Nic<'_>) -> Option<(String, String)> {
    let port = nic.rdma?.ports.first()?;
    Some((
        port.link_layer.as_ref().ok()?.clone(),
        port.rate.as_ref().ok()?.clone(),
    ))
}

/// The NICs that are nearest to no GPU, that are up, and that are like one that is used.
fn idle<'a, 'b>(context: &'b Context<'a>, used: &[Bdf]) -> Vec<&'b Nic<'a>> {
    let nics = context.nics();
    let kinds: Vec<_> = (nics.iter())
        .filter(|nic| used.contains(&nic.bdf))
        .filter_map(kind)
        .collect();
    let is_up = |nic: &Nic<'_>| {
        let port = nic.rdma.and_then(|rdma| rdma.ports.first());
        port.is_some_and(RdmaPort::is_active)
    };
    nics.iter()
        .filter(|nic| !used.contains(&nic.bdf) && is_up(nic))
        .filter(|nic| kind(nic).is_some_and(|kind| kinds.contains(&kind)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    fn without(node: MemorySource, numbers: &[usize]) -> MemorySource {
        numbers.iter().fold(node, |node, number| {
            node.without(&format!("/sys/class/infiniband/mlx5_{number}"))
        })
    }

    #[test]
    fn eight_gpus_with_eight_near_nics_pass_and_the_ethernet_ones_do_not_matter() {
        let found = worst(&CHECK, &example::healthy());
        assert_eq!(found.verdict, Pass);
        assert_eq!(found.evidence.len(), 8);
    }

    #[test]
    fn sharing_where_nothing_like_is_left_over_is_fair() {
        let shared = without(example::healthy(), &[2, 4, 7, 9]);
        assert_eq!(verdict(&CHECK, &shared), Pass);
    }

    #[test]
    fn sharing_while_a_like_nic_is_idle_is_warned_of() {
        // mlx5_2 is gone, and the Ethernet NIC of the socket is now like the others.
        let node = without(example::healthy(), &[2]);
        let port = "/sys/class/infiniband/mlx5_0/ports/1";
        let node = node
            .file(&format!("{port}/rate"), "400 Gb/sec (4X NDR)\n")
            .file(&format!("{port}/link_layer"), "InfiniBand\n");
        let found = worst(&CHECK, &node);
        assert_eq!(found.verdict, Warn);
        assert!(found.summary.contains("mlx5_0"), "{}", found.summary);
        let down = node.file(&format!("{port}/state"), "1: DOWN\n");
        assert_eq!(verdict(&CHECK, &down), Pass);
    }

    #[test]
    fn without_nics_nothing_is_judged() {
        let none = example::healthy().without("/sys/class/infiniband");
        assert_eq!(verdicts(&CHECK, &none), [Skip]);
    }
}
