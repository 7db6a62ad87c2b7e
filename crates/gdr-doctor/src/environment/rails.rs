//! The NICs of each GPU.

use std::collections::{BTreeMap, BTreeSet};

use gdr_node::topology::{NcclClass, SmiClass};
use gdr_node::{Bdf, GpuDevice, GpuIndex};
use serde::{Serialize, Serializer};

use crate::checks::best_gid;
use crate::checks::ports::{OtherKind, Port, Which, of_another_kind, ports};
use crate::context::Context;
use crate::judgement::Unjudged;
use crate::nic_assignment::assign;
use crate::runner::no_gpu;

/// The reason why no variable follows from a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoRail {
    /// The node has no GPU, or its GPUs are not known.
    #[error("the node has no GPU to choose NICs for: {0}; read the node on which the job runs")]
    NoGpu(String),
    /// The node has no RDMA device, or its devices are not known.
    #[error(
        "the node has no RDMA NIC: {0}; load the NIC's driver, or read the node from outside the container"
    )]
    NoNic(String),
    /// No port of a NIC is active.
    #[error("no port of an RDMA NIC is active: {}; bring the links up first", .0.join(", "))]
    NoActivePort(Vec<String>),
    /// The distances of GPUs and NICs are not known.
    #[error(
        "the distance between {gpu} and the NICs is unknown; read the node itself, or an archive of it"
    )]
    NoDistance {
        /// The GPU.
        gpu: GpuIndex,
    },
}

impl NoRail {
    /// Returns the code of this error for programs, such as `no_gpu`.
    ///
    /// A variant that gets another name keeps its code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NoGpu { .. } => "no_gpu",
            Self::NoNic { .. } => "no_nic",
            Self::NoActivePort { .. } => "no_active_port",
            Self::NoDistance { .. } => "no_distance",
        }
    }
}

/// A port of a NIC that a GPU uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rail {
    /// The RDMA device.
    pub nic: String,
    /// The number of its port.
    pub port: u32,
    /// Its distance from the GPU over PCI, in the words of nvidia-smi.
    #[serde(rename = "distance", serialize_with = "shown")]
    pub smi: SmiClass,
    /// Its distance in the words of NCCL.
    #[serde(rename = "nccl_distance", serialize_with = "shown")]
    pub nccl: NcclClass,
    /// Whether its link is Ethernet, so that connections name a GID.
    pub ethernet: bool,
    /// The index of the GID that connections should use, if the table is known and has one.
    pub gid_index: Option<u32>,
    /// The number of GPUs that use it.
    pub shared_by: usize,
}

/// A GPU and its NICs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuRails {
    /// The GPU.
    #[serde(serialize_with = "shown")]
    pub gpu: GpuIndex,
    /// Its address.
    #[serde(serialize_with = "shown")]
    pub pci: Bdf,
    /// Its NICs, at least one, by name.
    pub rails: Vec<Rail>,
}

/// The NICs of each GPU of a node: the nearest with an active port of the kind that the node has for
/// data, one of its own where there are enough, and all of them where there are more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rails {
    /// By index of the GPU.
    pub gpus: Vec<GpuRails>,
    /// Active ports that are left out because they have at most half of the best rate.
    pub slower: Vec<String>,
    /// Active ports of Ethernet that are left out because most are InfiniBand.
    pub ethernet: Vec<String>,
    /// Active ports that are nearest to no GPU.
    pub idle: Vec<String>,
}

fn shown<T: ToString, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&value.to_string())
}

/// Returns whether the lists that variables are can hold a name: they separate by commas and
/// colons.
fn is_plain(name: &str) -> bool {
    let plain = |character: char| character.is_ascii_alphanumeric() || "_-.".contains(character);
    !name.is_empty() && name.chars().all(plain)
}

fn why(unjudged: Unjudged) -> String {
    match unjudged {
        Unjudged::Skip(why) => why,
        Unjudged::Unknown(what, absence) => format!("{what} is {absence}"),
        Unjudged::OutOfScope => "it was left out of the report".to_owned(),
    }
}

