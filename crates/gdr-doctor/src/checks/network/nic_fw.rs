//! `nic.fw`: NICs of one kind have one firmware.

use std::collections::BTreeMap;

use gdr_node::{Datum, RdmaDevice};

use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::checks::pcie::devices;
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::{Action, Fix, Risk};

pub(super) const CHECK: Check = Check {
    id: CheckId("nic.fw"),
    group: Group::Network,
    title: "NICs of one kind have one firmware",
    documentation: Documentation {
        means: "Firmware changes defaults and brings faults and cures. Cards of one board with \
                different versions behave differently under the same settings.",
        reads: "/sys/class/infiniband/*/{fw_ver,board_id}.",
        judges: "pass: one version for each board. warn: several. unknown: no version is known. \
                 skip: no RDMA NIC.",
        sources: &[
            "Linux Documentation/ABI/stable/sysfs-class-infiniband: fw_ver, board_id",
            "https://github.com/openucx/ucx/issues/8336",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    if let (Err(why), None) = (devices::nics(context), context.inventory.rdma.present()) {
        return why;
    }
    let known = context.nics();
    let devices: Vec<&RdmaDevice> = (context.inventory.rdma.present().into_iter().flatten())
        .filter(|device| {
            let asked = known.iter().any(|nic| nic.name == device.name);
            known.is_empty() || asked
        })
        .collect();
    let Some(first) = devices.first() else {
        return vec![Finding::skip("there is no RDMA device")];
    };
    let mut boards: BTreeMap<&str, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for device in &devices {
        if let (Some(board), Some(version)) = (device.board.present(), device.firmware.present()) {
            let versions = boards.entry(board).or_default();
            versions.entry(version).or_default().push(&device.name);
        }
    }
    let soft = |device: &&RdmaDevice| {
        !device.function.is_present() && matches!(device.board, Datum::Missing)
    };
    if devices.iter().all(soft) {
        return vec![Finding::skip(
            "RDMA devices made of software have no firmware",
        )];
    }
    if boards.is_empty() {
        return vec![Finding::unknown(
            Subject::Node,
            "the firmware of its NICs",
            &first.firmware.clone().and_then(|_| first.board.clone()),
        )];
    }
    boards
        .into_iter()
        .map(|(board, versions)| {
            let shown = versions
                .iter()
                .map(|(version, names)| format!("{version}: {}", names.join(", ")))
                .collect::<Vec<_>>()
                .join("; ");
            let subject = Subject::Named(board.to_owned());
            let finding = match versions.len() {
                1 => Finding::pass(
                    subject,
                    format!(
                        "all of this board have firmware {}",
                        versions.keys().next().unwrap_or(&"")
                    ),
                ),
                count => Finding::warn(
                    subject,
                    format!("NICs of this board have {count} different firmware versions"),
                )
                .fix(
                    Fix::at_boot(
                        "Bring them to one version",
                        Action::Command {
                            line: "mlxfwmanager --online -u   # then mlxfwreset or a cold start"
                                .into(),
                        },
                    )
                    .risk(
                        Risk::Medium,
                        "connections of a NIC end when its firmware starts anew",
                    ),
                ),
            };
            finding.evidence("fw_ver", shown)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts, worst};
    use crate::finding::Verdict;

    #[test]
    fn one_version_for_each_board_passes() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass; 2]);
    }

    #[test]
    fn two_versions_of_one_board_are_warned_of() {
        let node = example::healthy().file("/sys/class/infiniband/mlx5_3/fw_ver", "28.39.1002\n");
        let found = worst(&CHECK, &node);
        assert_eq!(found.verdict, Verdict::Warn);
        assert!(
            found.evidence[0].value.contains("28.39.1002: mlx5_3;"),
            "{found:?}"
        );
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_no_device_is_no_question() {
        let mut node = example::healthy();
        for number in 0..10 {
            node = node.not_collected(&format!("/sys/class/infiniband/mlx5_{number}/fw_ver"));
        }
        assert_eq!(verdict(&CHECK, &node), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let bare = MemorySource::new().directory("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &bare), Verdict::Skip);
        let soft = MemorySource::new()
            .directory("/sys/bus/pci/devices")
            .file("/sys/class/infiniband/rxe0/node_type", "1: CA\n");
        assert_eq!(verdict(&CHECK, &soft), Verdict::Skip);
    }
}
