use std::collections::BTreeMap;

use super::hops::Hop;
use super::link_width::each_link;
use crate::checks::prelude::*;

/// Errors that say nothing of the link: requests that no device took, as the search for devices at
/// start makes them, with the advice that these leave behind, and those that ACS refused.
const NOT_OF_THE_LINK: [&str; 5] = [
    "UnsupReq",
    "ACSViol",
    "Undefined",
    "NonFatalErr",
    "AdvNonFatalErr",
];

pub(super) const CHECK: Check = Check {
    id: CheckId("link.aer"),
    title: "links on the way lose no packets (AER)",
    why: "Advanced Error Reporting counts what links repaired by sending again (correctable) and \
          what they lost (uncorrectable). Repairs cost bandwidth when they are many; a lost packet \
          costs the transfer, often the device. A riser or a cable is the usual cause.",
    inputs: "aer_dev_correctable, aer_dev_nonfatal and aer_dev_fatal in sysfs of both ends of \
          every link on the way; where a kernel does not count, the AER status registers, which \
          needs root.",
    criteria: "pass: nothing counted. info: correctable errors since the last start, since no time \
          is known in which they happened; unsupported requests and advisory errors, which come \
          with the search for devices. warn: the registers show data that was lost, at a time that \
          they do not show: completions that timed out, malformed or poisoned packets. fail: the \
          kernel counted such errors. unknown: not collected, or not root.",
    sources: &[
        "PCI Express Base Specification 6.0, 6.2 and 7.8.4",
        "Linux Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats",
    ],
    scope: Scope::Several(|context| each_link(context, |hop| judge(context, hop))),
    ..super::CHECK
};

/// What both ends of a link have counted.
#[derive(Default)]
struct Counted {
    /// By what was counted, and where.
    lost: BTreeMap<String, u64>,
    /// As `lost`, by registers, which may have held it since before the last start.
    lost_once: BTreeMap<String, u64>,
    repaired: BTreeMap<String, u64>,
    refused: BTreeMap<String, u64>,
    known: bool,
}

fn judge(context: &Context<'_>, hop: Hop<'_>) -> Judgement {
    let mut counted = Counted::default();
    let mut absence = Absence::Missing;
    for end in hop.upper.into_iter().chain([hop.lower]) {
        if let Err(absent) = count(context, end, &mut counted) {
            absence = absent;
        }
    }
    if !counted.known {
        let none = "neither end of its link reports errors";
        Err(absence).known_or_skip("what errors its link has seen", none)?;
    }
    let finding = if !counted.lost.is_empty() {
        Finding::fail(format!(
            "its link has lost packets: {}",
            words(&counted.lost)
        ))
        .fix(
            Fix::manual(
                "Find the bad contact",
                "seat the card, its riser and its cables again; move the card to another slot to \
                 tell the card from the slot; bring the firmware of retimers and switches up to \
                 date",
            )
            .risk(Risk::Medium, "the machine is powered off for it"),
        )
    } else if !counted.lost_once.is_empty() {
        Finding::warn(format!(
            "data was lost on its link, at a time that the registers do not show: {}",
            words(&counted.lost_once)
        ))
        .fix(Fix::manual(
            "See whether it happens again",
            "clear the status (`setpci -s ADDRESS ECAP_AER+4.l=ffffffff`), run a job and look \
             again; if it comes back, seat the card, its riser and its cables again",
        ))
    } else if !counted.repaired.is_empty() {
        Finding::info(format!(
            "its link has repaired errors since the last start: {}; look whether they grow",
            words(&counted.repaired)
        ))
    } else if !counted.refused.is_empty() {
        Finding::info(format!(
            "requests were refused: {}",
            words(&counted.refused)
        ))
    } else {
        Finding::pass("its link has seen no errors")
    };
    let all = [
        counted.lost,
        counted.lost_once,
        counted.repaired,
        counted.refused,
    ];
    Ok(all
        .into_iter()
        .flatten()
        .fold(finding, |finding, (what, count)| {
            finding.evidence(what, count)
        }))
}

