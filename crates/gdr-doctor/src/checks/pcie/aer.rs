//! `link.aer`: links do not lose packets.

use std::collections::BTreeMap;

use gdr_node::Datum;
use gdr_node::pci::{Function, UncorrectableErrors};

use super::hops::Hop;
use super::link_width::each_link;
use crate::check::{Check, CheckId, Documentation, Group};
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::{Fix, Risk};

/// Errors that say nothing of the link: requests that nobody took, as the search for devices at
/// start makes them, and those that ACS refused.
const NOT_OF_THE_LINK: [&str; 3] = ["UnsupReq", "ACSViol", "Undefined"];

pub(super) const CHECK: Check = Check {
    id: CheckId("link.aer"),
    group: Group::Pcie,
    title: "links on the way lose no packets (AER)",
    documentation: Documentation {
        means: "Advanced Error Reporting counts what links repaired by sending again \
                (correctable) and what they lost (uncorrectable). Repairs cost bandwidth when they \
                are many; a lost packet costs the transfer, often the device. A riser or a cable is \
                the usual cause.",
        reads: "aer_dev_correctable, aer_dev_nonfatal and aer_dev_fatal in sysfs of both ends of \
                every link on the way; where a kernel does not count, the AER status registers, \
                which needs root.",
        judges: "pass: nothing counted. info: correctable errors since the last start, since no \
                 time is known in which they happened; unsupported requests, which come with the \
                 search for devices. fail: uncorrectable errors of the link. unknown: not \
                 collected, or not root.",
        sources: &[
            "PCI Express Base Specification 6.0, 6.2 and 7.8.4",
            "Linux Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats",
        ],
    },
    purposes: &[],
    symptom_of: &[CheckId("gpu.present")],
    run,
};

/// What both ends of a link have counted.
#[derive(Default)]
struct Counted {
    /// By what was counted, and where.
    lost: BTreeMap<String, u64>,
    repaired: BTreeMap<String, u64>,
    refused: BTreeMap<String, u64>,
    known: bool,
}

fn run(context: &Context<'_>) -> Vec<Finding> {
    each_link(context, |subject, hop| judge(context, subject, hop))
}

fn judge(context: &Context<'_>, subject: Subject, hop: Hop<'_>) -> Finding {
    let mut counted = Counted::default();
    let mut absence = Datum::Missing;
    for end in hop.upper.into_iter().chain([hop.lower]) {
        if let Err(absent) = count(context, end, &mut counted) {
            absence = absent;
        }
    }
    if !counted.known {
        return match absence {
            Datum::Missing => {
                let mut finding = Finding::skip("neither end of its link reports errors");
                finding.subject = subject;
                finding
            }
            absent => Finding::unknown(subject, "what errors its link has seen", &absent),
        };
    }
    let finding = if !counted.lost.is_empty() {
        Finding::fail(
            subject,
            format!("its link has lost packets: {}", words(&counted.lost)),
        )
        .fix(
            Fix::manual(
                "Find the bad contact",
                "seat the card, its riser and its cables anew; move the card to another slot to \
                 tell the card from the slot; bring the firmware of retimers and switches up to \
                 date",
            )
            .risk(Risk::Medium, "the machine is powered off for it"),
        )
    } else if !counted.repaired.is_empty() {
        Finding::info(
            subject,
            format!(
                "its link has repaired errors since the last start: {}; look whether they grow",
                words(&counted.repaired)
            ),
        )
    } else if !counted.refused.is_empty() {
        Finding::info(
            subject,
            format!("requests were refused: {}", words(&counted.refused)),
        )
    } else {
        Finding::pass(subject, "its link has seen no errors")
    };
    let all = [counted.lost, counted.repaired, counted.refused];
    all.into_iter()
        .flatten()
        .fold(finding, |finding, (what, count)| {
            finding.evidence(what, count.to_string())
        })
}

