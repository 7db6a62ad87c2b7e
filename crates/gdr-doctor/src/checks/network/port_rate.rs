//! `port.rate`: ports run as fast as their siblings.

use gdr_node::Datum;

use super::ports::{Port, each, ports};
use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::Finding;
use crate::fix::Fix;

pub(super) const CHECK: Check = Check {
    id: CheckId("port.rate"),
    group: Group::Network,
    title: "ports run as fast as others of the same board",
    documentation: Documentation {
        means: "A port that trained at a lower speed or with fewer lanes than its siblings slows \
                down every collective operation, which waits for the slowest.",
        reads: "/sys/class/infiniband/*/ports/*/rate of the ports that are up; board_id.",
        judges: "pass: as fast as the fastest of the same board. warn: slower, or with one lane. \
                 info: the only one of its board, so that nothing tells. skip: no port is up. \
                 unknown: not collected.",
        sources: &[
            "Linux Documentation/ABI/stable/sysfs-class-infiniband: rate",
            "https://github.com/Azure/azurehpc-health-checks (check_ib)",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[CheckId("pci.slotpower")],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    let all = ports(context).unwrap_or_default();
    let of_board: Vec<(Option<String>, u32)> = all
        .iter()
        .filter(|port| port.is_active())
        .filter_map(|port| Some((port.board(context), port.rate()?)))
        .collect();
    each(
        context,
        |port| port.is_active() || port.port.state.is_unknown(),
        |port| judge(context, port, &of_board),
        "no port is up",
    )
}

fn judge(context: &Context<'_>, port: &Port<'_>, of_board: &[(Option<String>, u32)]) -> Finding {
    let subject = port.subject();
    let path = format!("{}/rate", port.path);
    let (text, rate) = match (&port.port.rate, port.rate()) {
        (Datum::Present(text), Some(rate)) => (text.clone(), rate),
        (Datum::Present(_), None) => {
            return Finding::unknown(subject, "its rate", &port.port.rate);
        }
        (absent, _) => return Finding::unknown(subject, "its rate", absent),
    };
    let board = port.board(context);
    let siblings = of_board
        .iter()
        .filter(|(of, _)| *of == board && board.is_some());
    let best = siblings
        .clone()
        .map(|(_, rate)| *rate)
        .max()
        .unwrap_or(rate);
    let finding = if rate < best {
        Finding::warn(
            subject,
            format!("it runs at {rate} Gb/s, others of the same board at {best}"),
        )
        .fix(retrain())
    } else if text.contains("(1X") && rate >= 25 && port.is_infiniband() {
        Finding::warn(subject, format!("it runs with one lane: {text}")).fix(retrain())
    } else if siblings.count() < 2 {
        Finding::info(
            subject,
            format!("it runs at {text}; no other of its board tells more"),
        )
    } else {
        Finding::pass(subject, format!("it runs at {text}"))
    };
    finding.evidence(path, text)
}

fn retrain() -> Fix {
    Fix::manual(
        "Let the link train anew",
        "seat the cable and the transceivers anew, then swap them with those of a port that is \
         fast, to tell the cable from the port; look at the speed that the switch's port allows; \
         `mlxlink -d DEVICE` shows what both ends offer",
    )
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts, worst};
    use crate::finding::Verdict;

    fn rate(text: &str) -> MemorySource {
        example::healthy().file("/sys/class/infiniband/mlx5_1/ports/1/rate", text)
    }

    #[test]
    fn siblings_of_one_speed_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass; 10]);
    }

    #[test]
    fn a_port_slower_than_its_siblings_is_warned_of() {
        let found = worst(&CHECK, &rate("200 Gb/sec (2X NDR)\n"));
        assert_eq!(found.verdict, Verdict::Warn);
        assert_eq!(found.subject.to_string(), "mlx5_1 port 1");
    }

    #[test]
    fn boards_of_all_the_same_lower_speed_pass_and_a_single_one_is_told_of() {
        let mut node = example::healthy();
        for number in [1, 2, 3, 4, 6, 7, 8, 9] {
            let path = format!("/sys/class/infiniband/mlx5_{number}/ports/1/rate");
            node = node.file(&path, "200 Gb/sec (2X NDR)\n");
        }
        assert_eq!(verdict(&CHECK, &node), Verdict::Pass);
        let alone = example::healthy().file("/sys/class/infiniband/mlx5_1/board_id", "OTHER\n");
        assert_eq!(verdict(&CHECK, &alone), Verdict::Info);
        let one_lane = alone.file(
            "/sys/class/infiniband/mlx5_1/ports/1/rate",
            "100 Gb/sec (1X NDR)\n",
        );
        assert_eq!(verdict(&CHECK, &one_lane), Verdict::Warn);
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_no_port_is_no_question() {
        let node = example::healthy().denied("/sys/class/infiniband/mlx5_1/ports/1/rate");
        assert_eq!(verdict(&CHECK, &node), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let bare = MemorySource::new().directory("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &bare), Verdict::Skip);
    }
}
