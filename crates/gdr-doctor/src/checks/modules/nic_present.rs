use super::gpu_present::gone;
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("nic.present"),
    title: "an RDMA NIC is on the PCI bus",
    why: "Without an RDMA NIC, data from the network reaches GPU memory only through the CPU. \
          Software RDMA devices (rxe, siw) do not count: they cannot access GPU memory.",
    inputs: "/sys/class/infiniband/*/device; PCI functions of class 0x0207xx (InfiniBand) and \
             0x0208xx (fabric), and of class 0x02xxxx with vendor 0x15b3, or with the number, the \
             name or the driver of an RDMA NIC (EFA, eRDMA, PVRDMA).",
    criteria: "pass: there is one. fail: none, or one whose config space reads as ones. unknown: \
               the PCI functions are not known, or are from a listing, which may be cut off, or \
               which network cards support RDMA.",
    sources: &["PCI Code and ID Assignment Specification, base class 02h"],
    workloads: Workload::RDMA,
    scope: Scope::Several(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let functions = super::nic_functions(context);
    if functions.is_empty() {
        return Ok(vec![none(context)?]);
    }
    let mut findings: Vec<Finding> = (functions.iter())
        .filter_map(|nic| {
            let function = context.function(nic.bdf).filter(|it| it.gone)?;
            Some(gone(function, "NIC").about(nic.subject()))
        })
        .collect();
    let names: Vec<String> = (functions.iter())
        .map(|nic| match nic.rdma {
            Some(rdma) => format!("{} {}", rdma.name, nic.bdf),
            None => nic.bdf.to_string(),
        })
        .collect();
    let count = match names.len() {
        1 => "1 RDMA NIC".to_owned(),
        n => format!("{n} RDMA NICs"),
    };
    findings.push(
        Finding::pass(format!("{count} on the PCI bus"))
            .evidence("PCI functions", names.join(", ")),
    );
    Ok(findings)
}

fn none(context: &Context<'_>) -> Judgement {
    let inventory = context.inventory;
    let Ok(tree) = &inventory.tree else {
        return Err(runner::no_nic(context));
    };
    let mut functions = tree.functions();
    if inventory.rdma.is_unknown() && functions.any(|it| it.identity.is_network()) {
        let rdma = inventory.rdma.by_ref();
        rdma.known("whether one of the network cards supports RDMA")?;
    }
    let every = context.every_nic_by_identity();
    every.known("which PCI functions are RDMA NICs")?;
    Ok(Finding::fail("there is no RDMA NIC")
        .evidence("/sys/class/infiniband", "no device on the PCI bus")
        .evidence(
            "/sys/bus/pci/devices",
            "no InfiniBand controller and no NIC of vendor 0x15b3",
        )
        .fix(Fix::manual(
            "Make an RDMA NIC visible",
            if context.is_guest() {
                "pass a NIC, or one of its virtual functions, through to this virtual machine"
            } else {
                "reseat the card; in a container, pass /dev/infiniband and run gdr again"
            },
        )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn nics_pass_with_and_without_a_driver() {
        assert!(
            worst(&CHECK, &example::healthy())
                .summary
                .starts_with("10 ")
        );
        let unbound = example::healthy().without("/sys/class/infiniband");
        assert_eq!(verdicts(&CHECK, &unbound), [Pass]);
    }

    #[test]
    fn a_nic_whose_config_space_reads_as_ones_fails() {
        let at = format!("/sys/bus/pci/devices/{}/config", example::NICS[2]);
        let node = example::healthy().file(&at, [0xff; 64]);
        let found = judged(&CHECK, &node, Fail);
        assert_eq!(found.subject.to_string(), "mlx5_2");
    }

    #[test]
    fn an_uncaptured_vendor_does_not_mean_that_there_is_no_nic() {
        let node = MemorySource::new()
            .directory("/sys/class/infiniband")
            .file("/sys/bus/pci/devices/0000:41:00.0/device", "0x1021\n");
        assert_eq!(verdicts(&CHECK, &node), [Unknown]);
        let named = node
            .file("/sys/bus/pci/devices/0000:41:00.0/vendor", "0x10de\n")
            .file("/sys/bus/pci/devices/0000:41:00.0/class", "0x030200\n");
        assert_eq!(verdicts(&CHECK, &named), [Fail]);
    }

    #[test]
    fn a_node_without_a_nic_fails_and_a_guest_is_sent_to_its_host() {
        let advice = |node: &MemorySource| {
            let found = judged(&CHECK, node, Fail);
            found.fixes[0].actions[0].to_string()
        };
        let bare = MemorySource::new().directory("/sys/bus/pci/devices");
        assert!(advice(&bare).contains("reseat"));
        let guest = bare.file("/proc/cpuinfo", "flags : fpu hypervisor\n");
        assert!(!advice(&guest).contains("reseat"));
        assert!(advice(&guest).contains("this virtual machine"));
    }
}
