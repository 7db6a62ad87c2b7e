//! `gdr topo check`: compares gdr's matrix with one of nvidia-smi.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use gdr_node::import;
use gdr_node::import::topo_matrix::{self, TopoMatrix};
use gdr_node::render::{Cells, Vocabulary};
use gdr_node::topology::SmiClass;
use gdr_node::{Absence, DatumExt, DeviceKind, Inventory, NumaLayout};
use gdr_perf::report::Schema;
use serde::Serialize;

use crate::exit::Exit;
use crate::global::Global;
use crate::node_args::Which;
use crate::output::Output;

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    schema: Schema,
    equal: usize,
    /// Cells of NVLinks that the node does not show.
    nvlink: usize,
    /// Cells whose NUMA nodes are missing from the capture of the tree.
    undecided: usize,
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
    let mut node = which.open()?;
    let text = fs::read(matrix).with_context(|| format!("{} cannot be read", matrix.display()))?;
    let matrices = import::text(&text)
        .and_then(|text| topo_matrix::read_all(&text))
        .with_context(|| matrix.display().to_string())?;
    if matrices.len() > 1 {
        anstream::eprintln!(
            "note: {} contains {} matrices; only the first is compared",
            matrix.display(),
            matrices.len()
        );
    }
    let Some(theirs) = matrices.first() else {
        anyhow::bail!("{}: the file contains no distance matrix", matrix.display());
    };
    if node.inventory.numa.online.is_unknown() && on_one_node(theirs) {
        node.inventory.numa = NumaLayout::of_nodes(1);
    }
    if leave_out_nvlinks(&mut node.inventory, theirs) {
        anstream::eprintln!(
            "note: {} shows no NVLinks, like all output of `nvidia-smi topo -mp`; distances over PCI are \
             compared",
            matrix.display()
        );
    }
    let report = compare(
        &node.inventory,
        &Cells::new(&node.inventory, Vocabulary::Smi),
        theirs,
    );
    let exit = match (report.different.is_empty(), report.equal) {
        (false, _) => Exit::Failure,
        (true, 0) => Exit::Undecided,
        (true, _) if report.undecided > 0 => Exit::Warning,
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
            "{} cells are NVLink, which the tree does not show",
            report.nvlink
        ))?;
    }
    if report.undecided > 0 {
        output.line(format_args!(
            "{} cells are NODE or SYS, but the tree does not show NUMA nodes (pass the output of `lspci -vvv`)",
            report.undecided
        ))?;
    }
    output.line(format_args!(
        "{} cells are equal, {} differ",
        report.equal,
        report.different.len()
    ))?;
    Ok(exit)
}

/// Removes the NVLinks of a node if the matrix has none, because `nvidia-smi topo -mp` prints distances over PCI alone.
/// Returns whether there were any.
fn leave_out_nvlinks(inventory: &mut Inventory, matrix: &TopoMatrix) -> bool {
    let mut classes = matrix.rows.iter().flat_map(|row| &row.classes);
    if classes.any(|class| matches!(class, Some(SmiClass::Nv(_)))) {
        return false;
    }
    !std::mem::take(&mut inventory.nvlinks).is_empty()
}

/// Returns whether a matrix names only one NUMA node.
fn on_one_node(matrix: &TopoMatrix) -> bool {
    let mut named: Vec<&str> = (matrix.rows.iter())
        .filter_map(|row| row.numa_affinity.as_deref())
        .filter(|node| *node != "N/A")
        .collect();
    named.sort_unstable();
    named.dedup();
    let no_sys = (matrix.rows.iter().flat_map(|row| &row.classes))
        .all(|class| *class != Some(SmiClass::Sys));
    named.len() <= 1 && named.iter().all(|node| node.parse::<u32>().is_ok()) && no_sys
}

/// Returns which of our NICs one of theirs is, where ours have no names: the one at the same position, if both sides
/// have equally many. Otherwise the order would pair the wrong ones.
fn counted(ours: &Cells, theirs: &TopoMatrix, name: &str) -> Option<usize> {
    let ours: Vec<usize> = (0..ours.devices.len())
        .filter(|&index| ours.devices[index].kind == DeviceKind::Nic)
        .filter(|&index| ours.devices[index].name == ours.devices[index].bdf.to_string())
        .collect();
    let nics: Vec<&String> = (theirs.devices.iter())
        .filter(|name| !name.starts_with("GPU"))
        .collect();
    let position = nics.iter().position(|other| *other == name)?;
    (ours.len() == nics.len()).then(|| ours[position])
}

