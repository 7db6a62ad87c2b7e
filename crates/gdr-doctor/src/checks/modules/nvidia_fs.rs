//! `nvidia_fs`: whether GPUDirect Storage is there.

use gdr_node::Datum;

use crate::check::{Check, CheckId, Documentation, Group};
use crate::context::Context;
use crate::finding::{Finding, Subject};

pub(super) const CHECK: Check = Check {
    id: CheckId("nvidia_fs"),
    group: Group::Modules,
    title: "whether GPUDirect Storage is there",
    documentation: Documentation {
        means: "nvidia_fs lets storage reach GPU memory. RDMA does not need it.",
        reads: "/proc/driver/nvidia-fs/version.",
        judges: "info: loaded. skip: not loaded. unknown: not collected.",
        sources: &["NVIDIA GPUDirect Storage overview"],
    },
    purposes: &[],
    symptom_of: &[],
    run,
};

const PATH: &str = "/proc/driver/nvidia-fs/version";

fn run(context: &Context<'_>) -> Vec<Finding> {
    vec![match context.text(PATH) {
        Datum::Present(version) => {
            Finding::info(Subject::Node, "nvidia_fs is loaded; RDMA does not need it")
                .evidence(PATH, version)
        }
        Datum::Missing => Finding::skip("nvidia_fs is not loaded, which RDMA does not need"),
        absent => Finding::unknown(Subject::Node, "whether nvidia_fs is loaded", &absent),
    }]
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::verdict;
    use crate::finding::Verdict;

    #[test]
    fn it_is_never_a_fault() {
        let loaded = example::healthy().file(PATH, "version: 2.20\n");
        assert_eq!(verdict(&CHECK, &loaded), Verdict::Info);
        assert_eq!(verdict(&CHECK, &example::healthy()), Verdict::Skip);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
    }
}
