//! `link.bottleneck`: PCI Express carries what a NIC's port can.

use gdr_node::pci::{Bandwidth, Link};
use gdr_node::{Bdf, Datum};

use super::devices::{self, active_ports, fastest_port};
use super::hops::{Hop, hops};
use super::link_width::no_link;
use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::{Context, Nic};
use crate::finding::{Finding, Subject};
use crate::fix::Fix;

pub(super) const CHECK: Check = Check {
    id: CheckId("link.bottleneck"),
    group: Group::Pcie,
    title: "no link between a NIC and its GPU is slower than the NIC's port",
    documentation: Documentation {
        means: "A port of 400 Gb/s needs 50 GB/s of PCI Express in each direction: 16 lanes of \
                generation 5. On less the network is not the limit, the slot is, and no setting \
                helps.",
        reads: "The links on the way from the NIC to the GPU nearest to it, or to the CPU where \
                there is none: lanes and speed after line coding. Of a GPU's link the speed that it \
                can do counts, since it is slow while idle. The rate of the NIC's fastest active \
                port.",
        judges: "pass: the narrowest link carries the port's rate. warn: it does not. info: it carries \
                 one port and not all of the card's; or no port is active. unknown: no link on the way is known. \
                 skip: it shows no link.",
        sources: &[
            "PCI Express Base Specification 6.0, 4.2 (line coding)",
            "https://docs.nvidia.com/holoscan/ (high-performance networking: PCIe bandwidth)",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[
        CheckId("link.width"),
        CheckId("link.speed"),
        CheckId("gpu.present"),
    ],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    match devices::nics(context) {
        Ok(nics) => nics.iter().map(|(nic, _)| judge(context, nic)).collect(),
        Err(why) => why,
    }
}

fn judge(context: &Context<'_>, nic: &Nic<'_>) -> Finding {
    let subject = Subject::nic(nic);
    let way = way(context, nic);
    let narrowest = way
        .iter()
        .filter_map(|hop| Some((carries(hop)?, hop.lower.bdf)))
        .min_by_key(|(link, _)| link.bandwidth());
    let Some((link, at)) = narrowest else {
        let absent = way.first().map_or(Datum::NotCollected, Hop::now);
        if absent == Datum::Missing {
            return no_link(subject);
        }
        return Finding::unknown(subject, "the list of links on its way", &absent);
    };
    let has = link.bandwidth();
    let evidence = format!("{link} ({has}) at {at}");
    let Some(rate) = fastest_port(nic) else {
        return Finding::info(
            subject,
            format!("its way carries {has}; no active port tells what is needed"),
        )
        .evidence("narrowest link", evidence);
    };
    let needed = Bandwidth(u64::from(rate) * 125_000_000);
    if has >= needed {
        let together = Bandwidth(u64::from(all_ports(context, nic)) * 125_000_000);
        let finding = if has >= together {
            Finding::pass(subject, format!("its way carries {has}, its port {needed}"))
        } else {
            Finding::info(
                subject,
                format!(
                    "its way carries {has}, one port {needed}, all ports of the card {together}"
                ),
            )
        };
        return finding.evidence("narrowest link", evidence);
    }
    // A link that many devices share is a finding about that link.
    let subject = if at == nic.bdf {
        subject
    } else {
        Subject::Function(at)
    };
    Finding::warn(
        subject,
        format!(
            "{link} carries {has}, and the port of {} needs {needed} ({rate} Gb/s)",
            nic.name
        ),
    )
    .evidence("narrowest link", evidence)
    .fix(Fix::manual(
        "Give the NIC a wider way",
        "move the NIC to a slot of as many lanes and as high a generation as its port needs: 400 \
         Gb/s needs generation 5 x16, 200 Gb/s generation 4 x16, 100 Gb/s generation 3 x16",
    ))
}

/// What the active ports of a card bring together, in Gb/s: those of all of its functions.
fn all_ports(context: &Context<'_>, nic: &Nic<'_>) -> u32 {
    let same_card = |other: &&Nic<'_>| {
        let (a, b) = (other.bdf, nic.bdf);
        (a.domain, a.bus, a.device) == (b.domain, b.bus, b.device)
    };
    (context.nics().iter())
        .filter(same_card)
        .flat_map(active_ports)
        .fold(0, u32::saturating_add)
}

/// The links between a NIC and the GPU nearest to it, without those above what both are below;
/// where no GPU is known, those between the NIC and the CPU.
fn way<'a>(context: &Context<'a>, nic: &Nic<'_>) -> Vec<Hop<'a>> {
    let nearest = (context.pairs().iter())
        .filter(|pair| pair.nic.bdf == nic.bdf)
        .min_by_key(|pair| pair.relation.smi_pci);
    let own = hops(context, nic.bdf);
    let Some(pair) = nearest else {
        return own;
    };
    let on_the_way = |hop: &Hop<'_>| {
        let below = |upper: Bdf| pair.relation.ports.contains(&upper);
        hop.upper.is_none_or(|upper| below(upper.bdf))
    };
    own.into_iter()
        .chain(hops(context, pair.gpu.bdf))
        .filter(on_the_way)
        .collect()
}

