//! `gpu.mig`: whether GPUs are divided.

use gdr_node::Datum;

use crate::check::{Check, CheckId, Documentation, Group};
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::{Action, Fix, Persistence, Risk};

pub(super) const CHECK: Check = Check {
    id: CheckId("gpu.mig"),
    group: Group::Modules,
    title: "the GPUs are whole",
    documentation: Documentation {
        means: "A GPU that is divided (MIG) has no NVLink and no peers of its own; each part has \
                a part of the window to its memory. GPUDirect RDMA works with some parts only.",
        reads: "/proc/driver/nvidia/capabilities/gpu*/mig/gi*.",
        judges: "pass: no GPU instance. info: there are some. skip: the driver is not loaded.",
        sources: &["NVIDIA Multi-Instance GPU user guide, capabilities in /proc"],
    },
    purposes: &[],
    symptom_of: &[],
    run,
};

const CAPABILITIES: &str = "/proc/driver/nvidia/capabilities";

fn run(context: &Context<'_>) -> Vec<Finding> {
    if context.facts().nvidia == Datum::Missing {
        return vec![Finding::skip("NVIDIA's driver is not loaded")];
    }
    let gpus = match context.source.list(CAPABILITIES) {
        Datum::Present(names) => names,
        Datum::Missing => {
            return vec![Finding::pass(Subject::Node, "this driver divides no GPUs")];
        }
        absent => {
            return vec![Finding::unknown(
                Subject::Node,
                "the list of capabilities of NVIDIA's driver",
                &absent,
            )];
        }
    };
    let mut divided = Vec::new();
    for gpu in gpus.iter().filter(|name| name.starts_with("gpu")) {
        let path = format!("{CAPABILITIES}/{gpu}/mig");
        let names = context
            .source
            .list(&path)
            .into_present()
            .unwrap_or_default();
        let instances: Vec<String> = (names.into_iter())
            .filter(|name| name.starts_with("gi"))
            .collect();
        if !instances.is_empty() {
            divided.push((path, instances.join(" ")));
        }
    }
    if divided.is_empty() {
        return vec![Finding::pass(Subject::Node, "no GPU is divided")];
    }
    let mut finding = Finding::info(
        Subject::Node,
        format!(
            "{} divided into instances (MIG), which have no peers over NVLink",
            match divided.len() {
                1 => "1 GPU is".to_owned(),
                n => format!("{n} GPUs are"),
            }
        ),
    )
    .fix(
        Fix::now(
            "Make the GPUs whole",
            Action::Command {
                line: "nvidia-smi -mig 0".to_owned(),
            },
        )
        .persistence(Persistence::Permanent)
        .risk(Risk::Medium, "every process on the GPUs has to end first"),
    );
    for (path, instances) in divided {
        finding = finding.evidence(path, instances);
    }
    vec![finding]
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::verdict;
    use crate::finding::Verdict;

    #[test]
    fn whole_gpus_pass_and_divided_ones_are_worth_knowing() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Verdict::Pass);
        let divided = example::healthy().file(
            "/proc/driver/nvidia/capabilities/gpu3/mig/gi1/access",
            "DeviceFileMinor: 30\n",
        );
        assert_eq!(verdict(&CHECK, &divided), Verdict::Info);
    }

    #[test]
    fn without_a_driver_or_a_capture_nothing_is_judged() {
        let none = example::healthy().without("/proc/driver/nvidia/version");
        assert_eq!(verdict(&CHECK, &none), Verdict::Skip);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
    }
}
