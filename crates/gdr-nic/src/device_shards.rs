//! The shards of a device.

use std::fmt;
use std::hint;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

use gdr_roce::wire::UDP_PORT;
use gdr_roce::{Completion, Qpn};

use crate::bounded_queue::BoundedQueue;
use crate::device_state::{DeviceState, OnEvent};
use crate::ending_thread::EndingThread;
use crate::error::{Error, Result};
use crate::multicast::MulticastGroups;
use crate::poller::Poller;
use crate::shard::cpu_contention::CpuContention;
use crate::shard::cq_entries::{CqEntries, CqProducer, Producers};
use crate::shard::region_table::RegionTable;
use crate::shard::shared_engine::{Polled, QpParts, SharedEngine, pause};
use crate::shard::srq_context::SrqContext;
use crate::types::{AsyncEvent, Counters, SoftOptions, Wires};
use crate::wire::memory::RingKeeper;
use gdr_udp::Deadline;
use gdr_udp::MOST_SHARDS;
use gdr_udp::Socket;
use gdr_udp::{Integrity, PortUse, Shards, SourcePort};

/// Names the number of shards of devices that are opened without one.
const VARIABLE: &str = "GDR_SHARDS";
/// Names the wires of devices that are opened without a choice.
const WIRE_VARIABLE: &str = "GDR_WIRE";
/// The number of CPUs per shard by default, which leaves some for the program and for peers on the same host.
const CPUS_PER_SHARD: usize = 2;
/// How many shards a device at a shared port of a loopback address has by default, and how many processors the
/// process needs for that. A thread of the program that posts to one queue pair while another polls waits for
/// the engine less often, and each shard takes a slot of the port.
const SHARDS_AT_SHARED_PORT: usize = 2;
const CPUS_AT_SHARED_PORT: usize = 8;

/// The shards of a device. Their threads end when this is dropped.
pub(crate) struct DeviceShards {
    state: Arc<DeviceState>,
    /// The rings to devices on this host, unless only UDP is used.
    rings: Option<RingKeeper>,
    /// Set when the first queue pair is attached to a multicast group.
    multicast: OnceLock<MulticastGroups>,
    /// At least one.
    shards: Box<[Shard]>,
    assignment: Assignment,
    name: String,
    /// What threads that wait for several shards have learned from yielding, and how many waits found nothing.
    contention: CpuContention,
    idle_waits: AtomicU64,
}

/// Which shard a new queue pair belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Assignment {
    /// The one with the fewest queue pairs.
    Emptiest,
    /// The one of the queue pairs that complete in the same queue, so that a thread that polls the queue drives
    /// them. The first queue pair of a completion queue gets the shard with the fewest.
    ByCompletionQueue,
}

/// An engine and its progress thread.
struct Shard {
    engine: Arc<SharedEngine>,
    thread: Option<EndingThread>,
}

