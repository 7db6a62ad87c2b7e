//! `link.width`: no link has lost lanes.

use std::collections::BTreeSet;

use gdr_node::Datum;

use super::devices;
use super::hops::{Hop, hops};
use crate::check::{Check, CheckId, Documentation, Group};
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::{Fix, Risk};

pub(super) const CHECK: Check = Check {
    id: CheckId("link.width"),
    group: Group::Pcie,
    title: "every link between a GPU or a NIC and the CPU has all of its lanes",
    documentation: Documentation {
        means: "A link trains with as many lanes as both of its ends have and as work. A card that \
                sits badly, a riser, or a slot that firmware splits (bifurcation) loses half of \
                them or more, and with them half of the bandwidth.",
        reads: "current_link_width and max_link_width of both ends of every link on the way, or the \
                Link Status and Link Capabilities registers.",
        judges: "pass: as many lanes as the end that has fewer. fail: fewer. info: fewer than the \
                 device has, where the port above it is hidden. unknown: a width is not known. skip: it has no link of its own.",
        sources: &[
            "PCI Express Base Specification 6.0, 7.5.3.6 and 7.5.3.8",
            "Linux Documentation/ABI/testing/sysfs-bus-pci: current_link_width",
            "https://github.com/facebookresearch/gcm (check_pci)",
        ],
    },
    purposes: &[],
    symptom_of: &[CheckId("gpu.present")],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    each_link(context, judge)
}

/// What is found of every link above the GPUs and the NICs, each link once.
pub(super) fn each_link(
    context: &Context<'_>,
    judge: impl Fn(Subject, Hop<'_>) -> Finding,
) -> Vec<Finding> {
    let all = match devices::both(context) {
        Ok(all) => all,
        Err(why) => return why,
    };
    let mut seen = BTreeSet::new();
    let mut findings = Vec::new();
    for (subject, function) in all {
        for hop in hops(context, function.bdf) {
            if !seen.insert(hop.lower.bdf) {
                continue;
            }
            let subject = if hop.lower.bdf == function.bdf {
                subject.clone()
            } else {
                Subject::Function(hop.lower.bdf)
            };
            findings.push(judge(subject, hop));
        }
    }
    findings
}

/// What is to be said of a function that shows no link: many virtual ones, and those inside of
/// the root complex.
pub(super) fn no_link(subject: Subject) -> Finding {
    let mut finding = Finding::skip("it shows no link of its own");
    finding.subject = subject;
    finding
}

fn judge(subject: Subject, hop: Hop<'_>) -> Finding {
    let (now, best) = match (hop.now(), hop.best()) {
        (Datum::Present(now), Datum::Present(best)) => (now.width, best.width),
        (Datum::Present(_), Datum::Missing) | (Datum::Missing, _) => return no_link(subject),
        (Datum::Present(_), absent) | (absent, _) => {
            return Finding::unknown(subject, "the width of its link", &absent);
        }
    };
    let shown = format!("{now} of {best}");
    let path = format!("/sys/bus/pci/devices/{}/current_link_width", hop.lower.bdf);
    if now >= best {
        return Finding::pass(subject, format!("its link has {now}")).evidence(path, shown);
    }
    let Some(upper) = hop.upper else {
        return Finding::info(
            subject,
            format!("its link has {shown}; whether the slot has more is hidden from here"),
        )
        .evidence(path, shown);
    };
    let share = u32::from(now.0) * 100 / u32::from(best.0.max(1));
    if let Some(absent) = hop.unsure() {
        let what = "what the other end of its link can do";
        return Finding::unknown(subject, what, &absent).evidence(path, shown);
    }
    Finding::fail(
        subject,
        format!("its link has {shown} lanes that both ends have: {share} % of the bandwidth"),
    )
    .evidence(path, shown)
    .evidence("port above", upper.bdf.to_string())
    .fix(
        Fix::manual(
            "Get the lanes back",
            "seat the card and its riser anew; look in the BIOS whether the slot is split \
             (bifurcation x8x8); try the card in another slot to tell the card from the slot",
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
    fn a_node_whose_links_are_whole_passes_each_link_once() {
        let found = findings(&CHECK, &example::healthy());
        // Eight GPUs, ten NICs, four switches.
        assert_eq!(found.len(), 22);
        assert!(found.iter().all(|it| it.verdict == Verdict::Pass));
    }

    #[test]
    fn a_nic_on_half_of_its_lanes_fails() {
        let found = worst(&CHECK, &example::node());
        assert_eq!(found.verdict, Verdict::Fail);
        assert_eq!(found.subject.to_string(), "mlx5_7");
        assert!(found.summary.contains("x8 of x16"), "{}", found.summary);
    }

    #[test]
    fn a_narrow_slot_is_no_fault_of_the_card() {
        let path = format!(
            "/sys/bus/pci/devices/{}/max_link_width",
            example::NIC_PORTS[7]
        );
        let node = example::node().file(&path, "8\n");
        assert_eq!(verdict(&CHECK, &node), Verdict::Pass);
    }

    #[test]
    fn a_switch_that_lost_lanes_is_named_itself() {
        let node = example::edit(example::healthy(), "0000:16:00.0", |switch| {
            switch.link(LinkSpeed::GEN5, LinkWidth(4));
        });
        let found = worst(&CHECK, &node);
        assert_eq!(found.subject.to_string(), "0000:16:00.0");
        assert_eq!(found.verdict, Verdict::Fail);
    }

    #[test]
    fn a_hidden_slot_is_only_told_of() {
        let at = "/sys/devices/pci0000:00/0000:00:05.0";
        let mut node = MemorySource::new().link_to(
            "/sys/bus/pci/devices/0000:00:05.0",
            "../../../devices/pci0000:00/0000:00:05.0",
        );
        for (name, text) in [
            ("vendor", "0x10de"),
            ("class", "0x030200"),
            ("current_link_speed", "32.0 GT/s PCIe"),
            ("current_link_width", "8"),
            ("max_link_speed", "32.0 GT/s PCIe"),
            ("max_link_width", "16"),
        ] {
            node = node.file(&format!("{at}/{name}"), text);
        }
        assert_eq!(verdict(&CHECK, &node), Verdict::Info);
    }

    #[test]
    fn a_function_without_a_link_is_no_question() {
        let mut node = example::healthy();
        for end in [example::NICS[1], example::NIC_PORTS[1]] {
            node = example::edit(node, end, |function| {
                function.link(LinkSpeed::GEN1, LinkWidth(0));
            });
            let path = format!("/sys/bus/pci/devices/{end}/current_link");
            node = node
                .file(&format!("{path}_width"), "0\n")
                .file(&format!("{path}_speed"), "Unknown\n");
        }
        let found = findings(&CHECK, &node);
        let of_nic = found.iter().find(|it| it.subject.to_string() == "mlx5_1");
        assert_eq!(of_nic.unwrap().verdict, Verdict::Skip);
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
