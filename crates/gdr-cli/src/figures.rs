//! Tables of measured figures: text of up to 100 columns, wider text with every column, or CSV.

use std::fmt::Display;

use gdr_perf::stats::Summary;

use crate::output::Output;
use crate::units::figure;

/// The options for tables of figures.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct FigureOptions {
    /// Show every column, however wide the table is
    #[arg(long, conflicts_with_all = ["csv", "json"])]
    wide: bool,

    /// Print only the figures, as CSV with every column and a header line
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
}

impl FigureOptions {
    /// CSV.
    #[cfg(test)]
    pub(crate) fn csv() -> Self {
        Self {
            csv: true,
            ..Self::default()
        }
    }

    /// Returns the same layout, wide if `all_columns` says so.
    pub(crate) fn or_wide(self, all_columns: bool) -> Self {
        Self {
            wide: self.wide || all_columns,
            ..self
        }
    }

    /// Returns whether any of them is given.
    pub(crate) fn is_given(self) -> bool {
        self.wide || self.csv
    }

    fn layout(self) -> Layout {
        match (self.wide, self.csv) {
            (_, true) => Layout::Csv,
            (true, false) => Layout::Wide,
            (false, false) => Layout::Narrow,
        }
    }
}

/// The layout of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Narrow,
    Wide,
    Csv,
}

/// A column: its title, its name in CSV, and its width.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    title: &'static str,
    name: &'static str,
    width: usize,
    shown: Shown,
}

/// The layouts that show a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Everywhere,
    NotNarrow,
    InCsv,
}

impl Column {
    /// Returns a column of every layout.
    pub(crate) const fn new(title: &'static str, name: &'static str, width: usize) -> Self {
        Self {
            title,
            name,
            width,
            shown: Shown::Everywhere,
        }
    }

    /// Returns a column that narrow tables leave out.
    pub(crate) const fn wide(title: &'static str, name: &'static str, width: usize) -> Self {
        Self {
            shown: Shown::NotNarrow,
            ..Self::new(title, name, width)
        }
    }

    /// Returns a column of CSV only; text prints its value elsewhere.
    pub(crate) const fn csv(name: &'static str) -> Self {
        Self {
            shown: Shown::InCsv,
            ..Self::new("", name, 0)
        }
    }
}

/// The value of a cell.
pub(crate) enum Cell {
    Text(String),
    Count(u64),
    Figure(f64),
    /// A ratio; `None` without a baseline.
    Ratio(Option<f64>),
}

impl Cell {
    pub(crate) fn text(text: impl Display) -> Self {
        Self::Text(text.to_string())
    }

    fn shown(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(count) => count.to_string(),
            Self::Figure(value) => figure(*value),
            Self::Ratio(Some(ratio)) => format!("{ratio:.2}x"),
            Self::Ratio(None) => String::new(),
        }
    }

    /// Returns the cell in CSV, without quotes: no cell contains a comma.
    fn as_csv(&self) -> String {
        match self {
            Self::Text(text) => text.replace(',', ";"),
            Self::Count(count) => count.to_string(),
            Self::Figure(value) | Self::Ratio(Some(value)) => value.to_string(),
            Self::Ratio(None) => String::new(),
        }
    }
}

/// A table whose rows are printed while the measurement runs.
pub(crate) struct Figures {
    columns: Vec<Column>,
    layout: Layout,
}

impl Figures {
    pub(crate) fn new(options: FigureOptions, columns: &[&[Column]]) -> Self {
        Self {
            columns: columns.concat(),
            layout: options.layout(),
        }
    }

    /// Writes a whole table.
    pub(crate) fn write(
        &self,
        rows: impl IntoIterator<Item = Vec<Cell>>,
        output: &mut Output,
    ) -> gdr_perf::Result<()> {
        if self.layout != Layout::Csv {
            output.line("")?;
        }
        output.line(self.head())?;
        rows.into_iter()
            .try_for_each(|cells| output.line(self.row(&cells)))
    }

