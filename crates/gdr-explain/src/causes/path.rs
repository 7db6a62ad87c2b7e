//! Paths between GPU and NIC that are blocked or slow.

use super::{CALL, DUMP, follows, hand, likely, run, sure, weak};
use crate::{Cause, Fact, Strength};

pub(super) const CAUSES: &[Cause] = &[
    Cause {
        id: "acs-redirect",
        title: "PCIe ACS (or the IOMMU) redirects or blocks what the NIC sends to the GPU",
        why: "The registration succeeded, then the NIC's own access to the GPU failed: a local \
              protection error (status 4, vendor error 0x51 = 81). On a machine without a \
              hypervisor the usual reason is ACS Request or Completion Redirect on a port between \
              the two, or an IOMMU that translates; in a virtual machine missing ATS.",
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
        title: "It works, but the data goes through host memory: NCCL does not use GPUDirect here",
        why: "NCCL takes GPUDirect RDMA where the NIC is at distance PXB or nearer and dma-buf \
              or a peer-memory module is there; otherwise it stages through the CPU without a \
              word. Its log then says `via NET/IB/0` without `/GDRDMA`.",
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
                "See why, pair by pair",
                "gdr doctor --for nccl; gdr topo why GPU0 mlx5_0",
            ),
            run(
                "Make the driver's side available",
                "modprobe nvidia_peermem",
            )
            .unless(&[Fact::Spark]),
            run(
                "Try it over a longer path, and measure",
                "NCCL_NET_GDR_LEVEL=PHB (or SYS)",
            ),
            hand("Move the NIC to a slot below the GPU's switch")
                .unless(&[Fact::VirtualMachine, Fact::Spark]),
            run(
                "In a virtual machine: give NCCL the host's topology",
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
        why: "The bandwidth to GPU memory is far below that to host memory: the two are on \
              different sockets or host bridges, ACS sends the traffic up to the root complex, or \
              the NIC's reads are small (MRRS 512) or strictly ordered.",
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
            hand("First the path: a NIC below the GPU's switch, ACS redirection off on it"),
            run("Then the NIC: reads of 4096 bytes", "gdr fix pci.mrrs"),
            hand("Then relaxed ordering, and more than one queue pair"),
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
        title: "It hangs: writes between peers vanish in ACS or the IOMMU",
        why: "With ACS redirection and an IOMMU a peer's write may be dropped without an error; \
              who waits for its flag waits for ever. It shows in all_reduce or at NCCL's start \
              with P2P or GPUDirect on.",
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
        why: "GPUs of GeForce, of different root ports without support by the chipset, in MIG mode or \
              behind an IOMMU that translates cannot map each other's memory. NCCL looks before it uses \
              it, and fails where its view of the machine is wrong: a topology file, a container that \
              hides devices, or P2P that is switched on by hand.",
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
            run("Do without", "NCCL_P2P_DISABLE=1"),
            run(
                "Take settings by hand away",
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
        why: "Client processors of Intel (seen on Arrow Lake) forward posted writes from one root \
              port to another and fail inputs: RDMA WRITE into the GPU works, RDMA READ from it \
              ends in a remote operation error (11), syndrome 0x89.",
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
            hand("Put GPU and NIC below one PCIe switch"),
            hand("Or use a server processor, which forwards both"),
            hand("Or let the GPU's side write (push), and never be read from"),
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
        checks: &["vm.topology", "acs.virt", "virt"],
        sources: &[
            "NVIDIA/nccl issues 949, 1464",
            "NVIDIA/nccl-tests issue 201",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "gdr-distance",
        title: "NCCL does not use GPUDirect RDMA of this pair: the NIC is too far from the GPU",
        why: "The line gives the distance of GPU and NIC and the greatest that is allowed. Distances \
              ascend LOC, NVL, NVB, (C2C,) PIX, PXB, (P2C, PXN,) PHB, SYS, and their numbers differ \
              from version to version; the default allows PXB, a path through PCIe switches only.",
        patterns: &[
            sure(r"gpu ?direct rdma disabled for (gpu|rank) .{0,40}distance \d+ >=? \d+"),
            sure(r"gpu ?direct rdma disabled for gpu .{0,40}/ hca"),
        ],
        detail: Some(distance),
        remedies: &[
            run(
                "See the distances, and why",
                "gdr topo; gdr topo why GPU0 mlx5_0",
            ),
            hand("Use the NIC below the GPU's own switch, or move it there")
                .unless(&[Fact::VirtualMachine, Fact::Spark]),
            run(
                "Allow the longer path, and measure",
                "NCCL_NET_GDR_LEVEL=PHB (or SYS)",
            ),
            run(
                "In a virtual machine give NCCL the real tree",
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
