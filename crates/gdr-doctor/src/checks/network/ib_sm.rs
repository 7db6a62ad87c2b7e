use super::ports::Port;
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("ib.sm"),
    title: "InfiniBand ports have a subnet manager",
    why: "An InfiniBand fabric works only after a subnet manager has assigned addresses and \
          routes. Without one, ports stay in INIT and no connection is possible.",
    inputs: "/sys/class/infiniband/*/ports/*/sm_lid of InfiniBand ports whose link is up.",
    criteria: "pass: not 0. fail: 0. skip: no InfiniBand port with a link. unknown: not collected.",
    sources: &[
        "InfiniBand Architecture Specification 14.2.5.6: MasterSMLID",
        "https://github.com/openucx/ucx/issues/9515",
    ],
    scope: Scope::Port(Which::LinkedInfiniband, judge),
    ..super::CHECK
};

fn judge(context: &Context<'_>, port: &Port<'_>) -> Judgement {
    let path = format!("{}/sm_lid", port.path);
    let text = context.text(&path);
    let lid = text.and_then(|text| lid(&text).ok_or(Absence::Missing));
    Ok(match lid.known("its subnet manager")? {
        0 => Finding::fail(
            "it has no subnet manager: it gets neither an address nor routes",
        )
        .evidence(path, "0x0")
        .fix(
            Fix::run(
                "Start a subnet manager on one node of the fabric",
                "systemctl enable --now opensm",
            )
            .risk(
                Risk::Medium,
                "a second subnet manager may take over the fabric from the one on a switch: check \
                 the switches first",
            ),
        ),
        lid => Finding::pass(format!("its subnet manager has LID {lid}"))
            .evidence(path, format!("{lid:#x}")),
    })
}

/// Returns a LID as the kernel writes it: `0x1`.
pub(super) fn lid(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use gdr_node::Inventory;

    use super::*;
    use crate::checks::fixture::*;
    use crate::diagnosis::{Selection, diagnose};

    const PORT: &str = "/sys/class/infiniband/mlx5_1/ports/1";

    #[test]
    fn ports_with_a_subnet_manager_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 8]);
    }

    #[test]
    fn a_missing_subnet_manager_is_the_cause_of_the_state_and_the_lid() {
        let node = example::healthy()
            .file(&format!("{PORT}/sm_lid"), "0x0\n")
            .file(&format!("{PORT}/lid"), "0xffff\n")
            .file(&format!("{PORT}/state"), "2: INIT\n");
        assert_eq!(worst(&CHECK, &node).verdict, Fail);
        let inventory = Inventory::read(&node);
        let ids = [CHECK.id, CheckId("ib.lid"), CheckId("port.state")];
        let diagnosis = diagnose(
            &Context::new(&node, &inventory),
            &Selection::all().only(ids),
        );
        let causes = diagnosis.root_causes();
        assert_eq!(causes.len(), 1);
        assert_eq!(causes[0].1.check.id, CHECK.id);
        assert_eq!(diagnosis.counts().fail + diagnosis.counts().warn, 3);
    }

    #[test]
    fn an_uncollected_subnet_manager_is_unknown() {
        let node = example::healthy().not_collected(&format!("{PORT}/sm_lid"));
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
