//! Rules about messages of ways into GPU memory.

use regex::Captures;

use super::super::CHECK;
use super::super::expressions;
use super::super::rule::{Pattern, Rate, Rule};
use crate::check::{Check, CheckId, Workload};
use crate::context::Context;
use crate::finding::Finding;
use crate::fix::{Action, Fix, Risk};
use crate::gpudirect_support;
use crate::runner::Scope;

pub(in crate::checks::kernel_log) const PEERMEM_SYMBOL: Check = Check {
    id: CheckId("klog.peermem_symbol"),
    title: "the peer-memory module fits the RDMA stack",
    why: "The peer-memory module registers itself with ib_core by a function that in-box ib_core \
          does not have, and that changes when OFED is installed again. It then cannot be loaded: \
          \"Invalid argument\".",
    criteria: "fail: such a message. info: one, and a peer-memory module is loaded now or every \
          GPU and NIC can do without one by dma-buf. pass: none. unknown: the log may not be read.",
    sources: &[
        "open-gpu-kernel-modules: kernel-open/nvidia-peermem/nvidia-peermem.c",
        "https://github.com/Mellanox/nv_peer_memory/issues/63",
    ],
    workloads: Workload::RDMA,
    symptom_of: &["peermem.symbol", "peermem.loaded"],
    scope: Scope::Log(&Rule {
        patterns: &[Pattern {
            expression: expressions::PEERMEM_SYMBOL,
            why: |_| {
                Finding::fail(
                    "the peer-memory module does not fit the RDMA stack and was not loaded",
                )
                .fix(Fix::manual(
                    "Do without it",
                    "use dma-buf: the open kernel modules of the driver from 515 on, a kernel from \
                 5.12 on",
                ))
                .fix(
                    Fix::run(
                        "Build it against the RDMA stack that is installed",
                        "dkms autoinstall --force   # or reinstall the driver after OFED",
                    )
                    .risk(Risk::Medium, "the driver has to be loaded again"),
                )
            },
        }],
        unless: can_do_without,
        ..Rule::DEFAULT
    }),
    ..CHECK
};

pub(in crate::checks::kernel_log) const DRIVER_SYMBOL: Check = Check {
    id: CheckId("klog.driver_symbol"),
    title: "modules that use the NVIDIA driver were built against the one that is loaded",
    why: "gdrdrv, nvidia_peermem and nvidia_fs use functions of the driver whose versions change \
          with it. They are refused after the driver was updated, and before it is loaded.",
    criteria: "warn: such a message. pass: none. unknown: the log may not be read.",
    sources: &[
        "https://github.com/NVIDIA/gdrcopy/issues/13",
        "https://github.com/NVIDIA/gds-nvidia-fs/issues/34",
    ],
    symptom_of: &["gdrdrv", "peermem.loaded"],
    scope: Scope::Log(&Rule {
        patterns: &[Pattern {
            expression: expressions::DRIVER_SYMBOL,
            why: |captures| {
                let module = &captures["module"];
                Finding::warn(format!(
                    "{module} does not fit the NVIDIA driver and was not loaded"
                ))
                .fix(
                    Fix::run(
                        "Build it against the driver that is loaded",
                        "dkms autoinstall --force   # then modprobe it",
                    )
                    .risk(Risk::Low, "the module is loaded again"),
                )
            },
        }],
        ..Rule::DEFAULT
    }),
    ..CHECK
};