impl Rails {
    /// Chooses the NICs of each GPU.
    ///
    /// # Errors
    /// The reason why there is nothing to choose.
    pub fn of(context: &Context<'_>) -> Result<Self, NoRail> {
        let gpus: Vec<GpuDevice> = context.gpus().copied().collect();
        if gpus.is_empty() {
            return Err(NoRail::NoGpu(why(no_gpu(context))));
        }
        let all = ports(context).map_err(|unjudged| NoRail::NoNic(why(unjudged)))?;
        let active: Vec<&Port<'_>> = (all.iter())
            .filter(|port| Which::Active.has(port) && is_plain(port.device))
            .filter(|port| port.rdma.function.is_ok())
            .collect();
        if active.is_empty() {
            // Another state has the kernel's own text.
            let state = |port: &Port<'_>| match &port.port.state {
                Ok(state) => state.to_string().escape_debug().to_string(),
                Err(absence) => absence.to_string(),
            };
            let mut states: Vec<String> = all
                .iter()
                .map(|port| format!("{} is {}", name(port), state(port)))
                .collect();
            states.truncate(MOST_NAMED);
            return Err(NoRail::NoActivePort(states));
        }
        let (slower, ethernet): (Vec<_>, Vec<_>) = (of_another_kind(&active).into_iter())
            .partition(|(_, kind)| *kind == OtherKind::Slower);
        let names = |odd: Vec<(&Port<'_>, OtherKind)>| -> BTreeSet<String> {
            odd.into_iter().map(|(port, _)| name(port)).collect()
        };
        let (slower, ethernet) = (names(slower), names(ethernet));
        let usable: Vec<&Port<'_>> = (active.iter().copied())
            .filter(|port| !slower.contains(&name(port)) && !ethernet.contains(&name(port)))
            .collect();
        let near = gpus
            .iter()
            .map(|gpu| nearest(context, gpu, &usable))
            .collect::<Result<Vec<_>, _>>()?;
        let chosen = choose(&gpus, &near);
        let used = |port: &Port<'_>| {
            let same = |nic: &Bdf| port.rdma.function == Ok(*nic);
            chosen.values().flatten().any(same)
        };
        let idle = usable
            .iter()
            .filter(|port| !used(port))
            .map(|port| name(port));
        let idle = idle.collect();
        let gpus = gpus.iter().zip(&near);
        let gpus = gpus.map(|(gpu, near)| GpuRails {
            gpu: gpu.index,
            pci: gpu.bdf,
            rails: rails(context, &chosen, gpu, near),
        });
        Ok(Self {
            gpus: gpus.collect(),
            slower: slower.into_iter().collect(),
            ethernet: ethernet.into_iter().collect(),
            idle,
        })
    }

    /// Returns the rails of one GPU only.
    #[must_use]
    pub fn only(mut self, gpu: GpuIndex) -> Self {
        self.gpus.retain(|rails| rails.gpu == gpu);
        self
    }

    /// Returns every port once, in the order of the GPUs.
    pub fn ports(&self) -> Vec<&Rail> {
        let mut ports: Vec<&Rail> = Vec::new();
        for rail in self.gpus.iter().flat_map(|gpu| &gpu.rails) {
            let same = |it: &&Rail| (&it.nic, it.port) == (&rail.nic, rail.port);
            if !ports.iter().any(same) {
                ports.push(rail);
            }
        }
        ports
    }

    /// Returns what the choice left out.
    pub(super) fn remarks(&self) -> Vec<String> {
        let left_out = [
            (&self.slower, "at most half as fast as the others"),
            (&self.ethernet, "Ethernet, and the others are InfiniBand"),
            (&self.idle, "nearest to no GPU that is asked for"),
        ];
        let remarks = left_out.iter().filter(|(ports, _)| !ports.is_empty());
        let remarks = remarks.map(|(ports, why)| format!("{} left out: {why}", ports.join(", ")));
        remarks.collect()
    }
}

