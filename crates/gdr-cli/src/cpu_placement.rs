//! CPUs that a measurement runs on: by default the CPUs of the NIC's NUMA node, otherwise of the GPU's. At a loopback
//! address, it starts on cores other than the peer's.

use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use gdr_node::{Bdf, CpuSet, InvalidCpuSet, Inventory, NumaLayout};
use gdr_perf::report::CpuPlacement;
use gdr_rdma::{Device, Provider};
use rustix::thread::{Pid, sched_getaffinity, sched_setaffinity};

use crate::exit::UsageError;
use crate::rdma_peer::Side;

/// The option that chooses CPUs.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CpuOptions {
    /// CPUs to run this end on, such as 0-7,16, or `any` [default: the NUMA node of the NIC, else of
    /// the GPU; at a loopback address both ends start on different cores]
    #[arg(long, value_name = "LIST", value_parser = wanted)]
    cpus: Option<WantedCpus>,
}

/// CPUs of this end.
#[derive(Debug)]
pub(crate) struct PlacedEnd {
    /// What the report says about them.
    pub(crate) facts: CpuPlacement,
    /// All its CPUs, if this end was first bound to a part of them.
    freed: Option<CpuSet>,
}

impl PlacedEnd {
    /// How long the ends on one host stay on separate cores: until the scheduler would separate them as well. They are
    /// not kept there, because on a busy machine an end must be able to move.
    const APART: Duration = Duration::from_millis(100);

    /// Begins the measurement. If this end was bound to a part of its CPUs, it may soon use all of them.
    pub(crate) fn begin(self) {
        if self.freed.is_some() {
            // If it stays bound to fewer CPUs, it still measures.
            let _ = thread::Builder::new().spawn(move || {
                thread::sleep(Self::APART);
                self.free()
            });
        }
    }

    /// Lets every thread of this process use all of its CPUs.
    pub(crate) fn free(self) -> Result<()> {
        self.freed.map_or(Ok(()), |cpus| bind(&cpus))
    }
}

/// Value of the option.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WantedCpus {
    /// The CPUs that the caller of this process allows.
    Any,
    Listed(CpuSet),
}

fn wanted(text: &str) -> Result<WantedCpus, InvalidCpuSet> {
    match text {
        "any" => Ok(WantedCpus::Any),
        list => list.parse().map(WantedCpus::Listed),
    }
}

/// The NIC of this end.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Nic {
    /// A kernel device.
    Rdma(String),
    /// The interface of a soft device.
    Interface(String),
    /// A soft device at an address that no interface lists, such as 127.0.0.2.
    Address(IpAddr),
}

impl Nic {
    fn of(device: &Device) -> Result<Self> {
        if device.provider() == Provider::Verbs {
            return Ok(Self::Rdma(device.name().to_owned()));
        }
        let address = device.address().ip();
        let own = Device::list_soft()?;
        let found = own.into_iter().find(|soft| soft.address == address);
        Ok(match found {
            Some(soft) => Self::Interface(soft.interface),
            None => Self::Address(address),
        })
    }

    fn function(&self, inventory: &Inventory) -> Option<Bdf> {
        match self {
            Self::Rdma(name) => inventory
                .rdma_functions()
                .find(|(device, _)| device.name == *name)
                .map(|(_, function)| function),
            Self::Interface(name) => {
                let netdevs = inventory.netdevs.as_ref().ok()?;
                let found = netdevs.iter().find(|netdev| netdev.name == *name)?;
                found.function.as_ref().ok().copied()
            }
            Self::Address(_) => None,
        }
    }
}

impl fmt::Display for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rdma(name) | Self::Interface(name) => f.write_str(name),
            Self::Address(address) => address.fmt(f),
        }
    }
}

impl CpuOptions {
    /// Returns the same, or the choice of the kernel's scheduler.
    pub(crate) fn or_any(&self, is_any: bool) -> Self {
        match is_any {
            true => Self {
                cpus: Some(WantedCpus::Any),
            },
            false => self.clone(),
        }
    }

