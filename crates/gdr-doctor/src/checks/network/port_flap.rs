//! `port.flap`: links stay up.

use gdr_node::Datum;

use super::ports::{Port, counter, each};
use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::Finding;
use crate::fix::{Action, Fix, Risk};

/// What counts links that went down.
const COUNTERS: [&str; 2] = ["counters/link_downed", "counters/link_error_recovery"];

/// The registers behind the counters have eight bits and stay at their last value.
const WHERE_COUNTING_ENDS: u64 = 255;

pub(super) const CHECK: Check = Check {
    id: CheckId("port.flap"),
    group: Group::Network,
    title: "links stay up",
    documentation: Documentation {
        means: "A link that goes down for a moment breaks or stalls every connection on it. A bad \
                transceiver does that many times a day.",
        reads: "link_downed and link_error_recovery of the port, carrier_changes of its interface: \
                all counted since the driver was loaded.",
        judges: "pass: none went down. info: some did, at times that nobody knows; look whether \
                 the count grows. unknown: not collected.",
        sources: &[
            "Linux Documentation/ABI/stable/sysfs-class-infiniband: link_downed",
            "Linux Documentation/ABI/testing/sysfs-class-net: carrier_changes",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    each(
        context,
        |_| true,
        |port| judge(context, port),
        "there is no port of an RDMA device",
    )
}

fn judge(context: &Context<'_>, port: &Port<'_>) -> Finding {
    let subject = port.subject();
    let counts: Vec<(&str, Datum<u64>)> = COUNTERS
        .iter()
        .map(|name| (*name, counter(context, port, name)))
        .collect();
    if counts.iter().all(|(_, count)| *count == Datum::Missing) {
        let mut finding = Finding::skip("it does not count when its link goes down");
        finding.subject = subject;
        return finding;
    }
    if let Some((_, absent)) = counts.iter().find(|(_, count)| count.is_unknown()) {
        return Finding::unknown(subject, "how often its link went down", absent);
    }
    let present = counts.iter().filter_map(|(_, count)| count.present());
    let total = present.fold(0, |sum: u64, count| sum.saturating_add(*count));
    let mut finding = if total == 0 {
        Finding::pass(subject, "its link has not gone down")
    } else {
        Finding::info(
            subject,
            format!(
                "its link has gone down or recovered {total} times{} since the driver was loaded",
                if total == WHERE_COUNTING_ENDS { " or more" } else { "" }
            ),
        )
        .fix(
            Fix::now(
                "Look whether it goes on",
                Action::Command {
                    line: format!(
                        "grep . {0}/counters/link_downed; sleep 60; grep . {0}/counters/link_downed",
                        port.path
                    ),
                },
            )
            .risk(Risk::None, "it only reads"),
        )
    };
    for (name, count) in &counts {
        if let Datum::Present(count) = count {
            finding = finding.evidence(format!("{}/{name}", port.path), count.to_string());
        }
    }
    if let Some(netdev) = port.netdev(context).filter(|_| port.is_ethernet()) {
        let path = format!("/sys/class/net/{}/carrier_changes", netdev.name);
        if let Datum::Present(count) = context.text(&path) {
            finding = finding.evidence(path, count);
        }
    }
    finding
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts, worst};
    use crate::finding::Verdict;

    const COUNTER: &str = "/sys/class/infiniband/mlx5_1/ports/1/counters/link_downed";

    #[test]
    fn links_that_stayed_up_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass; 10]);
    }

    #[test]
    fn a_count_without_a_time_is_only_told_of() {
        let found = worst(&CHECK, &example::healthy().file(COUNTER, "3\n"));
        assert_eq!(found.verdict, Verdict::Info);
        assert!(found.summary.contains("3 times"), "{}", found.summary);
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_no_port_is_no_question() {
        let node = example::healthy().not_collected(COUNTER);
        assert_eq!(verdict(&CHECK, &node), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let bare = MemorySource::new().directory("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &bare), Verdict::Skip);
    }
}
