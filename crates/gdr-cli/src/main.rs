//! The `gdr` command: command line and presentation. The libraries do the work.

#![forbid(unsafe_code)]

mod chart;
mod child_program;
mod cli;
mod command;
mod commands;
mod counted;
mod cpu_placement;
mod document;
mod elf;
mod environment;
mod exit;
mod figures;
mod given_options;
mod global;
mod gpu;
mod gpu_context;
mod hardware;
mod host_source;
mod interrupt;
mod json_error;
mod launch;
mod manual;
mod multicall;
mod node_args;
mod object_content;
mod object_link;
mod object_report;
mod object_spec;
mod output;
mod progress;
mod rdma_peer;
mod rdma_requirement;
mod remedy;
mod spelling;
mod units;

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use clap::error::ErrorKind;
use owo_colors::OwoColorize;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::prelude::*;

use cli::CommandLine;
use commands::version::VERSION;
use exit::{Exit, UsageError};
use global::Global;
use json_error::{JsonError, exit_status};
use multicall::{Name, Tool};
use output::Output;
use progress::print_to_stderr;

fn main() -> ExitCode {
    let given: Vec<OsString> = std::env::args_os().collect();
    anstream::ColorChoice::from(cli::color(&given)).write_global();
    let (name, parsed) = match Name::of(&given) {
        Name::Gdr => ("gdr", cli::parse(&given)),
        Name::Tool(tool) => (tool.name, tool.parse(&given)),
        Name::Unknown(name) => return unknown(&name, &given),
    };
    match parsed {
        Ok(line) => run(line),
        Err(error) => unparsed(name, &error, &given),
    }
}

fn run(line: CommandLine) -> ExitCode {
    let CommandLine {
        global,
        command,
        run,
    } = line;
    let mut output = Output::stdout();
    let result = log_to_stderr(&global).and_then(|()| run(&global, &mut output));
    let status =
        |error: &anyhow::Error| (command.status_of)(error).unwrap_or_else(|| exit_status(error));
    if let (Err(error), true) = (&result, global.json) {
        let fault = JsonError::new(error, words(error), status(error));
        // `finish` below reports a failed write.
        let _ = output.json(&fault);
    }
    let written = output.finish();
    let exit = match result {
        Ok(exit) => exit,
        Err(error) => match status(&error) {
            // Stopped because standard output is closed.
            Exit::Undecided if written.is_err() => Exit::Undecided,
            exit => {
                print_error(words(&error));
                exit
            }
        },
    };
    conclude(exit, written)
}

/// Ends the process; reports a failed write to standard output.
fn conclude(exit: Exit, written: io::Result<()>) -> ExitCode {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            print_error(format_args!("standard output: {error}"));
            Exit::Failure.into()
        }
        _ => exit.into(),
    }
}

/// Prints clap's help, version or usage error.
fn unparsed(name: &str, error: &clap::Error, given: &[OsString]) -> ExitCode {
    if error.use_stderr() {
        print_to_stderr(error.render().ansi().to_string().trim_end());
        return usage(error.render().to_string().trim_end(), given);
    }
    let mut output = Output::stdout();
    // `finish` below reports a failed write.
    let _ = match error.kind() {
        ErrorKind::DisplayVersion if name == "gdr" => output.line(format_args!("gdr {VERSION}")),
        ErrorKind::DisplayVersion => output.line(format_args!("{name} (gdr) {VERSION}")),
        _ => output.text(&error.render().ansi().to_string()),
    };
    conclude(Exit::Fine, output.finish())
}

/// Ends with a usage error, which is already on standard error.
fn usage(message: &str, given: &[OsString]) -> ExitCode {
    let mut output = Output::stdout();
    if given.iter().any(|argument| argument == "--json") {
        // `finish` below reports a failed write.
        let _ = output.json(&JsonError::usage(message.to_owned()));
    }
    conclude(Exit::Usage, output.finish())
}

fn unknown(name: &str, given: &[OsString]) -> ExitCode {
    let tools: Vec<_> = Tool::all().map(|tool| tool.name).collect();
    let message = format!(
        "gdr was called as {name}, which is not the name of a GDRCopy tool ({}); the command itself is \
         called gdr",
        tools.join(", ")
    );
    print_error(&message);
    usage(&message, given)
}

fn print_error(words: impl std::fmt::Display) {
    print_to_stderr(format_args!("{} {words}", "error:".red().bold()));
}

/// Returns the error and its causes, without causes that it already quotes, and the remedy.
fn words(error: &anyhow::Error) -> String {
    let text = error.chain().fold(String::new(), |text, cause| {
        let cause = cause.to_string();
        match text.as_str() {
            "" => cause,
            text if text.contains(&cause) => text.to_owned(),
            text => format!("{text}: {cause}"),
        }
    });
    remedy::with_remedies(text, remedy::of(error))
}

/// Logs to standard error, as set by `GDR_LOG` (a level, or targets with levels), otherwise by the number of `-v`.
fn log_to_stderr(global: &Global) -> anyhow::Result<()> {
    let level = match global.verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let variable = std::env::var_os("GDR_LOG").filter(|filter| !filter.is_empty());
    let filter: Targets = match variable {
        None => Targets::new().with_default(level),
        Some(filter) => {
            let filter = filter.to_string_lossy();
            filter.parse().map_err(|error: ParseError| {
                UsageError(format!(
                    "GDR_LOG is `{filter}`, which is not a log filter ({error}): use a level \
                     (info), or targets with levels (gdr_rdma=debug,warn)"
                ))
            })?
        }
    };
    let is_colored = anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never;
    let log = tracing_subscriber::fmt::layer()
        .with_writer(|| progress::Stderr)
        .with_ansi(is_colored)
        .with_target(false)
        .without_time();
    tracing_subscriber::registry().with(log).with(filter).init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_quoted_cause_is_not_repeated() {
        let name = "x"
            .parse::<gdr_copy::BackendKind>()
            .map_err(gdr_copy::Error::from);
        let said = words(&name.context("no context").unwrap_err());
        assert_eq!(said.matches("`x` is not a backend").count(), 1, "{said}");
        assert!(said.starts_with("no context: GDR_BACKEND: "), "{said}");
    }
}
