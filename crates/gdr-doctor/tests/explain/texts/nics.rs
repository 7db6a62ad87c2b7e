//! Texts of causes of mlx5 NICs.

use super::Texts;

pub(crate) const TEXTS: Texts = &[
    (
        "nic-firmware",
        &[
            "[88120.2] mlx5_core 0000:03:00.0 ens1np0: TX timeout detected",
            "[    5.502207] mlx5_core 0000:01:00.0: handle_hca_cap failed",
            "mlx5_core 0000:19:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count",
            "mlx5_core 0000:5e:00.1: mlx5_health_try_recover:339:(pid 1): handling bad device here\nmlx5_core 0000:5e:00.1: print_health_info: Fatal error",
            "2019-06-02T16:13:44.884Z: [1,12]<stdout>:container:815:864 [0] transport/net_ib.cu:80 NCCL WARN NET/IB : Got async event : local catastrophic error",
            "mlx5_core 0000:19:00.0: wait_fw_init:202:(pid 1): Waiting for FW initialization, timeout abort in 100s (0xffffffff)",
            "mlx5_core: probe of 0000:19:00.0 failed with error -12",
            "mlx5_core 0000:19:00.0: mlx5_fw_fatal_reporter_err_work:654:(pid 1): fw fatal",
            "[ 63.1] mlx5_core 0000:81:00.0: wait_func:1195:(pid 967): ENABLE_HCA(0x104) timeout. Will cause a leak of a command resource",
            "[ 512.3] bnxt_en 0000:c2:00.0 ens1f0np0: Error (timeout: 500000) msg {0x24 0x1b3} len:0",
            "mlx5_core 0000:a1:00.0: mlx5_health_try_recover:330:(pid 812): health recovery flow aborted, PCI reads still not working",
            "[ 700.2] bnxt_en 0000:c2:00.0 ens1f0np0: Firmware fatal reset request received",
            "[ 9.1] mlx5_core 0000:19:00.0: mlx5_init_one:1321:(pid 311): mlx5_load_one failed with error code -5",
            "[ 812.120001] bnxt_en 0000:41:00.0: QPLIB: cmdq[0x1a]=0x3 timedout (100000) msec",
        ],
    ),
    (
        "nic-heat-or-power",
        &[
            "mlx5_core 0000:19:00.0: temp_warn:172:(pid 0): High temperature on sensors with bit set 0 1",
            "mlx5_core 0000:19:00.0: mlx5_pcie_event:301:(pid 268): Detected insufficient power on the PCIe slot (27W).",
        ],
    ),
    (
        "nic-cable",
        &[
            "mlx5_core 0000:19:00.0: Port module event: module 0, Cable unplugged",
            "Errors for \"node-h HCA-1\"\n   GUID 0x946dae0300a1b2c4 port 1: [SymbolErrorCounter == 65535] [LinkErrorRecoveryCounter == 3] [LinkDownedCounter == 12] [PortRcvErrors == 15]",
            "LinkDownedCounter:...............12",
            "Troubleshooting Info\n--------------------\nStatus Opcode                      : 1024\nRecommendation                     : Cable is unplugged",
            "Port mlx5_3 port 1: link_downed - Port Training State Machine failed - QP disconnect (value=1, delta=1)",
        ],
    ),
    (
        "nic-command",
        &[
            "ib_mlx5dv_md.c:1 UCX  ERROR mlx5dv_devx_obj_modify(opcode=0x503) failed on mlx5_0, syndrome 0x10a153: Remote I/O error",
            "mlx5_core 0000:19:00.0: mlx5_cmd_out_err:808:(pid 11): CREATE_MKEY(0x200) op_mod(0x0) failed, status limits exceeded(0x8), syndrome (0x59c8a4), err(-12)",
            "mlx5_core 0000:9b:00.0: mlx5_cmd_check:782:(pid 3): CREATE_QP(0x500) op_mod(0x0) failed, status bad parameter(0x3), syndrome (0x424be)",
            "ib_mlx5_dv.c:430  UCX  ERROR   mlx5dv_devx_obj_create(QP) failed on mlx5_0, syndrome 0x2c4154: Remote I/O error",
            "[ 513.3] infiniband bnxt_re0: QPLIB: cmdq[0x2a3]=0x9 status 0x5",
            "[ 77.1] infiniband rdmap16s27: Failed to process command CREATE_QP (opcode 1) comp_status 5 err -12",
            "infiniband irdma0: [Modify QP Cmd Error][op_code=6] status=-16 waiting=1 completion_err=1 maj=0xffff min=0x8",
            "[ 812.120009] infiniband bnxt_re0: Failed to modify HW QP",
            "mlx5_core 0000:9a:00.0: mlx5_cmd_out_err:808:(pid 4711): RTR2RTS_QP(0x504) op_mod(0x0) failed, status bad parameter(0x3), syndrome (0x6cd5d9), err(-22)",
            "infiniband mlx5_2: Failed to create CQ, err -12",
        ],
    ),
    (
        "nic-register",
        &[
            "mlx5_core 0000:19:00.0: mlx5_cmd_out_err:838:(pid 1): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2), syndrome (0x305684), err(-22)",
        ],
    ),
];
