//! The `gdr` command: arguments and presentation. What it does is in `gdr-perf` and below.

mod args;
mod commands;
mod exit;
mod fault;
mod live;
mod machine;
mod multicall;
mod node;
mod numbers;
mod output;
mod progress;

use std::process::ExitCode;

use clap::Parser;
use owo_colors::OwoColorize;
use tracing_subscriber::EnvFilter;

use args::{Args, Color};
use exit::Exit;
use fault::Fault;
use output::Output;

fn main() -> ExitCode {
    let args = match Args::try_parse_from(multicall::arguments(std::env::args_os().collect())) {
        Ok(args) => args,
        Err(error) => {
            // A closed stderr or stdout leaves nobody to tell.
            let _ = error.print();
            if !error.use_stderr() {
                return Exit::Fine.into();
            }
            if std::env::args_os().any(|argument| argument == "--json") {
                let mut output = Output::stdout();
                let fault = Fault::usage(error.render().to_string().trim_end().to_owned());
                let _ = output.json(&fault);
                let _ = output.finish();
            }
            return Exit::Usage.into();
        }
    };
    match args.global.color {
        Color::Auto => anstream::ColorChoice::Auto,
        Color::Always => anstream::ColorChoice::Always,
        Color::Never => anstream::ColorChoice::Never,
    }
    .write_global();
    log_to_stderr(args.global.verbose);

    let mut output = Output::stdout();
    let result = commands::run(&args, &mut output);
    if let (Err(error), true) = (&result, args.global.json) {
        let fault = Fault::new(error, words(error), Exit::of(error));
        // That nobody reads it is found out below.
        let _ = output.json(&fault);
    }
    let written = output.finish();
    let exit = match result {
        Ok(exit) => exit,
        Err(error) => match Exit::of(&error) {
            // The reader has gone; what it did not read is no news.
            Exit::Undecided if closed(&written) => return Exit::Undecided.into(),
            exit => {
                anstream::eprintln!("{} {}", "error:".red().bold(), words(&error));
                exit
            }
        },
    };
    match written {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            anstream::eprintln!("{} standard output: {error}", "error:".red().bold());
            Exit::Failure.into()
        }
        _ => exit.into(),
    }
}

/// The error and its causes, but for those that it quotes already.
fn words(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |said, cause| {
        let cause = cause.to_string();
        match said.as_str() {
            "" => cause,
            said if said.contains(&cause) => said.to_owned(),
            said => format!("{said}: {cause}"),
        }
    })
}

fn closed(written: &std::io::Result<()>) -> bool {
    matches!(written, Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Logs by `GDR_LOG`, whose syntax is that of `RUST_LOG`, else by how often `-v` was given.
fn log_to_stderr(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_env("GDR_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    log.with_ansi(anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never)
        .with_target(false)
        .without_time()
        .init();
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_cause_that_is_quoted_already_is_not_said_twice() {
        let name = "x"
            .parse::<gdr_copy::BackendKind>()
            .map_err(gdr_copy::Error::from);
        let said = words(&name.context("no context").unwrap_err());
        assert_eq!(said.matches("no backend `x`").count(), 1, "{said}");
        assert!(said.starts_with("no context: GDR_BACKEND: "), "{said}");
    }
}
