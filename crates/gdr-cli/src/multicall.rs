//! Names of GDRCopy's tools, under which gdr can be started.

use std::ffi::OsString;
use std::path::Path;

use clap::FromArgMatches;

use crate::cli::{self, CommandLine};
use crate::command::Command;
use crate::commands;
use crate::global::{Called, Global};

/// The prefix of the names of GDRCopy's tools.
const PREFIX: &str = "gdrcopy_";

/// The name that this program was started with.
pub(crate) enum Name {
    /// The gdr command, under any name other than a GDRCopy tool's.
    Gdr,
    /// One of GDRCopy's tools.
    Tool(Tool),
    /// A tool that gdr does not implement.
    Unknown(String),
}

/// One of GDRCopy's tools.
#[derive(Clone, Copy)]
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    /// The command with the same options.
    pub(crate) subcommand: &'static Command,
}

impl Name {
    /// Returns the name in the first argument.
    pub(crate) fn of(given: &[OsString]) -> Self {
        let name = given
            .first()
            .and_then(|program| Path::new(program).file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        match Tool::named(&name) {
            Some(tool) => Self::Tool(tool),
            None if name.starts_with(PREFIX) => Self::Unknown(name),
            None => Self::Gdr,
        }
    }
}

impl Tool {
    /// Returns the tool of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let mut tools = Self::all();
        tools.find(|tool| tool.name == name)
    }

    /// Returns every tool.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        commands::ALL.iter().filter_map(|subcommand| {
            let name = subcommand.tool?;
            Some(Self { name, subcommand })
        })
    }

    /// Returns the subcommand as a command of its own name.
    pub(crate) fn command(self) -> clap::Command {
        let gdr = cli::command();
        let global = gdr
            .get_arguments()
            .filter(|argument| argument.is_global_set());
        let command = self.subcommand.clap();
        let help = command.get_after_help().map(ToString::to_string);
        let called = format!("gdr {}", self.subcommand.name);
        command
            .name(self.name)
            .bin_name(self.name)
            .version(commands::version::VERSION)
            .args(global)
            .max_term_width(100)
            .after_help(help.unwrap_or_default().replace(&called, self.name))
    }

    /// Parses the command line of this tool.
    pub(crate) fn parse(self, given: &[OsString]) -> Result<CommandLine, clap::Error> {
        let mut command = self.command().color(cli::color(given).into());
        let matches = command.try_get_matches_from_mut(given)?;
        let parsed = || {
            Ok(CommandLine {
                global: Global {
                    called: Called::Gdrcopy,
                    ..Global::from_arg_matches(&matches)?
                },
                command: self.subcommand,
                run: (self.subcommand.parse)(&matches)?,
            })
        };
        parsed().map_err(|error: clap::Error| error.format(&mut command))
    }
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_tools_name_stands_for_its_subcommand() {
        let tools: Vec<_> = Tool::all().map(|tool| tool.name).collect();
        assert_eq!(tools.len(), 5, "{tools:?}");
        for tool in tools {
            let given = words(&format!("/usr/bin/{tool} --json"));
            let Name::Tool(named) = Name::of(&given) else {
                panic!("{tool}");
            };
            assert_eq!(tool, format!("gdrcopy_{}", named.subcommand.name));
            assert!(named.parse(&given).unwrap().global.json);
        }
        assert!(matches!(Name::of(&words("gdr sanity")), Name::Gdr));
        assert!(matches!(Name::of(&[]), Name::Gdr));
        assert!(
            matches!(Name::of(&words("./gdrcopy_foo")), Name::Unknown(name) if name == "gdrcopy_foo")
        );
    }

    #[test]
    fn a_tools_help_speaks_of_the_tool() {
        for tool in Tool::all() {
            tool.command().debug_assert();
            let help = tool.command().render_long_help().to_string();
            assert_contains!(help, format!("Usage: {} [OPTIONS]", tool.name));
            assert_contains!(help, "--json");
            assert!(
                !help.contains("gdr sanity") && !help.contains("gdr copy"),
                "{help}"
            );
        }
    }
}
