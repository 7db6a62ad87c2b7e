//! GPU memory that cannot be registered.

use super::{hand, likely, run, sure, weak};
use crate::check::CheckId;
use crate::explain::Cause;

pub(super) const CAUSES: &[Cause] = &[
    Cause {
        id: "no-peer-memory-client",
        title: "Nobody told the RDMA stack how to pin GPU memory",
        why: "ibv_reg_mr with a CUDA address ends in EFAULT (14) where no peer-memory client \
              claims the address: nvidia_peermem is not loaded on the host; or the memory came \
              from the virtual memory API, cudaMallocAsync or PyTorch's expandable segments, \
              which the client cannot pin; or the GPU is a GeForce.",
        patterns: &[
            sure(r"(ibv_)?(reg_mr|reg_mr_iova2?|exp_reg_mr)\b.*bad address"),
            sure(r"fail\w* to register memory.*(bad address|\[14\])"),
            sure(r"neither nv_peer_mem,? (or|nor) nvidia_peermem (was |were )?detected"),
            likely(r"couldn'?t (allocate|register)( gpu)? mr"),
            likely(r"(reg\w*|mr)\b.*\berror=14\b"),
            likely(r"failed to (create|allocate) mr\b"),
            likely(r"(regist\w+|reg_mr).*(errno[ =:]*14|\befault\b)"),
            weak(r"\berror=14\b"),
            weak(r"bad address"),
        ],
        remedies: &[
            run(
                "Load the module on the host (not in the container)",
                "modprobe nvidia_peermem",
            ),
            run(
                "Or register by dma-buf: open driver, kernel 5.12 or later",
                "perftest: --use_cuda_dmabuf; NCCL: NCCL_DMABUF_ENABLE=1",
            ),
            run(
                "Allocate with plain cudaMalloc",
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
            ),
        ],
        checks: &[
            CheckId("peermem.loaded"),
            CheckId("peermem.registered"),
            CheckId("dmabuf.gpu"),
            CheckId("gpu.class"),
        ],
        sources: &[
            "Mellanox/nv_peer_memory issues 36, 121",
            "linux-rdma/perftest issues 126, 346",
            "kvcache-ai/Mooncake issue 281",
            "microsoft/mscclpp issue 657",
        ],
    },
    Cause {
        id: "dmabuf-unsupported",
        title: "The NIC's driver, the kernel or rdma-core cannot import a dma-buf",
        why: "ibv_reg_dmabuf_mr needs kernel 5.12 or later (or a recent MLNX_OFED), a NIC driver \
              that implements it, and rdma-core 34 or later; the GPU's side needs the open \
              driver. EOPNOTSUPP and EPROTONOSUPPORT (93) say that one is missing; ENOTSUPP that \
              the PCI shape was refused.",
        patterns: &[
            sure(r"ibv_reg_dmabuf_mr.*(not supported|protocol not|error[ =]\d+|fail)"),
            sure(r"dma.?buf support\w* (is )?required for gpu rdma"),
            sure(r"\berror=93\b"),
            likely(r"dma.?buf.*(not supported|unsupported|is not available|unavailable)"),
            likely(r"(cuMemGetHandleForAddressRange).*(not supported|fail|error)"),
            weak(r"reg_dmabuf"),
        ],
        remedies: &[
            hand("Upgrade what is oldest of kernel, NIC driver (MLNX_OFED or DOCA) and rdma-core"),
            hand("Install the open flavour of NVIDIA's driver: the proprietary one exports none"),
            run(
                "Until then use the peer-memory module",
                "modprobe nvidia_peermem; NCCL_DMABUF_ENABLE=0",
            ),
        ],
        checks: &[
            CheckId("dmabuf.nic"),
            CheckId("dmabuf.gpu"),
            CheckId("acs.path"),
        ],
        sources: &[
            "NVIDIA/nccl issue 778",
            "linux-rdma/perftest issue 280",
            "kvcache-ai/Mooncake issue 3538",
        ],
    },
    Cause {
        id: "dmabuf-attach-topology",
        title: "NVIDIA's driver refuses the NIC as a peer: the chipset is not known to forward \
                peer-to-peer traffic and there is no common switch",
        why: "On attach the driver asks the kernel (pci_p2pdma_distance) whether the two may \
              talk. They may below a common switch, or below host bridges that the kernel lists.",
        patterns: &[sure(
            r"dma-?buf attach failed: pci topology not supported for dma-?buf",
        )],
        remedies: &[
            hand("Put the NIC and the GPU below the same PCIe switch"),
            run(
                "Or, at your own risk, override the check",
                "NVreg_RegistryDwords=GrdmaPciTopoCheckOverride=1",
            ),
        ],
        checks: &[CheckId("topo.pair"), CheckId("klog.dmabuf_topology")],
        sources: &["open-gpu-kernel-modules nv-dmabuf.c; kernel drivers/pci/p2pdma.c"],
    },
    Cause {
        id: "dmabuf-attach-force-pcie",
        title: "NIC and GPU are not in one IOMMU group, which data-direct mappings need",
        why: "A mapping of type FORCE_PCIE (Grace and Blackwell with the NIC's own DMA function) \
              is only safe where both are in one group; the groups form at boot from the ACS bits \
              of the ports between them.",
        patterns: &[sure(
            r"dma-?buf attach failed: (pci )?topology not supported for mapping type force_pcie",
        )],
        remedies: &[run(
            "Set the ACS bits that this platform needs at boot",
            "pci=config_acs=<mask>@<port>; see the check acs.directnic",
        )],
        checks: &[CheckId("dmabuf.force_pcie"), CheckId("acs.directnic")],
        sources: &["open-gpu-kernel-modules nv-dmabuf.c, nv-pci.c; rdma-core rdma_topo"],
    },
    Cause {
        id: "dmabuf-attach-struct-page",
        title: "The NIC's driver cannot take memory without struct page (it did not ask for \
                peer-to-peer)",
        why: "An importer says with allow_peer2peer that it can handle device memory. Old NIC \
              drivers do not.",
        patterns: &[sure(
            r"dma-?buf attach failed: importer unable to handle mmio without struct page",
        )],
        remedies: &[hand(
            "Upgrade the kernel, or the NIC's driver (MLNX_OFED or DOCA)",
        )],
        checks: &[CheckId("dmabuf.nic"), CheckId("klog.dmabuf_struct_page")],
        sources: &["open-gpu-kernel-modules nv-dmabuf.c; kernel Documentation/driver-api/dma-buf"],
    },
    Cause {
        id: "dmabuf-attach",
        title: "NVIDIA's driver refused to attach its dma-buf to this NIC",
        why: "The kernel log says with the refusal which of three rules it broke: the PCI \
              topology, the mapping type FORCE_PCIE, or an importer without peer-to-peer.",
        patterns: &[likely(r"nvrm:? *dma-?buf attach failed")],
        remedies: &[run(
            "Read the whole line in the kernel log",
            "dmesg | grep 'dma-buf attach'",
        )],
        checks: &[CheckId("topo.pair"), CheckId("dmabuf.nic")],
        sources: &["open-gpu-kernel-modules nv-dmabuf.c"],
    },
    Cause {
        id: "memlock",
        title: "The limit of locked memory is too small for the process that started the job",
        why: "Queues, completion queues and host buffers are pinned and count against \
              RLIMIT_MEMLOCK (GPU memory does not). Jobs inherit the limit of the daemon that \
              starts them (sshd, slurmd, containerd), which is often 64 KiB or 8 MiB however \
              limits.conf reads.",
        patterns: &[
            sure(r"please set max locked memory|max locked memory.*unlimited|ulimit -l"),
            sure(r"ibv_create_(qp|cq|srq|comp_channel)\w*\b.*cannot allocate memory"),
            sure(
                r"(failed to create|creating) (cq|qp|completion queue|queue pair)\b.*cannot allocate memory",
            ),
            likely(r"(ibv_)?reg_mr\w*\b.*cannot allocate memory"),
            likely(r"rlimit_memlock|memlock"),
            likely(r"(mlx\d_\d+|verbs|ib_|uct_ib|ibv_).*cannot allocate memory"),
            weak(r"couldn'?t (create|allocate) (cq|qp|pd)"),
        ],
        remedies: &[
            run("See what the job has", "grep 'locked' /proc/self/limits"),
            run(
                "Lift it for logins",
                "echo '* - memlock unlimited' > /etc/security/limits.d/99-rdma.conf",
            ),
            run(
                "Lift it for the daemon that starts jobs, and restart it",
                "systemctl edit slurmd  # [Service] LimitMEMLOCK=infinity",
            ),
            run(
                "Lift it for a container",
                "docker run --ulimit memlock=-1 --cap-add=IPC_LOCK",
            ),
        ],
        checks: &[
            CheckId("memlock.self"),
            CheckId("memlock.daemons"),
            CheckId("memlock.container"),
        ],
        sources: &[
            "openucx/ucx issues 8229, 8746",
            "NVIDIA/nccl-tests issue 206",
            "NVIDIA/nccl issue 380",
        ],
    },
    Cause {
        id: "bar1-small",
        title: "The GPU's BAR1 is too small for what is registered",
        why: "Registered GPU memory is reached through BAR1. With 256 MiB (T4, GeForce, \
              resizable BAR off) a large buffer, or many, find no room; small ones work.",
        patterns: &[
            sure(r"umem get failed"),
            // Hundreds of megabytes, in bytes.
            sure(r"reg_?mr.*bad address.*(length|len|size)\D{0,3}[1-9]\d{8,}"),
            likely(r"mr_umem_get.*(fail|-14|-12)"),
            likely(r"bar1.*(exhaust|full|too small|no space|insufficient|out of)"),
            likely(r"nvidia_p2p_get_pages.*(fail|error|-12|-22|ret)"),
            weak(r"regist\w+.*(large|big) buffer"),
        ],
        remedies: &[
            hand("Switch on Above-4G decoding and resizable BAR in the firmware's setup"),
            run(
                "Let the driver resize it",
                "options nvidia NVreg_EnableResizableBar=1",
            ),
            hand("Switch a data-centre GPU to its mode with a large BAR1 (displaymodeselector)"),
            hand("Or register in pieces that fit"),
        ],
        checks: &[
            CheckId("bar1.size"),
            CheckId("klog.umem"),
            CheckId("peermem.loaded"),
        ],
        sources: &[
            "Mellanox/nv_peer_memory issues 27, 101",
            "openucx/ucx issues 4513, 8049",
        ],
    },
];
