use super::ports::Port;
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("roce.tos"),
    title: "the class of service that RoCE asks for is known",
    why: "Switches choose the lossless class by the DSCP of a packet, the upper six bits of its \
          type of service. A library that asks for none gets the default class. 106 (DSCP 26, \
          priority 3) is what most guides choose.",
    inputs: "/sys/kernel/config/rdma_cm/*/ports/*/default_roce_tos; NCCL_IB_TC and \
          UCX_IB_TRAFFIC_CLASS in the environment.",
    criteria: "info: what is set. skip: no Ethernet port is up. unknown: not collected.",
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
        (Ok(tos), _) => Finding::info(format!(
            "connections by rdma_cm ask for type of service {tos}"
        ))
        .evidence(path, tos),
        (_, Some(_)) => {
            Finding::info("the environment says which class of service libraries ask for")
        }
        // The folder of a device is there only after it was made.
        (Err(Absence::Missing), None) => {
            Finding::info("no class of service is set: RoCE shares the default class")
                .evidence(path, "not there")
                .fix(
                    Fix::run(
                        "Ask for DSCP 26",
                        format!(
                            "cma_roce_tos -d {} -p {} -t 106; export NCCL_IB_TC=106 \
                         UCX_IB_TRAFFIC_CLASS=106",
                            port.device, port.port.number
                        ),
                    )
                    .risk(
                        Risk::Low,
                        "helps only where NIC and switches have that class lossless",
                    ),
                )
        }
        (absent, None) => {
            return Ok(Finding::unknown("the class of service it asks for", absent));
        }
    };
    Ok(match wanted {
        Some(line) => finding.evidence(virtual_path::ENVIRONMENT, line),
        None => finding,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    const TOS: &str = "/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos";

    #[test]
    fn what_is_set_is_shown() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Info; 2]);
        let found = findings(&CHECK, &example::healthy().file(TOS, "106\n"));
        assert!(found[0].summary.contains("106"), "{}", found[0].summary);
        let found = findings(
            &CHECK,
            &example::healthy().file(virtual_path::ENVIRONMENT, "NCCL_IB_TC=106\n"),
        );
        assert_eq!(found[0].evidence[0].value, "NCCL_IB_TC=106");
    }

    #[test]
    fn what_was_not_collected_is_unknown() {
        assert_eq!(verdict(&CHECK, &example::healthy().denied(TOS)), Unknown);
    }
}
