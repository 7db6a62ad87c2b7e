//! Texts of causes of GPUs, NVLink and NVSwitch.

use super::Texts;

pub(crate) const TEXTS: Texts = &[
    (
        "gpu-memory-error",
        &[
            "NVRM: Xid (PCI:0000:18:00): 48, pid=1, DBE (Double Bit Error)",
            "NVRM: Xid (PCI:0000:9b:00): 94, pid=4242, name=python3, Contained: CE User Channel (0x9)",
            "CUDA error: uncorrectable ECC error encountered",
            "NVRM: GPU at PCI:0000:3b:00: Row Remapper: pending reset for row remapping",
        ],
    ),
    (
        "gpu-firmware",
        &[
            "[605633.376794] NVRM: Xid (PCI:0000:06:00): 120, GSP task exception: store access page fault (cause:0xf) @ pc:0x13ebd80, partition:2#0, task:3",
            "[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU4 GSP! Expected function 103",
            "NVRM: Xid (PCI:0000:9b:00): 62, pid='<unknown>', name=<unknown>, 2027(2d00) 00000000",
            "NVRM: Xid (PCI:0000:1b:00): 154, pid='<unknown>', name=<unknown>, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
            "NVRM: Xid (PCI:0000:1b:00): 119, pid=9001, name=python3, Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL)",
            "[373871.354096] NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from status @ kernel_channel.c:2827",
            "NVRM: _kgspLogXid119: ********************************* GSP Timeout **********************************",
            "NVRM: _issueRpcAndWait: rpcSendMessage failed with status 0x00000065 for fn 76!",
            "Error: GPU 00000000:18:00.0: GPU requires reset",
            "NVRM: nvAssertFailedNoLog: Assertion failed: 0 @ kernel_gsp.c:1476",
        ],
    ),
    (
        "nvlink-error",
        &[
            "NVRM: Xid (PCI:0000:9b:00): 74, pid='<unknown>', NVLink: fatal error detected on link 3",
            "NVRM: Xid (PCI:0000:9b:00): 145, RLW_SRC_TRACK Nonfatal XC0 i0 Link 09",
            "kernel: NVRM: Xid (PCI:0000:dc:00): 45, pid=4242, name=python3, Ch 00000001 caused by previous Xid 149",
            "CUDA_ERROR_CONTAINED: Invalid access of peer GPU memory over nvlink or a hardware error",
            "[Fri Sep 11 08:01:02 2026] NVRM: Xid (PCI:0000:66:00): 145, pid=1, name=VLLM::Worker_TP, RLW_REMAP Nonfatal XC0 i0 Link 13 (0x00000004 0x00000000)",
            "torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected during the execution",
            "GPU 3: NVIDIA H100 80GB HBM3 (UUID: GPU-0c239aa8)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>",
            "| Error: GPU 3                | GPU 3's NvLink link 5 is currently down. Run a field diagnostic on the GPU. |",
            "NVML: Unable to retrieve NVLink information as all links are inActive",
        ],
    ),
    (
        "nvswitch-error",
        &[
            "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error",
            "nv-fabricmanager[1120]: detected NVSwitch fatal error 20034 on fid:0 on NVSwitch pci 00000000:06:00.0 physical id 9 port 61",
        ],
    ),
    (
        "gpu-program-fault",
        &[
            "NVRM: Xid (PCI:0000:18:00): 31, pid=123, name=python, Ch 00000008, intr 00000000. MMU Fault",
            "RuntimeError: CUDA error: an illegal memory access was encountered",
        ],
    ),
    (
        "gpu-channel-cleanup",
        &["NVRM: Xid (PCI:0000:dc:00): 45, pid=4242, name=python3, Ch 00000001"],
    ),
    (
        "gpu-probe",
        &[
            "NVRM: GPU 0000:9b:00.0: RmInitAdapter failed! (0x62:0xffff:2477)",
            "[  903.609564] NVRM: RmInitAdapter: Cannot initialize GSP firmware RM",
            "[   21.238204] NVRM: osInitNvMapping: *** Cannot attach gpu",
            "[  441.170986] NVRM: No NVIDIA graphics adapter found!",
            "Feb 09 15:47:06 debian kernel: NVRM: GPU 0000:13:00.0: RmInitAdapter failed! (0x26:0x56:1463)",
            "NVRM: The NVIDIA probe routine failed for 1 device(s).",
            "nvidia: probe of 0000:b3:00.0 failed with error -1",
            "NVRM: None of the NVIDIA devices were initialized.",
            "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1b80)\nNVRM: installed in this system is not supported by the\nNVRM: NVIDIA 590.44.01 driver release.",
        ],
    ),
    (
        "gpu-xid",
        &["NVRM: Xid (PCI:0000:18:00): 999, pid=1, something new"],
    ),
    (
        "nccl-crash",
        &[
            "python3[4242]: segfault at 18 ip 00007f7e4a2b sp 00007f error 4 in libnccl.so.2.20.5[7f7e49000000+d000000]",
            "[node:288505:0:296459] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x48)\n==== backtrace (tid: 296459) ====\n 0  /usr/lib/libucs.so.0(ucs_handle_error+0x2d4) [0x7fedc925c274]\n 3  /opt/nccl/lib/libnccl.so(+0x120057) [0x7ff1c18c1057]",
        ],
    ),
];
