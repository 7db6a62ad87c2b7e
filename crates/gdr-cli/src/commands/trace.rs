//! `gdr trace`: runs a verbs program, and reports what it registered and moved.

mod port_counters;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Result;
use gdr_perf::report::Schema;
use gdr_process::{WholeFile, process_name};
use gdr_trace::{Ended, ProcessTrace, Report};

use self::port_counters::PortCounters;
use crate::child_program;
use crate::command::{CommandSpec, Group, Run};
use crate::document::{self, Document};
use crate::exit::{CANNOT_RUN, Exit, NO_LIBRARY_OR_REPORT, NO_PROGRAM, Statuses};
use crate::global::Global;
use crate::launch::{PreloadLibrary, examine, found, prepended};
use crate::output::Output;
use crate::progress::print_to_stderr;
use crate::rdma_requirement::{Requirement, RequirementError};
use crate::units;

/// Run a verbs program, and report which kinds of memory its RDMA traffic used
///
/// A library in front of libibverbs (LD_PRELOAD) counts what the program and its children register and
/// post: memory regions by kind (host, GPU by address, GPU by dma-buf), including refused ones; bytes
/// and operations by NIC, queue pair, operation and kind of memory; and completions with errors. Bytes
/// are "direct" if a NIC reads them from or writes them to GPU memory itself.
///
/// Works with kernel devices and with the devices of `gdr run`. If a program posts directly to hardware
/// (mlx5dv, DEVX), only its registrations and the port counters are seen, and the report says so. The
/// counts are complete even for processes that were killed.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Exit with status 120 unless this share of the bytes is direct: direct (95%), or direct=N%
    #[arg(long, value_name = "SHARE")]
    require: Option<gdr_trace::Requirement>,

    /// Exit with status 120 unless the program moves at least this many bytes (4096, 1G; default: 1) by RDMA
    ///
    /// Every process that opens a device has to reach the limit; with gdr's devices, every process that lists
    /// them. For one that does not, the message says how far it got.
    #[arg(
        long,
        value_name = "BYTES",
        value_parser = units::size,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1"
    )]
    require_rdma: Option<u64>,

    /// Write the report to this file instead of standard output; %p stands for gdr's process, as
    /// PID-NAMESPACE-HOST
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Also write metrics to this file in Prometheus' text format; %p as in --output
    #[arg(long, value_name = "FILE")]
    prometheus: Option<PathBuf>,

    /// The program and its arguments
    #[arg(
        value_name = "PROGRAM",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true
    )]
    program: Vec<OsString>,
}

/// Why a program ran without a report, or did not run at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceError {
    /// No directory for what the processes write.
    #[error("a directory cannot be created in {}: {source}; set TMPDIR to another directory", .folder.display())]
    Folder { folder: PathBuf, source: io::Error },
    /// What they wrote cannot be read.
    #[error("the records of the processes in {} cannot be read: {source}", .folder.display())]
    Counts { folder: PathBuf, source: io::Error },
    /// A file of the report.
    #[error("{} cannot be written: {source}", .path.display())]
    NotWritten { path: PathBuf, source: io::Error },
}

