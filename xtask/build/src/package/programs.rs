//! The programs and libraries of packages: cross-compiled, linked for an old glibc, without symbols.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use super::architecture::Architecture;
use super::build_paths::BuildPaths;
use super::elf::{self, Glibc};
use super::targets;
use crate::dependencies::Dependencies;
use crate::install::make_folder;
use crate::third_party;
use crate::tools::Tools;
use crate::verbs_library::{self, Linker};
use crate::workspace::{PROFILE, root, succeed, target};

/// The glibc of Red Hat Enterprise Linux 8 and of Debian 10. Ubuntu 20.04 has 2.31.
pub const OLDEST_GLIBC: Glibc = Glibc(2, 28);

/// The maximum size of the command: it has 14 MB on x86-64, and should not grow unnoticed.
const MOST_BYTES: u64 = 15_000_000;

/// Crates that are compiled for size: most of the command, and nothing that copies or sends.
const SMALL: [&str; 6] = [
    "clap_builder",
    "clap_complete",
    "clap_mangen",
    "gdr-cli",
    "gdr-doctor",
    "gdr-node",
];

/// The crates whose programs and libraries are packaged.
const PACKAGES: [&str; 4] = ["gdr-cli", "gdrapi", "gdr-verbs", "gdr-verbs-trace"];

/// The crates of everything that a release publishes: these, and the module of the Python package.
pub const PUBLISHED: [&str; 5] = [
    "gdr-cli",
    "gdr-python",
    "gdr-verbs",
    "gdr-verbs-trace",
    "gdrapi",
];

/// What is packaged for one architecture.
#[derive(Debug)]
pub struct Programs {
    pub gdr: PathBuf,
    pub gdrapi: PathBuf,
    /// As `verbs_library::link_all` returns them.
    pub verbs: [PathBuf; 3],
    /// The manual pages, sorted. They are the same for each architecture.
    pub pages: Vec<PathBuf>,
    /// The licences of the crates in them, of all architectures.
    pub third_party: String,
}

/// Builds for the architectures; `host` runs here and writes the manual pages. The results are in the
/// order of `architectures`.
pub(crate) fn build(
    tools: &Tools,
    architectures: &[Architecture],
    host: Architecture,
    time: u64,
) -> anyhow::Result<Vec<Programs>> {
    let mut folders = Vec::new();
    for &architecture in architectures {
        folders.push((architecture, compile(tools, architecture, time)?));
    }
    let of_host = match folders
        .iter()
        .find(|(architecture, _)| *architecture == host)
    {
        Some((_, folder)) => folder.clone(),
        None => compile(tools, host, time)?,
    };
    let pages = pages(&of_host.join("gdr"), &target().join("packaging/man"))?;
    let third_party = third_party::licences(&Dependencies::of(&PACKAGES, &targets())?)?;
    let mut built = Vec::new();
    for (architecture, folder) in folders {
        let target = format!("{}.{OLDEST_GLIBC}", architecture.multiarch());
        let linker = Linker::Zig {
            tools,
            target: &target,
        };
        let out = folder.join("verbs");
        let verbs = verbs_library::link_all(&folder, &out, linker, architecture.name())?;
        let programs = Programs {
            gdr: folder.join("gdr"),
            gdrapi: folder.join("libgdrapi.so"),
            verbs,
            pages: pages.clone(),
            third_party: third_party.clone(),
        };
        programs.check()?;
        built.push(programs);
    }
    Ok(built)
}

/// Compiles for an architecture, and returns the folder of what is built.
fn compile(tools: &Tools, architecture: Architecture, time: u64) -> anyhow::Result<PathBuf> {
    let rust = architecture.target();
    let folder = target().join("packaging");
    let mut command = tools.cargo_zigbuild("zigbuild");
    command
        .current_dir(root())
        .args(["--profile", PROFILE, "--locked", "--target"])
        .arg(format!("{rust}.{OLDEST_GLIBC}"))
        .arg("--target-dir")
        .arg(&folder);
    for package in PACKAGES {
        command.args(["--package", package]);
    }
    for package in SMALL {
        let setting = format!("profile.{PROFILE}.package.{package}.opt-level=\"s\"");
        command.args(["--config", &setting]);
    }
    release_flags(&mut command, time);
    succeed(command)?;
    Ok(folder.join(rust).join(PROFILE))
}

/// Sets how everything in packages is compiled: the same bytes in every folder, without symbols.
pub fn release_flags(cargo: &mut Command, time: u64) {
    cargo
        .env("CARGO_PROFILE_DIST_DEBUG", "false")
        .env("CARGO_PROFILE_DIST_STRIP", "symbols")
        .env("RUSTFLAGS", BuildPaths::of_this_machine().flags())
        .env("SOURCE_DATE_EPOCH", time.to_string());
}

/// Writes the manual pages to a folder with a program that runs here, and returns them sorted.
pub fn pages(gdr: &Path, folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if folder.exists() {
        // Pages of commands that no longer exist.
        fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    make_folder(folder)?;
    let mut command = Command::new(gdr);
    command.arg("man").arg(folder);
    succeed(command)?;
    let entries = fs::read_dir(folder)?;
    let pages = entries.map(|entry| Ok(entry?.path()));
    let mut pages = pages.collect::<anyhow::Result<Vec<_>>>()?;
    pages.sort();
    Ok(pages)
}

impl Programs {
    /// Checks that each starts with the oldest glibc and nothing else and has no path of this machine,
    /// and the size of the command.
    fn check(&self) -> anyhow::Result<()> {
        let paths = BuildPaths::of_this_machine();
        for file in [&self.gdr, &self.gdrapi].into_iter().chain(&self.verbs) {
            elf::check(file, OLDEST_GLIBC)?;
            paths.check(file)?;
        }
        // Packages have both compressed.
        for page in &self.pages {
            paths.check(page)?;
        }
        paths.check_bytes(self.third_party.as_bytes(), Path::new("third-party.md"))?;
        let bytes = fs::metadata(&self.gdr)?.len();
        if bytes > MOST_BYTES {
            bail!(
                "{} has {bytes} bytes, more than {MOST_BYTES}",
                self.gdr.display()
            );
        }
        Ok(())
    }
}
