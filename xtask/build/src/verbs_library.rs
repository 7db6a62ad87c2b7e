//! `cargo xtask verbs-library`: links gdr-verbs to a library for `LD_PRELOAD`, and to one that takes
//! the place of `libibverbs.so.1`; beside them, the library of `gdr trace`.
//!
//! The first two have the same functions. The one for `LD_PRELOAD` has a name of its own: the loader takes two
//! libraries of one name for the same, and other libraries of rdma-core need the private functions
//! of the installed one. The one in its place has these private functions, too (`private.S`). It is a filter of the
//! one for `LD_PRELOAD` where that is beside it: a program that loads it by name gets the functions of the other one, and so
//! a process has one table of objects. rustc gives a `cdylib` a version script of its own, and the linker takes only one, so the crate
//! is a static library that the C compiler links with the versions of rdma-core.

use std::env::consts::ARCH;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context;
use rustix::fs::{FlockOperation, flock};

use crate::install::{copy_program, make_folder, replace_link};
use crate::package::elf;
use crate::tools::Tools;
use crate::workspace::{self, PROFILE, root, succeed, target};

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
/// Functions in assembly: functions with several versions, and libibverbs' private ones.
const VERSIONS: &str = "versions.S";
const PRIVATE: &str = "private.S";

/// What links the libraries.
#[derive(Clone, Copy, Debug)]
pub enum Linker<'a> {
    /// The C compiler of this machine, for this machine.
    Host,
    /// Zig, for a target in its words, without symbols.
    Zig { tools: &'a Tools, target: &'a str },
}

/// The functions of libibverbs, with their versions.
const VERSION_SCRIPT: &str = "libibverbs.map";

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Folder to make the library in; target/verbs unless given.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// The profile of cargo to build with.
    #[arg(long, value_name = "PROFILE", default_value = PROFILE)]
    profile: String,
}

pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let out = match &options.out {
        Some(out) => out.clone(),
        None => target().join("verbs"),
    };
    for library in build(&options.profile, &out)? {
        println!("{}", library.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds the crates for this machine and links them in `out`; returns the library for `LD_PRELOAD`,
/// the one that takes libibverbs' place, and the one that counts.
pub fn build(profile: &str, out: &Path) -> anyhow::Result<[PathBuf; 3]> {
    let built = workspace::build(profile, &["gdr-verbs", "gdr-verbs-trace"])?;
    link_all(&built, out, Linker::Host, ARCH)
}

/// Like [`build`], for crates that are built for an architecture.
pub fn link_all(
    built: &Path,
    out: &Path,
    linker: Linker<'_>,
    architecture: &str,
) -> anyhow::Result<[PathBuf; 3]> {
    make_folder(out)?;
    // Tests run this in several processes at once.
    let lock = File::create(out.join("lock")).context("the lock of the folder")?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let archive = built.join("libgdr_verbs.a");
    let preload = out.join(PRELOAD);
    let replaced = format!("libc.{architecture}.map");
    let scripts = [VERSION_SCRIPT, &replaced];
    linker.link(&archive, PRELOAD, &scripts, &[VERSIONS], None, &preload)?;
    let shadow = out.join(SHADOW);
    let library = shadow.join(LIBRARY);
    let sources = [VERSIONS, PRIVATE];
    let filtee = format!("$ORIGIN/../{PRELOAD}");
    linker.link(
        &archive,
        LIBRARY,
        &[VERSION_SCRIPT],
        &sources,
        Some(&filtee),
        &library,
    )?;
    replace_link(LIBRARY, &shadow.join(LINK))?;
    // Its functions have no versions, so it needs no linking of its own.
    let trace = out.join(TRACE);
    linker.finish(&built.join(TRACE_BUILT), &trace)?;
    Ok([preload, library, trace])
}

/// Copies the libraries that `build` made to `folder`; returns their files there.
pub fn install(
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

impl Linker<'_> {
    /// Links a library that exports the functions of version scripts, with sources for the C compiler; a filter of
    /// another one, if there is one.
    fn link(
        self,
        archive: &Path,
        name: &str,
        scripts: &[&str],
        sources: &[&str],
        filtee: Option<&str>,
        library: &Path,
    ) -> anyhow::Result<()> {
        let folder = root().join("crates/gdr-verbs");
        let linked = library.with_extension("linked");
        make_folder(library.parent().unwrap_or(library))?;
        let mut compiler = self.compiler();
        compiler.args(["-shared", "-Wl,-z,defs", "-Wl,-z,relro", "-Wl,-z,now"]);
        compiler.args(["-Wl,--gc-sections", "-Wl,--no-undefined-version"]);
        // Both libraries may be in one process, from different folders. Each has tables of its own, so it must
        // not call the other.
        compiler.arg("-Wl,-Bsymbolic");
        compiler.arg(format!("-Wl,-soname,{name}"));
        // Not every linker takes several scripts.
        let mut script = String::new();
        for part in scripts.iter().map(|part| folder.join(part)) {
            script += &fs::read_to_string(&part)
                .with_context(|| format!("{} cannot be read", part.display()))?;
        }
        let versions = library.with_extension("map");
        fs::write(&versions, &script).with_context(|| versions.display().to_string())?;
        compiler.arg(format!("-Wl,--version-script={}", versions.display()));
        // Only the objects that define these, and what they need, are taken from the archive.
        compiler.args(exported(&script).map(|name| format!("-Wl,-u,{name}")));
        compiler.args(sources.iter().map(|source| folder.join(source)));
        compiler.arg(archive).args(["-lpthread", "-ldl", "-lm"]);
        compiler.args(self.unwinder()).arg("-o").arg(&linked);
        compiler.args(filtee.map(|filtee| format!("-Wl,-rpath,{filtee}")));
        succeed(compiler)?;
        if filtee.is_some() {
            elf::make_filter(&linked)?;
        }
        self.finish(&linked, library)?;
        for made in [linked, versions] {
            fs::remove_file(&made).with_context(|| format!("{} stays", made.display()))?;
        }
        Ok(())
    }

    fn compiler(self) -> Command {
        match self {
            Self::Host => Command::new("cc"),
            Self::Zig { tools, target } => {
                let mut command = tools.compiler();
                command.args(["-target", target, "-Wl,--strip-all"]);
                command
            }
        }
    }

    /// Returns the library that unwinds stacks; Zig's is static.
    fn unwinder(self) -> [&'static str; 2] {
        match self {
            Self::Host => ["-lgcc_s", "-lc"],
            Self::Zig { .. } => ["-lunwind", "-lc"],
        }
    }

    /// Copies what is linked to its place, without debug information.
    fn finish(self, linked: &Path, library: &Path) -> anyhow::Result<()> {
        match self {
            Self::Host => copy_program(linked, library),
            // It has none. The `strip` of this machine may not know the architecture.
            Self::Zig { .. } => {
                fs::copy(linked, library)
                    .with_context(|| format!("{} cannot be written", library.display()))?;
                Ok(())
            }
        }
    }
}

/// Returns the functions that a version script exports.
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
