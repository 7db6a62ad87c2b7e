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
    /// `gdr run` or `gdr trace` ran a program that succeeded and did not meet the requirement, or `gdr check` found
    /// something.
    NotMet,
    /// `gdr run`, `gdr check` or `gdr trace` itself failed.
    Launcher,
    /// The program was found and could not be started.
    NotStarted,
    /// The program was not found.
    NotFound,
    /// The status of a program that gdr ran.
    Program(u8),
}

/// The placeholder in a command's help that [`crate::cli::command`] replaces by its statuses.
pub(crate) const EXIT_STATUS: &str = "{exit-status}";

/// Exit statuses and their meanings.
pub(crate) type Statuses = &'static [(Exit, &'static str)];

/// The meanings that the statuses of all commands share.
pub(crate) const COMMON_STATUSES: Statuses = &[
    (Exit::Fine, "success"),
    (Exit::Warning, "a warning: it works with restrictions"),
    (Exit::Failure, "a failure"),
    (
        Exit::Undecided,
        "undecided: stopped, or too little is known",
    ),
    (Exit::Usage, "usage error: the command line is wrong"),
];

const CLOSED: &str = "stopped: standard output was closed";
const CLOSED_OR_NO_GPU: &str = "there is no GPU, or standard output was closed";
const USAGE: &str = "usage error: the command line is wrong";
const INPUT: &str = "a capture cannot be read, or this command does not support its kind";

