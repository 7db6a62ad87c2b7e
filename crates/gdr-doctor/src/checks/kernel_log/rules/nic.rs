//! Rules about messages of NICs.

use super::super::CHECK;
use super::super::expressions;
use super::super::rule::{Pattern, Rule};
use crate::check::{Check, CheckId, Workload};
use crate::finding::Finding;
use crate::fix::{Fix, Risk};
use crate::runner::Scope;

pub(in crate::checks::kernel_log) const ACCESS_REG: Check = Check {
    id: CheckId("klog.access_reg"),
    title: "the NIC's firmware answers register queries",
    why: "Tools query registers that some functions may not read. The message is harmless and \
          appears with every query.",
    criteria: "info: such a message. pass: none. unknown: the log may not be read.",
    sources: &["https://github.com/leptonai/gpud (ACCESS_REG matcher)"],
    workloads: Workload::RDMA,
    scope: Scope::Log(&Rule {
        patterns: &[Pattern {
            expression: expressions::ACCESS_REG,
            why: |_| {
                Finding::info("its firmware refused a register query, as restricted functions do")
            },
        }],
        ..Rule::DEFAULT
    }),
    ..CHECK
};

pub(in crate::checks::kernel_log) const NIC_COMMAND: Check = Check {
    id: CheckId("klog.nic_command"),
    title: "the NIC's firmware creates every requested queue and memory key",
    why: "A program gets an error (often \"Cannot allocate memory\") if the firmware refuses to \
          create a queue or a key: none is left, or firmware and library do not match.",
    criteria: "warn: such a message. pass: none. unknown: the log may not be read.",
    sources: &[
        "Linux drivers/net/ethernet/mellanox/mlx5/core/cmd.c",
        "https://github.com/openucx/ucx/issues/6264",
    ],
    workloads: Workload::RDMA,
    scope: Scope::Log(&Rule {
        patterns: &[
            Pattern {
                expression: expressions::NIC_COMMAND,
                why: |captures| {
                    let command = &captures["command"];
                    refused(format!(
                        "its firmware refused {command}: {}",
                        &captures["status"]
                    ))
                },
            },
            Pattern {
                expression: expressions::NIC_COMMAND_STATUS,
                why: |captures| {
                    let named = |names: [&str; 2]| {
                        (names.iter())
                            .find_map(|name| Some(captures.name(name)?.as_str().to_owned()))
                    };
                    let command = named(["command", "code"]).unwrap_or_default();
                    let status = named(["status", "status2"]).unwrap_or_default();
                    refused(format!(
                        "the firmware of {} refused the command {command}: status {status}",
                        &captures["device"]
                    ))
                },
            },
        ],
        window: 10.0,
        ..Rule::DEFAULT
    }),
    ..CHECK
};

fn refused(summary: String) -> Finding {
    Finding::warn(summary).fix(Fix::user(
        "List the resources in use",
        "rdma resource show   # end stale programs; update the firmware",
    ))
}

pub(in crate::checks::kernel_log) const NIC_HEALTH: Check = Check {
    id: CheckId("klog.nic_health"),
    title: "no NIC has reported bad health",
    why: "NICs report temperature, cables and firmware faults to the driver, which logs them. \
          pci.slotpower checks the power of slots.",
    criteria: "fail: health compromised, a fatal firmware error, a driver that did not start it, \
               or time-outs of its commands or queues. warn: too hot. info: a cable was unplugged. pass: none. unknown: the log may not be read.",
    sources: &[
        "Linux drivers/net/ethernet/mellanox/mlx5/core/{health,events}.c",
        "https://github.com/leptonai/gpud (kmsg matchers)",
    ],
    workloads: Workload::RDMA,
    scope: Scope::Log(&Rule {
        patterns: &[
            Pattern {
                expression: expressions::NIC_HEALTH,
                why: |_| {
                    Finding::fail("its firmware has failed").fix(
                        Fix::run(
                            "Restart its firmware",
                            "mlxfwreset -d DEVICE reset   # or power-cycle the machine",
                        )
                        .risk(Risk::Medium, "connections of the NIC end"),
                    )
                },
            },
            Pattern {
                expression: expressions::NIC_PROBE,
                why: |_| {
                    Finding::fail("its driver could not start it").fix(Fix::manual(
                        "Bring driver and firmware together",
                        "install a driver that supports the card (a current kernel or DOCA-OFED), \
                         and current firmware; in a virtual machine check what the host passes \
                         through",
                    ))
                },
            },
            Pattern {
                expression: expressions::NIC_STALLED,
                why: |_| {
                    Finding::fail("it no longer answers its driver in time").fix(
                        Fix::run(
                            "Restart its firmware",
                            "mlxfwreset -d DEVICE reset   # or power-cycle the machine",
                        )
                        .risk(Risk::Medium, "connections of the NIC end"),
                    )
                },
            },
            Pattern {
                expression: expressions::BNXT_STALLED,
                why: |_| {
                    Finding::fail("it no longer answers its driver in time").fix(
                        Fix::run(
                            "Restart its firmware",
                            "ethtool --reset INTERFACE all   # or power-cycle the machine",
                        )
                        .risk(Risk::Medium, "connections of the NIC end"),
                    )
                },
            },
            Pattern {
                expression: expressions::NIC_TEMPERATURE,
                why: |_| {
                    Finding::warn("it is too hot").fix(Fix::manual(
                        "Cool it",
                        "check the fans and the air flow; high-power transceivers need more air",
                    ))
                },
            },
            Pattern {
                expression: expressions::NIC_CABLE,
                why: |_| {
                    Finding::info(
                        "a cable was unplugged or is missing; port.state shows the current state",
                    )
                },
            },
        ],
        window: 10.0,
        ..Rule::DEFAULT
    }),
    ..CHECK
};
