//! Texts of causes of the connection to the peer.

use super::Texts;

pub(crate) const TEXTS: Texts = &[
    (
        "transport-timeout",
        &[
            "[node-b:31253:0:31253]       ud_ep.c:270  Fatal: UD endpoint 0x20d5970 to <no debug data>: unhandled timeout error",
            "transport/net_ib.cu:788 NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129",
            "what():  a work item failed: status 12 (Ib failure: Cannot allocate memory)",
            "/sys/class/infiniband/mlx5_0/ports/1/hw_counters/local_ack_timeout_err:91316",
            "NET/IB : Got completion from peer 10.0.0.3<39393> with error 12, opcode 0, len 0, vendor err 129",
            "NET/IB: Got completion from peer 10.0.0.3<39393> with status=12 opcode=1 len=0 vendor err 129 (Recv)",
            "Failed status 12: wr_id 0 syndrom 0x81",
            "libfabric:1:2::efa:cq:efa_rdm_txe_handle_error():1<warn> err: 113, message: Unresponsive receiver (connection never established or unknown) (13)",
            "[compute001:31180:0:31180] ib_mlx5_log.c:143  Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 vend 0x81 hw_synd 0/0)",
            "UCX ERROR Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)",
            "NCCL WARN NET/IB: Got completion from peer 10.0.0.3<39393> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129 (Send)",
            "F20250821 13:22:09.976752 rdma_io.cc:811] Check failed: wc->status == IBV_WC_SUCCESS RC send CQ state error: 12, vendor error 129",
            "worker_pool.cpp:291] Worker: Process failed for slice (opcode: 1, source_addr: 1): transport retry counter exceeded",
            "mlx5: gpu01: got completion with error:\n00000000 00000000 00000000 00000000\n00000000 00000000 00000000 00000000\n00000001 00000000 00000000 00000000\n00000000 00008115 10000070 000051d2",
        ],
    ),
    (
        "address-resolution",
        &[
            "ibv_modify_qp failed",
            "Failed to modify QP 218 to RTR",
            "ib_device.c:1171 UCX  ERROR   ibv_create_ah(dlid=49152 sl=0 port=1 src_path_bits=0 dgid=::ffff:192.0.2.40 flow_label=0xffffffff sgid_index=3 traffic_class=106) for RC DEVX QP connect on mlx5_bond_0 failed: Connection timed out",
            "NCCL WARN Call to ibv_modify_qp failed with error Connection timed out",
            "NCCL WARN Call to ibv_modify_qp failed with error Network is unreachable",
            "misc/ibvwrap.cc:190 NCCL WARN Call to ibv_modify_qp failed with error No route to host",
            "NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1",
            "/tmp/nvshmem_src/src/modules/transport/ibrc/ibrc.cpp:418: non-zero status: 110 ibv_modify_qp failed",
            "ibrc.cpp:420: non-zero status: 101 ibv_modify_qp failed",
            "ibgda.cpp:2234: NULL value Unable to create ah.",
            "E0331 10:54:20.638639 297912 rdma_endpoint.cpp:385] [Handshake] Failed to modify QP to RTR, check mtu, gid, peer lid, peer qp num: Connection timed out [110]",
            "UCX  ERROR ibv_create_ah(dlid=49152 sl=0 port=1 src_path_bits=0 dgid=fe80::1 sgid_index=3) failed: Connection timed out",
            " Failed to modify QP 1234 to RTR\n Unable to Connect the HCA's through the link",
            "Unable to Connect the HCA's through the link",
        ],
    ),
    (
        "gid-other-namespace",
        &[
            "ib_device.c:1171 UCX  ERROR   ibv_create_ah(dlid=49152 sl=0 port=1 dgid=::ffff:192.0.2.40 sgid_index=3) for UD mlx5 connect on mlx5_0 failed: No such device",
            "NCCL WARN Call to ibv_modify_qp failed with error No such device",
            "ibrc.cpp:420: non-zero status: 19 ibv_modify_qp failed",
            "W0115 rdma_context.cpp:588] User-specified GID index 0 on mlx5_8/ has no associated network device, may not be optimal for RDMA operations",
            "RDMA_CM_EVENT_ADDR_ERROR, error: -19",
            "rdma_client: start\nrdma_create_ep: No such device\nrdma_client: end -1",
        ],
    ),
    (
        "remote-access",
        &[
            "Syndrome 0x14 Remote access error",
            "mlx5: got completion with error: remote access error",
            "UCX ERROR Remote access on mlx5_0:1/IB (synd 0x13 vend 0x88 hw_synd 0/0)",
            "Failed status 10: wr_id 0 syndrom 0x88",
            "Failed status 10: wr_id 0 syndrome 0x88\nscnt=128, ccnt=0",
            "Libfabric EFA provider has encountered an internal error:\n\nLibfabric error: (-13) Permission denied\nEFA internal error: (4111) RMA address verification failed\n\nYour application will now abort().",
        ],
    ),
    (
        "flush-error",
        &[
            "NET/IB: Got completion from peer 10.0.1.23<34696> with status=5 opcode=0 len=0 vendor err 249 (Recv) hca ibp152s0",
            "got completion with err: syndrome=0x5, vendor_err_synd=0xf9, hw_err_synd=0, hw_synd_type=0, wqe_counter=65281 wqe_qpn=ed020008",
            "NET/IB : Got completion from peer 10.0.0.2<4791> with status 5 opcode 0 len 0 vendor err 249",
            "[15601.662156] infiniband rocep33s0f0: mlx5_poll_one:527:(pid 0): Responder error cqe on cqn 0x406:\n[15601.662158] infiniband rocep33s0f0: mlx5_poll_one:530:(pid 0): syndrome 0x5, vendor syndrome 0xf9",
        ],
    ),
    (
        "mtu-differs",
        &[
            "NET/IB: Got completion from peer with error: local access violation work queue error",
            "node201:127799:127863 [0] NCCL WARN NET/IB : mlx5_0:1 Got async event : local access violation work queue error",
            "Requested mtu is higher than active mtu",
        ],
    ),
    (
        "receiver-not-ready",
        &[
            "NET/IB: Got completion from peer 10.0.0.3<39393> with status=13 opcode=0 len=0 vendor err 135 (Send)",
            "NCCL WARN NET/IB: Got completion from peer 10.0.0.3<39393> with status=IBV_WC_RNR_RETRY_EXC_ERR(13) opcode=IBV_WC_SEND(0) vendor_err=135",
            "Completion with error: RNR retry counter exceeded",
        ],
    ),
    (
        "length-error",
        &[
            "mlx5: gpu-01: got completion with error: local length error",
            "mlx5: got completion with error: remote invalid request error",
            "node023:10214:10303 [0] NCCL WARN NET/IB : Got completion from peer 10.1.3.201<33057> with status=9 opcode=0 len=0 vendor err 138 (Send) localGid ::ffff:10.206.1.23",
            "[node2:1:0:1] ib_mlx5_log.c:177  Remote invalid request on mlx5_0:1/RoCE (synd 0x12 vend 0x8a hw_synd 0/0)",
            "Work completion error: local length error (1)",
        ],
    ),
    (
        "queue-operation",
        &[
            "node-0:139577:139678 [0] transport/net_ib.cc:154 NCCL WARN NET/IB : mlx5_1:1 async fatal event on QP (0x7309dc3bb338): invalid request local work queue error",
            "[host:1:0:1] ib_mlx5_log.c:168  Local QP operation on mlx5_0:1/IB (synd 0x2 vend 0x68 hw_synd 0/36)",
        ],
    ),
    (
        "qp-arguments",
        &[
            "NCCL WARN NET/IB : Remote mlx5_4 device is incompatible with the local [0]mlx5_0:1/IB. Try selecting NICs of only one link type using NCCL_IB_HCA",
            "/nvshmem/src/modules/transport/ibrc/ibrc.cpp:420: non-zero status: 22 ibv_modify_qp failed",
            "NCCL WARN Call to ibv_modify_qp failed with error Invalid argument",
            "NCCL WARN Call to ibv_modify_qp failed with 22 Invalid argument, on dev mlx5_0:1, curr state INIT, next state RTR",
            "E0331 rdma_endpoint.cpp:385] [Handshake] Failed to modify QP to RTR, check mtu, gid, peer lid, peer qp num: Invalid argument [22]",
            "NET/IB : Attempted to connect incompatible devices: [0]mlx5_0:1/IB and [1]mlx5_5:1/RoCE. Try selecting NICs of only one link type using NCCL_IB_HCA",
        ],
    ),
    (
        "gid-index",
        &[
            "E0115 05:20:19.945159   309 rdma_context.cpp:81] Failed to open device mlx5_8 on port  with GID 0",
            "E20260821 12:30:19.435154 rdma_context.cpp:209] Failed to open device mlx5_3 on port  with GID 3",
            "W0302 09:15:07.980530     7 rdma_context.cpp:581] No suitable GID found on mlx5_bond_1/",
            "E0924 01:29:28.347672  2254 rdma_context.cpp:499] Failed to query GID 0 on mlx5_0/: Invalid argument [22]",
        ],
    ),
    (
        "port-down",
        &[
            "transport/net_ib/recovery.cc:99 NCCL WARN NET/IB: Device 0 marked as failed. Initiating recovery? 1 (send comm=0x7f0000000001, outstandingRecovery=1)",
            "# Memory domain: mlx5_3\n#     Component: ib\n#   < no supported devices found >",
            "...-48:34050:34121 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error",
            "NCCL WARN NET/IB : mlx5_0:1 Got async event : port error",
            "NCCL WARN NET/IB : mlx5_3:1 Got non-fatal async event: port error(10)",
            " Port number 1 state is Down",
            "mlx5_core 0000:5e:00.0 ens1f0np0: Link down",
            "WARNING: There is at least non-excluded one OpenFabrics device found, but there are no active ports detected (or Open MPI was unable to use them).",
        ],
    ),
    (
        "peer-gone",
        &[
            "tcp_ep.c:1260 UCX  ERROR tcp_ep 0x3c502370 (state=CONNECTED): send(110) failed: Input/output error",
            "misc/socket.cc:58 NCCL WARN socketProgress: Connection closed by remote peer node2<51234>",
            "due to async NCCL error: remote process exited or there was a network error",
            "nixl._bindings.nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT",
            "NCCL WARN socketStartConnect: Connect to 10.0.0.1<43567> failed : Software caused connection abort",
        ],
    ),
    (
        "passed-on",
        &[
            "ibrc.cpp:1433: non-zero status: 7 ep_connect failed",
            "E0821 transfer_engine: Failed to complete transfers after 60 seconds",
            "DeepEP dispatch timeout: rank 3",
            "unhandled system error, NCCL version 2.14.3",
            "nvshmem/src/host/init/init.cu:1047: non-zero status: 7 nvshmem setup connections failed",
            "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1269, unhandled system error, NCCL version 2.14.3",
            "NCCL Error 2: unhandled system error (run with NCCL_DEBUG=INFO for details)",
            "DeepEP dispatch NVL receiver timeout, channel: 3, RDMA: 1, nvl: 0, src NVL: 2, head: 44, tail: 44\nDeepEP dispatch NVL receiver timeout, channel: 10, RDMA: 1, nvl: 0, src NVL: 2, head: 42, tail: 42",
            "KVTransferError(bootstrap_room=217): Failed to get kvcache from prefill instance, it might be dead",
        ],
    ),
    (
        "control-connection",
        &[
            "sock.c:327  UCX  ERROR   connect(fd=45, dest_addr=192.168.248.98:41748) failed: Connection timed out",
            "Unable to init the socket connection",
            "Event: RDMA_CM_EVENT_REJECTED; error: -111.",
            "rdma_bind_addr failed",
            "NCCL WARN Bootstrap : no socket interface found",
            "Couldn't connect to 10.0.0.1:18515\nUnable to open file descriptor for socket connection Unable to init the socket connection",
            " Failed to exchange data between server and clients",
            "ethernet_read_keys: Couldn't read remote address",
            "E0701 08:00:01.000001 77 rdma_endpoint.cpp:472] Invalid argument: received packet mismatch, local.local_nic_path: 10.42.21.26:15806@rdma0, local.peer_nic_path: 10.42.21.26:16416@rdma2, peer.local_nic_path: , peer.peer_nic_path: ",
        ],
    ),
    (
        "gid-table-holes",
        &[
            "pod-a:88:121 [0] transport/net_ib.cc:351 NCCL WARN NET/IB: read failed in ncclIbRoceGetVersionNum: Invalid argument",
            "WARN: IB: read failed in ib_roce_get_version_num: Invalid argument",
        ],
    ),
    (
        "address-changed",
        &[
            "node-a:100:200 [0] transport/net_ib/init.cc:120 NCCL WARN NET/IB : mlx5_0:1 GID table changed",
            "NCCL WARN NET/IB : mlx5_0:1 Got async event : LID change",
            "NCCL WARN NET/IB : mlx5_0:1 Got async event : client reregistration",
        ],
    ),
    (
        "topology-file",
        &[
            "node-a:28:63 [7] graph/xml.h:101 NCCL WARN Attribute arch of node cpu not found",
            "graph/xml.cc:240 NCCL WARN Could not open XML topology file /opt/topo.xml : No such file or directory",
        ],
    ),
    (
        "bytes-missing",
        &[
            "every call succeeds, but the buffer is not overwritten",
            "every call succeeds, the pattern is not overwritten",
            "all verbs succeed but the GPU buffer still has the old data",
            "the kernel reads stale data",
            "data mismatch at byte 4096: expected 0xaa, found 0x55",
            "the GPU sees stale data after the RDMA write",
            "memcmp failed: the payload differs",
        ],
    ),
    (
        "rdma-netns-mode",
        &[
            "2023/09/08 17:43:19 Exiting.. can not change : incorrect RDMA subsystem network namespace",
        ],
    ),
];
