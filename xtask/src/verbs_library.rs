//! `cargo xtask verbs-library`: links gdr-verbs to a library for `LD_PRELOAD`, and to one that takes
//! the place of `libibverbs.so.1`; beside them, the library of `gdr trace`.
//!
//! The first two have the same functions. The one for `LD_PRELOAD` has a name of its own: the loader takes two
//! libraries of one name for the same, and other libraries of rdma-core need the private functions
//! of the installed one. The one in its place has these private functions, too (`private.S`). rustc gives a `cdylib` a version script of its own, and the linker takes only one, so the crate
//! is a static library that the C compiler links with the versions of rdma-core.

use std::env::consts::ARCH;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context;
use rustix::fs::{FlockOperation, flock};

use crate::install::{copy_program, make_folder, replace_link};
use crate::workspace::{self, root, succeed, target};

/// The library that counts for `gdr trace`, and the file that cargo builds.
const TRACE: &str = "libgdr-verbs-trace.so";
const TRACE_BUILT: &str = "libgdr_verbs_trace.so";
/// The library for `LD_PRELOAD`.
const PRELOAD: &str = "libgdr-verbs.so";
/// The folder of the library that takes libibverbs' place, its file, and the link that programs open
/// which were not linked with it.
const SHADOW: &str = "shadow";
const LIBRARY: &str = "libibverbs.so.1";
const LINK: &str = "libibverbs.so";
/// Functions in assembly: those of several versions, and the private ones of libibverbs, with the
/// initializer that fills their table.
const VERSIONS: &str = "versions.S";
const PRIVATE: &str = "private.S";
const INITIALIZER: &str = "gdr_verbs_load";

/// The functions of libibverbs, with their versions.
const VERSION_SCRIPT: &str = "libibverbs.map";

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

/// Builds the crates and links them in `out`; returns the library for `LD_PRELOAD`, the one that takes
/// libibverbs' place, and the one that counts.
pub(crate) fn build(profile: &str, out: &Path) -> anyhow::Result<[PathBuf; 3]> {
    let built = workspace::build(profile, &["gdr-verbs", "gdr-verbs-trace"])?;
    make_folder(out)?;
    // Tests run this in several processes at once.
    let lock = File::create(out.join("lock")).context("the lock of the folder")?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let archive = built.join("libgdr_verbs.a");
    let preload = out.join(PRELOAD);
    let replaced = format!("libc.{ARCH}.map");
    link(
        &archive,
        PRELOAD,
        &[VERSION_SCRIPT, &replaced],
        &[VERSIONS],
        &preload,
    )?;
    let shadow = out.join(SHADOW);
    let library = shadow.join(LIBRARY);
    link(
        &archive,
        LIBRARY,
        &[VERSION_SCRIPT],
        &[VERSIONS, PRIVATE],
        &library,
    )?;
    replace_link(LIBRARY, &shadow.join(LINK))?;
    // Its functions have no versions, so it needs no linking of its own.
    let trace = out.join(TRACE);
    copy_program(&built.join(TRACE_BUILT), &trace)?;
    Ok([preload, library, trace])
}

/// Copies the libraries that `build` made to `folder`; returns their files there.
pub(crate) fn install(
    [preload, library, trace]: &[PathBuf; 3],
    folder: &Path,
) -> anyhow::Result<[PathBuf; 3]> {
    let shadow = folder.join(SHADOW);
    make_folder(&shadow)?;
    let installed = [
        folder.join(PRELOAD),
        shadow.join(LIBRARY),
        folder.join(TRACE),
    ];
    for (built, installed) in [preload, library, trace].into_iter().zip(&installed) {
        copy_program(built, installed)?;
    }
    replace_link(LIBRARY, &shadow.join(LINK))?;
    Ok(installed)
}

/// Links a library that exports the functions of version scripts, with sources for the C compiler.
fn link(
    archive: &Path,
    name: &str,
    scripts: &[&str],
    sources: &[&str],
    library: &Path,
) -> anyhow::Result<()> {
    let folder = root().join("crates/gdr-verbs");
    let linked = library.with_extension("linked");
    make_folder(library.parent().unwrap_or(library))?;
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-Wl,-z,defs", "-Wl,-z,relro", "-Wl,-z,now"]);
    compiler.args(["-Wl,--gc-sections", "-Wl,--no-undefined-version"]);
    // Both libraries may be in one process. Each has tables of its own, so it must not call the other.
    compiler.arg("-Wl,-Bsymbolic");
    compiler.arg(format!("-Wl,-soname,{name}"));
    for script in scripts.iter().map(|script| folder.join(script)) {
        let text = fs::read_to_string(&script)
            .with_context(|| format!("{} cannot be read", script.display()))?;
        compiler.arg(format!("-Wl,--version-script={}", script.display()));
        // Only the objects that define these, and what they need, are taken from the archive.
        compiler.args(exported(&text).map(|name| format!("-Wl,-u,{name}")));
    }
    if sources.contains(&PRIVATE) {
        compiler.arg(format!("-Wl,-init,{INITIALIZER}"));
    }
    compiler.args(sources.iter().map(|source| folder.join(source)));
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
