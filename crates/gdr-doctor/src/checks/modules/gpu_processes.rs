use gdr_node::GpuProcess;

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("gpu.processes"),
    title: "the processes that use each GPU are known",
    why: "A job cannot use memory that another process holds, in BAR1 too, and many settings of a \
          GPU can change only while no process uses it.",
    inputs: "nvmlDeviceGetComputeRunningProcesses and nvmlDeviceGetGraphicsRunningProcesses of each \
             GPU, or the processes that nvidia-smi lists; names from /proc/*/comm.",
    criteria: "pass: none. info: their names, numbers and memory. skip: they are not reported, or \
               not to a container. unknown: the answers were not collected.",
    sources: &["NVML API reference: nvmlDeviceGetComputeRunningProcesses"],
    scope: Scope::Gpu(judge),
    together: Some("all GPUs"),
    ..super::CHECK
};

/// How many are named.
const NAMED: usize = 6;

fn judge(context: &Context<'_>, gpu: &GpuDevice, _: &Function) -> Judgement {
    let fact = (context.facts()).of_gpu(gpu.bdf, |gpu| gpu.processes.clone());
    let unsaid = "neither NVML nor nvidia-smi reported its processes";
    let (processes, _) = fact.known_or_skip("its processes", unsaid)?;
    if processes.is_empty() {
        return Ok(Finding::pass("no process uses it"));
    }
    let named: Vec<String> = processes.iter().take(NAMED).map(shown).collect();
    let more = match processes.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let used = match processes.len() {
        1 => "a process uses it".to_owned(),
        several => format!("{several} processes use it"),
    };
    Ok(Finding::info(format!("{used}: {}{more}", named.join(", ")))
        .evidence("processes", processes.len()))
}

/// `python (4242, 500 MiB)`.
fn shown(process: &GpuProcess) -> String {
    let memory = process.memory.map(|bytes| format!(", {} MiB", bytes >> 20));
    let memory = memory.unwrap_or_default();
    match &process.name {
        Some(name) => format!("{name} ({}{memory})", process.pid),
        None => format!("{}{memory}", process.pid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn processes_are_named_and_none_passes() {
        let with = |processes: &str| cuda_says(0, &format!(r#""processes":[{processes}]"#));
        assert_eq!(verdict(&CHECK, &with("")), Pass);
        let one = r#"{"pid":4969,"name":"Xorg","memory":27262976}"#;
        let found = judged(&CHECK, &with(one), Info);
        assert_eq!(found.summary, "a process uses it: Xorg (4969, 26 MiB)");
        let many = [r#"{"pid":7}"#; 8].join(",");
        let found = worst(&CHECK, &with(&many));
        assert!(found.summary.starts_with("8 processes use it: 7, 7,"));
        assert!(found.summary.ends_with("and 2 more"), "{}", found.summary);
    }
}
