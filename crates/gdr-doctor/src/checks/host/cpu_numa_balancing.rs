//! `cpu.numa_balancing`: the kernel does not move memory about while a job runs.

use gdr_node::Datum;

use crate::check::{Check, CheckId, Documentation, Group};
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::{Action, Fix};

const PATH: &str = "/proc/sys/kernel/numa_balancing";

pub(super) const CHECK: Check = Check {
    id: CheckId("cpu.numa_balancing"),
    group: Group::Host,
    title: "the kernel does not move memory between NUMA nodes on its own",
    documentation: Documentation {
        means: "With automatic NUMA balancing the kernel takes pages away for a moment to see who \
                uses them. Jobs that are bound to their node gain nothing and see jitter.",
        reads: "/proc/sys/kernel/numa_balancing.",
        judges: "pass: off, or a kernel without it. info: on. unknown: not collected.",
        sources: &["Linux Documentation/admin-guide/sysctl/kernel.rst: numa_balancing"],
    },
    purposes: &[],
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    vec![match context.text(PATH) {
        Datum::Present(value) if value == "0" => {
            Finding::pass(Subject::Node, "automatic NUMA balancing is off").evidence(PATH, value)
        }
        Datum::Present(value) => Finding::info(
            Subject::Node,
            "automatic NUMA balancing is on: bound jobs see jitter from it",
        )
        .evidence(PATH, value)
        .fix(Fix::now(
            "Turn it off",
            Action::WriteSysfs {
                path: PATH.into(),
                value: "0".into(),
            },
        )),
        Datum::Missing => Finding::skip("this kernel has no automatic NUMA balancing"),
        absent => Finding::unknown(Subject::Node, "whether NUMA balancing is on", &absent),
    }]
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::verdict;
    use crate::finding::Verdict;

    #[test]
    fn off_passes_on_is_told_of_and_unread_is_unknown() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Verdict::Pass);
        assert_eq!(
            verdict(&CHECK, &example::healthy().file(PATH, "1\n")),
            Verdict::Info
        );
        assert_eq!(verdict(&CHECK, &MemorySource::new()), Verdict::Skip);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
    }
}
