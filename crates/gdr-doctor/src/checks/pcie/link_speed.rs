//! `link.speed`: no link runs at a lower speed than it can.

use gdr_node::Datum;

use super::hops::Hop;
use super::link_width::{each_link, no_link};
use crate::check::{Check, CheckId, Documentation, Group};
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::{Fix, Risk};

pub(super) const CHECK: Check = Check {
    id: CheckId("link.speed"),
    group: Group::Pcie,
    title: "every link between a GPU or a NIC and the CPU runs at its full speed",
    documentation: Documentation {
        means: "A link that trains at a lower generation than both of its ends can do halves the \
                bandwidth with every step: a bad riser or retimer, or a limit in firmware. GPUs \
                lower the speed of an idle link to save power and raise it with the first work, so \
                that theirs says nothing until they are busy.",
        reads: "current_link_speed and max_link_speed of both ends of every link on the way, or the \
                Link Status and Link Capabilities registers.",
        judges: "pass: the speed of the slower end. fail: less, at a NIC or a switch. info: less, \
                 at a GPU, which may be idle; or where the port above is hidden. unknown: a speed \
                 is not known.",
        sources: &[
            "PCI Express Base Specification 6.0, 7.5.3.6 and 7.5.3.8",
            "Linux Documentation/ABI/testing/sysfs-bus-pci: current_link_speed",
        ],
    },
    purposes: &[],
    symptom_of: &[CheckId("gpu.present")],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    each_link(context, judge)
}

fn judge(subject: Subject, hop: Hop<'_>) -> Finding {
    let (now, best) = match (hop.now(), hop.best()) {
        (Datum::Present(now), Datum::Present(best)) => (now.speed, best.speed),
        (Datum::Present(_), Datum::Missing) | (Datum::Missing, _) => return no_link(subject),
        (Datum::Present(_), absent) | (absent, _) => {
            return Finding::unknown(subject, "the speed of its link", &absent);
        }
    };
    let path = format!("/sys/bus/pci/devices/{}/current_link_speed", hop.lower.bdf);
    if now >= best {
        return Finding::pass(subject, format!("its link runs at {now}"))
            .evidence(path, now.to_string());
    }
    let shown = format!("{now} of {best}");
    if hop.lower.identity.is_nvidia_gpu() {
        return Finding::info(
            subject,
            format!(
                "its link runs at {shown}, as it does when the GPU is idle; look again under load"
            ),
        )
        .evidence(path, shown);
    }
    let Some(upper) = hop.upper else {
        return Finding::info(
            subject,
            format!("its link runs at {shown}; what the slot can do is hidden from here"),
        )
        .evidence(path, shown);
    };
    if let Some(absent) = hop.unsure() {
        let what = "what the other end of its link can do";
        return Finding::unknown(subject, what, &absent).evidence(path, shown);
    }
    Finding::fail(
        subject,
        format!("its link runs at {now} where both ends can do {best}"),
    )
    .evidence(path, shown)
    .evidence("port above", upper.bdf.to_string())
    .fix(
        Fix::manual(
            "Get the speed back",
            "look in the BIOS for a limit on the slot's link speed; seat the card and its riser or \
             retimer anew; try another slot to tell the card from the slot",
        )
        .risk(Risk::Medium, "the machine is powered off for it"),
    )
}

#[cfg(test)]
mod tests {
    use gdr_node::pci::{LinkSpeed, LinkWidth};
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{findings, verdict, worst};
    use crate::finding::Verdict;

    #[test]
    fn links_at_full_speed_pass() {
        let found = findings(&CHECK, &example::healthy());
        assert_eq!(found.len(), 22);
        assert!(found.iter().all(|it| it.verdict == Verdict::Pass));
    }

    #[test]
    fn the_slow_link_of_an_idle_gpu_is_told_of_and_never_a_failure() {
        let mut node = example::healthy();
        for (gpu, port) in example::GPUS.iter().zip(example::GPU_PORTS) {
            node = example::edit(node, gpu, |gpu| {
                gpu.link(LinkSpeed::GEN1, LinkWidth(16));
            });
            node = example::edit(node, port, |port| {
                port.link(LinkSpeed::GEN1, LinkWidth(16));
            });
        }
        let found = worst(&CHECK, &node);
        assert_eq!(found.verdict, Verdict::Info);
        assert!(
            found.summary.contains("2.5 GT/s of 32 GT/s"),
            "{}",
            found.summary
        );
    }

    #[test]
    fn a_nic_and_a_switch_below_their_speed_fail() {
        for bdf in [example::NICS[1], "0000:16:00.0"] {
            let node = example::edit(example::healthy(), bdf, |function| {
                function.link(LinkSpeed::GEN3, LinkWidth(16));
            });
            assert_eq!(verdict(&CHECK, &node), Verdict::Fail, "{bdf}");
        }
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_nothing_to_look_at_is_no_question() {
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let bare = MemorySource::new()
            .directory("/sys/bus/pci/devices")
            .directory("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &bare), Verdict::Skip);
    }
}