/// The statuses of a command, by its name.
pub(crate) fn statuses(command: &str) -> Statuses {
    const MEASUREMENT: Statuses = &[
        (Exit::Fine, "measured"),
        (Exit::Failure, "it failed, or the GPU cannot be used"),
        (
            Exit::Undecided,
            "there is no GPU, or it was stopped (Ctrl-C, SIGTERM, closed output)",
        ),
        (Exit::Usage, USAGE),
    ];
    const PRINTING: Statuses = &[
        (Exit::Fine, "printed"),
        (Exit::Failure, "it could not be written"),
        (Exit::Usage, USAGE),
    ];
    match command {
        "loopback" => &[
            (Exit::Fine, "PASS, or everything was measured"),
            (Exit::Failure, "FAIL, or the run could not start"),
            (
                Exit::Undecided,
                "UNDECIDED: there is no GPU, or it was stopped (Ctrl-C, SIGTERM, closed output)",
            ),
            (Exit::Usage, USAGE),
        ],
        "perf" => &[
            (Exit::Fine, "measured, and every size keeps the thresholds"),
            (
                Exit::Failure,
                "a size misses a threshold, bytes are wrong, or the run failed",
            ),
            (Exit::Undecided, CLOSED_OR_NO_GPU),
            (Exit::Usage, USAGE),
        ],
        "mesh" => &[
            (Exit::Fine, "every direction reaches the expected rate"),
            (
                Exit::Failure,
                "a rank is slow, absent or dead, bytes are wrong, or the run failed",
            ),
            (Exit::Undecided, CLOSED_OR_NO_GPU),
            (Exit::Usage, USAGE),
        ],
        "compare" => &[
            (Exit::Fine, "measured"),
            (
                Exit::Failure,
                "a transfer failed, a result was wrong, or the run could not start",
            ),
            (
                Exit::Undecided,
                "there is no GPU, or it was stopped (Ctrl-C, SIGTERM, closed output)",
            ),
            (Exit::Usage, USAGE),
        ],
        "sanity" => &[
            (Exit::Fine, "no check failed"),
            (Exit::Failure, "a check failed, or the GPU cannot be used"),
            (
                Exit::Undecided,
                "there is no GPU, or it was stopped (Ctrl-C, SIGTERM, closed output)",
            ),
            (Exit::Usage, USAGE),
        ],
        "copybw" | "copylat" | "apiperf" | "pplat" | "tune" => MEASUREMENT,
        "plan" => &[
            (Exit::Fine, "the choice is printed"),
            (Exit::Failure, "the GPU or its profile cannot be used"),
            (
                Exit::Undecided,
                "there is no GPU, or standard output was closed",
            ),
            (Exit::Usage, USAGE),
        ],
        "info" => &[
            (Exit::Fine, "every kind of GPU memory can be mapped"),
            (Exit::Warning, "some kind cannot be mapped"),
            (Exit::Failure, "the GPU cannot be used"),
            (
                Exit::Undecided,
                "there is no GPU, or standard output was closed",
            ),
            (Exit::Usage, USAGE),
        ],
        "doctor" => &[
            (Exit::Fine, "nothing is wrong"),
            (Exit::Warning, "a warning"),
            (Exit::Failure, "a failure, or what --fail-on names"),
            (
                Exit::Undecided,
                "too little is known, or standard output was closed",
            ),
            (Exit::Usage, USAGE),
            (Exit::Input, INPUT),
        ],
        "explain" => &[
            (
                Exit::Fine,
                "a cause is known, or the log shows whether GPUDirect RDMA is in use",
            ),
            (Exit::Failure, "the text cannot be read"),
            (
                Exit::Undecided,
                "no cause is known, or standard output was closed",
            ),
            (Exit::Usage, USAGE),
            (Exit::Input, INPUT),
        ],
        "collect" => &[
            (Exit::Fine, "the archive is written"),
            (Exit::Failure, "it could not be written"),
            (Exit::Undecided, CLOSED),
            (Exit::Usage, USAGE),
        ],
        "diff" | "fleet" => &[
            (Exit::Fine, "the nodes are alike"),
            (Exit::Warning, "they differ"),
            (Exit::Failure, "it failed"),
            (Exit::Undecided, CLOSED),
            (Exit::Usage, USAGE),
            (Exit::Input, INPUT),
        ],
        "fix" => &[
            (Exit::Fine, "the script is printed, or every step is done"),
            (Exit::Failure, "a step failed or was not done"),
            (Exit::Undecided, CLOSED),
            (Exit::Usage, USAGE),
            (Exit::Input, INPUT),
        ],
        "peermem" => &[
            (Exit::Fine, "the module is loaded"),
            (
                Exit::Warning,
                "the module is not loaded, and dma-buf can be used instead",
            ),
            (Exit::Failure, "neither can be used, or the command failed"),
            (
                Exit::Undecided,
                "too little is known, or standard output was closed",
            ),
            (Exit::Usage, USAGE),
            (Exit::Input, INPUT),
        ],
        "topo" => &[
            (Exit::Fine, "shown; check: every distance agrees"),
            (Exit::Warning, "check: not every distance could be compared"),
            (Exit::Failure, "check: a distance differs"),
            (
                Exit::Undecided,
                "the capture has no PCI tree; check: nothing could be compared",
            ),
            (Exit::Usage, USAGE),
            (Exit::Input, INPUT),
        ],
        "devices" => &[
            (Exit::Fine, "listed"),
            (Exit::Warning, "a device or the library cannot be used"),
            (Exit::Failure, "it failed"),
            (Exit::Undecided, CLOSED),
            (Exit::Usage, USAGE),
            (Exit::Input, INPUT),
        ],
        "serve" => &[
            (Exit::Fine, "served until a signal (Ctrl-C, SIGTERM)"),
            (
                Exit::Failure,
                "it could not start, content could not be read or published, or the owner of a \
                 relayed object is gone",
            ),
            (Exit::Undecided, CLOSED_OR_NO_GPU),
            (Exit::Usage, USAGE),
        ],
        "ls" => &[
            (Exit::Fine, "listed"),
            (Exit::Failure, "the owner was not reached, or is gone"),
            (Exit::Undecided, "stopped (Ctrl-C, SIGTERM, closed output)"),
            (Exit::Usage, USAGE),
        ],
        "get" => &[
            (Exit::Fine, "every byte is written"),
            (
                Exit::Failure,
                "there is no such object, it is another than expected, or its owner is gone",
            ),
            (
                Exit::Undecided,
                "nothing is published, or it was stopped (Ctrl-C, SIGTERM, closed output)",
            ),
            (Exit::Usage, USAGE),
        ],
        "put" => &[
            (Exit::Fine, "published"),
            (
                Exit::Failure,
                "not permitted, of another size than the object, or its owner is gone",
            ),
            (Exit::Undecided, "stopped (Ctrl-C, SIGTERM, closed output)"),
            (Exit::Usage, USAGE),
        ],
        "watch" => &[
            (
                Exit::Fine,
                "--count epochs were seen, or a signal ended it (Ctrl-C, SIGTERM)",
            ),
            (
                Exit::Failure,
                "there is no such object, it is another than expected, or its owner is gone",
            ),
            (
                Exit::Undecided,
                "nothing newer within --idle, or standard output was closed",
            ),
            (Exit::Usage, USAGE),
        ],
        "run" => &[
            (
                Exit::Fine,
                "the environment is printed; of a program that is run, all statuses are its own",
            ),
            (Exit::Usage, USAGE),
            (
                Exit::NotMet,
                "the program succeeded, and --require-rdma is not met, or the scenario of --chaos was not applied",
            ),
            (
                Exit::Launcher,
                "gdr's verbs library is missing, or of another version",
            ),
            (
                Exit::NotStarted,
                "the program cannot be run, or not with the library",
            ),
            (Exit::NotFound, "there is no such program"),
        ],
        "chaos" => &[
            (Exit::Fine, "the program passes under every seed"),
            (
                Exit::Failure,
                "the program fails or does not end under some seed",
            ),
            (Exit::Undecided, CLOSED),
            (Exit::Usage, USAGE),
            (
                Exit::NotMet,
                "no process of the program opened a device of gdr",
            ),
            (
                Exit::Launcher,
                "gdr's verbs library is missing, or of another version",
            ),
            (
                Exit::NotStarted,
                "the program cannot be run, or not with the library",
            ),
            (Exit::NotFound, "there is no such program"),
        ],
        "check" => &[
            (
                Exit::Fine,
                "nothing was found; other statuses are the program's own, of a signal N it is 128 + N",
            ),
            (Exit::Usage, USAGE),
            (
                Exit::NotMet,
                "a rule was not kept, whatever the status of the program",
            ),
            (
                Exit::Launcher,
                "gdr's library is missing or of another version, or the report failed",
            ),
            (
                Exit::NotStarted,
                "the program cannot be run, or not with the library",
            ),
            (Exit::NotFound, "there is no such program"),
        ],
        "trace" => &[
            (
                Exit::Fine,
                "success; other statuses are the program's own, of a signal N it is 128 + N",
            ),
            (Exit::Usage, USAGE),
            (
                Exit::NotMet,
                "the program succeeded, and --require is not met",
            ),
            (
                Exit::Launcher,
                "gdr's library is missing or of another version, or the report failed",
            ),
            (
                Exit::NotStarted,
                "the program cannot be run, or not with the library",
            ),
            (Exit::NotFound, "there is no such program"),
        ],
        "env" => &[
            (
                Exit::Fine,
                "printed; of a program that is run, all statuses are its own",
            ),
            (Exit::Failure, "no port of an RDMA NIC is active"),
            (
                Exit::Undecided,
                "there is no GPU or no RDMA NIC, or too little is known",
            ),
            (Exit::Usage, USAGE),
            (Exit::Input, INPUT),
            (Exit::NotStarted, "the program cannot be run"),
            (Exit::NotFound, "there is no such program"),
        ],
        "nics" => &[
            (Exit::Fine, "listed"),
            (Exit::Failure, "it failed"),
            (
                Exit::Undecided,
                "there is no NIC, or standard output was closed",
            ),
            (Exit::Usage, USAGE),
            (Exit::Input, INPUT),
        ],
        "completions" | "man" | "help" | "version" => PRINTING,
        _ => COMMON_STATUSES,
    }
}

/// The statuses as indented lines.
pub(crate) fn status_lines(statuses: Statuses) -> String {
    statuses
        .iter()
        .map(|(exit, meaning)| format!("\n  {:<4}{meaning}", exit.code()))
        .collect()
}

impl Exit {
    /// The status of a program; of a signal it is the one that shells have.
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
            // Statuses that a program that is run rarely has itself; from 125 on, as env(1) uses them.
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

/// The command line, or an environment variable in its place, is wrong.
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
    use clap::CommandFactory;

    use super::*;
    use crate::args::Args;

    #[test]
    fn every_command_has_statuses_of_its_own() {
        for command in Args::command().get_subcommands() {
            let own = statuses(command.get_name());
            assert!(
                !std::ptr::eq(own, COMMON_STATUSES),
                "{}",
                command.get_name()
            );
            let codes: Vec<_> = own.iter().map(|(exit, _)| exit.code()).collect();
            assert!(codes.is_sorted() && codes.starts_with(&[0]), "{codes:?}");
            assert!(codes.contains(&64), "{codes:?}");
        }
    }
}