/// Adds what one end has counted.
fn count(context: &Context<'_>, end: &Function, counted: &mut Counted) -> Result<(), Datum<()>> {
    let mut absence = None;
    for (file, is_lost) in [
        ("aer_dev_correctable", false),
        ("aer_dev_nonfatal", true),
        ("aer_dev_fatal", true),
    ] {
        let path = format!("/sys/bus/pci/devices/{}/{file}", end.bdf);
        let text = match context.text(&path) {
            Datum::Present(text) => text,
            absent => {
                absence = Some(absent.map(|_| ()));
                continue;
            }
        };
        counted.known = true;
        for (name, number) in text.lines().filter_map(|line| line.rsplit_once(' ')) {
            let number: u64 = number.parse().unwrap_or(0);
            if number == 0 || name.starts_with("TOTAL_") {
                continue;
            }
            let kind = if NOT_OF_THE_LINK.contains(&name) {
                &mut counted.refused
            } else if is_lost {
                &mut counted.lost
            } else {
                &mut counted.repaired
            };
            kind.insert(format!("{} {name}", end.bdf), number);
        }
    }
    let Some(absence) = absence else {
        return Ok(());
    };
    match &end.aer {
        // Registers hold since when nobody knows, and firmware clears some of them: what they
        // show is told, and fails nothing.
        Datum::Present(aer) => {
            counted.known = true;
            let quiet = UncorrectableErrors::UNSUPPORTED_REQUEST;
            if !(aer.uncorrectable & !quiet).is_empty() {
                let name = format!("{} uncorrectable error status", end.bdf);
                counted.refused.insert(name, 1);
            }
            if !aer.correctable.is_empty() {
                let name = format!("{} correctable error status", end.bdf);
                counted.repaired.insert(name, 1);
            }
            Ok(())
        }
        Datum::Missing => Err(absence),
        absent => Err(absent.as_ref().map(|_| ())),
    }
}

fn words(counts: &BTreeMap<String, u64>) -> String {
    let mut all: Vec<String> = counts
        .iter()
        .take(3)
        .map(|(what, count)| format!("{what} {count}"))
        .collect();
    if counts.len() > 3 {
        all.push(format!("and {} more", counts.len() - 3));
    }
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{findings, verdict, worst};
    use crate::finding::Verdict;

    fn counting(file: &str, text: &str) -> MemorySource {
        let path = format!("/sys/bus/pci/devices/{}/{file}", example::NICS[1]);
        example::healthy().file(&path, text)
    }

    #[test]
    fn links_that_counted_nothing_pass() {
        let found = findings(&CHECK, &example::healthy());
        assert!(found.iter().all(|it| it.verdict == Verdict::Pass));
    }

    #[test]
    fn lost_packets_fail() {
        let found = worst(
            &CHECK,
            &counting("aer_dev_fatal", "DLP 0\nMalfTLP 2\nTOTAL_ERR_FATAL 2\n"),
        );
        assert_eq!(found.verdict, Verdict::Fail);
        assert!(found.summary.contains("MalfTLP 2"), "{}", found.summary);
    }

    #[test]
    fn repairs_without_a_time_and_refused_requests_are_told_of() {
        let node = counting("aer_dev_correctable", "RxErr 12\nBadTLP 900\n");
        assert_eq!(verdict(&CHECK, &node), Verdict::Info);
        let node = counting("aer_dev_nonfatal", "UnsupReq 7\nTOTAL_ERR_NONFATAL 7\n");
        assert_eq!(verdict(&CHECK, &node), Verdict::Info);
    }

    #[test]
    fn a_kernel_that_does_not_count_leaves_the_registers() {
        let mut node = example::healthy();
        for bdf in [example::NICS[1], example::NIC_PORTS[1]] {
            for file in ["aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal"] {
                node = node.without(&format!("/sys/bus/pci/devices/{bdf}/{file}"));
            }
            node = example::edit(node, bdf, |end| {
                end.aer(1 << 20, 0);
            });
        }
        let of_nic = |node: &MemorySource| {
            let found = findings(&CHECK, node);
            let mut of = found
                .into_iter()
                .filter(|it| it.subject.to_string() == "mlx5_1");
            of.next().unwrap().verdict
        };
        assert_eq!(of_nic(&node), Verdict::Pass);
        for bdf in [example::NICS[1], example::NIC_PORTS[1]] {
            node = example::edit(node, bdf, |end| {
                end.header_only();
            });
        }
        assert_eq!(of_nic(&node), Verdict::Unknown);
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
