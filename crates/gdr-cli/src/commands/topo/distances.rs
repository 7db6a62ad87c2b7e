//! Distances without a PCI tree: nvidia-smi's matrices and NCCL's topologies.

use anyhow::Result;
use gdr_doctor::Verdict;
use gdr_node::Bdf;
use gdr_node::import::LeftOut;
use gdr_node::import::nccl_xml::{NcclTopology, PciNode};
use gdr_node::import::topo_matrix::{Matrices, PeerMatrix, Row, TopoMatrix};
use gdr_node::render::{AFFINITY_HEADINGS, MOST_DEVICES, Paint, Vocabulary};
use gdr_node::topology::{DistanceClass, NcclClass, NcclDevice, NcclGraph};
use gdr_perf::report::Schema;
use serde::Serialize;

use super::report::names;
use super::why::{rates, show_rates};
use crate::counted::Counted;
use crate::exit::{Exit, UsageError};
use crate::output::Output;

/// Maximum number of NICs to name as the nearest to one GPU.
const MOST_NEAREST: usize = 16;

/// Distances in captures without a PCI tree.
#[derive(Debug, Serialize)]
pub(super) struct Distances {
    #[serde(flatten)]
    schema: Schema,
    matrices: Vec<Words>,
    peer_access: Vec<Peers>,
    /// Parts of the capture that were not read.
    left_out: Vec<String>,
}

/// A matrix of distance names.
#[derive(Debug, Serialize)]
struct Words {
    /// `nvidia-smi` or `nccl`.
    tool: &'static str,
    devices: Vec<Named>,
    /// A row and a column for each device; `?` if the capture has no distance.
    classes: Vec<Vec<DistanceClass>>,
    nearest: Vec<Nearest>,
    #[serde(skip)]
    vocabulary: Vocabulary,
    /// What stands out among the NVLinks.
    #[serde(skip)]
    nvlinks: Option<String>,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Named {
    heading: String,
    /// Its name in the legend.
    name: Option<String>,
    pci: Option<String>,
    /// NCCL's `gdr`: whether the device may take part in GPUDirect RDMA.
    gdr: Option<bool>,
    /// The ranks on a GPU.
    ranks: Vec<u32>,
    /// What nvidia-smi printed beside its row.
    #[serde(skip_serializing_if = "Option::is_none")]
    affinity: Option<Affinity>,
}

/// CPUs and memory next to a device, as nvidia-smi printed them.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Affinity {
    cpus: String,
    numa: Option<String>,
    gpu_numa: Option<String>,
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
    class: DistanceClass,
    /// Up to 16 of them.
    nics: Vec<String>,
    nics_left_out: usize,
    /// From NCCL: whether it uses GPUDirect RDMA between the two by default.
    gdr: Option<Gdr>,
}

/// Whether NCCL uses GPUDirect RDMA.
#[derive(Debug, Serialize)]
struct Gdr {
    used: bool,
    why: String,
}

/// A table of `nvidia-smi topo -p2p`.
#[derive(Debug, Serialize)]
struct Peers {
    devices: Vec<String>,
    rows: Vec<PeerRow>,
}

#[derive(Debug, Serialize)]
struct PeerRow {
    gpu: String,
    access: Vec<String>,
}

impl Affinity {
    fn of_row(row: &Row) -> Option<Self> {
        Some(Self {
            cpus: row.cpu_affinity.clone()?,
            numa: row.numa_affinity.clone(),
            gpu_numa: row.gpu_numa.clone(),
        })
    }

    /// Returns the columns as nvidia-smi prints them.
    fn columns(&self) -> String {
        let shown = |text: &Option<String>| text.as_deref().unwrap_or("N/A").to_owned();
        format!(
            "\t{}\t{}\t\t{}",
            self.cpus,
            shown(&self.numa),
            shown(&self.gpu_numa)
        )
    }
}

impl Distances {
    /// Returns the tables of nvidia-smi, then the topologies of NCCL.
    pub(super) fn new(found: &Matrices, topologies: &[NcclTopology]) -> Self {
        let mut left_out = found.left_out.clone();
        left_out.extend(topologies.iter().filter_map(NcclTopology::left_out));
        let mut matrices: Vec<Words> = found.all.iter().map(Words::of_matrix).collect();
        matrices
            .extend((topologies.iter()).map(|topology| Words::of_nccl(topology, &mut left_out)));
        Self {
            schema: Schema::first("gdr.topo-words"),
            matrices,
            peer_access: found.peer_access.iter().map(Peers::new).collect(),
            left_out: left_out.iter().map(ToString::to_string).collect(),
        }
    }

