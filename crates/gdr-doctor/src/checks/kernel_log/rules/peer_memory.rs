//! Rules about messages of dma-buf and peer-memory modules.

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
    title: "the peer-memory module matches the RDMA stack",
    why: "The peer-memory module registers with ib_core by a function that the kernel's own \
          ib_core does not have and that changes when OFED is reinstalled. Loading the module then \
          fails with \"Invalid argument\".",
    criteria: "fail: such a message. info: such a message, but a peer-memory module is loaded now, \
               or dma-buf works between all GPUs and NICs. pass: none. unknown: the log may not be \
               read.",
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
                    "the peer-memory module does not match the RDMA stack and was not loaded",
                )
                .fix(Fix::manual(
                    "Use dma-buf instead",
                    "install the open kernel modules of driver 515 or later on kernel 5.12 or \
                     later",
                ))
                .fix(
                    Fix::run(
                        "Rebuild it against the installed RDMA stack",
                        "dkms autoinstall --force   # or reinstall the driver after OFED",
                    )
                    .risk(Risk::Medium, "the driver must be reloaded"),
                )
            },
        }],
        unless: not_needed,
        ..Rule::DEFAULT
    }),
    ..CHECK
};

pub(in crate::checks::kernel_log) const DRIVER_SYMBOL: Check = Check {
    id: CheckId("klog.driver_symbol"),
    title: "modules that use the NVIDIA driver were built against the loaded one",
    why: "gdrdrv, nvidia_peermem and nvidia_fs use functions of the driver whose symbol versions \
          change with it. Loading them fails after an update of the driver, and before the driver \
          is loaded.",
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
                    "{module} does not match the NVIDIA driver and was not loaded"
                ))
                .fix(
                    Fix::run(
                        "Rebuild it against the loaded driver",
                        "dkms autoinstall --force   # then modprobe it",
                    )
                    .risk(Risk::Low, "the module is reloaded"),
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
    why: "Before branch 510 peer-memory modules have a race between the end of a registration and \
          the end of its program: they log \"invalid context\" many times and may leave pages \
          pinned. Later ones log the same when they skip a callback that came late, which is \
          harmless, until 560.35.03.",
    criteria: "warn: three or more within a minute, of a driver with the race. info: fewer, or of \
               another driver or one that is not known. pass: none. unknown: the log may not be \
               read.",
    sources: &[
        "https://github.com/Mellanox/nv_peer_memory/issues/120 (also its comment of 2024-11-15)",
        "https://github.com/leptonai/gpud (peermem matcher)",
    ],
    workloads: Workload::RDMA,
    symptom_of: &["peermem.age"],
    scope: Scope::Log(&Rule {
        patterns: &[Pattern {
            expression: expressions::PEERMEM_CONTEXT,
            why: |_| {
                Finding::warn(
                    "the peer-memory module found that its registrations were already freed",
                )
                .fix(Fix::manual(
                    "Use a driver without the race",
                    "install a current driver, or use dma-buf",
                ))
            },
        }],
        rate: Rate {
            events: 3,
            seconds: 60.0,
        },
        window: 0.0,
        unless: |context| match gpudirect_support::frees_twice(context) {
            Ok(true) => None,
            Ok(false) => Some("harmless with this driver, and gone from 560.35.03 on"),
            Err(_) => Some("harmless unless the driver is older than 510"),
        },
        ..Rule::DEFAULT
    }),
    ..CHECK
};

pub(in crate::checks::kernel_log) const DMABUF_TOPOLOGY: Check = Check {
    id: CheckId("klog.dmabuf_topology"),
    title: "the chipset allows sharing of GPU memory by dma-buf",
    why: "The driver refuses to share GPU memory with a NIC if they have no common switch and the \
          chipset is not known to forward traffic between its ports.",
    criteria: "fail: such a message. pass: none. unknown: the log may not be read.",
    sources: &["open-gpu-kernel-modules: kernel-open/nvidia/nv-dmabuf.c"],
    workloads: Workload::RDMA,
    symptom_of: &["topo.pair", "topo.p2p_chipset"],
    scope: Scope::Log(&Rule {
        patterns: &[Pattern {
            expression: expressions::DMABUF_TOPOLOGY,
            why: |_| {
                Finding::fail("the driver refuses to share GPU memory through this chipset")
                    .fix(Fix::hardware(
                        "Put the GPU and the NIC below one switch",
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
    title: "GPUs and NICs are in the IOMMU groups that dma-buf over PCI Express needs",
    why: "On platforms with a separate path from a NIC to the GPU, the driver shares memory \
          through it only if both are in one IOMMU group.",
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
                    "GPU and NIC are in different IOMMU groups: the driver does not share memory",
                )
                .fix(
                    Fix::at_boot(
                        "Set the ACS bits that the platform needs",
                        Action::run("rdma_topo write-grub-acs"),
                    )
                    .risk(Risk::High, "the isolation between devices changes"),
                )
            },
        }],
        ..Rule::DEFAULT
    }),
    ..CHECK
};

pub(in crate::checks::kernel_log) const DMABUF_STRUCT_PAGE: Check = Check {
    id: CheckId("klog.dmabuf_struct_page"),
    title: "the NIC's driver imports GPU memory by dma-buf",
    why: "A NIC's driver must declare that it supports memory of other devices. One that does not \
          is too old for dma-buf of GPUs.",
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
                Finding::fail("the NIC's driver does not support memory of other devices").fix(
                    Fix::manual(
                        "Use a newer driver of the NIC",
                        "install kernel 5.12 or later, or a current DOCA-OFED",
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
    title: "no memory registration has failed in the NIC's driver",
    why: "The NIC's driver could not pin the memory that a program registered. For GPU memory, no \
          peer-memory module claimed the address, or BAR1 is full.",
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
        "-12" => Finding::fail(
            "registering memory failed (-12): the limit of locked memory is \
                                reached",
        )
        .fix(Fix::manual(
            "Raise the limit of locked memory",
            "see memlock.self and memlock.daemons",
        )),
        errno => Finding::fail(format!(
            "registering memory failed ({errno}): no peer-memory module claimed the GPU memory, or \
             BAR1 is full"
        ))
        .fix(Fix::now(
            "Load the peer-memory module",
            Action::load("nvidia_peermem"),
        ))
        .fix(Fix::user(
            "Register by dma-buf",
            "# perftest: --use_cuda_dmabuf; NCCL and UCX use it automatically if possible",
        )),
    }
}

/// Returns the reason why a peer-memory module that was not loaded no longer matters.
fn not_needed(context: &Context<'_>) -> Option<&'static str> {
    if gpudirect_support::peer_module(context).is_ok() {
        return Some("one is loaded now");
    }
    (gpudirect_support::dmabuf_everywhere(context) == Ok(true)).then_some(
        "dma-buf works without \
                                                                           it",
    )
}
