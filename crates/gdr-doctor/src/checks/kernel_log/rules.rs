//! The table of rules about messages of the kernel.

use gdr_node::Datum;
use regex::Captures;

use super::rule::{Meaning, Pattern, Rate, Rule, always, judge};
use super::xid;
use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::{Finding, Verdict};
use crate::fix::{Action, Fix, Risk};
use crate::reach;

/// What all of them read.
const READS: &str = "The kernel's log from /dev/kmsg, which many systems show to root only.";

/// The check that the rule at a place in the table is.
pub(super) const fn check<const N: usize>() -> Check {
    let rule = &RULES[N];
    Check {
        id: rule.id,
        group: Group::KernelLog,
        title: rule.title,
        documentation: Documentation {
            means: rule.means,
            reads: READS,
            judges: rule.judges,
            sources: rule.sources,
        },
        purposes: rule.purposes,
        symptom_of: rule.symptom_of,
        run: run::<N>,
    }
}

fn run<const N: usize>(context: &Context<'_>) -> Vec<Finding> {
    judge(context, &RULES[N])
}

/// Every rule.
pub(super) const RULES: &[Rule] = &[
    Rule {
        id: CheckId("klog.xid"),
        title: "no GPU has reported an error (Xid)",
        means: "NVIDIA's driver logs errors of GPUs as numbered Xid messages. Some are faults of a \
                program, others of the GPU: after those no transfer can be trusted.",
        judges: "by the number: fail for those that need a reset or a power cycle, warn for those \
                 of programs and links, info for the rest. pass: none. unknown: the log may not be \
                 read.",
        sources: &[
            "https://docs.nvidia.com/deploy/xid-errors/",
            "https://github.com/oracle-quickstart/oci-hpc (catalogue of Xids)",
        ],
        purposes: &[],
        symptom_of: &[CheckId("gpu.present")],
        patterns: &[Pattern {
            expression: r"NVRM: Xid \(PCI:(?P<bdf>[0-9a-fA-F:.]+)\): (?P<number>[0-9]+)",
            means: |captures| {
                let number = captures["number"].parse().unwrap_or(0);
                xid::meaning(number, &captures["bdf"])
            },
        }],
        rate: Rate::ONCE,
        window: 1.0,
        on_the_way_only: false,
        unless: always,
    },
    Rule {
        id: CheckId("klog.sxid"),
        title: "no NVSwitch has reported an error (SXid)",
        means: "An NVSwitch logs its errors as SXid messages. Fatal ones end every program that \
                uses NVLink until the GPUs are reset.",
        judges: "fail: a fatal one. warn: another. pass: none. unknown: the log may not be read.",
        sources: &["NVIDIA Fabric Manager user guide: NVSwitch SXids"],
        purposes: &[],
        symptom_of: &[],
        patterns: &[Pattern {
            expression: r"SXid \(PCI:(?P<bdf>[0-9a-fA-F:.]+)\): (?P<number>[0-9]+), (?P<kind>Fatal|Non-fatal)?",
            means: sxid,
        }],
        rate: Rate::ONCE,
        window: 1.0,
        on_the_way_only: false,
        unless: always,
    },
    Rule {
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
    },
    Rule {
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
    },
    Rule {
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
    },
    Rule {
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
    },
    Rule {
        id: CheckId("klog.dmabuf_importer"),
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
    },
    Rule {
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
    },
    Rule {
        id: CheckId("klog.access_reg"),
        title: "the NIC's firmware answers queries of registers",
        means: "Some functions may not read registers that tools ask for. The message is harmless \
                and comes with every query.",
        judges: "info: such a message. pass: none. unknown: the log may not be read.",
        sources: &["https://github.com/leptonai/gpud (ACCESS_REG matcher)"],
        purposes: Purpose::RDMA,
        symptom_of: &[],
        patterns: &[Pattern {
            expression: r"mlx5_core (?P<bdf>[0-9a-f:.]+):.*ACCESS_REG\(0x805\).* failed",
            means: |_| {
                Meaning::new(
                    Verdict::Info,
                    "its firmware refused to show a register, as restricted functions do",
                )
            },
        }],
        rate: Rate::ONCE,
        window: 60.0,
        on_the_way_only: false,
        unless: always,
    },
    Rule {
        id: CheckId("klog.nic_health"),
        title: "no NIC has reported bad health",
        means: "NICs report heat, cables and faults of their firmware to the driver, which logs \
                them. Too little power of a slot is judged by pci.slotpower.",
        judges: "fail: health compromised or a fatal error of firmware. warn: too hot, or a cable \
                 that was pulled. pass: none. unknown: the log may not be read.",
        sources: &[
            "Linux drivers/net/ethernet/mellanox/mlx5/core/{health,events}.c",
            "https://github.com/leptonai/gpud (kmsg matchers)",
        ],
        purposes: Purpose::RDMA,
        symptom_of: &[],
        patterns: &[
            Pattern {
                expression: r"mlx5_core (?P<bdf>[0-9a-f:.]+):.*(?:health compromised|device's health|[Ff]irmware fatal|fatal error)",
                means: |_| {
                    Meaning::new(Verdict::Fail, "its firmware has failed").fix(
                        Fix::now(
                            "Start its firmware anew",
                            Action::Command {
                                line: "mlxfwreset -d DEVICE reset   # or start the machine from \
                                       cold"
                                    .into(),
                            },
                        )
                        .risk(Risk::Medium, "connections of the NIC end"),
                    )
                },
            },
            Pattern {
                expression: r"mlx5_core (?P<bdf>[0-9a-f:.]+):.*High [Tt]emperature",
                means: |_| {
                    Meaning::new(Verdict::Warn, "it is too hot").fix(Fix::manual(
                        "Cool it",
                        "look at the fans and at what blocks the air; transceivers of high power \
                         need more of it",
                    ))
                },
            },
            Pattern {
                expression: r"mlx5_core (?P<bdf>[0-9a-f:.]+):.*Cable unplugged",
                means: |_| {
                    Meaning::new(Verdict::Warn, "a cable was pulled, or lost contact").fix(
                        Fix::manual(
                            "Look at the cable",
                            "seat the cable and its transceiver anew",
                        ),
                    )
                },
            },
        ],
        rate: Rate::ONCE,
        window: 10.0,
        on_the_way_only: false,
        unless: always,
    },
    Rule {
        id: CheckId("klog.aer"),
        title: "PCI Express has reported no lost packets on the way",
        means: "An uncorrected error, or a port that was shut down to contain one (DPC), costs the \
                transfer and often the device. Functions that are neither a GPU nor a NIC nor above \
                one do not matter here.",
        judges: "fail: one on a GPU, a NIC or a bridge above one. info: one elsewhere. pass: none. \
                 unknown: the log may not be read.",
        sources: &[
            "Linux drivers/pci/pcie/{aer,dpc}.c",
            "PCI Express Base Specification 6.0, 6.2",
        ],
        purposes: &[],
        symptom_of: &[CheckId("link.aer"), CheckId("gpu.present")],
        patterns: &[
            Pattern {
                expression: r"(?P<bdf>[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): (?:PCIe Bus Error: severity=Uncorrect|AER: .*[Uu]ncorrect)",
                means: |_| {
                    Meaning::new(Verdict::Fail, "PCI Express has lost packets").fix(contact())
                },
            },
            Pattern {
                expression: r"pcieport (?P<bdf>[0-9a-f:.]+): DPC: containment event",
                means: |_| {
                    Meaning::new(
                        Verdict::Fail,
                        "the port was shut down to contain an error, and what is below with it",
                    )
                    .fix(contact())
                },
            },
        ],
        rate: Rate::ONCE,
        window: 1.0,
        on_the_way_only: true,
        unless: always,
    },
    Rule {
        id: CheckId("klog.iommu_fault"),
        title: "the IOMMU has blocked no GPU and no NIC",
        means: "A fault that names a GPU or a NIC is an access to a peer that the IOMMU did not \
                let through: the transfer fails or hangs.",
        judges: "fail: one of a GPU or a NIC. info: one of another device. pass: none. unknown: the \
                 log may not be read.",
        sources: &[
            "Linux drivers/iommu/intel/dmar.c, drivers/iommu/amd/iommu.c",
            "https://github.com/NVIDIA/nccl/issues/2079",
        ],
        purposes: Purpose::RDMA,
        symptom_of: &[
            CheckId("iommu.faults"),
            CheckId("iommu.mode"),
            CheckId("acs.path"),
        ],
        patterns: &[
            Pattern {
                expression: r"DMAR: \[DMA (?:Read|Write)[^\]]*\] Request device \[(?P<bdf>[0-9a-fx:.]+)\]",
                means: blocked,
            },
            Pattern {
                expression: r"AMD-Vi: Event logged \[IO_PAGE_FAULT device=(?P<bdf>[0-9a-f:.]+)",
                means: blocked,
            },
            Pattern {
                expression: r"(?P<bdf>[0-9a-f]{4,}:[0-9a-f:.]+): AMD-Vi: Event logged \[IO_PAGE_FAULT",
                means: blocked,
            },
        ],
        rate: Rate::ONCE,
        window: 1.0,
        on_the_way_only: true,
        unless: always,
    },
    Rule {
        id: CheckId("klog.lockdown"),
        title: "the kernel has refused no module and no setting",
        means: "With Secure Boot the kernel takes only modules that are signed with a key it knows, \
                and keeps programs from writing registers of devices.",
        judges: "warn: a module or a write was refused. info: a module without a known signature \
                 was loaded all the same. pass: none. unknown: the log may not be read.",
        sources: &[
            "Linux Documentation: kernel_lockdown(7)",
            "Linux kernel/module/signing.c",
        ],
        purposes: &[],
        symptom_of: &[CheckId("modules.lockdown")],
        patterns: &[
            Pattern {
                expression: r"Lockdown: .*direct PCI access",
                means: |_| {
                    Meaning::new(
                        Verdict::Warn,
                        "the kernel kept a program from writing registers of devices",
                    )
                    .fix(Fix::manual(
                        "Set them elsewhere",
                        "use settings of the BIOS or arguments of the kernel, or turn Secure Boot \
                         off",
                    ))
                },
            },
            Pattern {
                expression: r"Key was rejected by service|Loading of (?:unsigned module|module with unavailable key) is rejected|Required key not available",
                means: |_| {
                    Meaning::new(
                        Verdict::Warn,
                        "the kernel refused a module without a known key",
                    )
                    .fix(Fix::manual(
                        "Let the kernel know the key",
                        "sign the module and enrol the key (mokutil --import KEY, then start \
                             the machine anew), or turn Secure Boot off",
                    ))
                },
            },
            Pattern {
                expression: r"module verification failed",
                means: |_| {
                    Meaning::new(
                        Verdict::Info,
                        "a module without a known signature was loaded all the same",
                    )
                },
            },
        ],
        rate: Rate::ONCE,
        window: 60.0,
        on_the_way_only: false,
        unless: always,
    },
    Rule {
        id: CheckId("klog.nccl_segfault"),
        title: "no program has crashed in NCCL",
        means: "A crash in libnccl.so is one of a program: of NCCL, of a plugin, or of how it was \
                called. It says nothing of the node.",
        judges: "info: such a message. pass: none. unknown: the log may not be read.",
        sources: &["https://github.com/leptonai/gpud (NCCL matcher)"],
        purposes: &[Purpose::Nccl],
        symptom_of: &[],
        patterns: &[Pattern {
            expression: r"segfault at .* in libnccl\.so",
            means: |_| Meaning::new(Verdict::Info, "a program has crashed in NCCL"),
        }],
        rate: Rate::ONCE,
        window: 1.0,
        on_the_way_only: false,
        unless: always,
    },
];

