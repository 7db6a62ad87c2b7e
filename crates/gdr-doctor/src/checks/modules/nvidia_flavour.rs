use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("nvidia.flavour"),
    title: "NVIDIA's kernel modules are the open ones",
    why: "Only the open modules export GPU memory as dma-buf. With the proprietary ones, NICs \
          access GPU memory only through a peer-memory module.",
    inputs: "/proc/driver/nvidia/version (`Open Kernel Module`), /sys/module/nvidia/taint (P: \
          proprietary).",
    criteria: "pass: open. warn: proprietary. skip: not loaded (nvidia.version reports it), or no \
               GPU.",
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
    let flavour = driver.flavour.known("the flavour of NVIDIA's driver")?;
    let finding = match flavour {
        Flavour::Open => Finding::pass("the open modules are loaded, which support dma-buf"),
        Flavour::Proprietary if before_turing(context) => Finding::warn(
            "the proprietary modules are loaded, which these GPUs need: NICs need a peer-memory \
             module to access their memory",
        ),
        Flavour::Proprietary => Finding::warn(
            "the proprietary modules are loaded, which do not export dma-buf: NICs need a \
             peer-memory module to access GPU memory",
        )
        .fix(
            Fix::manual(
                "Install the open modules",
                "replace the proprietary package by nvidia-open of the same version",
            )
            .risk(
                Risk::Medium,
                "every process on the GPUs ends; the open modules support Turing and later only",
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

/// Returns whether a GPU is known to be older than Turing (compute capability 7.5), the first
/// generation that the open modules support.
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
    fn open_modules_pass_and_proprietary_ones_are_a_warning() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Pass);
        let closed = example::healthy().file("/proc/driver/nvidia/version", CLOSED);
        let found = worst(&CHECK, &closed);
        assert_eq!((found.verdict, found.fixes.len()), (Warn, 1));
    }

    #[test]
    fn gpus_older_than_turing_get_no_advice_to_install_open_modules() {
        let volta = example::healthy()
            .file("/proc/driver/nvidia/version", CLOSED)
            .file(
                virtual_path::CUDA_DEVICES,
                "{\"devices\":[{\"pci\":\"0000:18:00.0\",\"compute_capability\":\"7.0\"}]}",
            );
        assert!(worst(&CHECK, &volta).fixes.is_empty());
    }
}
