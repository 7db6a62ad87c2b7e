//! Tables of plain text of up to 100 columns, and the same as CSV.

use anyhow::Result;
use comfy_table::presets::NOTHING;
use comfy_table::{ColumnConstraint, ContentArrangement, Table};

use crate::exit::UsageError;
use crate::global::Global;
use crate::output::Output;

/// The default width of a table.
const WIDTH: u16 = 100;

/// The width of a table: [`WIDTH`], or that of a narrower terminal.
pub(super) fn terminal_width() -> u16 {
    let terminal = Table::new().width();
    terminal.map_or(WIDTH, |width| width.min(WIDTH))
}

/// How to lay out a table.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(super) struct Layout {
    /// Show every column at its full width
    #[arg(long)]
    wide: bool,

    /// Print comma-separated values, every column
    #[arg(long, conflicts_with = "wide")]
    csv: bool,
}

impl Layout {
    /// Refuses two formats at once.
    pub(super) fn check(self, global: &Global) -> Result<(), UsageError> {
        if self.csv && global.json {
            let reason = "--csv and --json are two formats: leave one out";
            return Err(UsageError(reason.to_owned()));
        }
        Ok(())
    }

    /// Whether all columns are shown.
    pub(super) fn is_whole(self) -> bool {
        self.wide || self.csv
    }

    /// Whether the format is CSV.
    pub(super) fn is_csv(self) -> bool {
        self.csv
    }
}

/// A table: the heads of its columns, and its rows.
#[derive(Debug, Default)]
pub(crate) struct Sheet {
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
    /// Columns whose cells stay on one line.
    whole: Vec<usize>,
}

impl Sheet {
    pub(crate) fn new(heads: &[&str]) -> Self {
        Self {
            heads: heads.iter().map(|head| (*head).to_owned()).collect(),
            ..Self::default()
        }
    }

    /// Keeps the cells of these columns on one line, such as addresses.
    pub(crate) fn keep_whole(mut self, columns: &[usize]) -> Self {
        self.whole = columns.to_vec();
        self
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Writes it.
    pub(super) fn show(&self, layout: Layout, output: &mut Output) -> Result<()> {
        if layout.csv {
            for row in std::iter::once(&self.heads).chain(&self.rows) {
                let cells: Vec<String> = row.iter().map(|cell| quoted(cell)).collect();
                output.line(cells.join(","))?;
            }
            return Ok(());
        }
        let width = if layout.wide {
            None
        } else {
            Some(terminal_width())
        };
        output.line(self.table(width).trim_fmt())?;
        Ok(())
    }

    /// The table; without a width, as wide as its cells.
    fn table(&self, width: Option<u16>) -> Table {
        let mut table = Table::new();
        table.load_style(NOTHING).set_header(&self.heads);
        match width {
            Some(width) => table
                .set_content_arrangement(ContentArrangement::Dynamic)
                .set_width(width),
            None => table.set_content_arrangement(ContentArrangement::Disabled),
        };
        for row in &self.rows {
            table.add_row(row);
        }
        for column in &self.whole {
            if let Some(column) = table.column_mut(*column) {
                column.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
        table
    }

    /// Its lines at a width.
    #[cfg(test)]
    pub(super) fn lines(&self, width: u16) -> Vec<String> {
        let text = self.table(Some(width)).trim_fmt();
        text.lines().map(str::to_owned).collect()
    }
}

/// A cell as RFC 4180 has it.
fn quoted(cell: &str) -> String {
    if cell.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits_its_width_and_is_plain_text() {
        let mut sheet = Sheet::new(&["PCI", "words"]).keep_whole(&[0]);
        sheet.row(vec!["0000:19:00.0".to_owned(), "word ".repeat(60)]);
        let lines = sheet.lines(60);
        assert!(lines.len() > 3, "{lines:?}");
        assert!(
            lines.iter().all(|line| line.len() <= 60 && line.is_ascii()),
            "{lines:?}"
        );
        assert!(lines[1].contains("0000:19:00.0"), "{lines:?}");
    }

    #[test]
    fn a_cell_with_a_comma_is_quoted() {
        assert_eq!(quoted("a"), "a");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
