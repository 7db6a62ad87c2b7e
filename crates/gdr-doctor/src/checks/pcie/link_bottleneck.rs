use gdr_node::pci::{Bandwidth, Link};

use super::devices::data_rates;
use super::hops::{Hop, hops};
use super::link_width::no_link;
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("link.bottleneck"),
    title: "no link between a NIC and its GPU is slower than the NIC's port",
    why: "A port of 400 Gb/s needs 50 GB/s of PCI Express in each direction: generation 5 with 16 \
          lanes. On a slower link the slot limits the bandwidth, and no setting helps. InfiniBand \
          rates before EDR include line coding: a QDR port of 40 Gb/s carries 4 GB/s.",
    inputs: "The links on the path from the NIC to its nearest GPU, or to the CPU if there is no \
             GPU: lanes, and speed after line coding. For a GPU's link the highest speed counts, \
             since an idle GPU lowers it. The data rate of the NIC's fastest active port.",
    criteria: "pass: the narrowest link carries the port's rate. warn: it does not. info: it \
               carries one port, but not all ports of the card; or no port is active. unknown: no \
               link on the path is known. skip: the NIC shows no link.",
    sources: &[
        "PCI Express Base Specification 6.0, 4.2 (line coding)",
        "https://docs.nvidia.com/holoscan/ (high-performance networking: PCIe bandwidth)",
    ],
    workloads: Workload::RDMA,
    symptom_of: &["link.width", "link.speed"],
    scope: Scope::Nic(judge),
    ..super::CHECK
};

fn judge(context: &Context<'_>, nic: &Nic<'_>, _: &Function) -> Judgement {
    let path = path(context, nic);
    let narrowest = path
        .iter()
        .filter_map(|hop| Some((carries(hop)?, hop.lower.bdf)))
        .min_by_key(|(link, _)| link.bandwidth());
    let Some((link, at)) = narrowest else {
        let absent = path.first().map_or(Err(Absence::NotCollected), Hop::now);
        if absent == Err(Absence::Missing) {
            return Err(no_link());
        }
        return Ok(Finding::unknown(
            "the speed of the links on its path",
            &absent,
        ));
    };
    let has = link.bandwidth();
    let evidence = format!("{link} ({has}) at {at}");
    let Some(needed) = data_rates(nic).into_iter().max() else {
        return Ok(Finding::info(format!(
            "its path carries {has}; no active port shows what it needs"
        ))
        .evidence("narrowest link", evidence));
    };
    if has >= needed {
        let together = all_ports(context, nic);
        let finding = if has >= together {
            Finding::pass(format!("its path carries {has}, its port {needed}"))
        } else {
            Finding::info(format!(
                "its path carries {has}, one port {needed}, all ports of the card {together}"
            ))
        };
        return Ok(finding.evidence("narrowest link", evidence));
    }
    // A finding about a shared link has the link as its subject.
    let subject = if at == nic.bdf {
        Subject::nic(nic)
    } else {
        Subject::Function(at)
    };
    Ok(Finding::warn(format!(
        "{link} carries {has}, and the port of {} needs {needed}",
        nic.name
    ))
    .about(subject)
    .evidence("narrowest link", evidence)
    .fix(Fix::hardware(
        "Move the NIC to a faster slot",
        "move the NIC to a slot with the lanes and the generation that its port needs: generation \
         5 x16 for 400 Gb/s, generation 4 x16 for 200 Gb/s, generation 3 x16 for 100 Gb/s",
    )))
}

/// Returns the sum of the data rates of a card's active ports, over all of its functions.
fn all_ports(context: &Context<'_>, nic: &Nic<'_>) -> Bandwidth {
    let same_card = |other: &&Nic<'_>| {
        let (a, b) = (other.bdf, nic.bdf);
        (a.domain, a.bus, a.device) == (b.domain, b.bus, b.device)
    };
    let each = (context.nics().iter())
        .filter(same_card)
        .flat_map(data_rates);
    Bandwidth(each.fold(0, |sum, port| sum.saturating_add(port.0)))
}

/// Returns the links between a NIC and its nearest GPU, up to their common ancestor; if no GPU is known, those between
/// the NIC and the CPU.
fn path<'a>(context: &Context<'a>, nic: &Nic<'_>) -> Vec<Hop<'a>> {
    let nearest = (context.pairs().iter())
        .filter(|pair| pair.nic.bdf == nic.bdf)
        .min_by_key(|pair| pair.relation.smi_pci);
    let own = hops(context, nic.bdf);
    let Some(pair) = nearest else {
        return own;
    };
    let on_the_path = |hop: &Hop<'_>| {
        let below = |upper: Bdf| pair.relation.ports.contains(&upper);
        hop.upper.is_none_or(|upper| below(upper.bdf))
    };
    own.into_iter()
        .chain(hops(context, pair.gpu.bdf))
        .filter(on_the_path)
        .collect()
}

/// Returns the link under load: an idle GPU lowers the speed, but not the width.
fn carries(hop: &Hop<'_>) -> Option<Link> {
    let now = hop.now().ok()?;
    if !hop.lower.identity.is_nvidia_gpu() {
        return Some(now);
    }
    let best = hop.best().ok().unwrap_or(now);
    Some(Link {
        speed: best.speed,
        width: now.width,
    })
}

