//! Texts of causes of missing devices and privileges.

use super::Texts;

pub(crate) const TEXTS: Texts = &[
    (
        "no-rdma-device",
        &[
            "W0903 15:21:06.100000 4242 ucx_utils.cpp:590] 6 IB device(s) were detected, but accelerated IB support was not found",
            "2023/09/02 06:23:37 error creating new device: \"missing RDMA device spec for device 0000:ec:00.0, RDMA device \\\"issm\\\" not found\"",
            "2025/07/26 20:29:31 error creating new device: \"missing RDMA device spec for device 0000:16:00.0, RDMA device \\\"rdma_cm\\\" not found\"",
            "Did not detect devices",
            "misc/ibvwrap.cc:212 NCCL WARN Call to ibv_open_device failed",
            "node-a:10:20 [0] NCCL INFO NET/Socket : GPU Direct RDMA Disabled for HCA 0 'eth0'",
            "ib_md.c:1100 UCX  ERROR   ibv_open_device(mlx5_0) failed: Permission denied",
            "NCCL INFO NET/IB : No device found.\nNCCL INFO NET/Socket : Using [0]eth0\nNCCL INFO Using network Socket",
            " Unable to open device",
            "host:1:1 [0] NCCL INFO Using network Socket",
            "E0115 05:20:19.945191   309 rdma_transport.cpp:662] RdmaTransport: No available RNIC",
            "NVSHMEM WARN Unable to dlopen libmlx5dv",
            "host:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0",
            "IB device mlx5_7 not found\n Unable to find the Infiniband/RoCE device",
            "Failed to get IB devices list: Function not implemented",
            "NCCL INFO Failed to open libibverbs.so[.1]",
            "0/4 nodes are available: 4 Insufficient rdma/hca_shared_devices_a.",
            "ucp_context.c:774  UCX  WARN  network device 'mlx5_9:1' is not available, please use one or more of: 'eth0'(tcp)",
            "pod-1:41:41 [0] misc/ibvwrap.cc:120 NCCL WARN Call to ibv_open_device failed\npod-1:41:41 [0] transport/net_ib/init.cc:311 NCCL WARN NET/IB : Unable to open device mlx5_1 (No such file or directory)",
            "Failed to open device\nFailed to open device",
            "E0110 16:55:35.140089 281933 rdma_context.cpp:387] ibv_get_device_list failed\nE0110 16:55:35.140093 281933 rdma_context.cpp:66] Failed to open device erdma_0 on port  with GID 0\nE0110 16:55:35.140100 281933 rdma_transport.cpp:65] RdmaTransport: cannot initialize RDMA resources",
            "libfabric:72089:core:core:fi_getinfo_():889<warn> fi_getinfo: provider efa returned -61 (No data available)",
            "misc/ibvwrap.cc:94 NCCL WARN Call to ibv_open_device failed",
            "E1120 11:09:27.133715 203020 transfer_engine.cpp:140] No RDMA devices found, check your device installation",
            "libfabric:71:1:efa:domain:efa_domain_open():201<warn> ibv_alloc_pd failed: Operation not permitted",
        ],
    ),
    (
        "ibgda-privilege",
        &[
            "/workspace/nvshmem_src/src/host/transport/transport.cpp:nvshmemi_transport_init:275: init failed for transport: IBGDA",
            "/opt/nvshmem/nvshmem/src/modules/transport/ibgda/ibgda.cpp:1889: NULL value cannot allocate mlx5dv_devx_uar",
            "init failed for transport: IBGDA",
            "NULL value cannot allocate mlx5dv_devx_uar",
            "cannot allocate buffer on the specified memory type",
            "WARN: cudaHostRegister with IoMemory failed with error=800. We may need to use a fallback path.",
            "WARN: GPU cannot map UAR of device mlx5_1. Skipping...",
            "doca_gpunetio: failed to map UAR to GPU: CUDA error 800 (CUDA_ERROR_NOT_PERMITTED)",
        ],
    ),
    (
        "gpu-lost",
        &[
            "NVRM: The NVIDIA GPU 0000:b3:00.0\n               NVRM: (PCI ID: 10de:26b5) installed in this system has\n               NVRM: fallen off the bus and is not responding to commands.",
            "Number of GPUs detected in the PCI tree (7) is not the number that is expected (8)",
            "NVRM: Xid (PCI:0000:19:00): 79, pid='<unknown>', GPU has fallen off the bus.",
            "Unable to determine the device handle for GPU0000:19:00.0: Unknown Error",
            "kernel: NVRM: nvAssertOkFailedNoLog: Assertion failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F) returned from rmStatus @ kernel_ce.c:106",
            "nvidia-smi: GPU is lost.  Reboot the system to recover this GPU",
            "[ 71.2] nvidia 0000:3b:00.0: Unable to change power state from D3cold to D0, device inaccessible",
        ],
    ),
    (
        "rdma-abi",
        &[
            "libibverbs: Warning: Driver bnxt_re does not support the kernel ABI of 6 (supports 1 to 1) for device /sys/class/infiniband/bnxt_re2",
            "ib_mlx5dv_md.c:1020 UCX  ERROR mlx5dv_devx_create_event_channel() failed: Protocol not supported",
        ],
    ),
    (
        "socket-plugin",
        &[
            "NCCL INFO NET/FastSocket : GPU Direct RDMA Disabled for HCA 0 'eth0'",
            "NCCL INFO NET/FasTrak : GPU Direct RDMA Disabled for HCA 3 'eth4'",
        ],
    ),
    (
        "gin-unavailable",
        &[
            "RuntimeError: NCCL GIN is unavailable: check that the network supports it",
            "This test requires GIN support",
            "NCCL WARN RMA/Socket : rma_socket requires GDRCopy",
            "NCCL INFO Unable to use GIN: Peermem is not supported, nor DMA-BUF",
            "NCCL WARN gdaki_hw_counter: cntr_open_ext failed: Function not implemented",
        ],
    ),
];
