use std::collections::BTreeMap;

use gdr_node::topology::SmiClass;

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("map"),
    title: "the interface, RDMA device and PCI function of each NIC are known",
    why: "A NIC has an interface name, an RDMA device name, a PCI address, a hardware address and \
          a slot. Different settings use different ones of these, and with a wrong guess the wrong \
          card is measured.",
    inputs: "/sys/class/infiniband/*/device, /sys/class/net/*/{device,dev_port,address}, \
          /sys/bus/pci/slots/*/address, numa_node, the PCI tree.",
    criteria: "info: the names of each NIC. skip: no RDMA NIC. unknown: not collected.",
    sources: &["Linux Documentation/ABI/testing/sysfs-class-net: dev_port"],
    workloads: &[],
    scope: Scope::Nic(judge),
    ..super::CHECK
};

fn judge(context: &Context<'_>, nic: &Nic<'_>, function: &Function) -> Judgement {
    let slots = slots(context);
    let mut parts = vec![nic.bdf.to_string()];
    let netdevs = context.inventory.netdevs.as_ref().ok();
    let own = nic.rdma.zip(netdevs).map(|(rdma, all)| rdma.netdevs(all));
    let mut evidence = Vec::new();
    for netdev in own.into_iter().flatten() {
        parts.push(format!("interface {}", netdev.name));
        if let Ok(address) = netdev.address.as_ref() {
            let path = format!("/sys/class/net/{}/address", netdev.name);
            evidence.push((path, address.clone()));
        }
    }
    if let Ok(node) = &function.numa {
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
    if let Ok(driver) = &function.driver {
        evidence.push((
            format!("/sys/bus/pci/devices/{}/driver", nic.bdf),
            driver.clone(),
        ));
    }
    Ok(Finding::info(format!("it is {}", parts.join(", "))).evidence_all(evidence))
}

/// Returns the slots by the address of their device, without a function number: `0000:19:00`.
fn slots(context: &Context<'_>) -> BTreeMap<String, String> {
    const SLOTS: &str = "/sys/bus/pci/slots";
    let names = context.source.list(SLOTS).ok();
    (names.into_iter().flatten())
        .filter_map(|slot| {
            let address = context.text(&format!("{SLOTS}/{slot}/address"));
            Some((address.ok()?, slot))
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
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn every_nic_is_shown_with_all_of_its_names() {
        let found = findings(&CHECK, &example::healthy());
        assert_eq!(found.len(), 10);
        assert_eq!(
            found[1].summary,
            "it is 0000:19:00.0, interface ibp25s0, NUMA node 0, slot 10, nearest GPU0 (PIX)"
        );
        assert!(found.iter().all(|it| it.verdict == Info));
    }
}
