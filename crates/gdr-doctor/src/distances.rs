//! Verdicts on the distances in the output of other tools: the matrix of `nvidia-smi topo -m` and
//! NCCL's topology dump. They have the distances of GPUs and NICs, NCCL's also whether it uses
//! GPUDirect RDMA, and no other facts of the node.

use std::fmt::Display;

use gdr_node::Bdf;
use gdr_node::import::nccl_xml::{NcclTopology, Net, PciNode};
use gdr_node::import::topo_matrix::TopoMatrix;
use gdr_node::topology::{NcclClass, NcclGraph, SmiClass};

use crate::check::CheckId;
use crate::context::Context;
use crate::diagnosis::{Diagnosis, Selection, diagnose_instead};
use crate::finding::{Finding, Subject, Verdict};
use crate::fix::Fix;
use crate::nvlink::{self, Links};

const DISTANCE: CheckId = CheckId("topo.pair");
const NVLINK: CheckId = CheckId("nvlink.equal");
const WAY_IN: CheckId = CheckId("peermem.loaded");
const CLASS: CheckId = CheckId("gpu.class");

/// The most GPUs and the most network devices that are examined, far more than a machine has.
const MOST: usize = 128;

/// Judges the matrix of a node. All other facts are unknown.
pub fn of_matrix(context: &Context<'_>, selection: &Selection, matrix: &TopoMatrix) -> Diagnosis {
    let is_gpu = |name: &str| name.starts_with("GPU");
    let called = |name: &str| {
        let known = matrix.legend.iter().find(|(short, _)| short == name);
        known.map_or_else(|| name.to_owned(), |(_, long)| long.clone())
    };
    let nics: Vec<&String> = (matrix.devices.iter())
        .filter(|name| !is_gpu(name))
        .take(MOST)
        .collect();
    let gpus = matrix.devices.iter().filter(|name| is_gpu(name));
    let gpus: Vec<&String> = gpus.take(MOST).collect();
    let mut found: Vec<(CheckId, Finding)> = (gpus.iter())
        .map(|gpu| {
            let classes = nics.iter().filter_map(|nic| {
                let class = matrix.class(gpu, nic)?;
                Some((called(nic), class))
            });
            let judge = |class: SmiClass| match class {
                SmiClass::Phb | SmiClass::Node => Verdict::Warn,
                SmiClass::Sys => Verdict::Fail,
                _ => Verdict::Pass,
            };
            (DISTANCE, nearest(gpu, classes.collect(), judge))
        })
        .collect();
    found.extend(nvlinks(matrix).map(|finding| (NVLINK, finding)));
    diagnose_instead(context, selection, found)
}

/// Returns the finding about the NVLinks in a matrix; `None` if it has none, or lacks cells.
pub fn nvlinks(matrix: &TopoMatrix) -> Option<Finding> {
    let gpus = matrix.devices.iter().filter(|name| name.starts_with("GPU"));
    let names: Vec<String> = gpus.take(MOST).cloned().collect();
    let pairs = (0..names.len()).flat_map(|a| (a + 1..names.len()).map(move |b| (a, b)));
    let mut links = Vec::new();
    for (a, b) in pairs {
        // A row that an excerpt lacks would count as a row without links.
        let class =
            (matrix.class(&names[a], &names[b])).or_else(|| matrix.class(&names[b], &names[a]))?;
        if let SmiClass::Nv(count) = class {
            links.push(Links {
                between: (a, b),
                count,
            });
        }
    }
    nvlink::judge(&names, &links)
}

