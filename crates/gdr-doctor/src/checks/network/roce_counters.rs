use super::ports::{Port, counter, require};
use crate::checks::prelude::*;

/// What counts packets that were lost, late or repeated.
const LOSS: [&str; 5] = [
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
];

/// What counts congestion that was seen and answered.
const CONGESTION: [&str; 3] = [
    "np_cnp_sent",
    "rp_cnp_handled",
    "np_ecn_marked_roce_packets",
];

pub(super) const CHECK: Check = Check {
    id: CheckId("roce.counters"),
    title: "ports lose no packets and repeat none",
    why: "Packets that come out of order, time out or are repeated cost bandwidth far beyond their \
          number. Congestion that is signalled and answered is normal under load.",
    inputs: "hw_counters of the port: out_of_sequence, packet_seq_err, local_ack_timeout_err, \
          rnr_nak_retry_err, roce_adp_retrans; np_cnp_sent, rp_cnp_handled, \
          np_ecn_marked_roce_packets. All are counted since the driver was loaded.",
    criteria: "pass: no loss counted. info: some, at unknown times; look whether the \
          counts grow under load. skip: no port has such counters. unknown: not collected.",
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
    let none = "its driver has no counters of lost packets";
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
        Finding::pass("it has counted no lost packets")
    } else {
        Finding::info(format!(
            "since the driver was loaded it counted {}",
            lost.join(", ")
        ))
        .fix(
            Fix::run(
                "Look whether the counts grow under load",
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
    use super::*;
    use crate::checks::fixture::*;

    const COUNTERS: &str = "/sys/class/infiniband/mlx5_0/ports/1/hw_counters";

    #[test]
    fn ports_that_lost_nothing_pass_congestion_or_not() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 10]);
        let busy = example::healthy().file(&format!("{COUNTERS}/np_cnp_sent"), "812\n");
        assert_eq!(verdict(&CHECK, &busy), Pass);
    }

    #[test]
    fn losses_without_a_time_are_only_reported() {
        let node = example::healthy().file(&format!("{COUNTERS}/out_of_sequence"), "77\n");
        let found = worst(&CHECK, &node);
        assert_eq!(found.verdict, Info);
        assert!(
            found.summary.contains("out_of_sequence 77"),
            "{}",
            found.summary
        );
    }

    #[test]
    fn what_was_not_collected_is_unknown() {
        let node = example::healthy().denied(&format!("{COUNTERS}/out_of_sequence"));
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
