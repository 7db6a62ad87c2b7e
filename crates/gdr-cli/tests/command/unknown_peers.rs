//! The walks of people who come from another document: what they type first, and where it ends.

use std::io::Write;

use super::*;

/// Returns what `gdr` answers to a text on its standard input.
fn pasted(line: &str, text: &str) -> (i32, String) {
    let mut child = program()
        .args(line.split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(text.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    (
        code(&output),
        format!("{}{}", stdout(&output), stderr(&output)),
    )
}

/// The headline of the first cause that `gdr explain` finds.
#[track_caller]
fn assert_cause(text: &str, cause: &str) {
    let (code, answer) = pasted("explain --offline -", text);
    assert_eq!(code, 0, "{text}: {answer}");
    let first = answer.split("   line ").next().unwrap();
    assert_contains!(first, format!("({cause},"), "{text}: {answer}");
}

#[track_caller]
fn assert_says(answer: &str, words: &[&str]) {
    for word in words {
        assert_contains!(answer, word, "no `{word}` in:\n");
    }
}

const TWO_SOCKETS: &str = "\
[root@gpu1 ~]# nvidia-smi topo -m
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV4\tSYS\t0-15\t0
GPU1\tNV4\t X \tPHB\t16-31\t1
NIC0\tSYS\tPHB\t X \t\t

NIC Legend:

  NIC0: mlx5_0
";

/// A guide to the set-up: distances, the module, perftest, limits.
#[test]
fn who_sets_a_node_up_reads_which_gpu_is_far_and_that_the_limit_is_too_small() {
    let (status, answer) = pasted("topo --from -", TWO_SOCKETS);
    assert_eq!(status, 0, "{answer}");
    assert_says(&answer, &["SYS", "PHB", "NV4", "mlx5_0"]);
    assert_says(
        &answer,
        &["NIC0\tCPU Affinity\tNUMA Affinity\t", "SYS\t0-15\t0\t"],
    );
    let (status, answer) = pasted("topo why GPU0 NIC0 --from -", TWO_SOCKETS);
    assert_eq!(status, 0, "{answer}");
    assert_says(
        &answer,
        &[
            "GPU0 - mlx5_0: SYS",
            "GPU0: CPUs 0-15, NUMA node 0",
            "0.3 GB/s",
        ],
    );
    assert_cause(
        "modprobe: FATAL: Module nvidia_peermem not found in directory /lib/modules/6.1.0\n",
        "peermem-not-found",
    );
    assert_cause(
        "./ib_write_bw: unrecognized option '--use_cuda=1'\n",
        "perftest-without-cuda",
    );
    assert_cause("ibv_create_qp failed\n", "memlock");
    assert_cause("Couldn't register: ibv_reg_mr failed\n", "memlock");
    assert_cause("[me@gpu1 ~]$ ulimit -l\n64\n", "memlock");
}

const REMOTE_BOX: &str = "\
[root@lab ~]# ip a
2: ens1f0: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1500 qdisc mq state DOWN group default qlen 1000
    link/ether 02:11:22:33:44:50 brd ff:ff:ff:ff:ff:ff
3: ens2f1: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP group default qlen 1000
    link/ether 02:11:22:33:44:61 brd ff:ff:ff:ff:ff:ff
[root@lab ~]# lspci | grep -i ethernet
17:00.0 Ethernet controller: Mellanox Technologies MT2892 Family [ConnectX-6 Dx]
65:00.1 Ethernet controller: Mellanox Technologies MT28800 Family [ConnectX-5 Ex]
[root@lab ~]# ethtool -i ens2f1
driver: mlx5_core
version: 5.8-1.0.1
firmware-version: 16.35.2000 (MT_0000000013)
bus-info: 0000:65:00.1
";

/// A proof between two cards of a remote machine: which card is which interface, and what a pattern
/// that is not overwritten means.
#[test]
fn who_sees_no_pattern_overwritten_finds_the_cards_and_the_cause() {
    let (status, answer) = pasted("nics --wide --from -", REMOTE_BOX);
    assert_eq!(status, 0, "{answer}");
    let card = answer.lines().find(|it| it.contains("ens2f1")).unwrap();
    assert_says(
        card,
        &[
            "0000:65:00.1",
            "ConnectX-5 Ex",
            "02:11:22:33:44:61",
            "9000",
            "mlx5_core",
            "16.35.2000",
        ],
    );
    // Without the command, what it printed names no interface.
    let (_, unnamed) = REMOTE_BOX.split_once("ethtool -i ens2f1\n").unwrap();
    let (status, answer) = pasted("nics --wide --from -", unnamed);
    assert_eq!(status, 0, "{answer}");
    assert_says(&answer, &["0000:65:00.1", "mlx5_core", "16.35.2000"]);
    assert_cause(
        "every call succeeds, but the pattern is not overwritten\n",
        "bytes-missing",
    );
    for (fault, verdict) in [
        ("lost", "FAIL: the writes never reached GPU memory"),
        ("part", "FAIL: only part arrived"),
        ("damaged", "FAIL: the bytes that arrived are not"),
        ("stale", "FAIL: the comparisons disagree"),
    ] {
        let output = simulated(&format!(
            "loopback --udp-port 14990 --size 4K -i 1 --inject {fault}"
        ));
        assert_eq!(code(&output), 2, "{fault}: {}", stderr(&output));
        let answer = format!("{}{}", stdout(&output), stderr(&output));
        assert_says(&answer, &[verdict, "REHEARSAL"]);
    }
    assert_says(&fine("loopback --udp-port 14990 --size 4K -i 1"), &["PASS"]);
}

const BELOW_ONE_SWITCH: &str = "\
[root@gpu1 ~]# lspci -tv
-[0000:00]-+-00.0  Intel Corporation Device 09a2
           \\-01.0-[01-04]----00.0-[02-04]--+-00.0-[03]----00.0  NVIDIA Corporation GA100 [A100 PCIe 40GB]
                                           \\-01.0-[04]----00.0  Mellanox Technologies MT28908 Family [ConnectX-6]
";

/// The old module for peer memory: that the driver has its own today, and why the old one fails.
#[test]
fn who_comes_with_nv_peer_mem_reads_what_took_its_place() {
    for (text, cause) in [
        (
            "modprobe: ERROR: could not insert 'nv_peer_mem': Invalid argument\n",
            "peermem-symbols",
        ),
        (
            "nv_peer_mem: disagrees about version of symbol ib_register_peer_memory_client\n",
            "peermem-symbols",
        ),
        (
            "modprobe: ERROR: module 'nvidia_peermem' is unsupported\n",
            "unsupported-module",
        ),
        (
            "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context\n",
            "peermem-context",
        ),
        (
            "peer-direct patch: deadlock due to lock inversion in nv_peer_mem\n",
            "peermem-deadlock",
        ),
        (
            "INFO: task app:77 blocked for more than 120 seconds.\n \
             nv_mem_release+0x1b/0x30 [nv_peer_mem]\n",
            "peermem-deadlock",
        ),
    ] {
        assert_cause(text, cause);
    }
    assert_says(
        &stdout(&gdr(["doctor", "show", "peermem.age"])),
        &["2696789", "4.9"],
    );
    assert_says(
        &stdout(&gdr(["peermem", "status", "--example"])),
        &["nvidia_peermem"],
    );
    // A node on which it was installed by its README: the module, and the file that loads it.
    let node = tempfile::tempdir().unwrap();
    for (file, text) in [
        ("proc/modules", "nv_peer_mem 16384 0 - Live 0x0\n"),
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n",
        ),
        ("sys/module/nv_peer_mem/version", "1.1-0\n"),
        ("etc/infiniband/nv_peer_mem.conf", "ONBOOT=yes\n"),
    ] {
        let path = node.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let from = node.path().display().to_string();
    let output = gdr(["doctor", "--from", &from, "--only", "peermem.age"]);
    assert_says(
        &stdout(&output),
        &["nv_peer_mem is no longer maintained", "gdr peermem enable"],
    );
    assert_says(
        &stdout(&gdr(["peermem", "status", "--from", &from])),
        &["nv_peer_mem.conf", "1.1-0"],
    );
    // The NIC and the GPU below one root complex, by the command that its README names.
    let (status, answer) = pasted("topo --from -", BELOW_ONE_SWITCH);
    assert_eq!(status, 0, "{answer}");
    assert_says(&answer, &["PIX"]);
}

/// A status script and a crash at boot: the driver that crashed, and what direct access is worth.
#[test]
fn who_reads_a_log_after_a_crash_reads_which_driver_it_was() {
    let crash = "\
[Mon Mar  2 08:00:01 2026] Oops: 0002 [#1] SMP
[Mon Mar  2 08:00:01 2026] RIP: 0010:mlx4_load_one+0x1b/0x30 [mlx4_core]
";
    let (status, answer) = pasted("doctor --from -", crash);
    assert_eq!(status, 2, "{answer}");
    assert_says(&answer, &["klog.crash"]);
    assert_cause(crash, "kernel-crash");
    assert_cause(&crash.replace("mlx4", "btrfs"), "kernel-crash");
    let unbound = "\
04:00.0 Network controller: Mellanox Technologies MT27500 Family [ConnectX-3]
\tSubsystem: Mellanox Technologies Device 0051
\tKernel modules: mlx4_core
";
    let (status, answer) = pasted("doctor --from -", unbound);
    assert_eq!(status, 2, "{answer}");
    assert_says(&answer, &["nic.driver"]);
    assert_cause(
        "stale data in the buffer after the transfer\n",
        "bytes-missing",
    );
    let ipoib = "\
CA 'mlx4_0'
\tPort 1:
\t\tState: Active
\t\tLink layer: InfiniBand
0000:04:00.0 mlx4_0 (MT27500 - x) ConnectX fw 2.42 port 1 (ACTIVE) ==> ib0 (Up)
5: ib0: <BROADCAST,UP> mtu 4092 qdisc mq state UP qlen 256
    inet 192.168.11.72/24 brd 192.168.11.255 scope global ib0
";
    let (status, answer) = pasted("doctor -v --only ib.ip --from -", ipoib);
    assert_eq!(status, 0, "{answer}");
    assert_says(&answer, &["ib0 has the address 192.168.11.72"]);
    assert_says(
        &stdout(&gdr(["doctor", "show", "ib.node_desc"])),
        &["ibhosts", "node_desc"],
    );
    assert_says(
        &fine("compare --size 16 -i 5 --udp-port 14991"),
        &["staged", "direct", "ratio"],
    );
}

/// GDRCopy's manual: its tests and programs by their names, and which machines do.
#[test]
fn who_knows_gdrcopy_runs_its_tests_and_programs_by_name() {
    for test in [
        "basic_small_buffers_mapping",
        "basic_unaligned_mapping",
        "invalidation_access_after_gdr_close_cumemalloc",
        "invalidation_fork_child_gdr_map_parent_vmmalloc",
    ] {
        let answer = fine(&format!("sanity -t {test}"));
        assert_says(&answer, &["Failed: 0, Waived: 0"]);
    }
    let answer = fine("sanity -t invalidation_unix_sock_shared_fd_gdr_map_cumemalloc");
    assert_says(&answer, &["Passed: 0, Failed: 0, Waived: 1"]);
    assert_says(
        &fine("copylat -s 64K -w 10 -r 10"),
        &[
            "gdr_copy_to_mapping",
            "gdr_copy_from_mapping",
            "WARNING: Measuring the API invocation overhead",
        ],
    );
    assert_says(
        &fine("copybw -s 64K -w 10 -r 10"),
        &["write BW: ", "read BW: "],
    );
    assert_says(&fine("info"), &["GPU memory"]);
    assert_cause(
        "sorry, nvidia-drm: module not supported by SUSE: allow_unsupported_modules 0\n",
        "unsupported-module",
    );
}
