use super::ports::Port;
use crate::checks::prelude::*;

/// The notification point and the reaction point of DCQCN.
const SIDES: [(&str, &str); 2] = [
    ("roce_np", "it notifies senders of congestion"),
    ("roce_rp", "it slows down after a notification"),
];

pub(super) const CHECK: Check = Check {
    id: CheckId("roce.ecn"),
    title: "RoCE ports react to congestion (ECN)",
    why: "Switches mark packets when their queues grow, receivers notify the senders, and senders \
          slow down. Without ECN, congestion leads to pauses that spread through the fabric, or to \
          lost packets.",
    inputs: "/sys/class/net/*/ecn/roce_{np,rp}/enable/<priority>, which MLNX_OFED and DOCA have.",
    criteria: "pass: on in both roles for some priority. info: off in one of them, or the driver \
               does not have these files. skip: no Ethernet port is active. unknown: not \
               collected.",
    sources: &[
        "MLNX_OFED user manual: Explicit Congestion Notification",
        "Linux drivers/infiniband/hw/mlx5/cong.c (debugfs cc_params)",
    ],
    scope: Scope::Port(Which::ActiveEthernet, judge),
    ..super::CHECK
};

fn judge(context: &Context<'_>, port: &Port<'_>) -> Judgement {
    let netdev = port.interface(context)?;
    let mut off = Vec::new();
    let mut evidence = Vec::new();
    for (side, role) in SIDES {
        let path = format!("/sys/class/net/{}/ecn/{side}/enable", netdev.name);
        // The files are read by name: an archive has the files, but no listing of the directory.
        let values: Vec<(u8, Datum<String>)> = (0..8)
            .map(|priority| (priority, context.text(&format!("{path}/{priority}"))))
            .collect();
        if values
            .iter()
            .all(|(_, value)| *value == Err(Absence::Missing))
        {
            return Ok(Finding::info(
                "this driver does not show in sysfs whether it reacts to congestion",
            )
            .evidence(path, "does not exist")
            .fix(Fix::run(
                "Check the setting in debugfs",
                "grep . /sys/kernel/debug/mlx5/*/cc_params/*",
            )));
        }
        if let Some((_, absent)) = values.iter().find(|(_, value)| value.is_unknown()) {
            return Ok(Finding::unknown("whether it reacts to congestion", absent));
        }
        let on: Vec<String> = values
            .iter()
            .filter(|(_, value)| value.as_ref().ok().is_some_and(|value| value == "1"))
            .map(|(priority, _)| priority.to_string())
            .collect();
        if on.is_empty() {
            off.push(role);
        }
        evidence.push((path, format!("priorities: {}", on.join(" "))));
    }
    let finding = if off.is_empty() {
        Finding::pass("it reacts to congestion")
    } else {
        Finding::info(format!("off for every priority: {}", off.join("; ")))
    };
    Ok(finding.evidence_all(evidence))
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::*;

    fn enabled(np: &str, rp: &str) -> MemorySource {
        let mut node = example::healthy();
        for (side, value) in [("roce_np", np), ("roce_rp", rp)] {
            for priority in 0..8 {
                let path = format!("/sys/class/net/enp6s0np0/ecn/{side}/enable/{priority}");
                node = node.file(&path, if priority == 3 { value } else { "0\n" });
            }
        }
        node
    }

    #[test]
    fn on_in_both_roles_passes_and_off_is_info() {
        assert_eq!(findings(&CHECK, &enabled("1\n", "1\n"))[0].verdict, Pass);
        let found = findings(&CHECK, &enabled("1\n", "0\n"));
        assert_eq!(found[0].verdict, Info);
        assert_contains!(found[0].summary, "slows down");
    }

    #[test]
    fn a_driver_without_these_files_is_info() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Info);
    }

    #[test]
    fn an_uncollected_setting_is_unknown() {
        let path = "/sys/class/net/enp6s0np0/ecn/roce_np/enable/3";
        let node = enabled("1\n", "1\n").not_collected(path);
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
