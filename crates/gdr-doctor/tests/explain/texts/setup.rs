//! Texts of causes of missing devices and privileges.

use super::Texts;

pub(crate) const TEXTS: Texts = &[
    (
        "no-rdma-device",
        &[
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
        ],
    ),
    (
        "ibgda-privilege",
        &[
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
            "NVRM: Xid (PCI:0000:19:00): 79, pid='<unknown>', GPU has fallen off the bus.",
            "Unable to determine the device handle for GPU0000:19:00.0: Unknown Error",
            "nvidia-smi: GPU is lost.  Reboot the system to recover this GPU",
        ],
    ),
];
