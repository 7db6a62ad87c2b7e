//! Texts of causes of memory registration.

use super::Texts;

pub(crate) const TEXTS: Texts = &[
    (
        "no-peer-memory-client",
        &[
            "NCCL WARN Call to ibv_reg_mr failed with error Bad address",
            "Couldn't allocate MR\nfailed to create mr",
            "Couldn't allocate MR with error=14\nFailed to create MR",
            "E20240101 transport.cpp] Failed to register memory 0x7f5c: Bad address [14]",
            "NET/IB : ibv_reg_mr_iova2 failed with error Bad address",
            "ibv_reg_mr failed (errno 14) (Ib failure: Bad address)",
            "nvshmemt_init:1851: neither nv_peer_mem, or nvidia_peermem detected. Skipping transport.",
            "Couldn't register GPU MR",
            "mlx5_0:mr_umem_get:1032:(pid 8811): umem get failed (-14)",
            "mlx5_warn:mlx5_0:mlx5_ib_reg_user_mr:1418:(pid 23265): umem get failed (-14)",
            "host:1:1 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
            "NCCL INFO NET/IBext_v8 : GPU Direct RDMA Disabled for HCA 3 'mlx5_bond_3'",
            "NCCL WARN Unable to use GIN: Peermem is not supported, and device 3 does not support DMA-BUF.",
            "ib_md.c:1128 UCX  DEBUG mlx5_0: cuda GPUDirect RDMA is disabled",
            "NCCL WARN Call to ibv_reg_mr failed",
            "UCX  ERROR cannot register cuda memory on mlx5_0",
            "proto_common.c:513  UCX  TRACE rma put: md mlx5_0 cannot register cuda memory",
            "proto_common.c:703  UCX  TRACE lane[2]: no support of dst md map 0x4",
            "rma_send.c:226  UCX  ERROR remote memory is unreachable (remote md_map 0x0)",
            "ucp_mm.c:61   UCX  ERROR failed to register address 0x7f1186000000 (cuda) length 1073741824 on md[6]=mlx5_0: Input/output error (md supports: host)",
            "ib_md.c:1449 UCX  ERROR mlx5_2: Couldn't enable GPUDirect RDMA. Please make sure nv_peer_mem, amdgpu plugin, or Intel Xe driver is installed correctly, or dmabuf is supported.",
            "nvshmem: error: ibv_reg_mr failed",
            "[ERROR] ibv_reg_mr() failed with error code 14: Bad address",
            "ERROR: RDMA memory registration failed: EFAULT",
            "cuMemAlloc() of a 262144 bytes GPU buffer\nCouldn't allocate MR\nfailed to create mr\nFailed to create MR\nFailed to initialize RDMA contexts.\nERRNO: Bad address.",
            "libfabric::efa:mr:efa_mr_reg_impl():893<warn> Unable to register MR of 11279546368 bytes: Bad address, flags 0",
            "libfabric:151205:1753871244::efa:core:efa_hmem_info_check_p2p_support_cuda():160<warn> Failed to register CUDA buffer with the EFA device, FI_HMEM transfers that require peer to peer support will fail.",
            "libfabric:1:2::efa:core:efa_hmem_info_init_iface():298<info> FI_HMEM_CUDA P2P support is not available.",
            "E0513 11:04:17.478277 5507 rdma_context.cpp:237] Failed to register memory 0x7f5c00000000: Bad address [14]",
            "NCCL WARN NET/IB: Call to ibv_reg_mr_iova2 failed with error Bad address errno 14",
        ],
    ),
    (
        "dmabuf-unsupported",
        &[
            "ibv_reg_dmabuf_mr failed with error Operation not supported",
            "Couldn't allocate MR with error=93",
            "DMA BUF supported required for GPU RDMA without nvidia-peermem",
            "NET/IB : Call to ibv_reg_dmabuf_mr failed with error Protocol not supported",
        ],
    ),
    (
        "memlock",
        &[
            "ibv_create_qp failed",
            "ibv_create_cq failed with error 12",
            "ibv_create_qp failed: Resource temporarily unavailable",
            "ibv_reg_mr failed with error 12",
            "ibv_create_qp() failed, errno=12",
            "ibv_create_qp() failed: Cannot allocate memory",
            "NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory",
            "NET/IB : Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
            "ib_mlx5_dv.c:1 UCX ERROR mlx5_0: ibv_create_cq(cqe=4096) failed: Cannot allocate memory : Please set max locked memory (ulimit -l) to 'unlimited' (current: 64 kbytes)",
            "Failed to create a completion queue (CQ):\n\nHostname: node1\nRequested CQE: 16384\nError:    Cannot allocate memory\n\nCheck the CQE attribute.",
            "Couldn't create CQ\nerrno: Cannot allocate memory",
            "max locked memory       (kbytes, -l) 64",
            "Max locked memory         65536                65536                bytes",
            "libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes.",
            "The OpenFabrics (openib) BTL failed to initialize while trying to allocate some locked memory.",
            "mlx5_0:mr_umem_get:1032:(pid 8811): umem get failed (-12)",
            "ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory.",
            "fi_mr_reg failed, ret is:-12, Cannot allocate memory",
            "Couldn't get device attribute.\nUnable to create QP.\nFailed to create QP.",
        ],
    ),
    (
        "bar1-small",
        &[
            "ibv_reg_mr failed, Bad address. addr:0x7f21e3369dc0, length:15863892992, access:0x7\n\
             mlx5_0:mr_umem_get:709:(pid 15855): umem get failed (-131668346275144)",
            "gdrdrv:nvidia_p2p_get_pages(va=2305ba0000 len=4194304 p2p_token=0 va_space=0) failed [ret = -12]",
        ],
    ),
    (
        "dmabuf-attach-topology",
        &["NVRM: dma-buf attach failed: PCI topology not supported for dma-buf"],
    ),
    (
        "dmabuf-attach-force-pcie",
        &["NVRM: dma-buf attach failed: PCI topology not supported for mapping type FORCE_PCIE"],
    ),
    (
        "dmabuf-attach-struct-page",
        &["NVRM: dma-buf attach failed: importer unable to handle MMIO without struct page"],
    ),
    (
        "dmabuf-attach",
        &["NVRM: dma-buf attach failed: some other reason"],
    ),
    (
        "pages-refused",
        &[
            "gdr_pin_buffer failed with error code 22",
            "gdr_pin_buffer returned error 22",
            "NCCL WARN gdr_pin_buffer(addr 7f2a00000000, size 65536) failed: 22",
            "gdrdrv:__gdrdrv_pin_buffer:nvidia_p2p_get_pages(va=fffd39e00000 len=65544 p2p_token=0 va_space=0 callback=ffffc080a8de0230) failed [ret = -22]",
            "gdrdrv:nvidia_p2p_get_pages(va=704fe0000 len=327680 p2p_token=0 va_space=0) failed [ret = -22]",
            "nvidia-fs:nvfs_pin_gpu_pages:1292 Error ret -22 invoking nvidia_p2p_get_pages",
            "NVRM: Invalid argument in nv_p2p_get_pages,address or length are not aligned address=0xfffd39e00000, length=0x10008",
            "Assertion \"(gdr_pin_buffer(g, d_ptr, size, 0, 0, &mh)) == (0)\" failed at sanity.cpp:188",
        ],
    ),
    (
        "registration-arguments",
        &[
            "misc/ibvwrap.cc:182 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Invalid argument",
            "NCCL WARN Call to ibv_reg_mr failed with error Invalid argument errno 22",
        ],
    ),
    (
        "keys-exhausted",
        &[
            "infiniband mlx5_0: create_mkey_callback:131:(pid 2298062): async reg mr failed. status -12",
            "E0329 rdma_context.cpp:217] Failed to register memory 0x7f00: Resource temporarily unavailable [11]",
        ],
    ),
    (
        "imex-channel",
        &[
            "[CUDA_ERROR_NOT_PERMITTED] operation not permitted in expression cuMemCreate(&handle, roundedUpAllocationSize, &prop, 0 ) on node-a, rank = 0",
            "nvlink_allocator: cuMemCreate failed: 800",
            "open /dev/nvidia-caps-imex-channels/channel0: no such file or directory",
            "IMEX channel is not available in this container",
            "CU_MEM_HANDLE_TYPE_FABRIC is not supported on this device",
        ],
    ),
    (
        "cuda-ipc-memory",
        &[
            "cuda_ipc_md.c:219  UCX  ERROR cuIpcGetMemHandle(legacy_handle, (CUdeviceptr)addr) failed: invalid argument",
            "RuntimeError: cudaIpcGetMemHandle returned invalid argument",
        ],
    ),
];
