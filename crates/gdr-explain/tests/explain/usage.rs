//! Whether a log shows GPUDirect RDMA in use.

use gdr_explain::{GpuDirect, InUse, Transport, read};

fn in_use(log: &str) -> InUse {
    read(log.as_bytes()).unwrap().gpudirect.in_use
}

#[test]
fn a_log_that_shows_gpudirect_in_use_is_answered_with_yes_and_its_lines() {
    let log = "\
node0:1:2 [0] NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'
node0:1:2 [0] NCCL INFO Channel 00/0 : 1[1] -> 8[0] [receive] via NET/IB/0/GDRDMA
node0:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
node0:1:2 [0] NCCL INFO Channel 01/0 : 8[0] -> 1[1] [send] via NET/IB/1/GDRDMA/Shared
";
    let answer = read(log.as_bytes()).unwrap();
    assert!(answer.causes.is_empty());
    let gpudirect = answer.gpudirect;
    assert_eq!(gpudirect.in_use, InUse::Yes);
    assert_eq!(gpudirect.connections.gpudirect, 2);
    assert_eq!(gpudirect.connections.same_node, 1);
    assert_eq!(gpudirect.without, []);
    let lines: Vec<usize> = gpudirect.evidence.iter().map(|it| it.line).collect();
    assert_eq!(lines, [2, 4, 1]);
}

#[test]
fn a_mixed_log_names_the_ranks_that_do_without() {
    let mut log = String::new();
    for rank in 0..16 {
        let next = (rank + 1) % 16;
        let way = if rank >= 12 { "" } else { "/GDRDMA" };
        log += &format!(
            "n{rank}:1:2 [0] NCCL INFO Channel 00/0 : {rank}[0] -> {next}[0] [send] via NET/IB/0{way}\n"
        );
    }
    log += "n3:1:2 [0] NCCL INFO Channel 00/0 : 2[0] -> 3[0] [receive] via NET/Socket/0\n";
    let answer = read(log.as_bytes()).unwrap();
    assert_eq!(answer.gpudirect.in_use, InUse::Partly);
    assert_eq!(answer.gpudirect.ranks_without, "3,12-15");
    assert_eq!(answer.gpudirect.without.len(), 5);
    assert_eq!(answer.gpudirect.without[0].transport, Transport::Socket);
    assert!(!answer.gpudirect.receives_only);
    let causes: Vec<&str> = answer.causes.iter().map(|it| it.cause.id).collect();
    assert_eq!(causes, ["gdr-unused", "no-rdma-device"]);
}

#[test]
fn receives_that_use_it_and_sends_that_do_not_are_the_setting_of_reads() {
    let log = "\
Channel 00/0 : 1[1] -> 8[0] [receive] via NET/IB/0/GDRDMA
Channel 00/0 : 8[0] -> 1[1] [send] via NET/IB/0
";
    let gpudirect = read(log.as_bytes()).unwrap().gpudirect;
    assert_eq!(gpudirect.in_use, InUse::Partly);
    assert!(gpudirect.receives_only);
}

#[test]
fn logs_of_every_library_are_answered() {
    let perftest = "\
ib_write_bw -d mlx5_0 --use_cuda=0
allocated GPU buffer address at 00007f3fa4000000 pointer=0x7f3fa4000000
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000             392.01             391.99             0.747
";
    assert_eq!(in_use(perftest), InUse::Yes);
    let host = perftest.replace("allocated GPU buffer", "allocated buffer");
    assert_eq!(in_use(&host), InUse::Unknown);
    let ucx = "\
| ucp_context_0 inter-node cfg#2 | tagged message by ucp_tag_send* from cuda/GPU0      |
|                       0..8184 | eager copy-in copy-out                | rc_mlx5/mlx5_0:1 |
|                     8185..inf | rendezvous zero-copy read from remote | rc_mlx5/mlx5_0:1 |
";
    assert_eq!(in_use(ucx), InUse::Yes);
    assert_eq!(in_use(&ucx.replace("cuda/GPU0", "host")), InUse::Unknown);
    let info = "\
# Memory domain: mlx5_0
#     Component: ib
#         memory types: host (access,reg_nonblock,reg,cache), cuda (reg,cache), rdma (alloc,cache)
";
    assert_eq!(in_use(info), InUse::Usable);
    let copies = info.replace("mlx5_0", "cuda_cpy");
    assert_eq!(in_use(&copies), InUse::Unknown);
    let nvshmem = "NVSHMEM INFO ibv_reg_dmabuf_mr handle 0x55d0c8 mr 0x55d0d0";
    assert_eq!(in_use(nvshmem), InUse::Usable);
    let failed = "NVSHMEM INFO ibv_reg_dmabuf_mr handle 0x55d0c8 mr 0x0";
    assert_eq!(in_use(failed), InUse::Unknown);
    let libfabric = "libfabric:1:2::efa:core:efa_hmem_info_init_iface():1<info> FI_HMEM_CUDA P2P support is available.";
    assert_eq!(in_use(libfabric), InUse::Usable);
    let plugin = "Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/2/GDRDMA";
    assert_eq!(in_use(plugin), InUse::Yes);
}

#[test]
fn a_log_of_one_node_says_nothing_of_the_network() {
    let log = "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\nChannel 01 : 1[1] -> 0[0] via SHM/direct/direct\n";
    let answer = read(log.as_bytes()).unwrap();
    assert_eq!(answer.gpudirect.in_use, InUse::SameNode);
    assert!(answer.causes.is_empty());
    assert_eq!(in_use("the weather is fine"), InUse::Unknown);
}

#[test]
fn a_wrapped_channel_is_read_whole() {
    let log =
        "node0:1:2 [0] NCCL INFO Channel 00/0 : 1[1] -> 8[0] [receive] via NET/IB/0\n/GDRDMA\n";
    assert_eq!(in_use(log), InUse::Yes);
    let log =
        "node0:1:2 [0] NCCL INFO Channel 00/0 : 1[1] -> 8[0] [receive] via\nNET/IB/0/GDRDMA\n";
    assert_eq!(in_use(log), InUse::Yes);
}

#[test]
fn what_is_listed_is_bounded_and_what_is_left_out_is_said() {
    let mut log = String::new();
    for rank in 0..1000 {
        log += &format!("Channel 00/0 : {rank}[0] -> 0[0] [send] via NET/IB/0\n");
    }
    let gpudirect = read(log.as_bytes()).unwrap().gpudirect;
    assert_eq!(gpudirect.connections.host_memory, 1000);
    assert_eq!(gpudirect.without.len(), GpuDirect::LISTED);
    assert!(gpudirect.more_without);
    assert_eq!(gpudirect.ranks_without, "0-999");
}
