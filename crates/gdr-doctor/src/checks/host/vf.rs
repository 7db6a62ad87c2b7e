//! `vf`: virtual functions have an identity of their own.

use gdr_node::Datum;

use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::checks::pcie::devices;
use crate::context::{Context, Nic};
use crate::finding::{Finding, Subject};
use crate::fix::{Action, Fix};

pub(super) const CHECK: Check = Check {
    id: CheckId("vf"),
    group: Group::Host,
    title: "NICs that are virtual functions have an identity of their own",
    documentation: Documentation {
        means: "A virtual function of SR-IOV without a GUID cannot connect over InfiniBand. NCCL \
                takes virtual functions on one bus for one card, which folds different cards of a \
                guest into one.",
        reads: "The link physfn in sysfs; /sys/class/infiniband/*/node_guid.",
        judges: "skip: no NIC is a virtual function. info: one is, with a GUID. fail: its GUID is \
                 zero. unknown: the GUID was not collected.",
        sources: &[
            "NCCL src/transport/net_ib/init.cc: NCCL_IB_MERGE_VFS",
            "Linux Documentation/ABI/stable/sysfs-class-infiniband: node_guid",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    let nics = match devices::nics(context) {
        Ok(nics) => nics,
        Err(why) => return why,
    };
    let findings: Vec<Finding> = nics
        .iter()
        .filter(|(_, function)| function.is_virtual())
        .map(|(nic, function)| {
            let physical = function.physical_function.to_string();
            judge(context, nic).evidence("physfn", physical)
        })
        .collect();
    if findings.is_empty() {
        return vec![Finding::skip(
            "no NIC is a virtual function that shows itself as one",
        )];
    }
    findings
}

fn judge(context: &Context<'_>, nic: &Nic<'_>) -> Finding {
    let subject = Subject::nic(nic);
    let path = format!("/sys/class/infiniband/{}/node_guid", nic.name);
    let guid = match context.text(&path) {
        Datum::Present(guid) => guid,
        absent => return Finding::unknown(subject, "its GUID", &absent),
    };
    if guid.chars().all(|c| matches!(c, '0' | ':')) {
        return Finding::fail(
            subject,
            "it is a virtual function whose GUID is zero: it cannot connect",
        )
        .evidence(path, guid)
        .fix(Fix::now(
            "Give it a GUID, on the host",
            Action::Command {
                line: "ip link set DEVICE vf NUMBER node_guid GUID; ip link set DEVICE vf NUMBER \
                       port_guid GUID; then bind the virtual function anew"
                    .into(),
            },
        ));
    }
    Finding::info(
        subject,
        "it is a virtual function; NCCL folds those of one bus into one card unless told not to",
    )
    .evidence(path, guid)
    .fix(Fix::user(
        "Keep different cards apart",
        "export NCCL_IB_MERGE_VFS=0",
    ))
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts};
    use crate::finding::Verdict;

    fn virtual_nic() -> MemorySource {
        example::healthy().link_to(
            &format!("/sys/bus/pci/devices/{}/physfn", example::NICS[1]),
            "../0000:19:00.1",
        )
    }

    #[test]
    fn physical_functions_are_no_question() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Skip]);
    }

    #[test]
    fn a_virtual_function_is_told_of_and_one_without_a_guid_fails() {
        assert_eq!(verdicts(&CHECK, &virtual_nic()), [Verdict::Info]);
        let guid = "/sys/class/infiniband/mlx5_1/node_guid";
        let node = virtual_nic().file(guid, "0000:0000:0000:0000\n");
        assert_eq!(verdict(&CHECK, &node), Verdict::Fail);
    }

    #[test]
    fn what_was_not_collected_is_unknown() {
        let node = virtual_nic().not_collected("/sys/class/infiniband/mlx5_1/node_guid");
        assert_eq!(verdict(&CHECK, &node), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
    }
}
