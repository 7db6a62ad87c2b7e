//! The `gdr` command in the guest.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::process::Command;

use gdr_vm_tests::near::in_near;

/// Runs `gdr`, and returns its exit status and output.
fn gdr(arguments: &[&str]) -> anyhow::Result<(Option<i32>, String)> {
    let mut command = Command::new("/gdr/gdr");
    command.args(arguments).env("GDR_VERBS_LIBRARY", "/gdr");
    let output = command.output()?;
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    Ok((output.status.code(), printed))
}

fn loopback(provider: &str) -> anyhow::Result<(Option<i32>, String)> {
    gdr(&[
        "loopback",
        "--simulate",
        "--provider",
        provider,
        "--size",
        "64K",
        "--iterations",
        "10",
    ])
}

#[test]
#[ignore = "runs in the VM"]
fn the_loopback_passes_on_a_host_with_nothing_but_its_network() {
    let (status, printed) = in_near(|| loopback("soft")).unwrap();
    assert_eq!(status, Some(0), "{printed}");
    assert!(printed.contains("PASS"), "{printed}");
}

#[test]
#[ignore = "runs in the VM"]
fn the_soft_loopback_beside_rxe_reports_the_owner_of_its_port() {
    let (status, printed) = loopback("soft").unwrap();
    assert_ne!(status, Some(0), "{printed}");
    // The message is wrapped.
    let words: Vec<&str> = printed.split_whitespace().collect();
    let message = words.join(" ");
    assert!(message.contains("Linux's rxe"), "{printed}");
    assert!(message.contains("`rdma link` shows it"), "{printed}");
}

#[test]
#[ignore = "runs in the VM"]
fn the_loopback_passes_on_rxe_and_reports_why_it_stages() {
    let (status, printed) = loopback("verbs").unwrap();
    assert_eq!(status, Some(0), "{printed}");
    for words in ["rxe0", "PASS", "EOPNOTSUPP"] {
        assert!(printed.contains(words), "{words} is not in\n{printed}");
    }
}

#[test]
#[ignore = "runs in the VM"]
fn the_devices_are_listed_with_the_gid_that_routes() {
    let (status, printed) = gdr(&["devices"]).unwrap();
    assert_eq!(status, Some(0), "{printed}");
    for words in ["rxe0", "ACTIVE", "10.78.0.2", "fd78::2"] {
        assert!(printed.contains(words), "{words} is not in\n{printed}");
    }
}

/// Prints the names of the character devices as libc shows them; run as a program by the next test.
#[test]
#[ignore = "runs in the VM"]
fn the_nodes_of_devices_are_listed() {
    for entry in fs::read_dir("/dev/infiniband").unwrap() {
        println!("node={}", entry.unwrap().file_name().display());
    }
}

/// The program that lists nodes is linked dynamically, unlike busybox.
#[test]
#[ignore = "runs in the VM"]
fn mounted_files_of_a_device_are_numbered_after_those_of_rxe() {
    let program = env::current_exe().unwrap();
    let test = "command::the_nodes_of_devices_are_listed";
    let mounted = |command: &[&str]| {
        let run = ["run", "--nic", "127.0.0.1", "--mount", "--"];
        gdr(&[&run, command].concat()).unwrap()
    };
    let class = "/sys/class/infiniband_verbs";
    let [kernels, own] = ["uverbs0", "uverbs1"].map(|node| format!("{class}/{node}/ibdev"));
    let (status, printed) = mounted(&["/usr/bin/busybox", "cat", &kernels, &own]);
    assert_eq!((status, printed.as_str()), (Some(0), "rxe0\ngdr0\n"));
    let program = program.to_str().unwrap();
    let (status, printed) = mounted(&[program, "--exact", test, "--ignored", "--nocapture"]);
    assert_eq!(status, Some(0), "{printed}");
    let nodes: BTreeSet<_> = printed
        .lines()
        .filter_map(|line| line.split_once("node="))
        .map(|(_, node)| node)
        .filter(|node| node.starts_with("uverbs"))
        .collect();
    assert_eq!(nodes, BTreeSet::from(["uverbs0", "uverbs1"]), "{printed}");
}
