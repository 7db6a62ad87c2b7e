//! Distances of which no tree is known: nvidia-smi's matrices, NCCL's topologies.

use anyhow::Result;
use gdr_node::Bdf;
use gdr_node::import::nccl_xml::{NcclTopology, PciNode};
use gdr_node::import::topo_matrix::TopoMatrix;
use gdr_node::render::Vocabulary;
use gdr_node::topology::{NcclClass, NcclGraph, SmiClass};
use gdr_perf::report::Schema;
use serde::Serialize;

use crate::exit::{Exit, UsageError};
use crate::output::Output;

/// A matrix of words.
#[derive(Debug, Serialize)]
pub(super) struct Words {
    #[serde(flatten)]
    schema: Schema,
    /// `nvidia-smi` or `nccl`.
    tool: &'static str,
    devices: Vec<Named>,
    /// A row a device, a word a device; empty where the capture has none.
    classes: Vec<Vec<String>>,
    nearest: Vec<Nearest>,
    #[serde(skip)]
    vocabulary: Vocabulary,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Named {
    heading: String,
    /// What the legend calls it.
    name: Option<String>,
    pci: Option<String>,
}

impl Named {
    fn is(&self, name: &str) -> bool {
        [Some(&self.heading), self.name.as_ref(), self.pci.as_ref()]
            .into_iter()
            .flatten()
            .any(|known| known.eq_ignore_ascii_case(name))
    }

    fn is_gpu(&self) -> bool {
        self.heading.starts_with("GPU")
    }

    fn shown(&self) -> &str {
        self.name.as_ref().unwrap_or(&self.heading)
    }
}

#[derive(Debug, Serialize)]
struct Nearest {
    gpu: String,
    class: String,
    nics: Vec<String>,
}

impl Words {
    /// A matrix of nvidia-smi.
    pub(super) fn of_matrix(matrix: &TopoMatrix) -> Self {
        let devices: Vec<Named> = (matrix.devices.iter())
            .map(|heading| Named {
                heading: heading.clone(),
                name: (matrix.legend.iter())
                    .find(|(short, _)| short == heading)
                    .map(|(_, long)| long.clone()),
                pci: None,
            })
            .collect();
        let cells: Vec<Vec<Option<SmiClass>>> = (matrix.devices.iter())
            .map(|a| {
                (matrix.devices.iter())
                    .map(|b| matrix.class(a, b).or_else(|| matrix.class(b, a)))
                    .collect()
            })
            .collect();
        Self::new("nvidia-smi", Vocabulary::Smi, devices, &cells)
    }

    /// A topology of NCCL.
    pub(super) fn of_nccl(topology: &NcclTopology) -> Self {
        let graph = NcclGraph::from_topology(topology);
        let mut places: Vec<(Bdf, String, Option<String>)> = (0..)
            .zip(graph.gpus())
            .map(|(number, bdf): (u32, Bdf)| (bdf, format!("GPU{number}"), None))
            .collect();
        let mut nets = Vec::new();
        for node in topology.cpus.iter().flat_map(|cpu| &cpu.pci) {
            take_nets(node, &mut nets);
        }
        if nets.is_empty() {
            nets = graph.nics().map(|bdf| (bdf, None)).collect();
        }
        places.extend(
            (0..)
                .zip(nets)
                .map(|(number, (bdf, name)): (u32, _)| (bdf, format!("NIC{number}"), name)),
        );
        let cells: Vec<Vec<Option<NcclClass>>> = (places.iter())
            .map(|(a, ..)| places.iter().map(|(b, ..)| graph.class(*a, *b)).collect())
            .collect();
        let devices = (places.into_iter())
            .map(|(bdf, heading, name)| Named {
                heading,
                name,
                pci: Some(bdf.to_string()),
            })
            .collect();
        Self::new("nccl", Vocabulary::Nccl, devices, &cells)
    }

    fn new<C: Copy + Ord + ToString>(
        tool: &'static str,
        vocabulary: Vocabulary,
        devices: Vec<Named>,
        cells: &[Vec<Option<C>>],
    ) -> Self {
        let nearest = (devices.iter().zip(cells))
            .filter(|(device, _)| device.is_gpu())
            .filter_map(|(gpu, row)| {
                let nics = || devices.iter().zip(row).filter(|(nic, _)| !nic.is_gpu());
                let best = nics().filter_map(|(_, class)| *class).min()?;
                Some(Nearest {
                    gpu: gpu.heading.clone(),
                    class: best.to_string(),
                    nics: nics()
                        .filter(|(_, class)| **class == Some(best))
                        .map(|(nic, _)| nic.shown().to_owned())
                        .collect(),
                })
            })
            .collect();
        let classes = (cells.iter().enumerate())
            .map(|(line, row)| {
                (row.iter().enumerate())
                    .map(|(column, class)| match class {
                        _ if line == column => "X".to_owned(),
                        Some(class) => class.to_string(),
                        None => String::new(),
                    })
                    .collect()
            })
            .collect();
        Self {
            schema: Schema::first("gdr.topo-words"),
            tool,
            devices,
            classes,
            nearest,
            vocabulary,
        }
    }

    /// Refuses to speak in words that the capture does not have.
    pub(super) fn check(&self, asked: Option<Vocabulary>) -> Result<(), UsageError> {
        match asked {
            Some(asked) if asked != self.vocabulary => Err(UsageError(format!(
                "the capture has distances in the words of {} only; pass a PCI tree for others, \
                 as `lspci -D -nn -vvv` prints it",
                self.tool
            ))),
            _ => Ok(()),
        }
    }

