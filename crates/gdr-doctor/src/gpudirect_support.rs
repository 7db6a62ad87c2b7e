//! The two methods of access to GPU memory by a NIC, dma-buf and a peer-memory module, and whether
//! a node supports them.

use gdr_node::pci::{DeviceId, VendorId};
use gdr_node::{Absence, Bdf, Datum, DatumExt, DmaBufImport, Source, virtual_path};

use crate::context::{Context, Nic, Pair};
use crate::facts::Facts;
use crate::finding::{Evidence, Finding};
use crate::version::Flavour;

/// The first driver whose open module exports dma-buf.
pub(crate) const DMABUF_DRIVER: [u32; 1] = [515];
/// The first kernel whose RDMA stack imports dma-buf (`ib_umem_dmabuf_get`).
pub(crate) const DMABUF_KERNEL: [u32; 2] = [5, 12];

/// Whether something is supported, a clause about it, and the evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Support {
    /// Whether it is supported.
    pub(crate) is: Datum<bool>,
    /// A clause that says why.
    pub(crate) why: String,
    evidence: Vec<Evidence>,
}

impl Support {
    fn new(is: Datum<bool>, why: impl Into<String>) -> Self {
        Self {
            is,
            why: why.into(),
            evidence: Vec::new(),
        }
    }

    fn evidence(mut self, source: impl Into<String>, value: impl Into<String>) -> Self {
        self.evidence.push(Evidence {
            source: source.into(),
            value: value.into(),
        });
        self
    }

    /// Returns whether it is known to be unsupported.
    pub(crate) fn no(&self) -> bool {
        self.is == Ok(false)
    }

    /// Adds the evidence to a finding.
    pub(crate) fn onto(&self, mut finding: Finding) -> Finding {
        finding.evidence.extend(self.evidence.iter().cloned());
        finding
    }
}

/// Returns whether a GPU exports its memory as dma-buf: by the CUDA driver's report, else by the versions of the driver
/// and the kernel.
pub(crate) fn dmabuf_of_gpu(context: &Context<'_>, gpu: Bdf) -> Support {
    let facts = context.facts();
    if let Some(is) = facts.gpu(gpu).and_then(|facts| facts.dma_buf_supported) {
        let why = if is {
            "the CUDA driver reports support for dma-buf"
        } else {
            "the CUDA driver reports no support for dma-buf"
        };
        return Support::new(Ok(is), why).evidence(
            "CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED",
            u8::from(is).to_string(),
        );
    }
    dmabuf_by_version(context.source, facts)
}

/// Returns whether the driver and the kernel support dma-buf, by their versions: the open modules do from 515 on, on a
/// kernel that supports it.
pub(crate) fn dmabuf_by_version(source: &dyn Source, facts: &Facts) -> Support {
    let no = |why: String| Support::new(Ok(false), why);
    let driver = match &facts.nvidia {
        Ok(driver) => driver,
        Err(Absence::Missing) => return no("the NVIDIA driver is not loaded".to_owned()),
        absent => {
            let absence = absent.by_ref().map(|_| false);
            return Support::new(absence, "the NVIDIA driver's version");
        }
    };
    let of_driver = |answer: Support| {
        answer.evidence(
            "/proc/driver/nvidia/version",
            match driver.flavour {
                Ok(flavour) => format!("{flavour} module, version {driver}"),
                Err(_) => format!("version {driver}"),
            },
        )
    };
    if driver.flavour == Ok(Flavour::Proprietary) {
        return of_driver(no(
            "the proprietary NVIDIA modules do not export dma-buf".to_owned()
        ));
    }
    if !driver.version.is_at_least(&DMABUF_DRIVER) {
        return of_driver(no(format!(
            "driver {driver} is older than 515, the first that exports dma-buf"
        )));
    }
    if let Err(absence) = driver.flavour {
        return of_driver(Support::new(
            Err(absence),
            "the flavour of NVIDIA's modules",
        ));
    }
    let kernel = match &facts.kernel {
        Ok(kernel) => kernel,
        absent => {
            let absence = absent.by_ref().map(|_| false);
            return of_driver(Support::new(absence, "the kernel's version"));
        }
    };
    let of_kernel =
        |answer: Support| answer.evidence("/proc/sys/kernel/osrelease", kernel.to_string());
    if !kernel.is_at_least(&DMABUF_KERNEL) {
        return of_kernel(no(format!(
            "kernel {kernel} is older than 5.12, the first whose RDMA stack imports dma-buf"
        )));
    }
    if let Ok(config) = source.text(virtual_path::KERNEL_CONFIG) {
        let lacks = ["CONFIG_DMA_SHARED_BUFFER", "CONFIG_PCI_P2PDMA"]
            .into_iter()
            .find(|name| !config.lines().any(|line| line == format!("{name}=y")));
        if let Some(lacks) = lacks {
            return no(format!("the kernel was built without {lacks}"))
                .evidence("the kernel's configuration", format!("{lacks} is not set"));
        }
    }
    of_kernel(of_driver(Support::new(
        Ok(true),
        format!("the open modules {driver} export dma-buf on kernel {kernel}"),
    )))
}

