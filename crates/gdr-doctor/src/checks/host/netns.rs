use std::collections::BTreeSet;

use gdr_node::Netdev;

use crate::checks::network::ports::{Port, ports};
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("netns"),
    title: "the interfaces of RoCE devices are in this network namespace",
    why: "A RoCE connection uses a GID, and each GID belongs to a network interface. A container \
          with its own network namespace sees the device and its GIDs, but not the interface: \
          connecting fails with \"No such device\".",
    inputs: "/sys/class/infiniband/*/ports/*/gid_attrs/ndevs/*, and whether /sys/class/net has \
          such an interface.",
    criteria: "pass: the interfaces of all GIDs are in the namespace. fail: one is not. skip: no \
               Ethernet port with a GID. unknown: not collected.",
    sources: &[
        "https://github.com/NVIDIA/nccl/issues/925",
        "rdma-system(8): rdma system set netns exclusive",
    ],
    workloads: Workload::RDMA,
    scope: Scope::Several(run),
    otherwise: Some("no Ethernet port has a GID with an interface"),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let ports = ports(context)?;
    let netdevs = context.inventory.netdevs.by_ref();
    let here = netdevs.known("the list of network interfaces")?;
    let ethernet = ports.iter().filter(|port| port.is_ethernet());
    Ok(runner::each(ethernet, |port| {
        (port.subject(), judge(context, port, here))
    }))
}

fn judge(context: &Context<'_>, port: &Port<'_>, here: &[Netdev]) -> Judgement {
    let gids = port.gids(context).ok().into_iter().flatten();
    let names: BTreeSet<String> = gids.filter_map(|gid| gid.netdev).collect();
    if names.is_empty() {
        return Err(Unjudged::OutOfScope);
    }
    let is_away = |name: &&String| here.iter().all(|netdev| netdev.name != **name);
    let away: Vec<&String> = names.iter().filter(is_away).collect();
    let path = format!("{}/gid_attrs/ndevs", port.path);
    // A capture may have only some of the interfaces.
    let left_out = (away.iter())
        .map(|name| context.source.link(&format!("/sys/class/net/{name}")))
        .find(DatumExt::is_unknown);
    if let Some(absence) = left_out {
        absence.known("whether the interface of its GIDs is in this network namespace")?;
    }
    let Some(name) = away.first() else {
        let names: Vec<String> = names.into_iter().collect();
        return Ok(Finding::pass(
            "its interface is in this network \
                                 namespace",
        )
        .evidence(path, names.join(" ")));
    };
    let device = port.device;
    Ok(Finding::fail(format!(
        "its GIDs belong to {name}, which is not in this network namespace: connecting fails with \
         \"No such device\""
    ))
    .evidence(path, name)
    .evidence("/sys/class/net", format!("no {name}"))
    .fix(Fix::user(
        "Start the container in the host's network namespace",
        "docker run --network host …   # Kubernetes: hostNetwork: true",
    ))
    .fix(
        Fix::run(
            "Move the interface and its RDMA device into the namespace",
            format!(
                "rdma system set netns exclusive; ip link set {name} netns NAMESPACE; rdma dev set \
                 {device} netns NAMESPACE"
            ),
        )
        .risk(Risk::Medium, "the device leaves the host's namespace"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn an_interface_that_a_capture_leaves_out_is_unknown() {
        let whole = example::healthy();
        let left_out = |path: &str| path.contains("/net/enp6s0np0");
        let part = (whole.paths()).filter(|path| !left_out(path)).fold(
            MemorySource::partial(),
            |part, path| match (whole.link(path), whole.read(path)) {
                (Ok(target), _) => part.link_to(path, &target),
                (_, Ok(bytes)) => part.file(path, bytes),
                _ => part.directory(path),
            },
        );
        let mut found = verdicts(&CHECK, &part);
        found.sort();
        assert_eq!(found, [Pass, Unknown]);
        let away = whole.without("/sys/class/net/enp6s0np0");
        assert_eq!(verdict(&CHECK, &away), Fail);
    }

    #[test]
    fn interfaces_in_the_namespace_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 2]);
    }

    #[test]
    fn an_interface_in_another_namespace_fails() {
        let node = example::healthy().without("/sys/class/net/enp6s0np0");
        let found = judged(&CHECK, &node, Fail);
        assert_eq!(found.subject.to_string(), "mlx5_0 port 1");
    }

    #[test]
    fn uncollected_interfaces_are_unknown_and_nodes_without_ethernet_are_skipped() {
        let node = example::healthy()
            .without("/sys/class/net")
            .not_collected("/sys/class/net");
        assert_eq!(verdict(&CHECK, &node), Unknown);
        assert_eq!(verdict(&CHECK, &without_ethernet()), Skip);
    }
}
