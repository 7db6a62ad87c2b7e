//! The options that every command takes.

use clap::{ArgAction, Args, ValueEnum};

/// What every subcommand takes.
#[derive(Clone, Debug, Args)]
pub(crate) struct Global {
    /// Print one JSON document instead of text
    #[arg(long, global = true, help_heading = COMMON)]
    pub(crate) json: bool,

    /// When to use color; NO_COLOR is respected
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "WHEN",
        default_value_t = Color::Auto,
        help_heading = COMMON
    )]
    pub(crate) color: Color,

    /// Print more to standard error; -vv and -vvv also print the log (see also GDR_LOG)
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = COMMON)]
    pub(crate) verbose: u8,

    /// Name that this program was started with.
    #[arg(skip)]
    pub(crate) called: Called,
}

/// Name that gdr was started with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Called {
    /// Its own.
    #[default]
    Gdr,
    /// Name of a GDRCopy tool, whose output it then prints.
    Gdrcopy,
}

/// Heading of the options of every command.
pub(crate) const COMMON: &str = "Common options";

/// When to color.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

impl From<Color> for clap::ColorChoice {
    fn from(color: Color) -> Self {
        match color {
            Color::Auto => Self::Auto,
            Color::Always => Self::Always,
            Color::Never => Self::Never,
        }
    }
}

impl From<Color> for anstream::ColorChoice {
    fn from(color: Color) -> Self {
        match color {
            Color::Auto => Self::Auto,
            Color::Always => Self::Always,
            Color::Never => Self::Never,
        }
    }
}
