//! `gdr chaos`: a program under many seeds of faults.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use gdr_chaos::Scenario;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::command::{CommandSpec, Group, Run};
use crate::commands::run::{ChaosError, ChaosRun, DeviceOptions, environment, scenario};
use crate::exit::{CANNOT_RUN, CLOSED, Exit, NO_PROGRAM, NO_VERBS_LIBRARY, Statuses, UsageError};
use crate::global::Global;
use crate::interrupt::{self, FirstSignal};
use crate::launch::{LaunchError, examine, found};
use crate::output::Output;

/// Faults that any network may have at any time, and that a program should not even notice.
const DEFAULT: &str = "drop p=0.5%; duplicate p=0.5%; reorder p=0.5%; delay by=20us jitter=500us p=0.5%; late by=20us \
                       jitter=500us p=2%; burst count=4 by=200us p=10%; place order=shuffle by=200us p=2%; place \
                       order=reverse by=200us p=2%";

/// Run a program repeatedly with random faults, and report the seeds with which it fails or hangs
///
/// Works like `gdr run --chaos` with one seed after the other; the program gets no input, and its output is discarded.
/// When the program fails or hangs, gdr removes faults from the scenario one by one as long as it still does, and prints
/// the smallest scenario: pass it to `gdr run --chaos` to investigate. Without --chaos, the faults are ones that can
/// occur in any network.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Number of seeds to try
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    fuzz: u64,

    /// First seed
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    first: u64,

    /// The scenario: a list of faults, or a file with one (.toml)
    #[arg(long, value_name = "SPEC|FILE", default_value = DEFAULT, hide_default_value = true)]
    chaos: String,

    /// Seconds after which the program counts as hung, and is killed
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    deadline: u64,

    #[command(flatten)]
    devices: DeviceOptions,

    /// The program and its arguments
    #[arg(
        value_name = "PROGRAM",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true
    )]
    program: Vec<OsString>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Passed,
    /// With this status, or 128 plus the number of a signal.
    Failed(i32),
    /// Not in time.
    Hung,
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passes"),
            Self::Failed(status) => write!(f, "fails with status {status}"),
            Self::Hung => f.write_str("does not end in time"),
        }
    }
}

/// What is run.
struct Fuzzed<'a> {
    path: &'a Path,
    program: &'a [OsString],
    environment: Vec<(&'static str, OsString)>,
    deadline: Duration,
}

impl CommandSpec for Options {
    const GROUP: Group = Group::RunPrograms;
    const STATUSES: Statuses = &[
        (Exit::Fine, "the program passes under every seed"),
        (Exit::Failure, "the program fails or hangs under some seed"),
        (Exit::Undecided, CLOSED),
        (
            Exit::NotMet,
            "no process of the program opened one of gdr's devices",
        ),
        (Exit::Launcher, NO_VERBS_LIBRARY),
        (Exit::NotStarted, CANNOT_RUN),
        (Exit::NotFound, NO_PROGRAM),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr chaos --fuzz 100 -- ./job                     try 100 seeds of faults that any network may have
  gdr chaos --fuzz 20 --chaos 'hang p=1%' -- ./job  try 20 seeds with requests that never complete
  gdr chaos --fuzz 50 --deadline 5 --first 200 -- ./job";
    const STATUS_OF: fn(&anyhow::Error) -> Option<Exit> =
        |error| error.downcast_ref().map(ChaosError::exit);
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    if global.json {
        return Err(UsageError("gdr chaos does not support --json".to_owned()).into());
    }
    let scenario = scenario(&options.chaos, None)?;
    let path = found(&options.program[0])?;
    examine(&path)?;
    let fuzzed = Fuzzed {
        path: &path,
        program: &options.program,
        environment: environment(&options.devices)?,
        deadline: Duration::from_secs(options.deadline),
    };
    let stopped = interrupt::flag(FirstSignal::RequestsStop)?;
    let (mut passed, mut ran, mut devices) = (0, 0, 0);
    for seed in (options.first..).take(usize::try_from(options.fuzz).unwrap_or(usize::MAX)) {
        if stopped.load(Ordering::Relaxed) {
            break;
        }
        let seeded = Scenario {
            seed,
            ..scenario.clone()
        };
        let (ending, opened) = fuzzed.run(&seeded)?;
        ran += 1;
        devices += opened;
        if ending == Ending::Passed {
            passed += 1;
            continue;
        }
        let least = fuzzed.minimized(seeded, ending)?;
        output.line(format_args!("seed {seed}: {ending}: --chaos '{least}'"))?;
    }
    output.line(format_args!("{passed} of {ran} seeds pass"))?;
    if devices == 0 {
        return Err(ChaosError::NoDevice.into());
    }
    Ok(match (passed == ran, ran == options.fuzz) {
        (false, _) => Exit::Failure,
        (true, false) => Exit::Undecided,
        (true, true) => Exit::Fine,
    })
}

impl Fuzzed<'_> {
    /// Runs the program once; returns how it ended, and how many devices it opened.
    fn run(&self, scenario: &Scenario) -> Result<(Ending, usize)> {
        let chaos = ChaosRun::new(scenario.clone(), None)?;
        let name = &self.program[0];
        let mut program = Command::new(self.path)
            .arg0(name)
            .args(&self.program[1..])
            .envs(self.environment.iter().cloned())
            .envs(chaos.variables())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|source| LaunchError::NotStarted {
                path: self.path.to_owned(),
                source,
            })?;
        let failed = |error: Errno| LaunchError::Wait(error.into());
        let pid = i32::try_from(program.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| failed(Errno::SRCH))?;
        let process = pidfd_open(pid, PidfdFlags::empty()).map_err(failed)?;
        let mut fds = [PollFd::new(&process, PollFlags::IN)];
        let limit = Timespec {
            tv_sec: self.deadline.as_secs().cast_signed(),
            tv_nsec: 0,
        };
        let ended = match poll(&mut fds, Some(&limit)) {
            Ok(0) => false,
            // Interrupted by a signal for this process: do not wait for the program.
            Ok(_) | Err(Errno::INTR) => true,
            Err(error) => return Err(failed(error).into()),
        };
        // Also ends processes that it has left behind.
        let _ = kill_process_group(pid, Signal::KILL);
        let status = program.wait().map_err(LaunchError::Wait)?;
        let ending = match (ended, status.code()) {
            (false, _) => Ending::Hung,
            (true, Some(0)) => Ending::Passed,
            (true, Some(code)) => Ending::Failed(code),
            (true, None) => Ending::Failed(128 + status.signal().unwrap_or_default()),
        };
        Ok((ending, chaos.strikes()?.devices))
    }

    /// Returns the scenario without the rules that are not needed for this ending.
    fn minimized(&self, mut scenario: Scenario, ending: Ending) -> Result<Scenario> {
        let mut at = scenario.rules.len();
        while at > 0 && scenario.rules.len() > 1 {
            at -= 1;
            let mut fewer = scenario.clone();
            fewer.rules.remove(at);
            if self.run(&fewer)?.0 == ending {
                scenario = fewer;
            }
        }
        Ok(scenario)
    }
}
