//! Texts of causes of kernel modules and the NVIDIA driver.

use super::Texts;

pub(crate) const TEXTS: Texts = &[
    (
        "peermem-symbols",
        &[
            "modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument",
            "modprobe: ERROR: could not insert 'nv_peer_mem': Invalid argument",
            "insmod: ERROR: could not insert module nvidia-peermem.ko: Unknown symbol in module\n\
             nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)",
            "nv_peer_mem: disagrees about version of symbol ib_register_peer_memory_client",
            "[   42.1] nvidia_peermem: Unknown symbol ib_unregister_peer_memory_client (err -2)",
        ],
    ),
    (
        "peermem-callback",
        &["nvidia-peermem nv_get_p2p_free_callback:128 ERROR detected invalid page_table"],
    ),
    (
        "gdrdrv-missing",
        &[
            "GDRAPI: unable to open GDR driver: is gdrdrv driver installed and loaded?",
            "Is gdrdrv driver installed and loaded?",
            "gdr_copy_md.c:554  UCX  ERROR failed to open gdr copy",
            "gdrdrv:built for proprietary NVIDIA driver",
            "GDRCOPY library \"libgdrapi.so\" unable to open GDR driver, is gdrdrv.ko loaded?",
            "ucp_context.c:779  UCX  WARN  transport 'gdr_copy' is not available, please use one or more of: cma",
            "NVSHMEM INFO GDRCopy open call failed, disabling GDRCopy.",
            "modprobe: FATAL: Module gdrdrv not found in directory /lib/modules/6.8.0",
            "Error: gdrcopy requires gdrdrv or CUDA driver with dmabuf mmap support (at least one is required)",
        ],
    ),
    (
        "fabric-manager",
        &[
            "nvidia-fabricmanager-start.sh[2211]: Kernel module \"ib_umad\" has not been loaded, fabric manager cannot be started",
            "nvlsm failed to start: no management device",
            "Error 802: system not yet initialized",
            "cudaGetDeviceCount() returned 802",
            "RuntimeError: Unexpected error from cudaGetDeviceCount(): Error 802: system not yet initialized",
            "torch.cuda.is_available() failed: CUDA error 802: system not yet initialized (function cudaGetDeviceCount)",
        ],
    ),
    (
        "lockdown",
        &[
            "setpci: 0000:40:01.1: Operation not permitted",
            "error: setpci: pcilib: sysfs_write: write failed: Operation not permitted",
            "write counter to semaphore: Operation not permitted",
            "Lockdown: setpci: direct PCI access is restricted; see man kernel_lockdown.7",
            "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service",
            "modprobe: ERROR: could not insert 'nvidia_peermem': Required key not available",
            "Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7",
            "Loading of unsigned module is rejected",
        ],
    ),
    (
        "peermem-not-found",
        &[
            "modprobe: FATAL: Module nvidia_peermem not found in directory /lib/modules/6.8.0-45-generic",
            "modprobe: FATAL: Module nvidia-peermem not found in directory /lib/modules/5.15.0-1053-aws",
            "modprobe: FATAL: Module nv_peer_mem not found.",
            "insmod: ERROR: could not load module nvidia-peermem.ko: No such file or directory",
        ],
    ),
    (
        "driver-symbols",
        &[
            "[55580.715174] gdrdrv: disagrees about version of symbol nvidia_p2p_get_pages",
            "gdrdrv: Unknown symbol nvidia_p2p_put_pages (err -22)",
            "nv_peer_mem: disagrees about version of symbol nvidia_p2p_put_pages",
            "nvidia_fs: Unknown symbol nvidia_p2p_dma_unmap_pages (err -2)",
            "nvidia_fs: module using GPL-only symbols uses symbols nvidia_p2p_get_pages from proprietary module nvidia.",
            "gdrdrv: version magic '5.15.0-91-generic SMP mod_unload modversions ' should be '6.8.0-45-generic SMP preempt mod_unload modversions '",
            "insmod: ERROR: could not insert module gdrdrv/gdrdrv.ko: Invalid parameters",
            "modprobe: ERROR: could not insert 'gdrdrv': Unknown symbol in module, or unknown parameter (see dmesg)",
        ],
    ),
    (
        "driver-mismatch",
        &[
            "Failed to initialize NVML: Driver/library version mismatch",
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.163",
            "NVRM: API mismatch: the client has the version 535.161.08, but\nNVRM: this kernel module has the version 535.129.03.  Please",
            "CUDA initialization: Unexpected error: Error 803: system has unsupported display driver / cuda driver combination",
            "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch: unknown",
        ],
    ),
    (
        "module-taints",
        &[
            "[   12.1] nvidia: module verification failed: signature and/or required key missing - tainting kernel",
            "gdrdrv: module verification failed: signature and/or required key missing - tainting kernel",
        ],
    ),
    (
        "gpu-driver",
        &[
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.",
            "Failed to initialize NVML: Unknown Error",
        ],
    ),
    (
        "peermem-context",
        &[
            "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
        ],
    ),
    (
        "unsupported-module",
        &[
            "modprobe: ERROR: module 'nvidia_peermem' is unsupported",
            "WARNING: 'nvidia-peermem' cannot be loaded: set allow_unsupported_modules 1 in /etc/modprobe.d",
            "FATAL: module '/lib/modules/5.14.21/updates/gdrdrv.ko' is unsupported",
        ],
    ),
    (
        "kernel-crash",
        &[
            "BUG: kernel NULL pointer dereference, address: 0000000000000008\n mlx5_ib_devx_umem_reg+0x2b0/0x5a0 [mlx5_ib]",
            "Unable to handle kernel paging request at virtual address dead000000000108\n ib_uverbs_cmd_verbs+0x9fc/0xc30 [ib_uverbs]",
            "RIP: 0010:_nv01rm+0x1b/0x30 [nvidia]",
        ],
    ),
    (
        "kernel-warning",
        &[
            "WARNING: CPU: 3 PID: 99 at drivers/infiniband/hw/mlx5/mr.c:1733 mlx5_ib_dereg_mr+0x3a/0x90 [mlx5_ib]\n mlx5_ib_dereg_mr+0x3a/0x90 [mlx5_ib]",
        ],
    ),
    (
        "fabric-restarted",
        &[
            "NVRM: nvCheckOkFailedNoLog: Check failed: NVLink fabric state cached by the driver is out of sync [NV_ERR_FABRIC_STATE_OUT_OF_SYNC] (0x00000087) returned from status @ mem_multicast_fabric.c:2917",
            "node-a:1:2 [0] transport/nvls.cc:254 NCCL WARN Cuda failure 1 'invalid argument'",
            "NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the operation cannot be performed in the present state'",
        ],
    ),
];
