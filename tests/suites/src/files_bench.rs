//! `cargo xtask files-bench`: what calls about files cost a program that uses no RDMA, under `gdr run` and without.
//!
//! The library for `LD_PRELOAD` is in front of the C library there. Programs with and without it take turns, so that
//! other load on the host affects both, and the median of the ratios of all turns is judged. Valgrind, if installed,
//! counts the instructions added to a call, which are the same in every run.

use std::fs;
use std::num::NonZeroUsize;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use crate::instructions::{instructions, starts};
use xtask_build::verbs_library;
use xtask_build::workspace::{PROFILE, root, succeed, target};

/// Calls of files.c, and how often one turn makes each.
const CALLS: [(&str, u32); 16] = [
    ("open", 50_000),
    ("open-absent", 100_000),
    ("open-device", 50_000),
    ("openat", 50_000),
    ("fopen", 50_000),
    ("stat", 100_000),
    ("stat-absent", 100_000),
    ("stat-relative", 100_000),
    ("lstat", 100_000),
    ("fstat", 200_000),
    ("access", 100_000),
    ("readlink", 100_000),
    ("realpath", 50_000),
    ("write", 500_000),
    ("dup", 100_000),
    ("list", 2_000),
];
/// How often a call is made for Valgrind.
const COUNTED: u32 = 1_000;
/// Number of entries in the folder that is listed.
const ENTRIES: u32 = 100;
/// Maximum ratio of the time with the library to the time without it.
const MOST: f64 = 1.02;

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Turns of each program; the median of their ratios is compared.
    #[arg(long, value_name = "N", default_value = "15")]
    turns: NonZeroUsize,
    /// libgdr-verbs.so to measure; built unless given.
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// Measure only the calls whose names contain one of these.
    filters: Vec<String>,
}

/// The program, with the library or without.
struct Setup {
    program: PathBuf,
    library: PathBuf,
    folder: PathBuf,
}

/// What is in front of the C library.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Front {
    Library,
    Nothing,
}

/// Measures, and fails if a call takes longer with the library.
pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    if !starts("cc") {
        println!("SKIPPED (cc is not installed): files-bench");
        return Ok(ExitCode::SUCCESS);
    }
    let setup = Setup::prepare(options.library.as_deref())?;
    let counts = starts("valgrind");
    println!(
        "calls without and with {}, CPU time, medians of {} turns",
        setup.library.display(),
        options.turns
    );
    println!(
        "{:14} {:>11} {:>11} {:>7}  instructions",
        "", "without", "with", "ratio"
    );
    let mut exit = ExitCode::SUCCESS;
    for (call, count) in CALLS {
        let filters = &options.filters;
        if !filters.is_empty() && !filters.iter().any(|it| call.contains(it.as_str())) {
            continue;
        }
        let mut times = (Vec::new(), Vec::new(), Vec::new());
        for turn in 0..options.turns.get() {
            // The second program of a turn may find warmer caches.
            let (without, with) = if turn % 2 == 0 {
                let without = setup.time(Front::Nothing, call, count)?;
                (without, setup.time(Front::Library, call, count)?)
            } else {
                let with = setup.time(Front::Library, call, count)?;
                (setup.time(Front::Nothing, call, count)?, with)
            };
            times.0.push(without);
            times.1.push(with);
            times.2.push(with / without);
        }
        let ratio = median(times.2);
        let added = match counts {
            true => format!("{:+.0}", setup.added(call)?),
            false => "valgrind is not installed".to_owned(),
        };
        let (without, with) = (median(times.0), median(times.1));
        println!("{call:14} {without:8.1} ns {with:8.1} ns {ratio:7.3}  {added}");
        if ratio > MOST {
            println!("{:14} more than {MOST}", "");
            exit = ExitCode::FAILURE;
        }
    }
    Ok(exit)
}

/// Returns the median of at least one figure.
fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Setup {
    fn prepare(library: Option<&Path>) -> anyhow::Result<Self> {
        let library = match library {
            Some(library) => library
                .canonicalize()
                .with_context(|| format!("{} cannot be read", library.display()))?,
            None => {
                let [preload, ..] = verbs_library::build(PROFILE, &target().join("verbs"))?;
                preload
            }
        };
        let made = target().join("files-bench");
        let folder = made.join("folder");
        if folder.exists() {
            fs::remove_dir_all(&folder).context("the folder of the last run stays")?;
        }
        fs::create_dir_all(&folder).context("the folder cannot be made")?;
        symlink("file", folder.join("link")).context("the link cannot be made")?;
        let numbered = (0..ENTRIES).map(|number| format!("entry{number}"));
        for name in numbered.chain(["file".to_owned()]) {
            fs::write(folder.join(&name), []).with_context(|| format!("{name} cannot be made"))?;
        }
        let program = made.join("files");
        let mut compiler = Command::new("cc");
        compiler
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2"])
            // Otherwise the first call of a function would have to look it up.
            .args(["-Wl,-z,now"])
            .arg(root().join("tests/suites/src/files_bench/files.c"))
            .arg("-o")
            .arg(&program);
        succeed(compiler)?;
        Ok(Self {
            program,
            library,
            folder,
        })
    }

    /// Returns the program, which makes a call so many times.
    fn command(&self, front: Front, call: &str, count: u32) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args([call, &count.to_string()])
            .arg(&self.folder)
            .env_remove("LD_PRELOAD");
        if front == Front::Library {
            // As under `gdr run --only-soft`.
            command
                .env("LD_PRELOAD", &self.library)
                .env("GDR_ONLY_SOFT", "1");
        }
        command
    }

    /// Measures the duration of a call in nanoseconds.
    fn time(&self, front: Front, call: &str, count: u32) -> anyhow::Result<f64> {
        let output = self
            .command(front, call, count)
            .output()
            .context("the program cannot be started")?;
        let said = String::from_utf8_lossy(&output.stdout);
        match said.trim().parse::<f64>() {
            Ok(all) if output.status.success() => Ok(all / f64::from(count)),
            _ => bail!(
                "{call}: {}: {}",
                output.status,
                String::from_utf8_lossy(&output.stderr)
            ),
        }
    }

    /// Measures how many instructions the library adds to a call.
    fn added(&self, call: &str) -> anyhow::Result<f64> {
        let of_calls = |front| -> anyhow::Result<f64> {
            let all = instructions(&self.command(front, call, COUNTED))?;
            let none = instructions(&self.command(front, call, 0))?;
            Ok((all as f64 - none as f64) / f64::from(COUNTED))
        };
        Ok(of_calls(Front::Library)? - of_calls(Front::Nothing)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_has_every_call() {
        let program = include_str!("files_bench/files.c");
        for (call, _) in CALLS {
            assert!(program.contains(&format!("{{\"{call}\", ")), "{call}");
        }
        assert_eq!(program.matches("    {\"").count(), CALLS.len());
    }

    #[test]
    fn the_median_is_the_one_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
