use super::NicFunction;
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("nic.driver"),
    title: "each RDMA NIC has a driver and is an RDMA device",
    why: "A NIC without a driver is not usable. If its driver has not created an RDMA device, it \
          is only a network card: mlx5_ib and ib_uverbs, or their equivalents of other vendors, \
          are not loaded, or RDMA is disabled for the device.",
    inputs: "/sys/bus/pci/devices/*/driver of RDMA NICs, /sys/class/infiniband/*/device.",
    criteria: "pass: an RDMA device; the second port of a bond counts with the first. info: bound \
               to vfio-pci for a guest. warn: a driver, but no RDMA device. fail: no driver. skip: \
               no NIC.",
    sources: &[
        "Linux Documentation/ABI/stable/sysfs-class-infiniband",
        "Linux Documentation/ABI/testing/sysfs-bus-pci (remove, rescan)",
    ],
    workloads: Workload::RDMA,
    symptom_of: &["modules.lockdown"],
    scope: Scope::Several(run),
    together: Some("all NICs"),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let functions = super::nic_functions(context);
    if functions.is_empty() {
        return Err(runner::no_nic(context));
    }
    Ok(runner::each(&functions, |nic| {
        (nic.subject(), judge(context, nic, &functions))
    }))
}

fn judge(context: &Context<'_>, nic: &NicFunction<'_>, all: &[NicFunction<'_>]) -> Judgement {
    let path = format!("/sys/bus/pci/devices/{}/driver", nic.bdf);
    let driver = context
        .function(nic.bdf)
        .map_or(Err(Absence::NotCollected), |function| {
            function.driver.clone()
        });
    let driver = match (driver, nic.rdma) {
        (Ok(driver), _) => driver,
        (Err(Absence::Missing), None) => return Ok(unbound(context, &path, nic.bdf)),
        (_, Some(_)) => return Ok(Finding::pass("it is an RDMA device")),
        (absent, None) => return Ok(Finding::unknown("its driver", &absent)),
    };
    let finding = if nic.rdma.is_some() {
        Finding::pass(format!("{driver} has created its RDMA device"))
    } else if driver.contains("vfio") {
        Finding::info("it is bound to VFIO: it is reserved for a guest")
    } else if context.inventory.rdma.is_unknown() {
        Finding::unknown("whether it is an RDMA device", &context.inventory.rdma)
    } else if let Some(bond) = partner(nic.bdf, all) {
        Finding::pass(format!("its port is part of {bond}"))
    } else {
        Finding::warn(format!(
            "it is bound to {driver}, but it is not an RDMA device"
        ))
        .fix(
            Fix::now(
                "Load the RDMA module of the driver",
                Action::load(rdma_module(&driver).to_owned()),
            )
            .then(Action::load("ib_uverbs")),
        )
        .fix(Fix::manual(
            "Turn RDMA on for the device",
            format!(
                "check `devlink dev param show pci/{} name enable_roce` and the firmware's \
                 settings",
                nic.bdf
            ),
        ))
    };
    Ok(finding.evidence(path, driver))
}

fn unbound(context: &Context<'_>, path: &str, bdf: Bdf) -> Finding {
    let mut finding = Finding::fail("no driver is bound to it").evidence(path, "no such link");
    if let Some(module) = module_for(context, bdf) {
        finding = finding.fix(Fix::now("Load the driver", Action::load(module.to_owned())));
    }
    finding.fix(
        Fix::now(
            "Remove the function and rescan the bus",
            Action::Rescan { bdf },
        )
        .persistence(Persistence::UntilReboot)
        .risk(
            Risk::Medium,
            "if the function does not reappear, a reboot is needed",
        ),
    )
}

/// Returns the driver for a Mellanox NIC: mlx4 up to ConnectX-3 (Linux `drivers/net/ethernet/mellanox/mlx4/main.c`),
/// mlx5 for later ones.
fn module_for(context: &Context<'_>, bdf: Bdf) -> Option<&'static str> {
    let identity = &context.function(bdf)?.identity;
    if identity.vendor != Some(VendorId::MELLANOX) {
        return None;
    }
    Some(match identity.device?.0 {
        0x1002..=0x1010 | 0x6340..=0x67ff => "mlx4_core",
        _ => "mlx5_core",
    })
}

/// Returns the bonded RDMA device of another function of the same card, which serves both.
fn partner(bdf: Bdf, all: &[NicFunction<'_>]) -> Option<String> {
    let same_card = |other: &&NicFunction<'_>| {
        (other.bdf.domain, other.bdf.bus, other.bdf.device) == (bdf.domain, bdf.bus, bdf.device)
            && other.bdf != bdf
    };
    (all.iter().filter(same_card))
        .find_map(|other| other.rdma.map(|rdma| rdma.name.clone()))
        .filter(|name| name.contains("bond"))
}

/// Returns the module that creates RDMA devices for the devices of a driver.
fn rdma_module(driver: &str) -> &str {
    match driver {
        "mlx5_core" => "mlx5_ib",
        "mlx4_core" => "mlx4_ib",
        "bnxt_en" => "bnxt_re",
        "ice" | "i40e" | "idpf" => "irdma",
        "ionic" => "ionic_rdma",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn rdma_devices_pass_with_one_finding() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass]);
    }

    #[test]
    fn a_nic_without_a_driver_fails_with_a_rescan_as_fix() {
        let driver = format!("/sys/bus/pci/devices/{}/driver", example::NICS[2]);
        let node = example::healthy()
            .without(&driver)
            .without("/sys/class/infiniband/mlx5_2");
        let found = judged(&CHECK, &node, Fail);
        assert_eq!(found.subject.to_string(), example::NICS[2]);
        assert!(found.fixes[1].actions[0].to_string().contains("rescan"));
    }

    #[test]
    fn a_nic_that_is_not_an_rdma_device_is_a_warning_unless_it_is_for_a_guest() {
        let node = example::healthy().without("/sys/class/infiniband/mlx5_2");
        let found = judged(&CHECK, &node, Warn);
        assert_eq!(found.fixes[0].actions[0].to_string(), "modprobe mlx5_ib");
        let driver = format!("/sys/bus/pci/devices/{}/driver", example::NICS[2]);
        let guests = node.link_to(&driver, "../../../../bus/pci/drivers/vfio-pci");
        assert_eq!(verdict(&CHECK, &guests), Info);
    }

    #[test]
    fn an_uncollected_list_of_rdma_devices_does_not_fail() {
        let unlisted = example::healthy().not_collected("/sys/class/infiniband");
        let unlisted = unlisted.without("/sys/class/infiniband/mlx5_0");
        assert_ne!(verdict(&CHECK, &unlisted), Fail);
    }
}
