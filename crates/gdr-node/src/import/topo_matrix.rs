//! The tables of `nvidia-smi topo`: distances (`-m`, `-mp`) and peer memory access (`-p2p`).

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::left_out::{LeftOut, shortened};
use super::{ImportError, check_length, plain};
use crate::topology::SmiClass;

/// The most devices in a matrix to read.
const MOST_DEVICES: usize = 4096;

/// The most matrices to read from one text.
const MOST_MATRICES: usize = 256;

/// The tables of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matrices {
    /// The distance matrices, in order.
    pub all: Vec<TopoMatrix>,
    /// The peer access matrices, in order.
    pub peer_access: Vec<PeerMatrix>,
    /// The parts that were not read.
    pub left_out: Vec<LeftOut>,
}

/// One matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopoMatrix {
    /// The devices, in column order: `GPU0`, `NIC0`, `mlx5_0`.
    pub devices: Vec<String>,
    /// The printed rows.
    pub rows: Vec<Row>,
    /// The legend's names for network devices: `NIC0` and `mlx5_0`.
    pub legend: Vec<(String, String)>,
}

/// One row of a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The device.
    pub device: String,
    /// Its class to each device, in column order; `None` for a cell that is not a class.
    pub classes: Vec<Option<SmiClass>>,
    /// The CPU affinity as printed: `0-63,128-191`.
    pub cpu_affinity: Option<String>,
    /// The NUMA affinity as printed: `0`, `0-1`, `N/A`.
    pub numa_affinity: Option<String>,
    /// The NUMA node of the GPU's own memory, as printed: `8`, `N/A`.
    pub gpu_numa: Option<String>,
}

/// Whether GPUs may access each other's memory, by `nvidia-smi topo -p2p`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerMatrix {
    /// The GPUs, in column order.
    pub devices: Vec<String>,
    /// The printed rows: the GPU, and a cell per column.
    pub rows: Vec<(String, Vec<PeerAccess>)>,
}

/// Whether a GPU can access another one's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PeerAccess {
    /// `X`: the same GPU.
    Same,
    /// `OK`.
    Ok,
    /// `CNS`: the chipset does not support it.
    Chipset,
    /// `GNS`: the GPU does not support it.
    Gpu,
    /// `TNS`: the topology does not support it.
    Topology,
    /// `DR`: disabled by a driver setting.
    Disabled,
    /// `NS`: it is not supported.
    No,
    /// `U`: the driver does not know.
    Unknown,
}

impl PeerAccess {
    const WORDS: [(&str, Self); 8] = [
        ("X", Self::Same),
        ("OK", Self::Ok),
        ("CNS", Self::Chipset),
        ("GNS", Self::Gpu),
        ("TNS", Self::Topology),
        ("DR", Self::Disabled),
        ("NS", Self::No),
        ("U", Self::Unknown),
    ];
}

impl fmt::Display for PeerAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Self::WORDS.iter().find(|(_, access)| access == self);
        f.pad(word.map_or("U", |(word, _)| word))
    }
}

/// The text is not a status printed by `nvidia-smi topo -p2p`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a value that `nvidia-smi topo -p2p` prints: expected X, OK, CNS, GNS, TNS, DR, NS or U"
)]
pub struct ParsePeerAccessError;

impl FromStr for PeerAccess {
    type Err = ParsePeerAccessError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let word = Self::WORDS.iter().find(|(word, _)| *word == text);
        word.map(|(_, access)| *access).ok_or(ParsePeerAccessError)
    }
}

impl TopoMatrix {
    /// Returns the class between two devices, named as in the matrix or its legend.
    pub fn class(&self, a: &str, b: &str) -> Option<SmiClass> {
        let (a, b) = (self.column_name(a), self.column_name(b));
        let column = self.devices.iter().position(|device| device == b)?;
        let row = self.rows.iter().find(|row| row.device == a)?;
        *row.classes.get(column)?
    }