    /// Fails for names of distances that the captures do not have.
    pub(super) fn check(&self, asked: Option<Vocabulary>) -> Result<(), UsageError> {
        for words in &self.matrices {
            words.check(asked)?;
        }
        Ok(())
    }

    /// Writes the matrices and the nearest NICs, as one document or as text.
    pub(super) fn show(&self, json: bool, paint: Paint, output: &mut Output) -> Result<Exit> {
        let is_empty = self.peer_access.is_empty()
            && self.matrices.iter().all(|words| words.devices.is_empty());
        let exit = if is_empty {
            Exit::Undecided
        } else {
            Exit::Fine
        };
        if json {
            output.json(self)?;
            return Ok(exit);
        }
        for (number, words) in self.matrices.iter().enumerate() {
            if number > 0 {
                output.line("")?;
            }
            words.show(paint, output)?;
        }
        for peers in &self.peer_access {
            peers.show(output)?;
        }
        for words in &self.left_out {
            output.line(format_args!("\nnot shown: {words}"))?;
        }
        Ok(exit)
    }

    /// Writes what is known about one pair: by the first matrix that has both.
    pub(super) fn why(
        &self,
        (a, b): (&str, &str),
        json: bool,
        output: &mut Output,
    ) -> Result<Exit> {
        let has_both = |words: &&Words| words.place(a).is_ok() && words.place(b).is_ok();
        let words = self.matrices.iter().find(has_both);
        let Some(words) = words.or(self.matrices.first()) else {
            anyhow::bail!("the capture contains no distance matrix");
        };
        words.why((a, b), json, output)
    }
}

impl Words {
    /// Returns a matrix of nvidia-smi.
    fn of_matrix(matrix: &TopoMatrix) -> Self {
        let devices: Vec<Named> = (matrix.devices.iter())
            .map(|heading| Named {
                heading: heading.clone(),
                name: (matrix.legend.iter())
                    .find(|(short, _)| short == heading)
                    .map(|(_, long)| long.clone()),
                affinity: (matrix.rows.iter())
                    .find(|row| row.device == *heading)
                    .and_then(Affinity::of_row),
                ..Named::default()
            })
            .collect();
        let classes = matrix.classes();
        let classes = classes.into_iter().map(|row| {
            let class = |class: Option<_>| class.map_or(DistanceClass::Unknown, DistanceClass::Smi);
            row.into_iter().map(class).collect()
        });
        let unequal = gdr_doctor::distances::nvlinks(matrix)
            .filter(|finding| finding.verdict != Verdict::Pass)
            .map(|finding| finding.summary);
        Self {
            nvlinks: unequal,
            ..Self::new("nvidia-smi", Vocabulary::Smi, devices, classes.collect())
        }
    }

    /// Returns a topology of NCCL.
    fn of_nccl(topology: &NcclTopology, left_out: &mut Vec<LeftOut>) -> Self {
        let graph = NcclGraph::from_topology(topology);
        let mut found = Found::default();
        for cpu in &topology.cpus {
            for node in &cpu.pci {
                found.take(node);
            }
            for net in &cpu.nets {
                found.net(&net.name, None, net.gdr);
            }
        }
        if found.nics.is_empty() {
            for bdf in graph.nics() {
                found.net("", Some(bdf), None);
            }
        }
        if found.gpus.is_empty() {
            found.gpus.extend(graph.gpus().map(|bdf| Named {
                heading: format!("GPU{bdf}"),
                pci: Some(bdf.to_string()),
                ..Named::default()
            }));
        }
        for (number, gpu) in found.gpus.iter_mut().enumerate() {
            gpu.heading = format!("GPU{number}");
        }
        for (number, nic) in found.nics.iter_mut().enumerate() {
            nic.heading = format!("NIC{number}");
        }
        let gpus = found.gpus.len();
        let mut devices = found.gpus;
        devices.extend(found.nics);
        if let Some(more) = devices.len().checked_sub(MOST_DEVICES).filter(|n| *n > 0) {
            left_out.push(LeftOut::Devices(more));
            devices.truncate(MOST_DEVICES);
        }
        let columns: Vec<NcclDevice<'_>> = (devices.iter().enumerate())
            .map(|(place, device)| {
                let at = device.pci.as_ref().and_then(|pci| pci.parse::<Bdf>().ok());
                match (at, &device.name) {
                    (Some(at), _) if place < gpus => NcclDevice::Gpu(at),
                    (_, Some(name)) => NcclDevice::Net(name),
                    (Some(at), None) => NcclDevice::At(at),
                    (None, None) => NcclDevice::Net(""),
                }
            })
            .collect();
        let classes = graph.classes(&columns);
        let classes = classes.into_iter().map(|row| {
            let class =
                |class: Option<_>| class.map_or(DistanceClass::Unknown, DistanceClass::Nccl);
            row.into_iter().map(class).collect()
        });
        Self::new("nccl", Vocabulary::Nccl, devices, classes.collect())
    }

