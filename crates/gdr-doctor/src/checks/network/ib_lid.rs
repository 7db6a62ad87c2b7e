//! `ib.lid`: InfiniBand ports have an address.

use gdr_node::Datum;

use super::ib_sm::lid;
use super::ports::{Port, each};
use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::Finding;
use crate::fix::Fix;

/// The address that stands for none: permissive.
const PERMISSIVE: u32 = 0xffff;

pub(super) const CHECK: Check = Check {
    id: CheckId("ib.lid"),
    group: Group::Network,
    title: "InfiniBand ports have an address (LID)",
    documentation: Documentation {
        means: "A subnet manager gives every InfiniBand port a local identifier. Without one \
                nothing can be sent to the port.",
        reads: "/sys/class/infiniband/*/ports/*/lid of InfiniBand ports whose link is up.",
        judges: "pass: a LID. fail: 0 or 0xffff. skip: no InfiniBand port with a link. unknown: \
                 not collected.",
        sources: &["InfiniBand Architecture Specification 4.1.3 and 14.2.5.6: LID"],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[CheckId("ib.sm")],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    each(
        context,
        |port| port.is_infiniband() && (port.is_linked() || port.is_active()),
        |port| judge(context, port),
        "no InfiniBand port has a link",
    )
}

fn judge(context: &Context<'_>, port: &Port<'_>) -> Finding {
    let path = format!("{}/lid", port.path);
    match context
        .text(&path)
        .as_ref()
        .and_then(|text| lid(text).into())
    {
        Datum::Present(none @ (0 | PERMISSIVE)) => Finding::fail(
            port.subject(),
            "it has no address: nothing can be sent to it",
        )
        .evidence(path, format!("{none:#x}"))
        .fix(Fix::manual(
            "Let the subnet manager give it an address",
            "look at the subnet manager's log for the port's GUID; a partition or a full table may \
             keep it out",
        )),
        Datum::Present(lid) => Finding::pass(port.subject(), format!("its address is LID {lid}"))
            .evidence(path, format!("{lid:#x}")),
        absent => Finding::unknown(port.subject(), "its address", &absent),
    }
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts};
    use crate::finding::Verdict;

    const PATH: &str = "/sys/class/infiniband/mlx5_1/ports/1/lid";

    #[test]
    fn addresses_pass_and_none_fails() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass; 8]);
        for none in ["0x0\n", "0xffff\n"] {
            assert_eq!(
                verdict(&CHECK, &example::healthy().file(PATH, none)),
                Verdict::Fail
            );
        }
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_no_infiniband_is_no_question() {
        let node = example::healthy().not_collected(PATH);
        assert_eq!(verdict(&CHECK, &node), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let bare = MemorySource::new().directory("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &bare), Verdict::Skip);
    }
}