    /// Writes the matrix and the nearest NICs.
    pub(super) fn show(&self, json: bool, output: &mut Output) -> Result<Exit> {
        if json {
            output.json(self)?;
            return Ok(Exit::Fine);
        }
        let headings: Vec<&str> = (self.devices.iter())
            .map(|device| device.heading.as_str())
            .collect();
        output.line(format_args!("\t{}", headings.join("\t")))?;
        for (heading, row) in headings.iter().zip(&self.classes) {
            let cells: Vec<&str> = (row.iter())
                .map(|word| match word.as_str() {
                    "X" => " X ",
                    "" => "?",
                    word => word,
                })
                .collect();
            output.line(format_args!("{heading}\t{}", cells.join("\t")))?;
        }
        output.line(format_args!("\nLegend:\n\n{}", self.vocabulary.legend()))?;
        let mut named = (self.devices.iter())
            .filter(|device| device.name.is_some() || device.pci.is_some())
            .peekable();
        if named.peek().is_some() {
            output.line("Devices:\n")?;
            for device in named {
                let words: Vec<&str> = [device.name.as_deref(), device.pci.as_deref()]
                    .into_iter()
                    .flatten()
                    .collect();
                output.line(format_args!("  {}: {}", device.heading, words.join("  ")))?;
            }
            output.line("")?;
        }
        if !self.nearest.is_empty() {
            output.line("Nearest NICs:\n")?;
        }
        for it in &self.nearest {
            output.line(format_args!(
                "  {}: {} ({})",
                it.gpu,
                it.nics.join(", "),
                it.class
            ))?;
        }
        Ok(Exit::Fine)
    }

    /// Writes what is known about one pair.
    pub(super) fn why(&self, a: &str, b: &str, output: &mut Output) -> Result<Exit> {
        let place = |name: &str| {
            (self.devices.iter())
                .position(|device| device.is(name))
                .ok_or_else(|| {
                    let known: Vec<&str> = self.devices.iter().map(Named::shown).collect();
                    UsageError(format!(
                        "there is no device `{name}`: there are {}",
                        known.join(", ")
                    ))
                })
        };
        let (a, b) = (place(a)?, place(b)?);
        let word = &self.classes[a][b];
        let (from, to) = (self.devices[a].shown(), self.devices[b].shown());
        if word.is_empty() {
            output.line(format_args!("{from} - {to}: the capture does not say"))?;
            return Ok(Exit::Undecided);
        }
        output.line(format_args!("{from} - {to}: {word}"))?;
        let meaning = (self.vocabulary.legend().lines())
            .filter_map(|line| line.split_once('='))
            .find(|(known, _)| {
                known.trim() == word || (known.trim() == "NV#" && word.starts_with("NV"))
            });
        if let Some((_, meaning)) = meaning {
            output.line(format_args!("    {}", meaning.trim()))?;
        }
        output.line("    why cannot be told: the capture has distances only, no PCI tree")?;
        Ok(Exit::Fine)
    }
}

fn take_nets(node: &PciNode, nets: &mut Vec<(Bdf, Option<String>)>) {
    for net in &node.nets {
        let name = Some(net.name.clone()).filter(|name| !name.is_empty());
        nets.push((node.bdf, name));
    }
    for child in &node.children {
        take_nets(child, nets);
    }
}

#[cfg(test)]
mod tests {
    use gdr_node::import::{nccl_xml, topo_matrix};

    use super::*;

    #[test]
    fn a_matrix_has_its_words_and_the_nearest_nics() {
        let text = "\tGPU0\tGPU1\tNIC0\tNIC1\nGPU0\t X \tNV4\tPIX\tSYS\n\
                    GPU1\tNV4\t X \tSYS\tSYS\n\nNIC Legend:\n\n  NIC0: mlx5_0\n";
        let words = Words::of_matrix(&topo_matrix::read_all(text).unwrap()[0]);
        // Rows that an excerpt lacks are those of the columns.
        assert_eq!(words.classes[2], ["PIX", "SYS", "X", ""]);
        assert_eq!(words.nearest[0].nics, ["mlx5_0"]);
        assert_eq!(words.nearest[1].nics, ["mlx5_0", "NIC1"]);
        assert!(words.check(Some(Vocabulary::Nccl)).is_err());
        assert!(words.check(None).is_ok());
    }

    #[test]
    fn a_topology_of_nccl_speaks_its_words() {
        let xml = r#"<system version="1"><cpu numaid="0">
            <pci busid="0000:10:00.0" class="0x060400">
              <pci busid="0000:11:00.0" class="0x030200"><gpu dev="0"/></pci>
              <pci busid="0000:12:00.0" class="0x020700"><nic><net name="mlx5_7"/></nic></pci>
            </pci>
            <pci busid="0000:20:00.0" class="0x030200"><gpu dev="1"/></pci></cpu></system>"#;
        let words = Words::of_nccl(&nccl_xml::read(xml).unwrap());
        assert_eq!(words.classes[0], ["X", "PHB", "PIX"]);
        assert_eq!(words.devices[2].name.as_deref(), Some("mlx5_7"));
        assert!(words.devices[1].is("0000:20:00.0"));
    }
}
