//! `roce.mtu`: RoCE ports send large packets.

use gdr_node::Datum;

use super::ports::{Port, each};
use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::Finding;
use crate::fix::{Action, Fix, Risk};

/// The MTU of the interface from which on RoCE uses packets of 4096 bytes; a header of UDP, IP and
/// BTH comes before each.
const FOR_4096: u32 = 4200;
/// The same for 2048 bytes.
const FOR_2048: u32 = 2200;

pub(super) const CHECK: Check = Check {
    id: CheckId("roce.mtu"),
    group: Group::Network,
    title: "RoCE ports send packets of 4096 bytes",
    documentation: Documentation {
        means: "The MTU of RoCE follows that of the interface: 1500 gives packets of 1024 bytes, \
                4200 and more gives 4096. Small packets cost bandwidth and packet rate. All nodes \
                must have the same, or transfers fail with \"local access violation work queue \
                error\".",
        reads: "/sys/class/net/*/mtu of the interface of Ethernet ports that are up.",
        judges: "pass: 4200 or more. info: 2200 or more. warn: less. skip: no Ethernet port is up. \
                 unknown: the interface is not known.",
        sources: &[
            "Linux include/rdma/ib_addr.h: iboe_get_mtu",
            "https://github.com/NVIDIA/nccl/issues/1524",
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
    let subject = port.subject();
    let Some(netdev) = port.netdev(context) else {
        let netdevs = &context.inventory.netdevs;
        return match netdevs {
            Datum::Present(_) => Finding::unknown(subject, "its interface", &Datum::<()>::Missing)
                .symptom_of(CheckId("netns")),
            absent => Finding::unknown(subject, "its interface", absent),
        };
    };
    let path = format!("/sys/class/net/{}/mtu", netdev.name);
    let mtu = match netdev.mtu {
        Datum::Present(mtu) => mtu,
        ref absent => return Finding::unknown(subject, "the MTU of its interface", absent),
    };
    let shown = mtu.to_string();
    let finding = match mtu {
        FOR_4096.. => Finding::pass(subject, "it sends packets of 4096 bytes"),
        FOR_2048.. => Finding::info(
            subject,
            format!("with an MTU of {mtu} it sends packets of 2048 bytes; 4096 may be faster"),
        ),
        _ => Finding::warn(
            subject,
            format!("with an MTU of {mtu} it sends packets of 1024 bytes or less"),
        )
        .fix(
            Fix::now(
                "Raise the MTU",
                Action::Mtu {
                    netdev: netdev.name.clone(),
                    mtu: 9000,
                },
            )
            .risk(
                Risk::Medium,
                "switches and all other nodes must have it too; connections that are open stall \
                 where they do not",
            ),
        ),
    };
    finding.evidence(path, shown)
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::super::ports::without_ethernet;
    use super::*;
    use crate::checks::fixture::{verdict, verdicts, worst};
    use crate::finding::Verdict;

    fn mtu(text: &str) -> MemorySource {
        example::healthy().file("/sys/class/net/enp6s0np0/mtu", text)
    }

    #[test]
    fn large_packets_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass; 2]);
        assert_eq!(verdict(&CHECK, &mtu("4200\n")), Verdict::Pass);
    }

    #[test]
    fn small_packets_are_warned_of_with_the_command() {
        assert_eq!(verdict(&CHECK, &mtu("2500\n")), Verdict::Info);
        let found = worst(&CHECK, &mtu("1500\n"));
        assert_eq!(found.verdict, Verdict::Warn);
        assert_eq!(
            found.fixes[0].actions[0].to_string(),
            "ip link set dev enp6s0np0 mtu 9000"
        );
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_no_ethernet_is_no_question() {
        let node = example::healthy().without("/sys/class/net");
        assert_eq!(verdict(&CHECK, &node), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &without_ethernet()), Verdict::Skip);
    }
}