impl DeviceShards {
    /// Opens a device that calls `on_event` for each asynchronous event, instead of queuing it.
    pub(crate) fn open(options: &SoftOptions, on_event: Option<OnEvent>) -> Result<Self> {
        let (shards, assignment) = shards(options)?;
        let sockets = Socket::bind_shards(&options.socket(), shards)?;
        let state = DeviceState::new(sockets.len(), options, on_event)?;
        let mut device = Self {
            state: Arc::new(state),
            rings: None,
            multicast: OnceLock::new(),
            shards: Box::default(),
            assignment,
            name: String::new(),
            contention: CpuContention::new(),
            idle_waits: AtomicU64::new(0),
        };
        let mut shards = Vec::with_capacity(sockets.len());
        for (shard, socket) in sockets.into_iter().enumerate() {
            let started = SharedEngine::start(&device.state, shard, socket);
            let started = started.map(|(engine, thread)| Shard {
                engine,
                thread: Some(thread),
            });
            match started {
                Ok(shard) => shards.push(shard),
                Err(error) => {
                    // The threads of the others end.
                    device.shards = shards.into();
                    return Err(error);
                }
            }
        }
        device.shards = shards.into();
        // Faults strike datagrams. Without faults, packets are only captured in a file, and may go through rings.
        let chaos = device.state.chaos.as_ref();
        if wires(options)? == Wires::All && chaos.is_none_or(|it| !it.chaos.has_rules()) {
            let engines = device.shards.iter().map(|shard| Arc::clone(&shard.engine));
            // Without rings, all packets go over UDP.
            device.rings = RingKeeper::start(engines.collect())
                .inspect_err(|error| tracing::debug!(%error, "no rings to devices of this host"))
                .ok()
                .flatten();
            if let Some(rings) = &device.rings {
                // It is empty before.
                let _ = device.state.ring_requests.set(rings.requests());
            }
        }
        device.name = match device.local() {
            local if local.port() == UDP_PORT => format!("soft-{}", local.ip()),
            local => format!("soft-{local}"),
        };
        if let Some(faults) = &device.state.chaos {
            faults.chaos.log_begin(&device.name);
        }
        tracing::debug!(
            name = device.name,
            shards = device.shards.len(),
            receive_buffer = device.receive_buffer(),
            "device opened"
        );
        Ok(device)
    }

    pub(crate) fn device_name(&self) -> &str {
        &self.name
    }

    /// Returns the number of shards.
    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Returns the engines of the shards, at least one.
    fn engines(&self) -> impl DoubleEndedIterator<Item = &SharedEngine> {
        self.shards.iter().map(|shard| &*shard.engine)
    }

    /// Returns the first shard, which has all raw packet queue pairs.
    pub(crate) fn first(&self) -> &SharedEngine {
        &self.shards[0].engine
    }

    /// Returns the shard of a queue pair.
    pub(crate) fn engine(&self, qpn: Qpn) -> &Arc<SharedEngine> {
        let owner = self.shards.iter().find(|shard| shard.engine.owns(qpn));
        &owner.unwrap_or(&self.shards[0]).engine
    }

    /// Lets an engine send through shared memory to the device of a queue pair, if possible.
    pub(crate) fn reach(&self, engine: &Arc<SharedEngine>, to: SocketAddr, qpn: Qpn) {
        if let Some(keeper) = &self.rings {
            keeper.reach(engine, to, qpn);
        }
    }

    /// Returns the multicast groups of the device.
    pub(crate) fn multicast(&self) -> Result<&MulticastGroups> {
        if let Some(groups) = self.multicast.get() {
            return Ok(groups);
        }
        let engines = self.shards.iter().map(|shard| Arc::clone(&shard.engine));
        let groups = MulticastGroups::start(self.local(), engines.collect())?;
        // Another thread may have created them first; then these are dropped.
        Ok(self.multicast.get_or_init(|| groups))
    }

    /// Detaches a queue pair from all multicast groups.
    pub(crate) fn detach_all(&self, qpn: Qpn) {
        if let Some(groups) = self.multicast.get() {
            groups.detach_all(qpn);
        }
    }

    /// Returns the shard with the fewest queue pairs.
    pub(crate) fn emptiest(&self) -> &SharedEngine {
        let emptiest = self.engines().min_by_key(|engine| engine.qp_count());
        emptiest.unwrap_or_else(|| self.first())
    }

    /// Returns the shard for a new queue pair.
    pub(crate) fn assign(&self, parts: &QpParts) -> &SharedEngine {
        self.assign_by([&parts.send_completions, &parts.recv_completions])
    }

    /// Returns the shard for a new queue pair that adds entries to these completion queues.
    fn assign_by(&self, queues: [&CqEntries; 2]) -> &SharedEngine {
        let shared = match self.assignment {
            Assignment::Emptiest => None,
            Assignment::ByCompletionQueue => {
                queues.iter().find_map(|entries| match entries.producers() {
                    Producers::Shard(shard) => self.shards.get(shard),
                    Producers::None | Producers::Several => None,
                })
            }
        };
        shared.map_or_else(|| self.emptiest(), |shard| &shard.engine)
    }

