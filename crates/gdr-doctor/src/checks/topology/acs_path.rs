use std::collections::BTreeMap;

use gdr_node::pci::{Acs, AcsBits};
use gdr_node::topology::{Ancestor, Note};

use super::iommu::{Domain, domain};
use super::redirect::{self, Fault};
use super::{direct, is_handed};
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("acs.path"),
    title: "no port between a GPU and its NIC redirects their traffic",
    why: "A switch forwards requests from a NIC directly to a GPU below it, unless Access Control \
          Services (ACS) make one of its ports send them to the root complex first. Redirected \
          requests are slow (half the bandwidth or less). If an IOMMU refuses them, they fail or \
          get lost, which shows as a hang. Source Validation and Upstream Forwarding redirect \
          nothing. Ports that are not between a GPU and its NIC do not matter.",
    inputs: "The ACS control register (extended capability 0x000d, offset 6) of every bridge below \
             the lowest common bridge of a GPU and each of its nearest NICs. Needs root.",
    criteria: "fail: Request Redirect, Completion Redirect or Egress Control on a port between two \
               devices below one switch; or Translation Blocking if the NIC or the GPU uses ATS. \
               warn: the same on a pair whose path crosses the host bridge, where requests reach \
               the root complex in any case; fail if the IOMMU also translates. info: only Source \
               Validation or Upstream Forwarding; or Direct Translated with ATS on. unknown: not \
               root. skip: in a guest, for devices that a guest owns (acs.virt), and for a \
               ConnectX with a DMA function (acs.directnic).",
    sources: &[
        "PCI Express Base Specification 6.0, 6.12 and 7.7.11",
        "Linux aaca43fda742 (pci=disable_acs_redir=): clearing Request Redirect, Completion \
             Redirect and Egress Control is sufficient",
        "https://github.com/NVIDIA/nccl/issues/2079",
        "https://github.com/NVIDIA/nccl/issues/928",
    ],
    scope: Scope::Several(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    if context.is_guest() {
        return Err(Unjudged::skip(
            "in a guest the ports of the host are not visible",
        ));
    }
    let pairs = runner::pairs(context)?;
    let exempt = direct::ports(context);
    let mut faults: BTreeMap<Bdf, Fault<'_, '_>> = BTreeMap::new();
    let mut unread: BTreeMap<Bdf, Datum<()>> = BTreeMap::new();
    let mut harmless: BTreeMap<Bdf, AcsBits> = BTreeMap::new();
    let mut findings = Vec::new();
    let mut handed = 0;
    for pair in pairs {
        if is_handed(context, pair.gpu.bdf) || is_handed(context, pair.nic.bdf) {
            handed += 1;
            continue;
        }
        if is_hidden(context, pair) {
            findings.push(
                Finding::unknown(
                    "the path between them",
                    &Err::<(), _>(Absence::NotCollected),
                )
                .about(Subject::pair(pair)),
            );
            continue;
        }
        let mut clear = true;
        let ports = pair.relation.ports.iter().copied();
        for port in ports.filter(|port| !exempt.contains(port)) {
            let Some(function) = context.function(port) else {
                continue;
            };
            let acs = match &function.acs {
                Ok(acs) => *acs,
                Err(Absence::Missing) => continue,
                absent => {
                    clear = false;
                    unread.insert(port, absent.by_ref().map(|_| ()));
                    continue;
                }
            };
            if acs.control.contains(AcsBits::DIRECT_TRANSLATED)
                && let Some(function) = context.function(pair.nic.bdf)
                && function.ats.is_unknown()
                && !acs.redirecting().is_empty()
            {
                // Translated requests go directly; others are redirected.
                clear = false;
                findings.push(
                    Finding::unknown(
                        "whether the NIC's requests are translated (ATS)",
                        &function.ats,
                    )
                    .about(Subject::pair(pair)),
                );
                continue;
            }
            let bits = harmful(context, pair, acs);
            if bits.is_empty() {
                if !acs.control.is_empty() {
                    harmless.insert(port, acs.control);
                }
                continue;
            }
            clear = false;
            let verdict = severity(context, pair);
            let fault = faults.entry(port).or_insert(Fault {
                acs,
                bits,
                verdict,
                pairs: Vec::new(),
            });
            fault.bits |= bits;
            fault.verdict = fault.verdict.max(verdict);
            fault.pairs.push(pair);
        }
        if clear {
            findings.push(passed(context, pair));
        }
    }
    if handed > 0 && findings.is_empty() && faults.is_empty() && unread.is_empty() {
        return Err(Unjudged::skip(
            "the devices belong to guests: acs.virt checks their ports",
        ));
    }
    let boot = redirect::at_boot(&faults);
    for (port, fault) in &faults {
        findings.insert(0, fault.finding(context, *port, boot.as_ref()));
    }
    findings.extend(not_read(&unread));
    findings.extend(innocent(&harmless));
    Ok(findings)
}

