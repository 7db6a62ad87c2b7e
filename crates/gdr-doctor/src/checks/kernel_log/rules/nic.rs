//! Rules about messages of NICs.

use super::super::rule::{Meaning, Pattern, Rate, Rule, always};
use crate::check::{CheckId, Purpose};
use crate::finding::Verdict;
use crate::fix::{Action, Fix, Risk};

pub(super) const ACCESS_REG: Rule = Rule {
    id: CheckId("klog.access_reg"),
    title: "the NIC's firmware answers queries of registers",
    means: "Some functions may not read registers that tools ask for. The message is harmless \
            and comes with every query.",
    judges: "info: such a message. pass: none. unknown: the log may not be read.",
    sources: &["https://github.com/leptonai/gpud (ACCESS_REG matcher)"],
    purposes: Purpose::RDMA,
    symptom_of: &[],
    patterns: &[Pattern {
        expression: r"mlx5_core (?P<bdf>[0-9a-f:.]+):.*ACCESS_REG\(0x805\).* failed",
        means: |_| {
            Meaning::new(
                Verdict::Info,
                "its firmware refused to show a register, as restricted functions do",
            )
        },
    }],
    rate: Rate::ONCE,
    window: 60.0,
    on_the_way_only: false,
    unless: always,
};

pub(super) const NIC_HEALTH: Rule = Rule {
    id: CheckId("klog.nic_health"),
    title: "no NIC has reported bad health",
    means: "NICs report heat, cables and faults of their firmware to the driver, which logs \
            them. Too little power of a slot is judged by pci.slotpower.",
    judges: "fail: health compromised or a fatal error of firmware. warn: too hot. info: a cable \
             that was pulled. pass: none. unknown: the log may not be read.",
    sources: &[
        "Linux drivers/net/ethernet/mellanox/mlx5/core/{health,events}.c",
        "https://github.com/leptonai/gpud (kmsg matchers)",
    ],
    purposes: Purpose::RDMA,
    symptom_of: &[],
    patterns: &[
        Pattern {
            expression: r"mlx5_core (?P<bdf>[0-9a-f:.]+):.*(?:health compromised|device's health|[Ff]irmware fatal|[Ff]atal error)",
            means: |_| {
                Meaning::new(Verdict::Fail, "its firmware has failed").fix(
                    Fix::now(
                        "Start its firmware anew",
                        Action::Command {
                            line: "mlxfwreset -d DEVICE reset   # or start the machine from \
                                   cold"
                                .into(),
                        },
                    )
                    .risk(Risk::Medium, "connections of the NIC end"),
                )
            },
        },
        Pattern {
            expression: r"mlx5_core (?P<bdf>[0-9a-f:.]+):.*High [Tt]emperature",
            means: |_| {
                Meaning::new(Verdict::Warn, "it is too hot").fix(Fix::manual(
                    "Cool it",
                    "look at the fans and at what blocks the air; transceivers of high power \
                     need more of it",
                ))
            },
        },
        Pattern {
            expression: r"mlx5_core (?P<bdf>[0-9a-f:.]+):.*Cable unplugged",
            means: |_| {
                Meaning::new(
                    Verdict::Info,
                    "a cable was pulled or is missing; port.state says what is so now",
                )
            },
        },
    ],
    rate: Rate::ONCE,
    window: 10.0,
    on_the_way_only: false,
    unless: always,
};
