//! `netns`: interfaces of RoCE devices are in this network namespace.

use std::collections::BTreeSet;

use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::checks::network::ports::ports;
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::{Action, Fix, Risk};

pub(super) const CHECK: Check = Check {
    id: CheckId("netns"),
    group: Group::Host,
    title: "the interfaces of RoCE devices are in this network namespace",
    documentation: Documentation {
        means: "A connection over RoCE goes by a GID, and a GID belongs to an interface. A \
                container with a network namespace of its own sees the device and its GIDs, but \
                the interface is elsewhere: connecting fails with \"No such device\".",
        reads: "/sys/class/infiniband/*/ports/*/gid_attrs/ndevs/*, and whether /sys/class/net has \
                such an interface.",
        judges: "pass: every GID's interface is here. fail: one is not. skip: no Ethernet port \
                 with a GID. unknown: not collected.",
        sources: &[
            "https://github.com/NVIDIA/nccl/issues/925",
            "rdma-system(8): rdma system set netns exclusive",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    let ports = match ports(context) {
        Ok(ports) => ports,
        Err(why) => return why,
    };
    let netdevs = &context.inventory.netdevs;
    let Some(here) = netdevs.present() else {
        return vec![Finding::unknown(
            Subject::Node,
            "the list of network interfaces",
            netdevs,
        )];
    };
    let mut findings = Vec::new();
    for port in ports.iter().filter(|port| port.is_ethernet()) {
        let names: BTreeSet<String> = (port.gids(context).into_present())
            .into_iter()
            .flatten()
            .filter_map(|gid| gid.netdev)
            .collect();
        if names.is_empty() {
            continue;
        }
        let away: Vec<&String> = names
            .iter()
            .filter(|name| !here.iter().any(|netdev| netdev.name == **name))
            .collect();
        let path = format!("{}/gid_attrs/ndevs", port.path);
        findings.push(match away.first() {
            None => Finding::pass(port.subject(), "its interface is here")
                .evidence(path, names.into_iter().collect::<Vec<_>>().join(" ")),
            Some(name) => Finding::fail(
                port.subject(),
                format!(
                    "its GIDs belong to {name}, which is not in this network namespace: \
                     connecting fails with \"No such device\""
                ),
            )
            .evidence(path, (*name).clone())
            .evidence("/sys/class/net", format!("no {name}"))
            .fix(Fix::user(
                "Start the container in the host's network",
                "docker run --network host …   # Kubernetes: hostNetwork: true",
            ))
            .fix(
                Fix::now(
                    "Move the interface and its RDMA device into the namespace",
                    Action::Command {
                        line: format!(
                            "rdma system set netns exclusive; ip link set {name} netns NAMESPACE; \
                             rdma dev set {} netns NAMESPACE",
                            port.device
                        ),
                    },
                )
                .risk(Risk::Medium, "the device leaves the host's namespace"),
            ),
        });
    }
    if findings.is_empty() {
        findings.push(Finding::skip(
            "no Ethernet port has a GID with an interface",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts, worst};
    use crate::finding::Verdict;

    #[test]
    fn interfaces_that_are_here_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass; 2]);
    }

    #[test]
    fn an_interface_elsewhere_fails() {
        let node = example::healthy().without("/sys/class/net/enp6s0np0");
        let found = worst(&CHECK, &node);
        assert_eq!(found.verdict, Verdict::Fail);
        assert_eq!(found.subject.to_string(), "mlx5_0 port 1");
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_no_ethernet_is_no_question() {
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let node = example::healthy()
            .without("/sys/class/net")
            .not_collected("/sys/class/net");
        assert_eq!(verdict(&CHECK, &node), Verdict::Unknown);
        let mut node = example::healthy();
        for name in ["mlx5_0", "mlx5_5"] {
            node = node.without(&format!("/sys/class/infiniband/{name}"));
        }
        assert_eq!(verdict(&CHECK, &node), Verdict::Skip);
    }
}