/// Judges NCCL's topology of a node. All other facts are unknown.
pub fn of_nccl(context: &Context<'_>, selection: &Selection, topology: &NcclTopology) -> Diagnosis {
    let mut devices = Devices::default();
    for cpu in &topology.cpus {
        devices.nets.extend(cpu.nets.iter().map(|net| (None, net)));
        for node in &cpu.pci {
            devices.add(node, 0);
        }
    }
    devices.gpus.truncate(MOST);
    devices.nets.truncate(MOST);
    let graph = NcclGraph::from_topology(topology);
    let direct = |net: &Net| net.gdr != Some(false);
    let mut found = Vec::new();
    for (number, (gpu, node)) in devices.gpus.iter().enumerate() {
        let dev = node.dev.and_then(|dev| usize::try_from(dev).ok());
        let name = format!("GPU{}", dev.unwrap_or(number));
        if node.sm.is_some_and(|sm| (1..30).contains(&sm)) {
            found.push((CLASS, before_kepler(&name, node.sm)));
        }
        let classes = (devices.nets.iter())
            .filter(|(_, net)| direct(net))
            .filter_map(|(at, net)| {
                let class = graph.class(*gpu, (*at)?)?;
                Some((net.name.clone(), class))
            });
        let judge = |class: NcclClass| match class {
            _ if class <= NcclClass::Pxn => Verdict::Pass,
            NcclClass::Phb => Verdict::Warn,
            _ => Verdict::Fail,
        };
        found.push((DISTANCE, nearest(&name, classes.collect(), judge)));
        if node.gdr == Some(false) {
            let why = "NCCL found that the network cannot access its memory (gdr=\"0\" of the GPU)";
            let finding = Finding::fail(why).about(Subject::Named(name)).fix(load());
            found.push((WAY_IN, finding));
        }
    }
    found.extend(ways_in(&devices.nets).into_iter().map(|it| (WAY_IN, it)));
    diagnose_instead(context, selection, found)
}

