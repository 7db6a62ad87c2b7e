use super::devices::fastest_port;
use super::hops::{own_express, write_device_control};
use crate::checks::cpu::{CpuInfo, CpuMaker};
use crate::checks::prelude::*;

/// Bit 4 of Device Control.
const ENABLE: u16 = 1 << 4;
/// The rate in Gb/s from which strict ordering costs bandwidth on AMD and Arm.
const FAST: u32 = 200;

pub(super) const CHECK: Check = Check {
    id: CheckId("pci.ro"),
    title: "NICs may use relaxed ordering for their writes (RO)",
    why: "Writes that must stay in order wait for each other in the root complex. On AMD and Arm, \
          and in guests, that costs a large part of a fast NIC's bandwidth. A NIC uses relaxed \
          ordering if its Device Control allows it and the application \
          (IBV_ACCESS_RELAXED_ORDERING) or its firmware (PCI_WR_ORDERING) requests it. Linux \
          clears the bit below root ports that are known to mishandle it.",
    inputs: "Device Control of the NIC, bit 4; the CPU's maker in /proc/cpuinfo; \
             EnablePCIERelaxedOrderingMode in /proc/driver/nvidia/params. Needs root.",
    criteria: "pass: allowed. warn: not allowed on AMD or Arm at 200 Gb/s or more. info: not \
          allowed elsewhere. unknown: not root. skip: virtual functions.",
    sources: &[
        "PCI Express Base Specification 6.0, 2.4 and 7.5.3.4",
        "NCCL src/transport/net_ib/init.cc: NCCL_IB_PCI_RELAXED_ORDERING",
        "Linux drivers/pci/probe.c: pci_configure_relaxed_ordering",
    ],
    workloads: Workload::RDMA,
    scope: Scope::Nic(judge),
    otherwise: Some("no NIC has a register of its own for it"),
    ..super::CHECK
};

fn judge(context: &Context<'_>, nic: &Nic<'_>, function: &Function) -> Judgement {
    let express = own_express(function)?.known("whether it may use relaxed ordering")?;
    let name = format!("{} Device Control, relaxed ordering", function.bdf);
    if express.relaxed_ordering {
        return Ok(Finding::pass("it may use relaxed ordering").evidence(name, "on"));
    }
    let maker = CpuInfo::read(context).map(|cpu| cpu.maker());
    let strict = matches!(maker, Ok(CpuMaker::Amd | CpuMaker::Arm));
    let rate = fastest_port(nic).unwrap_or(0);
    let finding = if strict && rate >= FAST {
        Finding::warn(format!(
            "it may not use relaxed ordering, which costs bandwidth on this CPU at {rate} Gb/s"
        ))
    } else {
        Finding::info("it may not use relaxed ordering")
    };
    let mut finding = finding.evidence(name, "off").fix(allow(function));
    let params = context.text("/proc/driver/nvidia/params").ok();
    let mode = params.as_deref().and_then(|text| {
        text.lines()
            .find_map(|line| line.strip_prefix("EnablePCIERelaxedOrderingMode:"))
    });
    if let Some(mode) = mode {
        finding = finding.evidence(
            "/proc/driver/nvidia/params: EnablePCIERelaxedOrderingMode",
            mode.trim(),
        );
    }
    Ok(finding)
}

fn allow(function: &Function) -> Fix {
    let action = write_device_control(function, ENABLE, ENABLE);
    Fix::now("Allow relaxed ordering", action).risk(
        Risk::Medium,
        "if the kernel cleared the bit because of a faulty root port, data may arrive out of \
         order; look for \"Relaxed Ordering\" in the kernel log first",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    fn strict() -> MemorySource {
        example::edit(example::healthy(), example::NICS[1], |nic| {
            nic.relaxed_ordering(false);
        })
    }

    #[test]
    fn nics_with_relaxed_ordering_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 10]);
    }

    #[test]
    fn strict_ordering_is_a_warning_on_amd_and_arm_and_info_elsewhere() {
        assert_eq!(verdict(&CHECK, &strict()), Info);
        let amd = strict().file("/proc/cpuinfo", "vendor_id\t: AuthenticAMD\n");
        let found = judged(&CHECK, &amd, Warn);
        assert!(matches!(
            found.fixes[0].actions[0],
            Action::WriteConfig {
                mask: ENABLE,
                value: ENABLE,
                ..
            }
        ));
        let arm = strict().file("/proc/cpuinfo", "CPU implementer\t: 0x41\n");
        assert_eq!(verdict(&CHECK, &arm), Warn);
    }

    #[test]
    fn a_config_space_of_64_bytes_is_unknown() {
        let node = example::edit(strict(), example::NICS[1], |nic| {
            nic.header_only();
        });
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
