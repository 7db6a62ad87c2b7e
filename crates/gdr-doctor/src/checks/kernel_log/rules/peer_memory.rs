//! Rules about messages of ways into GPU memory.

use gdr_node::Datum;
use regex::Captures;

use super::super::rule::{Meaning, Pattern, Rate, Rule, always};
use crate::check::{CheckId, Purpose};
use crate::context::Context;
use crate::finding::Verdict;
use crate::fix::{Action, Fix, Risk};
use crate::reach;

pub(super) const PEERMEM_SYMBOL: Rule = Rule {
    id: CheckId("klog.peermem_symbol"),
    title: "the peer-memory module fits the RDMA stack",
    means: "The peer-memory module registers itself with ib_core by a function that in-box \
            ib_core does not have, and that changes when OFED is installed anew. It then cannot \
            be loaded: \"Invalid argument\".",
    judges: "fail: such a message. info: one, and a peer-memory module is loaded now or every \
             GPU and NIC can do without one by dma-buf. pass: none. unknown: the log may not be \
             read.",
    sources: &[
        "open-gpu-kernel-modules: kernel-open/nvidia-peermem/nvidia-peermem.c",
        "https://github.com/Mellanox/nv_peer_memory/issues/63",
    ],
    purposes: Purpose::RDMA,
    symptom_of: &[CheckId("peermem.symbol"), CheckId("peermem.loaded")],
    patterns: &[Pattern {
        expression: r"(?:nvidia.peermem|nv_peer_mem): (?:Unknown symbol|disagrees about version of symbol) ib_(?:un)?register_peer_memory_client",
        means: |_| {
            Meaning::new(
                Verdict::Fail,
                "the peer-memory module does not fit the RDMA stack and was not loaded",
            )
            .fix(Fix::manual(
                "Do without it",
                "use dma-buf: the open kernel modules of the driver from 515 on, a kernel from \
                 5.12 on",
            ))
            .fix(
                Fix::now(
                    "Build it against the RDMA stack that is installed",
                    Action::Command {
                        line: "dkms autoinstall --force   # or reinstall the driver after OFED"
                            .into(),
                    },
                )
                .risk(Risk::Medium, "the driver has to be loaded anew"),
            )
        },
    }],
    rate: Rate::ONCE,
    window: 60.0,
    on_the_way_only: false,
    unless: can_do_without,
};

pub(super) const PEERMEM_CONTEXT: Rule = Rule {
    id: CheckId("klog.peermem_context"),
    title: "the peer-memory module frees what it registered",
    means: "Old peer-memory modules race when a registration ends together with its program: \
            they log \"invalid context\" over and over, and may leave pages pinned.",
    judges: "warn: three or more within a minute. info: fewer. pass: none. unknown: the log \
             may not be read.",
    sources: &[
        "https://github.com/Mellanox/nv_peer_memory/issues/120",
        "https://github.com/leptonai/gpud (peermem matcher)",
    ],
    purposes: Purpose::RDMA,
    symptom_of: &[CheckId("peermem.age")],
    patterns: &[Pattern {
        expression: r"(?:nvidia.peermem|nv_peer_mem).*(?:invalid context|invalid page_table)",
        means: |_| {
            Meaning::new(
                Verdict::Warn,
                "the peer-memory module found its registrations gone",
            )
            .fix(Fix::manual(
                "Use a driver without the race",
                "bring the driver to 510 or later (470.141 or later of the old branch), or use \
                 dma-buf",
            ))
        },
    }],
    rate: Rate {
        events: 3,
        seconds: 60.0,
    },
    window: 0.0,
    on_the_way_only: false,
    unless: always,
};

pub(super) const DMABUF_TOPOLOGY: Rule = Rule {
    id: CheckId("klog.dmabuf_topology"),
    title: "no chipset has kept GPU memory from being shared by dma-buf",
    means: "The driver refuses to share GPU memory with a NIC where they have no common switch \
            and the chipset is not known to forward traffic between its ports.",
    judges: "fail: such a message. pass: none. unknown: the log may not be read.",
    sources: &["open-gpu-kernel-modules: kernel-open/nvidia/nv-dmabuf.c"],
    purposes: Purpose::RDMA,
    symptom_of: &[CheckId("topo.pair"), CheckId("topo.p2p_chipset")],
    patterns: &[Pattern {
        expression: r"NVRM: dma-buf attach failed: PCI topology not supported for dma-buf",
        means: |_| {
            Meaning::new(
                Verdict::Fail,
                "the driver does not share GPU memory over this chipset",
            )
            .fix(Fix::manual(
                "Put GPU and NIC below one switch",
                "move the NIC to a slot below the same PCI Express switch as the GPU",
            ))
            .fix(
                Fix::at_boot(
                    "Override the driver's list of chipsets",
                    Action::WriteFile {
                        path: "/etc/modprobe.d/nvidia-grdma.conf".into(),
                        content: "options nvidia \
                                  NVreg_RegistryDwords=\"GrdmaPciTopoCheckOverride=1\"\n"
                            .into(),
                    },
                )
                .risk(
                    Risk::High,
                    "a chipset that loses traffic between its ports corrupts data silently",
                ),
            )
        },
    }],
    rate: Rate::ONCE,
    window: 60.0,
    on_the_way_only: false,
    unless: always,
};

