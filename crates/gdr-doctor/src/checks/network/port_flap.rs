use super::ports::{Port, counter, require};
use crate::checks::prelude::*;

/// The counters of links that went down.
const COUNTERS: [&str; 2] = ["counters/link_downed", "counters/link_error_recovery"];

/// The registers of the counters have eight bits and stay at their highest value.
const SATURATED: u64 = 255;

pub(super) const CHECK: Check = Check {
    id: CheckId("port.flap"),
    title: "links stay up",
    why: "When a link goes down for a moment, every connection on it breaks or stalls. A bad \
          transceiver causes that many times a day.",
    inputs: "link_downed and link_error_recovery of the port, carrier_changes of its interface. \
             All count since the driver was loaded.",
    criteria: "pass: the counts are 0. info: they are not; the times are not known, so check \
               whether they grow. unknown: not collected.",
    sources: &[
        "Linux Documentation/ABI/stable/sysfs-class-infiniband: link_downed",
        "Linux Documentation/ABI/testing/sysfs-class-net: carrier_changes",
    ],
    scope: Scope::Port(Which::Every, judge),
    ..super::CHECK
};

fn judge(context: &Context<'_>, port: &Port<'_>) -> Judgement {
    let counts: Vec<(&str, Datum<u64>)> = COUNTERS
        .iter()
        .map(|name| (*name, counter(context, port, name)))
        .collect();
    let none = "its driver does not count link failures";
    require(&counts, "the count of its link failures", none)?;
    let present = counts.iter().filter_map(|(_, count)| count.as_ref().ok());
    let total = present.fold(0, |sum: u64, count| sum.saturating_add(*count));
    let mut finding = if total == 0 {
        Finding::pass("its link has not gone down")
    } else {
        Finding::info(format!(
            "its link has gone down or recovered {total} times{} since the driver was loaded",
            if total == SATURATED { " or more" } else { "" }
        ))
        .fix(
            Fix::run(
                "Check whether the count grows",
                format!(
                    "grep . {0}/counters/link_downed; sleep 60; grep . {0}/counters/link_downed",
                    port.path
                ),
            )
            .risk(Risk::None, "it only reads"),
        )
    };
    for (name, count) in &counts {
        if let Ok(count) = count {
            finding = finding.evidence(format!("{}/{name}", port.path), count);
        }
    }
    if let Some(netdev) = port.netdev(context).filter(|_| port.is_ethernet()) {
        let path = format!("/sys/class/net/{}/carrier_changes", netdev.name);
        if let Ok(count) = context.text(&path) {
            finding = finding.evidence(path, count);
        }
    }
    Ok(finding)
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::*;

    const COUNTER: &str = "/sys/class/infiniband/mlx5_1/ports/1/counters/link_downed";

    #[test]
    fn links_that_stayed_up_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 10]);
    }

    #[test]
    fn a_count_without_a_time_is_info() {
        let found = judged(&CHECK, &example::healthy().file(COUNTER, "3\n"), Info);
        assert_contains!(found.summary, "3 times");
    }
}