pub(in crate::checks::kernel_log) const PEERMEM_CONTEXT: Check = Check {
    id: CheckId("klog.peermem_context"),
    title: "the peer-memory module frees what it registered",
    why: "Old peer-memory modules race when a registration ends together with its program: they \
          log \"invalid context\" over and over, and may leave pages pinned.",
    criteria: "warn: three or more within a minute. info: fewer. pass: none. unknown: the log may \
          not be read.",
    sources: &[
        "https://github.com/Mellanox/nv_peer_memory/issues/120",
        "https://github.com/leptonai/gpud (peermem matcher)",
    ],
    workloads: Workload::RDMA,
    symptom_of: &["peermem.age"],
    scope: Scope::Log(&Rule {
        patterns: &[Pattern {
            expression: expressions::PEERMEM_CONTEXT,
            why: |_| {
                Finding::warn("the peer-memory module found its registrations gone",
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
        ..Rule::DEFAULT
    }),
    ..CHECK
};

pub(in crate::checks::kernel_log) const DMABUF_TOPOLOGY: Check = Check {
    id: CheckId("klog.dmabuf_topology"),
    title: "no chipset has kept GPU memory from being shared by dma-buf",
    why: "The driver refuses to share GPU memory with a NIC where they have no common switch and \
          the chipset is not known to forward traffic between its ports.",
    criteria: "fail: such a message. pass: none. unknown: the log may not be read.",
    sources: &["open-gpu-kernel-modules: kernel-open/nvidia/nv-dmabuf.c"],
    workloads: Workload::RDMA,
    symptom_of: &["topo.pair", "topo.p2p_chipset"],
    scope: Scope::Log(&Rule {
        patterns: &[Pattern {
            expression: expressions::DMABUF_TOPOLOGY,
            why: |_| {
                Finding::fail("the driver does not share GPU memory over this chipset")
                    .fix(Fix::manual(
                        "Put GPU and NIC below one switch",
                        "move the NIC to a slot below the same PCI Express switch as the GPU",
                    ))
                    .fix(
                        Fix::at_boot(
                            "Override the driver's list of chipsets",
                            Action::file(
                                "/etc/modprobe.d/nvidia-grdma.conf",
                                "options nvidia \
                                  NVreg_RegistryDwords=\"GrdmaPciTopoCheckOverride=1\"\n",
                            ),
                        )
                        .risk(
                            Risk::High,
                            "a chipset that loses traffic between its ports corrupts data silently",
                        ),
                    )
            },
        }],
        ..Rule::DEFAULT
    }),
    ..CHECK
};

pub(in crate::checks::kernel_log) const DMABUF_FORCE_PCIE: Check = Check {
    id: CheckId("klog.dmabuf_force_pcie"),
    title: "dma-buf over PCI Express has the IOMMU groups that it needs",
    why: "On platforms where a NIC has a path of its own to the GPU, the driver shares memory over \
          it only if both are in one IOMMU group.",
    criteria: "fail: such a message. pass: none. unknown: the log may not be read.",
    sources: &[
        "open-gpu-kernel-modules: kernel-open/nvidia/nv-dmabuf.c",
        "rdma-core kernel-boot/rdma_topo",
    ],
    workloads: Workload::RDMA,
    symptom_of: &["dmabuf.force_pcie", "acs.directnic"],
    scope: Scope::Log(&Rule {
        patterns: &[Pattern {
            expression: expressions::DMABUF_FORCE_PCIE,
            why: |_| {
                Finding::fail(
                    "GPU and NIC are in different IOMMU groups, so that memory is not shared",
                )
                .fix(
                    Fix::at_boot(
                        "Set ACS as the platform needs it",
                        Action::run("rdma_topo write-grub-acs"),
                    )
                    .risk(Risk::High, "isolation between devices changes"),
                )
            },
        }],
        ..Rule::DEFAULT
    }),
    ..CHECK
};

pub(in crate::checks::kernel_log) const DMABUF_STRUCT_PAGE: Check = Check {
    id: CheckId("klog.dmabuf_struct_page"),
    title: "the NIC's driver takes GPU memory by dma-buf",
    why: "A NIC's driver must say that it can reach memory of other devices. One that does not is \
          too old for dma-buf of GPUs.",
    criteria: "fail: such a message. pass: none. unknown: the log may not be read.",
    sources: &[
        "open-gpu-kernel-modules: kernel-open/nvidia/nv-dmabuf.c",
        "Linux include/linux/dma-buf.h: allow_peer2peer",
    ],
    workloads: Workload::RDMA,
    symptom_of: &["dmabuf.nic"],
    scope: Scope::Log(&Rule {
        patterns: &[Pattern {
            expression: expressions::DMABUF_STRUCT_PAGE,
            why: |_| {
                Finding::fail("the NIC's driver cannot take memory of other devices").fix(
                    Fix::manual(
                        "Use a newer driver of the NIC",
                        "bring the kernel to 5.12 or later, or install a current DOCA-OFED",
                    ),
                )
            },
        }],
        ..Rule::DEFAULT
    }),
    ..CHECK
};

pub(in crate::checks::kernel_log) const UMEM: Check = Check {
    id: CheckId("klog.umem"),
    title: "no registration of memory has failed in the NIC's driver",
    why: "The NIC's driver could not pin what a program registered. For GPU memory that means that \
          no peer-memory module took it, or that the window to the GPU's memory is full.",
    criteria: "fail: such a message. pass: none. unknown: the log may not be read.",
    sources: &[
        "Linux drivers/infiniband/hw/mlx5/mr.c",
        "https://github.com/Mellanox/nv_peer_memory/issues/27",
    ],
    workloads: Workload::RDMA,
    symptom_of: &[
        "peermem.loaded",
        "peermem.registered",
        "bar1.size",
        "memlock.self",
    ],
    scope: Scope::Log(&Rule {
        patterns: &[Pattern {
            expression: expressions::UMEM,
            why: umem,
        }],
        window: 10.0,
        ..Rule::DEFAULT
    }),
    ..CHECK
};

fn umem(captures: &Captures<'_>) -> Finding {
    // errno(3): 12 is ENOMEM, 14 EFAULT.
    match &captures["errno"] {
        "-12" => Finding::fail("registering memory failed (-12): no more may be locked").fix(
            Fix::manual(
                "Lift the limit of locked memory",
                "see memlock.self and memlock.daemons",
            ),
        ),
        errno => Finding::fail(format!(
            "registering memory failed ({errno}): no peer-memory module took GPU memory, or \
                 the window to it is full"
        ))
        .fix(Fix::now(
            "Load the peer-memory module",
            Action::load("nvidia_peermem"),
        ))
        .fix(Fix::user(
            "Register by dma-buf",
            "# perftest: --use_cuda_dmabuf; NCCL and UCX choose it by themselves where they can",
        )),
    }
}

/// Why a peer-memory module that was not loaded no longer matters.
fn can_do_without(context: &Context<'_>) -> Option<&'static str> {
    if gpudirect_support::peer_module(context).is_ok() {
        return Some("one is loaded now");
    }
    (gpudirect_support::dmabuf_everywhere(context) == Ok(true)).then_some("dma-buf does without it")
}