    /// Returns the class of every device to every other, in column order. If an excerpt lacks a row, the column is
    /// used.
    pub fn classes(&self) -> Vec<Vec<Option<SmiClass>>> {
        let rows: BTreeMap<&str, &Row> = (self.rows.iter())
            .map(|row| (row.device.as_str(), row))
            .collect();
        let cell = |row: usize, column: usize| {
            let row = rows.get(self.devices[row].as_str())?;
            *row.classes.get(column)?
        };
        let places = 0..self.devices.len();
        places
            .clone()
            .map(|a| places.clone().map(|b| cell(a, b).or(cell(b, a))).collect())
            .collect()
    }

    fn column_name<'a>(&'a self, name: &'a str) -> &'a str {
        let known = self.legend.iter().find(|(_, device)| device == name);
        known.map_or(name, |(column, _)| column)
    }
}

/// Reads the distance matrices in a text, in order, up to 256. Rows may be missing, as in an excerpt.
///
/// # Errors
///
/// [`ImportError::TooLong`], or [`ImportError::NotRecognized`] if no line is the heading of a matrix.
pub fn read_all(text: &str) -> Result<Vec<TopoMatrix>, ImportError> {
    let matrices = read(text)?;
    if matrices.all.is_empty() {
        return Err(no_matrix());
    }
    Ok(matrices.all)
}

/// Reads the tables in a text, even if it was quoted, indented or turned into a Markdown table.
///
/// # Errors
///
/// Like [`read_all`], if there is no table of either kind.
pub fn read(text: &str) -> Result<Matrices, ImportError> {
    check_length(text)?;
    let plain = plain::unquoted(text);
    let mut reading = Reading::default();
    for line in plain::lines(&plain) {
        reading.line(line);
    }
    reading.finish(plain::long_lines(&plain))
}

fn no_matrix() -> ImportError {
    ImportError::NotRecognized {
        expected: "matrix of nvidia-smi",
        found: "no head line that names GPU0 with a row of classes below it",
        command: "nvidia-smi topo -m",
    }
}

/// The tables read so far.
#[derive(Default)]
struct Reading {
    found: Matrices,
    /// The columns of the current table.
    columns: Vec<String>,
    places: BTreeMap<String, usize>,
    /// The kind of the current table; unknown before its first row.
    kind: Option<Kind>,
    /// Tables beyond the limit.
    beyond: usize,
    devices_beyond: usize,
    rows_dropped: usize,
    first_row_dropped: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Distances,
    PeerAccess,
    /// A table beyond the limit.
    Beyond,
}

impl Reading {
    fn line(&mut self, line: &str) {
        let unboxed;
        let trimmed = line.trim();
        // A row of a Markdown table.
        let line = if trimmed.starts_with('|') && trimmed.ends_with('|') {
            unboxed = trimmed.replace('|', " ");
            &unboxed
        } else {
            line
        };
        if let Some(mut columns) = head(line) {
            self.devices_beyond += columns.len().saturating_sub(MOST_DEVICES);
            columns.truncate(MOST_DEVICES);
            self.places = columns.iter().cloned().zip(0..).collect();
            self.columns = columns;
            self.kind = None;
        } else if !self.columns.is_empty()
            && !self.row(line)
            && let Some(matrix) = self.found.all.last_mut()
            && let Some(entry) = legend(line, &matrix.devices)
            && matrix.legend.iter().all(|(column, _)| *column != entry.0)
        {
            matrix.legend.push(entry);
        }
    }

