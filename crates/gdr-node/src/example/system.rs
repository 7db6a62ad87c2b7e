//! The example's facts besides GPUs and NICs: kernel, modules, limits, firmware.

use super::gpu::DRIVER;
use super::{GPUS, NICS};
use crate::source::{MemorySource, virtual_path};

/// The name of the node.
pub(super) const HOST: &str = "example-node";

/// Its kernel.
const KERNEL: &str = "6.8.0-60-generic";

/// The loaded modules, as in `/proc/modules` except for the address.
const MODULES: &str = "\
nvidia_uvm 2076672 0 - Live
nvidia_peermem 16384 0 - Live
nvidia_drm 139264 0 - Live
nvidia_modeset 1740800 1 nvidia_drm, Live
nvidia 11599872 9 nvidia_uvm,nvidia_peermem,nvidia_modeset, Live
gdrdrv 36864 0 - Live
rdma_ucm 32768 0 - Live
rdma_cm 151552 1 rdma_ucm, Live
iw_cm 61440 1 rdma_cm, Live
ib_ipoib 159744 0 - Live
ib_cm 151552 2 rdma_cm,ib_ipoib, Live
ib_umad 45056 0 - Live
mlx5_ib 516096 0 - Live
ib_uverbs 204800 3 rdma_ucm,mlx5_ib, Live
ib_core 528384 9 nvidia_peermem,rdma_ucm,rdma_cm,iw_cm,ib_ipoib,ib_cm,ib_umad,mlx5_ib,ib_uverbs, Live
mlx5_core 2502656 1 mlx5_ib, Live
mlx_compat 20480 11 rdma_ucm,rdma_cm,iw_cm,ib_ipoib,ib_cm,ib_umad,mlx5_ib,ib_uverbs,ib_core,mlx5_core, Live
";

/// Modules with their versions, if any, and taint flags.
const VERSIONS: [(&str, &str, &str); 13] = [
    ("nvidia", DRIVER, "OE"),
    ("nvidia_uvm", DRIVER, "OE"),
    ("nvidia_peermem", DRIVER, "OE"),
    ("nvidia_modeset", DRIVER, "OE"),
    ("nvidia_drm", DRIVER, "OE"),
    ("gdrdrv", "2.5", "OE"),
    ("mlx5_core", "24.10-2.1.8", "OE"),
    ("mlx5_ib", "24.10-2.1.8", "OE"),
    ("ib_core", "24.10-2.1.8", "OE"),
    ("ib_uverbs", "24.10-2.1.8", "OE"),
    ("rdma_cm", "24.10-2.1.8", "OE"),
    ("ib_ipoib", "24.10-2.1.8", "OE"),
    ("mlx_compat", "24.10-2.1.8", "OE"),
];

const PARAMS: &str = "\
ResmanDebugLevel: 4294967295
EnableStreamMemOPs: 1
EnableResizableBar: 0
EnablePCIERelaxedOrderingMode: 0
EnableGpuFirmware: 18
GrdmaPciTopoCheckOverride: 0
RegistryDwords: \"\"
RegistryDwordsPerDevice: \"\"
";

const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units     \n\
Max open files            1048576              1048576              files     \n\
Max locked memory         unlimited            unlimited            bytes     \n\
Max address space         unlimited            unlimited            bytes     \n";

const KERNEL_LOG: &str = "\
[    0.000000] Linux version 6.8.0-60-generic (gcc 13.3.0) #63-Ubuntu SMP PREEMPT_DYNAMIC
[    0.000000] Command line: root=/dev/nvme0n1p2 ro intel_iommu=on iommu=pt
[    1.204911] DMAR: IOMMU enabled
[    1.731200] iommu: Default domain type: Passthrough (set via kernel command line)
[    9.610043] mlx5_core 0000:19:00.0: firmware version: 28.41.1000
[    9.610102] mlx5_core 0000:19:00.0: 504.112 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x16 link)
[   12.077641] nvidia: loading out-of-tree module taints kernel.
[   12.301772] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build
[   14.911380] gdrdrv:gdrdrv_init:loading gdrdrv version 2.5 built for opensource NVIDIA driver
";

