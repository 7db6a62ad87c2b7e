//! Plain text tables that fit a width, also available as CSV.

use crate::wrap::{filled, width};

/// Spaces between columns.
const GAP: usize = 2;

/// A table: its column headings and its rows.
#[derive(Debug, Default)]
pub struct Table {
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
    /// Columns whose cells are never broken.
    whole: Vec<usize>,
    /// Right-aligned columns.
    right: Vec<usize>,
}

impl Table {
    /// Returns a table without rows.
    pub fn new(heads: &[&str]) -> Self {
        Self {
            heads: heads.iter().map(|head| (*head).to_owned()).collect(),
            ..Self::default()
        }
    }

    /// Never breaks cells of these columns, which hold, for example, addresses.
    pub fn keep_whole(mut self, columns: &[usize]) -> Self {
        self.whole = columns.to_vec();
        self
    }

    /// Right-aligns these columns, which hold, for example, numbers, and never breaks their cells.
    pub fn align_right(mut self, columns: impl IntoIterator<Item = usize>) -> Self {
        self.right = columns.into_iter().collect();
        self
    }

    /// Adds a row: a cell for each column.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Returns its lines as CSV.
    pub fn csv(&self) -> impl Iterator<Item = String> {
        std::iter::once(&self.heads).chain(&self.rows).map(csv_line)
    }

    /// Returns its lines, as wide as the cells need.
    pub fn whole_lines(&self) -> Vec<String> {
        let widths: Vec<usize> = self.columns().map(|column| column.natural).collect();
        self.aligned(&widths)
    }

    /// Returns its lines within a width. Cells of the widest columns are broken between words; if that does not
    /// suffice, each row becomes a block with one line per cell.
    pub fn lines(&self, most: usize) -> Vec<String> {
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
            let least = if self.whole.contains(&at) || self.right.contains(&at) {
                natural
            } else {
                of(' ')
            };
            Widths { natural, least }
        })
    }

    /// Returns one line per row, or more if cells are broken.
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
                for (number, (cell, most)) in cells.iter().zip(widths).enumerate() {
                    let part = cell.get(at).map_or("", String::as_str);
                    let start = match self.right.contains(&number) {
                        true => column + most.saturating_sub(width(part)),
                        false => column,
                    };
                    line.push_str(&" ".repeat(start.saturating_sub(width(&line))));
                    line.push_str(part);
                    column += most + GAP;
                }
                lines.push(line.trim_end().to_owned());
            }
        }
        lines
    }

    /// Returns a block for each row, with heading and content of each nonempty cell.
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

/// A column's width without breaking cells, and its minimum width at which words still fit.
struct Widths {
    natural: usize,
    least: usize,
}

/// Formats a line of CSV, quoted as in RFC 4180.
pub fn csv_line(cells: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let quoted = |cell: &str| match cell.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    };
    let cells: Vec<String> = cells.into_iter().map(|it| quoted(it.as_ref())).collect();
    cells.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits_its_width_and_is_plain_text() {
        let mut table = Table::new(&["PCI", "words"]).keep_whole(&[0]);
        table.row(vec!["0000:19:00.0".to_owned(), "word ".repeat(60)]);
        let lines = table.lines(60);
        assert!(lines.len() > 3, "{lines:?}");
        assert!(
            lines.iter().all(|line| line.len() <= 60 && line.is_ascii()),
            "{lines:?}"
        );
        assert!(lines[1].contains("0000:19:00.0"), "{lines:?}");
    }

    #[test]
    fn a_table_that_is_too_wide_has_a_block_for_each_row() {
        let mut table = Table::new(&["PCI", "link"]).keep_whole(&[0]);
        table.row(vec!["0000:19:00.0".to_owned(), "InfiniBand".to_owned()]);
        table.row(vec!["0000:1a:00.0".to_owned(), String::new()]);
        let lines = table.lines(20);
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
    fn numbers_end_below_each_other_and_lines_of_a_cell_stay_its_own() {
        let mut table = Table::new(&["NIC", "bytes"]).align_right([1]);
        table.row(vec!["a".to_owned(), "12\n(3)".to_owned()]);
        assert_eq!(table.lines(80), ["NIC  bytes", "a       12", "       (3)"]);
    }

    #[test]
    fn a_cell_with_a_comma_is_quoted() {
        assert_eq!(csv_line(["a", "a,\"b\""]), "a,\"a,\"\"b\"\"\"");
    }
}