/// Returns whether a NIC's driver imports dma-buf, by a trial with libibverbs. Without a trial, an old kernel shows
/// that it does not.
pub(crate) fn dmabuf_of_nic(context: &Context<'_>, nic: &Nic<'_>) -> Support {
    let facts = context.facts();
    let asked = (facts.verbs.as_ref().ok())
        .and_then(|verbs| verbs.device(&nic.name))
        .and_then(|device| device.dma_buf.as_ref());
    let source = "ibv_reg_dmabuf_mr with a bad descriptor";
    match asked {
        Some(DmaBufImport::Supported) => {
            return Support::new(Ok(true), "its driver imports dma-buf")
                .evidence(source, "supported");
        }
        Some(DmaBufImport::Unsupported) => {
            return Support::new(Ok(false), "its driver does not import dma-buf")
                .evidence(source, "unsupported");
        }
        _ => {}
    }
    let old = (facts.kernel.as_ref().ok()).filter(|kernel| !kernel.is_at_least(&DMABUF_KERNEL));
    // MLNX_OFED has a newer RDMA stack for older kernels.
    let ofed = facts.module("mlx_compat").is_ok();
    if let (Some(kernel), false) = (old, ofed) {
        return Support::new(
            Ok(false),
            format!(
                "kernel {kernel} is older than 5.12, the first whose RDMA stack imports dma-buf"
            ),
        )
        .evidence("/proc/sys/kernel/osrelease", kernel.to_string());
    }
    let answer = Support::new(
        Err(Absence::NotCollected),
        "whether its driver imports dma-buf",
    );
    match asked {
        Some(DmaBufImport::Unknown(why)) => answer.evidence(source, why),
        _ => answer,
    }
}

/// Returns whether a pair of GPU and NIC supports dma-buf.
pub(crate) fn dmabuf_of_pair(context: &Context<'_>, pair: &Pair<'_>) -> Datum<bool> {
    let gpu = dmabuf_of_gpu(context, pair.gpu.bdf);
    let nic = dmabuf_of_nic(context, &pair.nic);
    if gpu.no() || nic.no() {
        return Ok(false);
    }
    gpu.is.and(nic.is)
}

/// Returns whether every pair that a job would use supports dma-buf; [`Absence::Missing`] if there
/// is no pair.
pub(crate) fn dmabuf_everywhere(context: &Context<'_>) -> Datum<bool> {
    let mut everywhere = Err(Absence::Missing);
    for pair in context.nearest_pairs() {
        match dmabuf_of_pair(context, pair) {
            Ok(false) => return Ok(false),
            Ok(true) if everywhere == Err(Absence::Missing) => {
                everywhere = Ok(true);
            }
            Ok(true) => {}
            absent => everywhere = absent,
        }
    }
    everywhere
}

/// Returns whether the peer-memory module of the driver may free pages that the driver has taken
/// back: before branch 510, but for branch 470, whose late releases have the fix.
pub(crate) fn frees_twice(context: &Context<'_>) -> Datum<bool> {
    let driver = context.facts().nvidia.by_ref()?;
    let branch = driver.version.0.first().copied().unwrap_or_default();
    let has_fix = branch >= 510 || driver.version.is_at_least(&[470, 141]) && branch == 470;
    Ok(!has_fix)
}

/// The peer-memory modules, the current one first.
pub(crate) const PEER_MODULES: [&str; 2] = ["nvidia_peermem", "nv_peer_mem"];

