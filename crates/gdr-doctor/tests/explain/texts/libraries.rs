//! Texts of causes of communication libraries and their options.

use super::Texts;

pub(crate) const TEXTS: Texts = &[
    (
        "ucx-without-cuda",
        &[
            "W0302 ucx_utils.cpp:512] memory is detected as host, check that UCX is configured with CUDA support",
            "ucp_context.c:1268 UCX  WARN  transports 'cuda_ipc','cuda_copy' are not available, please use one or more of: mm, posix, self, shm, sm, sysv, tcp",
            "[hawk-ai09:26686:0:26686] Caught signal 11 (Segmentation fault: invalid permissions for mapped object at address 0x7f4785200200)",
            "ucp_context.c:779  UCX  WARN  transport 'cuda_copy' is not available, please use one or more of: cma, dc, rc",
            "W0603 ucx_utils.cpp:10] memory is detected as host memory, check that UCX is configured with CUDA support",
            "NIXL: VRAM memory is detected as host by UCX",
            "E0619 12:00:00.111111 91 tcp_transport.cpp:161] Session::writeBody failed. Error: Bad address. CHECK_CLOSED 0",
            "[node:08750] *** Process received signal ***\n[node:08750] Signal: Segmentation fault (11)\n[node:08750] Signal code: Invalid permissions (2)\n[node:08750] Failing at address: 0x7efd0fc00000\n[node:08750] [ 1] /opt/psm2/usr/lib64/libpsm2.so.2(+0x8929)[0x7efd29b46929]",
        ],
    ),
    (
        "efa-sync-memops",
        &[
            "register_rail_mr_buffer:617 NCCL WARN NET/OFI Unable to register memory (type = 2) for device 4. RC: -22, Error: Invalid argument",
            "libfabric:652244:1713524816::core:core:cuda_set_sync_memops():207<warn> Failed to perform cuPointerSetAttribute: CUDA_ERROR_NOT_SUPPORTED:operation not supported",
            "libfabric:652244:1713524816::core:core:cuda_set_sync_memops():207<warn> Failed to perform cuPointerSetAttribute: CUDA_ERROR_NOT_SUPPORTED:operation not supported\nlibfabric:652244:1713524816::efa:mr:efa_mr_hmem_setup():254<warn> unable to set memops for cuda ptr\nlibfabric:652244:1713524816::efa:mr:efa_mr_regattr():1014<warn> Unable to register MR: Invalid argument",
            "set FI_EFA_SET_CUDA_SYNC_MEMOPS=0",
        ],
    ),
    (
        "ofi-without-gdr",
        &[
            "nccl_net_ofi_domain_get_ep:969 NCCL WARN NET/OFI Creating new endpoint for domain 0x7f9befa99380 failed: Invalid argument",
            "NCCL WARN NET/OFI Could not disable CUDA API usage for HMEM, disabling GDR",
            "NCCL WARN NET/OFI GDR support reported to NCCL but then couldn't be configured on an endpoint.  Cannot continue.",
            "libfabric:462:1673041636:efa:core:rxr_info_to_rxr():506<warn> FI_HMEM capability requires RDMA, which this device does not support.",
        ],
    ),
    (
        "gdrcopy-library",
        &[
            "libfabric:151205:1753871244::core:core:cuda_gdrcopy_dl_hmem_init():88<info> Failed to dlopen libgdrapi.so",
            "NVSHMEM INFO GDRCopy library not found. disabling GDRCopy.",
            "NCCL INFO NET/OFI Could not load libgdrapi.so",
            "NCCL WARN Failed to open libgdrapi.so - libgdrapi.so: cannot open shared object file: No such file or directory",
        ],
    ),
    (
        "nixl-plugin",
        &[
            "E0421 11:56:59.775353  4242 nixl_agent.cpp:322] createBackend: unsupported backend 'UCX'",
            "E0421 11:56:59.774282  4242 nixl_agent.cpp:259] getPluginParams: backend 'UCX' not found",
            "E0401 nixl_plugin_manager.cpp:130] Failed to load plugin from /opt/nixl/plugins/libplugin_UCX.so: libucp.so.0: cannot open shared object file: No such file or directory",
        ],
    ),
    (
        "nixl-backend",
        &[
            "nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND",
            "E1104 06:35:19.118512 2368741 nixl_agent.cpp:473] registerMem: registration failed for the specified or all potential backends",
            "nixl._bindings.nixlInvalidParamError: NIXL_ERR_INVALID_PARAM",
        ],
    ),
    (
        "nixl-metadata",
        &[
            "ERROR 10-16 17:22:56 [nixl_connector.py:815] RuntimeError: Remote NIXL agent engine ID mismatch. Expected 46126a31-6b81_dp0,received 96b1c4ff-9edf_dp0.",
            "E0722 nixl_agent.cpp:840] createXferReq: metadata for remote agent 'decode-0' not found",
            "nixlNotFoundError: NIXL_ERR_NOT_FOUND",
        ],
    ),
    (
        "perftest-options",
        &["CUDA DMA-BUF cannot be used without CUDA\n Parser function exited with Error"],
    ),
    (
        "perftest-without-cuda",
        &[
            "ib_write_bw: unrecognized option '--use_cuda=0'",
            "ib_send_bw: unrecognized option '--use_cuda_dmabuf'\n Invalid Command or flag.",
            "ib_read_lat: unrecognized option '--cuda_mem_type=1'",
        ],
    ),
    (
        "shared-memory-small",
        &[
            "include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv-6c6b02bad5bfc129-0-1-0 (size 9637888)",
            "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-aBcDeF (size 9637888)",
            "NCCL WARN Call to posix_fallocate failed : No space left on device for /dev/shm/nccl-X, No space left on device",
        ],
    ),
    (
        "ucx-no-transport",
        &[
            "UCX  ERROR no copy across memory types transport to <no debug data>: self/memory - Destination is unreachable, rc_mlx5/mlx5_0:1 - no put short",
            "select.c:634  UCX  ERROR   no copy across memory types transport to prm-dgx-10:9574: self/memory - Destination is unreachable, tcp/lo - no put short",
            "select.c:401  UCX  ERROR no active messages transport to <no debug data>: tcp/ens1f0 - Destination is unreachable",
            "[1581060992.288391] [node7:9817 :0]         select.c:438  UCX  ERROR no active messages transport to <no debug data>: posix/memory - Destination is unreachable, sysv/memory - Destination is unreachable, self/memory - Destination is unreachable, rdmacm/sockaddr - no am bcopy, cma/memory - no am bcopy",
            "UCX  ERROR   no active messages transport to <no debug data>: self/memory - no peer failure handler, sysv/memory - no peer failure handler, cuda_copy/cuda - no am bcopy, cuda_ipc/cuda - no am bcopy",
            "[1.2] [n2:71:0] select.c:643 UCX  ERROR   no remote registered memory access transport to n3:88: rc_mlx5/mlx5_0:1 - Destination is unreachable",
            "ucp_context.c:969  UCX  ERROR   no usable transports/devices (asked rc,cuda_copy on network:mlx5_9:1)",
            "ucp_device.c:415  UCX  ERROR failed to select lane for local device GPU0",
            "No components were able to be opened in the pml framework.",
            "[node1:23451] pml_ucx.c:208  Error: Failed to create UCP worker",
        ],
    ),
    (
        "duplicate-gpu",
        &[
            "init.cc:521 NCCL WARN Duplicate GPU detected : rank 0 and rank 3 both on CUDA device 1b000",
        ],
    ),
    (
        "library-versions",
        &[
            "[1729.1] [n1:88:0] ucp_context.c:2119 UCX  WARN  UCP API version is incompatible: required >= 1.17, actual 1.10.0 (loaded from /lib/x86_64-linux-gnu/libucp.so.0)",
            "ucp_context.c:1774 UCX  WARN  UCP version is incompatible, required: 1.18, actual: 1.12 (release 1)",
        ],
    ),
    (
        "sharp",
        &[
            "[gpu01:0:6312 - context.c:684][2025-05-02 10:11:12] ERROR sharp_get_job_data_len failed: Job error(-35)",
            "[C25L18:0:24972 - comm.c:374] ERROR Failed to lock SAT tree(ID:0x40 ret:0x4)\nC25L19:19373:19491 [3] sharp_plugin.c:302 NCCL WARN SHARP group create: Streaming Tree lock failed (-18)",
            "[C25L19:1:28576 unique id 1201360626793454896] ERROR collect_ports_data: device mlx5_0 port 1 is not valid (port is used by SM)",
        ],
    ),
    (
        "fork",
        &[
            "UCX  WARN  IB: ibv_fork_init() was disabled or failed, yet a fork() has been issued.\nUCX  WARN  IB: data corruption might occur when using registered memory.",
        ],
    ),
    (
        "cuda-context",
        &[
            "[1561580000.123456] [dgx15:1234:0]  cuda_copy_iface.c:83   UCX  ERROR cuCtxGetDevice(&cu_device) is failed. ret:invalid device context",
            "UCX  ERROR cuMemGetAddressRange(0x7f12c4000000) error: CUDA_ERROR_INVALID_CONTEXT",
        ],
    ),
];
