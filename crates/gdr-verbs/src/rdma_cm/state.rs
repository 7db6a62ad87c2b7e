//! All identifiers of the process, and what happens to them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, Once};
use std::thread;
use std::time::Duration;

use gdr_cm::{CmEvent, CommId, IpAddresses, Rep, Req, ServiceId, SidrRep, SidrReq};
use gdr_copy::PerProcess;
use gdr_nic::{Deadline, LinkWatch, Mtu, Psn, random_number};
use gdr_verbs_sys::ibv_qp_type as Kind;

use super::abi::{Event, EventAnswer};
use super::agent::Agent;
use super::channel::{Channel, QueuedEvent};
use super::id::{Id, PortSpace, Step, Terms};
use super::membership::Membership;
use crate::device::{Device, lock};
use crate::errno::Errno;
use crate::ret::plain;

/// The identifiers, by the numbers that the program knows, and the devices that they use.
#[derive(Default)]
pub(super) struct State {
    last: u32,
    pub(super) ids: BTreeMap<u32, Id>,
    pub(super) memberships: BTreeMap<u32, Membership>,
    pub(super) agents: BTreeMap<c_int, Agent>,
}

/// The parent's stay its own after a fork.
static STATE: PerProcess<Mutex<State>> = PerProcess::new();

/// Calls a function with the state, which is locked meanwhile.
pub(super) fn with<R>(act: impl FnOnce(&mut State) -> R) -> R {
    act(&mut lock(STATE.get_fast()))
}

/// Has the connections ended when the process exits. Its threads end then, and processes of other hosts notice nothing
/// by themselves.
pub(super) fn end_at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a function of this library, which is never unloaded: it has threads.
        if unsafe { libc::atexit(end_all) } != 0 {
            tracing::error!("connections that stay open will not be ended");
        }
    });
}

extern "C" fn end_all() {
    /// A thread that calls `exit` while it has the lock never gives it back.
    const LIMIT: Duration = Duration::from_secs(1);
    plain((), || {
        let deadline = Deadline::after(LIMIT);
        loop {
            if let Ok(mut state) = STATE.get_fast().try_lock() {
                let handles: Vec<_> = state.ids.keys().copied().collect();
                for handle in handles {
                    state.destroy(handle);
                }
                return Ok(());
            }
            if deadline.has_passed() {
                return Ok(());
            }
            thread::yield_now();
        }
    });
}

impl State {
    /// A new identifier; returns its number.
    pub(super) fn add(
        &mut self,
        channel: &Arc<Channel>,
        uid: u64,
        space: (PortSpace, Kind),
    ) -> Result<u32, Errno> {
        let psn = Psn::new(random_number()?);
        let number = self.new_number();
        let id = Id::new(Arc::clone(channel), uid, space, psn);
        self.ids.insert(number, id);
        Ok(number)
    }

