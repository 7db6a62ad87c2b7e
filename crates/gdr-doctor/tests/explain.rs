//! Error texts as their programs print them, and the cause that has to come first.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use gdr_doctor::explain::{MAX_LINE, causes, explain};
use proptest::prelude::*;

/// Of each cause the texts that name it.
const TEXTS: &[(&str, &[&str])] = &[
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
        "acs-redirect",
        &[
            "NET/IB : Got completion from peer 10.1.1.2<48344> with error 4, opcode 0, len 0, vendor err 81",
            "NET/IB: Got completion from peer 192.168.1.1<40000> with status=4 opcode=0 len=0 vendor err 81 (Send)",
            "Completion with error at client\nFailed status 4: wr_id 0 syndrom 0x51",
            "mlx5: host: got completion with error: 00000000 00000000 local protection error",
            "Local Protection: vendor error 81",
        ],
    ),
    (
        "transport-timeout",
        &[
            "NET/IB : Got completion from peer 10.0.0.3<39393> with error 12, opcode 0, len 0, vendor err 129",
            "NET/IB: Got completion from peer 10.0.0.3<39393> with status=12 opcode=1 len=0 vendor err 129 (Recv)",
            "Failed status 12: wr_id 0 syndrom 0x81",
        ],
    ),
    (
        "address-resolution",
        &[
            "NCCL WARN Call to ibv_modify_qp failed with error Connection timed out",
            "NCCL WARN Call to ibv_modify_qp failed with error Network is unreachable",
            "misc/ibvwrap.cc:190 NCCL WARN Call to ibv_modify_qp failed with error No route to host",
            "NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1",
        ],
    ),
    (
        "gid-other-namespace",
        &["NCCL WARN Call to ibv_modify_qp failed with error No such device"],
    ),
    (
        "memlock",
        &[
            "ibv_create_qp() failed: Cannot allocate memory",
            "NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory",
            "NET/IB : Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
            "ib_mlx5_dv.c:1 UCX ERROR mlx5_0: ibv_create_cq(cqe=4096) failed: Cannot allocate memory : Please set max locked memory (ulimit -l) to 'unlimited' (current: 64 kbytes)",
        ],
    ),
    (
        "bar1-small",
        &[
            "mlx5_0:mr_umem_get:1032:(pid 8811): umem get failed (-14)",
            "ibv_reg_mr failed, Bad address. addr:0x7f21e3369dc0, length:15863892992, access:0x7\n\
             mlx5_0:mr_umem_get:709:(pid 15855): umem get failed (-131668346275144)",
        ],
    ),
    (
        "no-rdma-device",
        &[
            "NCCL INFO NET/IB : No device found.\nNCCL INFO NET/Socket : Using [0]eth0\nNCCL INFO Using network Socket",
            " Unable to open device",
            "host:1:1 [0] NCCL INFO Using network Socket",
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
        "peermem-callback",
        &[
            "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
        ],
    ),
    (
        "gdrdrv-missing",
        &[
            "GDRAPI: unable to open GDR driver: is gdrdrv driver installed and loaded?",
            "Is gdrdrv driver installed and loaded?",
            "gdrdrv:built for proprietary NVIDIA driver",
            "GDRCOPY library \"libgdrapi.so\" unable to open GDR driver, is gdrdrv.ko loaded?",
            "ucp_context.c:779  UCX  WARN  transport 'gdr_copy' is not available, please use one or more of: cma",
        ],
    ),
    (
        "fabric-manager",
        &[
            "Error 802: system not yet initialized",
            "cudaGetDeviceCount() returned 802",
            "RuntimeError: Unexpected error from cudaGetDeviceCount(): Error 802: system not yet initialized",
        ],
    ),
    (
        "ibgda-privilege",
        &[
            "init failed for transport: IBGDA",
            "NULL value cannot allocate mlx5dv_devx_uar",
            "cannot allocate buffer on the specified memory type",
        ],
    ),
    (
        "root-port-reads",
        &[
            "Failed status 11: wr_id 0 syndrome 0x89",
            "Remote operation error (11)",
            "RDMA reads fail, writes work",
        ],
    ),
    (
        "remote-access",
        &[
            "Syndrome 0x14 Remote access error",
            "mlx5: got completion with error: remote access error",
        ],
    ),
    (
        "flush-error",
        &[
            "NET/IB : Got completion from peer 10.0.0.2<4791> with status 5 opcode 0 len 0 vendor err 249",
        ],
    ),
    (
        "mtu-differs",
        &["NET/IB: Got completion from peer with error: local access violation work queue error"],
    ),
    (
        "lockdown",
        &[
            "setpci: 0000:40:01.1: Operation not permitted",
            "error: setpci: pcilib: sysfs_write: write failed: Operation not permitted",
            "write counter to semaphore: Operation not permitted",
            "Lockdown: setpci: direct PCI access is restricted; see man kernel_lockdown.7",
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
        "vm-topology",
        &["in the VM everything is PHB and half the bandwidth is gone"],
    ),
    (
        "gpu-lost",
        &["NVRM: Xid (PCI:0000:19:00): 79, pid='<unknown>', GPU has fallen off the bus."],
    ),
];

#[test]
fn the_right_cause_comes_first() {
    let mut wrong = Vec::new();
    for (cause, texts) in TEXTS {
        for text in *texts {
            let found = explain(text);
            let first = found.first().map_or("nothing", |it| it.cause.id);
            if first != *cause {
                wrong.push(format!("{text}: {first}, not {cause}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_cause_is_named_by_a_text() {
    for cause in causes() {
        let general = "dmabuf-attach";
        assert!(
            cause.id == general || TEXTS.iter().any(|(id, _)| *id == cause.id),
            "{} has no text",
            cause.id
        );
    }
}

#[test]
fn a_channel_that_uses_gpudirect_is_no_error() {
    let text = "NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA";
    assert!(explain(text).is_empty());
    let text = "NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0(8)/GDRDMA/Shared";
    assert!(explain(text).is_empty());
}

#[test]
fn of_a_log_the_surest_cause_comes_first_and_its_lines_are_shown() {
    let log = "\
host:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE
host:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0
host:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.1.1.2<48344> with error 4, opcode 0, len 0, vendor err 81
host:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.1.1.2<48344> with error 5, opcode 0, len 0, vendor err 249
";
    let found = explain(log);
    let ids: Vec<&str> = found.iter().map(|it| it.cause.id).collect();
    assert_eq!(ids, ["acs-redirect", "gdr-unused", "flush-error"]);
    assert_eq!(found[0].matches[0].line, 3);
}

proptest! {
    #[test]
    fn no_text_is_too_strange(text in "\\PC{0,200}(\n\\PC{0,200}){0,20}") {
        for explanation in explain(&text) {
            prop_assert!(!explanation.matches.is_empty());
            prop_assert!(explanation.matches.iter().all(|it| it.text.len() <= MAX_LINE));
        }
    }
}