pub(super) fn put(node: MemorySource) -> MemorySource {
    let node = modules(kernel(node));
    software(processes(machine(node)))
}

fn kernel(node: MemorySource) -> MemorySource {
    let mut node = node
        .file("/proc/sys/kernel/ostype", "Linux\n")
        .file("/proc/sys/kernel/osrelease", format!("{KERNEL}\n"))
        .file(
            "/proc/sys/kernel/version",
            "#63-Ubuntu SMP PREEMPT_DYNAMIC\n",
        )
        .file("/proc/sys/kernel/hostname", format!("{HOST}\n"))
        .file("/proc/sys/kernel/numa_balancing", "0\n")
        .file("/proc/sys/kernel/dmesg_restrict", "1\n")
        .file(
            "/proc/version",
            format!("Linux version {KERNEL} (gcc 13.3.0) #63-Ubuntu SMP PREEMPT_DYNAMIC\n"),
        )
        .file(
            "/proc/cmdline",
            "BOOT_IMAGE=/vmlinuz root=/dev/nvme0n1p2 ro intel_iommu=on iommu=pt\n",
        )
        .file(
            "/proc/devices",
            "Character devices:\n195 nvidia\n231 infiniband_verbs\n235 nvidia-caps\n\
             236 gdrdrv\n507 nvidia-uvm\n\nBlock devices:\n259 blkext\n",
        )
        .file(
            "/sys/kernel/security/lockdown",
            "[none] integrity confidentiality\n",
        )
        .file("/sys/module/module/parameters/sig_enforce", "N\n")
        .file(
            "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c",
            [6, 0, 0, 0, 0],
        )
        .file(
            "/sys/module/pcie_aspm/parameters/policy",
            "[default] performance powersave\n",
        )
        .file("/sys/module/intel_idle/parameters/max_cstate", "9\n")
        .file(
            "/sys/devices/system/cpu/cpuidle/current_driver",
            "intel_idle\n",
        )
        .file("/sys/devices/system/cpu/cpuidle/current_governor", "menu\n")
        .file(
            "/sys/kernel/mm/transparent_hugepage/enabled",
            "always [madvise] never\n",
        )
        .file(
            "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
            "1024\n",
        )
        .file(
            "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
            "1024\n",
        )
        .directory("/sys/kernel/config/rdma_cm")
        .file(virtual_path::KERNEL_LOG, KERNEL_LOG)
        .file(
            virtual_path::UNAME,
            format!(
                "sysname Linux\nnodename {HOST}\nrelease {KERNEL}\n\
                 version #63-Ubuntu SMP PREEMPT_DYNAMIC\nmachine x86_64\n"
            ),
        )
        .file(
            virtual_path::SYMBOLS,
            "ib_register_peer_memory_client [ib_core]\n\
             ib_unregister_peer_memory_client [ib_core]\n\
             nvidia_p2p_get_pages [nvidia]\n",
        )
        .file(
            virtual_path::KERNEL_CONFIG,
            "CONFIG_DMA_SHARED_BUFFER=y\nCONFIG_INFINIBAND=m\nCONFIG_INFINIBAND_USER_ACCESS=m\n\
             CONFIG_IOMMU_DEFAULT_DMA_LAZY=y\nCONFIG_MODULE_SIG=y\nCONFIG_PCI_P2PDMA=y\n",
        );
    for unit in 0..4 {
        node = node.link_to(
            &format!("/sys/class/iommu/dmar{unit}"),
            &format!("../../devices/virtual/iommu/dmar{unit}"),
        );
    }
    node
}

