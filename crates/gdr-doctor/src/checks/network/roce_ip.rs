//! `roce.ip`: RoCE ports have an IP address.

use gdr_node::Datum;

use super::ports::{Port, each};
use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::{Finding, Verdict};
use crate::fix::{Action, Fix};

pub(super) const CHECK: Check = Check {
    id: CheckId("roce.ip"),
    group: Group::Network,
    title: "RoCE ports have an IP address",
    documentation: Documentation {
        means: "RoCE v2 goes over UDP, and its GIDs are made of the IP addresses of the interface. \
                Without one only link-local GIDs are left, which no router passes and which most \
                libraries do not take.",
        reads: "The GID table in /sys/class/infiniband/*/ports/*/gids, in which every address of \
                the interface is, of Ethernet ports that are up.",
        judges: "pass: a GID of an IPv4 address or of a global IPv6 address. fail: none. \
                 warn: none, on a device that no GPU is nearest to. info: none, since the interface \
                 is part of a bond. skip: no Ethernet port is up. unknown: not collected.",
        sources: &[
            "InfiniBand Architecture Specification, Annex A17 (RoCEv2)",
            "https://github.com/NVIDIA/nccl/issues/1796",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[CheckId("netns")],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    each(
        context,
        |port| port.is_ethernet() && port.is_active(),
        |port| judge(context, port),
        "no Ethernet port of an RDMA device is up",
    )
}

/// How bad it is that nothing can be reached by a port: not every one is meant for data.
pub(super) fn severity(context: &Context<'_>, port: &Port<'_>) -> Verdict {
    if port.serves_a_gpu(context) {
        Verdict::Fail
    } else {
        Verdict::Warn
    }
}

fn judge(context: &Context<'_>, port: &Port<'_>) -> Finding {
    let path = format!("{}/gids", port.path);
    let gids = match port.gids(context) {
        Datum::Present(gids) => gids,
        absent => return Finding::unknown(port.subject(), "its GID table", &absent),
    };
    if let Some(gid) = gids.iter().find(|gid| gid.is_routable()) {
        let address = match gid.address.to_ipv4_mapped() {
            Some(address) => address.to_string(),
            None => gid.address.to_string(),
        };
        return Finding::pass(port.subject(), format!("it has the address {address}"))
            .evidence(format!("{path}/{}", gid.index), gid.address.to_string());
    }
    if let Some(bond) = port.bond(context) {
        return Finding::info(
            port.subject(),
            format!("its interface is part of {bond}, whose addresses count"),
        )
        .evidence(path, format!("{} GIDs, none of an IP address", gids.len()));
    }
    let netdev = port.netdev(context).map(|netdev| netdev.name.clone());
    Finding::new(
        severity(context, port),
        port.subject(),
        "its interface has no IP address: only link-local GIDs are left",
    )
    .evidence(path, format!("{} GIDs, none of an IP address", gids.len()))
    .fix(Fix::now(
        "Give the interface an address",
        Action::Command {
            line: format!(
                "ip address add ADDRESS/PREFIX dev {}",
                netdev.unwrap_or_else(|| "INTERFACE".into())
            ),
        },
    ))
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::super::ports::without_ethernet;
    use super::*;
    use crate::checks::fixture::{verdict, verdicts, worst};

    const GIDS: &str = "/sys/class/infiniband/mlx5_0/ports/1/gids";

    #[test]
    fn ports_with_an_address_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass; 2]);
        assert!(
            worst(&CHECK, &example::healthy())
                .summary
                .contains("10.20.30.32")
        );
    }

    #[test]
    fn link_local_gids_alone_fail_next_to_a_gpu_and_are_warned_of_elsewhere() {
        let near = example::healthy().file(
            "/sys/class/infiniband/mlx5_1/ports/1/link_layer",
            "Ethernet\n",
        );
        let found = worst(&CHECK, &near);
        assert_eq!(found.verdict, Verdict::Fail);
        assert!(
            found.fixes[0].actions[0]
                .to_string()
                .ends_with("dev ibp25s0")
        );
        let far = example::healthy()
            .without(&format!("{GIDS}/2"))
            .without(&format!("{GIDS}/3"));
        assert_eq!(verdict(&CHECK, &far), Verdict::Warn);
        let master = "/sys/class/net/enp6s0np0/master";
        let bonded = far.link_to(master, "../../../virtual/net/bond0");
        assert_eq!(verdict(&CHECK, &bonded), Verdict::Info);
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_no_ethernet_is_no_question() {
        let node = example::healthy().without(GIDS).not_collected(GIDS);
        assert_eq!(verdict(&CHECK, &node), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &without_ethernet()), Verdict::Skip);
    }
}
