use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("nvidia.flavour"),
    title: "NVIDIA's kernel modules are the open ones",
    why: "Only the open modules export GPU memory as dma-buf. With the proprietary ones a \
          peer-memory module is the only way for a NIC into GPU memory.",
    inputs: "/proc/driver/nvidia/version (`Open Kernel Module`), /sys/module/nvidia/taint (P: \
          proprietary).",
    criteria: "pass: open. warn: proprietary. skip: not loaded, or no GPU; nvidia.version reports it.",
    sources: &[
        "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-rdma.html",
        "https://github.com/openucx/ucx/pull/11002",
    ],
    scope: Scope::Node(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Judgement {
    if context.inventory.tree.is_ok() && context.inventory.gpus.is_empty() {
        return Err(runner::no_gpu(context));
    }
    let driver = context.facts().nvidia.by_ref().known_or_skip(
        "the flavour of NVIDIA's driver",
        "NVIDIA's driver is not loaded",
    )?;
    let finding = match driver.flavour {
        Flavour::Open => Finding::pass("the open modules are loaded, which can export dma-buf"),
        Flavour::Proprietary if before_turing(context) => Finding::warn(
            "the proprietary modules are loaded, which these GPUs need: a peer-memory module is \
             the only way for NICs into their memory",
        ),
        Flavour::Proprietary => Finding::warn(
            "the proprietary modules are loaded, which export no dma-buf: a peer-memory module is \
             the only way for NICs into GPU memory",
        )
        .fix(
            Fix::manual(
                "Install the open modules",
                "install nvidia-open in place of the proprietary package, of the same version",
            )
            .risk(
                Risk::Medium,
                "every process on the GPUs ends; open modules serve Turing and later only",
            ),
        ),
    };
    let text = context.text("/proc/driver/nvidia/version").ok();
    let line = text.unwrap_or_default();
    let mut finding = finding.evidence(
        "/proc/driver/nvidia/version",
        line.lines().next().unwrap_or_default(),
    );
    if let Ok(taint) = context.text("/sys/module/nvidia/taint") {
        finding = finding.evidence("/sys/module/nvidia/taint", taint);
    }
    Ok(finding)
}

/// Whether a GPU is known to be older than Turing (compute capability 7.5), which the open modules
/// do not serve.
fn before_turing(context: &Context<'_>) -> bool {
    let Some(cuda) = context.facts().cuda.as_ref().ok() else {
        return false;
    };
    cuda.devices.iter().any(|device| {
        let capability = device.compute_capability.as_deref();
        let numbers =
            capability
                .and_then(|text| text.split_once('.'))
                .and_then(|(major, minor)| {
                    Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
                });
        numbers.is_some_and(|capability| capability < (7, 5))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    const CLOSED: &str = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue\n";

    #[test]
    fn open_modules_pass_and_proprietary_ones_are_warned_of() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Pass);
        let closed = example::healthy().file("/proc/driver/nvidia/version", CLOSED);
        let found = worst(&CHECK, &closed);
        assert_eq!((found.verdict, found.fixes.len()), (Warn, 1));
    }

    #[test]
    fn gpus_that_the_open_modules_do_not_serve_are_not_advised_to_take_them() {
        let volta = example::healthy()
            .file("/proc/driver/nvidia/version", CLOSED)
            .file(
                virtual_path::CUDA_DEVICES,
                "{\"devices\":[{\"pci\":\"0000:18:00.0\",\"compute_capability\":\"7.0\"}]}",
            );
        assert!(worst(&CHECK, &volta).fixes.is_empty());
    }

    #[test]
    fn what_is_not_loaded_or_not_known_is_not_judged() {
        let none = example::healthy().without("/proc/driver/nvidia/version");
        assert_eq!(verdict(&CHECK, &none), Skip);
    }
}
