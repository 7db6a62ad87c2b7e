use crate::checks::prelude::*;
use crate::gpudirect_support::model;

pub(super) const CHECK: Check = Check {
    id: CheckId("gpu.class"),
    title: "the GPUs support GPUDirect RDMA",
    why: "NVIDIA supports GPUDirect RDMA on data centre and professional GPUs. GeForce cards have \
          a small BAR1 or refuse access by other devices: registering GPU memory fails, or only \
          small buffers fit.",
    inputs: "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED (116) and the compute capability of \
             each GPU; its name as CUDA, /proc/driver/nvidia/gpus/*/information or a listing has \
             it; its PCI class and device ID.",
    criteria: "fail: older than Kepler (compute capability 3.0), the first with GPUDirect RDMA. \
               pass: CUDA reports support; or the name or class is not a GeForce's. warn: CUDA \
               reports no support, or a GeForce. unknown: the name was not captured. skip: no GPU.",
    sources: &[
        "CUDA Driver API: CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED",
        "https://docs.nvidia.com/cuda/gpudirect-rdma/ (supported on Kepler and later)",
        "https://github.com/NVIDIA/gdrcopy/blob/master/README.md",
        "https://github.com/FlagOpen/FlagCX/issues/61",
    ],
    workloads: Workload::RDMA,
    symptom_of: &["gpu.present"],
    scope: Scope::Gpu(judge),
    together: Some("all GPUs"),
    ..super::CHECK
};

/// 3D controller: a GPU without a display output, as data centre GPUs are.
const HEADLESS: u16 = 0x0302;

fn judge(context: &Context<'_>, gpu: &GpuDevice, function: &Function) -> Judgement {
    let name = model(context, gpu.bdf);
    let called = name.as_deref().unwrap_or("this GPU");
    if let Some(shown) = before_kepler(context, gpu.bdf) {
        let summary = format!(
            "{called} is older than Kepler, the first generation with GPUDirect \
                               RDMA"
        );
        return Ok(Finding::fail(summary)
            .evidence(shown.0, shown.1)
            .fix(staging()));
    }
    let facts = context.facts().gpu(gpu.bdf);
    let asked = facts.and_then(|gpu| gpu.gpu_direct_rdma_supported);
    let class = function.identity.class;
    let headless = class.is_some_and(|class| class.subclass() == HEADLESS);
    let finding = match (asked, &name) {
        (Some(true), _) => Finding::pass(format!("{called} supports GPUDirect RDMA")),
        (Some(false), _) => Finding::warn(format!(
            "CUDA reports that {called} does not support GPUDirect \
                                   RDMA"
        ))
        .fix(staging()),
        (None, Some(name)) if name.contains("GeForce") => Finding::warn(format!(
            "{called} is a GeForce, which does not support GPUDirect RDMA"
        ))
        .fix(staging()),
        (None, Some(_)) => Finding::pass(format!("{called} is not a GeForce")),
        (None, None) if headless => Finding::pass(
            "it has no display output, so it is a data \
                                                   centre GPU",
        ),
        (None, None) => Finding::new(
            Verdict::Unknown,
            "its name was not collected, so it may be a GeForce",
        ),
    };
    Ok(match asked {
        Some(is) => finding.evidence(
            "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED",
            u8::from(is),
        ),
        None => finding.evidence("name", called),
    })
}

/// Returns the evidence that a GPU is older than Kepler: its compute capability, else its device ID or the chip that a
/// listing names.
fn before_kepler(context: &Context<'_>, gpu: Bdf) -> Option<(&'static str, String)> {
    let facts = context.facts().gpu(gpu);
    let capability = facts.and_then(|gpu| gpu.compute_capability.clone());
    if let Some(capability) = capability {
        let major: u32 = capability.split('.').next()?.parse().ok()?;
        return (major < 3).then_some(("compute capability", capability));
    }
    let identity = &context.function(gpu)?.identity;
    if let Some(DeviceId(number)) = identity.device {
        return (!is_kepler_or_later(number)).then(|| ("PCI device", format!("{number:04x}")));
    }
    let name = identity.name.as_deref()?;
    let chip = name
        .strip_prefix("NVIDIA Corporation ")?
        .split(' ')
        .next()?;
    let old = [
        "NV", "G7", "G8", "G9", "GT2", "GF1", "MCP", "C5", "C6", "C7",
    ];
    old.iter()
        .any(|begin| chip.starts_with(begin))
        .then(|| ("chip", chip.to_owned()))
}

/// Returns whether a device ID is Kepler or later (PCI ID database): the IDs of GK107, GK110, GK104
/// and GK208 lie between Fermi's; all later chips have higher ones.
const fn is_kepler_or_later(device: u16) -> bool {
    matches!(device, 0x0fc0..=0x0fff | 0x1001..=0x103f | 0x1180..=0x11ff | 0x1280..=u16::MAX)
}

fn staging() -> Fix {
    Fix::user(
        "Stage through host memory",
        "export NCCL_NET_GDR_LEVEL=LOC UCX_IB_GPU_DIRECT_RDMA=no",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    fn called(name: &str) -> MemorySource {
        example::healthy().without(virtual_path::CUDA_DEVICES).file(
            &format!("/proc/driver/nvidia/gpus/{}/information", example::GPUS[0]),
            format!("Model: \t\t {name}\nIRQ:   \t\t 1\n"),
        )
    }

    #[test]
    fn cuda_or_else_the_name_decides() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass]);
        assert_eq!(verdict(&CHECK, &called("NVIDIA RTX 6000 Ada")), Pass);
        assert_eq!(verdict(&CHECK, &called("NVIDIA GeForce RTX 3090")), Warn);
        let refused = cuda_says(0, r#""gpu_direct_rdma_supported":false"#);
        assert_eq!(verdict(&CHECK, &refused), Warn);
    }

    fn listed(name: &str) -> Verdict {
        let text = format!("3b:00.0 3D controller: NVIDIA Corporation {name} (rev a1)\n");
        of_listing(&CHECK, &text).remove(0).verdict
    }

    #[test]
    fn gpudirect_rdma_begins_with_kepler() {
        for old in [
            "GF100GL [Tesla M2050 / M2070]",
            "GF110GL [Tesla M2090] [10de:1091]",
            "GT200GL [Tesla C1060]",
            "GF114 [GeForce GTX 560 Ti] [10de:1200]",
        ] {
            assert_eq!(listed(old), Fail, "{old}");
        }
        for new in [
            "GK107GL [Quadro K2000] [10de:0ffe]",
            "GK110GL [Tesla K20m] [10de:1028]",
            "GK104GL [Tesla K10] [10de:118f]",
            "GM200GL [Tesla M40] [10de:17fd]",
            "GH100 [H100 SXM5 80GB] [10de:2330]",
            "TU104GL [Tesla T4]",
            "Device 2bb5",
        ] {
            assert_ne!(listed(new), Fail, "{new}");
        }
        let fermi = format!(
            "{{\"devices\":[{{\"pci\":\"{}\",\"compute_capability\":\"2.0\"}}]}}",
            example::GPUS[0]
        );
        let node = example::healthy().file(virtual_path::CUDA_DEVICES, fermi);
        assert_eq!(verdict(&CHECK, &node), Fail);
    }

    #[test]
    fn a_display_without_a_name_is_unknown() {
        let at = format!("/sys/bus/pci/devices/{}", example::GPUS[0]);
        let node = example::healthy()
            .without(virtual_path::CUDA_DEVICES)
            .without("/proc/driver/nvidia/gpus")
            .file(&format!("{at}/class"), "0x030000\n")
            .not_collected(&format!("{at}/config"));
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
