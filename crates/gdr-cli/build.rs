//! Adds the commit to the version, if known.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=GDR_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    let release = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let named = env::var("GDR_COMMIT")
        .ok()
        .filter(|commit| !commit.is_empty());
    match named.or_else(commit) {
        Some(commit) => {
            println!("cargo::rustc-env=GDR_COMMIT_OF_BUILD={commit}");
            println!("cargo::rustc-env=GDR_VERSION_OF_BUILD={release} ({commit})");
        }
        None => println!("cargo::rustc-env=GDR_VERSION_OF_BUILD={release}"),
    }
}

/// Returns the commit of the repository that this crate is in; `None` without git, or where these sources are inside
/// another repository.
fn commit() -> Option<String> {
    let workspace = Path::new(&env::var_os("CARGO_MANIFEST_DIR")?).join("../..");
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        let output = command
            .arg("-C")
            .arg(&workspace)
            .args(arguments)
            .output()
            .ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != workspace.canonicalize().ok()? {
        return None;
    }
    // Git logs every checkout and commit there.
    let log = git(&[
        "rev-parse",
        "--path-format=absolute",
        "--git-path",
        "logs/HEAD",
    ])?;
    if Path::new(&log).exists() {
        println!("cargo::rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}
