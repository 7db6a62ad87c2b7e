//! `cargo xtask install`: builds what the archive of a release has, and installs it as the archive's
//! `install.sh` does.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context;

use crate::install::{absolute, copy_program, make_folder};
use crate::package::{self, Programs};
use crate::verbs_library;
use crate::workspace::{self, PROFILE, root, succeed, target};

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Absolute path below which bin, lib, include and share are used [default: /usr/local for root, else
    /// ~/.local].
    #[arg(long, value_name = "FOLDER", value_parser = absolute)]
    prefix: Option<PathBuf>,
    /// Install below this folder, to make a package.
    #[arg(long, value_name = "FOLDER", value_parser = absolute)]
    destdir: Option<PathBuf>,
    /// The profile of cargo to build with.
    #[arg(long, value_name = "PROFILE", default_value = PROFILE)]
    profile: String,
}

pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let prefix = match &options.prefix {
        Some(prefix) => prefix.clone(),
        None => usual_prefix()?,
    };
    let tree = tree(&options.profile)?;
    let mut install = Command::new("sh");
    install
        .arg(tree.join("install.sh"))
        .arg("--prefix")
        .arg(&prefix);
    if let Some(destdir) = &options.destdir {
        install.arg("--destdir").arg(destdir);
    }
    succeed(install)?;
    println!(
        "to remove it: {} --prefix {} --uninstall",
        root().join("packaging/install.sh").display(),
        prefix.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// Returns where a user's own programs are; for root, where programs for all users are.
fn usual_prefix() -> anyhow::Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok("/usr/local".into());
    }
    let home = env::var_os("HOME").context("HOME is not set: name a folder by --prefix")?;
    Ok(Path::new(&home).join(".local"))
}

/// Builds everything and returns the folder of an unpacked archive.
fn tree(profile: &str) -> anyhow::Result<PathBuf> {
    let built = workspace::build(profile, &["gdr-cli", "gdrapi"])?;
    // Other profiles must not replace what `gdr` in the target folder uses.
    let out = target().join("install").join(profile);
    let verbs = verbs_library::build(profile, &out)?;
    let stripped = out.join("stripped");
    make_folder(&stripped)?;
    let [gdr, gdrapi] = ["gdr", "libgdrapi.so"].map(|name| (built.join(name), stripped.join(name)));
    for (from, to) in [&gdr, &gdrapi] {
        copy_program(from, to)?;
    }
    let programs = Programs {
        pages: package::pages(&gdr.1, &out.join("man"))?,
        gdr: gdr.1,
        gdrapi: gdrapi.1,
        verbs,
        // The sources of all crates are on this machine.
        third_party: String::new(),
    };
    let tree = out.join("tree");
    if tree.exists() {
        // What an older version had.
        fs::remove_dir_all(&tree).with_context(|| tree.display().to_string())?;
    }
    package::unpacked(&programs, &tree)?;
    Ok(tree)
}
