//! The command line.

use clap::{ArgAction, Parser, Subcommand, ValueEnum};
use gdr_copy::BackendKind;

use crate::commands;
use crate::exit::EXIT_STATUS;

/// RDMA into GPU memory, and GPU memory as CPU memory: prove it and measure it.
#[derive(Debug, Parser)]
#[command(
    name = "gdr",
    version,
    about,
    propagate_version = true,
    max_term_width = 100,
    after_help = EXIT_STATUS
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every subcommand takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Global {
    /// GPU to use, counted as CUDA_VISIBLE_DEVICES leaves them
    #[arg(
        short = 'd',
        long,
        global = true,
        value_name = "N",
        default_value_t = 0
    )]
    pub(crate) gpu: u32,

    /// How to map: auto, gdrdrv, dmabuf, rm or sim [default: GDR_BACKEND, else auto]
    #[arg(long, global = true, value_name = "NAME", value_parser = Backend::parse)]
    pub(crate) backend: Option<Backend>,

    /// Print one JSON document instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// When to color; NO_COLOR is respected
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = Color::Auto)]
    pub(crate) color: Color,

    /// Tell more on standard error; twice and three times for the log (see also GDR_LOG)
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// A choice of backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Auto,
    Named(BackendKind),
}

impl Backend {
    fn parse(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Self::Auto);
        }
        text.parse()
            .map(Self::Named)
            .map_err(|error: gdr_copy::ParseBackendError| error.to_string())
    }
}

/// When to color.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Loopback(commands::loopback::Options),
    Doctor(commands::doctor::Options),
    Explain(commands::explain::Options),
    Collect(commands::collect::Options),
    Diff(commands::diff::Options),
    Fleet(commands::fleet::Options),
    Fix(commands::fix::Options),
    Peermem(commands::peermem::Options),
    Topo(commands::topo::Options),
    Devices(commands::devices::Options),
    Nics(commands::nics::Options),
    Sanity(commands::sanity::Options),
    Copybw(commands::copybw::Options),
    Copylat(commands::copylat::Options),
    Apiperf(commands::apiperf::Options),
    Pplat(commands::pplat::Options),
    Info(commands::info::Options),
    Completions(commands::generate::CompletionsOptions),
    Man(commands::generate::ManOptions),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn every_backend_can_be_named() {
        assert_eq!(Backend::parse("auto"), Ok(Backend::Auto));
        assert_eq!(Backend::parse("RM"), Ok(Backend::Named(BackendKind::Rm)));
        assert!(
            Backend::parse("cuda")
                .unwrap_err()
                .contains("gdrdrv, dmabuf, rm or sim")
        );
    }
}
