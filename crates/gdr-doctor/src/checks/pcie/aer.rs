use std::collections::BTreeMap;

use super::hops::Hop;
use super::link_width::each_link;
use crate::checks::prelude::*;

/// Errors that are not faults of the link: unsupported requests, which device enumeration at boot
/// causes, the advisory errors that come with them, and ACS violations.
const NOT_OF_THE_LINK: [&str; 5] = [
    "UnsupReq",
    "ACSViol",
    "Undefined",
    "NonFatalErr",
    "AdvNonFatalErr",
];

pub(super) const CHECK: Check = Check {
    id: CheckId("link.aer"),
    title: "links between GPUs, NICs and the CPU lose no packets (AER)",
    why: "Advanced Error Reporting counts errors that links repaired by retransmission \
          (correctable) and packets that they lost (uncorrectable). Many repairs cost bandwidth. A \
          lost packet costs the transfer and often the device. The usual cause is a riser or a \
          cable.",
    inputs: "aer_dev_correctable, aer_dev_nonfatal and aer_dev_fatal in sysfs for both ends of \
             every link on the path. If the kernel does not count, the AER status registers, which \
             need root.",
    criteria: "pass: no errors. info: correctable errors, whose time is not known; unsupported \
               requests and advisory errors, which device enumeration causes. warn: the registers \
               show lost data (completion time-outs, malformed or poisoned packets), whose time is \
               not known. fail: the kernel counted such errors. unknown: not collected, or not \
               root.",
    sources: &[
        "PCI Express Base Specification 6.0, 6.2 and 7.8.4",
        "Linux Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats",
    ],
    scope: Scope::Several(|context| each_link(context, |hop| judge(context, hop))),
    ..super::CHECK
};

/// The errors that both ends of a link have counted.
#[derive(Default)]
struct Counted {
    /// Lost packets, by function and name of the error.
    lost: BTreeMap<String, u64>,
    /// The same from registers, which may keep errors from before the last boot.
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
        let none = "neither end of its link has AER";
        Err(absence).known_or_skip("the errors of its link", none)?;
    }
    let finding = if !counted.lost.is_empty() {
        Finding::fail(format!(
            "its link has lost packets: {}",
            words(&counted.lost)
        ))
        .fix(
            Fix::hardware(
                "Find the bad contact",
                "reseat the card, its riser and its cables; try another slot to find out whether \
                 the card or the slot is bad; update the firmware of retimers and switches",
            )
            .risk(Risk::Medium, "the machine has to be powered off"),
        )
    } else if !counted.lost_once.is_empty() {
        Finding::warn(format!(
            "data was lost on its link; the registers do not show when: {}",
            words(&counted.lost_once)
        ))
        .fix(Fix::manual(
            "Check whether it happens again",
            "clear the status (`setpci -s ADDRESS ECAP_AER+4.l=ffffffff`), run a job and check \
             again; if the error is back, reseat the card, its riser and its cables",
        ))
    } else if !counted.repaired.is_empty() {
        Finding::info(format!(
            "its link has repaired errors since boot: {}; check whether the counts grow",
            words(&counted.repaired)
        ))
    } else if !counted.refused.is_empty() {
        Finding::info(format!(
            "requests on its link were refused: {}",
            words(&counted.refused)
        ))
    } else {
        Finding::pass("its link has no errors")
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

/// Adds the errors that one end has counted.
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
        // Registers keep errors until they are cleared, and firmware clears some of them. They do
        // not justify a failure.
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
    use snapshot::assert_contains;

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
    fn counted_lost_packets_fail() {
        let found = judged(
            &CHECK,
            &counting("aer_dev_fatal", "DLP 0\nMalfTLP 2\nTOTAL_ERR_FATAL 2\n"),
            Fail,
        );
        assert_contains!(found.summary, "MalfTLP 2");
    }

    #[test]
    fn repaired_errors_and_refused_requests_are_info() {
        let node = counting("aer_dev_correctable", "RxErr 12\nBadTLP 900\n");
        assert_eq!(verdict(&CHECK, &node), Info);
        let node = counting("aer_dev_nonfatal", "UnsupReq 7\nTOTAL_ERR_NONFATAL 7\n");
        assert_eq!(verdict(&CHECK, &node), Info);
    }

    #[test]
    fn the_registers_are_used_if_the_kernel_does_not_count() {
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
    fn a_completion_time_out_is_lost_data_and_an_advisory_error_alone_passes() {
        let of = |uncorrectable: &str, correctable: &str| {
            let text = format!(
                "3b:00.0 3D controller [0302]: NVIDIA Corporation X [10de:2330]\n\
                 \tStatus: Cap+\n\tCapabilities: [100 v1] Advanced Error Reporting\n\
                 \t\tUESta:\tDLP- {uncorrectable}\n\t\tCESta:\tRxErr- {correctable}\n"
            );
            of_listing(&CHECK, &text).remove(0)
        };
        let lost = of("CmpltTO+ UnsupReq+", "AdvNonFatalErr+");
        assert_eq!(lost.verdict, Warn);
        assert_contains!(lost.summary, "CmpltTO");
        assert_eq!(of("CmpltTO- UnsupReq+", "AdvNonFatalErr+").verdict, Pass);
        assert_eq!(of("CmpltTO-", "BadTLP+ AdvNonFatalErr+").verdict, Info);
    }
}
