//! `map`: which interface is which RDMA device is which PCI function.

use std::collections::BTreeMap;

use gdr_node::topology::SmiClass;
use gdr_node::{Datum, GpuDevice};

use crate::check::{Check, CheckId, Documentation, Group};
use crate::checks::pcie::devices;
use crate::context::{Context, Nic};
use crate::finding::{Finding, Subject};

pub(super) const CHECK: Check = Check {
    id: CheckId("map"),
    group: Group::Network,
    title: "which interface is which RDMA device is which PCI function is known",
    documentation: Documentation {
        means: "A NIC has a name as an interface, another as an RDMA device, an address on the PCI \
                bus, a hardware address and a slot. Settings take one or another of them, and a \
                wrong guess measures the wrong card.",
        reads: "/sys/class/infiniband/*/device, /sys/class/net/*/{device,dev_port,address}, \
                /sys/bus/pci/slots/*/address, numa_node, the PCI tree.",
        judges: "info: the names of each NIC. skip: no RDMA NIC. unknown: not collected.",
        sources: &["Linux Documentation/ABI/testing/sysfs-class-net: dev_port"],
    },
    purposes: &[],
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    match devices::nics(context) {
        Ok(nics) => {
            let slots = slots(context);
            (nics.iter())
                .map(|(nic, _)| describe(context, nic, &slots))
                .collect()
        }
        Err(why) => why,
    }
}

fn describe(context: &Context<'_>, nic: &Nic<'_>, slots: &BTreeMap<String, String>) -> Finding {
    let mut parts = vec![nic.bdf.to_string()];
    let netdevs = context.inventory.netdevs.present();
    let own = nic.rdma.zip(netdevs).map(|(rdma, all)| rdma.netdevs(all));
    let mut evidence = Vec::new();
    for netdev in own.into_iter().flatten() {
        parts.push(format!("interface {}", netdev.name));
        if let Some(address) = netdev.address.present() {
            let path = format!("/sys/class/net/{}/address", netdev.name);
            evidence.push((path, address.clone()));
        }
    }
    let function = context.function(nic.bdf);
    if let Some(node) = function.and_then(|function| function.numa.present()) {
        parts.push(format!("NUMA node {node}"));
    }
    let address = nic.bdf.to_string();
    let device = address.rsplit_once('.').map_or("", |(device, _)| device);
    if let Some(slot) = slots.get(device) {
        parts.push(format!("slot {slot}"));
    }
    if let Some((gpu, class)) = nearest(context, nic) {
        parts.push(format!("nearest {} ({class})", gpu.index));
    }
    if let Some(Datum::Present(driver)) = function.map(|function| &function.driver) {
        evidence.push((
            format!("/sys/bus/pci/devices/{}/driver", nic.bdf),
            driver.clone(),
        ));
    }
    evidence.into_iter().fold(
        Finding::info(Subject::nic(nic), format!("it is {}", parts.join(", "))),
        |finding, (source, value)| finding.evidence(source, value),
    )
}

/// Slots by the address of the device in them, which has no function: `0000:19:00`.
fn slots(context: &Context<'_>) -> BTreeMap<String, String> {
    const SLOTS: &str = "/sys/bus/pci/slots";
    let names = context.source.list(SLOTS).into_present();
    (names.into_iter().flatten())
        .filter_map(|slot| {
            let address = context.text(&format!("{SLOTS}/{slot}/address"));
            Some((address.into_present()?, slot))
        })
        .collect()
}

fn nearest<'a>(context: &Context<'a>, nic: &Nic<'_>) -> Option<(GpuDevice, SmiClass)> {
    (context.pairs().iter())
        .filter(|pair| pair.nic.bdf == nic.bdf)
        .map(|pair| (pair.gpu, pair.relation.smi_pci))
        .min_by_key(|(_, class)| *class)
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{findings, verdict};
    use crate::finding::Verdict;

    #[test]
    fn every_nic_is_told_by_all_of_its_names() {
        let found = findings(&CHECK, &example::healthy());
        assert_eq!(found.len(), 10);
        assert_eq!(
            found[1].summary,
            "it is 0000:19:00.0, interface ibp25s0, NUMA node 0, slot 10, nearest GPU0 (PIX)"
        );
        assert!(found.iter().all(|it| it.verdict == Verdict::Info));
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
