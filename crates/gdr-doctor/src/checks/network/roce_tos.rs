use super::ports::Port;
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("roce.tos"),
    title: "the traffic class of RoCE connections is known",
    why: "Switches select the lossless class by the DSCP of a packet, the upper six bits of its \
          type of service. A library that sets none gets the default class. Most guides use 106 \
          (DSCP 26, priority 3).",
    inputs: "/sys/kernel/config/rdma_cm/*/ports/*/default_roce_tos; NCCL_IB_TC and \
          UCX_IB_TRAFFIC_CLASS in the environment.",
    criteria: "info: the value. skip: no Ethernet port is active. unknown: not collected.",
    sources: &[
        "Linux drivers/infiniband/core/cma_configfs.c",
        "cma_roce_tos of mlnx-tools",
    ],
    scope: Scope::Port(Which::ActiveEthernet, judge),
    ..super::CHECK
};

fn judge(context: &Context<'_>, port: &Port<'_>) -> Judgement {
    let path = format!(
        "/sys/kernel/config/rdma_cm/{}/ports/{}/default_roce_tos",
        port.device, port.port.number
    );
    let wanted = context
        .text(virtual_path::ENVIRONMENT)
        .ok()
        .and_then(|text| {
            let of_class = |line: &&str| {
                line.starts_with("NCCL_IB_TC=") || line.starts_with("UCX_IB_TRAFFIC_CLASS=")
            };
            text.lines().find(of_class).map(str::to_owned)
        });
    let tos = context.text(&path);
    let finding = match (&tos, &wanted) {
        (Ok(tos), _) => Finding::info(format!("connections by rdma_cm use type of service {tos}"))
            .evidence(path, tos),
        (_, Some(_)) => Finding::info("the environment sets the traffic class for libraries"),
        // The directory of a device exists only after it was created.
        (Err(Absence::Missing), None) => {
            Finding::info("no traffic class is set: RoCE uses the default class")
                .evidence(path, "does not exist")
                .fix(
                    Fix::run(
                        "Use DSCP 26",
                        format!(
                            "cma_roce_tos -d {} -p {} -t 106; export NCCL_IB_TC=106 \
                         UCX_IB_TRAFFIC_CLASS=106",
                            port.device, port.port.number
                        ),
                    )
                    .risk(
                        Risk::Low,
                        "it helps only if that class is lossless in NIC and switches",
                    ),
                )
        }
        (absent, None) => {
            return Ok(Finding::unknown("its traffic class", absent));
        }
    };
    Ok(match wanted {
        Some(line) => finding.evidence(virtual_path::ENVIRONMENT, line),
        None => finding,
    })
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::*;

    const TOS: &str = "/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos";

    #[test]
    fn the_traffic_class_is_shown() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Info; 2]);
        let found = findings(&CHECK, &example::healthy().file(TOS, "106\n"));
        assert_contains!(found[0].summary, "106");
        let found = findings(
            &CHECK,
            &example::healthy().file(virtual_path::ENVIRONMENT, "NCCL_IB_TC=106\n"),
        );
        assert_eq!(found[0].evidence[0].value, "NCCL_IB_TC=106");
    }
}
