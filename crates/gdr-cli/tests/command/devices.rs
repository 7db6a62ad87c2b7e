//! `gdr devices`.

use std::fs;
use std::net::Ipv4Addr;
use std::process::Output;

use assert_cmd::cargo::cargo_bin_cmd;
use fake_ibverbs::{DeviceSpec, Fake, GpuPath, PortSpec};
use serde_json::Value;

use super::{clean, code, stderr, stdout};

/// `gdr` where libibverbs shows these devices.
pub(super) fn with(devices: &[DeviceSpec], arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("devices.json");
    fs::write(&file, serde_json::to_string(devices).unwrap()).unwrap();
    clean(cargo_bin_cmd!("gdr"))
        .env("GDR_LIBIBVERBS", Fake::library())
        .env("FAKE_IBVERBS", &file)
        .args(arguments)
        .output()
        .unwrap()
}

fn with_library(library: &str, arguments: &[&str]) -> Output {
    clean(cargo_bin_cmd!("gdr"))
        .env("GDR_LIBIBVERBS", library)
        .args(arguments)
        .output()
        .unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_str(&stdout(output)).unwrap()
}

#[test]
fn devices_are_listed_with_ports_gids_and_the_way_to_gpu_memory() {
    let address = Ipv4Addr::new(10, 0, 0, 1);
    let devices = [
        DeviceSpec {
            ports: vec![PortSpec::ethernet(address), PortSpec::infiniband(9)],
            ..DeviceSpec::roce("mlx5_0", address)
        },
        DeviceSpec::rxe("rxe0", Ipv4Addr::new(10, 0, 0, 2)),
    ];
    let output = with(&devices, &["devices", "--json"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let report = json(&output);
    assert_eq!(
        (&report["schema"], &report["version"]),
        (&"gdr.devices".into(), &1.into())
    );
    assert_eq!(report["verbs"]["status"], "ok");
    let mlx = &report["verbs"]["devices"][0];
    assert_eq!(mlx["name"], "mlx5_0");
    let [roce, infiniband] = [&mlx["ports"][0], &mlx["ports"][1]];
    assert_eq!(roce["state"], "ACTIVE");
    assert_eq!(roce["link_layer"], "Ethernet");
    assert_eq!(roce["gigabits_per_second"], 400.0);
    assert_eq!(roce["active_mtu"], 4096);
    assert_eq!((&roce["lid"], &roce["gid"]), (&Value::Null, &3.into()));
    assert_eq!(roce["gids"][3]["address"], "10.0.0.1");
    assert_eq!(roce["gids"][3]["type"], "RoCE v2");
    assert_eq!(infiniband["lid"], 9);
    let why = mlx["gpu_memory"]["because"].as_str().unwrap();
    assert!(why.contains("the device imports dma-bufs"), "{why}");
    let why = report["verbs"]["devices"][1]["gpu_memory"]["because"].as_str();
    assert!(why.unwrap().contains("imports no dma-buf"), "{why:?}");
    let soft = report["soft"].as_array().unwrap();
    assert!(soft.iter().any(|soft| soft["name"] == "soft-127.0.0.1"));

    let text = stdout(&with(&devices, &["devices"]));
    assert!(
        text.contains("port 1: ACTIVE, Ethernet, 400 Gbit/s, MTU 4096\n"),
        "{text}"
    );
    assert!(
        text.contains("port 2: ACTIVE, InfiniBand, 400 Gbit/s, MTU 4096, LID 9\n"),
        "{text}"
    );
    assert!(text.contains("│ * 3"), "{text}");
    assert!(
        text.contains("uses GID 3 (10.0.0.1): the first routable RoCE v2 GID of an IPv4"),
        "{text}"
    );
    assert!(text.contains("soft-127.0.0.1"), "{text}");
}

#[test]
fn a_port_without_gid_and_a_device_that_does_not_open_say_why() {
    let mut closed = DeviceSpec::roce("mlx5_1", Ipv4Addr::new(10, 0, 0, 3));
    closed.refusals.insert("ibv_open_device".to_owned(), 13);
    let bare = DeviceSpec {
        name: "mlx5_0".to_owned(),
        ports: vec![PortSpec {
            state: 1,
            ..PortSpec::default()
        }],
        dma_buf: GpuPath::Refuses(22),
        ..DeviceSpec::default()
    };
    let output = with(&[bare, closed], &["devices"]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("port 1: DOWN"), "{text}");
    assert!(text.contains("uses no GID: no GID that routes"), "{text}");
    assert!(
        text.contains("cannot be queried: ibv_open_device fails: EACCES"),
        "{text}"
    );
}

#[test]
fn without_rdma_core_the_soft_devices_remain_and_it_says_what_to_install() {
    let output = with_library("/no/such/libibverbs.so.1", &["devices"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    let running = text.replace("\n  ", " ");
    assert!(
        running.contains("install it (package libibverbs1"),
        "{text}"
    );
    assert!(text.contains("soft-127.0.0.1"), "{text}");
    let report = json(&with_library("/no/such/lib", &["devices", "--json"]));
    assert_eq!(report["verbs"]["status"], "no_library");
}

#[test]
fn no_library_no_symbol_and_no_device_are_three_different_things() {
    let output = with_library("libc.so.6", &["devices", "--json"]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert_eq!(json(&output)["verbs"]["status"], "no_symbol");
    let output = with(&[], &["devices", "--json"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let report = json(&output);
    assert_eq!(report["verbs"]["status"], "no_device");
    let error = report["verbs"]["error"].as_str().unwrap();
    assert!(error.contains("rdma link add"), "{error}");
}