pub(super) const DMABUF_FORCE_PCIE: Rule = Rule {
    id: CheckId("klog.dmabuf_force_pcie"),
    title: "dma-buf over PCI Express has the IOMMU groups that it needs",
    means: "On platforms where a NIC has a path of its own to the GPU, the driver shares memory \
            over it only if both are in one IOMMU group.",
    judges: "fail: such a message. pass: none. unknown: the log may not be read.",
    sources: &[
        "open-gpu-kernel-modules: kernel-open/nvidia/nv-dmabuf.c",
        "rdma-core kernel-boot/rdma_topo",
    ],
    purposes: Purpose::RDMA,
    symptom_of: &[CheckId("dmabuf.force_pcie"), CheckId("acs.directnic")],
    patterns: &[Pattern {
        expression: r"NVRM: dma-buf attach failed: topology not supported for mapping type FORCE_PCIE",
        means: |_| {
            Meaning::new(
                Verdict::Fail,
                "GPU and NIC are in different IOMMU groups, so that memory is not shared",
            )
            .fix(
                Fix::at_boot(
                    "Set ACS as the platform needs it",
                    Action::Command {
                        line: "rdma_topo write-grub-acs".into(),
                    },
                )
                .risk(Risk::High, "isolation between devices changes"),
            )
        },
    }],
    rate: Rate::ONCE,
    window: 60.0,
    on_the_way_only: false,
    unless: always,
};

pub(super) const DMABUF_STRUCT_PAGE: Rule = Rule {
    id: CheckId("klog.dmabuf_struct_page"),
    title: "the NIC's driver takes GPU memory by dma-buf",
    means: "A NIC's driver must say that it can reach memory of other devices. One that does \
            not is too old for dma-buf of GPUs.",
    judges: "fail: such a message. pass: none. unknown: the log may not be read.",
    sources: &[
        "open-gpu-kernel-modules: kernel-open/nvidia/nv-dmabuf.c",
        "Linux include/linux/dma-buf.h: allow_peer2peer",
    ],
    purposes: Purpose::RDMA,
    symptom_of: &[CheckId("dmabuf.nic")],
    patterns: &[Pattern {
        expression: r"NVRM: dma-buf attach failed: importer unable to handle MMIO without struct page",
        means: |_| {
            Meaning::new(
                Verdict::Fail,
                "the NIC's driver cannot take memory of other devices",
            )
            .fix(Fix::manual(
                "Use a newer driver of the NIC",
                "bring the kernel to 5.12 or later, or install a current DOCA-OFED",
            ))
        },
    }],
    rate: Rate::ONCE,
    window: 60.0,
    on_the_way_only: false,
    unless: always,
};

pub(super) const UMEM: Rule = Rule {
    id: CheckId("klog.umem"),
    title: "no registration of memory has failed in the NIC's driver",
    means: "The NIC's driver could not pin what a program registered. For GPU memory that \
            means that no peer-memory module took it, or that the window to the GPU's memory is \
            full.",
    judges: "fail: such a message. pass: none. unknown: the log may not be read.",
    sources: &[
        "Linux drivers/infiniband/hw/mlx5/mr.c",
        "https://github.com/Mellanox/nv_peer_memory/issues/27",
    ],
    purposes: Purpose::RDMA,
    symptom_of: &[
        CheckId("peermem.loaded"),
        CheckId("peermem.registered"),
        CheckId("bar1.size"),
        CheckId("memlock.self"),
    ],
    patterns: &[Pattern {
        expression: r"mr_umem_get.*umem get failed \((?P<errno>-[0-9]+)\)",
        means: umem,
    }],
    rate: Rate::ONCE,
    window: 10.0,
    on_the_way_only: false,
    unless: always,
};

fn umem(captures: &Captures<'_>) -> Meaning {
    // errno(3): 12 is ENOMEM, 14 EFAULT.
    match &captures["errno"] {
        "-12" => Meaning::new(
            Verdict::Fail,
            "registering memory failed (-12): no more may be locked",
        )
        .fix(Fix::manual(
            "Lift the limit of locked memory",
            "see memlock.self and memlock.daemons",
        )),
        errno => Meaning::new(
            Verdict::Fail,
            format!(
                "registering memory failed ({errno}): no peer-memory module took GPU memory, or \
                 the window to it is full"
            ),
        )
        .fix(Fix::now(
            "Load the peer-memory module",
            Action::LoadModule {
                module: "nvidia_peermem".into(),
            },
        ))
        .fix(Fix::user(
            "Register by dma-buf",
            "# perftest: --use_cuda_dmabuf; NCCL and UCX choose it by themselves where they can",
        )),
    }
}

/// Why a peer-memory module that was not loaded no longer matters.
fn can_do_without(context: &Context<'_>) -> Option<&'static str> {
    if reach::peer_module(context).is_present() {
        return Some("one is loaded now");
    }
    (reach::dmabuf_everywhere(context) == Datum::Present(true)).then_some("dma-buf does without it")
}