/// Returns whether a pair seems to be directly on a root bus and the machine is not known to be
/// bare metal: a listing may leave out bridges.
fn is_hidden(context: &Context<'_>, pair: &Pair<'_>) -> bool {
    pair.relation.notes.contains(&Note::FlatBus)
        && context.facts().machine.as_ref().ok() != Some(&Machine::Bare)
}

/// Returns the bits that prevent direct traffic between a pair.
fn harmful(context: &Context<'_>, pair: &Pair<'_>, acs: Acs) -> AcsBits {
    let translates = |bdf: Bdf| {
        (context
            .function(bdf)
            .and_then(|device| device.ats.as_ref().ok()))
        .is_some_and(|ats| ats.enabled)
    };
    let nic = translates(pair.nic.bdf);
    let mut bits = acs.redirecting();
    if nic && acs.control.contains(AcsBits::DIRECT_TRANSLATED) {
        // Translated requests go directly, as in guests.
        bits &= AcsBits::EGRESS_CONTROL;
    }
    if nic || translates(pair.gpu.bdf) {
        bits |= acs.control & AcsBits::TRANSLATION_BLOCKING;
    }
    bits
}

/// Below one switch a redirected request takes a longer path. Across the host bridge it reaches the
/// root complex in any case, and only a translating IOMMU makes a difference.
fn severity(context: &Context<'_>, pair: &Pair<'_>) -> Verdict {
    let translated = [pair.gpu.bdf, pair.nic.bdf]
        .into_iter()
        .any(|bdf| domain(context, bdf).1 == Ok(Domain::Translated));
    if matches!(pair.relation.ancestor, Ancestor::Bridge(_)) || translated {
        Verdict::Fail
    } else {
        Verdict::Warn
    }
}

fn passed(context: &Context<'_>, pair: &Pair<'_>) -> Finding {
    let ports = &pair.relation.ports;
    let summary = match ports.len() {
        0 => "no port is between them".to_owned(),
        1 => "the port between them redirects nothing".to_owned(),
        n => format!("none of the {n} ports between them redirects anything"),
    };
    let mut finding = Finding::pass(summary).about(Subject::pair(pair));
    for port in ports {
        let control = match context.function(*port).map(|function| &function.acs) {
            Some(Ok(acs)) => format!("{:04x} ({})", acs.control, acs.control),
            _ => "no ACS".to_owned(),
        };
        finding = finding.evidence(format!("ACS control of {port}"), control);
    }
    finding
}