/// The devices of a topology, in its order.
#[derive(Default)]
struct Devices<'a> {
    gpus: Vec<(Bdf, &'a gdr_node::import::nccl_xml::Gpu)>,
    nets: Vec<(Option<Bdf>, &'a Net)>,
}

impl<'a> Devices<'a> {
    fn add(&mut self, node: &'a PciNode, depth: usize) {
        // Readers refuse what is nested deeper than machines are.
        if depth > MOST {
            return;
        }
        self.gpus
            .extend(node.gpus.iter().map(|gpu| (node.bdf, gpu)));
        let nets = node.nets.iter().map(|net| (Some(node.bdf), net));
        self.nets.extend(nets);
        for child in &node.children {
            self.add(child, depth + 1);
        }
    }
}

/// Returns the finding about the distances of a GPU.
fn nearest<C: Copy + Ord + Display>(
    gpu: &str,
    classes: Vec<(String, C)>,
    judge: impl Fn(C) -> Verdict,
) -> Finding {
    let subject = Subject::Named(gpu.to_owned());
    let Some(least) = classes.iter().map(|(_, class)| *class).min() else {
        return Finding::new(Verdict::Skip, "the output has no RDMA NIC").about(subject);
    };
    let names: Vec<&str> = (classes.iter())
        .filter(|(_, class)| *class == least)
        .map(|(name, _)| name.as_str())
        .collect();
    let names = names.join(", ");
    let verdict = judge(least);
    let summary = match verdict {
        Verdict::Pass => format!("{names} at {least}"),
        Verdict::Warn => format!(
            "its nearest NIC is {names} at {least}; NCCL does not use GPUDirect RDMA at this \
             distance by default"
        ),
        _ => {
            format!(
                "its nearest NIC is {names} at {least}: staging through host memory is often \
                     faster"
            )
        }
    };
    let all: Vec<String> = (classes.iter())
        .map(|(name, class)| format!("{name} {class}"))
        .collect();
    let finding = Finding::new(verdict, summary)
        .about(subject)
        .evidence("classes", all.join(", "));
    if verdict.is_bad() {
        finding.fix(Fix::hardware(
            "Move a NIC nearer to the GPU",
            "move the NIC or the GPU to a slot below the same switch, or at least the same root \
             port",
        ))
    } else {
        finding
    }
}

/// Returns whether NCCL uses GPUDirect RDMA with each network device: its attribute `gdr`.
fn ways_in(nets: &[(Option<Bdf>, &Net)]) -> Vec<Finding> {
    let named = |wanted: bool| -> Vec<&str> {
        (nets.iter())
            .filter(|(_, net)| net.gdr == Some(wanted))
            .map(|(_, net)| net.name.as_str())
            .collect()
    };
    let (yes, no) = (named(true), named(false));
    let mut findings = Vec::new();
    if !yes.is_empty() {
        let summary = format!("NCCL uses GPUDirect RDMA with {}", yes.join(", "));
        findings.push(Finding::pass(summary).evidence("gdr", "1"));
    }
    if no.is_empty() {
        return findings;
    }
    let summary = format!("NCCL stages through host memory with {}", no.join(", "));
    let finding = if yes.is_empty() {
        Finding::fail(format!("{summary}: GPUDirect RDMA is off"))
    } else {
        Finding::warn(summary)
    };
    findings.push(finding.evidence("gdr", "0").fix(load()));
    findings
}

fn before_kepler(name: &str, sm: Option<u32>) -> Finding {
    let subject = Subject::Named(name.to_owned());
    Finding::fail("it is older than Kepler, the first generation with GPUDirect RDMA")
        .about(subject)
        .evidence("sm", sm.map_or_else(String::new, |sm| sm.to_string()))
}

fn load() -> Fix {
    Fix::manual(
        "Find out why on the node itself",
        "run `sudo gdr doctor --for nccl` there: it needs dma-buf or a peer-memory module, and a \
         network plugin that uses it",
    )
}

#[cfg(test)]
mod tests {
    use gdr_node::import::{nccl_xml, topo_matrix};
    use gdr_node::{Absence, Inventory, MemorySource, NumaLayout};

    use super::*;
    use crate::diagnosis::Outcome;

    fn judged<T>(of: impl Fn(&Context<'_>, &Selection, &T) -> Diagnosis, capture: &T) -> Diagnosis {
        let source = MemorySource::partial();
        let inventory = Inventory::of_tree(Err(Absence::NotCollected), NumaLayout::unknown());
        of(
            &Context::new(&source, &inventory),
            &Selection::all(),
            capture,
        )
    }

    fn verdicts(diagnosis: &Diagnosis, check: CheckId) -> Vec<Verdict> {
        let found = diagnosis.findings.iter().filter(|it| it.check.id == check);
        found.map(|judged| judged.finding.verdict).collect()
    }

    #[test]
    fn a_matrix_gets_a_verdict_on_the_distances_and_on_nothing_else() {
        let text = "\tGPU0\tGPU1\tGPU2\tNIC0\nGPU0\t X \tPIX\tSYS\tPXB\nGPU1\tPIX\t X \tSYS\tNODE\n\
                    GPU2\tSYS\tSYS\t X \tSYS\nNIC0\tPXB\tNODE\tSYS\t X \n\n  NIC0: mlx5_3\n";
        let matrix = topo_matrix::read_all(text).unwrap().remove(0);
        let diagnosis = judged(of_matrix, &matrix);
        assert_eq!(
            verdicts(&diagnosis, DISTANCE),
            [Verdict::Pass, Verdict::Warn, Verdict::Fail]
        );
        assert_eq!(diagnosis.outcome(), Outcome::Failure);
        let known = |judged: &&crate::Reported| judged.finding.verdict != Verdict::Unknown;
        let others = diagnosis.findings.iter().filter(known);
        assert!(others.clone().all(|it| it.check.id == DISTANCE));
    }

    #[test]
    fn gdr_of_an_nccl_dump_is_what_is_judged_first() {
        let dump = |net: u32, gpu: u32| {
            let text = format!(
                "<system version=\"1\"><cpu numaid=\"0\" affinity=\"1\" arch=\"x86_64\" \
                 vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"143\">\
                 <pci busid=\"0000:10:00.0\" class=\"0x060400\" link_speed=\"32 GT/s\" \
                 link_width=\"16\">\
                 <pci busid=\"0000:12:00.0\" class=\"0x030200\" link_speed=\"32 GT/s\" \
                 link_width=\"16\"><gpu dev=\"0\" sm=\"90\" rank=\"0\" gdr=\"{gpu}\"/></pci>\
                 <pci busid=\"0000:13:00.0\" class=\"0x020700\" link_speed=\"32 GT/s\" \
                 link_width=\"16\"><nic><net name=\"mlx5_0\" dev=\"0\" speed=\"400000\" \
                 port=\"1\" gdr=\"{net}\"/></nic></pci></pci></cpu></system>"
            );
            judged(of_nccl, &nccl_xml::read(&text).unwrap())
        };
        let works = dump(1, 1);
        assert_eq!(verdicts(&works, WAY_IN), [Verdict::Pass]);
        assert_eq!(verdicts(&works, DISTANCE), [Verdict::Pass]);
        assert_eq!(works.outcome(), Outcome::Undecided);
        assert!(verdicts(&dump(0, 1), WAY_IN).contains(&Verdict::Fail));
        assert!(verdicts(&dump(1, 0), WAY_IN).contains(&Verdict::Fail));
    }
}
