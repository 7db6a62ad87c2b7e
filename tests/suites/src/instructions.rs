//! `cargo xtask instructions`: counts the instructions of the hot paths.
//!
//! On a busy machine, times say little, whereas instruction counts show which commit made a path longer. Each figure is
//! the difference between two runs of one program under Valgrind, so that its start and end are not counted. Valgrind
//! lacks AVX-512, so copies use the best routine without it.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail};

use xtask_build::workspace::{PROFILE, cargo, root, target};

/// What to count.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Another checkout to count, instead of this one.
    #[arg(long, value_name = "FOLDER")]
    tree: Option<PathBuf>,
}

/// Sizes of the copies to count.
const COPY_SIZES: [u32; 3] = [8, 64, 4096];
/// Packet payloads to count.
const PACKET_SIZES: [u32; 4] = [0, 64, 1024, 4096];
/// How often a path is executed.
const REPEATS: u32 = 20_000;

/// A checkout with the programs built in it.
struct Built {
    tree: PathBuf,
    /// Where they are.
    release: PathBuf,
}

pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    for program in ["valgrind", "cc"] {
        if !starts(program) {
            println!("SKIPPED ({program} is not installed): instructions");
            return Ok(ExitCode::SUCCESS);
        }
    }
    let built = build(options.tree.as_deref().unwrap_or(root()))?;
    copies(&built)?;
    packets(&built)?;
    doctor(&built)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns whether a program is there.
pub(crate) fn starts(program: &str) -> bool {
    let mut probe = Command::new(program);
    probe
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

fn build(tree: &Path) -> anyhow::Result<Built> {
    let tree = tree
        .canonicalize()
        .with_context(|| format!("{} cannot be read", tree.display()))?;
    let folder = if tree == root() {
        target()
    } else {
        tree.join("target")
    };
    for arguments in [
        &[
            "build",
            "--profile",
            PROFILE,
            "-p",
            "gdr-cli",
            "-p",
            "gdrapi",
        ][..],
        &[
            "build",
            "--profile",
            PROFILE,
            "-p",
            "gdr-roce",
            "--example",
            "packets",
        ],
    ] {
        let mut command = cargo(arguments);
        command.current_dir(&tree).env("CARGO_TARGET_DIR", &folder);
        let status = command.status().context("cargo cannot be started")?;
        if !status.success() {
            bail!("cargo {} failed in {}", arguments.join(" "), tree.display());
        }
    }
    Ok(Built {
        tree,
        release: folder.join(PROFILE),
    })
}

/// One figure.
fn print(what: &str, instructions: u64, times: u32) {
    let each = instructions as f64 / f64::from(times);
    println!("{what:<32} {each:>14.1}");
}

/// Copies through the C interface, the routine being the one that the library chooses.
fn copies(built: &Built) -> anyhow::Result<()> {
    let program = target().join("instructions-copies");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-I"])
        .arg(built.tree.join("crates/gdrapi/include"))
        .arg(root().join("tests/suites/src/instructions/copies.c"))
        .arg("-o")
        .arg(&program)
        .arg("-ldl");
    if !compiler.status().context("cc cannot be started")?.success() {
        bail!("copies.c cannot be compiled");
    }
    let library = built.release.join("libgdrapi.so");
    let routine = routine(built)?;
    println!("\nC interface on the simulated GPU, copy routine {routine}: instructions a call");
    for (direction, name) in [
        ("to", "gdr_copy_to_mapping"),
        ("from", "gdr_copy_from_mapping"),
    ] {
        for size in COPY_SIZES {
            let counted = |direction: &str| {
                let mut command = Command::new(&program);
                command
                    .arg(&library)
                    .args([direction, &size.to_string(), &REPEATS.to_string()])
                    .env("GDR_BACKEND", "sim")
                    .env("GDR_SIM_BYTES", "65536")
                    .env_remove("GDR_COPY")
                    .env_remove("GDRCOPY_ENABLE_LOGGING");
                instructions(&command)
            };
            let counted = counted(direction)?.saturating_sub(counted("neither")?);
            print(&format!("{name} {size} B"), counted, REPEATS);
        }
    }
    Ok(())
}

/// Returns the copy routine that is chosen under Valgrind.
fn routine(built: &Built) -> anyhow::Result<String> {
    let mut command = Command::new(built.release.join("gdr"));
    command.args(["info", "--simulate", "--json"]);
    command.env_remove("GDR_COPY");
    let output = valgrind(&command, "none")
        .output()
        .context("valgrind cannot be started")?;
    let document: serde_json::Value = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())
        .context("`gdr info` failed under Valgrind")?;
    let routine = document["copy_routine"].as_str();
    Ok(routine.context("no copy routine is named")?.to_owned())
}

/// Counts WRITE packets at a responder: ICRC, headers, bytes, and acknowledgements.
fn packets(built: &Built) -> anyhow::Result<()> {
    println!("\nWRITE received by a responder: instructions a packet");
    for size in PACKET_SIZES {
        let counted = |mode: &str| {
            let mut command = Command::new(built.release.join("examples/packets"));
            command.args([mode, &size.to_string(), &REPEATS.to_string()]);
            instructions(&command)
        };
        let counted = counted("receive")?.saturating_sub(counted("make")?);
        print(&format!("{size} B"), counted, REPEATS);
    }
    Ok(())
}

/// Counts the instructions of the doctor on the example node, and how many of them a start of the program takes.
fn doctor(built: &Built) -> anyhow::Result<()> {
    println!("\nThe gdr command: instructions a run");
    for line in [
        "version",
        "doctor --example --json",
        "topo --example --json",
    ] {
        let mut command = Command::new(built.release.join("gdr"));
        command
            .args(line.split(' '))
            // Whatever this machine has.
            .env("GDR_LIBIBVERBS", "/nonexistent/libibverbs.so.1")
            .env_remove("GDR_LOG");
        print(&format!("gdr {line}"), instructions(&command)?, 1);
    }
    Ok(())
}

/// Returns the program under a tool of Valgrind.
fn valgrind(program: &Command, tool: &str) -> Command {
    let mut command = Command::new("valgrind");
    command.arg(format!("--tool={tool}"));
    if tool == "cachegrind" {
        command.args(["--cache-sim=no", "--cachegrind-out-file=/dev/null"]);
    }
    command.arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// Returns how many instructions a program executes.
pub(crate) fn instructions(program: &Command) -> anyhow::Result<u64> {
    let output = valgrind(program, "cachegrind")
        .output()
        .context("valgrind cannot be started")?;
    let said = String::from_utf8_lossy(&output.stderr);
    // The doctor exits with 2 if it finds a fault, as it does on the example node.
    if !matches!(output.status.code(), Some(0..=3)) {
        bail!(
            "{program:?} failed under Valgrind: {}\n{said}",
            output.status
        );
    }
    counted(&said).with_context(|| format!("Valgrind printed no count of instructions:\n{said}"))
}

/// Reads `==PID== I   refs:      3,059,100`.
fn counted(said: &str) -> Option<u64> {
    let line = said.lines().find(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next() == Some("I") && words.next() == Some("refs:")
    })?;
    let number = line.split_whitespace().last()?.replace(',', "");
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_of_valgrind_is_understood() {
        let said = "==16080== Cachegrind\n==16080== \n==16080== I   refs:      3,059,100\n";
        assert_eq!(counted(said), Some(3_059_100));
        assert_eq!(counted("==1== I refs: 12\n"), Some(12));
        assert_eq!(counted("==1== Cachegrind\n"), None);
    }
}
