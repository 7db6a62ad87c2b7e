//! `gdr` itself in the guest, as people run it.

use std::process::Command;

use gdr_vm_tests::namespace::in_near;

/// How it ended, and all that it printed.
fn gdr(arguments: &[&str]) -> anyhow::Result<(Option<i32>, String)> {
    let output = Command::new("/gdr/gdr").args(arguments).output()?;
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    Ok((output.status.code(), printed))
}

const LOOPBACK: [&str; 5] = ["loopback", "--size", "64K", "--iterations", "10"];

#[test]
#[ignore = "runs in the VM"]
fn the_loopback_passes_on_a_host_with_nothing_but_its_network() {
    let (status, printed) = in_near(|| gdr(&LOOPBACK)).unwrap();
    assert_eq!(status, Some(0), "{printed}");
    assert!(printed.contains("PASS"), "{printed}");
}

#[test]
#[ignore = "runs in the VM"]
fn the_loopback_beside_rxe_says_who_has_its_port() {
    let (status, printed) = gdr(&LOOPBACK).unwrap();
    assert_ne!(status, Some(0), "{printed}");
    assert!(printed.contains("the kernel's rxe"), "{printed}");
    assert!(printed.contains("rdma link"), "{printed}");
}
