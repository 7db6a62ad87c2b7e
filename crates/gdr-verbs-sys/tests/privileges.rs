//! A program with more privileges than its caller: a copy of this test, setuid root or with a file capability, started
//! by an unprivileged user. Creating such a file requires root.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use fake_ibverbs::Fake;
use gdr_verbs_sys::{LoadError, Verbs};

/// An unprivileged user.
const USER: u32 = 65_534;

/// Prints the file that the copy tries to load.
#[test]
#[ignore = "the other test runs it in another process"]
fn inner() {
    let file = match Verbs::library() {
        Ok(verbs) => verbs.file().to_owned(),
        Err(LoadError::Library { library, .. } | LoadError::Symbol { library, .. }) => library,
        Err(error) => panic!("{error}"),
    };
    // SAFETY: the call only reads a value of this process.
    let raised = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    println!("raised={raised} file={}", file.display());
}

/// Runs the copy as the unprivileged user, with a library in the environment.
fn run(program: &Path, library: &Path) -> String {
    let output = Command::new(program)
        .args(["--exact", "inner", "--ignored", "--nocapture"])
        .env("GDR_LIBIBVERBS", library)
        .uid(USER)
        .gid(USER)
        .current_dir("/")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn a_program_with_raised_privileges_ignores_the_library_of_the_environment() {
    // SAFETY: it only reads a number.
    if unsafe { libc::geteuid() } != 0 {
        skip::skip("only root can create a program with raised privileges");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let library = folder.path().join("libfake_ibverbs.so");
    fs::copy(Fake::library(), &library).unwrap();
    fs::set_permissions(&library, Permissions::from_mode(0o755)).unwrap();
    let copy = |name: &str, mode| {
        let program = folder.path().join(name);
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
        program
    };
    let named = format!("file={}", library.display());

    let plain = run(&copy("plain", 0o755), &library);
    assert!(plain.contains("raised=false"), "{plain}");
    assert!(plain.contains(&named), "{plain}");

    let capable = copy("capable", 0o755);
    let made = Command::new("setcap")
        .arg("cap_net_raw+ep")
        .arg(&capable)
        .output();
    let mut programs = vec![copy("setuid", 0o4755)];
    if made.is_ok_and(|output| output.status.success()) {
        programs.push(capable);
    } else {
        skip::skip("setcap does not work here");
    }
    for program in programs {
        let raised = run(&program, &library);
        if raised.contains("raised=false") {
            let program = program.display();
            skip::skip(format_args!(
                "{program} raises nothing here (nosuid, or a sandbox)"
            ));
            continue;
        }
        assert!(raised.contains("file=libibverbs.so.1"), "{raised}");
    }
}
