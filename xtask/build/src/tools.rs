//! The tools that packages are made with, and how to get those that are missing.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::bail;

use crate::workspace::target;

/// The compiler driver that links for an old glibc, and the subcommand of cargo that uses it, by
/// their packages in Python's index. These versions make the same bytes everywhere.
const PYTHON_PACKAGES: [&str; 2] = ["cargo-zigbuild==0.24.0", "ziglang==0.15.2"];

/// The tools, in a folder.
#[derive(Clone, Debug)]
pub struct Tools {
    folder: PathBuf,
}

/// A program of the machine.
#[derive(Clone, Copy, Debug)]
pub enum Program {
    /// It builds .deb files.
    DpkgDeb,
    /// It builds .rpm files.
    Rpmbuild,
}

impl Program {
    const fn name(self) -> &'static str {
        match self {
            Self::DpkgDeb => "dpkg-deb",
            Self::Rpmbuild => "rpmbuild",
        }
    }

    const fn remedy(self) -> &'static str {
        match self {
            Self::DpkgDeb => "apt-get install dpkg, or dnf install dpkg",
            Self::Rpmbuild => "apt-get install rpm, or dnf install rpm-build",
        }
    }
}

impl Tools {
    /// Finds the tools for these targets of Rust, and programs.
    ///
    /// # Errors
    ///
    /// Names every tool that is missing, and the command that gets it.
    pub fn find(targets: &[String], programs: &[Program]) -> anyhow::Result<Self> {
        let tools = Self {
            folder: target().join("tools"),
        };
        let mut missing = String::new();
        let mut need = |name: &str, remedy: &str| {
            // Writing to a string never fails.
            let _ = write!(missing, "\n  {name}: {remedy}");
        };
        if !tools.zig().is_file() || !tools.zigbuild().is_file() {
            let remedy = format!(
                "python3 -m pip install --target {} {}",
                tools.folder.display(),
                PYTHON_PACKAGES.join(" ")
            );
            need("cargo-zigbuild and zig", &remedy);
        }
        for rust in targets {
            if !has_standard_library(rust) {
                need(
                    &format!("Rust for {rust}"),
                    &format!("rustup target add {rust}"),
                );
            }
        }
        for program in programs {
            if !is_installed(program.name()) {
                need(program.name(), program.remedy());
            }
        }
        if !missing.is_empty() {
            bail!("packages cannot be made without{missing}");
        }
        Ok(tools)
    }

    /// Zig, whose C compiler and linker have the symbols of every glibc.
    pub fn zig(&self) -> PathBuf {
        self.folder.join("ziglang/zig")
    }

    fn zigbuild(&self) -> PathBuf {
        self.folder.join("bin/cargo-zigbuild")
    }

    /// Returns a subcommand of cargo-zigbuild, `zigbuild` or one of cargo's own, without its arguments.
    pub fn cargo_zigbuild(&self, subcommand: &str) -> Command {
        let mut command = Command::new(self.zigbuild());
        command.arg(subcommand);
        self.lend_zig(&mut command);
        command
    }

    /// Has a program that links by cargo-zigbuild use this zig.
    pub fn lend_zig(&self, command: &mut Command) {
        command.env("CARGO_ZIGBUILD_ZIG_PATH", self.zig());
        self.set_caches(command);
    }

    /// Zig's C compiler, which is its linker, too.
    pub fn compiler(&self) -> Command {
        let mut command = Command::new(self.zig());
        command.arg("cc");
        self.set_caches(&mut command);
        command
    }

    /// What zig compiles of its own (libunwind, the start-up files) is kept beside it.
    fn set_caches(&self, command: &mut Command) {
        let cache = self.folder.join("zig-cache");
        command
            .env("ZIG_GLOBAL_CACHE_DIR", &cache)
            .env("ZIG_LOCAL_CACHE_DIR", &cache);
    }
}

/// Returns whether a program is in the search path.
pub fn is_installed(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
    })
}

/// Returns whether the toolchain has Rust's standard library for a target.
fn has_standard_library(rust: &str) -> bool {
    let output = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", rust])
        .stderr(Stdio::null())
        .output();
    output.is_ok_and(|output| {
        let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success() && Path::new(&folder).is_dir()
    })
}