fn compare(inventory: &Inventory, ours: &Cells, theirs: &TopoMatrix) -> Report {
    // A column of theirs matches one of ours by its name, by its name in the legend, or by position.
    let place = |name: &str| {
        let legend = (theirs.legend.iter())
            .find(|(short, _)| short == name)
            .map(|(_, long)| long.as_str());
        (0..ours.devices.len()).find(|&index| {
            let device = &ours.devices[index];
            device.name == name || Some(device.name.as_str()) == legend
        })
    };
    let found = |name: &str| place(name).or_else(|| counted(ours, theirs, name));
    let unplaced = |index: usize| {
        let function = inventory.function(ours.devices[index].bdf);
        inventory.numa.only_node().is_none()
            && function.is_none_or(|function| function.numa == Err(Absence::NotCollected))
    };
    let farther = |word: &str| matches!(word, "NODE" | "SYS");
    let mut report = Report {
        schema: Schema::first("gdr.topo-check"),
        equal: 0,
        nvlink: 0,
        undecided: 0,
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
            let (class, word) = (class.to_string(), ours.classes[a][b].to_string());
            if class.starts_with("NV") && !word.starts_with("NV") {
                report.nvlink += 1;
            } else if class == word {
                report.equal += 1;
            } else if farther(&class) && farther(&word) && (unplaced(a) || unplaced(b)) {
                report.undecided += 1;
            } else {
                report.different.push(Difference {
                    row: row.device.clone(),
                    column: column.clone(),
                    theirs: class,
                    ours: word,
                });
            }
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use gdr_node::{NvLinks, example, render};

    use super::*;

    #[test]
    fn nics_of_a_tree_and_a_matrix_that_count_differently_are_not_paired_by_order() {
        let listing = "\
00:00.0 Host bridge: Intel Corporation Device 1
00:01.0 PCI bridge: Intel Corporation Device 2
\tBus: primary=00, secondary=01, subordinate=01
01:00.0 3D controller: NVIDIA Corporation GH100
00:02.0 PCI bridge: Intel Corporation Device 2
\tBus: primary=00, secondary=02, subordinate=02
02:00.0 Infiniband controller: Mellanox Technologies MT2910
";
        let tree = gdr_node::import::lspci::read(listing).unwrap().into_tree();
        let inventory = Inventory::of_tree(Ok(tree), NumaLayout::of_nodes(1));
        let ours = Cells::new(&inventory, Vocabulary::Smi);
        let report = |text: &str| {
            let theirs = topo_matrix::read_all(text).unwrap().remove(0);
            compare(&inventory, &ours, &theirs)
        };
        let one = report("GPU0 mlx5_0\nGPU0 X PHB\nmlx5_0 PHB X\n");
        assert_eq!((one.equal, one.missing.len()), (4, 0));
        let two = report("GPU0 mlx5_0 mlx5_1\nGPU0 X PIX PHB\nmlx5_0 PIX X PHB\n");
        assert_eq!(two.missing, ["mlx5_0", "mlx5_1"]);
        assert_eq!((two.equal, two.different.len()), (1, 0));
    }

    #[test]
    fn a_matrix_without_nvlinks_is_compared_with_the_distances_over_pci() {
        let node = example::node();
        let mut whole = Inventory::read(&node);
        let gpus = whole.devices().into_iter();
        let mut gpus = gpus.filter(|device| device.kind == DeviceKind::Gpu);
        let [a, b] = [(); 2].map(|()| gpus.next().unwrap().bdf);
        whole.nvlinks.push(NvLinks { a, b, count: 18 });
        let printed = |inventory: &Inventory| {
            let paint = render::Paint::Plain;
            let text = render::matrix(&node, inventory, Vocabulary::Smi, paint);
            topo_matrix::read_all(&text).unwrap().remove(0)
        };
        let mut tree = whole.clone();
        assert!(!leave_out_nvlinks(&mut tree, &printed(&whole)));
        tree.nvlinks.clear();
        let over_pci = printed(&tree);
        let mut inventory = whole;
        assert!(leave_out_nvlinks(&mut inventory, &over_pci));
        let ours = Cells::new(&inventory, Vocabulary::Smi);
        let report = compare(&inventory, &ours, &over_pci);
        assert_eq!((report.equal, report.different.len()), (18 * 18, 0));
    }

    #[test]
    fn our_own_matrix_is_equal_and_a_changed_cell_is_named() {
        let node = example::node();
        let inventory = Inventory::read(&node);
        let text = render::matrix(&node, &inventory, Vocabulary::Smi, render::Paint::Plain);
        let cells = Cells::new(&inventory, Vocabulary::Smi);
        let same = topo_matrix::read_all(&text).unwrap().remove(0);
        let report = compare(&inventory, &cells, &same);
        assert_eq!((report.equal, report.different.len()), (18 * 18, 0));
        let changed = text.replacen("PIX", "PXB", 1);
        let report = compare(
            &inventory,
            &cells,
            &topo_matrix::read_all(&changed).unwrap().remove(0),
        );
        assert_eq!(report.different.len(), 1);
        assert_eq!(report.different[0].theirs, "PXB");
    }
}
