//! The `gdr` command in the guest.

use std::process::Command;

use gdr_vm_tests::near::in_near;

/// Runs `gdr`, and returns its exit status and output.
fn gdr(arguments: &[&str]) -> anyhow::Result<(Option<i32>, String)> {
    let output = Command::new("/gdr/gdr").args(arguments).output()?;
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
