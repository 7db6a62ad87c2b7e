//! Messages of NICs and their drivers.

use super::{follows, hand, likely, run, sure, weak};
use crate::{Cause, Fact, Kind, Strength};
use gdr_doctor::kernel_log::expressions;

pub(super) const CAUSES: &[Cause] = &[
    Cause {
        id: "nic-firmware",
        title: "The NIC's firmware has failed, or does not start",
        why: "The driver has lost contact with the firmware, or the firmware reports a fatal \
              error. Programs see a `local catastrophic error`, and all connections of the NIC \
              are lost.",
        patterns: &[
            sure(expressions::NIC_HEALTH),
            sure(r"\blocal catastrophic error\b|\bibv_event_device_fatal\b"),
            sure(
                r"mlx5_core .{0,80}(probe_one|init_one|mlx5_load_one|mlx5_function_setup|mlx5_init_one).{0,80}(fail|error|timeout)",
            ),
            sure(expressions::NIC_PROBE),
            likely(expressions::NIC_STALLED),
            likely(expressions::BNXT_STALLED),
            likely(r"mlx5_core .{0,60}(assert_var|assert_exit_ptr|synd 0x[0-9a-f]+: )"),
        ],
        remedies: &[
            run(
                "Restart the firmware",
                "mlxfwreset -d <device> reset   # or power the machine off and on",
            ),
            hand("Update the firmware; if it happens again, have the card replaced"),
        ],
        checks: &["klog.nic_health", "nic.fw", "nic.driver"],
        sources: &[
            "Linux drivers/net/ethernet/mellanox/mlx5/core/{health,events,main}.c",
            "NVIDIA/nccl issue 230",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "nic-heat-or-power",
        title: "The NIC is too hot, or its slot supplies too little power",
        why: "The NIC slows down, drops its link or shuts down.",
        patterns: &[
            sure(expressions::NIC_TEMPERATURE),
            likely(expressions::NIC_POWER),
            likely(
                r"\bmlx5\w*\b.{0,80}(high temperature|temperature.{0,20}threshold|insufficient power)",
            ),
        ],
        remedies: &[
            hand("Check the fans and the air flow; high-power transceivers need more cooling"),
            hand("For more power, use a 75 W slot or the card's own power cable").unless(&[Fact::Spark]),
        ],
        facts: &[(
            Fact::Spark,
            "On DGX Spark, the message appears at every boot of a healthy machine. NVIDIA calls \
             it benign.",
        )],
        harmless: &[Fact::Spark],
        checks: &["klog.nic_health", "pci.slotpower"],
        sources: &["Linux drivers/net/ethernet/mellanox/mlx5/core/events.c"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "nic-cable",
        title: "A cable or transceiver of the NIC is faulty, unplugged or missing",
        why: "The log shows when the module reported an event; the check port.state shows the \
              present state. A faulty cable shows up in counters: symbol errors, link recoveries \
              and link downs.",
        patterns: &[
            sure(expressions::NIC_CABLE),
            likely(r"port module event.{0,60}(error|unplugged|bad|unsupported)"),
            likely(r"\[(symbolerror|linkerrorrecovery|linkdowned|portrcverrors)\w* == [1-9]"),
            likely(r"\blink_downed\b.{0,80}\b(value|delta)=[1-9]"),
            weak(
                r"\b(link_downed|link_error_recovery|symbol_error|local_link_integrity_errors)\b\W{1,4}[1-9]",
            ),
            weak(r"\b(symbolerror|linkerrorrecovery|linkdowned|portrcverrors)\w*:\.+[1-9]\d"),
            follows(
                r"\btroubleshooting info\b",
                r"\brecommendation\W+(.{0,20}\b(cable|module|transceiver)\b|bad signal|signal not detected)",
                Strength::Likely,
            ),
        ],
        remedies: &[
            run(
                "See the present state of the ports",
                "gdr nics; gdr doctor --only port.state,port.flap",
            ),
            hand("Reseat the cable and the transceiver"),
        ],
        checks: &["port.state", "port.flap", "klog.nic_health"],
        sources: &["Linux drivers/net/ethernet/mellanox/mlx5/core/events.c"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "nic-command",
        title: "The NIC's firmware refused to create a queue or a memory key",
        why: "`limits exceeded` and `no resources` mean that keys or queues are exhausted, often \
              by programs that were killed. `bad parameter`, `bad resource` and a syndrome mean \
              that the firmware and the library are incompatible, or that the process lacks a \
              privilege (DEVX) or exceeds a virtual function's limits.",
        patterns: &[
            sure(expressions::NIC_COMMAND),
            sure(expressions::NIC_COMMAND_STATUS).unless(expressions::NIC_COMMAND_FULL),
            likely(
                r"\binfiniband \w+: .{0,60}\bfailed to (create|modify|destroy) (qp|cq|srq|mr|mkey)\b",
            ),
            weak(ucx_error!("ib_(iface|mlx5|mlx5_dv|mlx5dv\\w*)")),
            weak(r"\[doca\]\[(err|crit)\]"),
            weak(r"\bmlx4_core \S+ command 0x[0-9a-f]+ failed: fw status"),
            weak(
                r"\b(mlx5_(core|ib)|bnxt_(en|re)|irdma|ionic|erdma)\b.{0,80}\b(fail(ed|ure)?|timed? ?out)\b",
            )
            // A bit of a PCI Express error with the same name.
            .unless(r"\[ *\d+\] timeout"),
            sure(r"\bcmd error\]\[op_code=\d+\] status=-\d+"),
            likely(r"\binfiniband \w+: failed to (create|modify|allocate) hw (qp|cq|srq|mr)\b"),
            likely(r"mlx5_core .{0,80}\(0x[0-9a-f]+\) op_mod\(0x[0-9a-f]+\) failed, status")
                .unless(r"access_reg"),
            likely(r"mlx5dv_devx_obj_create\((qp|cq|mkey|srq)\b.{0,60}failed")
                .unless(r"\bucx +(debug|diag|trace)"),
            likely(r"mlx5dv_devx_obj_(modify|query)\b.{0,100}(failed|error)"),
            likely(r"create_mkey\S*.{0,60}fail"),
            likely(r"\b(ibv|mlx5dv|efadv)_(create|alloc)_\w+\b.{0,80}\b(timed out|input/output error)"),
        ],
        remedies: &[
            run("See which resources are in use", "rdma resource show"),
            hand("Update the NIC's firmware"),
            run(
                "With UCX, turn DEVX objects off",
                "UCX_IB_MLX5_DEVX_OBJECTS=''",
            ),
        ],
        checks: &["klog.nic_command", "nic.fw", "devx"],
        sources: &[
            "openucx/ucx issues 6264, 10451",
            "Linux drivers/net/ethernet/mellanox/mlx5/core/cmd.c",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "nic-register",
        kind: Kind::Harmless,
        title: "The NIC's firmware does not let a function read a register, which is harmless",
        why: "Tools query registers (ACCESS_REG) that restricted functions may not read. The \
              message appears with every query and does not affect transfers.",
        patterns: &[
            sure(expressions::ACCESS_REG),
            likely(r"mlx5_core.{0,80}access_reg\(0x805\)"),
        ],
        remedies: &[hand("Nothing has to be done")],
        checks: &["klog.access_reg"],
        sources: &["leptonai/gpud, matcher ACCESS_REG"],
        ..Cause::DEFAULT
    },
];