    /// Chooses the CPUs of this end, and moves every thread of this process to them.
    pub(crate) fn place(
        &self,
        device: &Device,
        gpu: Option<Bdf>,
        inventory: &Inventory,
        side: Side,
    ) -> Result<PlacedEnd> {
        let allowed = allowed()?;
        let nic = Nic::of(device)?;
        let (cpus, mut why) = choose(self.cpus.as_ref(), &nic, gpu, inventory, &allowed)?;
        if self.cpus.is_none()
            && device.address().ip().is_loopback()
            && let Some(own) = own_half(&cpus, side, &inventory.numa, threads_of_core)
        {
            bind(&own)?;
            let also = why.map_or(String::new(), |why| format!("{why}; "));
            why = Some(format!(
                "{also}it began on {own}, the other end on other cores"
            ));
            return Ok(PlacedEnd {
                facts: CpuPlacement {
                    list: cpus.to_string(),
                    why,
                },
                freed: Some(cpus),
            });
        }
        if cpus != allowed {
            bind(&cpus)?;
        }
        Ok(PlacedEnd {
            facts: CpuPlacement {
                list: cpus.to_string(),
                why,
            },
            freed: None,
        })
    }
}

/// Returns the CPUs to use among the `allowed` ones, and why. The reason is `None` if all are equally near.
fn choose(
    wanted: Option<&WantedCpus>,
    nic: &Nic,
    gpu: Option<Bdf>,
    inventory: &Inventory,
    allowed: &CpuSet,
) -> Result<(CpuSet, Option<String>), UsageError> {
    match wanted {
        Some(WantedCpus::Any) => return Ok((allowed.clone(), Some("requested".to_owned()))),
        Some(WantedCpus::Listed(cpus)) if cpus.is_empty() || !cpus.is_subset(allowed) => {
            return Err(UsageError(format!(
                "--cpus {cpus}: this process may run only on {allowed}; choose from these"
            )));
        }
        Some(WantedCpus::Listed(cpus)) => return Ok((cpus.clone(), Some("requested".to_owned()))),
        None => {}
    }
    let of_nic = nic
        .function(inventory)
        .map(|function| (nic.to_string(), function));
    let of_gpu = gpu.map(|gpu| (format!("the GPU {gpu}"), gpu));
    for (what, function) in of_nic.into_iter().chain(of_gpu) {
        let Some(function) = inventory.function(function) else {
            continue;
        };
        let node = function.numa.as_ref().ok().copied();
        let Some(node) = node.or(inventory.numa.only_node()) else {
            continue;
        };
        let Some(near) = inventory.numa.cpus.get(&node) else {
            continue;
        };
        let both = near.intersection(allowed);
        if !both.is_empty() {
            return Ok((both, Some(format!("NUMA node {node}, where {what} is"))));
        }
        let why =
            format!("this process may not run on the CPUs of NUMA node {node}, where {what} is");
        return Ok((allowed.clone(), Some(why)));
    }
    // A loopback address belongs to no node.
    let is_somewhere = nic.function(inventory).is_some();
    let why = is_somewhere.then(|| format!("no NUMA node of {nic} is known"));
    Ok((allowed.clone(), why))
}

/// Returns the CPUs on which one of two ends on a host starts: half of the cores of a NUMA node, so that brief
/// measurements do not depend on whether the scheduler places both ends on one core. `None` if there is a single core.
fn own_half(
    cpus: &CpuSet,
    side: Side,
    numa: &NumaLayout,
    threads_of_core: impl Fn(u32) -> CpuSet,
) -> Option<CpuSet> {
    let first = cpus.iter().next()?;
    let has_first = |node: &&CpuSet| node.iter().any(|cpu| cpu == first);
    let node = numa.cpus.values().find(has_first);
    let near = node.map_or_else(|| cpus.clone(), |node| node.intersection(cpus));
    let mut cores: Vec<CpuSet> = Vec::new();
    for cpu in near.iter() {
        let core: CpuSet = [cpu]
            .into_iter()
            .chain(threads_of_core(cpu).iter())
            .collect();
        if cores.iter().all(|known| known.is_disjoint(&core)) {
            cores.push(core);
        }
    }
    let (of_server, of_client) = cores.split_at(cores.len() / 2);
    let own = match side {
        Side::Listens => of_server,
        Side::Connects => of_client,
    };
    let own: CpuSet = own.iter().flat_map(CpuSet::iter).collect();
    (cores.len() > 1).then(|| own.intersection(&near))
}