    fn new(
        tool: &'static str,
        vocabulary: Vocabulary,
        devices: Vec<Named>,
        mut classes: Vec<Vec<DistanceClass>>,
    ) -> Self {
        for (place, row) in classes.iter_mut().enumerate() {
            row[place] = DistanceClass::Same;
        }
        let nearest = (devices.iter().zip(&classes))
            .filter(|(device, _)| device.is_gpu())
            .filter_map(|(gpu, row)| nearest(gpu, &devices, row))
            .collect();
        Self {
            tool,
            devices,
            classes,
            nearest,
            vocabulary,
            nvlinks: None,
        }
    }

    fn check(&self, asked: Option<Vocabulary>) -> Result<(), UsageError> {
        match asked {
            Some(asked) if asked != self.vocabulary => Err(UsageError(format!(
                "the capture uses only the distance names of {}; for other names, pass a PCI tree, such as \
                 the output of `lspci -D -nn -vvv`",
                self.tool
            ))),
            _ => Ok(()),
        }
    }

    fn show(&self, paint: Paint, output: &mut Output) -> Result<()> {
        if self.devices.is_empty() {
            let words = "The file names no GPU and no NIC: it is a template that NCCL completes on the \
                         machine. For that, each `cpu` element needs arch, vendor and affinity; otherwise \
                         NCCL aborts.";
            return Ok(output.paragraph("", "", words)?);
        }
        let headings: Vec<&str> = (self.devices.iter())
            .map(|device| device.heading.as_str())
            .collect();
        let has_affinity = self.devices.iter().any(|device| device.affinity.is_some());
        let more = if has_affinity { AFFINITY_HEADINGS } else { "" };
        output.line(format_args!("\t{}{more}", headings.join("\t")))?;
        for (device, row) in self.devices.iter().zip(&self.classes) {
            let mut line = device.heading.clone();
            for class in row {
                line.push('\t');
                match class {
                    DistanceClass::Same => line.push_str(&paint.word(*class, " X ")),
                    class => line.push_str(&paint.word(*class, &class.to_string())),
                }
            }
            if let Some(affinity) = &device.affinity {
                line.push_str(&affinity.columns());
            }
            output.line(line)?;
        }
        output.line(format_args!("\nLegend:\n\n{}", self.vocabulary.legend()))?;
        let mut named = (self.devices.iter())
            .filter(|device| device.name.is_some() || device.pci.is_some())
            .peekable();
        if named.peek().is_some() {
            output.line("Devices:\n")?;
            for device in named {
                let ranks: Vec<String> = device.ranks.iter().map(ToString::to_string).collect();
                let words = [
                    device.name.clone(),
                    device.pci.clone(),
                    (ranks.len() > 1).then(|| format!("ranks {}", ranks.join(", "))),
                    device.gdr.map(|gdr| format!("gdr={}", u8::from(gdr))),
                ];
                let words: Vec<String> = words.into_iter().flatten().collect();
                output.line(format_args!("  {}: {}", device.heading, words.join("  ")))?;
            }
            output.line("")?;
        }
        if !self.nearest.is_empty() {
            output.line("Nearest NICs:\n")?;
        }
        for it in &self.nearest {
            let gdr = match &it.gdr {
                Some(gdr) if gdr.used => format!(", GPUDirect RDMA: {}", gdr.why),
                Some(gdr) => format!(", no GPUDirect RDMA: {}", gdr.why),
                None => String::new(),
            };
            output.line(format_args!(
                "  {}: {} ({}){gdr}",
                it.gpu,
                names(&it.nics, it.nics_left_out),
                it.class
            ))?;
        }
        if let Some(words) = &self.nvlinks {
            output.line(format_args!("\n{words}."))?;
        }
        if let Some(words) = self.verdict() {
            output.line(format_args!("\n{words}"))?;
        }
        Ok(())
    }