fn modules(node: MemorySource) -> MemorySource {
    let text: String = MODULES
        .lines()
        .map(|line| format!("{line} 0x0000000000000000\n"))
        .collect();
    let mut node = node.file("/proc/modules", text);
    for name in MODULES.lines().filter_map(|line| line.split(' ').next()) {
        node = node.file(&format!("/sys/module/{name}/initstate"), "live\n");
    }
    for (name, version, taint) in VERSIONS {
        node = node
            .file(
                &format!("/sys/module/{name}/version"),
                format!("{version}\n"),
            )
            .file(&format!("/sys/module/{name}/taint"), format!("{taint}\n"));
    }
    node.file(
        "/proc/driver/nvidia/version",
        format!(
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build\n\
             GCC version:  gcc version 13.3.0\n"
        ),
    )
    .file("/proc/driver/nvidia/params", PARAMS)
    .file("/proc/driver/nvidia/registry", "Binary: \"\"\n")
    .directory("/sys/kernel/mm/memory_peers/nv_mem")
    .file(
        "/sys/kernel/mm/memory_peers/nv_mem/version",
        format!("{DRIVER}\n"),
    )
    .file("/sys/class/infiniband_verbs/abi_version", "6\n")
    .file(
        virtual_path::MODULE_FILES,
        "updates/dkms/nvidia.ko:\nupdates/dkms/nvidia-peermem.ko: updates/dkms/nvidia.ko \
         kernel/drivers/infiniband/core/ib_core.ko\n\
         updates/dkms/gdrdrv.ko: updates/dkms/nvidia.ko\nupdates/dkms/mlx5_core.ko:\n\
         updates/dkms/mlx5_ib.ko: updates/dkms/mlx5_core.ko\n",
    )
    .file(virtual_path::CUDA_DEVICES, super::gpu::cuda_devices())
    .file(virtual_path::VERBS_DEVICES, super::nic::verbs_devices())
    .file(virtual_path::ADDRESSES, super::nic::addresses())
}

fn machine(node: MemorySource) -> MemorySource {
    let cpu = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n\
               model name\t: Intel(R) Xeon(R) Platinum 8468\nphysical id\t: 0\ncpu cores\t: 48\n\
               flags\t\t: fpu vme de pse msr pae mce cx8 sse sse2 ht avx avx2 avx512f\n\n";
    let mut node = node
        .file("/proc/cpuinfo", cpu)
        .file(
            "/proc/meminfo",
            "MemTotal:       2113458392 kB\nMemFree:        1988721004 kB\n\
             HugePages_Total:    1024\nHugePages_Free:     1024\nHugepagesize:       2048 kB\n",
        )
        .file("/sys/class/dmi/id/sys_vendor", "Example Systems\n")
        .file("/sys/class/dmi/id/product_name", "Eight GPU Node\n")
        .file("/sys/class/dmi/id/board_name", "EX-8G10N\n")
        .file("/sys/class/dmi/id/bios_vendor", "Example Firmware\n")
        .file("/sys/class/dmi/id/bios_version", "2.3.1\n")
        .file("/sys/class/dmi/id/bios_date", "05/14/2026\n")
        .file("/sys/class/dmi/id/chassis_type", "23\n")
        .file("/sys/devices/system/node/online", "0-1\n")
        .file("/sys/devices/system/cpu/online", "0-191\n");
    for (numa, distance) in [(0_u32, "10 21\n"), (1, "21 10\n")] {
        let directory = format!("/sys/devices/system/node/node{numa}");
        node = node
            .file(
                &format!("{directory}/cpulist"),
                format!("{}\n", super::function::local_cpus(numa)),
            )
            .file(&format!("{directory}/distance"), distance);
        for cpu in [48 * numa, 48 * numa + 96] {
            node = node.file(
                &format!("/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"),
                format!("{numa}\n"),
            );
        }
    }
    for policy in [0, 48, 96, 144] {
        node = node.file(
            &format!("/sys/devices/system/cpu/cpufreq/policy{policy}/scaling_governor"),
            "performance\n",
        );
    }
    for (slot, bdf) in (1..).zip(GPUS.iter().chain(&NICS)) {
        // Slots are named by address without the function number.
        let address = bdf.trim_end_matches(".0");
        node = node
            .file(
                &format!("/sys/bus/pci/slots/{slot}/address"),
                format!("{address}\n"),
            )
            .file(
                &format!("/sys/bus/pci/slots/{slot}/max_bus_speed"),
                "32.0 GT/s PCIe\n",
            );
    }
    node
}

