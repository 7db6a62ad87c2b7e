//! A program with more rights than its caller: a setuid copy of this test binary, started by an unprivileged user. A
//! test binary of its own, because it starts itself.

#![allow(missing_docs, reason = "a test")]
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// An unprivileged user.
const USER: u32 = 65_534;
const VARIABLE: &str = "GDR_TEST_VARIABLE";

/// Prints what a library reads, in the setuid copy.
#[test]
#[ignore = "the other test runs it in another process"]
fn inner() {
    // SAFETY: `getauxval` only reads a value of this process.
    let raised = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    println!(
        "raised={raised} value={:?}",
        gdr_process::variable(VARIABLE)
    );
}

/// Runs a copy of this program as the unprivileged user. Returns its output.
fn run(program: &Path) -> String {
    let output = Command::new(program)
        .args(["--exact", "inner", "--ignored", "--nocapture"])
        .env(VARIABLE, "chosen by the caller")
        .uid(USER)
        .gid(USER)
        .current_dir("/")
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_library_in_a_program_with_more_rights_than_its_caller_reads_no_variable() {
    // SAFETY: `geteuid` only reads a number.
    if unsafe { libc::geteuid() } != 0 {
        skip::skip("only root can create a program with more rights");
        return;
    }
    let folder = std::env::temp_dir().join(format!("gdr-more-rights-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
    let copy = |name: &str, mode| {
        let program = folder.join(name);
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
        run(&program)
    };
    let (plain, setuid) = (copy("plain", 0o755), copy("setuid", 0o4755));
    // A setuid root program must not be left behind.
    fs::remove_dir_all(&folder).unwrap();
    let chosen = "raised=false value=Some(\"chosen by the caller\")";
    assert!(plain.contains(chosen), "{plain}");
    match setuid.contains("raised=true") {
        true => assert!(setuid.contains("value=None"), "{setuid}"),
        false => skip::skip("setuid raises nothing here (nosuid, or a sandbox)"),
    }
}