    /// Returns a summary of NCCL's file.
    fn verdict(&self) -> Option<String> {
        let all: Vec<&Gdr> = (self.nearest.iter())
            .filter_map(|it| it.gdr.as_ref())
            .collect();
        let used = all.iter().filter(|gdr| gdr.used).count();
        let without = |is_gpu: bool| {
            let mut of = (self.devices.iter())
                .filter(|device| device.is_gpu() == is_gpu)
                .peekable();
            of.peek().is_some() && of.all(|device| device.gdr == Some(false))
        };
        if all.is_empty() {
            return None;
        }
        Some(if without(false) {
            "NCCL does not use GPUDirect RDMA here: the file has gdr=\"0\" for every NIC, which NCCL \
             writes if\nneither nvidia-peermem nor dma-buf lets the NIC register GPU memory."
                .to_owned()
        } else if without(true) {
            "NCCL does not use GPUDirect RDMA here: the file has gdr=\"0\" for every GPU."
                .to_owned()
        } else {
            format!(
                "NCCL uses GPUDirect RDMA by default for {used} of {}.",
                Counted(all.len(), "GPU")
            )
        })
    }

    fn place(&self, name: &str) -> Result<usize, UsageError> {
        (self.devices.iter())
            .position(|device| device.is(name))
            .ok_or_else(|| {
                let known: Vec<&str> = self.devices.iter().map(Named::shown).collect();
                UsageError(format!(
                    "device `{name}` does not exist: the devices are {}",
                    known.join(", ")
                ))
            })
    }

    fn why(&self, (a, b): (&str, &str), json: bool, output: &mut Output) -> Result<Exit> {
        let (a, b) = (self.place(a)?, self.place(b)?);
        let class = self.classes[a][b];
        let (from, to) = (self.devices[a].shown(), self.devices[b].shown());
        let word = class.to_string();
        let exit = match class {
            DistanceClass::Unknown => Exit::Undecided,
            _ => Exit::Fine,
        };
        let meaning = (self.vocabulary.legend().lines())
            .filter_map(|line| line.split_once('='))
            .find(|(known, _)| {
                known.trim() == word || (known.trim() == "NV#" && word.starts_with("NV"))
            })
            .map(|(_, meaning)| meaning.trim());
        if json {
            output.json(&Why {
                schema: Schema::first("gdr.topo-why-words"),
                tool: self.tool,
                a: from,
                b: to,
                class,
                meaning,
            })?;
            return Ok(exit);
        }
        if class == DistanceClass::Unknown {
            output.line(format_args!("{from} - {to}: the capture does not say"))?;
            return Ok(exit);
        }
        output.line(format_args!("{from} - {to}: {word}"))?;
        if let Some(meaning) = meaning {
            output.line(format_args!("    {meaning}"))?;
        }
        for device in [&self.devices[a], &self.devices[b]] {
            if let Some(Affinity { cpus, numa, .. }) = &device.affinity {
                let numa = numa.as_deref().unwrap_or("N/A");
                let name = device.shown();
                output.line(format_args!("    {name}: CPUs {cpus}, NUMA node {numa}"))?;
            }
        }
        if let DistanceClass::Smi(class) = class
            && self.devices[a].is_gpu() != self.devices[b].is_gpu()
        {
            show_rates(&rates(class), output)?;
        }
        output
            .line("    the reason is unknown: the capture contains only distances, no PCI tree")?;
        Ok(exit)
    }
}

/// What is known about one pair.
#[derive(Serialize)]
struct Why<'a> {
    #[serde(flatten)]
    schema: Schema,
    tool: &'static str,
    a: &'a str,
    b: &'a str,
    class: DistanceClass,
    meaning: Option<&'a str>,
}

