//! `roce.tos`: the class of service that RoCE asks for.

use gdr_node::{Datum, virtual_path};

use super::ports::{Port, each};
use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::Finding;
use crate::fix::{Action, Fix, Risk};

pub(super) const CHECK: Check = Check {
    id: CheckId("roce.tos"),
    group: Group::Network,
    title: "the class of service that RoCE asks for is known",
    documentation: Documentation {
        means: "Switches choose the lossless class by the DSCP of a packet, the upper six bits of \
                its type of service. A library that asks for none gets the class of everybody. 106 \
                (DSCP 26, priority 3) is what most guides choose.",
        reads: "/sys/kernel/config/rdma_cm/*/ports/*/default_roce_tos; NCCL_IB_TC and \
                UCX_IB_TRAFFIC_CLASS in the environment.",
        judges: "info: what is set. skip: no Ethernet port is up. unknown: not collected.",
        sources: &[
            "Linux drivers/infiniband/core/cma_configfs.c",
            "cma_roce_tos of mlnx-tools",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    each(
        context,
        |port| port.is_ethernet() && port.is_active(),
        |port| judge(context, port),
        "no Ethernet port of an RDMA device is up",
    )
}

fn judge(context: &Context<'_>, port: &Port<'_>) -> Finding {
    let path = format!(
        "/sys/kernel/config/rdma_cm/{}/ports/{}/default_roce_tos",
        port.device, port.port.number
    );
    let wanted = context
        .text(virtual_path::ENVIRONMENT)
        .into_present()
        .and_then(|text| {
            let of_class = |line: &&str| {
                line.starts_with("NCCL_IB_TC=") || line.starts_with("UCX_IB_TRAFFIC_CLASS=")
            };
            text.lines().find(of_class).map(str::to_owned)
        });
    let tos = context.text(&path);
    let finding = match (&tos, &wanted) {
        (Datum::Present(tos), _) => Finding::info(
            port.subject(),
            format!("connections by rdma_cm ask for type of service {tos}"),
        )
        .evidence(path, tos.clone()),
        (_, Some(_)) => Finding::info(
            port.subject(),
            "the environment says which class of service libraries ask for",
        ),
        // The folder of a device is there only after somebody made it.
        (Datum::Missing, None) => Finding::info(
            port.subject(),
            "no class of service is set: RoCE shares the class of everybody",
        )
        .evidence(path, "not there")
        .fix(
            Fix::now(
                "Ask for DSCP 26",
                Action::Command {
                    line: format!(
                        "cma_roce_tos -d {} -p {} -t 106; export NCCL_IB_TC=106 \
                         UCX_IB_TRAFFIC_CLASS=106",
                        port.device, port.port.number
                    ),
                },
            )
            .risk(
                Risk::Low,
                "helps only where NIC and switches have that class lossless",
            ),
        ),
        (absent, None) => {
            return Finding::unknown(port.subject(), "the class of service it asks for", absent);
        }
    };
    match wanted {
        Some(line) => finding.evidence(virtual_path::ENVIRONMENT, line),
        None => finding,
    }
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::super::ports::without_ethernet;
    use super::*;
    use crate::checks::fixture::{findings, verdict, verdicts};
    use crate::finding::Verdict;

    const TOS: &str = "/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos";

    #[test]
    fn what_is_set_is_told() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Info; 2]);
        let found = findings(&CHECK, &example::healthy().file(TOS, "106\n"));
        assert!(found[0].summary.contains("106"), "{}", found[0].summary);
        let found = findings(
            &CHECK,
            &example::healthy().file(virtual_path::ENVIRONMENT, "NCCL_IB_TC=106\n"),
        );
        assert_eq!(found[0].evidence[0].value, "NCCL_IB_TC=106");
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_no_ethernet_is_no_question() {
        assert_eq!(
            verdict(&CHECK, &example::healthy().denied(TOS)),
            Verdict::Unknown
        );
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &without_ethernet()), Verdict::Skip);
    }
}
