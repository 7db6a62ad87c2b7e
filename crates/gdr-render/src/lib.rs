//! Renders the tables, SVG pictures and metrics of gdr's reports.
//!
//! [`Table`] lays out columns of text, [`svg`] writes the elements of a picture, [`prometheus`] writes metrics, and
//! [`wrap`] breaks lines between words. Nothing here prints or opens files.
//!
//! ```
//! use gdr_render::Table;
//!
//! let mut table = Table::new(&["GPU", "model"]);
//! table.row(vec!["0".into(), "H100".into()]);
//! assert_eq!(table.lines(80), ["GPU  model", "0    H100"]);
//! ```

#![forbid(unsafe_code)]

mod escape;
pub mod prometheus;
pub mod svg;
mod table;
pub mod wrap;

pub use escape::Escaped;
pub use table::{Table, csv_line};

// Compiles and runs the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
