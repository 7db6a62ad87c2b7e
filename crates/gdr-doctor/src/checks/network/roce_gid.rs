use gdr_node::RdmaGid;

use super::ports::{Port, ports};
use super::roce_ip::severity;
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("roce.gid"),
    title: "RoCE ports have a routable GID of RoCE v2",
    why: "A RoCE connection uses an index of the port's GID table. The right entry has version 2 \
          and of an IPv4 address, or else of a global IPv6 address. Link-local entries work at \
          most within one segment. With a wrong index, connections time out (status 12, vendor \
          error 129).",
    inputs: "/sys/class/infiniband/*/ports/*/{gids,gid_attrs/types,gid_attrs/ndevs} of active \
             Ethernet ports; NCCL_IB_GID_INDEX in the environment.",
    criteria: "pass: a routable GID of version 2, whose index is shown. fail: none. warn: none, on \
               a device that is not nearest to a GPU; or NCCL_IB_GID_INDEX names another entry. \
               info: the indices of ports differ. skip: no Ethernet port is active. unknown: not \
               collected.",
    sources: &[
        "Linux Documentation/ABI/stable/sysfs-class-infiniband: gid_attrs",
        "https://github.com/NVIDIA/nccl/issues/426",
        "https://github.com/NVIDIA/nccl/issues/769",
    ],
    symptom_of: &["netns", "roce.ip"],
    scope: Scope::Several(run),
    otherwise: Some(Which::ActiveEthernet.none()),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let all = ports(context)?;
    let up = all.iter().filter(|port| Which::ActiveEthernet.has(port));
    let mut findings = runner::each(up, |port| (port.subject(), judge(context, port)));
    findings.extend(common_index(context));
    Ok(findings)
}

/// Returns the finding about all ports together: whether one index fits all of them.
fn common_index(context: &Context<'_>) -> Option<Finding> {
    let mut tables: Vec<(&str, Vec<RdmaGid>)> = Vec::new();
    for port in ports(context).ok()? {
        if port.is_ethernet() && port.is_active() {
            tables.push((port.device, port.gids(context).ok()?));
        }
    }
    let environment = context.text(virtual_path::ENVIRONMENT).ok();
    let asked = environment.as_deref().and_then(|text| {
        text.lines()
            .find_map(|line| line.strip_prefix("NCCL_IB_GID_INDEX="))
            .and_then(|index| index.trim().parse::<u32>().ok())
    });
    if let Some(asked) = asked {
        let fits = |gids: &[RdmaGid]| {
            (gids.iter()).any(|gid| gid.index == asked && gid.is_v2() && gid.is_routable())
        };
        let (device, _) = tables.iter().find(|(_, gids)| !fits(gids))?;
        return Some(
            Finding::warn(format!(
                "NCCL_IB_GID_INDEX is {asked}, which is not a routable GID of \
                                   RoCE v2 on {device}"
            ))
            .evidence(
                virtual_path::ENVIRONMENT,
                format!("NCCL_IB_GID_INDEX={asked}"),
            )
            .fix(Fix::user(
                "Let NCCL choose the index for each port",
                "unset NCCL_IB_GID_INDEX   # NCCL 2.21 and later; or export NCCL_IB_GID_INDEX=-1",
            )),
        );
    }
    let indices: Vec<(&str, u32)> = tables
        .iter()
        .filter_map(|(device, gids)| Some((*device, best(gids)?.index)))
        .collect();
    let differ = indices.windows(2).any(|two| two[0].1 != two[1].1);
    differ.then(|| {
        let shown: Vec<String> = indices
            .iter()
            .map(|(device, index)| format!("{device}: {index}"))
            .collect();
        Finding::info(
            "the right GID has different indices on different ports: no single index \
                       fits all",
        )
        .evidence("indices", shown.join(", "))
    })
}

/// Returns the GID that a library should use: version 2, IPv4 before IPv6, not link-local.
pub(crate) fn best(gids: &[RdmaGid]) -> Option<&RdmaGid> {
    gids.iter()
        .filter(|gid| gid.is_v2() && gid.is_routable())
        .min_by_key(|gid| (!gid.is_ipv4(), gid.index))
}