/// The most ports that an error names.
const MOST_NAMED: usize = 16;

/// Returns the name of a port as lists have it.
fn name(port: &Port<'_>) -> String {
    format!("{}:{}", port.device, port.port.number)
}

/// A NIC that is nearest to a GPU.
struct Near<'a> {
    nic: Bdf,
    port: Port<'a>,
    smi: SmiClass,
    nccl: NcclClass,
}

/// Returns the ports that are nearest to a GPU.
fn nearest<'a>(
    context: &Context<'a>,
    gpu: &GpuDevice,
    usable: &[&Port<'a>],
) -> Result<Vec<Near<'a>>, NoRail> {
    let mut all: Vec<Near<'a>> = Vec::new();
    for pair in context
        .pairs()
        .iter()
        .filter(|pair| pair.gpu.bdf == gpu.bdf)
    {
        let own = usable.iter().filter(|port| port.device == pair.nic.name);
        all.extend(own.map(|port| Near {
            nic: pair.nic.bdf,
            port: (*port).clone(),
            smi: pair.relation.smi_pci,
            nccl: pair.relation.nccl,
        }));
    }
    let least = all.iter().map(|near| near.smi).min();
    all.retain(|near| Some(near.smi) == least);
    if all.is_empty() {
        return Err(NoRail::NoDistance { gpu: gpu.index });
    }
    Ok(all)
}

/// Returns the NICs of each GPU: one of its own where the matching finds one, else the first of the nearest; then each
/// NIC that is nearest to some GPUs and used by no GPU goes to the one with the fewest.
fn choose(gpus: &[GpuDevice], near: &[Vec<Near<'_>>]) -> BTreeMap<Bdf, BTreeSet<Bdf>> {
    let pairs = || {
        let each = gpus.iter().zip(near);
        each.flat_map(|(gpu, near)| near.iter().map(|near| (gpu.bdf, near.nic)))
    };
    let own = assign(pairs());
    let mut chosen: BTreeMap<Bdf, BTreeSet<Bdf>> = BTreeMap::new();
    let mut uses: BTreeMap<Bdf, usize> = BTreeMap::new();
    for (gpu, nic) in &own {
        chosen.entry(*gpu).or_default().insert(*nic);
        *uses.entry(*nic).or_default() += 1;
    }
    for (gpu, near) in gpus.iter().zip(near) {
        if own.contains_key(&gpu.bdf) {
            continue;
        }
        let least_used = near.iter().map(|near| near.nic);
        let least_used = least_used.min_by_key(|nic| uses.get(nic).copied().unwrap_or_default());
        if let Some(nic) = least_used {
            chosen.entry(gpu.bdf).or_default().insert(nic);
            *uses.entry(nic).or_default() += 1;
        }
    }
    let left: BTreeSet<Bdf> = pairs().map(|(_, nic)| nic).collect();
    for nic in left.into_iter().filter(|nic| !uses.contains_key(nic)) {
        let of_it = pairs().filter(|(_, it)| *it == nic).map(|(gpu, _)| gpu);
        let fewest = of_it.min_by_key(|gpu| (chosen.get(gpu).map_or(0, BTreeSet::len), *gpu));
        if let Some(gpu) = fewest {
            chosen.entry(gpu).or_default().insert(nic);
        }
    }
    chosen
}

/// Returns the rails of a GPU.
fn rails(
    context: &Context<'_>,
    chosen: &BTreeMap<Bdf, BTreeSet<Bdf>>,
    gpu: &GpuDevice,
    near: &[Near<'_>],
) -> Vec<Rail> {
    let own = |near: &&Near<'_>| {
        let nics = chosen.get(&gpu.bdf);
        nics.is_some_and(|nics| nics.contains(&near.nic))
    };
    let rail = |near: &Near<'_>| Rail {
        nic: near.port.device.to_owned(),
        port: near.port.port.number,
        smi: near.smi,
        nccl: near.nccl,
        ethernet: near.port.is_ethernet(),
        gid_index: {
            let gids = near.port.gids(context).ok();
            gids.and_then(|gids| best_gid(&gids).map(|gid| gid.index))
        },
        shared_by: chosen
            .values()
            .filter(|nics| nics.contains(&near.nic))
            .count(),
    };
    near.iter().filter(own).map(rail).collect()
}

