//! `gdr topo check`: our matrix against one that nvidia-smi printed.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use gdr_node::DeviceKind;
use gdr_node::import::topo_matrix::{self, TopoMatrix};
use gdr_node::render::{Cells, Vocabulary};
use gdr_perf::report::Schema;
use serde::Serialize;

use crate::args::Global;
use crate::exit::Exit;
use crate::node::Which;
use crate::output::Output;

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    schema: Schema,
    equal: usize,
    /// Cells of NVLinks, where nothing here tells of any.
    nvlink: usize,
    different: Vec<Difference>,
    /// Devices of the matrix that the node does not show.
    missing: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Difference {
    row: String,
    column: String,
    theirs: String,
    ours: String,
}

pub(super) fn run(
    global: &Global,
    which: &Which,
    matrix: &Path,
    output: &mut Output,
) -> Result<Exit> {
    let node = which.open()?;
    let text = fs::read(matrix).with_context(|| format!("{} cannot be read", matrix.display()))?;
    let matrices = topo_matrix::read_all(&String::from_utf8_lossy(&text))
        .with_context(|| matrix.display().to_string())?;
    let Some(theirs) = matrices.first() else {
        anyhow::bail!("{}: no matrix is in it", matrix.display());
    };
    let report = compare(&Cells::new(&node.inventory, Vocabulary::Smi), theirs);
    let exit = match (report.different.is_empty(), report.equal) {
        (false, _) => Exit::Failure,
        (true, 0) => Exit::Undecided,
        (true, _) if !report.missing.is_empty() => Exit::Warning,
        (true, _) => Exit::Fine,
    };
    if global.json {
        output.json(&report)?;
        return Ok(exit);
    }
    for it in &report.different {
        output.line(format_args!(
            "{} - {}: nvidia-smi says {}, the tree {}",
            it.row, it.column, it.theirs, it.ours
        ))?;
    }
    if !report.missing.is_empty() {
        output.line(format_args!(
            "not found in the tree: {}",
            report.missing.join(", ")
        ))?;
    }
    if report.nvlink > 0 {
        output.line(format_args!(
            "{} cells are NVLink, of which nothing here tells",
            report.nvlink
        ))?;
    }
    output.line(format_args!(
        "{} cells are equal, {} differ",
        report.equal,
        report.different.len()
    ))?;
    Ok(exit)
}

fn compare(ours: &Cells, theirs: &TopoMatrix) -> Report {
    // A column of theirs is one of ours by its name, by what the legend calls it, or by its count.
    let place = |name: &str| {
        let legend = (theirs.legend.iter())
            .find(|(short, _)| short == name)
            .map(|(_, long)| long.as_str());
        (0..ours.devices.len()).find(|&index| {
            let device = &ours.devices[index];
            device.name == name || Some(device.name.as_str()) == legend
        })
    };
    let counted = |name: &str| {
        // NICs of a tree without names: as many as the matrix has, in its order.
        let theirs: Vec<&String> = (theirs.devices.iter())
            .filter(|name| !name.starts_with("GPU"))
            .collect();
        let ours: Vec<usize> = (0..ours.devices.len())
            .filter(|&index| ours.devices[index].kind == DeviceKind::Nic)
            .collect();
        let position = theirs.iter().position(|other| *other == name)?;
        (ours.len() == theirs.len()).then(|| ours[position])
    };
    let found = |name: &str| place(name).or_else(|| counted(name));
    let mut report = Report {
        schema: Schema::first("gdr.topo-check"),
        equal: 0,
        nvlink: 0,
        different: Vec::new(),
        missing: theirs
            .devices
            .iter()
            .filter(|name| found(name).is_none())
            .cloned()
            .collect(),
    };
    for row in &theirs.rows {
        for (column, class) in theirs.devices.iter().zip(&row.classes) {
            let (Some(class), Some(a), Some(b)) = (class, found(&row.device), found(column)) else {
                continue;
            };
            let (class, word) = (class.to_string(), &ours.words[a][b]);
            if class.starts_with("NV") && !word.starts_with("NV") {
                report.nvlink += 1;
            } else if class == *word {
                report.equal += 1;
            } else {
                report.different.push(Difference {
                    row: row.device.clone(),
                    column: column.clone(),
                    theirs: class,
                    ours: word.clone(),
                });
            }
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use gdr_node::{Inventory, example, render};

    use super::*;

    #[test]
    fn our_own_matrix_is_equal_and_a_changed_cell_is_named() {
        let node = example::node();
        let inventory = Inventory::read(&node);
        let text = render::matrix(&node, &inventory, Vocabulary::Smi);
        let cells = Cells::new(&inventory, Vocabulary::Smi);
        let same = topo_matrix::read_all(&text).unwrap().remove(0);
        let report = compare(&cells, &same);
        assert_eq!((report.equal, report.different.len()), (18 * 18, 0));
        let changed = text.replacen("PIX", "PXB", 1);
        let report = compare(&cells, &topo_matrix::read_all(&changed).unwrap().remove(0));
        assert_eq!(report.different.len(), 1);
        assert_eq!(report.different[0].theirs, "PXB");
    }
}