/// What a link carries when it is busy: an idle GPU lowers only its speed.
fn carries(hop: &Hop<'_>) -> Option<Link> {
    let now = hop.now().into_present()?;
    if !hop.lower.identity.is_nvidia_gpu() {
        return Some(now);
    }
    let best = hop.best().into_present().unwrap_or(now);
    Some(Link {
        speed: best.speed,
        width: now.width,
    })
}

#[cfg(test)]
mod tests {
    use gdr_node::pci::{LinkSpeed, LinkWidth};
    use gdr_node::{Inventory, MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts, worst};
    use crate::diagnosis::{Selection, diagnose};
    use crate::finding::Verdict;

    #[test]
    fn ways_as_wide_as_the_ports_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass; 10]);
    }

    #[test]
    fn half_of_the_lanes_do_not_carry_400_gigabits_and_the_lanes_are_the_cause() {
        let node = example::node();
        let found = worst(&CHECK, &node);
        assert_eq!(found.verdict, Verdict::Warn);
        assert!(found.summary.contains("31.5 GB/s"), "{}", found.summary);
        let inventory = Inventory::read(&node);
        let selection = Selection::all().only([CHECK.id, CheckId("link.width")]);
        let diagnosis = diagnose(&Context::new(&node, &inventory), &selection);
        let causes = diagnosis.root_causes();
        assert_eq!(causes.len(), 1);
        assert_eq!(causes[0].1.check.id.0, "link.width");
    }

    #[test]
    fn the_idle_link_of_a_gpu_does_not_count() {
        let node = example::edit(example::healthy(), example::GPUS[0], |gpu| {
            gpu.link(LinkSpeed::GEN1, LinkWidth(16));
        });
        assert_eq!(verdict(&CHECK, &node), Verdict::Pass);
    }

    #[test]
    fn a_card_whose_ports_together_are_more_than_the_slot_is_told_of() {
        let port = "/sys/class/infiniband/mlx5_1/ports/2";
        let node = example::healthy()
            .file(&format!("{port}/state"), "4: ACTIVE\n")
            .file(&format!("{port}/rate"), "400 Gb/sec (4X NDR)\n");
        let found = worst(&CHECK, &node);
        assert_eq!(found.verdict, Verdict::Info);
        assert!(found.summary.contains("100.0 GB/s"), "{}", found.summary);
    }

    #[test]
    fn a_nic_without_an_active_port_needs_nothing() {
        let node =
            example::healthy().file("/sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
        assert_eq!(verdict(&CHECK, &node), Verdict::Info);
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_no_nic_is_no_question() {
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let bare = MemorySource::new()
            .directory("/sys/bus/pci/devices")
            .directory("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &bare), Verdict::Skip);
    }
}