    /// Returns, for each shard, the producer through which its queue pairs add entries to a completion queue.
    pub(crate) fn producers(&self, entries: &Arc<CqEntries>) -> Box<[CqProducer]> {
        let shards = 0..self.shards.len();
        shards
            .map(|shard| CqProducer::new(Arc::clone(entries), shard))
            .collect()
    }

    pub(crate) fn check_process(&self) -> Result<()> {
        self.state.check_process()
    }

    pub(crate) fn state(&self) -> &DeviceState {
        &self.state
    }

    /// Returns the UDP ports from which its connections send.
    pub(crate) fn source_port(&self) -> SourcePort {
        self.first().source_port()
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.first().local()
    }

    pub(crate) fn integrity(&self) -> Integrity {
        self.first().integrity()
    }

    /// Returns how many bytes of received packets the kernel queues for a queue pair.
    pub(crate) fn receive_buffer(&self) -> usize {
        self.first().receive_buffer()
    }

    pub(crate) fn regions(&self) -> &Arc<RegionTable> {
        &self.state.regions
    }

    pub(crate) fn events(&self) -> &BoundedQueue<AsyncEvent> {
        &self.state.events
    }

    pub(crate) fn counters(&self) -> Counters {
        if self.check_process().is_err() {
            return Counters::default();
        }
        let mut counters = Counters {
            events_lost: self.events().lost(),
            ..Counters::default()
        };
        counters.payload.untaken = self.state.untaken();
        if let Some(groups) = self.multicast.get() {
            counters += groups.counters();
        }
        self.engines()
            .for_each(|engine| counters += engine.counters());
        counters
    }

    /// Arms the limit of a shared receive queue.
    pub(crate) fn arm_limit(&self, srq: &SrqContext, limit: u32) {
        srq.roce().arm_limit(limit);
        self.state.raise_limit(srq);
    }

    /// Makes the progress threads drive the engines, because the program is about to wait elsewhere.
    pub(crate) fn leave_to_thread(&self) {
        self.engines().for_each(SharedEngine::leave_to_thread);
    }

    /// Polls every shard once, on a thread of the program. Returns whether there was anything to do.
    pub(crate) fn progress(&self) -> bool {
        match &*self.shards {
            [only] => only.engine.progress(),
            // The progress threads continue meanwhile.
            shards if self.check_process().is_ok() => {
                let now = self.state.clock.now();
                shards
                    .iter()
                    .map(|shard| shard.engine.try_poll(Poller::Program, now))
                    .fold(false, |worked, polled| worked | (polled == Polled::Work))
            }
            _ => false,
        }
    }

    /// Returns the shard that a thread drives while it polls or waits for a completion queue: the one that all
    /// queue pairs of the completion queue belong to.
    fn driven_by(&self, entries: &CqEntries) -> Option<&SharedEngine> {
        match (&*self.shards, entries.producers()) {
            ([only], _) => Some(&only.engine),
            (_, Producers::None) => Some(self.first()),
            (shards, Producers::Shard(shard)) => shards.get(shard).map(|shard| &*shard.engine),
            (_, Producers::Several) => None,
        }
    }

    /// Polls once, on a thread that has found a completion queue empty. Returns whether the queue may have entries
    /// now.
    pub(crate) fn progress_for(&self, entries: &CqEntries) -> bool {
        match self.driven_by(entries) {
            Some(engine) => engine.progress(),
            None => {
                self.pause();
                !entries.is_empty()
            }
        }
    }

