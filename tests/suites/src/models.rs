//! `cargo xtask loom` and `cargo xtask miri`: models that run under every interleaving of their threads, and tests that
//! run in an interpreter that detects undefined behaviour.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use xtask_build::results::{Outcome, Results};
use xtask_build::workspace::{cargo, cargo_of, target};

/// A crate's tests under Miri.
struct Interpreted {
    package: &'static str,
    /// Filters for the tests that use no file, socket or GPU. Together they take less than a minute.
    filters: &'static [&'static str],
}

const INTERPRETED: [Interpreted; 4] = [
    Interpreted {
        package: "gdrapi",
        filters: &["hazard", "stack", "handle"],
    },
    Interpreted {
        package: "gdr-roce",
        filters: &["wire", "psn", "sge::", "heap", "--skip", "any_flipped_bit"],
    },
    Interpreted {
        package: "gdr-rdma",
        filters: &["lid::", "connect::message"],
    },
    Interpreted {
        package: "gdr-nic",
        filters: &["bounded_queue", "outstanding"],
    },
];

pub fn run_loom() -> anyhow::Result<ExitCode> {
    let mut results = Results::default();
    results.check("models under every interleaving", loom);
    Ok(results.close())
}

pub fn run_miri() -> anyhow::Result<ExitCode> {
    let mut results = Results::default();
    results.check("tests under Miri", miri);
    Ok(results.close())
}

/// Runs the models, which replace the library's atomics by loom's.
pub fn loom() -> anyhow::Result<Outcome> {
    Outcome::of(loom_command())
}

/// Returns the command that builds and runs the models.
pub fn loom_command() -> Command {
    let packages = ["gdrapi", "gdr-nic", "gdr-process"].map(|name| format!("--package={name}"));
    let mut command = cargo(&["test", "--test", "loom"]);
    command
        .args(packages)
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", target().join("loom"));
    command
}

/// Runs the tests of the list.
pub fn miri() -> anyhow::Result<Outcome> {
    if !has_miri() {
        let reason = "Miri is not installed: rustup +nightly component add miri rust-src";
        return Ok(Outcome::Skipped {
            reason: reason.to_owned(),
        });
    }
    for tests in INTERPRETED {
        let mut command = cargo_of("nightly");
        command
            .args(["miri", "test", "--package", tests.package, "--lib", "--"])
            .args(tests.filters)
            // Pointers made from integers (a handle, the start of a mapping) need permissive
            // provenance. Property tests read the current folder, which isolation forbids.
            .env(
                "MIRIFLAGS",
                "-Zmiri-permissive-provenance -Zmiri-disable-isolation",
            )
            .env("PROPTEST_CASES", "2")
            .env("CARGO_TARGET_DIR", target().join("miri"));
        if Outcome::of(command)? != Outcome::Passed {
            return Ok(Outcome::Failed);
        }
    }
    Ok(Outcome::Passed)
}

/// Returns whether Miri is installed with the standard library's source, which it would otherwise download.
fn has_miri() -> bool {
    let mut probe = cargo_of("nightly");
    probe.args(["miri", "--version"]).stdin(Stdio::null());
    let mut sysroot = Command::new("rustc");
    sysroot.args(["+nightly", "--print", "sysroot"]);
    let is_installed = probe.output().is_ok_and(|output| output.status.success());
    is_installed
        && sysroot.output().is_ok_and(|output| {
            let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            let source = Path::new(&folder).join("lib/rustlib/src/rust/library");
            output.status.success() && source.is_dir()
        })
}
