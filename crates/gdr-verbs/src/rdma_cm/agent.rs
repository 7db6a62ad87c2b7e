//! The connections of a device: a manager, and the thread that receives its messages.

use std::collections::HashMap;
use std::ffi::c_int;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use gdr_cm::{Arrival, CommId, Management, Manager, PeerProcess, ReceivedMad, ServiceId};
use gdr_nic::{Deadline, Time, random_number};
use gdr_process::block_signals;

use super::state;
use crate::device::Device;
use crate::errno::Errno;

/// A device that connections are made with. It stays open from the first one on.
pub(super) struct Agent {
    pub(super) device: Arc<Device>,
    pub(super) manager: Manager,
    pub(super) management: Arc<Management>,
    /// The identifiers of connections and exchanges.
    pub(super) ids: HashMap<CommId, u32>,
    /// The identifiers that listen.
    pub(super) listeners: HashMap<ServiceId, u32>,
    epoch: Instant,
}

impl Agent {
    pub(super) fn start(device: &Arc<Device>) -> Result<Self, Errno> {
        let management = Arc::new(Management::open(&device.engine()?)?);
        let (receiver, index) = (Arc::clone(&management), device.index());
        thread::Builder::new()
            .name("gdr-cm".to_owned())
            .spawn(move || {
                block_signals();
                run(&receiver, index);
            })
            .map_err(|error| Errno::of_io(&error))?;
        state::end_at_exit();
        Ok(Self {
            device: Arc::clone(device),
            manager: Manager::new(management.prefix(), random_number()?),
            management,
            ids: HashMap::new(),
            listeners: HashMap::new(),
            epoch: Instant::now(),
        })
    }

    pub(super) fn now(&self) -> Time {
        Time::since_epoch(self.epoch.elapsed())
    }

    /// Sends what the manager has to send.
    pub(super) fn transmit(&mut self) {
        while let Some((to, mad)) = self.manager.poll_transmit() {
            self.management.send(to, &mad);
        }
    }

    /// Notices the end of the process that has a connection's name at the other end.
    pub(super) fn watch(&self, address: IpAddr, remote: CommId) {
        let prefix = Manager::prefix_of(remote);
        self.management.watch(PeerProcess { address, prefix });
    }

    fn deadline(&self) -> Option<Deadline> {
        let due = self.manager.deadline()?.elapsed();
        Some(Deadline::at(self.epoch + due))
    }
}

/// Receives messages, and repeats those that are not answered, while the process lives.
fn run(management: &Management, index: c_int) {
    let mut received = None;
    loop {
        let deadline = state::with(|state| {
            let Some(agent) = state.agents.get_mut(&index) else {
                // The agent is not in its place yet.
                return Some(Deadline::after(Duration::from_millis(1)));
            };
            let now = agent.now();
            match received.take() {
                Some(Arrival::Mad(ReceivedMad { from, mad })) => {
                    agent.manager.receive(now, from, &mad);
                }
                Some(Arrival::Ended(PeerProcess { address, prefix })) => {
                    agent.manager.peer_ended(now, address, prefix);
                }
                None => {}
            }
            agent.manager.poll(now);
            let deadline = agent.deadline();
            state.pump(index);
            state
                .agents
                .get(&index)
                .and_then(Agent::deadline)
                .or(deadline)
        });
        received = management.receive(deadline);
    }
}
