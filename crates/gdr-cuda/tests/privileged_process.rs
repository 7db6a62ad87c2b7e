//! A program with more rights than its caller: a setuid copy of this test program. In a test binary of its own, because
//! the binary starts itself.

use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use gdr_cuda::Cuda;

/// A file that does not exist, so that loading it fails with an error that contains its name.
const NAMED: &str = "/nonexistent/named-by-the-caller.so";
/// The environment variable that is set for the copies that this program starts.
const ASKED: &str = "GDR_TEST_LOAD";
/// The first line that a copy with more rights prints.
const MORE_RIGHTS: &str = "has more rights than its caller";

#[test]
fn a_library_that_the_caller_names_is_not_loaded_with_more_rights_than_its_own() {
    if env::var_os(ASKED).is_some() {
        return load();
    }
    let this = env::current_exe().expect("the path of this program");
    let own = run(&this);
    assert!(own.contains(NAMED) && !own.contains(MORE_RIGHTS), "{own}");

    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("setuid-copy");
    let made = fs::copy(&this, &copy)
        .and_then(|_| chown(&copy, Some(65_534), None))
        .and_then(|()| fs::set_permissions(&copy, Permissions::from_mode(0o4755)));
    // If root runs it, it gets another user's rights, which the Linux kernel treats as more rights.
    let output = made.as_ref().map(|()| run(&copy));
    // A program with another user's rights must not be left over.
    let _ = fs::remove_file(&copy);
    match output {
        Ok(output) if output.contains(MORE_RIGHTS) => assert!(!output.contains(NAMED), "{output}"),
        Ok(_) => println!("skipped: setuid has no effect on this file system"),
        Err(error) => println!("skipped: no setuid copy can be made here: {error}"),
    }
}

/// Loads the driver and prints the result; runs in a copy.
fn load() {
    // SAFETY: getauxval accepts any number.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        println!("{MORE_RIGHTS}");
    }
    match Cuda::load() {
        Ok(_) => println!("loaded"),
        Err(error) => println!("{error}"),
    }
}

/// Runs a copy of this program and returns its output.
fn run(program: &Path) -> String {
    let answer = Command::new(program)
        .arg("--nocapture")
        .env(ASKED, "1")
        .env("GDR_LIBCUDA", NAMED)
        .output()
        .expect("the program starts");
    String::from_utf8_lossy(&answer.stdout).into_owned()
}
