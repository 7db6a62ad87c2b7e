use super::hops::Hop;
use super::link_width::{each_link, now_and_best};
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("link.speed"),
    title: "every link between a GPU or a NIC and the CPU runs at its full speed",
    why: "Each generation below the one that both ends support halves the bandwidth of a link. The \
          cause is a bad riser or retimer, or a limit in firmware. GPUs lower the speed of an idle \
          link to save power and raise it under load, so that the speed of an idle GPU's link \
          shows no fault.",
    inputs: "current_link_speed and max_link_speed of both ends of every link on the path, or the \
             Link Status and Link Capabilities registers.",
    criteria: "pass: the speed of the slower end. fail: a lower speed at a NIC or a switch. info: \
               a lower speed at a GPU, which may be idle; or the port above is hidden. unknown: a \
               speed is not known.",
    sources: &[
        "PCI Express Base Specification 6.0, 7.5.3.6 and 7.5.3.8",
        "Linux Documentation/ABI/testing/sysfs-bus-pci: current_link_speed",
    ],
    scope: Scope::Several(|context| each_link(context, judge)),
    ..super::CHECK
};

fn judge(hop: Hop<'_>) -> Judgement {
    let (now, best) = now_and_best(&hop, "the speed of its link")?;
    let (now, best) = (now.speed, best.speed);
    let path = format!("/sys/bus/pci/devices/{}/current_link_speed", hop.lower.bdf);
    let shown = format!("{now} of {best}");
    let finding = match (hop.upper, hop.unsure()) {
        _ if now >= best => {
            return Ok(Finding::pass(format!("its link runs at {now}")).evidence(path, now));
        }
        _ if hop.lower.identity.is_nvidia_gpu() => Finding::info(format!(
            "its link runs at {shown}, as it does when the GPU is idle; check again under load"
        )),
        (None, _) => Finding::info(format!(
            "its link runs at {shown}; the capability of the slot is hidden"
        )),
        (_, Some(absent)) => Finding::unknown(
            "the capability of the other end of its \
                                               link",
            &absent,
        ),
        (Some(upper), None) => {
            let summary = format!("its link runs at {now}, although both ends support {best}");
            let finding = Finding::fail(summary)
                .evidence(path, shown)
                .evidence("port above", upper.bdf);
            return Ok(finding.fix(retrain()));
        }
    };
    Ok(finding.evidence(path, shown))
}

fn retrain() -> Fix {
    Fix::hardware(
        "Restore the speed",
        "check the BIOS for a limit on the slot's link speed; reseat the card and its riser or \
         retimer; try another slot to find out whether the card or the slot is bad",
    )
    .risk(Risk::Medium, "the machine has to be powered off")
}

#[cfg(test)]
mod tests {
    use gdr_node::pci::{LinkSpeed, LinkWidth};
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn links_at_full_speed_pass() {
        let found = findings(&CHECK, &example::healthy());
        assert_eq!(found.len(), 22);
        assert!(found.iter().all(|it| it.verdict == Pass));
    }

    #[test]
    fn the_slow_link_of_an_idle_gpu_is_info() {
        let mut node = example::healthy();
        for (gpu, port) in example::GPUS.iter().zip(example::GPU_PORTS) {
            node = example::edit(node, gpu, |gpu| {
                gpu.link(LinkSpeed::GEN1, LinkWidth(16));
            });
            node = example::edit(node, port, |port| {
                port.link(LinkSpeed::GEN1, LinkWidth(16));
            });
        }
        let found = judged(&CHECK, &node, Info);
        assert_contains!(found.summary, "2.5 GT/s of 32 GT/s");
    }

    #[test]
    fn a_nic_and_a_switch_below_their_speed_fail() {
        for bdf in [example::NICS[1], "0000:16:00.0"] {
            let node = example::edit(example::healthy(), bdf, |function| {
                function.link(LinkSpeed::GEN3, LinkWidth(16));
            });
            assert_eq!(verdict(&CHECK, &node), Fail, "{bdf}");
        }
    }
}
