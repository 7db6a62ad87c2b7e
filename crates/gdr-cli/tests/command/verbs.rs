//! `gdr loopback` between kernel devices, with a fake libibverbs.

use std::net::Ipv4Addr;
use std::process::Output;

use fake_ibverbs::{DeviceSpec, GpuPath, PortSpec};
use serde_json::Value;
use snapshot::assert_contains;

use super::devices::with;
use super::{code, stderr, stdout};

const EOPNOTSUPP: i32 = 95;
const EFAULT: i32 = 14;

fn device(name: &str, number: u8) -> DeviceSpec {
    DeviceSpec::roce(name, Ipv4Addr::new(10, 0, 0, number))
}

/// `gdr loopback` on the simulated GPU, where libibverbs shows these devices.
fn loopback(devices: &[DeviceSpec], line: &str) -> Output {
    let line = format!("loopback --simulate --size 100000 --iterations 3 {line}");
    with(devices, &line.split_whitespace().collect::<Vec<_>>())
}

fn report(devices: &[DeviceSpec], line: &str) -> Value {
    let output = loopback(devices, &format!("{line} --json"));
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["verdict"], "pass");
    assert_eq!(report["simulated"], true);
    report
}

#[test]
fn two_nics_two_ports_and_one_nic_in_loopback_pass() {
    let two = [device("mlx5_0", 1), device("mlx5_1", 2)];
    let report = report(&two, "--from mlx5_0 --to mlx5_1");
    assert_eq!(report["path"]["from"]["device"], "mlx5_0");
    assert_eq!(report["path"]["to"]["device"], "mlx5_1");
    assert_eq!(report["path"]["to"]["address"], "10.0.0.2:4791");
    assert_eq!(report["reached"], "device");
    assert_eq!(
        report["why"],
        "registered by dma-buf, verified by a transfer; no flush: CUDA reports that such writes are \
         ordered for every GPU"
    );

    let ports = [1, 2].map(|number| PortSpec::ethernet(Ipv4Addr::new(10, 0, 1, number)));
    let one = [DeviceSpec {
        ports: ports.to_vec(),
        ..device("mlx5_0", 1)
    }];
    let report = self::report(&one, "--from mlx5_0:1 --to mlx5_0:2");
    assert_eq!(report["path"]["from"]["address"], "10.0.1.1:4791");
    assert_eq!(report["path"]["to"]["address"], "10.0.1.2:4791");

    let report = self::report(&two, "--from mlx5_1 --to mlx5_1");
    assert_eq!(report["path"]["from"]["address"], "10.0.0.2:4791");
}

#[test]
fn an_active_device_is_taken_unless_the_soft_provider_is_asked_for() {
    let devices = [device("mlx5_0", 1)];
    let output = loopback(&devices, "");
    let text = stdout(&output);
    assert_eq!(code(&output), 0, "{text}{}", stderr(&output));
    assert_eq!(text.lines().next(), Some("SIMULATED: --simulate was given"));
    assert_contains!(
        text,
        "provider  verbs (a kernel device): mlx5_0 port 1 is active"
    );
    assert_contains!(
        text,
        "reached   direct: the device writes GPU memory itself (registered by"
    );
    assert!(
        text.lines().nth_back(1).unwrap().starts_with("PASS: "),
        "{text}"
    );
    let soft = report(&devices, "--provider soft --udp-port 14811");
    assert_eq!(soft["path"]["to"]["device"], "soft-127.0.0.1:14811");
}

#[test]
fn without_a_usable_device_it_is_soft_and_says_why() {
    let mut down = device("mlx5_0", 1);
    down.ports[0].state = 1;
    let output = loopback(std::slice::from_ref(&down), "--udp-port 14812");
    let text = stdout(&output);
    assert_eq!(code(&output), 0, "{text}{}", stderr(&output));
    assert_contains!(
        text,
        "no kernel RDMA device can be used: mlx5_0 port 1 is DOWN"
    );
    let output = loopback(&[down], "--provider verbs");
    assert_eq!(code(&output), 2);
    assert_contains!(stderr(&output), "not ACTIVE");
}

#[test]
fn a_device_that_refuses_gpu_memory_is_staged_with_every_refusal() {
    let refusing = DeviceSpec {
        dma_buf: GpuPath::Refuses(EOPNOTSUPP),
        peer_memory: GpuPath::Refuses(EFAULT),
        ..device("mlx5_0", 1)
    };
    let staged = report(std::slice::from_ref(&refusing), "--provider verbs");
    assert_eq!(staged["reached"], "staged");
    let refusals = staged["refusals"].as_array().unwrap();
    assert_eq!(refusals.len(), 2, "{refusals:?}");
    assert!(refusals[0].as_str().unwrap().starts_with("dma-buf: "));
    assert!(refusals[1].as_str().unwrap().contains("nvidia_peermem"));
    let text = stdout(&loopback(
        std::slice::from_ref(&refusing),
        "--provider verbs",
    ));
    assert_contains!(text, "rejected before: dma-buf: ");

    let output = loopback(&[refusing], "--provider verbs --direct");
    assert_eq!(code(&output), 2);
    let error = stderr(&output);
    for part in [
        "GPU memory cannot be registered: dma-buf: ",
        "; `gdr doctor` finds the cause",
        "`gdr peermem status`",
    ] {
        assert_contains!(error, part);
    }
    let staged = report(&[device("mlx5_0", 1)], "--provider verbs --staged");
    assert_eq!(
        (&staged["reached"], &staged["why"]),
        (&"staged".into(), &"requested".into())
    );
}

