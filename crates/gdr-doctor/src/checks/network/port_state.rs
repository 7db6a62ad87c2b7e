use gdr_node::PortState;

use super::ports::{Port, ports};
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("port.state"),
    title: "ports of RDMA devices are active",
    why: "A port carries data only in state ACTIVE. DOWN means a fault of the cable, the \
          transceiver or the other end. INIT and ARMED mean that the link works and waits for the \
          subnet manager.",
    inputs: "/sys/class/infiniband/*/ports/*/{state,phys_state}.",
    criteria: "pass: ACTIVE. warn: INIT or ARMED; or down, if another port of the device or other \
               devices serve every GPU. fail: down on a device that is nearest to a GPU, or if no \
               port is active. unknown: not collected.",
    sources: &[
        "Linux Documentation/ABI/stable/sysfs-class-infiniband: state, phys_state",
        "InfiniBand Architecture Specification 14.2.5.6 PortInfo",
    ],
    symptom_of: &["ib.sm", "pci.slotpower"],
    scope: Scope::Port(Which::Every, judge),
    ..super::CHECK
};

fn judge(context: &Context<'_>, port: &Port<'_>) -> Judgement {
    let state = port.port.state.by_ref().known("its state")?;
    let physical = port.port.physical_state.shown().to_string();
    let finding = match state {
        PortState::Active => Finding::pass("it is active"),
        PortState::Init | PortState::Armed => Finding::warn(format!(
            "its link works and it is in state {state}: no subnet manager has configured it"
        ))
        .fix(Fix::manual(
            "Start a subnet manager",
            "start one on a managed switch, or opensm on one node of the fabric",
        )),
        PortState::Down | PortState::Other(_) => Finding::new(
            severity(context, port),
            format!("it is {state} ({physical}) and carries no data"),
        ),
    };
    let down = finding.verdict.is_bad() && !matches!(state, PortState::Init | PortState::Armed);
    let mut finding = finding
        .evidence(format!("{}/state", port.path), state)
        .evidence(format!("{}/phys_state", port.path), &physical);
    if down {
        if let Some(netdev) = port.netdev(context).filter(|_| port.is_ethernet()) {
            finding = finding.fix(Fix::run(
                "Bring the interface up",
                format!("ip link set dev {} up", netdev.name),
            ));
        }
        finding = finding.fix(Fix::manual(
            "Check the cable and the other end",
            match physical.as_str() {
                "Polling" => {
                    "it finds no other end: plug in the cable, reseat the transceiver, check the \
                     switch port"
                }
                "Disabled" => {
                    "it is turned off: turn it on (ip link set up; mlxlink --port_state UP); \
                     firmware also turns off a port without a cable"
                }
                _ => "reseat the cable and the transceiver, check the switch port",
            },
        ));
    }
    Ok(finding)
}

/// Returns the verdict on a port that is down. On nodes with many ports some are down on purpose.
fn severity(context: &Context<'_>, port: &Port<'_>) -> Verdict {
    let any_active = ports(context).is_ok_and(|all| all.iter().any(Port::is_active));
    let other_port = port
        .rdma
        .ports
        .iter()
        .any(|other| other.number != port.port.number && other.is_active());
    let near = (context.nearest_pairs().iter()).any(|pair| pair.nic.name == port.device);
    if !any_active || (near && !other_port) {
        Verdict::Fail
    } else {
        Verdict::Warn
    }
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::*;

    fn in_state(device: &str, state: &str, physical: &str) -> MemorySource {
        let port = format!("/sys/class/infiniband/{device}/ports/1");
        example::healthy()
            .file(&format!("{port}/state"), state)
            .file(&format!("{port}/phys_state"), physical)
    }

    #[test]
    fn active_ports_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 10]);
    }

    #[test]
    fn a_port_that_is_down_fails_next_to_a_gpu_and_is_a_warning_elsewhere() {
        let found = judged(
            &CHECK,
            &in_state("mlx5_1", "1: DOWN\n", "2: Polling\n"),
            Fail,
        );
        assert_contains!(found.summary, "DOWN (Polling)");
        let found = judged(
            &CHECK,
            &in_state("mlx5_0", "1: DOWN\n", "3: Disabled\n"),
            Warn,
        );
        assert_eq!(
            found.fixes[0].actions[0].to_string(),
            "ip link set dev enp6s0np0 up"
        );
    }

    #[test]
    fn a_port_that_waits_for_a_subnet_manager_is_a_warning() {
        let found = judged(
            &CHECK,
            &in_state("mlx5_1", "2: INIT\n", "5: LinkUp\n"),
            Warn,
        );
        assert_contains!(found.summary, "subnet manager");
    }

    #[test]
    fn an_uncollected_state_is_unknown() {
        let path = "/sys/class/infiniband/mlx5_1/ports/1/state";
        assert_eq!(
            verdict(&CHECK, &example::healthy().not_collected(path)),
            Unknown
        );
    }
}
