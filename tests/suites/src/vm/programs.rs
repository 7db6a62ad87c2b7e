//! Programs that run in the guest.

use std::env::consts::ARCH;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use clap::ValueEnum;
use serde::Deserialize;

use super::guest;
use xtask_build::package::{self, Architecture};
use xtask_build::verbs_library::{self, Linker};
use xtask_build::workspace::{self, cargo, root, succeed, target};

const PACKAGE: &str = "gdr-vm-tests";
/// The profile of the tests, see the workspace's `Cargo.toml`.
const PROFILE: &str = "vm";
/// The profile of benchmarks, which installed programs have too.
const MEASURED: &str = workspace::PROFILE;
/// The verbs library that `gdr run` looks for, and the one beside it that takes libibverbs' place.
const LIBRARY: &str = "libgdr-verbs.so";
const SHADOW: &str = "shadow/libibverbs.so.1";

/// The part of the guest's script for another architecture.
const FOREIGN: &str = include_str!("foreign.sh");
/// Crates whose unit tests run on another architecture: the ones that touch devices and memory, or read what others
/// wrote. The other crates have no architecture-dependent code, and would double the compile time.
const UNIT_TESTS: [&str; 16] = [
    "gdr-cli",
    "gdr-cm",
    "gdr-copy",
    "gdr-cuda",
    "gdr-doctor",
    "gdr-explain",
    "gdr-nic",
    "gdr-node",
    "gdr-pci",
    "gdr-process",
    "gdr-rdma",
    "gdr-roce",
    "gdr-trace",
    "gdr-udp",
    "gdr-verbs-sys",
    "gdrapi",
];

/// The guest's folder of unit test programs, its archive, and the library's example, as named in the script.
const UNIT: &str = "gdr/unit";
const ARCHIVE: &str = "gdr/archive.tar.gz";
const EXAMPLE: &str = "gdr/write_and_read";
/// The library that replaces libibverbs in tests, which look for it next to themselves.
const FAKE_VERBS: [&str; 2] = ["libfake_ibverbs.so", "libgdr_verbs.so"];

