//! Options given on the command line.

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};
use gdr_perf::{ChosenPart, Expected};

/// Arguments that were given on the command line. Must be the first field of a command's options, because each field
/// takes its value out of what was parsed.
#[derive(Clone, Debug, Default)]
pub(crate) struct GivenOptions(Vec<String>);

impl GivenOptions {
    /// Returns what a listening end requires of its peer's choice: those `parts` that it was given itself. Each is
    /// listed with the argument that sets it.
    pub(crate) fn expected<T>(
        &self,
        ours: T,
        parts: &[(&'static str, ChosenPart<T>)],
    ) -> Option<Expected<T>>
    where
        ChosenPart<T>: Clone,
    {
        let is_given = |id: &str| self.0.iter().any(|given| given == id);
        let given = parts.iter().filter(|(id, _)| is_given(id));
        let parts: Vec<_> = given.map(|(_, part)| part.clone()).collect();
        (!parts.is_empty()).then(|| Expected::new(ours, parts))
    }
}

impl clap::FromArgMatches for GivenOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_given =
            |id: &&clap::Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
        let given = matches.ids().filter(is_given);
        Ok(Self(given.map(|id| id.as_str().to_owned()).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for GivenOptions {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}
