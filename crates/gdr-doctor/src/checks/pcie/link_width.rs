use std::collections::BTreeSet;

use gdr_node::pci::Link;

use super::hops::{Hop, hops};
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("link.width"),
    title: "every link between a GPU or a NIC and the CPU has all of its lanes",
    why: "A link uses the lanes that both of its ends have and that work. A badly seated card, a \
          riser or a slot that firmware splits (bifurcation) costs half of the lanes or more, and \
          the same share of the bandwidth.",
    inputs: "current_link_width and max_link_width of both ends of every link on the path, or the \
             Link Status and Link Capabilities registers.",
    criteria: "pass: the lanes of the end with fewer. fail: fewer. info: fewer than the device \
               has, if the port above it is hidden. unknown: a width is not known. skip: it has no \
               link of its own.",
    sources: &[
        "PCI Express Base Specification 6.0, 7.5.3.6 and 7.5.3.8",
        "Linux Documentation/ABI/testing/sysfs-bus-pci: current_link_width",
        "https://github.com/facebookresearch/gcm (check_pci)",
    ],
    scope: Scope::Several(|context| each_link(context, judge)),
    ..super::CHECK
};

/// Returns the findings about the links above the GPUs and the NICs, each link once.
pub(super) fn each_link(
    context: &Context<'_>,
    judge: impl Fn(Hop<'_>) -> Judgement,
) -> Result<Vec<Finding>, Unjudged> {
    let mut seen = BTreeSet::new();
    let mut links = Vec::new();
    for (subject, function) in runner::functions(context)? {
        for hop in hops(context, function.bdf) {
            if !seen.insert(hop.lower.bdf) {
                continue;
            }
            let subject = if hop.lower.bdf == function.bdf {
                subject.clone()
            } else {
                Subject::Function(hop.lower.bdf)
            };
            links.push((subject, hop));
        }
    }
    let found = links.into_iter().flat_map(|(subject, hop)| {
        let mut found = runner::each([hop], |hop| (subject.clone(), judge(hop)));
        // A fault of a GPU explains a fault of its link.
        if hop.lower.identity.is_nvidia_gpu() {
            found = found
                .into_iter()
                .map(|it| it.symptom_of("gpu.present"))
                .collect();
        }
        found
    });
    Ok(found.collect())
}

/// Returns the skip for a function that shows no link: many virtual functions, and those inside the root complex.
pub(super) fn no_link() -> Unjudged {
    Unjudged::skip("it shows no link of its own")
}

/// Returns the current link and the best that both ends support; `what` of it is unknown if one is absent.
pub(super) fn now_and_best(hop: &Hop<'_>, what: &str) -> Result<(Link, Link), Unjudged> {
    let (now, best) = (hop.now(), hop.best());
    if now == Err(Absence::Missing) || now.is_ok() && best == Err(Absence::Missing) {
        return Err(no_link());
    }
    Ok((now.known(what)?, best.known(what)?))
}

fn judge(hop: Hop<'_>) -> Judgement {
    let (now, best) = now_and_best(&hop, "the width of its link")?;
    let (now, best) = (now.width, best.width);
    let shown = format!("{now} of {best}");
    let path = format!("/sys/bus/pci/devices/{}/current_link_width", hop.lower.bdf);
    let finding = match (hop.upper, hop.unsure()) {
        _ if now >= best => Finding::pass(format!("its link has {now}")),
        (None, _) => Finding::info(format!(
            "its link has {shown}; the width of the slot is hidden"
        )),
        (_, Some(absent)) => Finding::unknown(
            "the capability of the other end of its \
                                               link",
            &absent,
        ),
        (Some(upper), None) => {
            let share = u32::from(now.0) * 100 / u32::from(best.0.max(1));
            let summary = format!(
                "its link has {shown} lanes that both ends support: {share} % of the bandwidth"
            );
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
        "Restore the lanes",
        "reseat the card and its riser; check the BIOS for a split of the slot (bifurcation x8x8); \
         try another slot to find out whether the card or the slot is bad",
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
    fn each_link_has_one_finding() {
        let found = findings(&CHECK, &example::healthy());
        // Eight GPUs, ten NICs, four switches.
        assert_eq!(found.len(), 22);
        assert!(found.iter().all(|it| it.verdict == Pass));
    }

    #[test]
    fn a_nic_on_half_of_its_lanes_fails() {
        let found = judged(&CHECK, &example::node(), Fail);
        assert_eq!(found.subject.to_string(), "mlx5_7");
        assert_contains!(found.summary, "x8 of x16");
    }

    #[test]
    fn a_card_in_a_narrow_slot_passes() {
        let path = format!(
            "/sys/bus/pci/devices/{}/max_link_width",
            example::NIC_PORTS[7]
        );
        let node = example::node().file(&path, "8\n");
        assert_eq!(verdict(&CHECK, &node), Pass);
    }

    #[test]
    fn a_switch_that_lost_lanes_is_the_subject() {
        let node = example::edit(example::healthy(), "0000:16:00.0", |switch| {
            switch.link(LinkSpeed::GEN5, LinkWidth(4));
        });
        let found = worst(&CHECK, &node);
        assert_eq!(found.subject.to_string(), "0000:16:00.0");
        assert_eq!(found.verdict, Fail);
    }

    #[test]
    fn a_hidden_slot_is_info() {
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
        assert_eq!(verdict(&CHECK, &node), Info);
    }

    #[test]
    fn a_function_without_a_link_is_skipped() {
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
        assert_eq!(of_nic.unwrap().verdict, Skip);
    }
}