fn processes(node: MemorySource) -> MemorySource {
    let status = "Name:\tgdr\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\nCpus_allowed_list:\t0-191\n\
                  Mems_allowed_list:\t0-1\n";
    let unit = |name: &str| {
        format!(
            "Id={name}\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\n\
             LimitMEMLOCK=infinity\nLimitMEMLOCKSoft=infinity\n"
        )
    };
    node.link_to("/proc/self", "4242")
        .file("/proc/4242/status", status)
        .file("/proc/4242/limits", LIMITS)
        .file("/proc/4242/cgroup", "0::/user.slice/session-1.scope\n")
        .file("/proc/1/cgroup", "0::/init.scope\n")
        .file("/proc/1/comm", "systemd\n")
        .file(virtual_path::LIMITS_SELF, LIMITS)
        .file("@limits/sshd", LIMITS)
        .file("@limits/slurmd", LIMITS)
        .file("@limits/containerd", LIMITS)
        .file(
            "@systemd/manager",
            "Version=255\nDefaultLimitMEMLOCK=infinity\nDefaultLimitMEMLOCKSoft=infinity\n",
        )
        .file("@systemd/ssh.service", unit("ssh.service"))
        .file("@systemd/slurmd.service", unit("slurmd.service"))
        .file("@systemd/containerd.service", unit("containerd.service"))
        .file(
            "@systemd/nvidia-persistenced.service",
            unit("nvidia-persistenced.service"),
        )
        .file(virtual_path::ENVIRONMENT, "NCCL_IB_HCA=^mlx5_0,mlx5_5\n")
        .file(
            virtual_path::SHARED_MEMORY,
            "size 1082090696704\nfree 1082090696704\n",
        )
}

fn software(node: MemorySource) -> MemorySource {
    let mut nodes = vec![
        "0666 195:255 rw /dev/nvidiactl".to_owned(),
        "0666 507:0 rw /dev/nvidia-uvm".to_owned(),
        "0666 236:0 rw /dev/gdrdrv".to_owned(),
        "0666 10:58 rw /dev/infiniband/rdma_cm".to_owned(),
    ];
    nodes.extend((0..GPUS.len()).map(|n| format!("0666 195:{n} rw /dev/nvidia{n}")));
    nodes.extend(
        (0..NICS.len()).map(|n| format!("0666 231:{} rw /dev/infiniband/uverbs{n}", 192 + n)),
    );
    nodes.sort_by(|a, b| a.rsplit(' ').next().cmp(&b.rsplit(' ').next()));
    let mut node = node;
    for line in &nodes {
        // A device node has no readable content, which a directory imitates.
        node = node.directory(line.rsplit(' ').next().unwrap_or_default());
    }
    node.file(virtual_path::DEVICE_NODES, nodes.join("\n") + "\n")
        .file(
            virtual_path::LIBRARIES,
            format!(
                "/etc/libibverbs.d/mlx5.driver\n\
                 /usr/lib/x86_64-linux-gnu/libcuda.so.1 -> libcuda.so.{DRIVER}\n\
                 /usr/lib/x86_64-linux-gnu/libcuda.so.{DRIVER}\n\
                 /usr/lib/x86_64-linux-gnu/libibverbs.so.1 -> libibverbs.so.1.14.54.0\n\
                 /usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so -> ../libmlx5.so.1.25.54.0\n\
                 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1 -> libnvidia-ml.so.{DRIVER}\n\
                 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{DRIVER}\n\
                 /usr/lib/x86_64-linux-gnu/librdmacm.so.1 -> librdmacm.so.1.3.54.0\n"
            ),
        )
        .file(
            "/etc/os-release",
            "NAME=\"Ubuntu\"\nVERSION_ID=\"24.04\"\nID=ubuntu\nPRETTY_NAME=\"Ubuntu 24.04.2 LTS\"\n",
        )
        .file("/etc/security/limits.conf", "# all comments\n")
        .file(
            "/etc/security/limits.d/90-rdma.conf",
            "* - memlock unlimited\nroot - memlock unlimited\n",
        )
        .file("/etc/modules-load.d/nvidia-peermem.conf", "nvidia-peermem\n")
        .file("/etc/modprobe.d/blacklist-nouveau.conf", "blacklist nouveau\n")
        .file("/etc/libibverbs.d/mlx5.driver", "driver mlx5\n")
        .file("/run/nvidia-persistenced/nvidia-persistenced.pid", "1501\n")
}