    /// Adds a row to the table. Returns false if the line is not a row.
    fn row(&mut self, line: &str) -> bool {
        let mut words = line.split_whitespace();
        let Some(device) = words.next().filter(|name| self.places.contains_key(*name)) else {
            return false;
        };
        let mut words = words.flat_map(cells_of).peekable();
        let cells: Vec<&str> = words.by_ref().take(self.columns.len()).collect();
        let classes: Vec<Option<SmiClass>> = cells.iter().map(|word| word.parse().ok()).collect();
        let access: Option<Vec<PeerAccess>> = cells.iter().map(|word| word.parse().ok()).collect();
        let is_distance = classes
            .iter()
            .any(|class| class.is_some_and(|class| class != SmiClass::Same));
        let is_row = !cells.is_empty() && (is_distance || access.is_some());
        if !is_row {
            return false;
        }
        let kind = match self.kind {
            Some(kind) => kind,
            None => {
                // A single `X` is a distance: of the only device to itself.
                let kind = if is_distance || self.columns.len() == 1 {
                    Kind::Distances
                } else {
                    Kind::PeerAccess
                };
                self.begin(kind)
            }
        };
        let device = device.to_owned();
        // With too many or too few cells, it is unknown which column each belongs to.
        let is_cell = |word: &&str| word.parse::<SmiClass>().is_ok() || NO_CLASS.contains(word);
        let fits = access.is_some()
            || cells.iter().all(is_cell)
                && (words.peek()).is_none_or(|next| next.parse::<SmiClass>().is_err());
        let is_whole = cells.len() == self.columns.len() && fits;
        let is_taken = match (kind, access) {
            (Kind::Beyond, _) => true,
            (Kind::Distances, _) => {
                let rows = self.found.all.last_mut().map(|matrix| &mut matrix.rows);
                rows.is_some_and(|rows| {
                    let is_new = rows.iter().all(|known| known.device != device);
                    if is_whole && is_new {
                        rows.push(Row {
                            device,
                            classes,
                            cpu_affinity: words.next().map(str::to_owned),
                            numa_affinity: words.next().map(str::to_owned),
                            gpu_numa: words.next().map(str::to_owned),
                        });
                    }
                    is_whole && is_new
                })
            }
            (Kind::PeerAccess, Some(access)) => {
                let rows = self.found.peer_access.last_mut().map(|it| &mut it.rows);
                rows.is_some_and(|rows| {
                    let is_new = rows.iter().all(|(known, _)| *known != device);
                    if is_whole && is_new {
                        rows.push((device, access));
                    }
                    is_whole && is_new
                })
            }
            (Kind::PeerAccess, None) => false,
        };
        if !is_taken {
            self.rows_dropped += 1;
            self.first_row_dropped
                .get_or_insert_with(|| shortened(line));
        }
        true
    }

    /// Starts a table with the columns read before, because its first row was found.
    fn begin(&mut self, kind: Kind) -> Kind {
        let is_full = self.found.all.len() + self.found.peer_access.len() >= MOST_MATRICES;
        let kind = if is_full { Kind::Beyond } else { kind };
        self.kind = Some(kind);
        let devices = self.columns.clone();
        match kind {
            Kind::Distances => self.found.all.push(TopoMatrix {
                devices,
                rows: Vec::new(),
                legend: Vec::new(),
            }),
            Kind::PeerAccess => self.found.peer_access.push(PeerMatrix {
                devices,
                rows: Vec::new(),
            }),
            Kind::Beyond => self.beyond += 1,
        }
        kind
    }

    fn finish(mut self, long_lines: usize) -> Result<Matrices, ImportError> {
        self.found.all.retain(|matrix| !matrix.rows.is_empty());
        self.found
            .peer_access
            .retain(|matrix| !matrix.rows.is_empty());
        if self.found.all.is_empty() && self.found.peer_access.is_empty() {
            if self.rows_dropped > 0 {
                return Err(ImportError::NotRecognized {
                    expected: "matrix of nvidia-smi",
                    found: "its rows have more or fewer cells than its heading has names",
                    command: "nvidia-smi topo -m",
                });
            }
            return Err(no_matrix());
        }
        let left_out = &mut self.found.left_out;
        if self.beyond > 0 {
            left_out.push(LeftOut::Matrices(self.beyond));
        }
        if self.devices_beyond > 0 {
            left_out.push(LeftOut::Devices(self.devices_beyond));
        }
        if self.rows_dropped > 0 {
            left_out.push(LeftOut::Rows {
                count: self.rows_dropped,
                first: self.first_row_dropped.take().unwrap_or_default(),
            });
        }
        if long_lines > 0 {
            left_out.push(LeftOut::LongLines(long_lines));
        }
        Ok(self.found)
    }
}

/// Cells that contain no class.
const NO_CLASS: [&str; 5] = ["N/A", "ERR!", "?", "-", "Unknown"];

