use crate::checks::prelude::*;
use crate::gpudirect_support::{DMABUF_DRIVER, DMABUF_KERNEL, dmabuf_everywhere};

pub(super) const CHECK: Check = Check {
    id: CheckId("nvidia.version"),
    title: "NVIDIA's driver is loaded and new enough",
    why: "Access to a GPU needs NVIDIA's kernel driver. From 515 on, with kernel 5.12 and CUDA \
          11.7, the driver exports GPU memory as dma-buf, which needs no peer-memory module.",
    inputs: "/proc/driver/nvidia/version, /proc/sys/kernel/osrelease.",
    criteria: "pass: driver 515 or later on kernel 5.12 or later. warn: an older one, which needs \
               a peer-memory module. fail: not loaded. skip: no GPU.",
    sources: &[
        "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-rdma.html",
        "Linux drivers/infiniband/core/umem_dmabuf.c, since 5.12",
    ],
    symptom_of: &["gpu.present", "modules.lockdown"],
    scope: Scope::Node(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Judgement {
    if context.inventory.tree.is_ok() && context.inventory.gpus.is_empty() {
        return Err(runner::no_gpu(context));
    }
    let facts = context.facts();
    let path = "/proc/driver/nvidia/version";
    let driver = match facts.nvidia.by_ref() {
        Err(Absence::Missing) => {
            // Without a driver, a machine whose PCI functions are unknown may have no GPU.
            if context.inventory.gpus.is_empty() {
                let tree = context.inventory.tree.by_ref();
                tree.known("which GPUs there are, and the driver is not loaded")?;
            }
            let finding = Finding::fail("NVIDIA's kernel driver is not loaded")
                .evidence(path, "does not exist")
                .fix(Fix::now("Load the driver", Action::load("nvidia")))
                .fix(install());
            return Ok(if is_kept_out(context) {
                finding.symptom_of("gpu.driver")
            } else {
                finding
            });
        }
        driver => driver.known("the version of NVIDIA's driver")?,
    };
    let text = context.text(path).ok();
    let first_line = (text.as_deref().and_then(|text| text.lines().next()))
        .map_or_else(|| driver.to_string(), str::to_owned);
    let finding = if driver.version.is_at_least(&DMABUF_DRIVER) {
        of_kernel(context, driver)
    } else {
        Finding::warn(format!(
            "driver {driver} is older than 515 and does not export dma-buf: NICs need a \
             peer-memory module"
        ))
        .fix(install())
    };
    let finding = finding.evidence(path, first_line);
    let release = context.text("/proc/sys/kernel/osrelease").ok();
    Ok(finding.evidence_all(release.map(|it| ("/proc/sys/kernel/osrelease", it))))
}

/// Returns the finding about the kernel below a driver that exports dma-buf.
fn of_kernel(context: &Context<'_>, driver: &NvidiaDriver) -> Finding {
    match &context.facts().kernel {
        // Distributions backport dma-buf support to older kernels.
        Ok(kernel) if dmabuf_everywhere(context) == Ok(true) => Finding::pass(format!(
            "driver {driver} on kernel {kernel}, and dma-buf works"
        )),
        Ok(kernel) if !kernel.is_at_least(&DMABUF_KERNEL) => Finding::warn(format!(
            "kernel {kernel} is older than 5.12 and does not support dma-buf for RDMA: NICs need a \
             peer-memory module"
        ))
        .fix(
            Fix::manual(
                "Install a newer kernel",
                "install kernel 5.12 or later, or MLNX_OFED, which brings its own RDMA stack",
            )
            .risk(Risk::Medium, "out-of-tree drivers must be rebuilt"),
        ),
        Ok(kernel) => Finding::pass(format!("driver {driver} on kernel {kernel}")),
        absent => Finding::unknown("the kernel's version", absent),
    }
}

/// Returns whether another driver is bound to a GPU.
fn is_kept_out(context: &Context<'_>) -> bool {
    context.gpus().any(|gpu| {
        let function = context.function(gpu.bdf);
        function.is_some_and(|function| function.driver.is_ok())
    })
}

fn install() -> Fix {
    Fix::manual(
        "Install a current driver with open modules",
        "install nvidia-open 515 or later from the distribution or from NVIDIA",
    )
    .risk(
        Risk::Medium,
        "every process on the GPUs ends; the open modules support Turing and later only",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn a_current_driver_on_a_current_kernel_passes() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass]);
    }

    #[test]
    fn an_old_driver_or_kernel_is_a_warning() {
        let old = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.161.03  Wed\n";
        let node = example::healthy().file("/proc/driver/nvidia/version", old);
        assert_eq!(verdict(&CHECK, &node), Warn);
        let kernel = "/proc/sys/kernel/osrelease";
        let backported = example::healthy().file(kernel, "5.4.0-150-generic\n");
        assert_eq!(verdict(&CHECK, &backported), Pass);
        let old = backported.without(virtual_path::CUDA_DEVICES);
        assert_eq!(verdict(&CHECK, &old), Warn);
    }

    #[test]
    fn without_a_driver_and_without_sys_nothing_is_known() {
        let node = MemorySource::new()
            .directory("/proc/driver")
            .file("/proc/sys/kernel/osrelease", "6.8.0\n");
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }

    #[test]
    fn a_driver_that_is_not_loaded_fails() {
        let node = example::healthy().without("/proc/driver/nvidia/version");
        assert_eq!(verdict(&CHECK, &node), Fail);
    }
}
