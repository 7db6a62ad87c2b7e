//! `cargo xtask examples`: runs the examples that need no hardware, and checks their last line.

use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;

use xtask_build::results::{Outcome, Results};
use xtask_build::workspace::{built, cargo, is_built, root};

/// An example, and its expected end.
struct Example {
    package: &'static str,
    name: &'static str,
    /// Expected text in the last line of its output.
    last_line: &'static str,
}

/// The GPU is simulated for all of them, so that the outcome is the same on every machine. The
/// examples that need a GPU are steps of the GPU bundle; the C program is compiled and run by the
/// tests of `install-gdrapi`.
const EXAMPLES: [Example; 12] = [
    Example {
        package: "gdr-cuda",
        name: "copy_and_print",
        last_line: "hello from GPU memory (simulated)",
    },
    Example {
        package: "gdr-copy",
        name: "ping_pong",
        last_line: "100 round trips, ",
    },
    Example {
        package: "gdr-roce",
        name: "two_queue_pairs",
        last_line: "3000 bytes written; one packet was lost and sent again",
    },
    Example {
        package: "gdr-rdma",
        name: "write_between_processes",
        last_line: "received: written by another process",
    },
    Example {
        package: "gdr-rdma",
        name: "gpu_initiated",
        last_line: "100 rounds each, from one kernel's flag to the other's (simulated)",
    },
    Example {
        package: "gdr-object",
        name: "weights",
        last_line: "20 steps published; both readers have the last one",
    },
    Example {
        package: "gdr-object",
        name: "frames",
        last_line: "200 frames recorded, and every one was processed",
    },
    Example {
        package: "gdr-object",
        name: "scalar",
        last_line: "the watcher saw the number 1000",
    },
    Example {
        package: "gdr-object",
        name: "soak",
        last_line: "20 kills of 8 peers with 40 objects: ",
    },
    Example {
        package: "gdr-perf",
        name: "statistics",
        last_line: "100000 samples",
    },
    Example {
        package: "gdr-node",
        name: "distance",
        last_line: "nearest to GPU0: ",
    },
    Example {
        package: "gdr-doctor",
        name: "check_archive",
        last_line: "outcome: Failure",
    },
];

pub fn run() -> anyhow::Result<ExitCode> {
    let mut results = Results::default();
    results.check("examples", all);
    Ok(results.close())
}

/// Runs every example of the list.
pub fn all() -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::Passed;
    for example in &EXAMPLES {
        let Example { package, name, .. } = example;
        match last_line(example) {
            Ok(line) if line.contains(example.last_line) => println!("{package} {name}: {line}"),
            Ok(line) => {
                println!("{package} {name}: ends with {line:?}");
                outcome = Outcome::Failed;
            }
            Err(error) => {
                println!("{package} {name}: {error:#}");
                outcome = Outcome::Failed;
            }
        }
    }
    Ok(outcome)
}

/// Runs an example and returns the last line that it prints.
fn last_line(example: &Example) -> anyhow::Result<String> {
    let mut command = if is_built() {
        Command::new(built("dev").join("examples").join(example.name))
    } else {
        let mut command = cargo(&["run", "--quiet", "--package", example.package]);
        command.args(["--example", example.name]);
        command
    };
    let output = command
        .current_dir(root())
        .env("GDR_BACKEND", "sim")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("it cannot be started")?;
    if !output.status.success() {
        anyhow::bail!("{}", output.status);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().last().unwrap_or_default().to_owned())
}