    /// Takes the next completion. Polls until there is one, but sleeps after a while without packets.
    pub(crate) fn wait(&self, entries: &CqEntries, deadline: Deadline) -> Option<Completion> {
        let polled = match self.driven_by(entries) {
            Some(engine) => engine.poll_until(deadline, &|| entries.pop()),
            None => self.watch(entries, deadline),
        };
        polled.or_else(|| {
            // The program sleeps from here on, so the progress threads must drive the engines.
            self.leave_to_thread();
            entries.pop_wait(deadline)
        })
    }

    /// Takes the next completion that the progress threads add. Returns `None` if none comes for a while.
    fn watch(&self, entries: &CqEntries, deadline: Deadline) -> Option<Completion> {
        self.leave_to_thread();
        let start = Instant::now();
        loop {
            let next = entries.pop();
            if next.is_some() || start.elapsed() >= self.state.busy_poll || deadline.has_passed() {
                return next;
            }
            self.pause();
        }
    }

    /// Waits briefly while only the progress threads have something to do.
    fn pause(&self) {
        let waits = self.idle_waits.fetch_add(1, Ordering::Relaxed);
        // Unlike a poll, this makes no system call.
        if pause(waits, &self.contention, &self.state.clock).is_none() {
            hint::spin_loop();
        }
    }
}

/// Returns which wires a device uses.
fn wires(options: &SoftOptions) -> Result<Wires> {
    if let Some(wires) = options.wires {
        return Ok(wires);
    }
    match gdr_process::variable(WIRE_VARIABLE).filter(|value| !value.is_empty()) {
        None => Ok(Wires::All),
        Some(value) if value == "udp" => Ok(Wires::Udp),
        Some(value) if value == "all" => Ok(Wires::All),
        Some(value) => Err(Error::WireName {
            variable: WIRE_VARIABLE,
            value: value.to_string_lossy().into_owned(),
        }),
    }
}

/// Returns how many shards a device gets, and how queue pairs are assigned to them.
fn shards(options: &SoftOptions) -> Result<(Shards, Assignment)> {
    if let Some(number) = options.shards {
        let number = number.clamp(1, MOST_SHARDS);
        return Ok((Shards::Exactly(number), Assignment::Emptiest));
    }
    let (number, assignment) =
        match gdr_process::variable(VARIABLE).filter(|value| !value.is_empty()) {
            Some(value) => (
                shards_of_variable(&value.to_string_lossy())?,
                Assignment::Emptiest,
            ),
            None => {
                let cpus = thread::available_parallelism().map_or(1, usize::from);
                shards_by_default(options, cpus)
            }
        };
    Ok((Shards::AtMost(number.clamp(1, MOST_SHARDS)), assignment))
}

/// Returns how many shards a device gets for this value of [`VARIABLE`].
fn shards_of_variable(value: &str) -> Result<usize> {
    let number = value.trim().parse().ok();
    let number = number.filter(|number| (1..=MOST_SHARDS).contains(number));
    number.ok_or_else(|| Error::ShardCount {
        variable: VARIABLE,
        value: value.to_owned(),
        most: MOST_SHARDS,
    })
}

/// Returns how many shards a device gets if neither its options nor the environment says, and how queue pairs
/// are assigned to them.
fn shards_by_default(options: &SoftOptions, cpus: usize) -> (usize, Assignment) {
    match (options.port_use, options.address.ip().is_loopback()) {
        (PortUse::Exclusive, true) => (cpus / CPUS_PER_SHARD, Assignment::Emptiest),
        (PortUse::Shared, true) if cpus >= CPUS_AT_SHARED_PORT => {
            (SHARDS_AT_SHARED_PORT, Assignment::ByCompletionQueue)
        }
        // GRO merges successive datagrams from one port, and the kernel passes all of them to the shard of
        // the first one. Those for queue pairs of other shards would be lost.
        _ => (1, Assignment::Emptiest),
    }
}

