use crate::checks::cpu::{CpuInfo, CpuMaker};
use crate::checks::prelude::*;

/// ConnectX-5 to ConnectX-7, physical functions.
const MODELS: [DeviceId; 6] = [
    DeviceId(0x1017),
    DeviceId(0x1019),
    DeviceId(0x101b),
    DeviceId(0x101d),
    DeviceId(0x101f),
    DeviceId(0x1021),
];

pub(super) const CHECK: Check = Check {
    id: CheckId("nic.max_acc_out_read"),
    title: "ConnectX firmware lets enough reads be under way (MAX_ACC_OUT_READ)",
    why: "Firmware of ConnectX-5 to ConnectX-7 limits how many reads of PCI Express are under way. \
          On AMD, whose memory answers later, cloud providers raise the limit to reach full \
          bandwidth.",
    inputs: "Nothing but the models of NIC and CPU: the setting is in the NIC's firmware and is \
          shown only by mlxconfig (ADVANCED_PCI_SETTINGS=1, MAX_ACC_OUT_READ).",
    criteria: "info: a ConnectX-5 to 7 in an AMD machine, whose setting is to be looked at. skip: \
          no such NIC, or another CPU. unknown: the CPU is not known.",
    sources: &["https://github.com/oracle-quickstart/oci-hpc (MAX_ACC_OUT_READ)"],
    workloads: Workload::RDMA,
    scope: Scope::Several(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let nics = runner::nics(context)?;
    let concerned: Vec<_> = nics
        .iter()
        .filter(|(_, function)| is_concerned(function))
        .collect();
    if concerned.is_empty() {
        return Err(Unjudged::skip(
            "there is no ConnectX-5, ConnectX-6 or ConnectX-7",
        ));
    }
    if CpuInfo::read(context).known("the CPU's maker")?.maker() != CpuMaker::Amd {
        return Err(Unjudged::skip("it matters with AMD's CPUs only"));
    }
    Ok((concerned.iter())
        .map(|(nic, function)| {
            let bdf = function.bdf;
            Finding::info(
                "how many reads its firmware lets be under way is shown by mlxconfig only",
            )
            .about(Subject::nic(nic))
            .evidence(
                format!("/sys/bus/pci/devices/{bdf}/device"),
                function
                    .identity
                    .device
                    .map_or_else(String::new, |it| it.to_string()),
            )
            .fix(
                Fix::run(
                    "Look at the setting",
                    format!("mlxconfig -d {bdf} query ADVANCED_PCI_SETTINGS MAX_ACC_OUT_READ"),
                )
                .risk(
                    Risk::None,
                    "it only shows; what to set is documented by the maker of the machine",
                ),
            )
        })
        .collect())
}

fn is_concerned(function: &Function) -> bool {
    let identity = &function.identity;
    identity.vendor == Some(VendorId::MELLANOX)
        && identity.device.is_some_and(|it| MODELS.contains(&it))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn it_is_reported_on_amd_only() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Skip]);
        let amd = example::healthy().file("/proc/cpuinfo", "vendor_id\t: AuthenticAMD\n");
        assert_eq!(verdicts(&CHECK, &amd), [Info; 10]);
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_no_nic_is_no_question() {
        let node = example::healthy().not_collected("/proc/cpuinfo");
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
