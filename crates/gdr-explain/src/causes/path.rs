//! Paths between GPU and NIC that are blocked or slow.

use super::{CALL, DUMP, follows, hand, likely, run, sure, weak};
use crate::{Cause, Fact, Strength};

pub(super) const CAUSES: &[Cause] = &[
    Cause {
        id: "acs-redirect",
        title: "PCIe ACS (or the IOMMU) redirects or blocks what the NIC sends to the GPU",
        why: "The registration succeeded, but then the NIC's own access to the GPU failed with a \
              local protection error (status 4, vendor error 0x51 = 81). On a machine without a \
              hypervisor, the usual reason is ACS Request or Completion Redirect on a port \
              between the two, or an IOMMU that translates. In a virtual machine, ATS is usually \
              missing.",
        patterns: &[
            sure(vendor!("81|0x51")),
            sure(r"acs redirect is set between the client and provider"),
            follows(DUMP, r"\b0000510[0-9a-f]\b", Strength::Sure),
            likely(r"local protection (error|on|fault)|local protection:"),
            likely(status!("4")).unless(CALL),
            likely(r"\b(ibv_wc_)?loc_prot_err\b"),
        ],
        remedies: &[
            run(
                "See which port redirects, and fix it",
                "gdr doctor --only acs.path; gdr fix acs.path",
            ),
            run("Turn redirection off at boot", "pci=disable_acs_redir=<port>;<port>"),
            run("Let the IOMMU pass DMA through", "iommu=pt"),
            run(
                "To confirm, check whether it works, slowly, without GPUDirect",
                "NCCL_NET_GDR_LEVEL=LOC",
            ),
        ],
        checks: &["acs.path", "iommu.mode", "iommu.faults", "bar1.56bit"],
        sources: &[
            "Linux commit aaca43fda742",
            "NVIDIA/nccl issues 214, 304, 660, 928",
            "openucx/ucx issues 3564, 9515",
            "linux-rdma/perftest issues 140, 173, 200, 289",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "gdr-unused",
        title: "It works, but NCCL does not use GPUDirect RDMA here, and the data goes through \
                host memory",
        why: "NCCL uses GPUDirect RDMA if the NIC is at distance PXB or nearer and dma-buf or a \
              peer-memory module is available. Otherwise it stages data through the CPU without a \
              warning, and its log says `via NET/IB/0` without `/GDRDMA`.",
        patterns: &[
            likely(
                r"\bgpu ?direct( rdma)? (is )?(disabled|not (available|supported|enabled|used))\b",
            )
            .unless(r"\brocm gpu ?direct"),
            likely(r"\bgpu ?direct\b.{0,30}\b(disabled|not (available|supported|enabled|used))\b")
                .unless(r"\b(rocm gpu ?direct|gpu ?direct storage)"),
            likely(r"\bgdr\b.{0,20}\b(disabled|not (available|supported|enabled|used))\b"),
            likely(r"\b(gdr|gdrdma|gpu_?direct(_rdma)?)\b ?[:=] ?(0|false|no|off|disabled)\b"),
            likely(r"\b(without|not using) /?gdr(dma)?\b"),
            likely(r"gdr 0\b.{0,20}\bhca|\bno gdr(dma)?\b"),
        ],
        remedies: &[
            run(
                "See the reason for each pair",
                "gdr doctor --for nccl; gdr topo why GPU0 mlx5_0",
            ),
            run(
                "Load the peer-memory module",
                "modprobe nvidia_peermem",
            )
            .unless(&[Fact::Spark]),
            run(
                "Allow a longer path, and measure",
                "NCCL_NET_GDR_LEVEL=PHB (or SYS)",
            ),
            hand("Move the NIC to a slot below the GPU's switch")
                .unless(&[Fact::VirtualMachine, Fact::Spark]),
            run(
                "In a virtual machine, give NCCL the host's topology",
                "NCCL_TOPO_FILE=<file>",
            )
            .only(&[Fact::VirtualMachine]),
        ],
        checks: &["topo.pair", "peermem.loaded", "dmabuf.gpu", "dmabuf.nic"],
        sources: &[
            "NVIDIA/nccl issues 465, 489; src/graph/paths.cc",
            "Mellanox/nv_peer_memory issue 50",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "slow-path",
        title: "GPU memory is reached, but over a slow path",
        why: "The bandwidth to GPU memory is far below the bandwidth to host memory. The GPU and \
              the NIC are on different sockets or host bridges, ACS sends the traffic up to the \
              root complex, or the NIC's reads are small (MRRS 512) or strictly ordered.",
        patterns: &[
            likely(
                r"use_cuda\b.{0,40}\b\d[\d.]* ?g(b|bit|ib)/?s.{0,40}\b\d[\d.]* ?g(b|bit|ib)/?s.{0,20}\b(without|host|cpu|instead)\b",
            ),
            likely(r"\buse_cuda\b.{0,60}\b(slow|slower|half|only \d[\d.]* ?g)"),
            likely(
                r"\b(gpu|gdr|gpu ?direct)\b.{0,30}\b(bandwidth|bw|throughput|performance)\b.{0,30}\b(low|lower|slow|slower|half|far below|below|less|poor|bad)\b",
            ),
            likely(
                r"\b(low|lower|slow|slower|poor|half|bad)\b.{0,20}\b(gpu ?direct|gdr|gpu)\b.{0,20}\b(bandwidth|bw|performance|throughput)\b",
            ),
            likely(r"\b(gpu|ib|hca|nic)s?\b.{0,40}\bnot on the same (socket|numa node|root complex|pcie? \w+)"),
        ],
        remedies: &[
            run(
                "See the distance and the links of each pair",
                "gdr topo; gdr doctor --group pcie",
            ),
            hand("First fix the path: use a NIC below the GPU's switch, and turn ACS redirection \
                  off on it"),
            run("Then set the NIC's read requests to 4096 bytes", "gdr fix pci.mrrs"),
            hand("Then try relaxed ordering, and more than one queue pair"),
        ],
        checks: &[
            "topo.pair",
            "acs.path",
            "pci.mrrs",
            "pci.ro",
            "link.width",
            "link.bottleneck",
        ],
        sources: &[
            "linux-rdma/perftest issue 241",
            "kvcache-ai/Mooncake issue 1459",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "p2p-hang",
        title: "The program hangs because writes between peers are lost in ACS or the IOMMU",
        why: "With ACS redirection and an IOMMU, a peer's write may be dropped without an error, \
              and a program that waits for its flag waits forever. This happens in all_reduce or \
              when NCCL starts, with P2P or GPUDirect on.",
        patterns: &[
            likely(
                r"\b(hangs?|hanging|hung|stuck|freez\w*|deadlocks?|blocks? forever)\b.{0,80}\b(all_?reduce|all_?gather|nccl\w*|init\w*|p2p|gdr|gpudirect|collective)\b",
            )
            .unless(r"\bwatchdog got stuck"),
            likely(
                r"\b(all_?reduce|all_?gather|nccl|ncclcomminit\w*|p2p|gdr|collective)\b.{0,80}\b(hangs?|hanging|hung|stuck|freez\w*|deadlocks?)\b",
            )
            .unless(r"\bwatchdog got stuck"),
            weak(r"watchdog (caught collective operation timeout|got stuck)"),
        ],
        remedies: &[
            run(
                "See which ports redirect",
                "gdr doctor --only acs.path,iommu.mode",
            ),
            run(
                "Turn ACS redirection off on the path, including the root ports",
                "gdr fix acs.path",
            ),
            run("Let the IOMMU pass DMA through", "iommu=pt"),
            run("To confirm", "NCCL_P2P_DISABLE=1 NCCL_NET_GDR_LEVEL=LOC"),
        ],
        checks: &["acs.path", "iommu.mode", "iommu.faults"],
        sources: &[
            "NVIDIA/nccl issues 603, 606, 1737, 2079",
            "NVIDIA/nccl-tests issue 115",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "peer-access",
        title: "CUDA offers no peer access between two GPUs",
        why: "GPUs cannot map each other's memory if they are GeForce GPUs, are below different \
              root ports without support from the chipset, are in MIG mode, or are behind an \
              IOMMU that translates. NCCL checks this before using peer access, and fails if its \
              view of the machine is wrong because of a topology file, a container that hides \
              devices, or P2P that was turned on by hand.",
        patterns: &[
            sure(
                r"peer access is not supported between these two devices|\bcuda_?error_?peer_?access_?unsupported\b",
            ),
            likely(r"\bdevice=\d+ cannot access peer device=\d+"),
            likely(r"nvrm: .*\b\w*(p2p|peer|staticbar1)\w*.*\b(fail\w*|not aligned|cannot|unable)\b"),
            weak(ucx_error!("cuda_ipc_\\w+")),
            weak(nccl_warning!("transport/p2p")),
            likely(r"\bcu(da)?ipcopenmemhandle\b.{0,80}(fail|error|invalid)"),
            likely(r"'?mapping of buffer object failed|\bcuda_?error_?map_?(buffer_?object_?)?failed\b"),
        ],
        remedies: &[
            run("See what CUDA offers", "nvidia-smi topo -p2p r; gdr topo"),
            run("Turn peer access off", "NCCL_P2P_DISABLE=1"),
            run(
                "Remove manual settings",
                "unset NCCL_P2P_LEVEL NCCL_TOPO_FILE",
            ),
        ],
        checks: &["iommu.mode", "acs.path", "topo.pair"],
        sources: &[
            "CUDA Runtime API: cudaErrorPeerAccessUnsupported",
            "NVIDIA/nccl src/transport/p2p.cc",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "root-port-reads",
        title: "The CPU forwards peer writes between root ports, but not peer reads",
        why: "Intel's client processors (seen on Arrow Lake) forward posted writes from one root \
              port to another, but not reads. RDMA WRITE into the GPU works, but RDMA READ from \
              it ends in a remote operation error (11), syndrome 0x89.",
        patterns: &[
            sure(vendor!("137|0x89")),
            follows(DUMP, r"\b0000891[0-9a-f]\b", Strength::Sure),
            likely(r"\breads? fail\w*.{0,40}writes? (work|succe|ok|pass|fine)"),
            likely(
                r"\bwrites? (work|succe|ok|pass|fine)\w*.{0,40}reads? (fail|do not|don't|error)",
            ),
            likely(r"remote operation error"),
            likely(r"\b(ibv_wc_)?rem_op_err\b"),
            likely(status!("11")).unless(CALL),
        ],
        remedies: &[
            hand("Put the GPU and the NIC below one PCIe switch"),
            hand("Or use a server processor, which forwards both"),
            hand("Or let the GPU's side only write (push), so that nothing reads from it"),
        ],
        checks: &["topo.p2p_chipset", "topo.pair"],
        sources: &[
            "NVIDIA/open-gpu-kernel-modules issue 1253",
            "linux-rdma/perftest issue 200",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "vm-topology",
        title: "The virtual machine hides the PCI tree, and all devices appear equally far apart",
        why: "On a flat guest bus every pair is PHB, so NCCL uses neither GPUDirect RDMA nor the \
              nearest NIC. Without ACS Direct Translated and ATS on the host, peer traffic takes \
              the long path.",
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
                "Give NCCL the real topology",
                "NCCL_TOPO_FILE=<xml>; see gdr topo --format nccl-xml",
            ),
            hand("On the host, give the guest the machine's switches or root ports"),
            hand("On the host, enable ATS in the NIC and ACS Direct Translated on its downstream \
                  port"),
        ],
        checks: &["vm.topology", "acs.virt", "virt"],
        sources: &[
            "NVIDIA/nccl issues 949, 1464",
            "NVIDIA/nccl-tests issue 201",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "gdr-distance",
        title: "NCCL does not use GPUDirect RDMA for this pair because the NIC is too far from \
                the GPU",
        why: "The line gives the distance between the GPU and the NIC and the greatest allowed \
              distance. Distances increase in the order LOC, NVL, NVB, (C2C,) PIX, PXB, (P2C, \
              PXN,) PHB, SYS; their numbers differ between versions. The default allows PXB, a \
              path through PCIe switches only.",
        patterns: &[
            sure(r"gpu ?direct rdma disabled for (gpu|rank) .{0,40}distance \d+ >=? \d+"),
            sure(r"gpu ?direct rdma disabled for gpu .{0,40}/ hca"),
        ],
        detail: Some(distance),
        remedies: &[
            run(
                "See the distances and the reasons for them",
                "gdr topo; gdr topo why GPU0 mlx5_0",
            ),
            hand("Use the NIC below the GPU's own switch, or move it there")
                .unless(&[Fact::VirtualMachine, Fact::Spark]),
            run(
                "Allow the longer path, and measure",
                "NCCL_NET_GDR_LEVEL=PHB (or SYS)",
            ),
            run(
                "In a virtual machine, give NCCL the real topology",
                "NCCL_TOPO_FILE=<xml>",
            ),
        ],
        checks: &["topo.pair", "topo.bestnic", "vm.topology"],
        sources: &["NVIDIA/nccl src/graph/paths.cc; issues 489, 1657"],
        ..Cause::DEFAULT
    },
];

/// `distance 7 > 4`, of the line.
fn distance(line: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(line).to_lowercase();
    let start = text.find("gpu direct rdma disabled for ")?;
    let rest = &text[start + "gpu direct rdma disabled for ".len()..];
    let end = rest.find(')').unwrap_or(rest.len());
    Some(rest[..end].replace('(', "at ").to_owned())
}