#[test]
fn memory_of_a_gpu_is_sent_by_the_device_or_staged_where_the_device_refuses_it() {
    let two = [device("mlx5_0", 1), device("mlx5_1", 2)];
    let line = "--from mlx5_0 --to mlx5_1 --from-gpu 1";
    let source = &report(&two, line)["source"];
    assert_eq!(source["reached"], "device");
    let why = source["why"].as_str().unwrap();
    assert_contains!(why, "verified by a transfer");
    let staged = report(&two, &format!("{line} --staged"));
    assert_eq!(staged["source"]["reached"], "staged");
    assert_eq!(staged["reached"], "staged");

    let refusing = DeviceSpec {
        dma_buf: GpuPath::Refuses(EOPNOTSUPP),
        peer_memory: GpuPath::Refuses(EFAULT),
        ..device("mlx5_0", 1)
    };
    let devices = [refusing, device("mlx5_1", 2)];
    let report = self::report(&devices, line);
    let source = &report["source"];
    assert_eq!(source["reached"], "staged");
    assert_eq!(source["refusals"].as_array().unwrap().len(), 2, "{source}");
    assert_eq!(report["reached"], "device");
    let text = stdout(&loopback(&devices, line));
    assert_contains!(text, "rejected before: dma-buf: ");
    let refused = loopback(&devices, &format!("{line} --direct"));
    assert_eq!(code(&refused), 2, "{}", stdout(&refused));
}

#[test]
fn a_device_that_loses_bytes_to_gpu_memory_is_found_out_and_staged() {
    let lossy = DeviceSpec {
        dma_buf: GpuPath::LosesBytes,
        ..device("mlx5_0", 1)
    };
    let staged = report(&[lossy], "--provider verbs");
    assert_eq!(staged["reached"], "staged");
    let refusal = staged["refusals"][0].as_str().unwrap();
    assert_contains!(refusal, "without moving the bytes");
}

#[test]
fn infiniband_ports_reach_each_other_by_lid() {
    let devices = [
        DeviceSpec::infiniband("mlx5_0", 5),
        DeviceSpec::infiniband("mlx5_1", 6),
    ];
    let staged = report(&devices, "--from mlx5_0 --to mlx5_1");
    assert_eq!(staged["reached"], "device");
}

#[test]
fn devices_that_are_not_there_are_named() {
    let devices = [device("mlx5_0", 1)];
    let output = loopback(&devices, "--from mlx5_7");
    assert_eq!(code(&output), 64);
    let words = stderr(&output);
    assert_contains!(words, "device `mlx5_7` does not exist");
    assert_contains!(words, "mlx5_0");
    assert_eq!(
        code(&loopback(&devices, "--from mlx5_0 --to 127.0.0.1")),
        64
    );
    assert_eq!(code(&loopback(&devices, "--provider soft --to mlx5_0")), 64);
}

/// Runs a sweep of one size: each takes seconds on a busy machine.
fn sweep(devices: &[DeviceSpec], line: &str) -> Value {
    let line = format!("loopback --simulate --sweep --size 4 --iterations 2 --json {line}");
    let output = with(devices, &line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap()
}

/// Returns the ways that were measured of each operation.
fn ways(sweep: &Value) -> Vec<String> {
    let rows = sweep["rows"].as_array().unwrap();
    rows.iter()
        .map(|row| format!("{} {}", row["operation"], row["way"]).replace('"', ""))
        .collect()
}

#[test]
fn a_sweep_compares_registered_gpu_memory_with_staging() {
    let devices = [device("mlx5_0", 1)];
    let measured = sweep(&devices, "");
    assert_eq!(measured["path"]["to"]["device"], "mlx5_0");
    assert_eq!(measured["direct_missing"], Value::Null);
    let all = [
        "write host",
        "write direct",
        "write staged",
        "read host",
        "read direct",
        "read staged",
    ];
    assert_eq!(ways(&measured), all);
}

#[test]
fn a_sweep_says_why_nothing_is_direct() {
    let refusing = DeviceSpec {
        dma_buf: GpuPath::Refuses(EOPNOTSUPP),
        peer_memory: GpuPath::Refuses(EFAULT),
        ..device("mlx5_0", 1)
    };
    let measured = sweep(&[refusing], "--from mlx5_0 --to mlx5_0");
    let why = measured["direct_missing"].as_str().unwrap();
    assert!(
        why.contains("dma-buf") && why.contains("peer-memory module"),
        "{why}"
    );
    let staged = ["write host", "write staged", "read host", "read staged"];
    assert_eq!(ways(&measured), staged);
}
