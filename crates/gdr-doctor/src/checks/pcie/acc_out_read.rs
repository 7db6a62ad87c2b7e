//! `nic.max_acc_out_read`: a setting of firmware that only NVIDIA's tools show.

use gdr_node::Datum;
use gdr_node::pci::{DeviceId, Function, VendorId};

use super::cpu::{CpuMaker, maker};
use super::devices;
use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::{Action, Fix, Risk};

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
    group: Group::Pcie,
    title: "ConnectX firmware lets enough reads be under way (MAX_ACC_OUT_READ)",
    documentation: Documentation {
        means: "Firmware of ConnectX-5 to ConnectX-7 limits how many reads of PCI Express are under \
                way. On AMD, whose memory answers later, cloud providers raise the limit to reach \
                full bandwidth.",
        reads: "Nothing but the models of NIC and CPU: the setting is in the NIC's firmware and is \
                shown only by mlxconfig (ADVANCED_PCI_SETTINGS=1, MAX_ACC_OUT_READ).",
        judges: "info: a ConnectX-5 to 7 in an AMD machine, whose setting is to be looked at. skip: \
                 no such NIC, or another CPU. unknown: the CPU is not known.",
        sources: &["https://github.com/oracle-quickstart/oci-hpc (MAX_ACC_OUT_READ)"],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    let nics = match devices::nics(context) {
        Ok(nics) => nics,
        Err(why) => return why,
    };
    let concerned: Vec<_> = nics
        .iter()
        .filter(|(_, function)| is_concerned(function))
        .collect();
    if concerned.is_empty() {
        return vec![Finding::skip(
            "there is no ConnectX-5, ConnectX-6 or ConnectX-7",
        )];
    }
    match maker(context) {
        Datum::Present(CpuMaker::Amd) => {}
        Datum::Present(_) => return vec![Finding::skip("it matters with AMD's CPUs only")],
        absent => return vec![Finding::unknown(Subject::Node, "the CPU's maker", &absent)],
    }
    (concerned.iter())
        .map(|(nic, function)| {
            let bdf = function.bdf;
            Finding::info(
                Subject::nic(nic),
                "how many reads its firmware lets be under way is shown by mlxconfig only",
            )
            .evidence(
                format!("/sys/bus/pci/devices/{bdf}/device"),
                function
                    .identity
                    .device
                    .map_or_else(String::new, |it| it.to_string()),
            )
            .fix(
                Fix::now(
                    "Look at the setting",
                    Action::Command {
                        line: format!(
                            "mlxconfig -d {bdf} query ADVANCED_PCI_SETTINGS MAX_ACC_OUT_READ"
                        ),
                    },
                )
                .risk(
                    Risk::None,
                    "it only shows; what to set is told by the maker of the machine",
                ),
            )
        })
        .collect()
}

fn is_concerned(function: &Function) -> bool {
    let identity = &function.identity;
    identity.vendor == Some(VendorId::MELLANOX)
        && identity.device.is_some_and(|it| MODELS.contains(&it))
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts};
    use crate::finding::Verdict;

    #[test]
    fn it_is_told_of_on_amd_only() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Skip]);
        let amd = example::healthy().file("/proc/cpuinfo", "vendor_id\t: AuthenticAMD\n");
        assert_eq!(verdicts(&CHECK, &amd), [Verdict::Info; 10]);
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_no_nic_is_no_question() {
        let node = example::healthy().not_collected("/proc/cpuinfo");
        assert_eq!(verdict(&CHECK, &node), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let bare = MemorySource::new()
            .directory("/sys/bus/pci/devices")
            .directory("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &bare), Verdict::Skip);
    }
}