/// Returns the NICs nearest to a GPU.
fn nearest(gpu: &Named, devices: &[Named], row: &[DistanceClass]) -> Option<Nearest> {
    let nics = || (devices.iter().zip(row)).filter(|(nic, _)| !nic.is_gpu());
    let known =
        |class: &DistanceClass| !matches!(class, DistanceClass::Unknown | DistanceClass::Same);
    let class = nics().map(|(_, class)| *class).filter(known).min()?;
    let mut found = nics().filter(|(_, of)| **of == class);
    let (first, _) = found.clone().next()?;
    // For NCCL, one usable NIC among the nearest is enough.
    let allowed = found.clone().find(|(nic, _)| nic.gdr == Some(true));
    let nic = allowed.map_or(first, |(nic, _)| nic);
    let nics = (found.by_ref().take(MOST_NEAREST))
        .map(|(nic, _)| nic.shown().to_owned())
        .collect();
    Some(Nearest {
        gpu: gpu.heading.clone(),
        class,
        nics,
        nics_left_out: found.count(),
        gdr: match class {
            DistanceClass::Nccl(class) => Some(gdr(gpu, nic, class)),
            _ => None,
        },
    })
}

/// Returns whether NCCL uses GPUDirect RDMA for a pair by default (`ncclTopoCheckGdr`): the devices' attributes in its
/// file take precedence over the distance.
fn gdr(gpu: &Named, nic: &Named, class: NcclClass) -> Gdr {
    let (used, why) = match (gpu.gdr, nic.gdr) {
        (_, Some(false)) => (false, format!("the file has gdr=\"0\" for {}", nic.shown())),
        (Some(false), _) => (false, format!("the file has gdr=\"0\" for {}", gpu.heading)),
        _ if !class.is_gdr_by_default() => (
            false,
            format!("{class} is farther than NCCL's default (NCCL_NET_GDR_LEVEL)"),
        ),
        (Some(true), Some(true)) => (true, "by default".to_owned()),
        _ => (
            true,
            "by default, if the devices support it (the file has no gdr)".to_owned(),
        ),
    };
    Gdr { used, why }
}

/// Devices of a topology, in its order.
#[derive(Default)]
struct Found {
    gpus: Vec<Named>,
    nics: Vec<Named>,
}

impl Found {
    fn take(&mut self, node: &PciNode) {
        let is_gpu = node.identity.class.is_some_and(|class| class.is_gpu());
        if !node.gpus.is_empty() || (is_gpu && node.nets.is_empty()) {
            let flags = node.gpus.iter().filter_map(|gpu| gpu.gdr);
            self.gpus.push(Named {
                pci: Some(node.bdf.to_string()),
                gdr: flags.reduce(|a, b| a && b),
                ranks: node.gpus.iter().filter_map(|gpu| gpu.rank).collect(),
                ..Named::default()
            });
        }
        for net in &node.nets {
            self.net(&net.name, Some(node.bdf), net.gdr);
        }
        for child in &node.children {
            self.take(child);
        }
    }

    fn net(&mut self, name: &str, at: Option<Bdf>, gdr: Option<bool>) {
        self.nics.push(Named {
            name: Some(name.to_owned()).filter(|name| !name.is_empty()),
            pci: at.map(|at| at.to_string()),
            gdr,
            ..Named::default()
        });
    }
}

impl Peers {
    fn new(matrix: &PeerMatrix) -> Self {
        Self {
            devices: matrix.devices.clone(),
            rows: (matrix.rows.iter())
                .map(|(gpu, access)| PeerRow {
                    gpu: gpu.clone(),
                    access: access.iter().map(ToString::to_string).collect(),
                })
                .collect(),
        }
    }

