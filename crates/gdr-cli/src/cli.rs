//! Command line: gdr with its commands, and its grouped help.

use std::ffi::{OsStr, OsString};
use std::io;

use clap::builder::StyledStr;
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, ValueEnum};

use crate::command::{Command, Group, Invocation};
use crate::commands;
use crate::exit::{COMMON_STATUSES, status_lines};
use crate::global::{COMMON, Color, Global};
use crate::output::{WIDTH, terminal_columns};

/// GPUDirect RDMA and CPU access to GPU memory: prove that they work, measure them, and find out why
/// they are off or slow
#[derive(Debug, Parser)]
#[command(
    name = "gdr",
    version = commands::version::VERSION,
    propagate_version = true,
    disable_help_subcommand = true,
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
struct Gdr {
    #[command(flatten)]
    global: Global,
}

/// A command line.
pub(crate) struct CommandLine {
    pub(crate) global: Global,
    pub(crate) command: &'static Command,
    pub(crate) run: Invocation,
}

/// The project's repository.
const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");

/// Returns the whole command.
pub(crate) fn command() -> clap::Command {
    let command = Gdr::command().subcommands(commands::ALL.iter().map(Command::clap));
    let template = template(&command);
    command.help_template(template).after_help(format!(
        "`gdr help COMMAND` shows a command's options, examples and exit statuses.\n\
         Report bugs at {REPOSITORY}/issues, and attach the output of `gdr collect --redact`.\n\nExit \
         status:{}",
        status_lines(COMMON_STATUSES)
    ))
}

/// Parses the command line.
pub(crate) fn parse(given: &[OsString]) -> Result<CommandLine, clap::Error> {
    let mut gdr = command().color(color(given).into());
    let matches = gdr.try_get_matches_from_mut(given).map_err(|error| {
        let named = given.iter().find_map(|name| Command::named(name.to_str()?));
        match named.and_then(|command| (command.instead)(&error)) {
            Some(words) => gdr.error(ErrorKind::UnknownArgument, words),
            None => error,
        }
    })?;
    let parsed = || {
        let (command, below) = matches
            .subcommand()
            .and_then(|(name, below)| Some((Command::named(name)?, below)))
            .ok_or_else(|| clap::Error::new(ErrorKind::MissingSubcommand))?;
        Ok(CommandLine {
            global: Global::from_arg_matches(&matches)?,
            command,
            run: (command.parse)(below)?,
        })
    };
    parsed().map_err(|error: clap::Error| error.format(&mut gdr))
}

/// Returns the value of `--color`, read before the rest of the command line because errors and help are colored too.
/// The last occurrence counts.
pub(crate) fn color(given: &[OsString]) -> Color {
    let options = given.iter().take_while(|argument| *argument != "--");
    let mut chosen = Color::Auto;
    let mut is_value = false;
    for argument in options {
        let text = argument.to_string_lossy();
        let value = match text.strip_prefix("--color=") {
            Some(value) => Some(value),
            None => is_value.then_some(&*text),
        };
        if let Some(color) = value.and_then(|value| Color::from_str(value, true).ok()) {
            chosen = color;
        }
        is_value = argument == OsStr::new("--color");
    }
    chosen
}

impl Command {
    /// Returns the command with this name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        commands::ALL.iter().find(|command| command.name == name)
    }

    /// Builds the clap command, with its examples and exit statuses.
    pub(crate) fn clap(&self) -> clap::Command {
        let statuses = format!("Exit status:{}", status_lines(self.statuses));
        let command = (self.with_options)(clap::Command::new(self.name));
        let command = command.mut_subcommands(|below| below.after_help(statuses.clone()));
        command.after_help(match self.examples {
            "" => statuses,
            examples => format!("{examples}\n\n{statuses}"),
        })
    }
}

/// Builds gdr's help template: clap's own, with the commands in groups.
fn template(gdr: &clap::Command) -> StyledStr {
    let styles = gdr.get_styles();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let line = |command: &Command| {
        let name = command.name;
        let about = gdr.find_subcommand(name).and_then(clap::Command::get_about);
        let about = wrapped(&about.map(ToString::to_string).unwrap_or_default());
        format!("  {literal}{name:<12}{literal:#} {about}\n")
    };
    let groups: String = Group::ALL
        .into_iter()
        .map(|group| {
            let commands = commands::ALL.iter();
            let lines: String = commands
                .filter(|command| command.group == group)
                .map(line)
                .collect();
            format!("{header}{}:{header:#}\n{lines}\n", group.title())
        })
        .collect();
    format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{header}{COMMON}:{header:#}\n\
         {{options}}{{after-help}}"
    )
    .into()
}

/// Wraps text to the width beside the names of commands.
fn wrapped(text: &str) -> String {
    const BESIDE: usize = 15;
    let columns = terminal_columns(io::stdout()).map_or(WIDTH, |columns| columns.min(WIDTH));
    let lines = gdr_render::wrap::filled(text, columns.saturating_sub(BESIDE));
    lines.join(&format!("\n{:BESIDE$}", ""))
}

