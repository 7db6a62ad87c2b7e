//! Devices and rights that a process lacks.

use super::{hand, likely, run, sure, weak};
use crate::check::CheckId;
use crate::explain::Cause;

pub(super) const CAUSES: &[Cause] = &[
    Cause {
        id: "no-rdma-device",
        title: "The process sees no usable RDMA device",
        why: "NCCL and UCX fall back to sockets where libibverbs lists nothing: the container \
              was not given /dev/infiniband, the provider library (libmlx5) is missing, no port \
              is ACTIVE, or a filter (NCCL_IB_HCA) matches none.",
        patterns: &[
            sure(r"net/ib ?: no device found"),
            sure(r"no (ib|rdma|infiniband) devices? (was |were )?found"),
            likely(r"unable to open device"),
            likely(r"using network socket"),
            likely(
                r"(failed to (get|open)|couldn'?t (get|open)).{0,30}(ib|rdma|infiniband|mlx\d).{0,10}device",
            ),
            likely(
                r"libibverbs: warning: .*(couldn'?t (load|open)|no userspace device-specific driver)",
            ),
            likely(r"failed to open libibverbs"),
        ],
        remedies: &[
            run(
                "See what is there",
                "gdr nics; gdr doctor --only dev.nodes,nic.driver,port.state",
            ),
            run(
                "Give the devices to the container",
                "docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1",
            ),
            run(
                "Install the provider",
                "apt install rdma-core ibverbs-providers",
            ),
            hand("Look at NCCL_IB_HCA and NCCL_IB_DISABLE"),
        ],
        checks: &[
            CheckId("dev.nodes"),
            CheckId("nic.present"),
            CheckId("nic.driver"),
            CheckId("port.state"),
            CheckId("uverbs.abi"),
        ],
        sources: &["NVIDIA/nccl issues 451, 941, 952"],
    },
    Cause {
        id: "ibgda-privilege",
        title: "GPU-initiated transfers (IBGDA) lack a right or a driver setting",
        why: "IBGDA opens mlx5 queues through DEVX and maps the NIC's doorbell into the GPU: it \
              needs the privilege for DEVX, and, before NVSHMEM 3.4.5 or with the full GPU \
              handler, the driver options PeerMappingOverride and EnableStreamMemOPs; and a NIC \
              of mlx5.",
        patterns: &[
            sure(r"init failed for transport: ?ibgda"),
            sure(r"mlx5dv_devx_(uar|alloc_uar)"),
            sure(r"cannot allocate buffer on the specified memory type"),
            likely(r"\bibgda\b.*(fail|error|unable|cannot|null)"),
            likely(r"\bdevx\b.*(fail|error|denied|not permitted|null)"),
        ],
        remedies: &[
            run(
                "Give the container the right",
                "docker run --privileged (or --cap-add=SYS_RAWIO,NET_RAW)",
            ),
            run(
                "Set the driver's options, then reboot",
                "options nvidia NVreg_EnableStreamMemOPs=1 \
                 NVreg_RegistryDwords=\"PeerMappingOverride=1;\"",
            ),
            run(
                "Or let the CPU ring the doorbells (NVSHMEM 3.4.5 or later)",
                "NVSHMEM_IBGDA_NIC_HANDLER=cpu",
            ),
        ],
        checks: &[CheckId("devx"), CheckId("nvidia.params")],
        sources: &[
            "sgl-project/sglang issue 12533",
            "NVIDIA/nvshmem issues 23, 51",
            "deepseek-ai/DeepEP issues 128, 484",
        ],
    },
    Cause {
        id: "gpu-lost",
        title: "The GPU has fallen off the bus",
        why: "Xid 79: the driver can no longer reach the GPU over PCIe. Everything that used it \
              fails from then on.",
        patterns: &[
            sure(r"gpu has fallen off the bus"),
            sure(r"xid \(pci:[0-9a-f:.]+\): 79\b"),
            weak(r"\brev ff\b"),
        ],
        remedies: &[
            hand("Power the machine off and on"),
            hand(
                "If it returns: reseat the card, its power and its riser; look for AER errors before it",
            ),
        ],
        checks: &[
            CheckId("gpu.present"),
            CheckId("link.aer"),
            CheckId("klog.xid"),
        ],
        sources: &["NVIDIA Xid catalogue"],
    },
];
