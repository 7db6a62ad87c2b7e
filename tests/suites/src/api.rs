//! `cargo xtask api`: the public API of the library crates, compared with `docs/api`.
//!
//! Changes to what other programs compile against become visible in review. cargo-public-api makes the listings from
//! the JSON of a nightly rustdoc, so another nightly may order or spell some lines differently.

use std::process::{ExitCode, Stdio};

use anyhow::{Context, bail};
use snapshot::Folder;

use xtask_build::results::{Outcome, Results};
use xtask_build::workspace::{cargo_of, root, target};

/// The crates that other programs use.
const CRATES: [&str; 19] = [
    "gdr-chaos",
    "gdr-check",
    "gdr-cm",
    "gdr-copy",
    "gdr-cuda",
    "gdr-doctor",
    "gdr-explain",
    "gdr-nic",
    "gdr-node",
    "gdr-object",
    "gdr-pci",
    "gdr-perf",
    "gdr-process",
    "gdr-rdma",
    "gdr-render",
    "gdr-roce",
    "gdr-trace",
    "gdr-udp",
    "gdr-verbs-sys",
];

/// What to do with the listings.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Write the listings instead of comparing them.
    #[arg(long)]
    update: bool,
}

pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let mut results = Results::default();
    let folder = folder().updating(options.update);
    for name in CRATES {
        results.check(&format!("public API of {name}"), || compare(&folder, name));
    }
    Ok(results.close())
}

/// Runs the step of `cargo xtask test`.
pub fn check() -> anyhow::Result<Outcome> {
    let mut worst = Outcome::Passed;
    for name in CRATES {
        match compare(&folder(), name)? {
            Outcome::Passed => {}
            Outcome::Failed => worst = Outcome::Failed,
            skipped => return Ok(skipped),
        }
    }
    Ok(worst)
}

fn folder() -> Folder {
    Folder::new(root().join("docs/api"))
}

fn compare(folder: &Folder, name: &str) -> anyhow::Result<Outcome> {
    if !is_installed() {
        let reason = "cargo-public-api or the nightly toolchain is not installed: \
                      cargo install cargo-public-api --locked";
        return Ok(Outcome::Skipped {
            reason: reason.to_owned(),
        });
    }
    let listing = listing(name)?;
    Ok(match folder.compare(&format!("{name}.txt"), &listing) {
        Ok(()) => Outcome::Passed,
        Err(mismatch) => {
            println!("{mismatch}");
            Outcome::Failed
        }
    })
}

fn is_installed() -> bool {
    let mut probe = cargo_of("nightly");
    probe
        .args(["public-api", "--version"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

/// Returns one line an item; implementations of blanket and derived traits are left out.
fn listing(name: &str) -> anyhow::Result<String> {
    let mut command = cargo_of("nightly");
    command
        .args(["public-api", "--package", name, "--color", "never", "-sss"])
        // Builds of different toolchains do not mix.
        .env("CARGO_TARGET_DIR", target().join("api"))
        .stderr(Stdio::inherit());
    let output = command.output().context("cargo cannot be started")?;
    if !output.status.success() {
        bail!("cargo public-api failed for {name}");
    }
    String::from_utf8(output.stdout).context("cargo public-api printed no UTF-8")
}
