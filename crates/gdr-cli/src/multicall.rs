//! The names of GDRCopy's tools, under which gdr can be started.

use std::ffi::OsString;
use std::path::Path;

use clap::{Command, FromArgMatches};

use crate::args::{self, Args};
use crate::cli;
use crate::commands::{apiperf, copybw, copylat, pplat, sanity};
use crate::global::{Called, Global};

/// GDRCopy's tools, and the subcommands with the same options.
pub(crate) const TOOLS: [(&str, &str); 5] = [
    ("gdrcopy_sanity", "sanity"),
    ("gdrcopy_copybw", "copybw"),
    ("gdrcopy_copylat", "copylat"),
    ("gdrcopy_apiperf", "apiperf"),
    ("gdrcopy_pplat", "pplat"),
];

/// The prefix of the names of GDRCopy's tools.
const PREFIX: &str = "gdrcopy_";

/// The name that this program was started by.
pub(crate) enum Name {
    /// The gdr command, under any name except a GDRCopy tool's.
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
    subcommand: &'static str,
}

impl Name {
    /// The name in the first argument.
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
    fn named(name: &str) -> Option<Self> {
        let mut tools = Self::all();
        tools.find(|tool| tool.name == name)
    }

    /// The subcommand for the tool of this name.
    pub(crate) fn subcommand_of(name: &str) -> Option<&'static str> {
        Self::named(name).map(|tool| tool.subcommand)
    }

    /// Every tool.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        TOOLS
            .into_iter()
            .map(|(name, subcommand)| Self { name, subcommand })
    }

    /// The subcommand as a command of its own name.
    pub(crate) fn command(self) -> Command {
        let gdr = cli::command();
        let global = gdr
            .get_arguments()
            .filter(|argument| argument.is_global_set())
            .cloned();
        let global: Vec<_> = global.collect();
        let own = gdr.find_subcommand(self.subcommand).cloned();
        let command = own.unwrap_or_else(|| Command::new(self.subcommand));
        let help = command.get_after_help().map(ToString::to_string);
        let gdr = format!("gdr {}", self.subcommand);
        command
            .name(self.name)
            .bin_name(self.name)
            .version(crate::commands::version::VERSION)
            .args(global)
            .max_term_width(100)
            .after_help(help.unwrap_or_default().replace(&gdr, self.name))
    }

    /// Parses the command line of this tool.
    pub(crate) fn parse(self, given: &[OsString]) -> Result<Args, clap::Error> {
        let mut command = self.command().color(cli::color(given).into());
        let matches = command.try_get_matches_from_mut(given)?;
        let options = match self.subcommand {
            "sanity" => sanity::Options::from_arg_matches(&matches).map(args::Command::Sanity),
            "copybw" => copybw::Options::from_arg_matches(&matches).map(args::Command::Copybw),
            "copylat" => copylat::Options::from_arg_matches(&matches).map(args::Command::Copylat),
            "apiperf" => apiperf::Options::from_arg_matches(&matches).map(args::Command::Apiperf),
            _ => pplat::Options::from_arg_matches(&matches).map(args::Command::Pplat),
        };
        options
            .and_then(|command| {
                let global = Global {
                    called: Called::Gdrcopy,
                    ..Global::from_arg_matches(&matches)?
                };
                Ok(Args { global, command })
            })
            .map_err(|error| error.format(&mut command))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_tools_name_stands_for_its_subcommand() {
        for (tool, subcommand) in TOOLS {
            let given = words(&format!("/usr/bin/{tool} --json"));
            let Name::Tool(named) = Name::of(&given) else {
                panic!("{tool}");
            };
            let parsed = named.parse(&given).unwrap();
            assert!(parsed.global.json);
            let variant = format!("{:?}", parsed.command).to_ascii_lowercase();
            assert!(variant.starts_with(subcommand), "{tool}: {variant}");
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
            assert!(
                help.contains(&format!("Usage: {} [OPTIONS]", tool.name)),
                "{help}"
            );
            assert!(help.contains("--json"), "{help}");
            assert!(
                !help.contains("gdr sanity") && !help.contains("gdr copy"),
                "{help}"
            );
        }
    }
}