fn sxid(captures: &Captures<'_>) -> Meaning {
    let number = &captures["number"];
    if captures
        .name("kind")
        .is_some_and(|kind| kind.as_str() == "Fatal")
    {
        Meaning::new(
            Verdict::Fail,
            format!("SXid {number}: a fatal error of the NVSwitch"),
        )
        .fix(
            Fix::now(
                "Reset all GPUs and switches",
                Action::Command {
                    line: "nvidia-smi --gpu-reset && systemctl restart nvidia-fabricmanager".into(),
                },
            )
            .risk(Risk::Medium, "programs on all GPUs end"),
        )
    } else {
        Meaning::new(
            Verdict::Warn,
            format!("SXid {number}: an error of the NVSwitch"),
        )
        .fix(Fix::user(
            "Look whether links have errors",
            "nvidia-smi nvlink --errorcounters",
        ))
    }
}

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

fn blocked(_: &Captures<'_>) -> Meaning {
    Meaning::new(Verdict::Fail, "the IOMMU blocked an access of it").fix(
        Fix::at_boot(
            "Let the IOMMU pass addresses on as they are",
            Action::KernelArgument {
                argument: "iommu=pt".into(),
            },
        )
        .risk(
            Risk::Medium,
            "devices are no longer kept from memory that is not theirs",
        ),
    )
}