/// Adds what one end has counted.
fn count(context: &Context<'_>, end: &Function, counted: &mut Counted) -> Datum<()> {
    let mut absence = None;
    for (file, is_lost) in [
        ("aer_dev_correctable", false),
        ("aer_dev_nonfatal", true),
        ("aer_dev_fatal", true),
    ] {
        let path = format!("/sys/bus/pci/devices/{}/{file}", end.bdf);
        let text = match context.text(&path) {
            Ok(text) => text,
            Err(absent) => {
                absence = Some(absent);
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
        // Registers hold errors until they are cleared, and firmware clears some of them: what
        // they show fails nothing.
        Ok(aer) => {
            counted.known = true;
            let of_the_link = |name: &&str| !NOT_OF_THE_LINK.contains(name);
            for name in aer.uncorrectable.names().filter(of_the_link) {
                let what = format!("{} {name}", end.bdf);
                counted.lost_once.insert(what, 1);
            }
            for name in aer.correctable.names().filter(of_the_link) {
                counted.repaired.insert(format!("{} {name}", end.bdf), 1);
            }
            Ok(())
        }
        Err(Absence::Missing) => Err(absence),
        Err(absence) => Err(*absence),
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
    use super::*;
    use crate::checks::fixture::*;

    fn counting(file: &str, text: &str) -> MemorySource {
        let path = format!("/sys/bus/pci/devices/{}/{file}", example::NICS[1]);
        example::healthy().file(&path, text)
    }

    #[test]
    fn links_that_counted_nothing_pass() {
        let found = findings(&CHECK, &example::healthy());
        assert!(found.iter().all(|it| it.verdict == Pass));
    }

    #[test]
    fn lost_packets_fail() {
        let found = worst(
            &CHECK,
            &counting("aer_dev_fatal", "DLP 0\nMalfTLP 2\nTOTAL_ERR_FATAL 2\n"),
        );
        assert_eq!(found.verdict, Fail);
        assert!(found.summary.contains("MalfTLP 2"), "{}", found.summary);
    }

    #[test]
    fn repairs_without_a_time_and_refused_requests_are_reported() {
        let node = counting("aer_dev_correctable", "RxErr 12\nBadTLP 900\n");
        assert_eq!(verdict(&CHECK, &node), Info);
        let node = counting("aer_dev_nonfatal", "UnsupReq 7\nTOTAL_ERR_NONFATAL 7\n");
        assert_eq!(verdict(&CHECK, &node), Info);
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
        assert_eq!(of_nic(&node), Pass);
        for bdf in [example::NICS[1], example::NIC_PORTS[1]] {
            node = example::edit(node, bdf, |end| {
                end.header_only();
            });
        }
        assert_eq!(of_nic(&node), Unknown);
    }

    #[test]
    fn a_completion_that_timed_out_is_lost_data_and_an_advice_alone_is_nothing() {
        let of = |uncorrectable: &str, correctable: &str| {
            let text = format!(
                "3b:00.0 3D controller [0302]: NVIDIA Corporation X [10de:2330]\n\
                 \tStatus: Cap+\n\tCapabilities: [100 v1] Advanced Error Reporting\n\
                 \t\tUESta:\tDLP- {uncorrectable}\n\t\tCESta:\tRxErr- {correctable}\n"
            );
            let tree = gdr_node::import::lspci::read(&text).unwrap().into_tree();
            let layout = gdr_node::NumaLayout::unknown();
            let inventory = gdr_node::Inventory::of_tree(Ok(tree), layout);
            let node = MemorySource::partial();
            let mut found = CHECK.run(&Context::new(&node, &inventory));
            found.remove(0)
        };
        let lost = of("CmpltTO+ UnsupReq+", "AdvNonFatalErr+");
        assert_eq!(lost.verdict, Warn);
        assert!(lost.summary.contains("CmpltTO"), "{}", lost.summary);
        assert_eq!(of("CmpltTO- UnsupReq+", "AdvNonFatalErr+").verdict, Pass);
        assert_eq!(of("CmpltTO-", "BadTLP+ AdvNonFatalErr+").verdict, Info);
    }
}
