//! Shell completions and manual pages.

use std::path::PathBuf;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;
use crate::exit::Exit;
use crate::output::Output;

/// Print the completion script of a shell
///
/// For bash: gdr completions bash > ~/.local/share/bash-completion/completions/gdr
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsOptions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Write the manual pages into a directory
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct ManOptions {
    /// Where to
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(crate) fn completions(
    options: &CompletionsOptions,
    output: &mut Output,
) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Args::command(), "gdr", &mut script);
    output.bytes(&script)?;
    Ok(Exit::Fine)
}

pub(crate) fn man(options: &ManOptions) -> anyhow::Result<Exit> {
    let directory = &options.directory;
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Args::command(), directory))
        .with_context(|| format!("manual pages cannot be written to {}", directory.display()))?;
    Ok(Exit::Fine)
}
