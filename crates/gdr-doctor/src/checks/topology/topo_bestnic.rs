use gdr_node::RdmaPort;

use crate::checks::prelude::*;
use crate::nic_assignment::assign;

pub(super) const CHECK: Check = Check {
    id: CheckId("topo.bestnic"),
    title: "each GPU has a near NIC of its own, or no equivalent NIC is idle",
    why: "Jobs use the nearest NIC for each GPU. If two GPUs share their nearest NIC while an \
          equivalent NIC is nearest to no GPU, half of the network bandwidth is unused.",
    inputs: "The distances of all GPUs and NICs; state, link layer and rate of each NIC's ports.",
    criteria: "pass: each GPU has a near NIC of its own, or no equivalent NIC is idle. warn: GPUs \
               share a NIC while an active one of the same rate and link layer is idle. skip: no \
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
    let nic_of = assign(pairs.iter().map(|pair| (pair.gpu.bdf, pair.nic.bdf)));
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
        Finding::pass("GPUs share the NICs near them; no equivalent NIC is idle")
    } else {
        let gpus: Vec<String> = sharing.iter().map(|gpu| gpu.index.to_string()).collect();
        let idle: Vec<&str> = idle.iter().map(|nic| nic.name.as_str()).collect();
        let mut wanted: Vec<String> = used.iter().map(|nic| name(*nic)).collect();
        wanted.extend(idle.iter().map(|name| (*name).to_owned()));
        Finding::warn(format!(
            "{} {} a NIC with other GPUs while {}, of the same kind, {} idle",
            gpus.join(", "),
            if gpus.len() == 1 { "shares" } else { "share" },
            idle.join(", "),
            if idle.len() == 1 { "is" } else { "are" },
        ))
        .fix(
            Fix::hardware(
                "Move cards so that each GPU has a NIC below its switch",
                format!(
                    "{} could go to the switch of {}",
                    idle.join(", "),
                    gpus.join(", ")
                ),
            )
            .risk(Risk::Low, "the PCI addresses of the cards change"),
        )
        .fix(Fix::user(
            "Until then choose the NIC of each rank explicitly, and measure",
            format!("export NCCL_IB_HCA='={}'", wanted.join(",")),
        ))
    };
    for line in best {
        finding = finding.evidence("nearest NIC", line);
    }
    Ok(finding)
}

/// Returns the kind of a NIC: link layer and rate of its first port.
fn kind(nic: &Nic<'_>) -> Option<(String, String)> {
    let port = nic.rdma?.ports.first()?;
    Some((
        port.link_layer.as_ref().ok()?.clone(),
        port.rate.as_ref().ok()?.clone(),
    ))
}

/// Returns the active NICs that are not used and have the same kind as one that is.
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
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn eight_gpus_with_eight_near_nics_pass_although_the_ethernet_nics_are_idle() {
        let found = judged(&CHECK, &example::healthy(), Pass);
        assert_eq!(found.evidence.len(), 8);
    }

    #[test]
    fn sharing_without_an_idle_equivalent_passes() {
        let shared = without_nics(example::healthy(), [2, 4, 7, 9]);
        assert_eq!(verdict(&CHECK, &shared), Pass);
    }

    #[test]
    fn sharing_while_an_equivalent_nic_is_idle_is_a_warning() {
        // mlx5_2 is gone, and the Ethernet NIC of the socket is now like the others.
        let node = without_nics(example::healthy(), [2]);
        let port = "/sys/class/infiniband/mlx5_0/ports/1";
        let node = node
            .file(&format!("{port}/rate"), "400 Gb/sec (4X NDR)\n")
            .file(&format!("{port}/link_layer"), "InfiniBand\n");
        let found = judged(&CHECK, &node, Warn);
        assert_contains!(found.summary, "mlx5_0");
        let down = node.file(&format!("{port}/state"), "1: DOWN\n");
        assert_eq!(verdict(&CHECK, &down), Pass);
    }
}
