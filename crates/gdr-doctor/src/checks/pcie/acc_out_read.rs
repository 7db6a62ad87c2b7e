use super::firmware_settings::Settings;
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
    title: "ConnectX firmware allows enough outstanding reads (MAX_ACC_OUT_READ)",
    why: "The firmware of ConnectX-5 to ConnectX-7 limits the number of outstanding PCI Express \
          reads. On AMD, where memory latency is higher, cloud providers raise the limit to reach \
          full bandwidth.",
    inputs: "Only the models of NIC and CPU. The setting is in the NIC's firmware, and only \
             mlxconfig shows it (ADVANCED_PCI_SETTINGS=1, MAX_ACC_OUT_READ).",
    criteria: "info: a ConnectX-5 to 7 in an AMD machine: check the setting. skip: no such NIC, \
               another CPU, or a capture of its settings, which nic.settings judges. unknown: the \
               CPU is not known.",
    sources: &["https://github.com/oracle-quickstart/oci-hpc (MAX_ACC_OUT_READ)"],
    workloads: Workload::RDMA,
    scope: Scope::Several(run),
    otherwise: Some("their settings are known: nic.settings judges them"),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let nics = runner::nics(context)?;
    let limited: Vec<_> = nics
        .iter()
        .filter(|(_, function)| is_limited(function))
        .collect();
    if limited.is_empty() {
        return Err(Unjudged::skip(
            "there is no ConnectX-5, ConnectX-6 or ConnectX-7",
        ));
    }
    if CpuInfo::read(context).known("the CPU's maker")?.maker() != CpuMaker::Amd {
        return Err(Unjudged::skip("it matters only with AMD CPUs"));
    }
    let unread = (limited.iter()).filter(|(nic, _)| Settings::of(context, &nic.name).is_none());
    Ok(unread
        .map(|(nic, function)| {
            let bdf = function.bdf;
            Finding::info("only mlxconfig shows how many outstanding reads its firmware allows")
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
                        "Check the setting",
                        format!("mlxconfig -d {bdf} query ADVANCED_PCI_SETTINGS MAX_ACC_OUT_READ"),
                    )
                    .risk(
                        Risk::None,
                        "it only reads; the vendor of the machine documents the value to set",
                    ),
                )
        })
        .collect())
}

fn is_limited(function: &Function) -> bool {
    let identity = &function.identity;
    identity.vendor == Some(VendorId::MELLANOX)
        && identity.device.is_some_and(|it| MODELS.contains(&it))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn it_is_info_on_amd_only() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Skip]);
        let amd = example::healthy().file("/proc/cpuinfo", "vendor_id\t: AuthenticAMD\n");
        assert_eq!(verdicts(&CHECK, &amd), [Info; 10]);
    }

    #[test]
    fn a_nic_whose_settings_are_known_is_left_to_their_check() {
        let amd = example::healthy().file("/proc/cpuinfo", "vendor_id\t: AuthenticAMD\n");
        let known = amd.file(
            &virtual_path::nic_settings("mlx5_0"),
            "MAX_ACC_OUT_READ 44\n",
        );
        assert_eq!(verdicts(&CHECK, &known), [Info; 9]);
    }
}