    fn show(&self, output: &mut Output) -> Result<()> {
        output.line("\nPeer access between GPUs (nvidia-smi topo -p2p):\n")?;
        output.line(format_args!("\t{}", self.devices.join("\t")))?;
        for row in &self.rows {
            output.line(format_args!("{}\t{}", row.gpu, row.access.join("\t")))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use gdr_node::import::{nccl_xml, topo_matrix};

    use super::*;

    fn words(row: &[DistanceClass]) -> Vec<String> {
        row.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_matrix_has_its_words_and_the_nearest_nics() {
        let text = "\tGPU0\tGPU1\tNIC0\tNIC1\nGPU0\t X \tNV4\tPIX\tSYS\n\
                    GPU1\tNV4\t X \tSYS\tSYS\n\nNIC Legend:\n\n  NIC0: mlx5_0\n";
        let found = Distances::new(&topo_matrix::read(text).unwrap(), &[]);
        let matrix = &found.matrices[0];
        // Rows missing from an excerpt are taken from the columns.
        assert_eq!(words(&matrix.classes[2]), ["PIX", "SYS", "X", "?"]);
        assert_eq!(matrix.nearest[0].nics, ["mlx5_0"]);
        assert_eq!(matrix.nearest[1].nics, ["mlx5_0", "NIC1"]);
        assert!(found.check(Some(Vocabulary::Nccl)).is_err());
        assert!(found.check(None).is_ok());
    }

    #[test]
    fn several_matrices_of_a_page_are_one_document() {
        let text = "GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX X\n\nGPU0 GPU1\nGPU0 X OK\nGPU1 OK X\n\n\
                    GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X\n";
        let found = Distances::new(&topo_matrix::read(text).unwrap(), &[]);
        let document = serde_json::to_value(&found).unwrap();
        assert_eq!(document["schema"], "gdr.topo-words");
        assert_eq!(document["matrices"][0]["classes"][0][1], "PIX");
        assert_eq!(document["matrices"][1]["classes"][0][1], "SYS");
        assert_eq!(document["peer_access"][0]["rows"][0]["access"][1], "OK");
    }

    fn nccl(inside: &str) -> Words {
        let xml = format!("<system version=\"1\"><cpu numaid=\"0\">{inside}</cpu></system>");
        let topology = nccl_xml::read(&xml).unwrap();
        Distances::new(&Matrices::default(), &[topology])
            .matrices
            .remove(0)
    }

    #[test]
    fn a_gpu_without_nvlinks_among_others_with_them_is_named() {
        let text = "GPU0 GPU1 GPU2\nGPU0 X NV18 NV18\nGPU1 NV18 X NV18\nGPU2 NV18 NV18 X\n";
        let words = |text: &str| {
            let matrix = topo_matrix::read_all(text).unwrap().remove(0);
            Words::of_matrix(&matrix).nvlinks
        };
        assert_eq!(words(text), None);
        let text = "GPU0 GPU1 GPU2\nGPU0 X NV18 SYS\nGPU1 NV18 X SYS\nGPU2 SYS SYS X\n";
        let found = words(text).unwrap();
        assert!(found.starts_with("GPU2 has no NVLink"), "{found}");
    }

    #[test]
    fn a_topology_of_nccl_speaks_its_words() {
        let matrix = nccl(
            r#"<pci busid="0000:10:00.0" class="0x060400">
              <pci busid="0000:11:00.0" class="0x030200"><gpu dev="0"/></pci>
              <pci busid="0000:12:00.0" class="0x020700"><nic><net name="mlx5_7"/></nic></pci>
            </pci>
            <pci busid="0000:20:00.0" class="0x030200"><gpu dev="1"/></pci>
            <nic><net name="eth0"/></nic>"#,
        );
        assert_eq!(words(&matrix.classes[0]), ["X", "PHB", "PIX", "PHB"]);
        assert_eq!(matrix.devices[2].name.as_deref(), Some("mlx5_7"));
        assert_eq!(matrix.devices[3].name.as_deref(), Some("eth0"));
        assert!(matrix.devices[1].is("0000:20:00.0"));
    }

    #[test]
    fn a_device_that_nccls_file_bars_uses_no_gpudirect_rdma() {
        let of = |gpu: &str, nic: &str| {
            nccl(&format!(
                r#"<pci busid="0000:10:00.0" class="0x060400">
                  <pci busid="0000:11:00.0" class="0x030200"><gpu dev="0" {gpu}/></pci>
                  <pci busid="0000:12:00.0" class="0x020700"><nic><net name="a" {nic}/></nic></pci>
                </pci>"#
            ))
        };
        for (gpu, nic, used) in [
            (r#"gdr="1""#, r#"gdr="1""#, true),
            (r#"gdr="1""#, r#"gdr="0""#, false),
            (r#"gdr="0""#, r#"gdr="1""#, false),
            ("", "", true),
        ] {
            let words = of(gpu, nic);
            assert_eq!(
                words.nearest[0].gdr.as_ref().unwrap().used,
                used,
                "{gpu} {nic}"
            );
        }
        let barred = of(r#"gdr="1""#, r#"gdr="0""#);
        assert!(barred.verdict().unwrap().contains("for every NIC"));
        let fine = of(r#"gdr="1""#, r#"gdr="1""#);
        assert!(fine.verdict().unwrap().contains("1 of 1 GPU."));
    }

    #[test]
    fn the_ranks_of_one_gpu_are_all_named() {
        let matrix = nccl(
            r#"<pci busid="0000:11:00.0" class="0x030200"><gpu dev="0" rank="3"/>
               <gpu dev="0" rank="4"/></pci>"#,
        );
        assert_eq!(matrix.devices[0].ranks, [3, 4]);
    }
}