#[cfg(test)]
mod tests {
    use gdr_node::{Inventory, MemorySource, example};
    use snapshot::assert_contains;

    use super::*;

    fn of(node: &MemorySource) -> Result<Rails, NoRail> {
        let inventory = Inventory::read(node);
        Rails::of(&Context::new(node, &inventory))
    }

    fn chosen(node: &MemorySource) -> Vec<String> {
        let rails = of(node).unwrap();
        let shown = |gpu: &GpuRails| {
            let nics = gpu
                .rails
                .iter()
                .map(|rail| format!("{}:{}", rail.nic, rail.port));
            format!("{} {}", gpu.gpu, nics.collect::<Vec<_>>().join(" "))
        };
        rails.gpus.iter().map(shown).collect()
    }

    fn state(node: MemorySource, nic: usize, state: &str) -> MemorySource {
        node.file(
            &format!("/sys/class/infiniband/mlx5_{nic}/ports/1/state"),
            state,
        )
    }

    #[test]
    fn each_gpu_gets_a_nic_below_its_switch_and_the_ethernet_nics_are_left_out() {
        let node = example::healthy();
        assert_eq!(
            chosen(&node),
            [
                "GPU0 mlx5_1:1",
                "GPU1 mlx5_2:1",
                "GPU2 mlx5_3:1",
                "GPU3 mlx5_4:1",
                "GPU4 mlx5_6:1",
                "GPU5 mlx5_7:1",
                "GPU6 mlx5_8:1",
                "GPU7 mlx5_9:1",
            ]
        );
        let rails = of(&node).unwrap();
        assert_eq!(rails.ethernet, ["mlx5_0:1", "mlx5_5:1"]);
        assert!(rails.gpus.iter().all(|gpu| gpu.rails[0].shared_by == 1));
    }

    #[test]
    fn a_port_that_is_down_is_not_chosen_and_its_neighbour_is_shared() {
        let node = state(example::healthy(), 2, "1: DOWN\n");
        let rails = of(&node).unwrap();
        assert_eq!(chosen(&node)[..2], ["GPU0 mlx5_1:1", "GPU1 mlx5_1:1"]);
        assert_eq!(rails.gpus[1].rails[0].shared_by, 2);
    }

    #[test]
    fn a_gpu_alone_gets_every_nic_below_its_switch() {
        let node =
            example::healthy().without(&format!("/sys/bus/pci/devices/{}", example::GPUS[1]));
        assert_eq!(chosen(&node)[0], "GPU0 mlx5_1:1 mlx5_2:1");
    }

    #[test]
    fn each_reason_for_no_choice_is_its_own_error() {
        let down = (0..10).fold(example::healthy(), |node, nic| {
            state(node, nic, "1: DOWN\n")
        });
        let error = of(&down).unwrap_err();
        assert!(matches!(&error, NoRail::NoActivePort(ports) if ports.len() == 10));
        assert_contains!(error.to_string(), "mlx5_0:1 is DOWN", "{error}");
        let no_gpu = MemorySource::new().directory("/sys/bus/pci/devices");
        assert!(matches!(of(&no_gpu), Err(NoRail::NoGpu(_))));
        let no_nic = example::healthy().without("/sys/class/infiniband");
        assert!(matches!(of(&no_nic), Err(NoRail::NoNic(_))));
        assert!(matches!(
            of(&MemorySource::partial()),
            Err(NoRail::NoGpu(_))
        ));
    }
}