/// What runs in a guest, after it was built.
#[derive(Debug)]
pub(crate) struct Program {
    kind: Kind,
    /// The programs and what they need, by their paths in the guest.
    files: Vec<(String, PathBuf)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Tests on rxe. They share devices and networks, and change their state.
    Tests,
    /// A benchmark of this name.
    Benchmark(&'static str),
    /// Unit tests, and the archive of another architecture.
    Foreign,
}

/// A line of cargo's JSON messages.
#[derive(Deserialize)]
struct Message {
    target: Option<Target>,
    #[serde(default)]
    filenames: Vec<PathBuf>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds the program of all tests.
pub(crate) fn tests() -> anyhow::Result<Program> {
    let file = program_of(tests_command(), "rxe")?;
    // In the profile in which `cargo xtask test` has already built it.
    let gdr = workspace::build("dev", &["gdr-cli"])?.join("gdr");
    let built = workspace::built(PROFILE);
    let libraries = target().join("vm-verbs");
    let [library, shadow, _trace] =
        verbs_library::link_all(&built, &libraries, Linker::Host, ARCH)?;
    let file_of = |name: &str, file| anyhow::Ok((format!("gdr/{name}"), stripped(file, name)?));
    Ok(Program {
        kind: Kind::Tests,
        files: vec![
            ("gdr/rxe".to_owned(), file),
            file_of("gdr", gdr)?,
            file_of(LIBRARY, library)?,
            file_of(SHADOW, shadow)?,
        ],
    })
}

/// Returns the command that builds the tests, and the libraries that they load.
pub(crate) fn tests_command() -> Command {
    // One build: built alone, the libraries would select fewer features of their dependencies, and build them again.
    let packages = [PACKAGE, "gdr-verbs", "gdr-verbs-trace"];
    build(&packages, PROFILE, &["--lib", "--test", "rxe"])
}

/// Makes the archive of an architecture, and builds unit tests for it by the same tools.
pub(crate) fn foreign(architecture: Architecture) -> anyhow::Result<Program> {
    let folder = target().join("packaging");
    let (tools, archive) = package::make_archive(architecture, &folder)?;
    let oldest = package::OLDEST_GLIBC;
    let rust = architecture.target();
    let mut files = vec![(ARCHIVE.to_owned(), archive)];
    let mut cargo = tools.cargo_zigbuild("test");
    cargo
        .current_dir(root())
        .args(["--no-run", "--lib", "--bins", "--locked", "--target"])
        .arg(format!("{rust}.{oldest}"))
        .args(["--message-format", "json-render-diagnostics"])
        // Every instruction of the guest is translated, and all programs are in its memory.
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_DEV_STRIP", "debuginfo");
    let crates = root().join("crates");
    for name in UNIT_TESTS {
        cargo.args(["--package", name]);
        let snapshots = crates.join(name).join("tests/snapshots");
        if snapshots.is_dir() {
            add_folder(&snapshots, &mut files)?;
        }
    }
    for message in messages(cargo)? {
        for name in FAKE_VERBS {
            let is_it = |file: &&PathBuf| file.ends_with(name);
            if let Some(library) = message.filenames.iter().find(is_it) {
                files.push((format!("{UNIT}/{name}"), library.clone()));
            }
        }
        if let (Some(target), Some(Profile { test: true }), Some(program)) =
            (message.target, message.profile, message.executable)
        {
            files.push((format!("{UNIT}/{}", target.name), program));
        }
    }
    let example = folder.join("write_and_read");
    let crate_of_library = crates.join("gdrapi");
    let mut compiler = tools.compiler();
    compiler
        .arg("-target")
        .arg(format!("{}.{oldest}", architecture.multiarch()))
        .arg("-o")
        .arg(&example)
        .arg("-I")
        .arg(crate_of_library.join("include"))
        .arg(crate_of_library.join("examples/write_and_read.c"))
        .arg(folder.join(rust).join(MEASURED).join("libgdrapi.so"))
        .arg("-ldl");
    succeed(compiler)?;
    files.push((EXAMPLE.to_owned(), example));
    Ok(Program {
        kind: Kind::Foreign,
        files,
    })
}

/// Adds the files below a folder, with the same paths in the guest as here.
fn add_folder(folder: &Path, files: &mut Vec<(String, PathBuf)>) -> anyhow::Result<()> {
    let at = || folder.display().to_string();
    for entry in fs::read_dir(folder).with_context(at)? {
        let entry = entry.with_context(at)?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            add_folder(&path, files)?;
        } else {
            let name = path.to_string_lossy();
            let name = name.trim_start_matches('/').to_owned();
            files.push((name, path));
        }
    }
    Ok(())
}

/// What to measure in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Benchmark {
    /// The soft provider against rxe.
    Rxe,
    /// `gdr perf` against perftest, on rxe.
    Perftest,
    /// The soft provider beside the kernel's TCP, on bad links.
    Tcp,
}

/// Builds a benchmark, and the programs that it runs.
pub(crate) fn benchmark(benchmark: Benchmark) -> anyhow::Result<Program> {
    let name = match benchmark {
        Benchmark::Rxe => "against_rxe",
        Benchmark::Perftest => "against_perftest",
        Benchmark::Tcp => "against_tcp",
    };
    let file_of = |name: &str, file| anyhow::Ok((format!("gdr/{name}"), stripped(file, name)?));
    let bench = program_of(build(&[PACKAGE], MEASURED, &["--bench", name]), name)?;
    let mut program = Program {
        kind: Kind::Benchmark(name),
        files: vec![file_of(name, bench)?],
    };
    if benchmark == Benchmark::Perftest {
        let gdr = program_of(build(&["gdr-cli"], MEASURED, &["--bin", "gdr"]), "gdr")?;
        program.files.push(file_of("gdr", gdr)?);
    }
    Ok(program)
}

/// Returns the command that builds targets of packages in a profile.
fn build(packages: &[&str], profile: &str, targets: &[&str]) -> Command {
    let mut command = cargo(&["build", "--profile", profile]);
    for package in packages {
        command.args(["--package", package]);
    }
    command
        .args(targets)
        .args(["--message-format", "json-render-diagnostics"]);
    command
}