fn contact() -> Fix {
    Fix::manual(
        "Find the bad contact",
        "seat the card, its riser and its cables anew; move the card to another slot to tell the \
         card from the slot",
    )
    .risk(Risk::Medium, "the machine is powered off for it")
}

/// Why a peer-memory module that was not loaded no longer matters.
fn can_do_without(context: &Context<'_>) -> Option<&'static str> {
    if reach::peer_module(context).is_present() {
        return Some("one is loaded now");
    }
    (reach::dmabuf_everywhere(context) == Datum::Present(true)).then_some("dma-buf does without it")
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example, virtual_path};
    use regex::Regex;

    use super::*;
    use crate::checks;
    use crate::checks::fixture::{findings, verdict, worst};

    /// A message of each rule, what it is about, and the verdict.
    const EXAMPLES: &[(&str, &str, &str, Verdict)] = &[
        (
            "klog.xid",
            "NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', GPU has fallen off the bus.",
            "GPU0",
            Verdict::Fail,
        ),
        (
            "klog.xid",
            "NVRM: Xid (PCI:0000:18:00): 13, pid=1, Graphics Exception",
            "GPU0",
            Verdict::Warn,
        ),
        (
            "klog.sxid",
            "nvidia-nvswitch3: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            "mlx5_0",
            Verdict::Fail,
        ),
        (
            "klog.sxid",
            "nvidia-nvswitch3: SXid (PCI:0000:05:01.0): 19084, Non-fatal, Link 30",
            "0000:05:01.0",
            Verdict::Warn,
        ),
        (
            "klog.dmabuf_topology",
            "NVRM: dma-buf attach failed: PCI topology not supported for dma-buf",
            "this node",
            Verdict::Fail,
        ),
        (
            "klog.dmabuf_force_pcie",
            "NVRM: dma-buf attach failed: topology not supported for mapping type FORCE_PCIE",
            "this node",
            Verdict::Fail,
        ),
        (
            "klog.dmabuf_importer",
            "NVRM: dma-buf attach failed: importer unable to handle MMIO without struct page",
            "this node",
            Verdict::Fail,
        ),
        (
            "klog.umem",
            "mlx5_1: mr_umem_get:812:(pid 77): umem get failed (-14)",
            "this node",
            Verdict::Fail,
        ),
        (
            "klog.access_reg",
            "mlx5_core 0000:19:00.0: mlx5_cmd_out_err:838:(pid 1): ACCESS_REG(0x805) op_mod(0x1) \
             failed, status bad operation(0x2)",
            "mlx5_1",
            Verdict::Info,
        ),
        (
            "klog.nic_health",
            "mlx5_core 0000:19:00.0: poll_health:800:(pid 0): device's health compromised - \
             reached miss count",
            "mlx5_1",
            Verdict::Fail,
        ),
        (
            "klog.nic_health",
            "mlx5_core 0000:19:00.0: temp_warn:172:(pid 0): High temperature on sensors",
            "mlx5_1",
            Verdict::Warn,
        ),
        (
            "klog.nic_health",
            "mlx5_core 0000:19:00.0: Port module event: module 0, Cable unplugged",
            "mlx5_1",
            Verdict::Warn,
        ),
        (
            "klog.aer",
            "nvidia 0000:18:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction \
             Layer",
            "GPU0",
            Verdict::Fail,
        ),
        (
            "klog.aer",
            "pcieport 0000:17:00.0: DPC: containment event, status:0x1f01 source:0x0000",
            "0000:17:00.0",
            Verdict::Fail,
        ),
        (
            "klog.aer",
            "nvme 0000:e1:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal)",
            "0000:e1:00.0",
            Verdict::Info,
        ),
        (
            "klog.iommu_fault",
            "DMAR: [DMA Write NO_PASID] Request device [19:00.0] fault addr 0x3f8000000000",
            "mlx5_1",
            Verdict::Fail,
        ),
        (
            "klog.iommu_fault",
            "AMD-Vi: Event logged [IO_PAGE_FAULT device=18:00.0 domain=0x0001]",
            "GPU0",
            Verdict::Fail,
        ),
        (
            "klog.iommu_fault",
            "xhci_hcd 0000:e3:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0001]",
            "0000:e3:00.0",
            Verdict::Info,
        ),
        (
            "klog.lockdown",
            "Lockdown: setpci: direct PCI access is restricted; see man kernel_lockdown.7",
            "this node",
            Verdict::Warn,
        ),
        (
            "klog.lockdown",
            "Loading of unsigned module is rejected",
            "this node",
            Verdict::Warn,
        ),
        (
            "klog.lockdown",
            "nvidia: module verification failed: signature and/or required key missing - \
             tainting kernel",
            "this node",
            Verdict::Info,
        ),
        (
            "klog.nccl_segfault",
            "python3[4]: segfault at 18 ip 00007f sp 00007f error 4 in libnccl.so.2.20.5[7f]",
            "this node",
            Verdict::Info,
        ),
    ];

    fn logged(lines: &[&str]) -> MemorySource {
        let text: String = lines
            .iter()
            .enumerate()
            .map(|(number, line)| format!("[{:5}.000000] {line}\n", 10 + number))
            .collect();
        example::healthy().file(virtual_path::KERNEL_LOG, text)
    }

    #[test]
    fn every_expression_is_one() {
        for rule in RULES {
            for pattern in rule.patterns {
                assert!(
                    Regex::new(pattern.expression).is_ok(),
                    "{}",
                    pattern.expression
                );
            }
        }
    }

    #[test]
    fn every_rule_finds_its_messages_and_no_others() {
        for (id, line, subject, verdict) in EXAMPLES {
            let node = logged(&[line]);
            for rule in RULES {
                let found = worst(checks::find(rule.id.0).unwrap(), &node);
                if rule.id.0 == *id {
                    assert_eq!(found.verdict, *verdict, "{line}: {}", found.summary);
                    assert_eq!(found.subject.to_string(), *subject, "{line}");
                    assert_eq!(found.verdict.is_bad(), !found.fixes.is_empty(), "{line}");
                } else {
                    assert_eq!(found.verdict, Verdict::Pass, "{} takes {line}", rule.id);
                }
            }
        }
    }

    #[test]
    fn every_rule_passes_on_a_quiet_log_and_is_unknown_without_one() {
        let quiet = example::healthy();
        let denied = example::healthy().denied(virtual_path::KERNEL_LOG);
        for rule in RULES {
            let check = checks::find(rule.id.0).unwrap();
            assert_eq!(verdict(check, &quiet), Verdict::Pass, "{}", rule.id);
            assert_eq!(verdict(check, &denied), Verdict::Unknown, "{}", rule.id);
            let partial = MemorySource::partial();
            assert_eq!(verdict(check, &partial), Verdict::Unknown, "{}", rule.id);
        }
    }

    #[test]
    fn what_the_kernel_says_at_every_start_is_no_error() {
        let node = logged(&[
            "pcieport 0000:15:01.0: AER: enabled with IRQ 122",
            "pcieport 0000:15:01.0: DPC: enabled with IRQ 122",
            "pcieport 0000:15:01.0: DPC: error containment capabilities: Int Msg #0, RPExt+",
            "DMAR: Host address width 46",
            "DMAR: dmar0: reg_base_addr fbffc000 ver 5:0 cap 8d2078c106f0466",
            "AMD-Vi: Interrupt remapping enabled",
            "pcieport 0000:15:01.0: AER: Corrected error received: 0000:15:01.0",
            "mlx5_core 0000:19:00.0: Port module event: module 0, Cable plugged",
        ]);
        for rule in RULES {
            let check = checks::find(rule.id.0).unwrap();
            assert_eq!(verdict(check, &node), Verdict::Pass, "{}", rule.id);
        }
    }

    #[test]
    fn a_peer_memory_module_that_does_not_fit_fails_only_where_it_is_needed() {
        let check = checks::find("klog.peermem_symbol").unwrap();
        let line = "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)";
        let found = worst(check, &logged(&[line]));
        assert_eq!(found.verdict, Verdict::Info);
        assert!(
            found.summary.ends_with("one is loaded now"),
            "{}",
            found.summary
        );
        let text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu\n";
        let needed = logged(&[line])
            .file("/proc/driver/nvidia/version", text)
            .without("@cuda/devices.json")
            .without("@verbs/devices.json")
            .without("/sys/module/nvidia_peermem")
            .without("/sys/kernel/mm/memory_peers")
            .file("/proc/modules", "ib_core 1 0 - Live 0x0\n");
        let found = worst(check, &needed);
        assert_eq!(found.verdict, Verdict::Fail);
        assert_eq!(found.fixes.len(), 2);
    }

    #[test]
    fn a_storm_counts_and_a_single_one_does_not() {
        let check = checks::find("klog.peermem_context").unwrap();
        let line = "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, \
                    skipping further processing";
        assert_eq!(worst(check, &logged(&[line])).verdict, Verdict::Info);
        let found = worst(check, &logged(&[line; 5]));
        assert_eq!(found.verdict, Verdict::Warn);
        assert!(found.summary.ends_with("(5 times)"), "{}", found.summary);
        // Three within two hours are none within a minute.
        let slow = example::healthy().file(
            virtual_path::KERNEL_LOG,
            format!("[ 1.0] {line}\n[ 3600.0] {line}\n[ 7200.0] {line}\n"),
        );
        assert_eq!(worst(check, &slow).verdict, Verdict::Info);
    }

    #[test]
    fn one_gpu_that_repeats_itself_is_one_finding() {
        let check = checks::find("klog.xid").unwrap();
        let xid = |gpu: &str| format!("NVRM: Xid (PCI:0000:{gpu}:00): 119, pid=1, Timeout");
        let (one, other) = (xid("18"), xid("1a"));
        let found = findings(check, &logged(&[&one, &one, &other, &one]));
        let told: Vec<String> = found
            .iter()
            .map(|it| format!("{}: {}", it.subject, it.summary))
            .collect();
        let said = "Xid 119: the GPU's system processor (GSP) did not answer";
        assert_eq!(
            told,
            [format!("GPU0: {said} (3 times)"), format!("GPU1: {said}")]
        );
    }
}
