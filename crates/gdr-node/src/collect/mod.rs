//! Collecting: recording the facts about a node in an [`Archive`].
//!
//! Collecting changes nothing and runs no program; a machine with eight GPUs takes a second or two. [`collect`] records
//! the readers of this crate and the additional paths of the plan. Reads of other readers through the same [`Recorder`]
//! are archived as well.

mod plan;
mod recorder;
#[cfg(test)]
mod tests;

pub use recorder::Recorder;

use crate::archive::{Archive, Origin};
use crate::compare::Facts;
use crate::inventory::Inventory;
use crate::pci::Class;
use crate::source::Source;
use plan::{Ask, Step};

/// The progress of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The current step.
    pub step: &'static str,
    /// The number of finished steps.
    pub done: usize,
    /// The number of steps.
    pub total: usize,
}

/// Records the facts about a node.
pub fn collect(source: &dyn Source, origin: Origin, progress: impl FnMut(Progress)) -> Archive {
    let recorder = Recorder::new(source);
    read_all(&recorder, progress);
    recorder.finish(origin)
}

/// Records the facts about a node with a [`Recorder`], which other readers may share.
pub fn read_all(recorder: &Recorder<'_>, mut progress: impl FnMut(Progress)) {
    let total = plan::STEPS.len() + 1;
    progress(Progress {
        step: "devices",
        done: 0,
        total,
    });
    let inventory = Inventory::read(recorder);
    interrupts(recorder, &inventory);
    Facts::read(recorder);
    for (done, step) in (1..).zip(plan::STEPS) {
        progress(Progress {
            step: step.name,
            done,
            total,
        });
        run(recorder, step);
    }
}

fn run(source: &dyn Source, step: &Step) {
    for ask in step.asks {
        let (Ask::Files(below, names) | Ask::Links(below, names) | Ask::Lists(below, names)) = ask;
        for directory in expand(source, below) {
            for name in *names {
                let path = format!("{}/{name}", directory.trim_end_matches('/'));
                for path in expand(source, &path) {
                    // The recorder keeps the answers.
                    match ask {
                        Ask::Files(..) => drop(source.read(&path)),
                        Ask::Links(..) => drop(source.link(&path)),
                        Ask::Lists(..) => drop(source.list(&path)),
                    }
                }
            }
        }
    }
}

/// Expands a pattern. A `*` matches any part of one name, for which the directory is listed.
fn expand(source: &dyn Source, pattern: &str) -> Vec<String> {
    let mut paths = vec![String::new()];
    for part in pattern.split('/').skip(1) {
        let Some((head, tail)) = part.split_once('*') else {
            for path in &mut paths {
                path.push('/');
                path.push_str(part);
            }
            continue;
        };
        let matching = |directory: String| {
            let at = if directory.is_empty() {
                "/"
            } else {
                &directory
            };
            let names = source.list(at).ok().unwrap_or_default();
            let names = names.into_iter().filter(move |name| {
                name.len() >= head.len() + tail.len()
                    && name.starts_with(head)
                    && name.ends_with(tail)
            });
            names
                .map(|name| format!("{directory}/{name}"))
                .collect::<Vec<_>>()
        };
        paths = paths.into_iter().flat_map(matching).collect();
    }
    paths
}

/// Reads the CPU affinity of network devices' interrupts only, as there are too many others.
fn interrupts(source: &dyn Source, inventory: &Inventory) {
    const NETWORK: u32 = 0x02;
    let functions = inventory.tree.as_ref().ok().into_iter();
    for function in functions.flat_map(|tree| tree.functions()) {
        let is_network = |class: Class| class.0 >> 16 == NETWORK;
        if !function.identity.class.is_some_and(is_network) {
            continue;
        }
        let path = format!("/sys/bus/pci/devices/{}/msi_irqs", function.bdf);
        for irq in source.list(&path).ok().unwrap_or_default() {
            drop(source.read(&format!("{path}/{irq}")));
            drop(source.read(&format!("/proc/irq/{irq}/effective_affinity_list")));
            drop(source.read(&format!("/proc/irq/{irq}/smp_affinity_list")));
        }
    }
}