    /// Returns the line of titles.
    pub(crate) fn head(&self) -> String {
        if self.layout == Layout::Csv {
            let names: Vec<_> = self.columns.iter().map(|column| column.name).collect();
            return names.join(",");
        }
        self.line(self.columns.iter().map(|column| column.title.to_owned()))
    }

    /// Returns a line of figures, a cell for every column.
    pub(crate) fn row(&self, cells: &[Cell]) -> String {
        if self.layout == Layout::Csv {
            let cells: Vec<_> = cells.iter().map(Cell::as_csv).collect();
            return cells.join(",");
        }
        self.line(cells.iter().map(Cell::shown))
    }

    fn line(&self, cells: impl Iterator<Item = String>) -> String {
        let shown = |column: &Column| match column.shown {
            Shown::Everywhere => true,
            Shown::NotNarrow => self.layout == Layout::Wide,
            Shown::InCsv => false,
        };
        let cells = self.columns.iter().zip(cells);
        let cells = cells.filter(|(column, _)| shown(column));
        let line: String = cells
            .map(|(column, cell)| format!(" {cell:>width$}", width = column.width))
            .collect();
        line.trim_end().to_owned()
    }
}

/// Whether the GPU was simulated.
pub(crate) const SIMULATED: Column = Column::csv("simulated");

/// The columns of a duration, in microseconds.
pub(crate) const DURATION: [Column; 6] = [
    Column::new("median us", "median_us", 10),
    Column::new("p99 us", "p99_us", 10),
    Column::wide("min us", "min_us", 10),
    Column::wide("mean us", "mean_us", 10),
    Column::wide("max us", "max_us", 10),
    Column::csv("samples"),
];

/// Returns the cells of [`DURATION`].
pub(crate) fn duration(summary: &Summary) -> [Cell; 6] {
    let us = |ns: f64| Cell::Figure(ns / 1000.0);
    [
        us(summary.median_ns),
        us(summary.p99_ns),
        us(summary.min_ns),
        us(summary.mean_ns),
        us(summary.max_ns),
        Cell::Count(summary.samples),
    ]
}

/// The columns of a rate: bytes, bits and operations.
pub(crate) const RATE: [Column; 3] = [
    Column::new("GB/s", "gb_per_s", 10),
    Column::new("Gb/s", "gbit_per_s", 10),
    Column::new("Mop/s", "mop_per_s", 10),
];

/// Returns the cells of [`RATE`], for operations of `size` bytes at `gb_per_s` (10^9 bytes per second).
pub(crate) fn rate(size: u64, gb_per_s: f64) -> [Cell; 3] {
    [
        Cell::Figure(gb_per_s),
        Cell::Figure(gb_per_s * 8.0),
        Cell::Figure(gb_per_s * 1000.0 / size.max(1) as f64),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] = [
        Column::new("bytes", "size", 8),
        Column::wide("max us", "max_us", 8),
        Column::csv("simulated"),
    ];

    fn lines(wide: bool, csv: bool) -> [String; 2] {
        let figures = Figures::new(FigureOptions { wide, csv }, &[&COLUMNS]);
        let cells = [Cell::Count(4), Cell::Figure(0.00125), Cell::text("a, b")];
        [figures.head(), figures.row(&cells)]
    }

    #[test]
    fn a_layout_shows_its_columns() {
        assert_eq!(lines(false, false), ["    bytes", "        4"]);
        assert_eq!(
            lines(true, false),
            ["    bytes   max us", "        4  0.00125"]
        );
        assert_eq!(
            lines(false, true),
            ["size,max_us,simulated", "4,0.00125,a; b"]
        );
    }

    #[test]
    fn a_rate_is_given_in_bytes_bits_and_operations() {
        let shown: Vec<_> = rate(256, 0.25).iter().map(Cell::shown).collect();
        assert_eq!(shown, ["0.25", "2", "0.977"]);
    }

    #[test]
    fn what_is_compared_with_nothing_has_an_empty_cell() {
        assert_eq!(Cell::Ratio(None).shown(), "");
        assert_eq!(Cell::Ratio(Some(1.5)).shown(), "1.50x");
    }
}
