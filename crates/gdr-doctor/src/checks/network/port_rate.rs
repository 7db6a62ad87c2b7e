use super::ports::{Port, ports};
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("port.rate"),
    title: "ports run at the rate of the others of the same board type",
    why: "A port that trained at a lower speed or with fewer lanes than the others slows down \
          every collective operation, which waits for the slowest port.",
    inputs: "/sys/class/infiniband/*/ports/*/rate of the active ports; board_id.",
    criteria: "pass: the rate of the fastest of the same board type. warn: slower, or with one \
               lane. info: no other port of the board type to compare with. skip: no port is \
               active. unknown: not collected.",
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
            "it runs at {rate} Gb/s, others of the same board type at {best}"
        ))
        .fix(retrain())
    } else if text.contains("(1X") && rate >= 25 && port.is_infiniband() {
        Finding::warn(format!("it runs with one lane: {text}")).fix(retrain())
    } else if siblings.len() < 2 {
        Finding::info(format!(
            "it runs at {text}; there is no other port of its board type to compare with"
        ))
    } else {
        Finding::pass(format!("it runs at {text}"))
    };
    Ok(finding.evidence(path, text))
}

fn retrain() -> Fix {
    Fix::manual(
        "Retrain the link",
        "reseat the cable and the transceivers, then swap them with a fast port's to find \
         out whether the cable or the port is bad; check the speed of the switch port; `mlxlink -d \
         DEVICE` shows the capabilities of both ends",
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
    fn ports_of_one_rate_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 10]);
    }

    #[test]
    fn a_slower_port_is_a_warning() {
        let found = judged(&CHECK, &rate("200 Gb/sec (2X NDR)\n"), Warn);
        assert_eq!(found.subject.to_string(), "mlx5_1 port 1");
    }

    #[test]
    fn ports_of_one_lower_rate_pass_and_a_single_port_is_info() {
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
}
