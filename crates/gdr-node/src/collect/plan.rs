//! Paths collected in addition to those read by this crate's readers, in order of the steps.

/// A step, with the name that progress shows. `*` in a path matches any part of one name.
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) asks: &'static [Ask],
}

/// A kind of read, a pattern of directories, and the names below each of them.
pub(super) enum Ask {
    /// Files, read whole.
    Files(&'static str, &'static [&'static str]),
    /// Links.
    Links(&'static str, &'static [&'static str]),
    /// Directories, listed.
    Lists(&'static str, &'static [&'static str]),
}

use Ask::{Files, Links, Lists};

/// All steps. Files that are large, change constantly or contain private data are excluded; their relevant parts are
/// virtual files of [`virtual_path`](crate::virtual_path).
pub(super) const STEPS: &[Step] = &[
    Step {
        name: "PCI functions",
        asks: &[
            Files(
                "/sys/bus/pci/devices/*",
                &[
                    "revision",
                    "local_cpulist",
                    "aer_dev_correctable",
                    "aer_dev_nonfatal",
                    "aer_dev_fatal",
                    "power/control",
                    "power/runtime_status",
                    "d3cold_allowed",
                    "enable",
                    "reset_method",
                    "sriov_numvfs",
                    "sriov_totalvfs",
                    "acpi_index",
                    "dma_mask_bits",
                    "iommu_group/type",
                    "label",
                ],
            ),
            Files(
                "/sys/bus/pci/slots/*",
                &["address", "cur_bus_speed", "max_bus_speed"],
            ),
            Lists("/sys/kernel/pci_switch_link", &["virtual_switch_links"]),
            Lists("/sys/kernel/pci_switch_link/virtual_switch_links", &["*"]),
        ],
    },
    Step {
        name: "IOMMU",
        asks: &[
            Lists("/sys/class", &["iommu"]),
            Links("/sys/class/iommu", &["*"]),
            Lists("/sys/kernel", &["iommu_groups"]),
            Lists("/sys/kernel/iommu_groups/*", &["devices"]),
            Files("/sys/kernel/iommu_groups/*", &["type"]),
        ],
    },
    Step {
        name: "RDMA devices",
        asks: &[
            Lists("/sys/class", &["infiniband_verbs"]),
            Files(
                "/sys/class/infiniband/*",
                &[
                    "node_guid",
                    "sys_image_guid",
                    "node_type",
                    "node_desc",
                    "hca_type",
                    "hw_rev",
                    "tc/1/traffic_class",
                ],
            ),
            Files(
                "/sys/class/infiniband/*/ports/*",
                &["lid", "sm_lid", "sm_sl", "lid_mask_count", "cap_mask"],
            ),
            Lists(
                "/sys/class/infiniband/*/ports/*",
                &["gids", "pkeys", "gid_attrs/types", "gid_attrs/ndevs"],
            ),
            Files(
                "/sys/class/infiniband/*/ports/*",
                &[
                    "gids/*",
                    "gid_attrs/types/*",
                    "gid_attrs/ndevs/*",
                    "pkeys/*",
                    "counters/*",
                    "hw_counters/*",
                ],
            ),
            Files("/sys/class/infiniband_verbs", &["abi_version"]),
            Files(
                "/sys/class/infiniband_verbs/*",
                &["ibdev", "abi_version", "dev"],
            ),
            Links("/sys/class/infiniband_verbs/*", &["device"]),
            Files(
                "/sys/kernel/config/rdma_cm/*/ports/*",
                &["default_roce_mode", "default_roce_tos"],
            ),
        ],
    },
    Step {
        name: "network interfaces",
        asks: &[
            Links("/sys/class/net/*", &["master"]),
            Files(
                "/sys/class/net/*",
                &[
                    "carrier",
                    "carrier_changes",
                    "speed",
                    "type",
                    "dev_id",
                    "ifindex",
                    "phys_port_name",
                    "ecn/roce_rp/enable/*",
                    "ecn/roce_np/enable/*",
                    "bonding/mode",
                    "bonding/slaves",
                    "settings/force_local_lb_disable",
                    "statistics/rx_dropped",
                    "statistics/tx_dropped",
                ],
            ),
            Files("/proc/net/bonding", &["*"]),
            Lists("/sys/class/net/*/device", &["msi_irqs"]),
        ],
    },
    Step {
        name: "kernel and modules",
        asks: &[
            Files(
                "/proc",
                &[
                    "devices",
                    "version",
                    "sys/kernel/hostname",
                    "sys/kernel/ostype",
                    "sys/kernel/version",
                    "sys/kernel/tainted",
                    "sys/kernel/dmesg_restrict",
                    "sys/vm/max_map_count",
                    "driver/nvidia/registry",
                    "driver/nvidia/gpus/*/information",
                    "driver/nvidia/gpus/*/power",
                    "driver/nvidia/capabilities/*/mig/*",
                    "driver/nvidia-fs/version",
                    "driver/nvidia-fs/modules",
                ],
            ),
            Lists("/proc/driver/nvidia", &["gpus", "capabilities"]),
            Lists("/proc/driver", &["nvidia"]),
            Lists("/sys", &["module"]),
            Files("/sys/module/nvidia*", MODULE),
            Files("/sys/module/nv_peer_mem", MODULE),
            Files("/sys/module/nouveau", MODULE),
            Files("/sys/module/gdrdrv", MODULE),
            Files("/sys/module/mlx*", MODULE),
            Files("/sys/module/ib_*", MODULE),
            Files("/sys/module/iw_*", MODULE),
            Files("/sys/module/rdma_*", MODULE),
            Files("/sys/module/bnxt_*", MODULE),
            Files("/sys/module/irdma", MODULE),
            Files("/sys/module/efa", MODULE),
            Files("/sys/module/erdma", MODULE),
            Files("/sys/module/ionic*", MODULE),
            Files("/sys/module/siw", MODULE),
            Files("/sys/module/mlx5_core/parameters", &["*"]),
            Files("/sys/module/nvidia/parameters", &["*"]),
            Files("/sys/module/nvidia_peermem/parameters", &["*"]),
            Files(
                "/sys/module",
                &[
                    "module/parameters/sig_enforce",
                    "intel_idle/parameters/max_cstate",
                    "processor/parameters/max_cstate",
                ],
            ),
            Lists("/sys/kernel/mm", &["memory_peers"]),
            Files("/sys/kernel/mm/memory_peers/*", &["version"]),
            Files(
                "/sys/firmware/efi/efivars",
                &["SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"],
            ),
        ],
    },
    Step {
        name: "CPUs, memory, firmware",
        asks: &[
            Files("/sys/devices/system/node", &["possible"]),
            Lists("/sys/devices/system", &["node"]),
            Files("/sys/devices/system/node/node*", &["meminfo"]),
            Files("/sys/devices/system/cpu", &["possible"]),
            Files(
                "/sys/devices/system/cpu/cpu*/topology",
                &["physical_package_id"],
            ),
            Files(
                "/sys/devices/system/cpu/cpufreq/policy*",
                &["scaling_driver"],
            ),
            Files(
                "/sys/devices/system/cpu/cpuidle",
                &["current_driver", "current_governor"],
            ),
            Lists("/sys/kernel/mm", &["hugepages"]),
            Files(
                "/sys/kernel/mm/hugepages/*",
                &["nr_hugepages", "free_hugepages"],
            ),
            Files(
                "/sys/class/dmi/id",
                &[
                    "product_version",
                    "board_vendor",
                    "board_version",
                    "bios_vendor",
                    "chassis_type",
                ],
            ),
            Lists("/sys", &["hypervisor"]),
            Files("/sys/hypervisor", &["type"]),
        ],
    },
    Step {
        name: "processes and settings",
        asks: &[
            Files("/proc/self", &["status", "limits", "cgroup"]),
            Files("/proc/1", &["cgroup", "comm", "limits"]),
            Files("/", &[".dockerenv", "run/.containerenv"]),
            Lists("/", &["dev/infiniband", "dev/nvidia-caps"]),
            Files(
                "/etc",
                &[
                    "modules",
                    "infiniband/nv_peer_mem.conf",
                    "nccl.conf",
                    "os-release",
                    "security/limits.conf",
                    "security/limits.d/*",
                    "modules-load.d/*",
                    "modprobe.d/*",
                    "libibverbs.d/*",
                    "systemd/system.conf",
                    "systemd/system.conf.d/*",
                    "systemd/user.conf",
                    "rdma/rdma.conf",
                    "rdma/modules/*",
                    "default/grub",
                    "default/grub.d/*",
                ],
            ),
            Lists(
                "/etc",
                &[
                    "security/limits.d",
                    "modules-load.d",
                    "modprobe.d",
                    "libibverbs.d",
                ],
            ),
            Files("/usr/lib", &["modules-load.d/*", "modprobe.d/*"]),
            Files("/run", &["modules-load.d/*"]),
            Files(
                "/run",
                &[
                    "nvidia-persistenced/nvidia-persistenced.pid",
                    "nvidia-fabricmanager/nv-fabricmanager.pid",
                ],
            ),
            Lists("/run", &["nvidia-persistenced", "nvidia-fabricmanager"]),
        ],
    },
    Step {
        name: "kernel log and device nodes",
        asks: &[Files(
            "/",
            &[
                "@kmsg",
                "@uname",
                "@env",
                "@shm",
                "@addresses",
                "@symbols",
                "@modules/dep",
                "@kernel/config",
                "@dev/nodes",
            ],
        )],
    },
    Step {
        name: "CUDA and verbs",
        asks: &[Files("/", &["@cuda/devices.json", "@verbs/devices.json"])],
    },
];

/// The files of a module.
const MODULE: &[&str] = &["version", "srcversion", "taint", "initstate", "refcnt"];