/// Builds a program, and returns its path.
fn program_of(command: Command, name: &str) -> anyhow::Result<PathBuf> {
    let built = messages(command).with_context(|| format!("{name} does not build"))?;
    built
        .into_iter()
        .find_map(|message| {
            let found = message.target?.name == name;
            message.executable.filter(|_| found)
        })
        .with_context(|| format!("cargo built no {name}"))
}

/// Runs a cargo that builds, and returns its messages.
fn messages(mut cargo: Command) -> anyhow::Result<Vec<Message>> {
    let output = cargo
        .stderr(Stdio::inherit())
        .output()
        .context("cargo cannot be started")?;
    if !output.status.success() {
        bail!("cargo failed ({})", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect())
}

/// Returns a copy without debug information, or the program itself if `strip` fails.
fn stripped(program: PathBuf, name: &str) -> anyhow::Result<PathBuf> {
    let copy = guest::run_folder().join(name);
    let folder = copy.parent().unwrap_or(&copy);
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let done = Command::new("strip")
        .args(["--strip-debug", "-o"])
        .args([&copy, &program])
        .status()
        .is_ok_and(|status| status.success());
    Ok(if done { copy } else { program })
}

impl Program {
    /// Returns the files for the guest, by path.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.files.iter().map(|(name, file)| (&**name, &**file))
    }

    /// Arguments of the guest's kernel for it.
    pub(crate) fn kernel_arguments(&self) -> &'static str {
        match self.kind {
            // Waking a CPU that the host has put to sleep may or may not take longer than a message, depending on the
            // host's load. Therefore the guest's CPUs never sleep during measurements.
            Kind::Benchmark(_) => "idle=poll",
            Kind::Tests | Kind::Foreign => "",
        }
    }

    /// Lists the names of its tests. For another architecture, these are unknown without a guest.
    pub(crate) fn list(&self, filters: &[String]) -> anyhow::Result<Vec<String>> {
        match self.kind {
            Kind::Benchmark(name) => return Ok(vec![name.to_owned()]),
            Kind::Foreign => return Ok(vec!["unit tests and archive".to_owned()]),
            Kind::Tests => {}
        }
        let [(_, file), ..] = &*self.files else {
            bail!("no program of tests was built")
        };
        let output = Command::new(file)
            .args(["--list", "--format", "terse"])
            .args(filters)
            .output()
            .with_context(|| file.display().to_string())?;
        Ok(String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter_map(|line| line.strip_suffix(": test"))
            .map(str::to_owned)
            .collect())
    }

    /// Returns the part of the guest's script that runs it.
    pub(crate) fn script(&self, accelerator: &str, filters: &[String]) -> String {
        let mut script = format!("export GDR_VM={accelerator} RUST_BACKTRACE=1\n");
        let filters = filters.iter().map(|filter| quoted(filter));
        let filters = filters.collect::<Vec<_>>().join(" ");
        // Writing to a string never fails.
        let _ = match self.kind {
            Kind::Tests => writeln!(
                script,
                "/gdr/rxe --include-ignored --test-threads=1 --color=never {filters}\n{EXIT}"
            ),
            Kind::Benchmark(name) => writeln!(script, "/gdr/{name} {filters}\n{EXIT}"),
            Kind::Foreign => writeln!(script, "set -- {filters}\n{FOREIGN}"),
        };
        script
    }
}

/// Prints the status of the last command for [`super::follow`].
const EXIT: &str = "echo \"gdr-vm: exit $?\"";

/// Returns a word for the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guests_script_quotes_filters() {
        for (kind, before) in [(Kind::Tests, "--color=never"), (Kind::Foreign, "set --")] {
            let program = Program {
                kind,
                files: Vec::new(),
            };
            let script = program.script("tcg", &["a b".to_owned(), "it's".to_owned()]);
            let expected = format!(r"{before} 'a b' 'it'\''s'");
            assert!(script.contains(&expected), "{script}");
        }
    }
}
