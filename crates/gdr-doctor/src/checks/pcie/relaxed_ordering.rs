use super::devices::fastest_port;
use super::hops::{own_express, write_device_control};
use crate::checks::cpu::{CpuInfo, CpuMaker};
use crate::checks::prelude::*;

/// Bit 4 of Device Control.
const ENABLE: u16 = 1 << 4;
/// From this rate on strict order is felt on AMD and Arm, in Gb/s.
const FAST: u32 = 200;

pub(super) const CHECK: Check = Check {
    id: CheckId("pci.ro"),
    title: "NICs may relax the order of their writes (RO)",
    why: "Writes of a NIC that must stay in order wait for each other in the root complex. On AMD \
          and Arm, and in guests, that costs much of a fast NIC's bandwidth. The NIC may relax the \
          order where its Device Control allows it, and does where the application \
          (IBV_ACCESS_RELAXED_ORDERING) or its firmware (PCI_WR_ORDERING) asks for it. Linux takes \
          the right away below root ports that are known to mishandle it.",
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
    otherwise: Some("no NIC here has such a register of its own"),
    ..super::CHECK
};

fn judge(context: &Context<'_>, nic: &Nic<'_>, function: &Function) -> Judgement {
    let express = own_express(function)?.known("whether it may relax the order of its writes")?;
    let name = format!("{} Device Control, relaxed ordering", function.bdf);
    if express.relaxed_ordering {
        return Ok(Finding::pass("it may relax the order of its writes").evidence(name, "on"));
    }
    let maker = CpuInfo::read(context).map(|cpu| cpu.maker());
    let strict = matches!(maker, Ok(CpuMaker::Amd | CpuMaker::Arm));
    let rate = fastest_port(nic).unwrap_or(0);
    let finding = if strict && rate >= FAST {
        Finding::warn(format!(
            "it must keep its writes in order, which costs bandwidth on this CPU at {rate} Gb/s"
        ))
    } else {
        Finding::info("it must keep its writes in order")
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
    Fix::now("Let the NIC relax the order of its writes", action).risk(
        Risk::Medium,
        "where the kernel took the right away because of a root port's fault, data may arrive out \
         of order; look for \"Relaxed Ordering\" in the kernel log first",
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
    fn nics_that_may_relax_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 10]);
    }

    #[test]
    fn strict_order_is_warned_of_on_amd_and_reported_elsewhere() {
        assert_eq!(verdict(&CHECK, &strict()), Info);
        let amd = strict().file("/proc/cpuinfo", "vendor_id\t: AuthenticAMD\n");
        let found = worst(&CHECK, &amd);
        assert_eq!(found.verdict, Warn);
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
    fn a_config_space_of_64_bytes_is_unknown_and_no_nic_is_no_question() {
        let node = example::edit(strict(), example::NICS[1], |nic| {
            nic.header_only();
        });
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
