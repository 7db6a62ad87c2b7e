//! GPU memory that cannot be registered.

use super::{follows, hand, likely, run, sure, weak};
use crate::{Cause, Fact, Strength};
use gdr_doctor::kernel_log::expressions;

pub(super) const CAUSES: &[Cause] = &[
    Cause {
        id: "no-peer-memory-client",
        title: "The RDMA stack cannot register GPU memory",
        why: "ibv_reg_mr with a CUDA address fails with EFAULT (14) if no peer-memory client \
              claims the address. Either nvidia_peermem is not loaded on the host; or the memory \
              comes from the virtual memory API, cudaMallocAsync or PyTorch's expandable \
              segments, which the client cannot pin; or the GPU is a GeForce. UCX and NCCL detect \
              this when they start, and then work without GPUDirect RDMA.",
        patterns: &[
            sure(r"\b(ibv_|fi_)?(reg_mr|reg_mr_iova2?|exp_reg_mr|mr_reg\w*)\b.*bad address"),
            sure(r"(fail\w*|unable) to regist\w+ (memory|mr|buffer|gpu).*(bad address|\[14\])"),
            sure(r"\b(nvidia[_-]peermem|nv_peer_mem)(\.ko)? (is not|isn't|not) loaded"),
            sure(r"neither nv_peer_mem,? (or|nor) nvidia_peermem (was |were )?detected"),
            sure(r"net/ib\w* ?: ?gpu ?direct rdma (\(\w+\) )?disabled for hca"),
            sure(r"peermem is not supported, and device \d+ does not support dma-?buf"),
            sure(r"cuda gpu ?direct rdma is disabled"),
            sure(r"couldn'?t enable gpu ?direct rdma"),
            sure(r"failed to register address \S+ \((cuda|rocm)[\w-]*\)"),
            sure(
                r"\bmd \w*(mlx\d|ib|rocep|bnxt|irdma|efa)\w* cannot register (cuda|rocm)[\w-]* memory",
            ),
            likely(r"cannot register (cuda|rocm)[\w-]* memory"),
            likely(r"\bno support of dst md map|remote memory is unreachable \(remote md_map 0x0"),
            weak(r"cuda gpu ?direct rdma is not detected by checking"),
            sure(r"fi_hmem_cuda p2p support is not available"),
            sure(r"failed to register cuda buffer with the efa device"),
            sure(r"umem get failed \(-14\)"),
            likely(r"ib_umem_get: failed to get user pages"),
            weak(ucx_error!("ib_md|ib_mlx5dv_md|ucp_mm|ib_umr")),
            weak(nvshmem_error!("host/mem/")),
            weak(libfabric_warning!("mr")),
            likely(r"/memory_peers/\w+/version\W.{0,20}no such file"),
            weak(
                r"\b(nvidia[_-]peermem|nv_peer_mem|peermem)\b[^.;]{0,80}\b(fail\w*|error|unable|cannot|not (found|supported|available|registered)|unbound)\b",
            )
            .unless(r"nv_get_p2p_free_callback"),
            sure(r"failed to register \w*gpu\w* (buffer|memory)"),
            likely(r"couldn'?t (allocate|register)( gpu)? mr"),
            likely(r"(\breg\w*|\bmr)\b.*\berror=14\b"),
            likely(r"failed to (create|allocate) mr\b"),
            likely(r"(\bregist\w+|reg_mr)\b.*(errno[ =:]*14|\befault\b)"),
            weak(r"\b(call to )?ibv_reg_mr(_iova2?)?\(?\)?( call)? failed"),
            likely(
                r"\b(failed|unable) to register (a )?(memory region|chunk)|memory registration failed",
            ),
            weak(r"registerrdmamemoryregion failed.{0,80}errno[ =:]*22\b"),
            weak(r"unable to register memory\b|memory region not registered by any active device"),
            weak(r"^\W*(errno:? )?bad address\W*$"),
        ],
        remedies: &[
            hand("Use a data-centre GPU or a professional RTX; on this GPU, data goes through \
                  host memory")
                .only(&[Fact::GeForce]),
            hand("Register host memory instead, which the GPU of this machine uses without a copy")
                .only(&[Fact::Spark]),
            run(
                "Load the module on the host (not in the container)",
                "modprobe nvidia_peermem",
            )
            .unless(&[Fact::GeForce, Fact::Spark, Fact::PeermemLoaded]),
            run(
                "Or register by dma-buf, with the open driver and kernel 5.12 or later",
                "perftest: --use_cuda_dmabuf; NCCL: NCCL_DMABUF_ENABLE=1",
            ),
            run(
                "Allocate with plain cudaMalloc",
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
            ),
        ],
        facts: &[
            (
                Fact::GeForce,
                "The text names a GeForce. NVIDIA's driver does not support GPUDirect RDMA on it, \
                 whatever module is loaded.",
            ),
            (
                Fact::Spark,
                "The text names a DGX Spark. Its GPU has no memory of its own, and NVIDIA \
                 supports neither nvidia_peermem nor dma-buf on it.",
            ),
            (
                Fact::PeermemLoaded,
                "The text shows that a peer-memory module is loaded, so a missing module is not \
                 the reason.",
            ),
            (
                Fact::ExpandableSegments,
                "The text shows PyTorch's expandable segments, which the peer-memory module cannot pin.",
            ),
        ],
        checks: &[
            "peermem.loaded",
            "peermem.registered",
            "klog.umem",
            "dmabuf.gpu",
            "gpu.class",
        ],
        sources: &[
            "Mellanox/nv_peer_memory issues 36, 121",
            "linux-rdma/perftest issues 126, 346",
            "kvcache-ai/Mooncake issue 281",
            "microsoft/mscclpp issue 657",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "dmabuf-unsupported",
        title: "The NIC's driver, the kernel or rdma-core cannot import a dma-buf",
        why: "ibv_reg_dmabuf_mr needs kernel 5.12 or later (or a recent MLNX_OFED), a NIC driver \
              that implements it, and rdma-core 34 or later; on the GPU's side it needs the open \
              driver. EOPNOTSUPP and EPROTONOSUPPORT (93) mean that one of these is missing, and \
              ENOTSUPP that the driver refused the PCI topology.",
        patterns: &[
            sure(r"reg_dmabuf_mr.*(not supported|protocol not|error[ =]\d+|fail)"),
            sure(r"dma.?buf support\w* (is )?required for gpu rdma"),
            sure(r"\b(fi_)?mr_reg\w* failed for gpu memory.{0,60}not supported"),
            sure(r"\bmr\b.{0,20}\berror=93\b"),
            sure(r"cuMemGetHandleForAddressRange.*(not supported|fail|error)"),
            likely(r"dma.?buf.{0,60}(not supported|unsupported|is not available|unavailable)"),
            likely(r"failed to (export|get|import) (a )?dma.?buf"),
        ],
        remedies: &[
            hand("Upgrade the oldest of the kernel, the NIC driver (MLNX_OFED or DOCA) and \
                  rdma-core"),
            hand("Install the open flavour of NVIDIA's driver; the proprietary driver does not \
                  export dma-buf"),
            hand(
                "If it fails only in some threads, make a CUDA context current before registering \
                 memory, because libfabric exports memory through the driver API",
            ),
            run(
                "Until then, use the peer-memory module",
                "modprobe nvidia_peermem; NCCL_DMABUF_ENABLE=0",
            )
            .unless(&[Fact::Spark]),
        ],
        checks: &["dmabuf.nic", "dmabuf.gpu", "acs.path"],
        sources: &[
            "NVIDIA/nccl issue 778",
            "linux-rdma/perftest issue 280",
            "kvcache-ai/Mooncake issues 3177, 3538",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "dmabuf-attach-topology",
        title: "NVIDIA's driver refuses the NIC as a peer: they share no PCIe switch, and the \
                chipset is not known to forward peer-to-peer traffic",
        why: "On attach, the driver asks the kernel (pci_p2pdma_distance) whether the two devices \
              may exchange data. The kernel allows it below a common switch, or below host \
              bridges that it lists.",
        patterns: &[
            sure(expressions::DMABUF_TOPOLOGY),
            sure(r"dma-?buf attach failed: pci topology not supported for dma-?buf"),
            sure(
                r"cannot be used for peer-to-peer dma as the client and provider .{0,80} do not share",
            ),
            likely(r"\bctran error\b.{0,100}-> 524\b"),
            likely(r"\bctran-ib: buffer registration failed\b"),
        ],
        remedies: &[
            hand("Put the NIC and the GPU below the same PCIe switch"),
            run(
                "Or override the check at your own risk",
                "NVreg_RegistryDwords=GrdmaPciTopoCheckOverride=1",
            ),
        ],
        checks: &["topo.pair", "klog.dmabuf_topology"],
        sources: &[
            "open-gpu-kernel-modules nv-dmabuf.c; kernel drivers/pci/p2pdma.c",
            "meta-pytorch/torchcomms pull request 160",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "dmabuf-attach-force-pcie",
        title: "The NIC and the GPU are not in one IOMMU group, which data-direct mappings \
                require",
        why: "A FORCE_PCIE mapping (Grace and Blackwell with the NIC's own DMA function) is safe \
              only if both devices are in one IOMMU group. The groups are formed at boot from the \
              ACS bits of the ports between them.",
        patterns: &[sure(expressions::DMABUF_FORCE_PCIE)],
        remedies: &[run(
            "Set the ACS bits that this platform needs at boot",
            "pci=config_acs=<mask>@<port>; see the check acs.directnic",
        )],
        checks: &[
            "dmabuf.force_pcie",
            "acs.directnic",
            "klog.dmabuf_force_pcie",
        ],
        sources: &["open-gpu-kernel-modules nv-dmabuf.c, nv-pci.c; rdma-core rdma_topo"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "dmabuf-attach-struct-page",
        title: "The NIC's driver cannot use memory without struct page (it did not ask for \
                peer-to-peer)",
        why: "An importer declares with allow_peer2peer that it can handle device memory. Old NIC \
              drivers do not.",
        patterns: &[sure(expressions::DMABUF_STRUCT_PAGE)],
        remedies: &[hand(
            "Upgrade the kernel, or the NIC's driver (MLNX_OFED or DOCA)",
        )],
        checks: &["dmabuf.nic", "klog.dmabuf_struct_page"],
        sources: &["open-gpu-kernel-modules nv-dmabuf.c; kernel Documentation/driver-api/dma-buf"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "dmabuf-attach",
        title: "NVIDIA's driver refused to attach its dma-buf to this NIC",
        why: "The refusal in the kernel log says which of three checks failed: the PCI topology, \
              the mapping type FORCE_PCIE, or an importer without peer-to-peer.",
        patterns: &[likely(r"nvrm:? *dma-?buf attach failed")],
        remedies: &[run(
            "Read the whole line in the kernel log",
            "dmesg | grep 'dma-buf attach'",
        )],
        checks: &["topo.pair", "dmabuf.nic"],
        sources: &["open-gpu-kernel-modules nv-dmabuf.c"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "memlock",
        title: "The process that started the job has too low a limit of locked memory",
        why: "Queues, completion queues and host buffers are pinned and count against \
              RLIMIT_MEMLOCK (GPU memory does not). Jobs inherit the limit of the daemon that \
              starts them (sshd, slurmd, containerd). It is often 64 KiB or 8 MiB, whatever \
              limits.conf says.",
        patterns: &[
            sure(r"please set max locked memory"),
            sure(r"max locked memory\W+(kbytes|kilobytes|kb), -l\W+\d{1,6}$"),
            sure(r"\bmax locked memory +\d{1,8} +\d+ +bytes"),
            follows(
                r"(failed to create|unable to create|couldn'?t create)( an?)? (cq|qp|completion queue|queue pair)\b",
                r"cannot allocate memory",
                Strength::Sure,
            ),
            sure(r"rlimit_memlock (is|limit is|too|soft limit).{0,40}(small|low|bytes)"),
            sure(r"failed to initialize while trying to allocate some locked memory"),
            sure(r"umem get failed \(-12\)"),
            likely(r"memlock.{0,40}(too (low|small)|exceeded|insufficient|not enough)"),
            sure(
                r"\bibv_reg_mr\w*\b.{0,80}(cannot allocate memory|\benomem\b|\b(error|errno|code|ret)\b[ =:]*(code )?-?12\b|[\[(]-?12[\])])",
            )
            .unless(r"resource temporarily|\beagain\b|dma-?buf"),
            // No GPU address is named, so root or a larger limit is the first thing to try.
            likely(r"\bibv_reg_mr\(?\)?( call)? fail(ed|s|ure)?\W*$").unless(r"call to|cuda|nccl|nvshmem"),
            sure(r"\bulimit -l\W{1,3}[0-9]{1,6}\W*$"),
        ],
        remedies: &[
            run("See the job's limit", "grep 'locked' /proc/self/limits"),
            run(
                "Raise it for logins",
                "echo '* - memlock unlimited' > /etc/security/limits.d/99-rdma.conf",
            ),
            run(
                "Raise it for the daemon that starts jobs, and restart the daemon",
                "systemctl edit slurmd  # [Service] LimitMEMLOCK=infinity",
            ),
            run(
                "Raise it for a container",
                "docker run --ulimit memlock=-1 --cap-add=IPC_LOCK",
            ),
            run(
                "In Kubernetes, raise it for the runtime: IPC_LOCK has no effect unless the pod \
                 runs as root",
                "systemctl edit containerd  # [Service] LimitMEMLOCK=infinity",
            ),
        ],
        checks: &["memlock.self", "memlock.daemons", "memlock.container"],
        sources: &[
            "openucx/ucx issues 8229, 8746",
            "NVIDIA/nccl-tests issue 206",
            "NVIDIA/nccl issue 380",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "imex-channel",
        title: "There is no IMEX channel, so nodes cannot share memory by fabric handles",
        why: "With fabric handles (multi-node NVLink), the process needs a channel device of \
              nvidia-imex. Without it, and on machines without multi-node NVLink, cuMemCreate and \
              the export of a handle fail with 800 (not permitted) or 801 (not supported).",
        patterns: &[
            sure(r"nvidia-caps-imex-channels\b.{0,80}(no such|not found|missing|denied|not permitted|unable|fail)"),
            sure(r"\bimex (channel|domain)s?\b.{0,80}\b(no|not|missing|fail\w*|unavailable|unable|denied|down)\b"),
            sure(r"\b(no|missing|failed|unable|cannot|could not|without)\b.{0,60}\bimex (channel|domain)"),
            sure(r"cumemcreate\b.{0,120}(not[ _]permitted|\b800\b)"),
            sure(r"(not[ _]permitted|\b800\b).{0,120}\bcumemcreate"),
            likely(r"nccl warn (\S+ )?cuda failure 800\b"),
            weak(nccl_warning!("mnnvl")),
            likely(r"cumem(export|import)\w*shareablehandle\b.{0,120}(not[ _]permitted|not[ _]supported|\b80[01]\b)"),
            likely(r"cumemsetaccess\b.{0,160}(not[ _]supported|\b801\b|\bmultinode)|(not[ _]supported|\binvalid[ _]value)\b.{0,80}\bcumemsetaccess\b.{0,160}\bmultinode"),
            likely(r"(handle_type_fabric|fabric handles?)\b.{0,80}(not (supported|available|permitted)|unsupported|unavailable|fail)"),
        ],
        remedies: &[
            run(
                "Check whether the process has a channel",
                "ls -l /dev/nvidia-caps-imex-channels; nvidia-imex-ctl -N",
            ),
            run(
                "Create one, and start the daemon on all nodes of the domain",
                "nvidia-modprobe -c 0; systemctl start nvidia-imex",
            ),
            hand("In Kubernetes, use a ComputeDomain of NVIDIA's DRA driver, which gives pods \
                  their channel"),
            run(
                "On a machine without multi-node NVLink, turn fabric handles off",
                "NCCL_MNNVL_ENABLE=0; NVSHMEM_DISABLE_MNNVL=1; UCX_CUDA_IPC_ENABLE_MNNVL=n",
            ),
        ],
        checks: &["fabricmanager"],
        sources: &[
            "NVIDIA IMEX service guide: IMEX channels",
            "NVIDIA/nvbandwidth issues 39, 46",
            "microsoft/mscclpp issue 467",
            "kvcache-ai/Mooncake issue 1297",
            "NVIDIA/nccl issue 1647",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "imex-daemon",
        title: "This node's IMEX daemon is not ready",
        why: "The daemons of all nodes of a multi-node NVLink domain find each other by a list of \
              addresses. A daemon ends if the list has none of its own addresses, or if it finds \
              no peer. In Kubernetes, a ComputeDomain starts the daemons only while it is in use. \
              Machines without multi-node NVLink (HGX, DGX with eight GPUs) do not need the \
              daemon, and monitors that report it missing there are wrong.",
        patterns: &[
            sure(r"no matching network interface found for any ip address"),
            sure(r"\bimex daemon status is -?\d+ \(not ready\)|\bdcgm_fr_imex_unhealthy\b"),
            likely(r"\bcumemimportfromshareablehandle\b.{0,80}invalid (resource )?handle"),
            weak(r"\bcuda driver error: invalid resource handle\b"),
            likely(r"\b(nvidia-imex(\.service)?|imex (daemon|session|node|peer|version)s?)\b.{0,60}\b(fail\w*|inactive|exited|not (running|ready)|unavailable|down|in[ _]use|mismatch|unreachable|refused)\b"),
            likely(r"\b(fail\w*|unable|cannot|could not|error)\b.{0,40}\b(nvidia-imex|imex (daemon|session|node|peer|service)s?)\b"),
        ],
        remedies: &[
            run("See what the daemon reports", "nvidia-imex-ctl -N; journalctl -u nvidia-imex; cat /var/log/nvidia-imex.log"),
            run(
                "List the address of each node of the domain once, in the same list on all nodes, \
                 and restart the daemon",
                "cat /etc/nvidia-imex/nodes_config.cfg; systemctl restart nvidia-imex",
            ),
            hand("On a machine without multi-node NVLink, or without a ComputeDomain in use, \
                  nothing has to be done"),
        ],
        checks: &["fabricmanager"],
        sources: &[
            "NVIDIA IMEX service guide",
            "kubernetes-sigs/dra-driver-nvidia-gpu issue 289",
            "NVIDIA/NVSentinel issue 1471",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "cuda-ipc-memory",
        title: "CUDA IPC cannot share this GPU memory between processes",
        why: "cuIpcGetMemHandle accepts only memory from cudaMalloc. For memory from pools \
              (cudaMallocAsync) and from the virtual memory API (expandable segments, NCCL's own \
              buffers) it returns `invalid argument`.",
        patterns: &[
            sure(r"cu(da)?ipcgetmemhandle\b.{0,120}(invalid|fail|error)"),
            sure(r"(invalid|fail\w*|error).{0,80}\bcu(da)?ipcgetmemhandle\b"),
            likely(r"\b(legacy )?cuda ?ipc\b.{0,60}(not supported|unsupported|cannot).{0,60}\b(pool|malloc ?async|vmm|virtual)"),
        ],
        remedies: &[
            run("With UCX 1.17 and earlier, leave the transport out", "UCX_TLS=^cuda_ipc"),
            hand("Or update UCX: 1.18 and later share such memory by other handles"),
            run(
                "Or allocate with plain cudaMalloc",
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False NCCL_CUMEM_ENABLE=0",
            ),
        ],
        checks: &[],
        sources: &["openucx/ucx pull requests 10065, 10254", "CUDA Driver API: cuIpcGetMemHandle"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "bar1-small",
        title: "The GPU's BAR1 is too small for the registered memory",
        why: "The NIC reaches registered GPU memory through BAR1. If BAR1 has only 256 MiB (T4, \
              GeForce, resizable BAR off), a large buffer or many buffers do not fit; small \
              buffers work.",
        patterns: &[
            likely(r"\bsmall bar1\b|\bbar1\b.{0,30}\b(too small|exhausted)\b"),
            // Hundreds of megabytes, in bytes.
            sure(r"reg_?mr.*bad address.*(length|len|size)\D{0,3}[1-9]\d{8,}"),
            // An address in place of an error number, as old versions of nv_peer_mem returned it.
            sure(r"umem get failed \(-\d{6,}\)"),
            sure(
                r"nvidia_p2p_get_pages.{0,160}(ret(code)? ?= ?-12|error:? -12|failed.{0,10}-12)\b",
            ),
            likely(r"\bbar1\b.{0,40}(exhaust|full|too small|no space|insufficient|out of)|\bbar-usage failed"),
            likely(
                r"(register|registration|reg_mr).{0,60}\b(large|big|bigger|larger)\b.{0,40}\bfail",
            ),
            weak(r"gdr_pin_buffer.{0,60}(failed|error).{0,20}\b12\b"),
        ],
        remedies: &[
            hand("Enable Above-4G decoding and resizable BAR in the firmware's setup"),
            run(
                "Let the driver resize it",
                "options nvidia NVreg_EnableResizableBar=1",
            ),
            hand("Switch a data-centre GPU to its mode with a large BAR1 (displaymodeselector)"),
            hand("Or register in smaller pieces"),
        ],
        checks: &["bar1.size", "klog.umem", "peermem.loaded"],
        sources: &[
            "Mellanox/nv_peer_memory issues 27, 101",
            "openucx/ucx issues 4513, 8049",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "pages-refused",
        title: "NVIDIA's driver refuses to pin this address (EINVAL): the memory cannot be shared",
        why: "nvidia_p2p_get_pages returns -22 if the address or the length is not a multiple of \
              64 KiB, if the memory is not GPU memory of this process, if it was created by \
              cuMemCreate without gpuDirectRDMACapable, if the GPU does not support GPUDirect \
              RDMA (GeForce), or if CUDA and the driver are incompatible. If BAR1 is too small, \
              the error is -12 instead.",
        patterns: &[
            sure(r"nvidia_p2p_get_pages.{0,200}(-22\b|einval)"),
            sure(r"(-22\b|einval).{0,40}invoking nvidia_p2p_get_pages"),
            sure(r"invalid argument in nv_p2p_get_pages"),
            sure(r"gdr_pin_buffer(_v2)?\b.{0,80}(error|failed|returned|ret|code)\D{0,12}-?22\b"),
            sure(r"gdr_pin_buffer.{0,60}(einval|invalid argument)"),
            likely(r"\bgdr_pin_buffer(_v2)?\b.{0,80}failed"),
            likely(r"\bnvidia.fs\b.{0,40}\b(map|pin)\w*\b.{0,40}(fail|error)|\bnvfs_(pin|map)\w*\b.{0,40}(fail|error)"),
            weak(r"\bcufilebufregister\b.{0,40}(fail|error)"),
        ],
        remedies: &[
            hand(
                "Align the buffer and its length to 64 KiB, or let the library pin whole allocations",
            ),
            run(
                "Allocate with plain cudaMalloc; with cuMemCreate set gpuDirectRDMACapable",
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
            ),
            run(
                "Check that the GPU supports GPUDirect RDMA",
                "gdr doctor --only gpu.class",
            ),
        ],
        checks: &["gpu.class", "gdrdrv"],
        sources: &[
            "NVIDIA/gdrcopy issues 30, 139, 299",
            "NVIDIA/gds-nvidia-fs issue 14",
            "CUDA: Developing a Linux kernel module using GPUDirect RDMA",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "registration-arguments",
        title: "The RDMA driver is too old for the registration's flags, and refuses them",
        why: "ibv_reg_mr_iova2 returns EINVAL if the NIC's driver does not know a flag, most \
              often relaxed ordering, or if an old peer-memory client cannot pin memory from \
              CUDA's virtual memory API, which newer NCCL registers.",
        patterns: &[
            sure(
                r"\breg_mr(_iova2?)?\b.{0,60}invalid argument|ibv_reg_mr\w*.{0,60}(invalid argument|\berrno[ =:]*22\b|\beinval\b)",
            ),
        ],
        remedies: &[
            run(
                "Try without relaxed ordering",
                "NCCL_IB_PCI_RELAXED_ORDERING=0",
            ),
            hand("Update NVIDIA's driver, MLNX_OFED or DOCA, and rdma-core"),
            run(
                "Try without registering user buffers",
                "NCCL_CUMEM_ENABLE=0 NCCL_NVLS_ENABLE=0 NCCL_LOCAL_REGISTER=0",
            ),
        ],
        checks: &["pci.ro", "ofed.flavour", "nvidia.version"],
        sources: &["NVIDIA/nccl issues 782, 1842"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "keys-exhausted",
        title: "The NIC has no room for more memory keys or queues",
        why: "Each registration uses memory keys of the NIC. Killed programs, many processes with \
              large registration caches, or small firmware limits can exhaust them. Calls then \
              fail with ENOMEM or EAGAIN (11) even if the limit of locked memory is unlimited.",
        patterns: &[
            sure(r"async reg mr failed\. status -?1[12]\b"),
            sure(r"fail\w* to register memory.{0,60}(resource temporarily unavailable|\[11\])"),
            sure(r"reg_mr\w*\b.{0,80}resource temporarily unavailable"),
            sure(r"(create|allocate|register) (an? )?(mr|memory region)\b.{0,40}resource temporarily unavailable"),
            likely(r"only allow registering part of your physical memory"),
            sure(expressions::NIC_COMMAND_FULL),
            likely(r"\binfiniband \w+: failed to register mr \[-1[12]\]"),
        ],
        remedies: &[
            run(
                "See which programs hold them",
                "rdma resource show; rdma resource show mr",
            ),
            hand("End leftover programs; if the keys remain, reload mlx5_ib"),
            run(
                "Raise the limit on mappings if programs create many",
                "sysctl vm.max_map_count=1048576",
            ),
        ],
        checks: &["klog.nic_command"],
        sources: &[
            "openucx/ucx issue 6264",
            "kvcache-ai/Mooncake pull request 1765",
        ],
        ..Cause::DEFAULT
    },
];
