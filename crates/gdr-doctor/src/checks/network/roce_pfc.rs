//! `roce.pfc`: whether RoCE is kept from losing packets.

use gdr_node::Datum;

use super::ports::{Port, each};
use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::Finding;
use crate::fix::{Action, Fix, Risk};

pub(super) const CHECK: Check = Check {
    id: CheckId("roce.pfc"),
    group: Group::Network,
    title: "how to see whether RoCE has a lossless class (PFC) is known",
    documentation: Documentation {
        means: "RoCE slows down sharply when packets are lost. Priority Flow Control makes a class \
                of traffic lossless, if the NIC and every switch agree which one; on fabrics of \
                more than one switch one of PFC and ECN is needed.",
        reads: "Nothing that decides: the setting is told over netlink (dcbnl) only. What is read is \
                whether the port has sent or got pause frames, where its driver says so.",
        judges: "info: the command that shows it. skip: no Ethernet port is up. unknown: not \
                 collected.",
        sources: &[
            "IEEE 802.1Q, clause 36 (PFC)",
            "dcb-pfc(8); mlnx_qos of mlnx-tools",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[],
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

fn judge(context: &Context<'_>, port: &Port<'_>) -> Finding {
    let Some(netdev) = port.netdev(context) else {
        let absent = context
            .inventory
            .netdevs
            .as_ref()
            .and_then(|_| Datum::<()>::Missing);
        return Finding::unknown(port.subject(), "its interface", &absent);
    };
    let name = &netdev.name;
    Finding::info(
        port.subject(),
        format!("whether {name} has a lossless class is told by `dcb pfc show dev {name}`"),
    )
    .evidence("interface", name.clone())
    .fix(
        Fix::now(
            "Make priority 3 lossless and let DSCP choose it",
            Action::Command {
                line: format!("mlnx_qos -i {name} --pfc 0,0,0,1,0,0,0,0 --trust dscp"),
            },
        )
        .risk(
            Risk::Medium,
            "only where the switches have the same class lossless; else pauses may stop the port",
        ),
    )
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::super::ports::without_ethernet;
    use super::*;
    use crate::checks::fixture::{verdict, verdicts, worst};
    use crate::finding::Verdict;

    #[test]
    fn the_command_that_shows_it_is_told() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Info; 2]);
        let found = worst(&CHECK, &example::healthy());
        assert!(
            found.summary.contains("dcb pfc show dev enp6s0np0"),
            "{}",
            found.summary
        );
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_no_ethernet_is_no_question() {
        let node = example::healthy()
            .without("/sys/class/net")
            .not_collected("/sys/class/net");
        assert_eq!(verdict(&CHECK, &node), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &without_ethernet()), Verdict::Skip);
    }
}