    /// A number that no identifier and no membership has.
    pub(super) fn new_number(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1);
            let is_taken = self.ids.contains_key(&self.last);
            if !is_taken && !self.memberships.contains_key(&self.last) {
                return self.last;
            }
        }
    }

    /// An identifier of a channel.
    pub(super) fn id(&mut self, channel: &Arc<Channel>, handle: u32) -> Result<&mut Id, Errno> {
        let id = self.ids.get_mut(&handle).ok_or(Errno::NOENT)?;
        if Arc::ptr_eq(&id.channel, channel) {
            Ok(id)
        } else {
            Err(Errno::INVAL)
        }
    }

    /// The agent of a device, which is started unless it runs.
    pub(super) fn agent(&mut self, device: &Arc<Device>) -> Result<&mut Agent, Errno> {
        match self.agents.entry(device.index()) {
            Entry::Occupied(running) => Ok(running.into_mut()),
            Entry::Vacant(free) => Ok(free.insert(Agent::start(device)?)),
        }
    }

    /// The agent of an identifier's device.
    pub(super) fn agent_of(&mut self, handle: u32) -> Result<&mut Agent, Errno> {
        let device = self.ids.get(&handle).and_then(|id| id.device);
        let agent = device.and_then(|index| self.agents.get_mut(&index));
        agent.ok_or(Errno::INVAL)
    }

    /// Reports an event of an identifier.
    pub(super) fn report(&self, handle: u32, event: Event, status: i32) {
        self.report_with(handle, event, status, |_| {});
    }

    /// Like [`State::report`]; `fill` sets the parameters of the event.
    pub(super) fn report_with(
        &self,
        handle: u32,
        event: Event,
        status: i32,
        fill: impl FnOnce(&mut EventAnswer),
    ) {
        let Some(id) = self.ids.get(&handle).filter(|id| id.uid != 0) else {
            return;
        };
        let mut answer = Box::new(EventAnswer::event(id.uid, handle, event, status));
        fill(&mut answer);
        id.channel.push(QueuedEvent {
            owner: handle,
            new: None,
            answer,
        });
    }

    /// Removes an identifier with its connection and its events; returns how many of them were fetched.
    pub(super) fn destroy(&mut self, handle: u32) -> u32 {
        for membership in self.memberships_of(handle) {
            self.end_membership(membership);
        }
        let Some(id) = self.ids.remove(&handle) else {
            return 0;
        };
        if let Some(port) = id.source.map(|source| source.port()) {
            let service = id.space.service(port);
            for index in &id.listens {
                if let Some(agent) = self.agents.get_mut(index) {
                    agent.management.ignore(service);
                    agent.manager.ignore(service);
                    agent.listeners.remove(&service);
                }
            }
        }
        if let Some(comm) = id.comm
            && let Some(agent) = id.device.and_then(|index| self.agents.get_mut(&index))
        {
            let now = agent.now();
            agent.ids.remove(&comm);
            agent.manager.abandon(now, comm);
        }
        let requests = id.channel.remove(handle);
        // The peers of requests that the program never saw are refused.
        for new in requests.iter().filter_map(|event| event.new) {
            self.destroy(new);
        }
        if let Some(index) = id.device {
            self.pump(index);
        }
        id.reported
    }

    /// Removes the identifiers of a channel that is closed.
    pub(super) fn close(&mut self, channel: &Arc<Channel>) {
        let of_channel = self.ids.iter();
        let of_channel = of_channel.filter(|(_, id)| Arc::ptr_eq(&id.channel, channel));
        let handles: Vec<_> = of_channel.map(|(handle, _)| *handle).collect();
        for handle in handles {
            self.destroy(handle);
        }
    }

    /// Sends what a device has to send, reports its events, and lets its thread see the next deadline.
    pub(super) fn pump(&mut self, index: c_int) {
        while let Some(agent) = self.agents.get_mut(&index) {
            agent.transmit();
            let Some(event) = agent.manager.poll_event() else {
                break;
            };
            self.handle(index, event);
        }
    }

    /// Like [`State::pump`], for a thread of the program: the device's own thread then sees the next deadline.
    pub(super) fn pump_and_wake(&mut self, index: c_int) {
        self.pump(index);
        if let Some(agent) = self.agents.get(&index) {
            agent.management.wake();
        }
    }

    fn handle(&mut self, index: c_int, event: CmEvent) {
        let known = |state: &Self, comm: CommId| {
            let agent = state.agents.get(&index)?;
            agent.ids.get(&comm).copied()
        };
        match event {
            CmEvent::Requested { id, from, req } => self.requested(index, id, from, &req),
            CmEvent::Resolving { id, from, req } => self.resolving(index, id, from, &req),
            CmEvent::Accepted { id, rep } => {
                if let Some(handle) = known(self, id) {
                    self.accepted(handle, &rep);
                }
            }
            CmEvent::Resolved { id, rep } => {
                if let Some(handle) = known(self, id) {
                    self.resolved(handle, &rep);
                }
            }
            CmEvent::Established { id } => {
                if let Some(handle) = known(self, id) {
                    self.report(handle, Event::Established, 0);
                }
            }
            CmEvent::Rejected {
                id,
                reason,
                private_data,
            } => {
                if let Some(handle) = known(self, id) {
                    let status = i32::from(reason.0);
                    self.report_with(handle, Event::Rejected, status, |answer| {
                        answer.connection(0, &private_data, [0; 6]);
                    });
                }
            }
            CmEvent::Unreachable { id } => {
                if let Some(handle) = known(self, id) {
                    self.report(handle, Event::Unreachable, -libc::ETIMEDOUT);
                }
            }
            CmEvent::Disconnected { id } => {
                if let Some(handle) = known(self, id) {
                    self.report(handle, Event::Disconnected, 0);
                }
            }
            CmEvent::TimeWaitOver { id } => {
                if let Some(handle) = known(self, id) {
                    self.report(handle, Event::TimewaitExit, 0);
                }
            }
            _ => {}
        }
    }

    fn accepted(&mut self, handle: u32, rep: &Rep) {
        let peer = self.ids.get(&handle).and_then(|id| id.destination);
        if let (Some(peer), Ok(agent)) = (peer, self.agent_of(handle)) {
            agent.watch(peer.ip(), rep.ids.local);
        }
        if let Some(terms) = self.ids.get_mut(&handle).and_then(|id| id.terms.as_mut()) {
            terms.accepted(rep);
        }
        self.report_with(handle, Event::ConnectResponse, 0, |answer| {
            let terms = [
                rep.has_shared_receives.into(),
                rep.initiator_depth,
                rep.responder_resources,
                rep.has_flow_control.into(),
                0,
                rep.rnr_retry_count,
            ];
            answer.connection(rep.qpn.get(), &rep.private_data, terms);
        });
    }

    fn resolved(&mut self, handle: u32, rep: &SidrRep) {
        let Some(peer) = self.ids.get(&handle).and_then(|id| id.destination) else {
            return;
        };
        if rep.status.0 != 0 {
            let status = i32::from(rep.status.0);
            return self.report(handle, Event::Unreachable, status);
        }
        self.report_with(handle, Event::Established, 0, |answer| {
            let pair = (rep.qpn.get(), rep.qkey.0);
            answer.datagrams(peer.ip(), pair, &rep.private_data);
        });
    }

    /// A peer asks for a connection.
    fn requested(&mut self, index: c_int, comm: CommId, from: IpAddr, req: &Req) {
        let is_meant = |listening: &Id| listening.reliability() == req.reliability;
        let Some((listener, new)) = self.add_requested(
            index,
            comm,
            from,
            (req.service, &req.private_data),
            is_meant,
        ) else {
            return self.refuse(index, comm);
        };
        if let Some(agent) = self.agents.get(&index) {
            agent.watch(from, req.id);
        }
        let mtu = self.path_mtu(index, from);
        if let Some(id) = self.ids.get_mut(&new) {
            id.terms = Some(Terms::of_req(from, req, mtu));
        }
        let private_data = behind_addresses(req.service, &req.private_data);
        self.report_request(listener, new, |answer| {
            let terms = [
                req.has_shared_receives.into(),
                req.initiator_depth,
                req.responder_resources,
                req.has_flow_control.into(),
                req.retry_count,
                req.rnr_retry_count,
            ];
            answer.connection(req.qpn.get(), private_data, terms);
        });
    }

    /// A peer asks for the queue pair of a datagram service.
    fn resolving(&mut self, index: c_int, comm: CommId, from: IpAddr, req: &SidrReq) {
        let asked = (req.service, &req.private_data[..]);
        let Some((listener, new)) =
            self.add_requested(index, comm, from, asked, Id::is_of_datagrams)
        else {
            return self.refuse(index, comm);
        };
        let private_data = behind_addresses(req.service, &req.private_data);
        self.report_request(listener, new, |answer| {
            answer.datagrams(from, (0, 0), private_data);
        });
    }

    fn refuse(&mut self, index: c_int, comm: CommId) {
        if let Some(agent) = self.agents.get_mut(&index) {
            let now = agent.now();
            agent.manager.abandon(now, comm);
        }
    }

    /// Makes an identifier for what a peer asks for; returns the one that listens, and the new one. `None` where the
    /// former is not meant.
    fn add_requested(
        &mut self,
        index: c_int,
        comm: CommId,
        from: IpAddr,
        (service, private_data): (ServiceId, &[u8]),
        is_meant: impl FnOnce(&Id) -> bool,
    ) -> Option<(u32, u32)> {
        let agent = self.agents.get(&index)?;
        let own = agent.device.nic().address;
        let listener = *agent.listeners.get(&service)?;
        let listening = self.ids.get(&listener).filter(|id| is_meant(id))?;
        let channel = Arc::clone(&listening.channel);
        let space = (listening.space, listening.kind);
        let new = self.add(&channel, 0, space).ok()?;
        let addresses = IpAddresses::parse(private_data).filter(|_| service.is_ip_port());
        let id = self.ids.get_mut(&new)?;
        let (source, destination) = addresses.map_or((own, SocketAddr::new(from, 0)), |it| {
            (it.destination, SocketAddr::new(it.source, it.source_port))
        });
        id.source = Some(SocketAddr::new(source, service.port()));
        id.destination = Some(destination);
        id.device = Some(index);
        id.comm = Some(comm);
        id.step = Step::Connected;
        self.agents.get_mut(&index)?.ids.insert(comm, new);
        Some((listener, new))
    }

    fn report_request(&self, listener: u32, new: u32, fill: impl FnOnce(&mut EventAnswer)) {
        let Some(listening) = self.ids.get(&listener) else {
            return;
        };
        let event = Event::ConnectRequest;
        let mut answer = Box::new(EventAnswer::event(listening.uid, new, event, 0));
        fill(&mut answer);
        listening.channel.push(QueuedEvent {
            owner: listener,
            new: Some(new),
            answer,
        });
    }

    /// The path MTU to a peer, a value of `enum ibv_mtu`.
    pub(super) fn path_mtu(&self, index: c_int, peer: IpAddr) -> u8 {
        let device = self.agents.get(&index).map(|agent| &agent.device);
        let route = device.and_then(|device| device.engine().ok()?.path_mtu(peer).ok());
        let port =
            device.and_then(|device| LinkWatch::new(device.nic()).poll(&mut |_| {}).path_mtu);
        narrower(route, port).code()
    }
}

/// The largest path MTU that a route and the port have. The route to another device of this host is as wide as
/// loopback, and a queue pair takes what the port has.
fn narrower(route: Option<Mtu>, port: Option<Mtu>) -> Mtu {
    let [route, port] = [route, port].map(|mtu| mtu.unwrap_or(Mtu::B1024));
    route.min(port)
}

/// What the program of a peer sent along.
fn behind_addresses(service: ServiceId, private_data: &[u8]) -> &[u8] {
    if service.is_ip_port() {
        private_data.get(IpAddresses::LEN..).unwrap_or_default()
    } else {
        private_data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_through_loopback_is_no_wider_than_the_port() {
        let [wide, narrow] = [Mtu::B4096, Mtu::B1024].map(Some);
        assert_eq!(narrower(wide, narrow), Mtu::B1024);
        assert_eq!(narrower(narrow, wide), Mtu::B1024);
        assert_eq!(narrower(wide, wide), Mtu::B4096);
        assert_eq!(narrower(wide, None), Mtu::B1024);
    }
}
