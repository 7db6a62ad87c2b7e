//! `cpu.thp`: whether the kernel makes huge pages on its own.

use gdr_node::Datum;

use crate::check::{Check, CheckId, Documentation, Group};
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::{Action, Fix};

const PATH: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

pub(super) const CHECK: Check = Check {
    id: CheckId("cpu.thp"),
    group: Group::Host,
    title: "transparent huge pages are made on request only",
    documentation: Documentation {
        means: "With transparent huge pages always on, the kernel stops a process now and then to \
                put pages together. Large buffers gain from them; latency sees the stops.",
        reads: "/sys/kernel/mm/transparent_hugepage/enabled.",
        judges: "pass: madvise or never. info: always. unknown: not collected.",
        sources: &["Linux Documentation/admin-guide/mm/transhuge.rst"],
    },
    purposes: &[],
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    vec![match context.text(PATH) {
        Datum::Present(value) if value.contains("[always]") => Finding::info(
            Subject::Node,
            "transparent huge pages are always made: latency sees stops from it",
        )
        .evidence(PATH, value)
        .fix(Fix::now(
            "Make them on request",
            Action::WriteSysfs {
                path: PATH.into(),
                value: "madvise".into(),
            },
        )),
        Datum::Present(value) => Finding::pass(
            Subject::Node,
            "transparent huge pages are made on request only",
        )
        .evidence(PATH, value),
        Datum::Missing => Finding::skip("this kernel has no transparent huge pages"),
        absent => Finding::unknown(
            Subject::Node,
            "when transparent huge pages are made",
            &absent,
        ),
    }]
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::verdict;
    use crate::finding::Verdict;

    #[test]
    fn on_request_passes_always_is_told_of_and_unread_is_unknown() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Verdict::Pass);
        let always = example::healthy().file(PATH, "[always] madvise never\n");
        assert_eq!(verdict(&CHECK, &always), Verdict::Info);
        assert_eq!(verdict(&CHECK, &MemorySource::new()), Verdict::Skip);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
    }
}