/// Returns one finding for each reason, so that the same reason is not repeated for every port.
fn not_read(unread: &BTreeMap<Bdf, Datum<()>>) -> Vec<Finding> {
    let mut reasons: Vec<&Datum<()>> = unread.values().collect();
    reasons.dedup();
    let mut findings: Vec<Finding> = Vec::new();
    for reason in reasons {
        let ports: Vec<String> = (unread.iter())
            .filter(|(_, absence)| *absence == reason)
            .map(|(port, _)| port.to_string())
            .collect();
        let what = format!(
            "the ACS control register of {} between GPUs and NICs",
            match ports.len() {
                1 => "the port".to_owned(),
                n => format!("the {n} ports"),
            }
        );
        let finding = Finding::unknown(&what, reason).evidence("ports", ports.join(" "));
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    findings
}

fn innocent(harmless: &BTreeMap<Bdf, AcsBits>) -> Option<Finding> {
    if harmless.is_empty() {
        return None;
    }
    let mut finding = Finding::info(format!(
        "{} of the ports between GPUs and NICs have ACS bits set that redirect nothing",
        harmless.len()
    ));
    for (port, control) in harmless {
        finding = finding.evidence(format!("ACS control of {port}"), control);
    }
    Some(finding)
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::*;

    const HARMLESS: AcsBits = AcsBits::SOURCE_VALIDATION.union(AcsBits::UPSTREAM_FORWARDING);

    fn control(node: MemorySource, port: &str, bits: AcsBits) -> MemorySource {
        example::edit(node, port, |space| {
            space.acs_control(bits);
        })
    }

    #[test]
    fn source_validation_and_upstream_forwarding_are_info() {
        let found = findings(&CHECK, &example::healthy());
        let passes = found.iter().filter(|it| it.verdict == Pass);
        // Each GPU has two NICs below its switch.
        assert_eq!(passes.count(), 16);
        let rest: Vec<_> = (found.iter()).filter(|it| it.verdict != Pass).collect();
        assert_eq!(rest.len(), 1, "{rest:?}");
        assert_eq!(rest[0].verdict, Info);
    }

    #[test]
    fn a_port_that_redirects_fails_once_and_names_the_pairs() {
        let found = judged(&CHECK, &example::node(), Fail);
        assert_eq!(found.subject.to_string(), "GPU3");
        for word in [
            example::REDIRECTING_PORT,
            "GPU3 and mlx5_3, mlx5_4",
            "ReqRedir CmpltRedir",
        ] {
            assert_contains!(found.summary, word);
        }
        let all = findings(&CHECK, &example::node());
        assert_eq!(all.iter().filter(|it| it.verdict.is_bad()).count(), 1);
        let commands: Vec<String> = (found.fixes.iter())
            .map(|fix| fix.actions[0].to_string())
            .collect();
        assert_eq!(commands[0], "setpci -s 0000:37:02.0 ECAP_ACS+6.w=0000:002c");
        assert!(commands[1].ends_with("pci=disable_acs_redir=0000:37:02.0"));
    }

    #[test]
    fn each_redirecting_bit_alone_fails() {
        for bit in [
            AcsBits::REQUEST_REDIRECT,
            AcsBits::COMPLETION_REDIRECT,
            AcsBits::EGRESS_CONTROL,
        ] {
            let node = control(example::healthy(), example::NIC_PORTS[1], HARMLESS | bit);
            assert_eq!(verdict(&CHECK, &node), Fail, "{bit}");
        }
    }

    #[test]
    fn every_finding_has_the_kernel_argument_for_all_ports() {
        let on = HARMLESS | AcsBits::REQUEST_REDIRECT;
        let node = control(example::node(), example::GPU_PORTS[0], on);
        let bad: Vec<Finding> = (findings(&CHECK, &node).into_iter())
            .filter(|it| it.verdict.is_bad())
            .collect();
        assert_eq!(bad.len(), 2);
        for found in bad {
            let argument = found.fixes[1].actions[0].to_string();
            assert!(
                argument.ends_with("0000:17:00.0;0000:37:02.0"),
                "{argument}"
            );
        }
    }

    #[test]
    fn ports_that_are_not_between_a_pair_are_not_bad() {
        let redirecting = HARMLESS | AcsBits::REQUEST_REDIRECT | AcsBits::COMPLETION_REDIRECT;
        let off_the_ways = example::ROOT_PORTS
            .iter()
            .chain([&example::NIC_PORTS[0], &example::NIC_PORTS[5]]);
        let mut node = example::healthy();
        for port in off_the_ways {
            node = control(node, port, redirecting);
        }
        assert!(
            findings(&CHECK, &node)
                .iter()
                .all(|it| !it.verdict.is_bad())
        );
    }

    #[test]
    fn without_root_there_is_one_finding() {
        let mut node = example::node();
        for port in example::GPU_PORTS.iter().chain(&example::NIC_PORTS) {
            node = example::edit(node, port, |space| {
                space.header_only();
            });
        }
        let found = findings(&CHECK, &node);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].verdict, Unknown);
        assert_contains!(found[0].summary, "needs root");
    }

    #[test]
    fn translation_blocking_fails_only_with_ats() {
        let on = HARMLESS | AcsBits::TRANSLATION_BLOCKING;
        let node = control(example::healthy(), example::NIC_PORTS[1], on);
        assert_eq!(verdict(&CHECK, &node), Info);
        let node = example::edit(node, example::NICS[1], |nic| {
            nic.ats(true);
        });
        assert_eq!(verdict(&CHECK, &node), Fail);
    }

    #[test]
    fn direct_translated_with_ats_is_info() {
        let on = HARMLESS
            | AcsBits::REQUEST_REDIRECT
            | AcsBits::COMPLETION_REDIRECT
            | AcsBits::DIRECT_TRANSLATED;
        let mut node = control(example::healthy(), example::NIC_PORTS[1], on);
        assert_eq!(verdict(&CHECK, &node), Fail);
        node = example::edit(node, example::NICS[1], |nic| {
            nic.ats(true);
        });
        assert_eq!(verdict(&CHECK, &node), Info);
    }

    #[test]
    fn across_the_host_bridge_it_fails_only_with_a_translating_iommu() {
        // GPU7 is left with the Ethernet NIC of its socket.
        let node = without_nics(example::healthy(), 6..10);
        let redirecting = HARMLESS | AcsBits::REQUEST_REDIRECT;
        let node = control(node, example::NIC_PORTS[5], redirecting);
        assert_eq!(verdict(&CHECK, &node), Warn);
        let group = "/sys/bus/pci/devices/0000:86:00.0/iommu_group/type";
        assert_eq!(verdict(&CHECK, &node.file(group, "DMA-FQ\n")), Fail);
    }

    #[test]
    fn a_guest_and_a_node_without_nics_are_skipped() {
        let guest = example::node().file("/proc/cpuinfo", "flags\t: fpu hypervisor\n");
        assert_eq!(verdicts(&CHECK, &guest), [Skip]);
        let without = example::node().without("/sys/class/infiniband");
        assert_eq!(verdicts(&CHECK, &without), [Skip]);
    }
}
