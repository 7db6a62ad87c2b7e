//! `roce.counters`: ports lose and repeat nothing.

use gdr_node::Datum;

use super::ports::{Port, counter, each};
use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::Finding;
use crate::fix::{Action, Fix, Risk};

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
    group: Group::Network,
    title: "ports lose no packets and repeat none",
    documentation: Documentation {
        means: "Packets that come out of order, time out or are repeated cost bandwidth far beyond \
                their number. Congestion that is told of and answered is normal under load.",
        reads: "hw_counters of the port: out_of_sequence, packet_seq_err, local_ack_timeout_err, \
                rnr_nak_retry_err, roce_adp_retrans; np_cnp_sent, rp_cnp_handled, \
                np_ecn_marked_roce_packets. All are counted since the driver was loaded.",
        judges: "pass: no loss counted. info: some, at times that nobody knows; look whether the \
                 counts grow under load. skip: no port has such counters. unknown: not collected.",
        sources: &[
            "NVIDIA: Understanding mlx5 Linux counters and status parameters",
            "Linux drivers/infiniband/hw/mlx5/counters.c",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    each(
        context,
        Port::is_active,
        |port| judge(context, port),
        "no port of an RDMA device is up",
    )
}

fn judge(context: &Context<'_>, port: &Port<'_>) -> Finding {
    let subject = port.subject();
    let read = |name: &'static str| (name, counter(context, port, &format!("hw_counters/{name}")));
    let loss = LOSS.map(read);
    let congestion = CONGESTION.map(read);
    if let Some((_, absent)) = loss.iter().find(|(_, count)| count.is_unknown()) {
        return Finding::unknown(subject, "its count of lost packets", absent);
    }
    if loss.iter().all(|(_, count)| *count == Datum::Missing) {
        let mut finding = Finding::skip("its driver has no counters of lost packets");
        finding.subject = subject;
        return finding;
    }
    let counted: Vec<(&str, u64)> = (loss.iter().chain(&congestion))
        .filter_map(|(name, count)| Some((*name, *count.present()?)))
        .filter(|(_, count)| *count > 0)
        .collect();
    let lost: Vec<String> = counted
        .iter()
        .filter(|(name, _)| LOSS.contains(name))
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    let finding = if lost.is_empty() {
        Finding::pass(subject, "it has counted no lost packets")
    } else {
        Finding::info(
            subject,
            format!("since the driver was loaded it counted {}", lost.join(", ")),
        )
        .fix(
            Fix::now(
                "Look whether the counts grow under load",
                Action::Command {
                    line: format!(
                        "grep . {0}/hw_counters/{{{1}}}; sleep 5; grep . {0}/hw_counters/{{{1}}}",
                        port.path,
                        LOSS.join(",")
                    ),
                },
            )
            .risk(Risk::None, "it only reads"),
        )
    };
    (counted.into_iter()).fold(finding, |finding, (name, count)| {
        finding.evidence(
            format!("{}/hw_counters/{name}", port.path),
            count.to_string(),
        )
    })
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts, worst};
    use crate::finding::Verdict;

    const COUNTERS: &str = "/sys/class/infiniband/mlx5_0/ports/1/hw_counters";

    #[test]
    fn ports_that_lost_nothing_pass_congestion_or_not() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass; 10]);
        let busy = example::healthy().file(&format!("{COUNTERS}/np_cnp_sent"), "812\n");
        assert_eq!(verdict(&CHECK, &busy), Verdict::Pass);
    }

    #[test]
    fn losses_without_a_time_are_only_told_of() {
        let node = example::healthy().file(&format!("{COUNTERS}/out_of_sequence"), "77\n");
        let found = worst(&CHECK, &node);
        assert_eq!(found.verdict, Verdict::Info);
        assert!(
            found.summary.contains("out_of_sequence 77"),
            "{}",
            found.summary
        );
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_no_port_is_no_question() {
        let node = example::healthy().denied(&format!("{COUNTERS}/out_of_sequence"));
        assert_eq!(verdict(&CHECK, &node), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let bare = MemorySource::new().directory("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &bare), Verdict::Skip);
    }
}
