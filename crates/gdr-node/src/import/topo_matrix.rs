//! The matrix that `nvidia-smi topo -m` (or `-mp`) prints.

use super::{ImportError, check_length};
use crate::topology::SmiClass;

/// The most devices that a matrix is read for.
const MOST_DEVICES: usize = 1024;

/// The most matrices that are read from one text.
const MOST_MATRICES: usize = 256;

/// One matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopoMatrix {
    /// The devices in the order of the columns: `GPU0`, `NIC0`, `mlx5_0`.
    pub devices: Vec<String>,
    /// The rows that were printed.
    pub rows: Vec<Row>,
    /// What the legend calls the network devices: `NIC0` and `mlx5_0`.
    pub legend: Vec<(String, String)>,
}

/// One row of a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The device.
    pub device: String,
    /// Its class to each device, in the order of the columns; `None` for a cell that is no class.
    pub classes: Vec<Option<SmiClass>>,
    /// The CPU affinity as printed: `0-63,128-191`.
    pub cpu_affinity: Option<String>,
    /// The NUMA affinity as printed: `0`, `0-1`, `N/A`.
    pub numa_affinity: Option<String>,
}

impl TopoMatrix {
    /// The class between two devices by their names in the matrix or in its legend.
    pub fn class(&self, a: &str, b: &str) -> Option<SmiClass> {
        let (a, b) = (self.column_name(a), self.column_name(b));
        let column = self.devices.iter().position(|device| device == b)?;
        let row = self.rows.iter().find(|row| row.device == a)?;
        *row.classes.get(column)?
    }

    fn column_name<'a>(&'a self, name: &'a str) -> &'a str {
        let known = self.legend.iter().find(|(_, device)| device == name);
        known.map_or(name, |(column, _)| column)
    }
}

/// Reads the matrices in a text, in order, the first 256 of them. Rows may be missing, as in an excerpt.
///
/// # Errors
///
/// [`ImportError::TooLong`], or [`ImportError::NotRecognized`] where no line is the head of a
/// matrix.
pub fn read_all(text: &str) -> Result<Vec<TopoMatrix>, ImportError> {
    check_length(text)?;
    let mut matrices: Vec<TopoMatrix> = Vec::new();
    for line in text.lines() {
        let line = without_escapes(line);
        if let Some(devices) = head(&line) {
            // A head without rows was no head.
            if matrices.last().is_some_and(|matrix| matrix.rows.is_empty()) {
                matrices.pop();
            }
            if matrices.len() == MOST_MATRICES {
                break;
            }
            matrices.push(TopoMatrix {
                devices,
                rows: Vec::new(),
                legend: Vec::new(),
            });
        } else if let Some(matrix) = matrices.last_mut() {
            if let Some(row) = row(&line, &matrix.devices) {
                if matrix.rows.iter().all(|known| known.device != row.device) {
                    matrix.rows.push(row);
                }
            } else if let Some(entry) = legend(&line, &matrix.devices)
                && matrix.legend.len() < MOST_DEVICES
            {
                matrix.legend.push(entry);
            }
        }
    }
    matrices.retain(|matrix| !matrix.rows.is_empty());
    if matrices.is_empty() {
        return Err(ImportError::NotRecognized {
            expected: "matrix of nvidia-smi",
            found: "no head line that names GPU0 with a row of classes below it",
            command: "nvidia-smi topo -m",
        });
    }
    Ok(matrices)
}

/// The names before the affinity columns, of a line that names a GPU first.
fn head(line: &str) -> Option<Vec<String>> {
    let names: Vec<String> = line
        .split_whitespace()
        .take_while(|word| !matches!(*word, "CPU" | "NUMA" | "GPU"))
        .map(str::to_owned)
        .collect();
    let first = names.first()?;
    let is_gpu = first
        .strip_prefix("GPU")
        .is_some_and(|n| n.parse::<u32>().is_ok());
    // A row begins with a GPU too, and then has a class.
    let is_row = names
        .get(1)
        .is_some_and(|second| second.parse::<SmiClass>().is_ok());
    (is_gpu && !is_row && names.len() <= MOST_DEVICES).then_some(names)
}

fn row(line: &str, devices: &[String]) -> Option<Row> {
    let mut words = line.split_whitespace();
    let device = words
        .next()
        .filter(|name| devices.iter().any(|device| device == name))?;
    let classes: Vec<Option<SmiClass>> = words
        .by_ref()
        .take(devices.len())
        .map(|word| word.parse().ok())
        .collect();
    if classes.len() < devices.len() || classes.iter().all(Option::is_none) {
        return None;
    }
    Some(Row {
        device: device.to_owned(),
        classes,
        cpu_affinity: words.next().map(str::to_owned),
        numa_affinity: words.next().map(str::to_owned),
    })
}

/// `  NIC0: mlx5_0`
fn legend(line: &str, devices: &[String]) -> Option<(String, String)> {
    let (column, device) = line.trim().split_once(": ")?;
    devices
        .iter()
        .any(|known| known == column)
        .then(|| (column.to_owned(), device.trim().to_owned()))
}

/// The line without the escapes that underline the head on a terminal.
fn without_escapes(line: &str) -> String {
    let mut parts = line.split('\u{1b}');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // `[4m`: parameters, then one letter.
        let end = part
            .find(|c: char| c.is_ascii_alphabetic())
            .map_or(part.len(), |at| at + 1);
        plain.push_str(part.get(end..).unwrap_or_default());
    }
    plain
}

#[cfg(test)]
mod tests {
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
        assert_eq!(matrix.rows[2].cpu_affinity, None);
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
        let matrices = read_all(&"GPU0\nGPU0 X\n".repeat(1000)).unwrap();
        assert_eq!(matrices.len(), MOST_MATRICES);
        assert_eq!(read_all(&(heads + "GPU0\nGPU0 X\n")).unwrap().len(), 1);
    }

    #[test]
    fn what_holds_no_matrix_is_refused_by_name() {
        for text in ["", "GPU0\n", "No devices were found\n"] {
            let error = read_all(text).unwrap_err().to_string();
            assert!(error.contains("nvidia-smi topo -m"), "{error}");
        }
    }
}
