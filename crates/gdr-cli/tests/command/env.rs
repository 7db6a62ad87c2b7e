//! `gdr env`: what it prints is what a shell takes and what a program gets.

use assert_cmd::cargo::cargo_bin_cmd;
use serde_json::Value;
use snapshot::assert_contains;

use super::snapshots::Captures;
use super::{clean, code, gdr, stderr, stdout};

const NICS: &str = "mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_6:1,mlx5_7:1,mlx5_8:1,mlx5_9:1";

fn env(line: &str) -> std::process::Output {
    gdr(["env"].into_iter().chain(line.split_whitespace()))
}

#[test]
fn each_variable_has_its_reason_in_comments_of_at_most_100_columns() {
    let output = env("--example");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    let mut exports = 0;
    let mut before = "";
    for line in text.lines() {
        assert!(
            line.is_empty() || line.starts_with("# ") || line.starts_with("export "),
            "{line}"
        );
        assert!(
            !line.starts_with("# ") || line.chars().count() <= 100,
            "{line}"
        );
        if line.starts_with("export ") {
            exports += 1;
            assert!(before.starts_with("# "), "{line} has no reason");
        }
        before = line;
    }
    assert!(exports >= 8, "{text}");
    assert_contains!(text, format!("\nexport NCCL_IB_HCA='={NICS}'\n"));
    assert_contains!(text, "GPU0 mlx5_1 (PIX)");
}

#[test]
fn a_shell_that_evaluates_the_output_has_the_values_of_the_document() {
    let text = stdout(&env("--example"));
    let document: Value = serde_json::from_str(&stdout(&env("--example --json"))).unwrap();
    assert_eq!(
        (&document["schema"], &document["version"]),
        (&"gdr.env".into(), &1.into())
    );
    for library in document["libraries"].as_array().unwrap() {
        for variable in library["variables"].as_array().unwrap() {
            let name = variable["name"].as_str().unwrap();
            let script = format!("{text}\nprintf %s \"${name}\"");
            let output = std::process::Command::new("sh")
                .args(["-c", &script])
                .output()
                .unwrap();
            assert_eq!(
                stdout(&output),
                variable["value"].as_str().unwrap(),
                "{name}"
            );
        }
    }
}

#[test]
fn a_program_gets_the_variables_and_keeps_those_that_it_has() {
    let run = |set: Option<(&str, &str)>| {
        clean(cargo_bin_cmd!("gdr"))
            .env_remove("NCCL_IB_HCA")
            .env_remove("NCCL_NET_GDR_LEVEL")
            .envs(set)
            .args(["env", "--example", "--for", "nccl", "--", "sh", "-c"])
            .arg("echo $NCCL_IB_HCA $NCCL_NET_GDR_LEVEL $UCX_NET_DEVICES; exit 7")
            .output()
            .unwrap()
    };
    let output = run(None);
    assert_eq!(code(&output), 7, "{}", stderr(&output));
    assert_eq!(stdout(&output), format!("={NICS} PXB\n"));
    let output = run(Some(("NCCL_IB_HCA", "mine")));
    assert_eq!(stdout(&output), "mine PXB\n");
    assert_contains!(stderr(&output), "NCCL_IB_HCA stays mine");
}

#[test]
fn one_gpu_gets_its_own_nic() {
    let text = stdout(&env("--example --for ucx --gpu GPU3"));
    assert_contains!(text, "\nexport UCX_NET_DEVICES=mlx5_4:1\n");
    let output = env("--example --for ucx --gpu mlx5_1");
    assert_eq!(code(&output), 64);
    assert_contains!(stderr(&output), "is not a GPU of this node");
}

#[test]
fn a_node_without_active_ports_and_one_without_gpus_say_so() {
    let captures = Captures::new();
    let root = captures.unpack("node");
    for nic in 0..10 {
        let state = format!("sys/class/infiniband/mlx5_{nic}/ports/1/state");
        std::fs::write(root.join(state), "1: DOWN\n").unwrap();
    }
    let output = captures.gdr("env --for nccl --from node/root");
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    assert_contains!(stderr(&output), "mlx5_1:1 is DOWN");
    let missing = env("--example -- /no/such/program");
    assert_eq!(code(&missing), 127, "{}", stderr(&missing));
}
