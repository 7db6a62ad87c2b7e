//! Texts of causes of kernel modules and the NVIDIA driver.

use super::Texts;

pub(crate) const TEXTS: Texts = &[
    (
        "peermem-symbols",
        &[
            "modprobe: ERROR: could not insert 'nv_peer_mem': Unknown symbol in module, or unknown parameter (see dmesg)",
            "depmod: WARNING: /lib/modules/3.10.0-1127.19.1.el7.x86_64/extra/nv_peer_mem.ko needs unknown symbol ib_register_peer_memory_client",
            "modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument",
            "modprobe: ERROR: could not insert 'nv_peer_mem': Invalid argument",
            "insmod: ERROR: could not insert module nvidia-peermem.ko: Unknown symbol in module\n\
             nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)",
            "nv_peer_mem: disagrees about version of symbol ib_register_peer_memory_client",
            "[   42.1] nvidia_peermem: Unknown symbol ib_unregister_peer_memory_client (err -2)",
            "insmod: ERROR: could not insert module nvidia-peermem.ko: Invalid parameters",
            "/var/lib/dkms/nv_peer_mem/1.3/build/nv_peer_mem.c:477:15: error: variable 'nv_mem_client_ex' has initializer but incomplete type",
        ],
    ),
    (
        "peermem-callback",
        &[
            "nvidia-peermem nv_get_p2p_free_callback:128 ERROR detected invalid page_table",
            "kernel: nv_mem nv_get_p2p_free_callback:155 nv_get_p2p_free_callback -- invalid dma_mapping",
        ],
    ),
    (
        "gdrdrv-missing",
        &[
            "ERR:  Error getting the gdrdrv driver version with ioctl error (errno=22). gdrdrv might be too old.",
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
            "nv-fabricmanager[4177]: request to query NVSwitch device information from NVSwitch driver failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]",
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
            "Job for nvidia-fabricmanager.service failed because the control process exited with error code.",
            "nvidia-fabricmanager-start.sh[2211]: Kernel module \"ib_umad\" has not been loaded, fabric manager cannot be started",
            "nvlsm failed to start: no management device",
            "Error 802: system not yet initialized",
            "cudaGetDeviceCount() returned 802",
            "RuntimeError: Unexpected error from cudaGetDeviceCount(): Error 802: system not yet initialized",
            "torch.cuda.is_available() failed: CUDA error 802: system not yet initialized (function cudaGetDeviceCount)",
            "Sep 18 03:19:01 ws7 nvidia-fabricmanager-start.sh[4753]: Detected Pre-NVL5 system\nSep 18 03:19:01 ws7 nvidia-fabricmanager-start.sh[4756]: request to query NVSwitch device information from NVSwitch driver failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]\nSep 18 03:19:01 ws7 systemd[1]: nvidia-fabricmanager.service: Control process exited, code=exited, status=1/FAILURE",
            "    Fabric\n        State                             : Completed\n        Status                            : Insufficient Resources\n        CliqueId                          : 0\n        ClusterUUID                       : 00000000-0000-0000-0000-000000000000",
            "        Fabric\n            State                                          : In Progress\n            Status                                         : N/A",
            "fabric manager NVIDIA GPU driver interface version 570.86.15 don't match with driver version 570.124.06. Please update with matching NVIDIA driver package.",
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
            "modprobe: FATAL: Module nvidia-peermem not found in directory /lib/modules/6.8.0-1059-azure",
            "Error! Bad return status for module build on kernel: 5.15.0-88-generic (x86_64)\nConsult /var/lib/dkms/nv_peer_mem/1.2/build/make.log for more information.",
        ],
    ),
    (
        "driver-symbols",
        &[
            "[  366.264584] nv_peer_mem: disagrees about version of symbol nvidia_p2p_get_pages",
            "[55580.715174] gdrdrv: disagrees about version of symbol nvidia_p2p_get_pages",
            "gdrdrv: Unknown symbol nvidia_p2p_put_pages (err -22)",
            "nv_peer_mem: disagrees about version of symbol nvidia_p2p_put_pages",
            "nvidia_fs: Unknown symbol nvidia_p2p_dma_unmap_pages (err -2)",
            "nvidia_fs: module using GPL-only symbols uses symbols nvidia_p2p_get_pages from proprietary module nvidia.",
            "gdrdrv: version magic '5.15.0-91-generic SMP mod_unload modversions ' should be '6.8.0-45-generic SMP preempt mod_unload modversions '",
            "insmod: ERROR: could not insert module gdrdrv/gdrdrv.ko: Invalid parameters",
            "modprobe: ERROR: could not insert 'gdrdrv': Unknown symbol in module, or unknown parameter (see dmesg)",
            "kernel: failing symbol_get of non-GPLONLY symbol nvidia_p2p_get_pages.",
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
            "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver",
            "CUDA error: CUDA driver version is insufficient for CUDA runtime version",
            "CUDA error 804: forward compatibility was attempted on non supported HW",
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
            " 05-11-2023 15:01:56:615 [pid=38031 tid=38031] ERROR  cufio:480 cuInit Failed, error CUDA_ERROR_NO_DEVICE",
            "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown",
            "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object file: no such file or directory: unknown",
            "docker: Error response from daemon: could not select device driver \"nvidia\" with capabilities: [[gpu]].",
            "No devices were found",
            "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
            "Error! Bad return status for module build on kernel: 6.8.0-45-generic (x86_64)\nConsult /var/lib/dkms/nvidia/550.90.07/build/make.log for more information.",
            "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
            "RuntimeError: CUDA error: no CUDA-capable device is detected",
            "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment",
            "nvidia-container-cli: device error: GPU-0c239aa8: unknown device: unknown",
            "gdaki.c:1227 UCX ERROR cuDeviceGetCount(&cuda_dev_count) failed: initialization error",
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
        "peermem-deadlock",
        &[
            "INFO: task app:77 blocked for more than 120 seconds.\n\
             nv_mem_release+0x1b/0x30 [nv_peer_mem]",
            "Peer-direct patch may cause deadlock due to lock inversion (Internal Ref. #2696789)",
        ],
    ),
    (
        "kernel-crash",
        &["[  100.2] Oops: 0000 [#1] SMP NOPTI\n[  100.5]  btrfs_sync+0x1b/0x30 [btrfs]"],
    ),
    (
        "kernel-crash",
        &[
            "BUG: kernel NULL pointer dereference, address: 0000000000000008\n mlx5_ib_devx_umem_reg+0x2b0/0x5a0 [mlx5_ib]",
            "Unable to handle kernel paging request at virtual address dead000000000108\n ib_uverbs_cmd_verbs+0x9fc/0xc30 [ib_uverbs]",
            "RIP: 0010:_nv01rm+0x1b/0x30 [nvidia]",
            "[ 2260.995163] ------------[ cut here ]------------\n[ 2260.995182] kernel BUG at /build/linux-lts-xenial/mm/memory.c:1674!\n[ 2260.995204] invalid opcode: 0000 [#1] SMP\n[ 2260.995861]  [<ffffffffc06362e1>] gdrdrv_mmap_phys_mem_wcomb+0x71/0x130 [gdrdrv]\n[ 2260.995879]  [<ffffffffc06364f6>] gdrdrv_mmap+0x156/0x2e0 [gdrdrv]",
            "May 26 02:10:11 ws kernel: BUG: unable to handle page fault for address: 00001297961b1077\nMay 26 02:10:11 ws kernel: #PF: supervisor instruction fetch in kernel mode\nMay 26 02:10:11 ws kernel: Oops: Oops: 0010 [#1] SMP NOPTI\nMay 26 02:10:11 ws kernel: CPU: 3 UID: 0 PID: 2201 Comm: UVM global queue Tainted: P           OE\nMay 26 02:10:11 ws kernel: RIP: 0010:0x1297961b1077\nMay 26 02:10:11 ws kernel: Call Trace:\nMay 26 02:10:11 ws kernel:  <TASK>\nMay 26 02:10:11 ws kernel:  ? nv_kthread_q_run_all_pending+0x8c/0xc0 [nvidia_uvm]\nMay 26 02:10:11 ws kernel:  _main_loop+0x7f/0x160 [nvidia_uvm]",
            "Sep 06 23:00:03 kernel: general protection fault, probably for non-canonical address 0x25b5f6bb1a24827e: 0000 [#1] SMP NOPTI\nSep 06 23:00:03 kernel: RIP: 0010:_nv000456rm+0x9c8/0xfffffffffff1eb90 [nvidia]\nSep 06 23:00:03 kernel: 0000000097e25b8e: ffff8c46bc2c6b48 (rm_gpu_ops_retain_channel+0x28/0x70 [nvidia])",
        ],
    ),
    (
        "kernel-warning",
        &[
            "WARNING: CPU: 3 PID: 99 at drivers/infiniband/hw/mlx5/mr.c:1733 mlx5_ib_dereg_mr+0x3a/0x90 [mlx5_ib]\n mlx5_ib_dereg_mr+0x3a/0x90 [mlx5_ib]",
            "INFO: task python:4711 blocked for more than 120 seconds.\n nvidia_dev_put+0x1c/0x60 [nvidia]",
        ],
    ),
    (
        "fabric-restarted",
        &[
            "NVRM: nvCheckOkFailedNoLog: Check failed: NVLink fabric state cached by the driver is out of sync [NV_ERR_FABRIC_STATE_OUT_OF_SYNC] (0x00000087) returned from status @ mem_multicast_fabric.c:2917",
            "node-a:1:2 [0] transport/nvls.cc:254 NCCL WARN Cuda failure 1 'invalid argument'",
            "NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the operation cannot be performed in the present state'",
            "    return _SymmetricMemory.rendezvous(tensor, group_name)\nRuntimeError: CUDA driver error: invalid argument",
        ],
    ),
    (
        "module-in-use",
        &[
            "Could not unload NVIDIA driver kernel modules, driver is in use",
            "Unloading HCA driver:                                      [FAILED]\nrmmod: ERROR: Module ib_uverbs is in use by: nvidia_peermem",
            "rmmod: ERROR: Module nvidia is in use by: nvidia_uvm nvidia_modeset gdrdrv",
            "GPU 00000000:0A:00.0 is currently in use by another process.",
        ],
    ),
    (
        "rdma-driver",
        &[
            "Unloading HCA driver:[  OK  ]\nFailed loading kernel module mlx5_ib:[FAILED]\nLoading HCA driver and Access Layer:[FAILED]",
            "Module mlx5_core does not exist, skipping...               [FAILED]",
            "modprobe: FATAL: Module ib_uverbs not found in directory /lib/modules/6.8.0-45-generic",
            "Failed to build MLNX_OFED_LINUX for 5.14.0-rc5",
        ],
    ),
];