/// Returns the loaded peer-memory module; [`Absence::Missing`] if none is loaded.
pub(crate) fn peer_module(context: &Context<'_>) -> Datum<&'static str> {
    let facts = context.facts();
    for name in PEER_MODULES {
        let loaded = facts.module(name).is_ok()
            || context
                .text(&format!("/sys/module/{name}/initstate"))
                .is_ok();
        if loaded {
            return Ok(name);
        }
    }
    facts.modules.by_ref().and(Err(Absence::Missing))
}

/// The DMA function of a ConnectX (rdma-core `kernel-boot/rdma_topo`).
const DMA_FUNCTION: DeviceId = DeviceId(0x2100);

/// Returns the separate functions by which ConnectX-8 and later access GPU memory.
pub(crate) fn dma_functions(context: &Context<'_>) -> Vec<Bdf> {
    let tree = context.inventory.tree.as_ref().ok();
    tree.into_iter()
        .flat_map(|tree| tree.functions())
        .filter(|function| {
            function.identity.vendor == Some(VendorId::MELLANOX)
                && function.identity.device == Some(DMA_FUNCTION)
        })
        .map(|function| function.bdf)
        .collect()
}

/// Returns the name of a GPU by CUDA, the driver or the tool that listed it.
pub(crate) fn model(context: &Context<'_>, gpu: Bdf) -> Option<String> {
    let asked = context.facts().gpu(gpu).and_then(|gpu| gpu.name.clone());
    let driver = || {
        let path = format!("/proc/driver/nvidia/gpus/{gpu}/information");
        let text = context.text(&path).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
        Some(line.trim().to_owned())
    };
    // A listing names an unknown device `Device 2bb5`.
    let listed = || {
        let name = context.function(gpu)?.identity.name.clone()?;
        (!name.contains(" Device ")).then_some(name)
    };
    asked.or_else(driver).or_else(listed)
}

/// Returns the model of a NIC by its number, else by a listing, its driver, its IDs.
pub(crate) fn nic_model(context: &Context<'_>, nic: &Nic<'_>) -> Option<String> {
    let identity = context.function(nic.bdf).map(|function| &function.identity);
    let listed = || {
        let name = identity?.name.clone()?;
        (!name.contains(" Device ")).then_some(name)
    };
    let driver = || {
        let path = format!("/sys/class/infiniband/{}/hca_type", nic.name);
        let kind = context.text(&path).ok()?;
        (!kind.is_empty()).then_some(kind)
    };
    let known = || Some(identity?.model()?.to_owned());
    let numbers = || Some(format!("{}:{}", identity?.vendor?, identity?.device?));
    known().or_else(listed).or_else(driver).or_else(numbers)
}

#[cfg(test)]
mod tests {
    use gdr_node::{Inventory, MemorySource, example};

    use super::*;

    fn of_gpu(node: &MemorySource) -> Support {
        let inventory = Inventory::read(node);
        dmabuf_of_gpu(
            &Context::new(node, &inventory),
            example::GPUS[0].parse().unwrap(),
        )
    }

    fn unasked() -> MemorySource {
        example::healthy().without(virtual_path::CUDA_DEVICES)
    }

    #[test]
    fn without_cuda_the_flavour_the_version_and_the_kernel_decide() {
        assert_eq!(of_gpu(&unasked()).is, Ok(true));
        let version = "/proc/driver/nvidia/version";
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue\n";
        assert!(of_gpu(&unasked().file(version, closed)).no());
        let old = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  510.1.2  Release\n";
        assert!(of_gpu(&unasked().file(version, old)).no());
        assert!(of_gpu(&unasked().without(version)).no());
        let kernel = unasked().file("/proc/sys/kernel/osrelease", "5.4.0-200-generic\n");
        assert!(of_gpu(&kernel).no());
        let config = unasked().file(virtual_path::KERNEL_CONFIG, "CONFIG_DMA_SHARED_BUFFER=y\n");
        assert!(of_gpu(&config).why.contains("CONFIG_PCI_P2PDMA"));
        assert_eq!(
            of_gpu(&MemorySource::partial()).is,
            Err(Absence::NotCollected)
        );
    }

    #[test]
    fn the_report_of_cuda_overrides_the_rule() {
        let says_no = example::healthy().file(
            virtual_path::CUDA_DEVICES,
            format!(
                "{{\"devices\":[{{\"pci\":\"{}\",\"dma_buf_supported\":false}}]}}",
                example::GPUS[0]
            ),
        );
        assert!(of_gpu(&says_no).no());
    }

    #[test]
    fn one_nic_without_support_means_not_everywhere() {
        let everywhere = |node: &MemorySource| {
            let inventory = Inventory::read(node);
            dmabuf_everywhere(&Context::new(node, &inventory))
        };
        assert_eq!(everywhere(&example::healthy()), Ok(true));
        let unasked = example::healthy().without(virtual_path::VERBS_DEVICES);
        assert_eq!(everywhere(&unasked), Err(Absence::NotCollected));
        let old = unasked
            .file("/proc/sys/kernel/osrelease", "5.4.0\n")
            .file("/proc/modules", "");
        assert_eq!(everywhere(&old), Ok(false));
        assert_eq!(everywhere(&MemorySource::new()), Err(Absence::Missing));
    }
}
