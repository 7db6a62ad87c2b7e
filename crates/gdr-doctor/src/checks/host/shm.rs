//! `shm`: shared memory is large enough.

use gdr_node::{Datum, virtual_path};

use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::facts::Container;
use crate::finding::{Finding, Subject};
use crate::fix::{Action, Fix, Persistence, Risk};

/// What NCCL uses with many ranks on a node, in bytes.
const ENOUGH: u64 = 512 << 20;

pub(super) const CHECK: Check = Check {
    id: CheckId("shm"),
    group: Group::Host,
    title: "/dev/shm is large enough for the processes of a job",
    documentation: Documentation {
        means: "Processes of one job on one node exchange through /dev/shm. Docker gives a \
                container 64 MiB of it, which a few ranks of NCCL use up: \"No space left on \
                device\", or a bus error.",
        reads: "Size and free space of the file system at /dev/shm.",
        judges: "pass: 512 MiB or more. warn: less, in a container. info: less, elsewhere. unknown: \
                 not collected.",
        sources: &[
            "NCCL user guide, troubleshooting: shared memory",
            "https://github.com/stas00/ml-engineering",
        ],
    },
    purposes: &[Purpose::Nccl, Purpose::Ucx, Purpose::Nvshmem],
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    let size = context.text(virtual_path::SHARED_MEMORY).and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("size "));
        line.and_then(|bytes| bytes.trim().parse::<u64>().ok())
            .into()
    });
    let bytes = match size {
        Datum::Present(bytes) => bytes,
        absent => {
            return vec![Finding::unknown(
                Subject::Node,
                "the size of /dev/shm",
                &absent,
            )];
        }
    };
    let has = match bytes >> 30 {
        0..=9 => format!("{} MiB", bytes >> 20),
        gib => format!("{gib} GiB"),
    };
    let inside = context.facts().container == Datum::Present(Container::Yes);
    let finding = match (bytes >= ENOUGH, inside) {
        (true, _) => Finding::pass(Subject::Node, format!("/dev/shm has {has}")),
        (false, true) => Finding::warn(
            Subject::Node,
            format!("/dev/shm has {has}: processes of one job run out of it"),
        )
        .fix(Fix::user(
            "Start the container with more",
            "docker run --shm-size 16g …   # Kubernetes: an emptyDir of medium Memory at /dev/shm",
        )),
        (false, false) => Finding::info(Subject::Node, format!("/dev/shm has {has}")).fix(
            Fix::now(
                "Make it larger",
                Action::Command {
                    line: "mount -o remount,size=16g /dev/shm".into(),
                },
            )
            .persistence(Persistence::UntilReboot)
            .risk(Risk::Low, "what lies there counts as memory in use"),
        ),
    };
    vec![finding.evidence(virtual_path::SHARED_MEMORY, format!("size {bytes}"))]
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts};
    use crate::finding::Verdict;

    #[test]
    fn much_passes_and_little_counts_in_containers() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass]);
        let little =
            example::healthy().file(virtual_path::SHARED_MEMORY, "size 67108864\nfree 1\n");
        assert_eq!(verdict(&CHECK, &little), Verdict::Info);
        assert_eq!(
            verdict(&CHECK, &little.file("/.dockerenv", "")),
            Verdict::Warn
        );
    }

    #[test]
    fn what_was_not_collected_is_unknown() {
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
    }
}
