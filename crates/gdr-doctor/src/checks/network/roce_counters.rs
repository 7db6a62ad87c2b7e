use super::ports::{Port, counter, require};
use crate::checks::prelude::*;

/// The counters of lost, late or retransmitted packets.
const LOSS: [&str; 5] = [
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
];

/// The counters of congestion notifications.
const CONGESTION: [&str; 3] = [
    "np_cnp_sent",
    "rp_cnp_handled",
    "np_ecn_marked_roce_packets",
];

pub(super) const CHECK: Check = Check {
    id: CheckId("roce.counters"),
    title: "ports do not lose or retransmit packets",
    why: "Packets that are out of order, time out or are retransmitted cost much more bandwidth \
          than their number suggests. Congestion notifications are normal under load.",
    inputs: "hw_counters of the port: out_of_sequence, packet_seq_err, local_ack_timeout_err, \
             rnr_nak_retry_err, roce_adp_retrans; np_cnp_sent, rp_cnp_handled, \
             np_ecn_marked_roce_packets. All count since the driver was loaded.",
    criteria: "pass: no loss. info: losses, whose time is not known: check whether the counts grow \
               under load. skip: no port has such counters. unknown: not collected.",
    sources: &[
        "NVIDIA: Understanding mlx5 Linux counters and status parameters",
        "Linux drivers/infiniband/hw/mlx5/counters.c",
    ],
    scope: Scope::Port(Which::Active, judge),
    ..super::CHECK
};

fn judge(context: &Context<'_>, port: &Port<'_>) -> Judgement {
    let read = |name: &'static str| (name, counter(context, port, &format!("hw_counters/{name}")));
    let loss = LOSS.map(read);
    let congestion = CONGESTION.map(read);
    let none = "its driver does not count lost packets";
    require(&loss, "its count of lost packets", none)?;
    let counted: Vec<(&str, u64)> = (loss.iter().chain(&congestion))
        .filter_map(|(name, count)| Some((*name, *count.as_ref().ok()?)))
        .filter(|(_, count)| *count > 0)
        .collect();
    let lost: Vec<String> = counted
        .iter()
        .filter(|(name, _)| LOSS.contains(name))
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    let finding = if lost.is_empty() {
        Finding::pass("it has not counted any lost packets")
    } else {
        Finding::info(format!(
            "since the driver was loaded it has counted {}",
            lost.join(", ")
        ))
        .fix(
            Fix::run(
                "Check whether the counts grow under load",
                format!(
                    "grep . {0}/hw_counters/{{{1}}}; sleep 5; grep . {0}/hw_counters/{{{1}}}",
                    port.path,
                    LOSS.join(",")
                ),
            )
            .risk(Risk::None, "it only reads"),
        )
    };
    Ok(
        (counted.into_iter()).fold(finding, |finding, (name, count)| {
            finding.evidence(format!("{}/hw_counters/{name}", port.path), count)
        }),
    )
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::*;

    const COUNTERS: &str = "/sys/class/infiniband/mlx5_0/ports/1/hw_counters";

    #[test]
    fn ports_without_losses_pass_with_and_without_congestion() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 10]);
        let busy = example::healthy().file(&format!("{COUNTERS}/np_cnp_sent"), "812\n");
        assert_eq!(verdict(&CHECK, &busy), Pass);
    }

    #[test]
    fn losses_without_a_time_are_info() {
        let node = example::healthy().file(&format!("{COUNTERS}/out_of_sequence"), "77\n");
        let found = judged(&CHECK, &node, Info);
        assert_contains!(found.summary, "out_of_sequence 77");
    }

    #[test]
    fn an_unreadable_counter_is_unknown() {
        let node = example::healthy().denied(&format!("{COUNTERS}/out_of_sequence"));
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
