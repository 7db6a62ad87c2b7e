//! Paths between GPU and NIC that are blocked or slow.

use super::{hand, likely, run, sure, weak};
use crate::check::CheckId;
use crate::explain::Cause;

pub(super) const CAUSES: &[Cause] = &[
    Cause {
        id: "acs-redirect",
        title: "PCIe ACS (or the IOMMU) redirects or blocks what the NIC sends to the GPU",
        why: "The registration succeeded, then the NIC's own access to the GPU failed: a local \
              protection error (status 4, vendor error 0x51 = 81). On a machine without a \
              hypervisor the usual reason is ACS Request or Completion Redirect on a port between \
              the two, or an IOMMU that translates; in a virtual machine missing ATS.",
        patterns: &[
            sure(r"vendor[ _]?err(or|_syndrome)?[ =:]*(81|0x51)\b"),
            sure(r"syndrom\w*[ =:]*0x51\b"),
            likely(r"local protection"),
            likely(r"(status|error)[ =:]*4\b.*(vendor|opcode|wr_id|completion)"),
            likely(r"(completion|wc|cqe).*\b(status|error)[ =:]*4\b"),
            likely(r"ibv_wc_loc_prot_err|loc_prot_err"),
            weak(r"\bstatus=4\b"),
        ],
        remedies: &[
            run(
                "See which port redirects, and have it mended",
                "gdr doctor --only acs.path; gdr fix acs.path",
            ),
            run("At boot", "pci=disable_acs_redir=<port>;<port>"),
            run("Let the IOMMU pass DMA through", "iommu=pt"),
            run(
                "To confirm: does it work, slowly, without GPUDirect?",
                "NCCL_NET_GDR_LEVEL=LOC",
            ),
        ],
        checks: &[
            CheckId("acs.path"),
            CheckId("iommu.mode"),
            CheckId("iommu.faults"),
            CheckId("bar1.56bit"),
        ],
        sources: &[
            "Linux commit aaca43fda742",
            "NVIDIA/nccl issues 214, 304, 660, 928",
            "openucx/ucx issues 3564, 9515",
            "linux-rdma/perftest issues 140, 173, 200, 289",
        ],
    },
    Cause {
        id: "gdr-unused",
        title: "It works, but the data goes through host memory: NCCL does not use GPUDirect here",
        why: "NCCL takes GPUDirect RDMA where the NIC is at distance PXB or nearer and dma-buf \
              or a peer-memory module is there; otherwise it stages through the CPU without a \
              word. Its log then says `via NET/IB/0` without `/GDRDMA`.",
        patterns: &[
            likely(r"via net/(ib|ibext\w*|rocm|ucx)/\d+(\(\d+\))?(/shared)?\s*$"),
            likely(r"gpu ?direct rdma (is )?disabled"),
            likely(r"(gdr|gpudirect)\s*[:=]?\s*0\b"),
            likely(r"(without|no|not using) (/)?gdr(dma)?\b"),
            weak(r"gpu ?direct.*(disabled|not (available|supported|enabled|used))"),
        ],
        remedies: &[
            run(
                "See why, pair by pair",
                "gdr doctor --for nccl; gdr topo why GPU0 mlx5_0",
            ),
            run(
                "Make the driver's side available",
                "modprobe nvidia_peermem",
            ),
            run(
                "Try it over a longer path, and measure",
                "NCCL_NET_GDR_LEVEL=PHB (or SYS)",
            ),
            hand("Move the NIC to a slot below the GPU's switch"),
        ],
        checks: &[
            CheckId("topo.pair"),
            CheckId("peermem.loaded"),
            CheckId("dmabuf.gpu"),
            CheckId("dmabuf.nic"),
        ],
        sources: &[
            "NVIDIA/nccl issues 465, 489; src/graph/paths.cc",
            "Mellanox/nv_peer_memory issue 50",
        ],
    },
    Cause {
        id: "slow-path",
        title: "GPU memory is reached, but over a slow path",
        why: "The bandwidth to GPU memory is far below that to host memory: the two are on \
              different sockets or host bridges, ACS sends the traffic up to the root complex, or \
              the NIC's reads are small (MRRS 512) or strictly ordered.",
        patterns: &[
            likely(r"(--)?use_cuda.*(gb/s|gb/sec|bandwidth|bw|slow|vs\.?)"),
            likely(
                r"gpu.{0,30}(bandwidth|bw|throughput).{0,30}(low|slow|half|far below|below|less)",
            ),
            likely(
                r"(low|slow|poor|half|bad)\w*.{0,30}(gpu ?direct|gdr|gpu).{0,20}(bandwidth|bw|performance|throughput)?",
            ),
            weak(r"(slow|low) (bandwidth|bw|performance|throughput)"),
        ],
        remedies: &[
            run(
                "See the distance and the links of each pair",
                "gdr topo; gdr doctor --group pcie",
            ),
            hand("First the path: a NIC below the GPU's switch, ACS redirection off on it"),
            run("Then the NIC: reads of 4096 bytes", "gdr fix pci.mrrs"),
            hand("Then relaxed ordering, and more than one queue pair"),
        ],
        checks: &[
            CheckId("topo.pair"),
            CheckId("acs.path"),
            CheckId("pci.mrrs"),
            CheckId("pci.ro"),
            CheckId("link.width"),
            CheckId("link.bottleneck"),
        ],
        sources: &[
            "linux-rdma/perftest issue 241",
            "kvcache-ai/Mooncake issue 1459",
        ],
    },
    Cause {
        id: "p2p-hang",
        title: "It hangs: writes between peers vanish in ACS or the IOMMU",
        why: "With ACS redirection and an IOMMU a peer's write may be dropped without an error; \
              who waits for its flag waits for ever. It shows in all_reduce or at NCCL's start \
              with P2P or GPUDirect on.",
        patterns: &[
            likely(
                r"(hang\w*|hung|stuck|freez\w*|deadlock\w*|blocks? forever).{0,80}(all_?reduce|all_?gather|nccl|init|p2p|gdr|gpudirect|collective)",
            ),
            likely(
                r"(all_?reduce|all_?gather|nccl|ncclcomminit\w*|p2p|gdr|collective)\b.{0,80}(hang\w*|hung|stuck|freez\w*|deadlock)",
            ),
            likely(r"watchdog caught collective operation timeout"),
        ],
        remedies: &[
            run(
                "See what redirects",
                "gdr doctor --only acs.path,iommu.mode",
            ),
            run(
                "Switch ACS redirection off on the path, root ports included",
                "gdr fix acs.path",
            ),
            run("Let the IOMMU pass DMA through", "iommu=pt"),
            run("To confirm", "NCCL_P2P_DISABLE=1 NCCL_NET_GDR_LEVEL=LOC"),
        ],
        checks: &[
            CheckId("acs.path"),
            CheckId("iommu.mode"),
            CheckId("iommu.faults"),
        ],
        sources: &[
            "NVIDIA/nccl issues 603, 606, 1737, 2079",
            "NVIDIA/nccl-tests issue 115",
        ],
    },
    Cause {
        id: "root-port-reads",
        title: "The CPU forwards peer writes between root ports, but not peer reads",
        why: "Client processors of Intel (seen on Arrow Lake) forward posted writes from one root \
              port to another and fail reads: RDMA WRITE into the GPU works, RDMA READ from it \
              ends in a remote operation error (11), syndrome 0x89.",
        patterns: &[
            sure(r"syndrom\w*[ =:]*0x89\b"),
            sure(r"vendor[ _]?err(or|_syndrome)?[ =:]*(137|0x89)\b"),
            likely(r"reads? fail\w*.{0,40}writes? (work|succe|ok|pass|fine)"),
            likely(r"writes? (work|succe|ok|pass|fine)\w*.{0,40}reads? (fail|do not|don't|error)"),
            likely(r"remote operation error"),
            likely(r"ibv_wc_rem_op_err"),
            weak(r"\bstatus=11\b"),
        ],
        remedies: &[
            hand("Put GPU and NIC below one PCIe switch"),
            hand("Or use a server processor, which forwards both"),
            hand("Or let the GPU's side write (push), and never be read from"),
        ],
        checks: &[CheckId("topo.p2p_chipset"), CheckId("topo.pair")],
        sources: &[
            "NVIDIA/open-gpu-kernel-modules issue 1253",
            "linux-rdma/perftest issue 200",
        ],
    },
    Cause {
        id: "vm-topology",
        title: "The virtual machine hides the PCI tree: everything looks equally far",
        why: "With a flat guest bus every pair is PHB, so that NCCL uses neither GPUDirect nor \
              the nearest NIC; and without ACS Direct Translated and ATS on the host, peer \
              traffic takes the long way.",
        patterns: &[
            likely(
                r"\b(vm|vms|virtual machine|guest|qemu|kvm|hypervisor|esxi|pass-?through)\b.{0,80}\b(phb|half (the )?bandwidth|topolog\w+|bandwidth)\b",
            ),
            likely(
                r"\b(phb|half (the )?bandwidth|topolog\w+)\b.{0,80}\b(vm|vms|virtual machine|guest|qemu|kvm|hypervisor|esxi|pass-?through)\b",
            ),
        ],
        remedies: &[
            run(
                "Give NCCL the real tree",
                "NCCL_TOPO_FILE=<xml>; see gdr topo --format nccl-xml",
            ),
            hand("On the host: give the guest switches or root ports as on the machine"),
            hand("On the host: ATS on in the NIC, ACS Direct Translated on its downstream port"),
        ],
        checks: &[CheckId("vm.topology"), CheckId("acs.virt"), CheckId("virt")],
        sources: &[
            "NVIDIA/nccl issues 949, 1464",
            "NVIDIA/nccl-tests issue 201",
        ],
    },
];
