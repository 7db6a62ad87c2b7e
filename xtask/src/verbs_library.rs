//! `cargo xtask verbs-library`: links gdr-verbs to a library for `LD_PRELOAD`, and to one that takes
//! the place of `libibverbs.so.1`.
//!
//! Both have the same functions. The one for `LD_PRELOAD` has a name of its own: the loader takes two
//! libraries of one name for the same, and other libraries of rdma-core need the private functions
//! of the real one. rustc gives a `cdylib` a version script of its own, and the linker takes only one, so the crate
//! is a static library that the C compiler links with the versions of rdma-core.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context;

use crate::install::{copy_program, make_folder};
use crate::workspace::{cargo, root, succeed, target};

/// The library for `LD_PRELOAD`.
const PRELOAD: &str = "libgdr-verbs.so";
/// The folder of the library that takes libibverbs' place, its file, and the link that programs open
/// which were not linked with it.
const SHADOW: &str = "shadow";
const LIBRARY: &str = "libibverbs.so.1";
const LINK: &str = "libibverbs.so";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Folder to make the library in; target/verbs unless given.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// The profile of cargo to build with.
    #[arg(long, value_name = "PROFILE", default_value = "release")]
    profile: String,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let out = match &options.out {
        Some(out) => out.clone(),
        None => target().join("verbs"),
    };
    for library in build(&options.profile, &out)? {
        println!("{}", library.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds the crate and links it in `out`; returns the library for `LD_PRELOAD`, and the one that takes
/// libibverbs' place.
pub(crate) fn build(profile: &str, out: &Path) -> anyhow::Result<[PathBuf; 2]> {
    succeed(cargo(&[
        "build",
        "--profile",
        profile,
        "--package",
        "gdr-verbs",
    ]))?;
    // The profile `dev` builds in `debug`.
    let folder = if profile == "dev" { "debug" } else { profile };
    let archive = target().join(folder).join("libgdr_verbs.a");
    let preload = out.join(PRELOAD);
    link(&archive, PRELOAD, &preload)?;
    let shadow = out.join(SHADOW);
    link(&archive, LIBRARY, &shadow.join(LIBRARY))?;
    let link = shadow.join(LINK);
    if link.symlink_metadata().is_err() {
        symlink(LIBRARY, &link).with_context(|| format!("{} cannot be linked", link.display()))?;
    }
    Ok([preload, shadow.join(LIBRARY)])
}

fn link(archive: &Path, name: &str, library: &Path) -> anyhow::Result<()> {
    let map = root().join("crates/gdr-verbs/libibverbs.map");
    let text =
        fs::read_to_string(&map).with_context(|| format!("{} cannot be read", map.display()))?;
    let linked = library.with_extension("linked");
    make_folder(library.parent().unwrap_or(library))?;
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-Wl,-z,defs", "-Wl,-z,relro", "-Wl,-z,now"]);
    compiler.args(["-Wl,--gc-sections", "-Wl,--no-undefined-version"]);
    compiler.arg(format!("-Wl,-soname,{name}"));
    compiler.arg(format!("-Wl,--version-script={}", map.display()));
    // Only the objects that define these, and what they need, are taken from the archive.
    compiler.args(exported(&text).map(|name| format!("-Wl,-u,{name}")));
    compiler
        .arg(archive)
        .args(["-lpthread", "-ldl", "-lm", "-lgcc_s", "-lc", "-o"])
        .arg(&linked);
    succeed(compiler)?;
    copy_program(&linked, library)?;
    fs::remove_file(&linked).with_context(|| format!("{} stays", linked.display()))
}

/// The functions that a version script exports.
fn exported(script: &str) -> impl Iterator<Item = &str> {
    let lines = script.lines().filter_map(|line| line.strip_prefix("\t\t"));
    lines.filter_map(|line| line.strip_suffix(';'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exported_functions_of_a_script_are_found() {
        let script = "A {\n\tglobal:\n\t\tone;\n\t\ttwo;\n\tlocal: *;\n};\nB {\n\tglobal:\n\t\tthree;\n} A;\n";
        let names: Vec<_> = exported(script).collect();
        assert_eq!(names, ["one", "two", "three"]);
    }
}
