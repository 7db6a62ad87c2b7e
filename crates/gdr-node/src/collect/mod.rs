//! Collecting: reading all that matters of a node into an [`Archive`].
//!
//! Nothing is changed and no program is run here; a machine with eight GPUs takes a second or two.
//! [`collect`] reads what the plan lists. [`Recorder`] lets any other reader go over the same
//! node, so that what it asks is in the archive too.

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

/// How far a collection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being read.
    pub step: &'static str,
    /// How many steps are done.
    pub done: usize,
    /// How many there are.
    pub total: usize,
}

/// Reads all that matters of a node.
pub fn collect(source: &dyn Source, origin: Origin, progress: impl FnMut(Progress)) -> Archive {
    let recorder = Recorder::new(source);
    read_all(&recorder, progress);
    recorder.finish(origin)
}

/// Reads all that matters of a node through a [`Recorder`], which may have read and may still read
/// other things.
pub fn read_all(recorder: &Recorder<'_>, mut progress: impl FnMut(Progress)) {
    let total = plan::STEPS.len() + 1;
    for (done, step) in plan::STEPS.iter().enumerate() {
        let step_name = step.name;
        progress(Progress {
            step: step_name,
            done,
            total,
        });
        run(recorder, step);
    }
    progress(Progress {
        step: "topology",
        done: total - 1,
        total,
    });
    let inventory = Inventory::read(recorder);
    interrupts(recorder, &inventory);
    // What nodes are compared by, whatever the plan forgot.
    Facts::read(recorder);
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

/// The paths that a pattern stands for: in names with a `*`, all that the directory lists and
/// that begin and end so.
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
            let names = source.list(at).into_present().unwrap_or_default();
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

/// The CPUs that the interrupts of network devices go to: too many to read those of all devices.
fn interrupts(source: &dyn Source, inventory: &Inventory) {
    const NETWORK: u32 = 0x02;
    let functions = inventory.tree.present().into_iter();
    for function in functions.flat_map(|tree| tree.functions()) {
        let is_network = |class: Class| class.0 >> 16 == NETWORK;
        if !function.identity.class.is_some_and(is_network) {
            continue;
        }
        let path = format!("/sys/bus/pci/devices/{}/msi_irqs", function.bdf);
        for irq in source.list(&path).into_present().unwrap_or_default() {
            drop(source.read(&format!("{path}/{irq}")));
            drop(source.read(&format!("/proc/irq/{irq}/effective_affinity_list")));
            drop(source.read(&format!("/proc/irq/{irq}/smp_affinity_list")));
        }
    }
}
