//! The clap command: every command with its exit statuses, and gdr's help in groups.

use std::ffi::{OsStr, OsString};
use std::io;

use clap::builder::StyledStr;
use clap::error::ErrorKind;
use clap::{Command, CommandFactory, FromArgMatches, ValueEnum};

use crate::args::Args;
use crate::commands::perf::perftest;
use crate::exit::{COMMON_STATUSES, EXIT_STATUS, Statuses, status_lines, statuses};
use crate::global::{COMMON, Color};
use crate::output::WIDTH;
use crate::wrap;

/// The commands in the groups that `gdr --help` shows them in.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Prove", &["loopback", "sanity"]),
    (
        "Diagnose",
        &[
            "doctor", "explain", "topo", "nics", "devices", "info", "collect", "diff", "fleet",
        ],
    ),
    (
        "Measure",
        &[
            "perf", "compare", "mesh", "copybw", "copylat", "apiperf", "pplat", "plan", "tune",
        ],
    ),
    ("Share memory", &["serve", "ls", "get", "put", "watch"]),
    (
        "Run programs",
        &["run", "net", "check", "chaos", "trace", "env"],
    ),
    ("Manage", &["fix", "peermem"]),
    ("About gdr", &["help", "version", "completions", "man"]),
];

/// Where the project is.
const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");

/// The whole command.
pub(crate) fn command() -> Command {
    let mut command = Args::command();
    let names: Vec<String> = command
        .get_subcommands()
        .map(|command| command.get_name().to_owned())
        .collect();
    for name in names {
        command = command.mut_subcommand(&name, |sub| with_statuses(sub, statuses(&name)));
    }
    let template = template(&command);
    command.help_template(template).after_help(format!(
        "`gdr help COMMAND` has the options, examples and statuses of a command.\n\
         A fault of gdr: {REPOSITORY}/issues, with the file of `gdr collect --redact`.\n\nExit \
         status:{}",
        status_lines(COMMON_STATUSES)
    ))
}

/// Parses the command line.
pub(crate) fn parse(given: &[OsString]) -> Result<Args, clap::Error> {
    let mut command = command().color(color(given).into());
    let matches = command.try_get_matches_from_mut(given).map_err(|error| {
        let mut named = given
            .iter()
            .filter_map(|name| command.find_subcommand(name));
        let is_perf = named.next().is_some_and(|first| first.get_name() == "perf");
        match perftest::instead(&error).filter(|_| is_perf) {
            Some(words) => command.error(ErrorKind::UnknownArgument, words),
            None => error,
        }
    })?;
    Args::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// The value of `--color`, read before the rest of the command line, whose errors and help are
/// colored too. The last one counts.
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

fn with_statuses(command: Command, statuses: Statuses) -> Command {
    let names: Vec<String> = command
        .get_subcommands()
        .map(|command| command.get_name().to_owned())
        .collect();
    let command = names.iter().fold(command, |command, name| {
        command.mut_subcommand(name, |sub| with_statuses(sub, statuses))
    });
    let lines = format!("Exit status:{}", status_lines(statuses));
    let help = command.get_after_help().map(ToString::to_string);
    command.after_help(match help {
        Some(help) if help.contains(EXIT_STATUS) => help.replace(EXIT_STATUS, &lines),
        Some(help) => format!("{help}\n\n{lines}"),
        None => lines,
    })
}

/// gdr's help template: clap's with the commands in groups.
fn template(command: &Command) -> StyledStr {
    let styles = command.get_styles();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let groups: String = GROUPS
        .iter()
        .map(|(group, names)| {
            let lines: String = names
                .iter()
                .filter_map(|name| command.find_subcommand(name))
                .map(|command| {
                    let about = command.get_about().map(ToString::to_string);
                    let name = command.get_name();
                    let about = wrapped(&about.unwrap_or_default());
                    format!("  {literal}{name:<12}{literal:#} {about}\n")
                })
                .collect();
            format!("{header}{group}:{header:#}\n{lines}\n")
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
    let columns = wrap::columns(io::stdout()).map_or(WIDTH, |columns| columns.min(WIDTH));
    let lines = wrap::filled(text, columns.saturating_sub(BESIDE));
    lines.join(&format!("\n{:BESIDE$}", ""))
}

#[cfg(test)]
mod tests {
    use snapshot::assert_snapshot;

    use super::*;

    fn given(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn every_command_is_in_one_group() {
        let grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| *names).collect();
        for command in command().get_subcommands() {
            let name = command.get_name();
            let times = grouped.iter().filter(|grouped| ***grouped == name).count();
            assert_eq!(times, 1, "{name}");
        }
        assert_eq!(grouped.len(), command().get_subcommands().count());
    }

    #[test]
    fn no_help_has_a_gap_where_the_statuses_belong() {
        fn look(command: &mut Command) {
            let help = command.render_long_help().to_string();
            assert!(!help.contains(EXIT_STATUS), "{help}");
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

    /// Every command with its statuses, arguments and options, below the name of its parent.
    fn tree(command: &Command, parent: &str, statuses: Statuses, text: &mut String) {
        let name = format!("{parent}{}", command.get_name());
        let codes: Vec<_> = statuses
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
            let own = if parent.is_empty() {
                super::statuses(sub.get_name())
            } else {
                statuses
            };
            tree(sub, &format!("{name} "), own, text);
        }
    }

    /// The names of an argument, the values that it has a list of, and its default.
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
            let subcommand = crate::multicall::Tool::subcommand_of(tool.name);
            let statuses = statuses(subcommand.unwrap_or_default());
            tree(&command, "", statuses, &mut text);
        }
        assert_snapshot!("commands.txt", &text);
    }
}