#[cfg(test)]
mod tests {
    use gdr_node::Inventory;
    use gdr_node::pci::{LinkSpeed, LinkWidth};
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::*;
    use crate::diagnosis::{Selection, diagnose};

    #[test]
    fn paths_that_carry_the_ports_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 10]);
    }

    #[test]
    fn eight_lanes_do_not_carry_400_gigabits_and_the_width_is_the_cause() {
        let node = example::node();
        let found = judged(&CHECK, &node, Warn);
        assert_contains!(found.summary, "31.5 GB/s");
        let inventory = Inventory::read(&node);
        let selection = Selection::all().only([CHECK.id, CheckId("link.width")]);
        let diagnosis = diagnose(&Context::new(&node, &inventory), &selection);
        let causes = diagnosis.root_causes();
        assert_eq!(causes.len(), 1);
        assert_eq!(causes[0].1.check.id.0, "link.width");
    }

    #[test]
    fn the_low_speed_of_an_idle_gpu_does_not_count() {
        let node = example::edit(example::healthy(), example::GPUS[0], |gpu| {
            gpu.link(LinkSpeed::GEN1, LinkWidth(16));
        });
        assert_eq!(verdict(&CHECK, &node), Pass);
    }

    #[test]
    fn a_card_whose_ports_together_exceed_the_slot_is_info() {
        let port = "/sys/class/infiniband/mlx5_1/ports/2";
        let node = example::healthy()
            .file(&format!("{port}/state"), "4: ACTIVE\n")
            .file(&format!("{port}/rate"), "400 Gb/sec (4X NDR)\n");
        let found = judged(&CHECK, &node, Info);
        assert_contains!(found.summary, "100.0 GB/s");
    }

    /// Returns the example's mlx5_1 in a slot of generation 3 with 4 lanes, which carries 3.9 GB/s.
    fn narrow(layer: &str, rate: &str) -> Verdict {
        let node = example::edit(example::healthy(), example::NICS[1], |nic| {
            nic.link(LinkSpeed::GEN3, LinkWidth(4));
        });
        let at = format!("/sys/bus/pci/devices/{}", example::NICS[1]);
        let port = "/sys/class/infiniband/mlx5_1/ports/1";
        let node = node
            .file(&format!("{at}/current_link_speed"), "8.0 GT/s PCIe\n")
            .file(&format!("{at}/current_link_width"), "4\n")
            .file(&format!("{port}/link_layer"), layer)
            .file(&format!("{port}/rate"), rate);
        let inventory = Inventory::read(&node);
        let context = Context::new(&node, &inventory);
        let nic = context.nics().iter().find(|nic| nic.name == "mlx5_1");
        let nic = nic.unwrap();
        judge(&context, nic, context.function(nic.bdf).unwrap())
            .unwrap()
            .verdict
    }

    #[test]
    fn infiniband_rates_before_edr_include_line_coding() {
        // 8b/10b leaves 3.2 GB/s of DDR and 2 GB/s of SDR, and 4 GB/s of QDR.
        assert_eq!(narrow("InfiniBand", "32 Gb/sec (8X SDR)"), Pass);
        assert_eq!(narrow("InfiniBand", "20 Gb/sec (4X DDR)"), Pass);
        assert_eq!(narrow("InfiniBand", "38 Gb/sec (4X QDR)"), Pass);
        assert_eq!(narrow("InfiniBand", "40 Gb/sec (4X QDR)"), Warn);
        assert_eq!(narrow("InfiniBand", "30 Gb/sec (12X)"), Pass);
        // Ethernet ports use the names with data rates.
        assert_eq!(narrow("Ethernet", "38 Gb/sec (4X QDR)"), Warn);
        // 64/66 of FDR: 3.88 of 4.0 GB/s.
        assert_eq!(narrow("InfiniBand", "32 Gb/sec (4X FDR)"), Pass);
        assert_eq!(narrow("InfiniBand", "32 Gb/sec (4X EDR)"), Warn);
    }

    #[test]
    fn a_slow_slot_is_not_a_symptom_of_a_missing_gpu() {
        let gpus = example::GPUS.iter();
        let node = gpus.fold(example::node(), |node, gpu| {
            node.without(&format!("/sys/bus/pci/devices/{gpu}"))
        });
        let inventory = Inventory::read(&node);
        let diagnosis = diagnose(&Context::new(&node, &inventory), &Selection::all());
        let found = diagnosis.findings.iter().filter(|judged| {
            ["link.bottleneck", "link.width"].contains(&judged.check.id.0)
                && judged.finding.verdict.is_bad()
        });
        let no_gpu =
            (diagnosis.findings.iter()).position(|judged| judged.check.id.0 == "gpu.present");
        assert!(no_gpu.is_some());
        let causes: Vec<Option<usize>> = found.map(|judged| judged.cause).collect();
        assert!(
            !causes.is_empty() && !causes.contains(&no_gpu),
            "{causes:?}"
        );
    }

    #[test]
    fn a_nic_without_an_active_port_is_info() {
        let node =
            example::healthy().file("/sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
        assert_eq!(verdict(&CHECK, &node), Info);
    }
}
