use std::collections::BTreeMap;

use gdr_node::pci::DeviceId;

use crate::checks::prelude::*;
use crate::nvlink::{Links, judge};

pub(super) const CHECK: Check = Check {
    id: CheckId("nvlink.equal"),
    title: "GPUs of one kind have equally many NVLinks",
    why: "A GPU whose NVLinks are down, or that the fabric manager left out, talks to the others \
          over PCI Express and the CPU. Jobs then run at its speed, or do not start.",
    inputs: "The NVLinks between GPUs by NVML, or by the output of `nvidia-smi topo -m`.",
    criteria: "pass: equally many. warn: a minority has fewer or none. info: half or more have \
               fewer, as with bridges between some of the cards. skip: no NVLinks. unknown: not \
               collected.",
    sources: &[
        "https://github.com/vllm-project/vllm/issues/16336",
        "nvidia-smi topo -m, legend",
    ],
    symptom_of: &["fabricmanager", "klog.xid", "klog.sxid"],
    scope: Scope::Several(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let all = &context.inventory.nvlinks;
    if all.is_empty() {
        let nvml = context.facts().nvml.by_ref();
        nvml.known_or_skip("the NVLinks", "no NVLink between GPUs is reported")?;
        return Err(Unjudged::skip("no NVLink between GPUs is reported"));
    }
    let mut kinds: BTreeMap<Option<DeviceId>, Vec<GpuDevice>> = BTreeMap::new();
    for gpu in &context.inventory.gpus {
        let device = (context.function(gpu.bdf)).and_then(|function| function.identity.device);
        kinds.entry(device).or_default().push(*gpu);
    }
    let findings: Vec<Finding> = (kinds.values())
        .filter_map(|gpus| {
            let names: Vec<String> = gpus.iter().map(|gpu| gpu.index.to_string()).collect();
            let place = |bdf| gpus.iter().position(|gpu| gpu.bdf == bdf);
            let links: Vec<Links> = (all.iter())
                .filter_map(|links| {
                    Some(Links {
                        between: (place(links.a)?, place(links.b)?),
                        count: links.count,
                    })
                })
                .collect();
            judge(&names, &links)
        })
        .collect();
    if findings.is_empty() {
        return Err(Unjudged::skip("no NVLink joins GPUs of one kind"));
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    /// Returns the example with NVLinks to switches: this many of each GPU.
    fn with_links(count: impl Fn(usize) -> usize) -> MemorySource {
        let gpus: Vec<String> = (example::GPUS.iter().enumerate())
            .map(|(number, at)| {
                let links = vec![r#"{"kind":"switch"}"#; count(number)].join(",");
                format!(r#"{{"pci":"{at}","nvlinks":[{links}]}}"#)
            })
            .collect();
        let text = format!(r#"{{"devices":[{}]}}"#, gpus.join(","));
        example::healthy().file(virtual_path::NVML_DEVICES, text)
    }

    #[test]
    fn a_gpu_with_fewer_links_is_a_warning() {
        assert_eq!(verdict(&CHECK, &with_links(|_| 18)), Pass);
        let found = judged(
            &CHECK,
            &with_links(|gpu| if gpu == 5 { 0 } else { 18 }),
            Warn,
        );
        assert!(
            found.summary.starts_with("GPU5 has no NVLink"),
            "{}",
            found.summary
        );
    }

    #[test]
    fn a_node_without_links_is_skipped_and_an_unread_one_is_unknown() {
        assert_eq!(verdict(&CHECK, &with_links(|_| 0)), Skip);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Unknown);
    }
}