fn judge(context: &Context<'_>, port: &Port<'_>) -> Judgement {
    let path = format!("{}/gids", port.path);
    let gids = port.gids(context).known("its GID table")?;
    if let Some(gid) = best(&gids) {
        return Ok(
            Finding::pass(format!("GID {} is a routable GID of RoCE v2", gid.index))
                .evidence(format!("{path}/{}", gid.index), gid.address)
                .evidence(
                    "setting for libraries",
                    format!("NCCL_IB_GID_INDEX={}", gid.index),
                ),
        );
    }
    // A routable entry of unknown version may be of version 2.
    let unversioned = |gid: &RdmaGid| gid.is_routable() && gid.version.is_none();
    if gids.iter().any(unversioned) {
        let types = format!("{}/gid_attrs/types", port.path);
        let absent = context.source.list(&types);
        return Ok(Finding::unknown("the version of its GIDs", &absent));
    }
    if let Some(bond) = port.bond(context) {
        return Ok(Finding::info(format!(
            "its interface is part of {bond}, which has the addresses"
        ))
        .evidence(path, format!("{} GIDs", gids.len())));
    }
    let why = if gids.is_empty() {
        "its GID table is empty"
    } else if gids.iter().any(RdmaGid::is_v2) {
        "its GIDs for RoCE v2 are link-local, which are not routable"
    } else {
        "it has no GID for RoCE v2"
    };
    let shown: Vec<String> = gids
        .iter()
        .map(|gid| {
            let version = gid.version.as_deref().unwrap_or("version unknown");
            format!("{} {} ({version})", gid.index, gid.address)
        })
        .collect();
    let netdev = port.netdev(context).map(|netdev| netdev.name.clone());
    let summary = format!("{why}: connections time out");
    Ok(Finding::new(severity(context, port), summary)
        .evidence(path, shown.join("; "))
        .fix(Fix::run(
            "Assign an IP address to the interface and bring it up",
            {
                let name = netdev.unwrap_or_else(|| "INTERFACE".into());
                format!("ip address add ADDRESS/PREFIX dev {name}; ip link set dev {name} up")
            },
        )))
}

#[cfg(test)]
mod tests {
    use gdr_node::Inventory;
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::*;
    use crate::diagnosis::{Selection, diagnose};

    const PORT: &str = "/sys/class/infiniband/mlx5_0/ports/1";

    #[test]
    fn the_index_of_the_right_gid_is_shown() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 2]);
        let found = worst(&CHECK, &example::healthy());
        assert_eq!(found.evidence[1].value, "NCCL_IB_GID_INDEX=3");
    }

    #[test]
    fn ipv4_comes_before_ipv6_and_link_local_is_never_chosen() {
        let gid = |index, address: &str| RdmaGid {
            index,
            address: address.parse().unwrap(),
            version: Some("RoCE v2".into()),
            netdev: None,
        };
        let gids = [
            gid(1, "fe80::1"),
            gid(3, "2001:db8::1"),
            gid(5, "::ffff:10.0.0.1"),
        ];
        assert_eq!(best(&gids).unwrap().index, 5);
        assert_eq!(best(&gids[..2]).unwrap().index, 3);
        assert_eq!(best(&gids[..1]), None);
    }

    #[test]
    fn a_missing_address_is_the_cause_of_a_missing_gid() {
        let node = example::healthy()
            .file(&format!("{PORT}/gids/2"), UNUSED_GID)
            .file(&format!("{PORT}/gids/3"), UNUSED_GID);
        let found = judged(&CHECK, &node, Warn);
        assert_contains!(found.summary, "link-local");
        let inventory = Inventory::read(&node);
        let ids = [CHECK.id, CheckId("roce.ip")];
        let diagnosis = diagnose(
            &Context::new(&node, &inventory),
            &Selection::all().only(ids),
        );
        let causes = diagnosis.root_causes();
        assert_eq!(causes.len(), 1);
        assert_eq!(causes[0].1.check.id.0, "roce.ip");
    }

    #[test]
    fn a_configured_index_must_fit_every_port() {
        let asked = |index: &str| {
            let text = format!("NCCL_IB_GID_INDEX={index}\n");
            verdicts(
                &CHECK,
                &example::healthy().file(virtual_path::ENVIRONMENT, text),
            )
        };
        assert_eq!(asked("3"), [Pass; 2]);
        assert_eq!(asked("-1"), [Pass; 2]);
        for wrong in ["0", "1", "2", "9"] {
            assert_eq!(asked(wrong), [Pass, Pass, Warn]);
        }
    }

    #[test]
    fn different_indices_are_info() {
        let node = example::healthy()
            .file(&format!("{PORT}/gid_attrs/types/3"), "IB/RoCE v1\n")
            .file(&format!("{PORT}/gid_attrs/types/2"), "RoCE v2\n");
        let expected = [Pass, Pass, Info];
        assert_eq!(verdicts(&CHECK, &node), expected);
    }

    #[test]
    fn version_1_alone_fails() {
        let node = (0..4).fold(example::healthy(), |node, index| {
            node.file(&format!("{PORT}/gid_attrs/types/{index}"), "IB/RoCE v1\n")
        });
        assert!(worst(&CHECK, &node).summary.contains("no GID for RoCE v2"));
        // If no GPU is known, every port may be the one for data.
        let alone = (example::GPUS.iter()).fold(node, |node, gpu| {
            node.without(&format!("/sys/bus/pci/devices/{gpu}"))
        });
        assert_eq!(worst(&CHECK, &alone).verdict, Fail);
    }

    #[test]
    fn uncollected_types_are_unknown_and_nodes_without_ethernet_are_skipped() {
        let types = format!("{PORT}/gid_attrs/types");
        let node = example::healthy().without(&types).not_collected(&types);
        assert_eq!(verdict(&CHECK, &node), Unknown);
        assert_eq!(verdict(&CHECK, &without_ethernet()), Skip);
    }
}
