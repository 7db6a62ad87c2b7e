//! `cpu.affinity`: the process may run near its GPUs.

use gdr_node::Datum;

use crate::check::{Check, CheckId, Documentation, Group};
use crate::checks::pcie::devices;
use crate::context::Context;
use crate::cpus::parse_cpus;
use crate::finding::{Finding, Subject};
use crate::fix::Fix;

pub(super) const CHECK: Check = Check {
    id: CheckId("cpu.affinity"),
    group: Group::Host,
    title: "this process may run on CPUs near the GPUs",
    documentation: Documentation {
        means: "A process that is bound to the other socket reaches a GPU's memory and its NIC's \
                doorbells across the interconnect between sockets: half the bandwidth of a CPU \
                mapping, higher latency.",
        reads: "Cpus_allowed_list in /proc/self/status; local_cpulist of the GPUs.",
        judges: "pass: some CPU near the GPU is allowed. warn: none is. unknown: not collected. \
                 skip: no GPU.",
        sources: &[
            "gdrcopy README: NUMA",
            "Linux Documentation/filesystems/proc.rst: Cpus_allowed_list",
        ],
    },
    purposes: &[],
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    let gpus = match devices::gpus(context) {
        Ok(gpus) => gpus,
        Err(why) => return why,
    };
    let list = context.text("/proc/self/status").and_then(|text| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.map(|list| list.trim().to_owned()).into()
    });
    let allowed = match list.as_ref().and_then(|list| parse_cpus(list).into()) {
        Datum::Present(allowed) => allowed,
        absent => {
            return vec![Finding::unknown(
                Subject::Node,
                "the list of CPUs that this process may run on",
                &absent,
            )];
        }
    };
    let shown = list.into_present().unwrap_or_default();
    let mut findings = Vec::new();
    for (gpu, function) in gpus {
        let subject = Subject::gpu(gpu);
        let path = format!("/sys/bus/pci/devices/{}/local_cpulist", function.bdf);
        let text = context.text(&path);
        let near = match text.as_ref().and_then(|text| parse_cpus(text).into()) {
            Datum::Present(near) => near,
            absent => {
                findings.push(Finding::unknown(subject, "which CPUs are near it", &absent));
                continue;
            }
        };
        let near_text = text.into_present().unwrap_or_default();
        let finding = if allowed.is_disjoint(&near) {
            Finding::warn(
                subject,
                format!("this process may run on CPUs {shown} only, none of which is near it"),
            )
            .fix(Fix::user(
                "Run near it",
                match function.numa.present() {
                    Some(node) => format!("numactl --cpunodebind={node} --membind={node} COMMAND"),
                    None => format!("taskset -c {near_text} COMMAND"),
                },
            ))
        } else {
            Finding::pass(subject, "this process may run near it")
        };
        findings.push(
            finding
                .evidence("/proc/self/status Cpus_allowed_list", shown.clone())
                .evidence(path, near_text),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts, worst};
    use crate::finding::Verdict;

    #[test]
    fn a_process_that_may_run_anywhere_passes() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass; 8]);
    }

    #[test]
    fn a_process_on_the_other_socket_is_warned_of() {
        let node = example::healthy().file("/proc/self/status", "Cpus_allowed_list:\t48-63\n");
        let found = worst(&CHECK, &node);
        assert_eq!(found.verdict, Verdict::Warn);
        assert_eq!(found.subject.to_string(), "GPU0");
        let all = verdicts(&CHECK, &node);
        assert_eq!(all.iter().filter(|it| **it == Verdict::Warn).count(), 4);
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_no_gpu_is_no_question() {
        let node = example::healthy().without("/proc/self");
        assert_eq!(verdict(&CHECK, &node), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let bare = MemorySource::new().directory("/sys/bus/pci/devices");
        assert_eq!(verdict(&CHECK, &bare), Verdict::Skip);
    }
}
