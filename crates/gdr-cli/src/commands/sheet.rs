//! Tables of plain text, as wide as the terminal and at most 100 columns, and the same as CSV.

use anyhow::Result;

use crate::exit::UsageError;
use crate::global::Global;
use crate::output::Output;
use crate::wrap::{filled, width};

/// The space between columns.
const GAP: usize = 2;

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
        let lines = match layout.wide {
            true => self.whole_lines(),
            false => self.lines(output.width()),
        };
        Ok(output.bytes(format!("{}\n", lines.join("\n")).as_bytes())?)
    }

    /// Writes it below other lines, in the default layout.
    pub(crate) fn write(&self, output: &mut Output) -> gdr_perf::Result<()> {
        let lines = self.lines(output.width());
        output.bytes(format!("{}\n", lines.join("\n")).as_bytes())
    }

    /// Its lines, as wide as its cells.
    fn whole_lines(&self) -> Vec<String> {
        let widths: Vec<usize> = self.columns().map(|column| column.natural).collect();
        self.aligned(&widths)
    }

    /// Its lines at a width: the cells of the widest columns are broken between words; where this is not
    /// enough, each row is a block with a line for each cell.
    pub(crate) fn lines(&self, most: usize) -> Vec<String> {
        let columns: Vec<Widths> = self.columns().collect();
        let mut widths: Vec<usize> = columns.iter().map(|column| column.natural).collect();
        let gaps = GAP * columns.len().saturating_sub(1);
        while widths.iter().sum::<usize>() + gaps > most {
            let shrinkable = columns.iter().zip(&mut widths);
            let shrinkable = shrinkable.filter(|(column, width)| **width > column.least);
            match shrinkable.max_by_key(|(_, width)| **width) {
                Some((_, width)) => *width -= 1,
                None => return self.blocks(most),
            }
        }
        self.aligned(&widths)
    }

    fn columns(&self) -> impl Iterator<Item = Widths> {
        self.heads.iter().enumerate().map(|(at, head)| {
            let cells = || {
                let cells = self.rows.iter().filter_map(move |row| row.get(at));
                std::iter::once(head).chain(cells)
            };
            let of = |separator: char| {
                let parts = cells().flat_map(move |cell| cell.split(separator));
                parts.flat_map(str::lines).map(width).max().unwrap_or(0)
            };
            let natural = of('\n');
            let least = if self.whole.contains(&at) {
                natural
            } else {
                of(' ')
            };
            Widths { natural, least }
        })
    }

    /// A line for each row, or several where cells are broken.
    fn aligned(&self, widths: &[usize]) -> Vec<String> {
        let mut lines = Vec::new();
        for row in std::iter::once(&self.heads).chain(&self.rows) {
            let cells: Vec<Vec<String>> = row
                .iter()
                .zip(widths)
                .map(|(cell, width)| filled(cell, *width))
                .collect();
            let height = cells.iter().map(Vec::len).max().unwrap_or(0);
            for at in 0..height {
                let mut line = String::new();
                let mut column = 0usize;
                for (cell, most) in cells.iter().zip(widths) {
                    let part = cell.get(at).map_or("", String::as_str);
                    line.push_str(&" ".repeat(column.saturating_sub(width(&line))));
                    line.push_str(part);
                    column += most + GAP;
                }
                lines.push(line.trim_end().to_owned());
            }
        }
        lines
    }

    /// A block for each row: the head and the content of each cell that has any.
    fn blocks(&self, most: usize) -> Vec<String> {
        let heads = self.heads.iter().map(|head| width(head)).max().unwrap_or(0) + GAP;
        let mut lines = Vec::new();
        for row in &self.rows {
            if !lines.is_empty() {
                lines.push(String::new());
            }
            for (head, cell) in self
                .heads
                .iter()
                .zip(row)
                .filter(|(_, cell)| !cell.is_empty())
            {
                for (at, part) in filled(cell, most.saturating_sub(heads)).iter().enumerate() {
                    let head = if at == 0 { head } else { "" };
                    lines.push(format!("{head:heads$}{part}"));
                }
            }
        }
        lines
    }
}

/// The width of a column without broken cells, and the one at which words still fit.
struct Widths {
    natural: usize,
    least: usize,
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
    fn a_table_that_is_too_wide_has_a_block_for_each_row() {
        let mut sheet = Sheet::new(&["PCI", "link"]).keep_whole(&[0]);
        sheet.row(vec!["0000:19:00.0".to_owned(), "InfiniBand".to_owned()]);
        sheet.row(vec!["0000:1a:00.0".to_owned(), String::new()]);
        let lines = sheet.lines(20);
        assert_eq!(
            lines,
            [
                "PCI   0000:19:00.0",
                "link  InfiniBand",
                "",
                "PCI   0000:1a:00.0"
            ]
        );
    }

    #[test]
    fn a_cell_with_a_comma_is_quoted() {
        assert_eq!(quoted("a"), "a");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
