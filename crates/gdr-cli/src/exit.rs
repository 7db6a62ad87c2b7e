//! Exit statuses.

use std::process::ExitCode;

use gdr_trace::Ended;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Fine,
    Warning,
    Failure,
    Undecided,
    Usage,
    Input,
    /// A program run by `gdr run` or `gdr trace` succeeded but did not meet the requirement, or `gdr check` found
    /// something.
    NotMet,
    /// `gdr run`, `gdr check` or `gdr trace` itself failed.
    Launcher,
    /// The program was found but could not be started.
    NotStarted,
    /// The program was not found.
    NotFound,
    /// Status of a program that gdr ran.
    Program(u8),
}

/// Exit statuses and their meanings.
pub(crate) type Statuses = &'static [(Exit, &'static str)];

/// Status of an invalid command line, which every command has.
const USAGE: (Exit, &str) = (Exit::Usage, "usage error: the command line is wrong");

/// The meanings that the statuses of all commands share.
pub(crate) const COMMON_STATUSES: Statuses = &[
    (Exit::Fine, "success"),
    (Exit::Warning, "warning: works, but with restrictions"),
    (Exit::Failure, "failure"),
    (
        Exit::Undecided,
        "undecided: interrupted, or not enough is known",
    ),
];

/// The statuses of commands that measure.
pub(crate) const MEASUREMENT: Statuses = &[
    (Exit::Fine, "measured"),
    (Exit::Failure, "the run failed, or the GPU cannot be used"),
    (Exit::Undecided, NO_GPU_OR_STOPPED),
];

/// The statuses of commands that only print.
pub(crate) const PRINTING: Statuses = &[
    (Exit::Fine, "printed"),
    (Exit::Failure, "the output could not be written"),
];

// Meanings that several commands share.
pub(crate) const CANNOT_RUN: &str = "the program cannot be run, or cannot load gdr's library";
pub(crate) const NO_PROGRAM: &str = "the program was not found";
pub(crate) const NO_VERBS_LIBRARY: &str =
    "gdr's verbs library is missing or has a different version";
pub(crate) const NO_LIBRARY_OR_REPORT: &str =
    "gdr's library is missing or has a different version, or the report could not be written";
pub(crate) const CLOSED: &str = "interrupted: standard output was closed";
pub(crate) const STOPPED: &str = "interrupted (Ctrl-C, SIGTERM, closed output)";
pub(crate) const NO_GPU_OR_CLOSED: &str = "no GPU was found, or standard output was closed";
pub(crate) const NO_GPU_OR_STOPPED: &str =
    "no GPU was found, or the run was interrupted (Ctrl-C, SIGTERM, closed output)";
pub(crate) const INPUT: &str =
    "a capture cannot be read, or this command does not support its kind";

/// Returns the statuses and that for a usage error, in order.
pub(crate) fn with_usage(statuses: Statuses) -> Vec<(Exit, &'static str)> {
    let mut all = [statuses, &[USAGE]].concat();
    all.sort_by_key(|(exit, _)| exit.code());
    all
}

/// Formats the statuses as indented lines.
pub(crate) fn status_lines(statuses: Statuses) -> String {
    with_usage(statuses)
        .iter()
        .map(|(exit, meaning)| format!("\n  {:<4}{meaning}", exit.code()))
        .collect()
}

impl Exit {
    /// Converts a program's status; a signal becomes 128 plus its number, as in shells.
    pub(crate) const fn of_program(ended: Ended) -> Self {
        Self::Program(match ended {
            Ended::Status(status) => status as u8,
            Ended::Signal(signal) => (128 + signal) as u8,
        })
    }

    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Fine => 0,
            Self::Warning => 1,
            Self::Failure => 2,
            Self::Undecided => 3,
            // EX_USAGE of sysexits.h.
            Self::Usage => 64,
            // EX_NOINPUT.
            Self::Input => 66,
            // Statuses that programs rarely use themselves; from 125 on, as used by env(1).
            Self::NotMet => 120,
            Self::Launcher => 125,
            Self::NotStarted => 126,
            Self::NotFound => 127,
            Self::Program(status) => status,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

/// The command line, or an environment variable that replaces an option, is wrong.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// A capture cannot be read, or the command does not support its kind.
#[derive(Debug)]
pub(crate) struct InputError(pub(crate) String);

impl std::fmt::Display for InputError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InputError {}

#[cfg(test)]
mod tests {
    use crate::commands;

    #[test]
    fn the_statuses_of_a_command_are_in_order_and_begin_with_success() {
        for command in commands::ALL {
            let codes = command.statuses.iter().map(|(exit, _)| exit.code());
            let codes: Vec<_> = codes.collect();
            assert!(codes.is_sorted() && codes.starts_with(&[0]), "{codes:?}");
        }
    }
}
