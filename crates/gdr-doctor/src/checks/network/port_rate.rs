use super::ports::{Port, ports};
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("port.rate"),
    title: "ports run as fast as others of the same board",
    why: "A port that trained at a lower speed or with fewer lanes than its siblings slows down \
          every collective operation, which waits for the slowest.",
    inputs: "/sys/class/infiniband/*/ports/*/rate of the ports that are up; board_id.",
    criteria: "pass: as fast as the fastest of the same board. warn: slower, or with one lane. \
          info: the only one of its board, without another one to compare with. skip: no port is up. unknown: \
          not collected.",
    sources: &[
        "Linux Documentation/ABI/stable/sysfs-class-infiniband: rate",
        "https://github.com/Azure/azurehpc-health-checks (check_ib)",
    ],
    symptom_of: &["pci.slotpower"],
    scope: Scope::Port(Which::NotDown, judge),
    ..super::CHECK
};

fn judge(context: &Context<'_>, port: &Port<'_>) -> Judgement {
    let path = format!("{}/rate", port.path);
    let (text, rate) = match (&port.port.rate, port.rate()) {
        (Ok(text), Some(rate)) => (text.clone(), rate),
        (unknown, _) => return Ok(Finding::unknown("its rate", unknown)),
    };
    let board = port.board(context);
    let all = ports(context).unwrap_or_default();
    let siblings: Vec<u32> = (all.iter())
        .filter(|it| it.is_active() && board.is_some() && it.board(context) == board)
        .filter_map(Port::rate)
        .collect();
    let best = siblings.iter().copied().max().unwrap_or(rate);
    let finding = if rate < best {
        Finding::warn(format!(
            "it runs at {rate} Gb/s, others of the same board at {best}"
        ))
        .fix(retrain())
    } else if text.contains("(1X") && rate >= 25 && port.is_infiniband() {
        Finding::warn(format!("it runs with one lane: {text}")).fix(retrain())
    } else if siblings.len() < 2 {
        Finding::info(format!(
            "it runs at {text}; no other of its board shows more"
        ))
    } else {
        Finding::pass(format!("it runs at {text}"))
    };
    Ok(finding.evidence(path, text))
}

fn retrain() -> Fix {
    Fix::manual(
        "Let the link train again",
        "seat the cable and the transceivers again, then swap them with those of a port that is \
         fast, to tell the cable from the port; look at the speed that the switch's port allows; \
         `mlxlink -d DEVICE` shows what both ends offer",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    fn rate(text: &str) -> MemorySource {
        example::healthy().file("/sys/class/infiniband/mlx5_1/ports/1/rate", text)
    }

    #[test]
    fn siblings_of_one_speed_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 10]);
    }

    #[test]
    fn a_port_slower_than_its_siblings_is_warned_of() {
        let found = worst(&CHECK, &rate("200 Gb/sec (2X NDR)\n"));
        assert_eq!(found.verdict, Warn);
        assert_eq!(found.subject.to_string(), "mlx5_1 port 1");
    }

    #[test]
    fn boards_of_all_the_same_lower_speed_pass_and_a_single_one_is_reported() {
        let mut node = example::healthy();
        for number in [1, 2, 3, 4, 6, 7, 8, 9] {
            let path = format!("/sys/class/infiniband/mlx5_{number}/ports/1/rate");
            node = node.file(&path, "200 Gb/sec (2X NDR)\n");
        }
        assert_eq!(verdict(&CHECK, &node), Pass);
        let alone = example::healthy().file("/sys/class/infiniband/mlx5_1/board_id", "OTHER\n");
        assert_eq!(verdict(&CHECK, &alone), Info);
        let one_lane = alone.file(
            "/sys/class/infiniband/mlx5_1/ports/1/rate",
            "100 Gb/sec (1X NDR)\n",
        );
        assert_eq!(verdict(&CHECK, &one_lane), Warn);
    }

    #[test]
    fn what_was_not_collected_is_unknown() {
        let node = example::healthy().denied("/sys/class/infiniband/mlx5_1/ports/1/rate");
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
