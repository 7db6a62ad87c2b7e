//! Parts of a capture that were skipped.

use std::fmt;

/// A part of a capture that was not read. Readers report each part that they skip.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names of the fields say it")]
pub enum LeftOut {
    /// Lines of `lspci -t` whose parents are cut off. `first` is shortened.
    DrawnLines { count: usize, first: String },
    /// Bridges in a listing without bus numbers.
    Buses(usize),
    /// Functions beyond the limit.
    Functions { count: usize, read: usize },
    /// Lines longer than any tool prints.
    LongLines(usize),
    /// Matrices beyond the limit.
    Matrices(usize),
    /// Lines that look like rows of a matrix but fit none. `first` is shortened.
    Rows { count: usize, first: String },
    /// Devices beyond the limit of a matrix.
    Devices(usize),
    /// XML elements that lack required attributes.
    Elements(usize),
    /// One of several files, which is not a capture.
    File { name: String, why: String },
    /// Files beyond the limit.
    Files(usize),
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |count: &usize, one: &'static str, many: &'static str| {
            format!("{count} {}", if *count == 1 { one } else { many })
        };
        match self {
            Self::DrawnLines { count, first } => write!(
                f,
                "{} of the drawing of `lspci -t` not read, such as `{first}`: what is above {} is \
                 cut off; pass the whole output of `lspci -D -nn -vvv`",
                of(count, "line", "lines"),
                if *count == 1 { "it" } else { "them" },
            ),
            Self::Buses(count) => write!(
                f,
                "the buses behind {} are not in the listing, so distances are not known; pass the \
                 output of `lspci -D -nn -vvv`",
                of(count, "bridge", "bridges"),
            ),
            Self::Functions { count, read } => write!(
                f,
                "{} beyond the first {read} not read",
                of(count, "PCI function", "PCI functions")
            ),
            Self::LongLines(count) => {
                write!(
                    f,
                    "{} of more than 64 KiB not read",
                    of(count, "line", "lines")
                )
            }
            Self::Matrices(count) => {
                write!(f, "{} not read", of(count, "more matrix", "more matrices"))
            }
            Self::Rows { count, first } => write!(
                f,
                "{} of a matrix not read, such as `{first}`",
                of(count, "row", "rows")
            ),
            Self::Devices(count) => {
                write!(f, "{} not shown", of(count, "more device", "more devices"))
            }
            Self::Elements(count) => write!(
                f,
                "{} of the XML not read: an attribute is not there or is wrong",
                of(count, "element", "elements")
            ),
            Self::File { name, why } => write!(f, "{name} not read: {why}"),
            Self::Files(count) => write!(f, "{} not read", of(count, "more file", "more files")),
        }
    }
}

/// Shortens a line, and removes what would control a terminal.
pub(super) fn shortened(line: &str) -> String {
    let marks = |c| matches!(c, ' ' | '\t' | '|');
    let shown: String = line.trim_matches(marks).chars().take(48).collect();
    shown.escape_debug().to_string()
}