impl CommandSpec for Options {
    const GROUP: Group = Group::RunPrograms;
    const STATUSES: Statuses = &[
        (
            Exit::Fine,
            "success; otherwise the program's own status (128 + N for a signal N)",
        ),
        (
            Exit::NotMet,
            "the program succeeded, but did not meet --require or --require-rdma",
        ),
        (Exit::Launcher, NO_LIBRARY_OR_REPORT),
        (Exit::NotStarted, CANNOT_RUN),
        (Exit::NotFound, NO_PROGRAM),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr trace ./all_reduce_perf -g 8                    print a table after the program's output
  gdr trace --require direct=95% -- ./app             fail unless 95% of the bytes went direct
  gdr trace --require-rdma=1G -- ./app                fail if it used TCP, and say how far it got
  gdr trace --json -o trace.json -- ./app             write the report as JSON to a file
  gdr trace --prometheus /var/lib/node_exporter/gdr.prom -- ./app
  gdr trace -- gdr run --nic 127.0.0.1 ib_write_bw    use gdr's own devices
  mpirun -n 8 gdr trace -o 'trace.%p' -- ./app        write a report for each rank";
    const STATUS_OF: fn(&anyhow::Error) -> Option<Exit> = |error| {
        let failed = error.is::<TraceError>().then_some(Exit::Launcher);
        failed.or_else(|| error.downcast_ref().map(RequirementError::exit))
    };
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    let library = PreloadLibrary::Trace.find()?;
    let preload = prepended("LD_PRELOAD", &library)?;
    let Some((program, arguments)) = options.program.split_first() else {
        return Ok(Exit::Usage);
    };
    let path = found(program)?;
    examine(&path)?;
    let folder = tempfile::Builder::new()
        .prefix("gdr-trace-")
        .tempdir()
        .map_err(|source| TraceError::Folder {
            folder: std::env::temp_dir(),
            source,
        })?;
    let mut environment = vec![
        ("LD_PRELOAD", preload),
        ("GDR_TRACE_FOLDER", folder.path().into()),
    ];
    let rdma = options.require_rdma.map(Requirement::new).transpose()?;
    if let Some(rdma) = &rdma {
        let (variable, folder) = rdma.variable();
        environment.push((variable, folder.to_owned()));
    }
    let before = PortCounters::read();
    let ended = child_program::run(&path, program, arguments, environment)?;
    let mut report = report(folder.path(), &options.program, ended)?;
    report.ports = PortCounters::read().since(&before);
    let is_direct = options.require.as_ref().is_none_or(|it| report.require(it));
    let checked = rdma.map_or(Ok(()), |rdma| rdma.check_traced(&report));
    if let Err(error) = checked {
        if error.exit() != Exit::NotMet {
            return Err(error.into());
        }
        report.unmet_rdma = Some(error.to_string());
    }
    if let Some(path) = &options.prometheus {
        write_file(&with_pid(path), &report.prometheus())?;
    }
    let text = if global.json {
        let document = Document {
            schema: Schema::first("gdr.trace"),
            content: &report,
        };
        document::complete(&serde_json::to_string_pretty(&document)?)? + "\n"
    } else {
        report.to_string()
    };
    match &options.output {
        Some(path) => write_file(&with_pid(path), &text)?,
        None => output.bytes(text.as_bytes())?,
    }
    if let Some(unmet) = report.unmet_rdma.filter(|_| ended == Ended::Status(0)) {
        print_to_stderr(format_args!("gdr trace: {unmet}"));
        return Ok(Exit::NotMet);
    }
    Ok(match ended {
        Ended::Status(0) if !is_direct => Exit::NotMet,
        ended => Exit::of_program(ended),
    })
}

/// Returns what the processes have counted.
fn report(folder: &Path, command: &[OsString], ended: Ended) -> Result<Report, TraceError> {
    let command = command
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let unreadable = |source| TraceError::Counts {
        folder: folder.to_owned(),
        source,
    };
    let (mut processes, mut refused) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let bytes = fs::read(&path).map_err(unreadable)?;
        match ProcessTrace::parse(&bytes) {
            Ok(process) => processes.push(process),
            Err(error) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                refused.push(format!("{name}: {error}"));
            }
        }
    }
    let mut report = Report::new(command, ended, processes);
    report.unreadable = refused;
    Ok(report)
}

/// Returns a path whose `%p` is replaced by the name of this process.
pub(crate) fn with_pid(path: &Path) -> PathBuf {
    match path.to_str() {
        Some(text) => text.replace("%p", &process_name()).into(),
        None => path.to_owned(),
    }
}

/// Writes a file atomically, so that a program that reads it at the same time finds all of it.
pub(crate) fn write_file(path: &Path, text: &str) -> Result<(), TraceError> {
    WholeFile::write(path, text.as_bytes()).map_err(|source| TraceError::NotWritten {
        path: path.to_owned(),
        source,
    })
}
