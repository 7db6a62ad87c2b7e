//! `bond`: RDMA devices that stand for two ports are known.

use gdr_node::Datum;

use super::ports::ports;
use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::Fix;

pub(super) const CHECK: Check = Check {
    id: CheckId("bond"),
    group: Group::Network,
    title: "RDMA devices that stand for two ports (bond, LAG) are known",
    documentation: Documentation {
        means: "When two ports of a card are bonded, one RDMA device stands for both, under a name \
                like mlx5_bond_0. It carries management on many nodes, and libraries that take \
                every device would use it for data.",
        reads: "Names in /sys/class/infiniband; the link master of the devices' interfaces.",
        judges: "info: a device is a bond. skip: none is. unknown: not collected.",
        sources: &[
            "Linux drivers/net/ethernet/mellanox/mlx5/core/lag",
            "https://github.com/stas00/ml-engineering (network debugging)",
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
    let mut findings: Vec<Finding> = Vec::new();
    for port in &ports {
        let subject = Subject::Named(port.device.to_owned());
        if findings.iter().any(|found| found.subject == subject) {
            continue;
        }
        let master = port.netdev(context).and_then(|netdev| {
            let path = format!("/sys/class/net/{}/master", netdev.name);
            Some((
                path.clone(),
                context.source.link_name(&path).into_present()?,
            ))
        });
        let named = port.device.contains("bond");
        if !named && master.is_none() {
            continue;
        }
        let mut finding = match &master {
            Some((_, master)) => {
                Finding::info(subject, format!("its interface is part of {master}"))
            }
            None => Finding::info(subject, "by its name it stands for two ports"),
        };
        if let Some((path, master)) = master {
            finding = finding.evidence(path, master.clone());
            let text = context.text(&format!("/proc/net/bonding/{master}"));
            if let Datum::Present(text) = text
                && let Some(mode) = text.lines().find(|line| line.starts_with("Bonding Mode"))
            {
                finding = finding.evidence(format!("/proc/net/bonding/{master}"), mode);
            }
        } else {
            finding = finding.evidence("/sys/class/infiniband", port.device);
        }
        findings.push(finding.fix(Fix::user(
            "Keep it out of NCCL, if it carries management only",
            format!("export NCCL_IB_HCA=^{}", port.device),
        )));
    }
    if findings.is_empty() {
        findings.push(Finding::skip("no RDMA device stands for two ports"));
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
    fn devices_of_their_own_are_no_question() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Skip]);
    }

    #[test]
    fn a_bond_is_told_of() {
        let node = example::healthy()
            .link_to(
                "/sys/class/net/enp6s0np0/master",
                "../../../virtual/net/bond0",
            )
            .file(
                "/proc/net/bonding/bond0",
                "Ethernet Channel Bonding Driver: v6.8\n\nBonding Mode: IEEE 802.3ad\n",
            );
        let found = worst(&CHECK, &node);
        assert_eq!(found.verdict, Verdict::Info);
        assert_eq!(found.evidence[1].value, "Bonding Mode: IEEE 802.3ad");
        let named = MemorySource::new().file(
            "/sys/class/infiniband/mlx5_bond_0/ports/1/state",
            "4: ACTIVE\n",
        );
        assert_eq!(verdict(&CHECK, &named), Verdict::Info);
    }

    #[test]
    fn what_was_not_collected_is_unknown() {
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
    }
}
