//! Connections that fail between nodes.

use super::{hand, likely, run, sure, weak};
use crate::check::CheckId;
use crate::explain::Cause;

pub(super) const CAUSES: &[Cause] = &[
    Cause {
        id: "transport-timeout",
        title: "The two ends cannot reach each other: the NIC gave up after its retries",
        why: "Status 12 (retry exceeded, vendor error 129 = 0x81) is a packet that nobody \
              acknowledged: the wrong GID index (link-local, RoCE v1), a VLAN or subnet that does \
              not route, a firewall on UDP port 4791, rails that are not joined, or loss without \
              flow control.",
        patterns: &[
            sure(r"vendor[ _]?err(or|_syndrome)?[ =:]*(129|0x81)\b"),
            sure(r"syndrom\w*[ =:]*0x81\b"),
            sure(r"transport retry counter exceeded|ibv_wc_retry_exc_err|retry[_ ]exc"),
            likely(r"(completion|wc|cqe|got).*\b(status|error)[ =:]*12\b"),
            likely(r"(status|error)[ =:]*12\b.*(vendor|opcode|completion)"),
            weak(r"\bstatus=12\b"),
        ],
        remedies: &[
            run(
                "See which GID index routes",
                "gdr doctor --only roce.gid,roce.ip,port.state",
            ),
            run("Choose the routable RoCE v2 one", "NCCL_IB_GID_INDEX=3"),
            run(
                "Try the two NICs alone",
                "ib_write_bw -d mlx5_0 -x 3 <peer>",
            ),
            run(
                "Keep to a rail where rails are not joined",
                "NCCL_CROSS_NIC=0",
            ),
            run("Only then wait longer", "NCCL_IB_TIMEOUT=22"),
        ],
        checks: &[
            CheckId("roce.gid"),
            CheckId("roce.ip"),
            CheckId("port.state"),
            CheckId("roce.pfc"),
            CheckId("roce.counters"),
        ],
        sources: &[
            "NVIDIA/nccl issues 426, 769, 902, 1664",
            "pytorch/pytorch issue 81628",
        ],
    },
    Cause {
        id: "address-resolution",
        title: "The peer's address cannot be resolved when the queue pair is connected",
        why: "For RoCE the kernel resolves the peer's GID to a MAC address when the queue pair \
              goes to RTR. A link-local GID, another subnet without a route, or a rail that is not \
              joined ends in a time-out or in `no route`.",
        patterns: &[
            sure(
                r"ibv_modify_qp\b.*(connection timed out|network is unreachable|no route to host|\b110\b|\b101\b|\b113\b)",
            ),
            sure(r"modify.{0,12}qp.{0,20}\brtr\b.*(timed out|unreachable|no route)"),
            likely(r"failed to modify qp.{0,20}(to )?rtr"),
            likely(r"rdma_resolve_(addr|route).*(fail|error|timed|unreach)"),
        ],
        remedies: &[
            run(
                "See which GID index routes",
                "gdr doctor --only roce.gid,roce.ip",
            ),
            run(
                "Choose the routable RoCE v2 one",
                "NCCL_IB_GID_INDEX=3 (perftest: -x 3)",
            ),
            run(
                "See whether the addresses reach each other",
                "ping -I <netdev> <peer>",
            ),
        ],
        checks: &[CheckId("roce.gid"), CheckId("roce.ip")],
        sources: &["NVIDIA/nccl-tests issue 185", "uccl-project/uccl issue 641"],
    },
    Cause {
        id: "gid-other-namespace",
        title: "The GID's network interface is in another network namespace, or gone",
        why: "ibv_modify_qp to RTR needs the interface that the GID belongs to, in this \
              namespace. In a container with its own network it is not there: ENODEV (19).",
        patterns: &[
            sure(r"ibv_modify_qp\b.*(no such device|\berrno[ =:]*19\b|\[19\])"),
            likely(r"modify.{0,12}qp.*no such device"),
        ],
        remedies: &[
            run(
                "Use the host's network",
                "docker run --network=host; hostNetwork: true",
            ),
            run(
                "Or move the RDMA device into the namespace",
                "rdma system set netns exclusive; rdma dev set mlx5_0 netns <name>",
            ),
            run(
                "Or choose a GID whose interface is here",
                "NCCL_IB_GID_INDEX=<n>",
            ),
        ],
        checks: &[CheckId("netns"), CheckId("roce.gid")],
        sources: &["NVIDIA/nccl issue 925", "microsoft/mscclpp issue 431"],
    },
    Cause {
        id: "remote-access",
        title: "The other end refused the access: its GPU memory is not reachable for the NIC",
        why: "A remote access error (syndrome 0x14) with GPU buffers, seen with MPI on B200, is \
              a GPUDirect path that is not active over there: the proprietary driver without \
              nvidia_peermem.",
        patterns: &[
            sure(r"syndrom\w*[ =:]*0x14\b"),
            sure(r"vendor[ _]?err(or|_syndrome)?[ =:]*(136|0x88)\b"),
            likely(r"remote access error"),
            likely(r"ibv_wc_rem_access_err|rem_access_err"),
            weak(r"\bstatus=10\b"),
        ],
        remedies: &[
            hand("Install the open flavour of NVIDIA's driver on every node"),
            run(
                "Or load the peer-memory module on every node",
                "modprobe nvidia_peermem",
            ),
        ],
        checks: &[
            CheckId("nvidia.version"),
            CheckId("peermem.loaded"),
            CheckId("dmabuf.gpu"),
        ],
        sources: &["open-mpi/ompi issue 13183"],
    },
    Cause {
        id: "flush-error",
        title: "This error follows from another: look at the first one",
        why: "Status 5 (flushed, vendor error 249) is what all work gets that was queued behind \
              the work that failed.",
        patterns: &[
            likely(r"vendor[ _]?err(or|_syndrome)?[ =:]*(249|0xf9)\b"),
            likely(r"(work request|wr) flush\w*|wr_flush_err"),
            likely(r"(completion|wc|cqe|got).*\b(status|error)[ =:]*5\b"),
            likely(r"\bstatus[ =:]*5\b.*vendor"),
            weak(r"\bstatus[ =]5\b"),
        ],
        remedies: &[hand(
            "Find the first completion that failed with another status, on either end, and \
             explain that one",
        )],
        checks: &[],
        sources: &["NVIDIA/nccl issues 1405, 1814"],
    },
    Cause {
        id: "mtu-differs",
        title: "The nodes have different MTUs",
        why: "NCCL 2.20 and later no longer take the smaller MTU of the two ends; where they \
              differ, the NIC reports a local access violation or a local length error.",
        patterns: &[
            sure(r"local access violation work queue error"),
            likely(r"\bmtu\b.*(mismatch|differ|not equal|incompatible)"),
            likely(r"local access violation"),
        ],
        remedies: &[
            run(
                "See each port's MTU on both nodes",
                "gdr doctor --only roce.mtu; gdr diff A B",
            ),
            run(
                "Set the same on all, switches included",
                "ip link set dev <netdev> mtu 9000",
            ),
        ],
        checks: &[CheckId("roce.mtu")],
        sources: &["NVIDIA/nccl issue 1524"],
    },
];