/// Splits a word of a heading into names: a page that lost its blanks runs several together (`NIC3NIC4`, `NIC4CPU`). A
/// name starts where one of these prefixes follows a digit.
fn names_of(word: &str) -> impl Iterator<Item = &str> + Clone {
    const BEGINNINGS: [&str; 7] = ["GPU", "NIC", "CPU", "mlx5_", "mlx4_", "bnxt_re", "NUMA"];
    let begins = move |at: usize| {
        let digit = at > 0 && word.as_bytes()[at - 1].is_ascii_digit();
        let rest = word.get(at..);
        digit && rest.is_some_and(|rest| BEGINNINGS.iter().any(|it| rest.starts_with(it)))
    };
    pieces(word, begins)
}

/// Splits a word of a row into cells; a page that lost its blanks runs several together (`PIXNODE`).
fn cells_of(word: &str) -> impl Iterator<Item = &str> + Clone {
    const CLASSES: [&str; 7] = ["NV", "PIX", "PXB", "PHB", "NODE", "SYS", "X"];
    let is_glued = word.parse::<SmiClass>().is_err()
        && word.len() > 2
        && word
            .bytes()
            .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit());
    let begins = move |at: usize| {
        let (before, rest) = (word.get(..at), word.get(at..));
        is_glued
            && rest.is_some_and(|rest| CLASSES.iter().any(|it| rest.starts_with(it)))
            && before.is_some_and(|before| {
                CLASSES[1..].iter().any(|it| before.ends_with(it))
                    || before.ends_with(|c: char| c.is_ascii_digit())
            })
    };
    pieces(word, begins)
}

/// Splits a word before each position where a piece starts.
fn pieces<'a>(
    word: &'a str,
    begins: impl Fn(usize) -> bool + Clone + 'a,
) -> impl Iterator<Item = &'a str> + Clone {
    let mut from = 0;
    std::iter::from_fn(move || {
        let rest = word.get(from..).filter(|rest| !rest.is_empty())?;
        let end = (from + 1..word.len())
            .find(|at| begins(*at))
            .unwrap_or(word.len());
        let piece = rest.get(..end - from)?;
        from = end;
        Some(piece)
    })
}

/// Returns the names in front of the affinity columns, if the line starts with a GPU.
fn head(line: &str) -> Option<Vec<String>> {
    let mut words = line.split_whitespace().flat_map(names_of);
    let first = words.next()?;
    let is_gpu = first
        .strip_prefix("GPU")
        .is_some_and(|n| n.parse::<u32>().is_ok());
    // A row also starts with a GPU, but then has a cell.
    let is_cell =
        |word: &str| word.parse::<SmiClass>().is_ok() || word.parse::<PeerAccess>().is_ok();
    // All columns have device names, unlike figures and words with special characters.
    let is_name = |word: &&str| word.starts_with(|c: char| c.is_ascii_alphabetic());
    let second = words.clone().flat_map(cells_of).next();
    if !is_gpu || second.is_some_and(is_cell) {
        return None;
    }
    let rest = words.take_while(|word| !matches!(*word, "CPU" | "NUMA" | "GPU"));
    let names: Vec<&str> = [first].into_iter().chain(rest).collect();
    (names.iter().all(is_name)).then(|| names.into_iter().map(str::to_owned).collect())
}