/// Returns the hardware threads of the core that `cpu` belongs to, according to the kernel; empty if unknown.
fn threads_of_core(cpu: u32) -> CpuSet {
    let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let text = fs::read_to_string(file).unwrap_or_default();
    text.trim().parse().unwrap_or_default()
}

/// Returns the CPUs that this process may run on.
fn allowed() -> Result<CpuSet> {
    let set = sched_getaffinity(None).context("the CPUs of this process cannot be read")?;
    let cpus = 0..rustix::thread::CpuSet::MAX_CPU;
    Ok(cpus
        .filter(|cpu| set.is_set(*cpu))
        .filter_map(|cpu| cpu.try_into().ok())
        .collect())
}

/// Moves every thread of this process. A thread that is created later inherits the CPUs of its creator.
fn bind(cpus: &CpuSet) -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    for cpu in cpus.iter() {
        set.set(cpu as usize);
    }
    let failed = || format!("this process cannot be bound to the CPUs {cpus}");
    // A thread that has not been moved yet may create another while the first list is processed.
    for _ in 0..2 {
        for thread in fs::read_dir("/proc/self/task").with_context(failed)? {
            let name = thread.with_context(failed)?.file_name();
            let Some(thread) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            match sched_setaffinity(Pid::from_raw(thread), &set) {
                // It has ended.
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(error).with_context(failed),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use gdr_node::{LiveRoot, MemorySource, example};
    use snapshot::assert_contains;

    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    /// Returns the choice without the option, on a machine where every CPU is allowed.
    fn chosen(nic: &Nic, gpu: Option<&str>, inventory: &Inventory) -> (String, Option<String>) {
        let gpu = gpu.map(|gpu| gpu.parse().unwrap());
        let (cpus, why) = choose(None, nic, gpu, inventory, &set("0-255")).unwrap();
        (cpus.to_string(), why)
    }

    /// Returns the example, its last RDMA device, which is in the second socket, and its first GPU, which is in the
    /// first.
    fn two_sockets() -> (MemorySource, Nic, String) {
        let node = example::node();
        let inventory = Inventory::read(&node);
        let (device, function) = inventory.rdma_functions().last().unwrap();
        let far = inventory.function(function).unwrap().numa.unwrap();
        let gpu = inventory.gpus[0].bdf;
        let near = inventory.function(gpu).unwrap().numa.unwrap();
        assert_ne!(far, near);
        (node, Nic::Rdma(device.name.clone()), gpu.to_string())
    }

    #[test]
    fn the_node_of_the_nic_comes_before_that_of_the_gpu() {
        let (node, nic, gpu) = two_sockets();
        let inventory = Inventory::read(&node);
        let [near, far] = [0, 1].map(|number| {
            let found = inventory.numa.cpus.iter().nth(number).unwrap();
            (found.1.to_string(), found.0.to_string())
        });
        let both = chosen(&nic, Some(&gpu), &inventory);
        let why = format!("NUMA node {}, where {nic} is", far.1);
        assert_eq!(both, (far.0, Some(why)));
        // The interface of a soft device that does not belong to a PCI function.
        let lo = Nic::Interface("lo".to_owned());
        let of_gpu = chosen(&lo, Some(&gpu), &inventory);
        let why = format!("NUMA node {}, where the GPU {gpu} is", near.1);
        assert_eq!(of_gpu, (near.0, Some(why)));
        let neither = chosen(&lo, None, &inventory);
        assert_eq!(neither, ("0-255".to_owned(), None));
    }

    #[test]
    fn an_interface_is_at_the_node_of_its_function() {
        let (node, nic, _) = two_sockets();
        let inventory = Inventory::read(&node);
        let function = nic.function(&inventory).unwrap();
        let netdevs = inventory.netdevs.as_ref().unwrap();
        let netdev = netdevs
            .iter()
            .find(|netdev| netdev.function == Ok(function))
            .unwrap();
        let interface = Nic::Interface(netdev.name.clone());
        let (by_name, _) = chosen(&nic, None, &inventory);
        assert_eq!(chosen(&interface, None, &inventory).0, by_name);
        assert_ne!(by_name, "0-255");
    }

    #[test]
    fn what_the_caller_allows_is_never_left() {
        let (node, nic, _) = two_sockets();
        let inventory = Inventory::read(&node);
        let near = inventory.numa.cpus.values().next().unwrap().clone();
        let (cpus, why) = choose(None, &nic, None, &inventory, &near).unwrap();
        assert_eq!(cpus, near);
        let why = why.unwrap();
        assert_contains!(why, "may not run on the CPUs of NUMA node");
        let listed = |list: &str| {
            let wanted = wanted(list).unwrap();
            choose(Some(&wanted), &nic, None, &inventory, &set("0-3"))
        };
        assert_eq!(listed("1,3").unwrap().0, set("1,3"));
        assert_eq!(listed("any").unwrap().0, set("0-3"));
        let refused = listed("3-4").unwrap_err().to_string();
        assert_contains!(refused, "may run only on 0-3");
        listed("").unwrap_err();
        wanted("two").unwrap_err();
    }

    #[test]
    fn this_process_is_bound_to_cpus_that_it_may_use() {
        // The test binary has other threads, which keep all of their CPUs.
        let before = allowed().unwrap();
        bind(&before).unwrap();
        assert_eq!(allowed().unwrap(), before);
        let device = Device::soft_with(gdr_rdma::SoftOptions::default().port(0)).unwrap();
        let options = CpuOptions {
            cpus: Some(WantedCpus::Any),
        };
        let inventory = Inventory::read(&LiveRoot::new());
        let placed = options.place(&device, None, &inventory, Side::Listens);
        assert_eq!(placed.unwrap().facts.list, before.to_string());
    }

    #[test]
    fn two_ends_of_a_host_share_no_core_and_one_node() {
        let node = example::node();
        let numa = Inventory::read(&node).numa;
        let alone = |_| CpuSet::default();
        let pairs = |cpu| [cpu % 4, cpu % 4 + 4].into_iter().collect();
        let neighbours = |cpu| [cpu & !1, cpu | 1].into_iter().collect();
        let halves = |cpus: &str, threads: &dyn Fn(u32) -> CpuSet| {
            let half = |side| own_half(&set(cpus), side, &numa, threads);
            [Side::Listens, Side::Connects].map(|side| half(side).map(|cpus| cpus.to_string()))
        };
        let both = |server: &str, client: &str| [Some(server.to_owned()), Some(client.to_owned())];
        assert_eq!(halves("0-1", &alone), both("0", "1"));
        assert_eq!(halves("0-7", &pairs), both("0-1,4-5", "2-3,6-7"));
        assert_eq!(halves("0-3,6-7", &neighbours), both("0-1", "2-3,6-7"));
        assert_eq!(halves("1,4-5", &pairs), both("1,5", "4"));
        assert_eq!(halves("0-1", &neighbours), [None, None]);
        assert_eq!(halves("3", &alone), [None, None]);
        let [server, client] = halves("0-255", &alone).map(|half| set(&half.unwrap()));
        let near = numa.cpus.values().next().unwrap();
        assert!(server.is_disjoint(&client));
        assert!(server.is_subset(near) && client.is_subset(near));
    }
}
