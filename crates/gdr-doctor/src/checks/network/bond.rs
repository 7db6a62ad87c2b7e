use super::ports::ports;
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("bond"),
    title: "bonded RDMA devices (bond, LAG) are known",
    why: "If two ports of a card are bonded, one RDMA device stands for both, with a name like \
          mlx5_bond_0. On many nodes it carries management traffic, and libraries that use every \
          device would use it for data.",
    inputs: "The names in /sys/class/infiniband; the link master of the devices' interfaces.",
    criteria: "info: a device is a bond. skip: none is. unknown: not collected.",
    sources: &[
        "Linux drivers/net/ethernet/mellanox/mlx5/core/lag",
        "https://github.com/stas00/ml-engineering (network debugging)",
    ],
    scope: Scope::Several(run),
    otherwise: Some("no RDMA device is a bond"),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let ports = ports(context)?;
    let mut findings: Vec<Finding> = Vec::new();
    for port in &ports {
        let subject = Subject::Named(port.device.to_owned());
        if findings.iter().any(|found| found.subject == subject) {
            continue;
        }
        let master = port.netdev(context).and_then(|netdev| {
            let path = format!("/sys/class/net/{}/master", netdev.name);
            Some((path.clone(), context.source.link_name(&path).ok()?))
        });
        let named = port.device.contains("bond");
        if !named && master.is_none() {
            continue;
        }
        let mut finding = match &master {
            Some((_, master)) => {
                Finding::info(format!("its interface is part of {master}")).about(subject)
            }
            None => Finding::info("by its name it is a bond of two ports").about(subject),
        };
        if let Some((path, master)) = master {
            finding = finding.evidence(path, &master);
            let text = context.text(&format!("/proc/net/bonding/{master}"));
            if let Ok(text) = text
                && let Some(mode) = text.lines().find(|line| line.starts_with("Bonding Mode"))
            {
                finding = finding.evidence(format!("/proc/net/bonding/{master}"), mode);
            }
        } else {
            finding = finding.evidence("/sys/class/infiniband", port.device);
        }
        findings.push(finding.fix(Fix::user(
            "Exclude it from NCCL if it carries only management traffic",
            format!("export NCCL_IB_HCA='^{}'", port.device),
        )));
    }
    if findings.is_empty() {
        findings.push(Finding::skip("no RDMA device is a bond"));
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn devices_that_are_not_bonds_are_skipped() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Skip]);
    }

    #[test]
    fn a_bond_is_info() {
        let node = example::healthy()
            .link_to(
                "/sys/class/net/enp6s0np0/master",
                "../../../virtual/net/bond0",
            )
            .file(
                "/proc/net/bonding/bond0",
                "Ethernet Channel Bonding Driver: v6.8\n\nBonding Mode: IEEE 802.3ad\n",
            );
        let found = judged(&CHECK, &node, Info);
        assert_eq!(found.evidence[1].value, "Bonding Mode: IEEE 802.3ad");
        let named = MemorySource::new().file(
            "/sys/class/infiniband/mlx5_bond_0/ports/1/state",
            "4: ACTIVE\n",
        );
        assert_eq!(verdict(&CHECK, &named), Info);
    }
}