/// Parses a legend line `  NIC0: mlx5_0`: a NIC, followed by a single name.
fn legend(line: &str, devices: &[String]) -> Option<(String, String)> {
    let (column, device) = line.trim().split_once(": ")?;
    let device = device.trim();
    let is_name = device.starts_with(|c: char| c.is_ascii_alphabetic())
        && device
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_-.:".contains(&b));
    let is_nic = column.starts_with("NIC") && devices.iter().any(|known| known == column);
    (is_nic && is_name).then(|| (column.to_owned(), device.to_owned()))
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;

    #[test]
    fn tabs_escapes_and_a_legend_are_read() {
        let text = "\t\u{1b}[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\u{1b}[0m\n\
                    GPU0\t X \tNV18\tPIX\t0-55\t0\t\tN/A\n\
                    GPU1\tNV18\t X \tSYS\t56-111\t1\t\tN/A\n\
                    NIC0\tPIX\tSYS\t X \t\t\t\n\n\
                    Legend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n";
        let matrix = read_all(text).unwrap().remove(0);
        assert_eq!(matrix.devices, ["GPU0", "GPU1", "NIC0"]);
        assert_eq!(matrix.class("GPU0", "GPU1"), Some(SmiClass::Nv(18)));
        assert_eq!(matrix.class("GPU0", "mlx5_0"), Some(SmiClass::Pix));
        assert_eq!(matrix.class("mlx5_0", "GPU1"), Some(SmiClass::Sys));
        assert_eq!(matrix.class("GPU0", "GPU7"), None);
        assert_eq!(matrix.rows[0].cpu_affinity.as_deref(), Some("0-55"));
        assert_eq!(matrix.rows[0].numa_affinity.as_deref(), Some("0"));
        assert_eq!(matrix.rows[0].gpu_numa.as_deref(), Some("N/A"));
        assert_eq!(matrix.rows[2].cpu_affinity, None);
    }

    #[test]
    fn names_and_cells_that_a_page_glued_together_are_separated() {
        let text = "GPU0GPU1 NIC0  NIC1NIC2CPU Affinity\nGPU0 X NV18 PIX NODESYS 0-7\n\
                    GPU1 NV18X SYS PHB PXBNODE\nNIC2 SYS NODE NODE PIX X\n";
        let matrices = read(text).unwrap();
        let matrix = &matrices.all[0];
        assert_eq!(matrix.devices, ["GPU0", "GPU1", "NIC0", "NIC1", "NIC2"]);
        assert_eq!(matrix.class("GPU0", "NIC2"), Some(SmiClass::Sys));
        assert_eq!(matrix.class("NIC2", "NIC1"), Some(SmiClass::Pix));
        // Six cells for five columns.
        assert_eq!(matrix.rows.len(), 2);
        assert!(matches!(
            &matrices.left_out[..],
            [LeftOut::Rows { count: 1, .. }]
        ));
    }

    #[test]
    fn a_row_that_lost_a_cell_is_left_out_and_counted() {
        let text = "GPU0 GPU1 NIC0 NIC1 CPU Affinity\nGPU0 X NV18 PIX 0-7 0\n\
                    GPU1 NV18 X SYS N/A 0-7 0\n";
        let matrices = read(text).unwrap();
        assert_eq!(matrices.all[0].rows.len(), 1);
        assert_eq!(matrices.all[0].class("GPU1", "NIC0"), Some(SmiClass::Sys));
        assert!(matches!(
            &matrices.left_out[..],
            [LeftOut::Rows { count: 1, .. }]
        ));
    }

    #[test]
    fn old_drivers_name_the_devices_themselves_and_excerpts_lack_rows() {
        let text =
            "$ nvidia-smi topo -m\n     GPU0 GPU1 mlx5_0 CPU Affinity\nGPU1 PHB X NODE 0-7\n";
        let matrix = read_all(text).unwrap().remove(0);
        assert_eq!(matrix.class("GPU1", "mlx5_0"), Some(SmiClass::Node));
        assert_eq!(matrix.class("GPU0", "mlx5_0"), None);
    }

    #[test]
    fn two_matrices_in_one_text_stay_apart() {
        let text = "GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX X\nwords\nGPU0 CPU Affinity\nGPU0 X 0-3\n";
        let matrices = read_all(text).unwrap();
        assert_eq!(matrices.len(), 2);
        assert_eq!(matrices[1].rows[0].cpu_affinity.as_deref(), Some("0-3"));
    }

    #[test]
    fn matrices_without_end_are_read_up_to_a_bound() {
        let heads = "GPU0 GPU1\n".repeat(10_000);
        let matrices = read(&"GPU0\nGPU0 X\n".repeat(1000)).unwrap();
        assert_eq!(matrices.all.len(), MOST_MATRICES);
        assert_eq!(matrices.left_out, [LeftOut::Matrices(1000 - MOST_MATRICES)]);
        assert_eq!(read_all(&(heads + "GPU0\nGPU0 X\n")).unwrap().len(), 1);
    }

    #[test]
    fn a_text_without_a_matrix_is_refused() {
        for text in ["", "GPU0\n", "No devices were found\n"] {
            let error = read_all(text).unwrap_err().to_string();
            assert_contains!(error, "nvidia-smi topo -m");
        }
    }

    const PAGE: &str = "\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tPIX\t0-55\t0
GPU1\tNV18\t X \tSYS\t56-111\t1
NIC0\tPIX\tSYS\t X

NIC Legend:

  NIC0: mlx5_0

NIC0: 24.5 GB/s
  NIC0: 392.1
";

    #[test]
    fn a_matrix_that_was_quoted_indented_or_boxed_is_the_same_matrix() {
        let plain = read(PAGE).unwrap();
        assert_eq!(
            plain.all[0].legend,
            [("NIC0".to_owned(), "mlx5_0".to_owned())]
        );
        let lines = |to: fn(&str) -> String| PAGE.lines().map(to).collect::<String>();
        let boxed = |line: &str| match line.split_once('\t') {
            Some(_) => format!("| {} |\n", line.replace('\t', " | ")),
            None => format!("{line}\n"),
        };
        for text in [
            lines(|line| format!("> {line}\n")),
            lines(|line| format!("> > {line}\n")),
            lines(|line| format!("      {line}\n")),
            lines(|line| format!("{}\r\n", line.trim())),
            lines(boxed),
        ] {
            let read = read(&text).unwrap();
            assert_eq!(read.all.len(), 1, "{text}");
            assert_eq!(read.all[0].classes(), plain.all[0].classes(), "{text}");
            assert_eq!(read.all[0].legend, plain.all[0].legend, "{text}");
            assert_eq!(read.left_out, [], "{text}");
        }
    }

    #[test]
    fn a_table_of_peer_access_is_no_matrix_of_distances() {
        let text = format!(
            "{PAGE}\n \tGPU0\tGPU1\nGPU0\tX\tCNS\nGPU1\tOK\tX\n\nLegend:\n\n  X    = Self\n"
        );
        let read = read(&text).unwrap();
        assert_eq!((read.all.len(), read.peer_access.len()), (1, 1));
        let rows = &read.peer_access[0].rows;
        assert_eq!(
            rows[0],
            (
                "GPU0".to_owned(),
                vec![PeerAccess::Same, PeerAccess::Chipset]
            )
        );
        assert_eq!(rows[1].1[0].to_string(), "OK");
    }

    #[test]
    fn a_table_of_bandwidths_changes_nothing() {
        let text = format!(
            "{PAGE}\n     GPU0   GPU1\nGPU0 2039.1 270.3\nGPU1 270.1 2041.5\n  NIC0: mlx5_9\n"
        );
        let read = read(&text).unwrap();
        assert_eq!((read.all.len(), read.all[0].rows.len()), (1, 3));
        assert_eq!(read.all[0].legend[0].1, "mlx5_0");
        // Text before a legend does not replace it.
        let figures =
            "GPU0 NIC0\nGPU0 X PIX\nNIC0: 24.5 GB/s\nNIC0: 24.5\nGPU0: H100\nNIC0: mlx5_3\n";
        let legend = read_all(figures).unwrap().remove(0).legend;
        assert_eq!(legend, [("NIC0".to_owned(), "mlx5_3".to_owned())]);
    }

    #[test]
    fn a_row_that_is_cut_off_or_there_twice_is_counted() {
        let text = "GPU0 GPU1 GPU2\nGPU0 X PIX SYS\nGPU1 PIX X\nGPU0 X PIX SYS\n";
        let read = read(text).unwrap();
        assert_eq!(read.all[0].rows.len(), 1);
        assert_eq!(
            read.left_out,
            [LeftOut::Rows {
                count: 2,
                first: "GPU1 PIX X".to_owned()
            }]
        );
    }

    #[test]
    fn an_endless_line_takes_memory_in_proportion_to_its_text() {
        let text = format!("{}\n{PAGE}", "GPU0 ".repeat(1 << 20));
        let read = read(&text).unwrap();
        assert_eq!(
            (read.all.len(), read.left_out),
            (1, vec![LeftOut::LongLines(1)])
        );
    }
}
