use gdr_node::CpuSet;

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("cpu.affinity"),
    title: "this process may run on CPUs near the GPUs",
    why: "A process that is bound to the other socket accesses a GPU's memory and its NIC's \
          doorbells through the interconnect between sockets: CPU mappings have half the \
          bandwidth, and the latency is higher.",
    inputs: "Cpus_allowed_list in /proc/self/status; local_cpulist of the GPUs.",
    criteria: "pass: a CPU near the GPU is allowed. warn: none is. unknown: not collected. skip: \
               no GPU.",
    sources: &[
        "gdrcopy README: NUMA",
        "Linux Documentation/filesystems/proc.rst: Cpus_allowed_list",
    ],
    scope: Scope::Several(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let gpus = runner::gpus(context)?;
    let list = context.text("/proc/self/status").and_then(|text| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.map(|list| list.trim().to_owned())
            .ok_or(Absence::Missing)
    });
    let allowed = list
        .by_ref()
        .and_then(|list| list.parse::<CpuSet>().map_err(|_| Absence::Missing))
        .known("the list of CPUs that this process may run on")?;
    let shown = list.ok().unwrap_or_default();
    Ok(runner::each(gpus, |(gpu, function)| {
        (
            Subject::gpu(gpu),
            judge(context, function, &allowed, &shown),
        )
    }))
}

fn judge(context: &Context<'_>, function: &Function, allowed: &CpuSet, shown: &str) -> Judgement {
    let path = format!("/sys/bus/pci/devices/{}/local_cpulist", function.bdf);
    let text = context.text(&path);
    let near = (text.by_ref())
        .and_then(|text| text.parse::<CpuSet>().map_err(|_| Absence::Missing))
        .known("which CPUs are near it")?;
    let near_text = text.ok().unwrap_or_default();
    let finding = if allowed.is_disjoint(&near) {
        Finding::warn(format!(
            "this process may run only on CPUs {shown}, and none is near it"
        ))
        .fix(Fix::user(
            "Run on CPUs near it",
            match &function.numa {
                Ok(node) => format!("numactl --cpunodebind={node} --membind={node} COMMAND"),
                Err(_) => format!("taskset -c {near_text} COMMAND"),
            },
        ))
    } else {
        Finding::pass("this process may run on CPUs near it")
    };
    Ok(finding
        .evidence("/proc/self/status Cpus_allowed_list", shown)
        .evidence(path, near_text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn a_process_that_may_run_anywhere_passes() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 8]);
    }

    #[test]
    fn a_process_on_the_other_socket_is_a_warning() {
        let node = example::healthy().file("/proc/self/status", "Cpus_allowed_list:\t48-63\n");
        let found = judged(&CHECK, &node, Warn);
        assert_eq!(found.subject.to_string(), "GPU0");
        let all = verdicts(&CHECK, &node);
        assert_eq!(all.iter().filter(|it| **it == Warn).count(), 4);
    }

    #[test]
    fn an_uncollected_process_is_unknown() {
        let node = example::healthy().without("/proc/self");
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
