//! `gdr devices`.

use std::fs;
use std::net::Ipv4Addr;
use std::process::Output;

use assert_cmd::cargo::cargo_bin_cmd;
use fake_ibverbs::{DeviceSpec, Fake, GpuPath, PortSpec};
use gdr_node::archive::Origin;
use gdr_node::{collect, example};
use serde_json::{Value, json};
use snapshot::assert_contains;
use snapshot::assert_snapshot;

use super::snapshots::Captures;
use super::{clean, code, gdr, stderr, stdout};

/// `gdr` where libibverbs shows these devices.
pub(super) fn with(devices: &[DeviceSpec], arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("devices.json");
    fs::write(&file, serde_json::to_string(devices).unwrap()).unwrap();
    clean(cargo_bin_cmd!("gdr"))
        .envs(Fake::environment(&file))
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

fn document(output: &Output) -> Value {
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
    let report = document(&output);
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
    assert_contains!(why, "the device imports dma-bufs");
    let why = report["verbs"]["devices"][1]["gpu_memory"]["because"].as_str();
    assert_contains!(why.unwrap(), "imports no dma-buf", "{why:?}");
    let soft = report["soft"].as_array().unwrap();
    assert!(soft.iter().any(|soft| soft["name"] == "soft-127.0.0.1"));

    let text = stdout(&with(&devices, &["devices"]));
    assert_contains!(text, "port 1: ACTIVE, Ethernet, 400 Gbit/s, MTU 4096\n");
    assert_contains!(
        text,
        "port 2: ACTIVE, InfiniBand, 400 Gbit/s, MTU 4096, LID 9\n"
    );
    assert_contains!(text, "  * 3  ::ffff:");
    assert_contains!(
        text,
        "uses GID 3 (10.0.0.1): the first routable RoCE v2 GID of an IPv4"
    );
    assert_contains!(text, "soft-127.0.0.1");
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
    assert_contains!(text, "port 1: DOWN");
    assert_contains!(text, "uses no GID: no routable GID");
    assert_contains!(text, "cannot be queried: ibv_open_device fails: EACCES");
}

#[test]
fn without_rdma_core_the_soft_devices_remain_and_it_says_what_to_install() {
    let output = with_library("/no/such/libibverbs.so.1", &["devices"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    let running = text.replace("\n  ", " ");
    assert_contains!(running, "install it (package libibverbs1", "{text}");
    assert_contains!(text, "soft-127.0.0.1");
    let report = document(&with_library("/no/such/lib", &["devices", "--json"]));
    assert_eq!(report["verbs"]["status"], "no_library");
}

#[test]
fn no_library_no_symbol_and_no_device_are_three_different_things() {
    let output = with_library("libc.so.6", &["devices", "--json"]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert_eq!(document(&output)["verbs"]["status"], "no_symbol");
    let output = with(&[], &["devices", "--json"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let report = document(&output);
    assert_eq!(report["verbs"]["status"], "no_device");
    let error = report["verbs"]["error"].as_str().unwrap();
    assert_contains!(error, "rdma link add");
}

const MLX5_0: &str = "sys/class/infiniband/mlx5_0";

/// Returns a capture in a file of its own, and what the command says of it.
fn of_capture(name: &str, content: &[u8]) -> (Output, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, content).unwrap();
    let output = gdr(["devices", "--from", path.to_str().unwrap()]);
    let said = stderr(&output);
    (output, said)
}

#[test]
fn the_example_node_is_listed_with_all_that_was_recorded_of_it() {
    let output = gdr(["devices", "--example"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_snapshot!("devices/example.txt", &stdout(&output));
    let report = document(&gdr(["devices", "--example", "--json"]));
    assert_eq!(report["host"], "example-node");
    assert_eq!(report["capture"], Value::Null);
    assert_eq!(report["soft"], json!([]));
    let devices = report["verbs"]["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 10);
    for device in devices {
        assert_eq!(device["not_recorded"], json!([]), "{device}");
        assert_eq!(device["gpu_memory"]["route"], "dma-buf", "{device}");
    }
    let port = &devices[0]["ports"][0];
    assert_eq!((&port["gid"], &port["active"]), (&json!(3), &json!(true)));
    assert_eq!(port["gids"][3]["type"], "RoCE v2");
    assert_eq!(port["gigabits_per_second"], 100.0);
    assert_eq!(devices[1]["ports"][0]["lid"], 0x15);
    assert_eq!(devices[1]["ports"][0]["gids"][0]["type"], "IB");
}

#[test]
fn an_archive_lists_what_its_node_does_also_without_names_and_addresses() {
    let captures = Captures::new();
    let live = document(&captures.gdr("devices --example --json"));
    let archived = document(&captures.gdr("devices --from node.tar.gz --json"));
    assert_eq!(archived["verbs"], live["verbs"]);
    assert_eq!(archived["host"], "example-node");
    assert_eq!(archived["capture"]["file"], "node.tar.gz");
    assert!(archived["capture"]["collected"].is_string(), "{archived}");
    let text = stdout(&captures.gdr("devices --from node.tar.gz"));
    assert!(text.starts_with("from node.tar.gz, collected 20"), "{text}");

    let made = captures.gdr("collect --example --redact -o redacted.tar.gz");
    assert_eq!(code(&made), 0, "{}", stderr(&made));
    let redacted = document(&captures.gdr("devices --from redacted.tar.gz --json"));
    let ports = |report: &Value| -> Vec<(Value, Value)> {
        let devices = report["verbs"]["devices"].as_array().unwrap();
        let port = |device: &Value| device["ports"][0].clone();
        let gid = |port: Value| (port["gid"].clone(), port["active_mtu"].clone());
        devices.iter().map(port).map(gid).collect()
    };
    assert_eq!(ports(&redacted), ports(&live));
    assert!(!redacted.to_string().contains("10.20.30."), "{redacted}");
}

#[test]
fn what_was_not_recorded_is_named_and_nothing_is_made_up() {
    let captures = Captures::new();
    let root = captures.unpack("node");
    for file in ["state", "rate", "link_layer"] {
        fs::remove_file(root.join(format!("{MLX5_0}/ports/1/{file}"))).unwrap();
    }
    fs::remove_file(root.join("@verbs/devices.json")).unwrap();
    let report = document(&captures.gdr("devices --from node/root --json"));
    let device = &report["verbs"]["devices"][0];
    let port = &device["ports"][0];
    for fact in ["state", "active", "link_layer", "active_mtu", "gid"] {
        assert_eq!(port[fact], Value::Null, "{fact}: {device}");
    }
    assert_eq!(device["on_demand_paging"], Value::Null);
    let facts = "on-demand paging, dma-buf, MTU of port 1, state of port 1, link layer of port 1, \
                 rate of port 1";
    let facts: Vec<&str> = facts.split(", ").collect();
    assert_eq!(device["not_recorded"], json!(facts));
    let text = stdout(&captures.gdr("devices --from node/root"));
    assert_contains!(text, "port 1: state not known, link layer not known");
    assert_contains!(text, "  not recorded: on-demand paging, dma-buf, MTU");
}

#[test]
fn a_device_that_libibverbs_did_not_list_or_open_is_a_warning() {
    let captures = Captures::new();
    let root = captures.unpack("node");
    let file = root.join("@verbs/devices.json");
    let answer = json!({"error": null, "devices": [
        {"name": "mlx5_0", "firmware": null, "on_demand_paging": null, "dma_buf": "EACCES"},
    ]});
    fs::write(file, answer.to_string()).unwrap();
    let output = captures.gdr("devices --from node/root --json");
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    let report = document(&output);
    let devices = &report["verbs"]["devices"];
    assert_eq!(devices[0]["error"], "EACCES");
    assert_eq!(devices[0]["ports"][0]["gid"], 3);
    assert_eq!(devices[0]["gpu_memory"], Value::Null);
    assert_eq!(devices[1]["error"], "libibverbs does not list it");
}

#[test]
fn a_node_without_rdma_devices_is_a_fact_and_a_capture_without_them_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let bare = folder.path().join("bare.tar.gz");
    let node = example::healthy().without("/sys/class/infiniband");
    let archive = collect::collect(&node, Origin::of(&node, "0.1.0", 1), |_| {});
    archive.write(fs::File::create(&bare).unwrap()).unwrap();
    let output = gdr(["devices", "--json", "--from", bare.to_str().unwrap()]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(document(&output)["verbs"]["status"], "no_device");

    let listing = b"41:00.0 Infiniband controller: Mellanox Technologies MT2910\n";
    let dump = br#"[{"realpath": "/sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0",
        "config": "eJwDAAAAAAE=", "iommu_group": 7, "numa_node": 1,
        "modalias": "pci:v000015B3d00001021sv000015B3sd00000040bc02sc07i00",
        "subsystems": {"infiniband": ["mlx5_3"], "net": ["ib3"]}}]"#;
    let matrix = b"\tGPU0\tmlx5_0\nGPU0\t X \tPIX\nmlx5_0\tPIX\t X \n";
    for (name, content, what) in [
        (
            "lspci.txt",
            &listing[..],
            "has no RDMA devices, ports and GIDs",
        ),
        ("dump.json", dump, "(mlx5_3) and neither ports nor GIDs"),
        ("matrix.txt", matrix, "needs a PCI tree"),
    ] {
        let (output, said) = of_capture(name, content);
        assert_eq!(code(&output), 66, "{name}: {said}");
        assert!(said.contains(name) && said.contains(what), "{said}");
        assert_eq!(stdout(&output), "", "{name}");
    }
}

#[test]
fn nothing_of_a_capture_reaches_the_terminal_as_a_command() {
    let captures = Captures::new();
    let root = captures.unpack("node");
    for file in ["fw_ver", "ports/1/state", "ports/1/gid_attrs/ndevs/3"] {
        let path = root.join(MLX5_0).join(file);
        fs::write(path, "\x1b[2Jodd\n").unwrap();
    }
    let file = root.join("@verbs/devices.json");
    let answer = r#"{"devices":[{"name":"mlx5_0","firmware":"1","dma_buf":"\u001b[2Jodd"}]}"#;
    fs::write(file, answer).unwrap();
    let text = stdout(&captures.gdr("devices --from node/root --color always"));
    assert!(text.contains("odd") && !text.contains("\x1b[2J"), "{text}");
}