impl fmt::Debug for DeviceShards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceShards")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Drop for DeviceShards {
    fn drop(&mut self) {
        // Their threads use the engines.
        self.rings = None;
        self.multicast.take();
        let is_child = !self.state.origin.is_current();
        if !is_child {
            // Ask all of them to end before waiting for the first.
            self.engines().for_each(SharedEngine::stop);
        }
        for thread in self
            .shards
            .iter_mut()
            .filter_map(|shard| shard.thread.take())
        {
            match is_child {
                // So are the eventfds that wake it.
                true => thread.forget(),
                false => thread.join(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    use std::ptr;

    use super::*;
    use crate::device::Device;
    use crate::loopback;
    use crate::types::Domain;

    #[test]
    fn a_number_of_shards_that_no_device_has_is_named_and_refused() {
        for (value, number) in [("1", 1), (" 8\n", 8)] {
            assert_eq!(shards_of_variable(value).unwrap(), number);
        }
        for value in [" ", "0", "9", "-1", "four", "2 4"] {
            let refused = shards_of_variable(value).unwrap_err().to_string();
            assert!(
                refused.contains(&format!("GDR_SHARDS is `{value}`")),
                "{refused}"
            );
        }
    }

    #[test]
    fn the_default_number_of_shards_follows_from_processors_port_and_address() {
        let loopback = SoftOptions::new(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let network = SoftOptions::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));
        let ipv6 = SoftOptions::new(IpAddr::V6(Ipv6Addr::LOCALHOST));
        let shared = |options: SoftOptions| options.port_use(PortUse::Shared);
        let number = |options, cpus| shards_by_default(&options, cpus).0;
        assert_eq!(number(loopback, 16), 8);
        assert_eq!(number(ipv6, 8), 4);
        assert_eq!(number(network, 16), 1);
        assert_eq!(
            shards_by_default(&shared(loopback), 8),
            (2, Assignment::ByCompletionQueue)
        );
        assert_eq!(number(shared(loopback), 7), 1);
        assert_eq!(number(shared(network), 16), 1);
    }

    #[test]
    fn a_queue_pair_joins_the_shard_of_its_completion_queue_if_it_is_the_only_one() {
        let options = SoftOptions::default().port(0).shards(2);
        let mut device = DeviceShards::open(&options, None).unwrap();
        let queue = || Arc::new(CqEntries::new(1, None, Arc::default()));
        let (unused, used) = (queue(), queue());
        let _other = CqProducer::new(Arc::clone(&used), 1);
        let shard_of = |device: &DeviceShards, queues| {
            let assigned = device.assign_by(queues);
            device.engines().position(|it| ptr::eq(it, assigned))
        };
        for (assignment, shard) in [
            (Assignment::ByCompletionQueue, Some(1)),
            // It has no queue pair, as the other has none.
            (Assignment::Emptiest, Some(0)),
        ] {
            device.assignment = assignment;
            assert_eq!(shard_of(&device, [&used, &unused]), shard, "{assignment:?}");
            assert_eq!(shard_of(&device, [&unused, &used]), shard, "{assignment:?}");
            assert_eq!(shard_of(&device, [&unused, &unused]), Some(0));
        }
        device.assignment = Assignment::ByCompletionQueue;
        let _several = CqProducer::new(Arc::clone(&used), 0);
        assert_eq!(shard_of(&device, [&used, &used]), Some(0));
    }

    #[test]
    fn queue_pairs_of_a_completion_queue_share_a_shard_and_others_are_spread() {
        let options = SoftOptions::default().port(0).shards(2);
        let mut shards = DeviceShards::open(&options, None).unwrap();
        shards.assignment = Assignment::ByCompletionQueue;
        let device = Device::of(shards);
        let queues = [(); 2].map(|()| device.completion_queue(16, None));
        let pair = |queue| loopback::pair(Domain::new(), queue).unwrap();
        let pairs = [&queues[0], &queues[0], &queues[1]].map(pair);
        let [one, same, other] = pairs.each_ref().map(|it| device.shards().engine(it.qpn()));
        assert!(Arc::ptr_eq(one, same));
        assert!(!Arc::ptr_eq(one, other));
    }
}
