//! Texts of causes of the path between GPU and NIC.

use super::Texts;

pub(crate) const TEXTS: Texts = &[
    (
        "acs-redirect",
        &[
            "transport/net_ib.cu:788 NCCL WARN NET/IB : Got completion with error 4, opcode 1, len 21938, vendor err 81",
            "Failed status 4: wr_id 0 syndrom 0x51",
            "NET/IB : Got completion from peer 10.1.1.2<48344> with error 4, opcode 0, len 0, vendor err 81",
            "NET/IB: Got completion from peer 192.168.1.1<40000> with status=4 opcode=0 len=0 vendor err 81 (Send)",
            "Completion with error at client\nFailed status 4: wr_id 0 syndrom 0x51",
            "mlx5: host: got completion with error: 00000000 00000000 local protection error",
            "Local Protection: vendor error 81",
            "[node2:42970:0:42970] ib_mlx5_log.c:168  Local protection on mlx5_1:1/IB (synd 0x4 vend 0x51 hw_synd 0/2)",
            "NCCL WARN NET/IB: Got completion from peer 10.0.0.3<39393> with status=IBV_WC_LOC_PROT_ERR(4) opcode=IBV_WC_SEND(0) vendor_err=81",
            "mlx5: got completion with error:\n00000000 00005104 09000070 000053d2",
            "nvidia 0000:18:00.0: ACS redirect is set between the client and provider (0000:19:00.0)",
            "NCCL WARN NET/IB: Got completion from peer 10.1.1.4<4791> with status=IBV_WC_LOC_PROT_ERR(4) opcode=IBV_WC_SEND(0) vendor_err=81 (Send)",
        ],
    ),
    (
        "gdr-unused",
        &[
            "host:12:34 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0",
            "host:12:34 [0] NCCL INFO Channel 00 : 1[b000] -> 0[b000] [receive] via NET/IB/0(8)",
        ],
    ),
    (
        "slow-path",
        &[
            "ib_write_bw --use_cuda=0 reaches 11 GB/s, 23 GB/s without",
            "GPU bandwidth is far below CPU bandwidth",
        ],
    ),
    (
        "p2p-hang",
        &[
            "it hangs in all_reduce with NCCL_P2P_LEVEL=SYS",
            "ncclCommInitRank hangs when GDR is on",
            "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE)",
        ],
    ),
    (
        "root-port-reads",
        &[
            "Failed status 11: wr_id 0 syndrome 0x89",
            "Remote operation error (11)",
            "RDMA reads fail, writes work",
            "[sh03:1:0:1] ib_mlx5_log.c:139  Remote QP on mlx5_0:1/IB (synd 0x14 vend 0x89 hw_synd 0/0)",
        ],
    ),
    (
        "vm-topology",
        &["in the VM everything is PHB and half the bandwidth is gone"],
    ),
    (
        "gdr-distance",
        &[
            "NCCL INFO NET/IB : GPU Direct RDMA Disabled for GPU 0 / HCA mlx4_0 (not supported by GPU)",
            "NCCL INFO GPU Direct RDMA Disabled for GPU 42000 / HCA 0 (distance 6 > 4)",
            "NCCL INFO GPU Direct RDMA Disabled for GPU 3[1d000] / HCA 2 (distance 7 >= 5)",
            "host:1:1 [3] NCCL TRACE GPU Direct RDMA Disabled for rank 3 nvmlDev 3 / HCA 1 (distance 8 > 5)",
            "NCCL INFO NET/IB : GPU Direct RDMA Disabled for GPU 0[4000] / HCA 0 (distance 4 >= 2)",
        ],
    ),
    (
        "peer-access",
        &[
            "Device=0 CANNOT Access Peer Device=2",
            "gpu03:611:733 [2] transport/p2p.cc:275 NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'",
            "cuda_ipc_cache.c:258  UCX  WARN  cuIpcOpenMemHandle() failed: peer access is not supported between these two devices",
            "The call to cuIpcOpenMemHandle failed. This is an unrecoverable error\nand will cause the program to abort.\n  Hostname:                         node-d\n  cuIpcOpenMemHandle return value:  1",
            "Cuda failure p2pBandwidthLatencyTest.cu:220: 'mapping of buffer object failed'",
        ],
    ),
];