#[cfg(test)]
mod tests {
    use snapshot::assert_snapshot;

    use super::*;
    use crate::exit::{Statuses, with_usage};

    fn given(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example_of_itself() {
        for command in commands::ALL {
            let is_about_gdr = command.group == Group::About;
            let (_, examples) = command
                .examples
                .split_once("Examples:\n")
                .unwrap_or_default();
            let called = format!("gdr {}", command.name);
            assert!(is_about_gdr || examples.contains(&called), "{called}");
        }
    }

    #[test]
    fn every_help_has_the_statuses_once() {
        fn look(command: &mut clap::Command) {
            let help = command.render_long_help().to_string();
            assert_eq!(help.matches("Exit status:").count(), 1, "{help}");
            command.get_subcommands_mut().for_each(look);
        }
        look(&mut command());
    }

    #[test]
    fn the_last_color_before_the_end_of_the_options_counts() {
        for (line, color) in [
            ("gdr info", Color::Auto),
            ("gdr --color never info", Color::Never),
            ("gdr info --color=always", Color::Always),
            ("gdr --color=never info --color always", Color::Always),
            ("gdr --color sometimes", Color::Auto),
            ("gdr explain -- --color=always", Color::Auto),
        ] {
            assert_eq!(super::color(&given(line)), color, "{line}");
        }
    }

    /// Prints every command with its statuses, arguments and options, below the name of its parent.
    fn tree(command: &clap::Command, parent: &str, statuses: Statuses, text: &mut String) {
        let name = format!("{parent}{}", command.get_name());
        let codes: Vec<_> = with_usage(statuses)
            .iter()
            .map(|(exit, _)| exit.code().to_string())
            .collect();
        text.push_str(&format!("{name}: exits with {}\n", codes.join(", ")));
        for alias in command.get_all_aliases() {
            text.push_str(&format!("  also {alias}\n"));
        }
        // Every command has them.
        let common = |argument: &&clap::Arg| {
            argument.is_global_set() || ["help", "version"].contains(&argument.get_id().as_str())
        };
        for argument in command.get_arguments().filter(|it| !common(it)) {
            text.push_str(&format!("  {}\n", described(argument)));
        }
        for sub in command.get_subcommands() {
            let own = match Command::named(sub.get_name()) {
                Some(own) if parent.is_empty() => own.statuses,
                _ => statuses,
            };
            tree(sub, &format!("{name} "), own, text);
        }
    }

    /// Returns the names of an argument, its possible values if it has a list of them, and its default.
    fn described(argument: &clap::Arg) -> String {
        let mut names: Vec<String> = Vec::new();
        names.extend(argument.get_short().map(|short| format!("-{short}")));
        let shorts = argument.get_all_short_aliases().unwrap_or_default();
        names.extend(shorts.into_iter().map(|short| format!("-{short}")));
        names.extend(argument.get_long().map(|long| format!("--{long}")));
        let longs = argument.get_all_aliases().unwrap_or_default();
        names.extend(longs.into_iter().map(|long| format!("--{long}")));
        if names.is_empty() {
            let place = argument.get_index().unwrap_or_default();
            let many = argument.get_num_args().is_some_and(|n| n.max_values() > 1);
            names.push(format!("<{place}>{}", if many { "..." } else { "" }));
        }
        let values: Vec<_> = argument
            .get_possible_values()
            .iter()
            .map(|value| value.get_name().to_owned())
            .collect();
        let default: Vec<_> = argument
            .get_default_values()
            .iter()
            .map(|value| value.to_string_lossy())
            .collect();
        let takes = argument.get_action().takes_values();
        let mut text = names.join(", ");
        if takes && !argument.is_positional() {
            text.push_str(" VALUE");
        }
        if takes && !values.is_empty() {
            text.push_str(&format!(" of {}", values.join("|")));
        }
        if takes && !default.is_empty() {
            text.push_str(&format!(" = {}", default.join(" ")));
        }
        if argument.is_required_set() {
            text.push_str(" (required)");
        }
        if argument.is_hide_set() {
            text.push_str(" (hidden)");
        }
        text
    }

    #[test]
    fn commands_options_and_statuses_stay() {
        let mut gdr = command();
        gdr.build();
        let mut text = String::from("every command\n");
        for argument in gdr.get_arguments() {
            text.push_str(&format!("  {}\n", described(argument)));
        }
        tree(&gdr, "", COMMON_STATUSES, &mut text);
        for tool in crate::multicall::Tool::all() {
            let mut command = tool.command();
            command.build();
            tree(&command, "", tool.subcommand.statuses, &mut text);
        }
        assert_snapshot!("commands.txt", &text);
    }
}
