use std::collections::BTreeMap;

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("nic.fw"),
    title: "NICs of one board type have the same firmware",
    why: "Firmware versions differ in defaults, faults and fixes. Cards of one board type with \
          different versions behave differently under the same settings.",
    inputs: "/sys/class/infiniband/*/{fw_ver,board_id}.",
    criteria: "pass: one version for each board type. warn: several. unknown: no version is known. \
               skip: no RDMA NIC.",
    sources: &[
        "Linux Documentation/ABI/stable/sysfs-class-infiniband: fw_ver, board_id",
        "https://github.com/openucx/ucx/issues/8336",
    ],
    scope: Scope::Several(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    if context.inventory.rdma.is_err() {
        runner::nics(context)?;
    }
    let known = context.nics();
    let devices: Vec<&RdmaDevice> = (context.inventory.rdma.as_ref().ok().into_iter().flatten())
        .filter(|device| {
            let asked = known.iter().any(|nic| nic.name == device.name);
            known.is_empty() || asked
        })
        .collect();
    let Some(first) = devices.first() else {
        return Err(Unjudged::skip("there is no RDMA device"));
    };
    let mut boards: BTreeMap<&str, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for device in &devices {
        if let (Some(board), Some(version)) =
            (device.board.as_ref().ok(), device.firmware.as_ref().ok())
        {
            let versions = boards.entry(board).or_default();
            versions.entry(version).or_default().push(&device.name);
        }
    }
    let soft = |device: &&RdmaDevice| {
        device.function.is_err() && matches!(device.board, Err(Absence::Missing))
    };
    if devices.iter().all(soft) {
        return Err(Unjudged::skip("software RDMA devices have no firmware"));
    }
    if boards.is_empty() {
        return Ok(vec![Finding::unknown(
            "the firmware version of the NICs",
            &first.firmware.clone().and_then(|_| first.board.clone()),
        )]);
    }
    Ok(boards
        .into_iter()
        .map(|(board, versions)| {
            let shown = versions
                .iter()
                .map(|(version, names)| format!("{version}: {}", names.join(", ")))
                .collect::<Vec<_>>()
                .join("; ");
            let subject = Subject::Named(board.to_owned());
            let finding = match versions.len() {
                1 => Finding::pass(format!(
                    "all NICs of this board have firmware {}",
                    versions.keys().next().unwrap_or(&"")
                ))
                .about(subject),
                count => Finding::warn(format!(
                    "NICs of this board have {count} different firmware versions"
                ))
                .about(subject)
                .fix(
                    Fix::at_boot(
                        "Install one version on all of them",
                        Action::run("mlxfwmanager --online -u   # then mlxfwreset or a cold start"),
                    )
                    .risk(
                        Risk::Medium,
                        "connections of a NIC end when its firmware restarts",
                    ),
                ),
            };
            finding.evidence("fw_ver", shown)
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn one_version_for_each_board_passes() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 2]);
    }

    #[test]
    fn two_versions_of_one_board_are_a_warning() {
        let node = example::healthy().file("/sys/class/infiniband/mlx5_3/fw_ver", "28.39.1002\n");
        let found = judged(&CHECK, &node, Warn);
        assert_contains!(found.evidence[0].value, "28.39.1002: mlx5_3;", "{found:?}");
    }

    #[test]
    fn uncollected_versions_are_unknown_and_nodes_without_hardware_are_skipped() {
        let mut node = example::healthy();
        for number in 0..10 {
            node = node.not_collected(&format!("/sys/class/infiniband/mlx5_{number}/fw_ver"));
        }
        assert_eq!(verdict(&CHECK, &node), Unknown);
        let bare = MemorySource::new().directory("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &bare), Skip);
        let soft = MemorySource::new()
            .directory("/sys/bus/pci/devices")
            .file("/sys/class/infiniband/rxe0/node_type", "1: CA\n");
        assert_eq!(verdict(&CHECK, &soft), Skip);
    }
}
