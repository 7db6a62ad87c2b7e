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
    title: "the NIC's firmware answers queries of registers",
    why: "Some functions may not read registers that tools ask for. The message is harmless and \
          comes with every query.",
    criteria: "info: such a message. pass: none. unknown: the log may not be read.",
    sources: &["https://github.com/leptonai/gpud (ACCESS_REG matcher)"],
    workloads: Workload::RDMA,
    scope: Scope::Log(&Rule {
        patterns: &[Pattern {
            expression: expressions::ACCESS_REG,
            why: |_| {
                Finding::info("its firmware refused to show a register, as restricted functions do")
            },
        }],
        ..Rule::DEFAULT
    }),
    ..CHECK
};

pub(in crate::checks::kernel_log) const NIC_COMMAND: Check = Check {
    id: CheckId("klog.nic_command"),
    title: "the NIC's firmware makes every queue and memory key that is asked for",
    why: "A program gets an error (often \"Cannot allocate memory\") where the firmware refuses to \
          make a queue or a key: they are used up, or firmware and library do not fit.",
    criteria: "warn: such a message. pass: none. unknown: the log may not be read.",
    sources: &[
        "Linux drivers/net/ethernet/mellanox/mlx5/core/cmd.c",
        "https://github.com/openucx/ucx/issues/6264",
    ],
    workloads: Workload::RDMA,
    scope: Scope::Log(&Rule {
        patterns: &[Pattern {
            expression: expressions::NIC_COMMAND,
            why: |captures| {
                Finding::warn(format!(
                    "its firmware refused {}: {}",
                    &captures["command"], &captures["status"]
                ),
            )
            .fix(Fix::user(
                "See what is in use",
                "rdma resource show   # end programs that were left behind; bring the firmware up to date",
            ))
            },
        }],
        window: 10.0,
        ..Rule::DEFAULT
    }),
    ..CHECK
};

pub(in crate::checks::kernel_log) const NIC_HEALTH: Check = Check {
    id: CheckId("klog.nic_health"),
    title: "no NIC has reported bad health",
    why: "NICs report heat, cables and faults of their firmware to the driver, which logs them. \
          Too little power of a slot is judged by pci.slotpower.",
    criteria: "fail: health compromised or a fatal error of firmware. warn: too hot. info: a cable \
          that was pulled. pass: none. unknown: the log may not be read.",
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
                            "Start its firmware again",
                            "mlxfwreset -d DEVICE reset   # or start the machine from \
                                   cold",
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
                        "look at the fans and at what blocks the air; transceivers of high power \
                     need more of it",
                    ))
                },
            },
            Pattern {
                expression: expressions::NIC_CABLE,
                why: |_| {
                    Finding::info(
                        "a cable was pulled or is missing; port.state says what is so now",
                    )
                },
            },
        ],
        window: 10.0,
        ..Rule::DEFAULT
    }),
    ..CHECK
};
