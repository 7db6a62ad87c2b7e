//! The options for tables of words: as wide as the terminal and at most 100 columns, wider, or CSV.

use anyhow::Result;
use gdr_render::Table;

use crate::exit::UsageError;
use crate::global::Global;
use crate::output::Output;

/// How to lay out a table.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(super) struct Layout {
    /// Show all columns at full width
    #[arg(long)]
    wide: bool,

    /// Print all columns as comma-separated values
    #[arg(long, conflicts_with = "wide")]
    csv: bool,
}

impl Layout {
    /// Refuses two formats at once.
    pub(super) fn check(self, global: &Global) -> Result<(), UsageError> {
        if self.csv && global.json {
            let reason = "--csv and --json select different formats: leave out one of them";
            return Err(UsageError(reason.to_owned()));
        }
        Ok(())
    }

    /// Returns whether all columns are shown.
    pub(super) fn is_whole(self) -> bool {
        self.wide || self.csv
    }

    /// Returns whether the format is CSV.
    pub(super) fn is_csv(self) -> bool {
        self.csv
    }

    /// Writes a table.
    pub(super) fn show(self, table: &Table, output: &mut Output) -> Result<()> {
        let lines = match (self.csv, self.wide) {
            (true, _) => return Ok(table.csv().try_for_each(|line| output.line(line))?),
            (false, true) => table.whole_lines(),
            (false, false) => return Ok(output.table(table)?),
        };
        Ok(output.bytes(format!("{}\n", lines.join("\n")).as_bytes())?)
    }
}
