//! The commands of librdmacm.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use gdr_cm::{
    CommId, Families, IdPair, IpAddresses, Path, Rej, RejectReason, Rep, Req, Reuse, SidrRep,
    SidrReq, SidrStatus,
};
use gdr_nic::{PartitionKey, Qkey, Qpn};
use gdr_verbs_sys::{ibv_qp_attr_mask as Mask, ibv_qp_type as Kind};

use super::abi::{Answer, ConnectionParameters, Event, Fields, HOP_LIMIT, PARTITION, gid};
use super::address::{bind, is_any, resolve_address};
use super::channel::Channel;
use super::descriptor;
use super::id::{Id, PortSpace, Step, Terms};
use super::state::{self, State};
use crate::device::{Device, MOST_READS};
use crate::errno::Errno;

/// The header of a command: its number, and the lengths of what follows and of the answer.
const HEADER: usize = 8;

const CREATE_ID: u32 = 0;
const DESTROY_ID: u32 = 1;
const BIND_IP: u32 = 2;
const RESOLVE_IP: u32 = 3;
const RESOLVE_ROUTE: u32 = 4;
const QUERY_ROUTE: u32 = 5;
const CONNECT: u32 = 6;
const LISTEN: u32 = 7;
const ACCEPT: u32 = 8;
const REJECT: u32 = 9;
const DISCONNECT: u32 = 10;
const INIT_QP_ATTR: u32 = 11;
/// Fetches an event. It may wait, so that `descriptor` begins it.
pub(super) const GET_EVENT: u32 = 12;
const SET_OPTION: u32 = 14;
const NOTIFY: u32 = 15;
const JOIN_IP_MCAST: u32 = 16;
const LEAVE_MCAST: u32 = 17;
const MIGRATE_ID: u32 = 18;
const QUERY: u32 = 19;
const BIND: u32 = 20;
const RESOLVE_ADDR: u32 = 21;
const JOIN_MCAST: u32 = 22;
const WRITE_CM_EVENT: u32 = 24;

/// What a response timeout of 4.096 us * 2^20 is in a message, and how often messages are repeated: the values
/// of the kernel.
const RESPONSE_TIMEOUT: u8 = 20;
const CM_RETRIES: u8 = 15;
/// The timeout of acknowledgements of a connection: 4.096 us * 2^18.
const ACK_TIMEOUT: u8 = 18;
/// The length of an event without what was added to it later.
const LEAST_EVENT: usize = 324;

/// A command, as far as its header says.
#[derive(Clone, Copy)]
pub(super) struct Command<'a> {
    pub(super) number: u32,
    payload: &'a [u8],
    room: usize,
}

impl<'a> Command<'a> {
    /// The bytes are untrusted.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, Errno> {
        let (header, payload) = bytes.split_first_chunk::<HEADER>().ok_or(Errno::INVAL)?;
        let header = Fields(header);
        let len = usize::from(header.u16(4));
        Ok(Self {
            number: header.u32(0),
            payload: payload.get(..len).ok_or(Errno::INVAL)?,
            room: header.u16(6).into(),
        })
    }

    fn fields(&self) -> Fields<'a> {
        Fields(self.payload)
    }

    /// Fails unless the program has room for an event, which would be lost.
    pub(super) fn check_event_room(&self) -> Result<(), Errno> {
        if self.room < LEAST_EVENT {
            return Err(Errno::NOSPC);
        }
        Ok(())
    }
}

/// An answer, and the address of the program that it goes to.
pub(super) type Reply = Option<(u64, Vec<u8>)>;

/// A reply, if the program has room for at least `least` bytes of it.
fn reply(command: &Command<'_>, at: usize, bytes: &[u8], least: usize) -> Result<Reply, Errno> {
    if command.room < least {
        return Err(Errno::NOSPC);
    }
    let len = bytes.len().min(command.room);
    Ok(Some((command.fields().u64(at), bytes[..len].to_vec())))
}

/// Fetches an event whose byte was read from the descriptor; `None` if another thread has fetched it.
pub(super) fn get_event(
    channel: &Arc<Channel>,
    command: &Command<'_>,
) -> Result<Option<(u64, Vec<u8>)>, Errno> {
    state::with(|state| {
        let Some(event) = channel.take() else {
            return Ok(None);
        };
        if let Some(owner) = state.ids.get_mut(&event.owner) {
            owner.reported += 1;
        } else if let Some(membership) = state.memberships.get_mut(&event.owner) {
            membership.reported += 1;
        }
        reply(command, 0, &event.answer.0, LEAST_EVENT)
    })
}

/// Executes a command other than [`GET_EVENT`].
pub(super) fn execute(channel: &Arc<Channel>, command: &Command<'_>) -> Result<Reply, Errno> {
    let fields = command.fields();
    state::with(|state| match command.number {
        CREATE_ID => create_id(state, channel, command),
        DESTROY_ID => {
            let handle = fields.u32(8);
            state.id(channel, handle)?;
            let reported = state.destroy(handle);
            reply(command, 0, &reported.to_ne_bytes(), 4)
        }
        BIND_IP => {
            bind(state, channel, fields.u32(36), fields.address(8))?;
            Ok(None)
        }
        BIND => {
            bind(state, channel, fields.u32(0), fields.address(8))?;
            Ok(None)
        }
        RESOLVE_IP => {
            let addresses = (fields.address(0), fields.address(28));
            resolve_address(state, channel, fields.u32(56), addresses)?;
            Ok(None)
        }
        RESOLVE_ADDR => {
            let source = match fields.u16(8) {
                0 => None,
                _ => fields.address(16),
            };
            let addresses = (source, fields.address(144));
            resolve_address(state, channel, fields.u32(0), addresses)?;
            Ok(None)
        }
        RESOLVE_ROUTE => {
            let handle = fields.u32(0);
            let id = state.id(channel, handle)?;
            if id.step != Step::AddressResolved {
                return Err(Errno::INVAL);
            }
            id.step = Step::RouteResolved;
            state.report(handle, Event::RouteResolved, 0);
            Ok(None)
        }
        QUERY_ROUTE => {
            state.id(channel, fields.u32(8))?;
            query_route(state, command, fields.u32(8))
        }
        QUERY => {
            state.id(channel, fields.u32(8))?;
            query(state, command, fields.u32(8), fields.u32(12))
        }
        CONNECT => connect(state, channel, &fields),
        LISTEN => listen(state, channel, fields.u32(0)),
        ACCEPT => accept(state, channel, &fields),
        REJECT => reject(state, channel, &fields),
        DISCONNECT => disconnect(state, channel, fields.u32(0)),
        INIT_QP_ATTR => {
            let id = state.id(channel, fields.u32(8))?;
            let answer = queue_pair_attributes(id, fields.u32(12))?;
            reply(command, 0, &answer.0, answer.0.len())
        }
        SET_OPTION => set_option(state, channel, &fields),
        NOTIFY => notify(state, channel, fields.u32(0), fields.u32(4)),
        MIGRATE_ID => migrate(state, channel, command),
        WRITE_CM_EVENT => write_event(state, channel, &fields),
        JOIN_IP_MCAST => join(state, channel, command, fields.u32(44), fields.address(16)),
        JOIN_MCAST => {
            /// Full members, and members that only send. The latter differ in librdmacm alone.
            const MEMBERS: RangeInclusive<u16> = 0..=1;
            let group = fields.address(24);
            join(
                state,
                channel,
                command,
                fields.u32(16),
                group.filter(|_| MEMBERS.contains(&fields.u16(22))),
            )
        }
        LEAVE_MCAST => {
            let reported = state.leave(channel, fields.u32(8))?;
            reply(command, 0, &reported.to_ne_bytes(), 4)
        }
        _ => Err(Errno::INVAL),
    })
}

fn create_id(
    state: &mut State,
    channel: &Arc<Channel>,
    command: &Command<'_>,
) -> Result<Reply, Errno> {
    let fields = command.fields();
    let kind = Kind(fields.u8(18).into());
    let space = PortSpace::of(fields.u16(16), kind).ok_or(Errno::INVAL)?;
    let handle = state.add(channel, fields.u64(0), space)?;
    reply(command, 8, &handle.to_ne_bytes(), 4).inspect_err(|_| {
        state.destroy(handle);
    })
}

/// Reports an event that the program writes: its own, or one of librdmacm, which has resolved names and addresses
/// (`rdma_resolve_addrinfo`).
fn write_event(
    state: &mut State,
    channel: &Arc<Channel>,
    fields: &Fields<'_>,
) -> Result<Reply, Errno> {
    let (handle, status) = (fields.u32(0), fields.u32(12).cast_signed());
    let event = [Event::User, Event::Internal]
        .into_iter()
        .find(|event| *event as u32 == fields.u32(8))
        .ok_or(Errno::INVAL)?;
    state.id(channel, handle)?;
    state.report_with(handle, event, status, |answer| {
        answer.argument(fields.bytes(16));
    });
    Ok(None)
}

/// The device of an identifier, if it has one.
fn device_of<'a>(state: &'a State, id: &Id) -> Option<&'a Arc<Device>> {
    Some(&state.agents.get(&id.device?)?.device)
}

/// The own GID and the peer's, as far as they are known.
fn gids(id: &Id) -> [[u8; 16]; 2] {
    let gid = |address: Option<SocketAddr>| address.map_or([0; 16], |it| gid(it.ip()).octets());
    [gid(id.source), gid(id.destination)]
}

fn query_route(state: &State, command: &Command<'_>, handle: u32) -> Result<Reply, Errno> {
    let id = state.ids.get(&handle).ok_or(Errno::NOENT)?;
    let mut answer = Answer::<208>::new();
    if let Some(source) = id.source {
        answer.address(136, source);
    }
    if let Some(destination) = id.destination {
        answer.address(164, destination);
    }
    if let Some(device) = device_of(state, id) {
        answer.put(0, &device.guid().to_be_bytes());
        answer
            .put(196, &[1])
            .u32(200, device.netlink_index() as u32);
        let [own, peer] = gids(id);
        answer.put(8, &peer).put(24, &own).put(60, &PARTITION);
        if is_routed(id) {
            answer.u32(192, 1);
            let mtu = id
                .destination
                .map_or(0, |peer| state.path_mtu(device.index(), peer.ip()));
            answer.u32(52, 1).u32(56, mtu.into());
            // The answer has one path, with exactly this MTU, rate and lifetime.
            answer.put(62, &[HOP_LIMIT, 0, 1, 0, 2, 2, RATE, 2, ACK_TIMEOUT]);
        }
    }
    reply(command, 0, &answer.0, 200)
}

/// A rate of 10 Gb/s, by `enum ibv_rate`.
const RATE: u8 = 3;

fn is_routed(id: &Id) -> bool {
    matches!(id.step, Step::RouteResolved | Step::Connected)
}

fn query(state: &State, command: &Command<'_>, handle: u32, option: u32) -> Result<Reply, Errno> {
    /// `RDMA_USER_CM_QUERY_ADDR` and so on.
    const ADDR: u32 = 0;
    const PATH: u32 = 1;
    const GID: u32 = 2;
    const ADDR_LEAST: usize = 272;
    let id = state.ids.get(&handle).ok_or(Errno::NOENT)?;
    let device = device_of(state, id);
    let mut answer = Answer::<280>::new();
    if let Some(device) = device {
        answer.put(0, &device.guid().to_be_bytes()).put(8, &[1]);
        answer
            .put(10, &PARTITION)
            .u32(272, device.netlink_index() as u32);
    }
    match option {
        ADDR => {
            for (len_at, at, address) in [(12, 16, id.source), (14, 144, id.destination)] {
                if let Some(address) = address {
                    let len = answer.address(at, address);
                    answer.u16(len_at, len);
                }
            }
            reply(command, 0, &answer.0, ADDR_LEAST)
        }
        GID => {
            for ((len_at, at), gid) in [(12, 16), (14, 144)].into_iter().zip(gids(id)) {
                // `struct sockaddr_ib`, 48 bytes.
                answer.u16(at, libc::AF_IB as u16).put(at + 2, &PARTITION);
                answer.put(at + 8, &gid).u16(len_at, 48);
            }
            reply(command, 0, &answer.0, ADDR_LEAST)
        }
        PATH => {
            let mut answer = Answer::<80>::new();
            if let (Some(device), true) = (device, is_routed(id)) {
                let peer = id.destination.map(|peer| peer.ip());
                let mtu = peer.map_or(0, |peer| state.path_mtu(device.index(), peer));
                // The flags say GMP, primary and bidirectional.
                answer.u32(0, 1).u32(8, 1 | 2 | 8 | 32);
                let [own, peer] = gids(id);
                answer.put(24, &peer).put(40, &own);
                answer
                    .put(60, &[0, 0, 0, HOP_LIMIT, 0, 0x80 | 1])
                    .put(66, &PARTITION);
                // The selectors say exactly this MTU, rate and lifetime.
                answer.put(70, &[0x80 | mtu, 0x80 | RATE, 0x80 | ACK_TIMEOUT]);
            }
            reply(command, 0, &answer.0, 8)
        }
        _ => Err(Errno::NOSYS),
    }
}

fn listen(state: &mut State, channel: &Arc<Channel>, handle: u32) -> Result<Reply, Errno> {
    let id = state.id(channel, handle)?;
    if id.step != Step::New {
        return Err(Errno::INVAL);
    }
    let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
    match &mut id.port {
        Some(port) => port.make_exclusive()?,
        None => id.source = Some(id.bind(any)?),
    }
    let source = id.source.unwrap_or(any);
    let service = id.space.service(source.port());
    let is_meant = |device: &&Arc<Device>| {
        let own = device.nic().address;
        match source.ip() {
            any if is_any(any) => any.is_ipv6() || own.is_ipv4(),
            ip => ip == own,
        }
    };
    let mut failed = Errno::NODEV;
    for device in Device::all().iter().filter(is_meant) {
        // A device that cannot be opened must not affect the others.
        let agent = match state.agent(device) {
            Ok(agent) => agent,
            Err(errno) => {
                failed = errno;
                continue;
            }
        };
        match agent.management.listen(service) {
            Ok(true) => {}
            Ok(false) => {
                failed = Errno::ADDRINUSE;
                break;
            }
            Err(error) => {
                failed = error.into();
                continue;
            }
        }
        agent.manager.listen(service);
        agent.listeners.insert(service, handle);
        state.id(channel, handle)?.listens.push(device.index());
    }
    let id = state.id(channel, handle)?;
    if id.listens.is_empty() {
        return Err(failed);
    }
    id.step = Step::Listening;
    Ok(None)
}

fn connect(state: &mut State, channel: &Arc<Channel>, fields: &Fields<'_>) -> Result<Reply, Errno> {
    let parameters = ConnectionParameters::parse(fields, 0);
    let handle = fields.u32(ConnectionParameters::LEN);
    let id = state.id(channel, handle)?;
    if id.step != Step::RouteResolved || !parameters.is_valid {
        return Err(Errno::INVAL);
    }
    let (Some(source), Some(destination), Some(index)) = (id.source, id.destination, id.device)
    else {
        return Err(Errno::INVAL);
    };
    let (is_of_datagrams, reliability, starting_psn) =
        (id.is_of_datagrams(), id.reliability(), id.psn);
    let service = id.space.service(destination.port());
    if !is_of_datagrams && reliability.is_none() {
        return Err(Errno::INVAL);
    }
    let addresses = IpAddresses {
        source_port: source.port(),
        source: source.ip(),
        destination: destination.ip(),
    };
    let path_mtu = state.path_mtu(index, destination.ip());
    let agent = state.agent_of(handle)?;
    let now = agent.now();
    let mut terms = None;
    let comm = if is_of_datagrams {
        let mut room = [0; SidrReq::PRIVATE];
        room[..IpAddresses::LEN].copy_from_slice(&addresses.emit());
        let req = SidrReq {
            id: CommId::default(),
            partition: PartitionKey::DEFAULT,
            service,
            private_data: private_in(&parameters, room, IpAddresses::LEN)?,
        };
        agent.manager.resolve(now, destination.ip(), &req)
    } else {
        let mut room = [0; Req::PRIVATE];
        room[..IpAddresses::LEN].copy_from_slice(&addresses.emit());
        let req = Req {
            id: CommId::default(),
            service,
            ca_guid: agent.device.guid(),
            qkey: Qkey::default(),
            qpn: Qpn::new(parameters.qpn),
            responder_resources: parameters.responder_resources,
            initiator_depth: parameters.initiator_depth,
            remote_response_timeout: RESPONSE_TIMEOUT,
            reliability,
            has_flow_control: parameters.has_flow_control,
            starting_psn,
            local_response_timeout: RESPONSE_TIMEOUT,
            retry_count: parameters.retry_count,
            partition: PartitionKey::DEFAULT,
            path_mtu,
            rnr_retry_count: parameters.rnr_retry_count,
            max_cm_retries: CM_RETRIES,
            has_shared_receives: parameters.has_shared_receives,
            path: Path {
                local_gid: gid(source.ip()).octets(),
                remote_gid: gid(destination.ip()).octets(),
                flow_label: 0,
                traffic_class: 0,
                hop_limit: HOP_LIMIT,
                ack_timeout: ACK_TIMEOUT,
            },
            private_data: private_in(&parameters, room, IpAddresses::LEN)?,
        };
        terms = Some(Terms::asking(destination.ip(), &req));
        agent.manager.connect(now, destination.ip(), &req)
    };
    agent.ids.insert(comm, handle);
    let id = state.id(channel, handle)?;
    (id.comm, id.terms, id.step) = (Some(comm), terms, Step::Connected);
    state.pump_and_wake(index);
    Ok(None)
}

fn private_in<const N: usize>(
    parameters: &ConnectionParameters,
    room: [u8; N],
    at: usize,
) -> Result<[u8; N], Errno> {
    parameters.private_in(room, at).ok_or(Errno::INVAL)
}

fn accept(state: &mut State, channel: &Arc<Channel>, fields: &Fields<'_>) -> Result<Reply, Errno> {
    let uid = fields.u64(0);
    let parameters = ConnectionParameters::parse(fields, 8);
    let handle = fields.u32(8 + ConnectionParameters::LEN);
    let id = state.id(channel, handle)?;
    let (Some(comm), Some(index)) = (id.comm, id.device) else {
        return Err(Errno::INVAL);
    };
    let (is_of_datagrams, starting_psn) = (id.is_of_datagrams(), id.psn);
    let agent = state.agent_of(handle)?;
    let now = agent.now();
    let accepted = if !parameters.is_valid {
        agent.manager.confirm(comm)
    } else if is_of_datagrams {
        let rep = SidrRep {
            qpn: Qpn::new(parameters.qpn),
            qkey: Qkey(PortSpace::QKEY),
            private_data: private_in(&parameters, [0; SidrRep::PRIVATE], 0)?,
            ..SidrRep::refusal(SidrStatus::SUCCESS)
        };
        agent.manager.answer(now, comm, &rep)
    } else {
        let rep = Rep {
            ids: IdPair::default(),
            qkey: Qkey::default(),
            qpn: Qpn::new(parameters.qpn),
            target_qpn: Qpn::default(),
            starting_psn,
            responder_resources: parameters.responder_resources,
            initiator_depth: parameters.initiator_depth,
            target_ack_delay: 0,
            has_flow_control: parameters.has_flow_control,
            rnr_retry_count: parameters.rnr_retry_count,
            has_shared_receives: parameters.has_shared_receives,
            ca_guid: agent.device.guid(),
            private_data: private_in(&parameters, [0; Rep::PRIVATE], 0)?,
        };
        agent.manager.accept(now, comm, &rep)
    };
    accepted.map_err(|_| Errno::INVAL)?;
    if parameters.is_valid {
        let id = state.id(channel, handle)?;
        id.uid = uid;
        if let Some(terms) = &mut id.terms {
            terms.accept(&parameters);
        }
    }
    state.pump_and_wake(index);
    Ok(None)
}

fn reject(state: &mut State, channel: &Arc<Channel>, fields: &Fields<'_>) -> Result<Reply, Errno> {
    let (handle, len) = (fields.u32(0), usize::from(fields.u8(4)));
    let id = state.id(channel, handle)?;
    let (Some(comm), Some(index)) = (id.comm, id.device) else {
        return Err(Errno::INVAL);
    };
    let is_of_datagrams = id.is_of_datagrams();
    // A library that does not support reasons sends 0.
    let reason = match fields.u8(5) {
        0 => RejectReason::CONSUMER,
        reason => RejectReason(reason.into()),
    };
    let mut data: [u8; Rej::PRIVATE] = fields.bytes(8);
    data.get_mut(len..).ok_or(Errno::INVAL)?.fill(0);
    let agent = state.agent_of(handle)?;
    let now = agent.now();
    let rejected = if is_of_datagrams {
        let refusal = SidrRep {
            private_data: *data.first_chunk().ok_or(Errno::INVAL)?,
            ..SidrRep::refusal(SidrStatus::REJECT)
        };
        agent.manager.answer(now, comm, &refusal)
    } else {
        agent.manager.reject(now, comm, reason, &data)
    };
    rejected.map_err(|_| Errno::INVAL)?;
    state.pump_and_wake(index);
    Ok(None)
}

fn disconnect(state: &mut State, channel: &Arc<Channel>, handle: u32) -> Result<Reply, Errno> {
    let id = state.id(channel, handle)?;
    let (Some(comm), Some(index)) = (id.comm, id.device) else {
        return Err(Errno::INVAL);
    };
    let agent = state.agent_of(handle)?;
    let now = agent.now();
    // As in the kernel, this succeeds even if there is no connection any more, or not yet.
    let _over = agent.manager.disconnect(now, comm);
    state.pump_and_wake(index);
    Ok(None)
}

/// The attributes by which a queue pair enters a state (`struct ib_uverbs_qp_attr`). Peers may have devices with
/// more outstanding READs than these have, and programs that do not ask what was offered.
fn queue_pair_attributes(id: &Id, state: u32) -> Result<Answer<144>, Errno> {
    /// `enum ibv_qp_state`.
    const INIT: u32 = 1;
    const RTR: u32 = 2;
    const RTS: u32 = 3;
    if id.device.is_none() {
        return Err(Errno::INVAL);
    }
    let mut answer = Answer::new();
    answer.u32(4, state).put(133, &[1]);
    let mut mask = Mask::IBV_QP_STATE;
    match (state, id.is_of_datagrams()) {
        (INIT, true) => {
            mask |= Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_QKEY;
            answer.u32(20, PortSpace::QKEY);
        }
        (INIT, false) => {
            mask |= Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_ACCESS_FLAGS;
            /// Remote WRITE, READ and atomics.
            const ACCESS: u32 = 2 | 4 | 8;
            answer.u32(36, ACCESS);
        }
        (RTR, true) => {}
        (RTS, true) => {
            mask |= Mask::IBV_QP_SQ_PSN;
            answer.u32(28, id.psn.get());
        }
        (RTR, false) => {
            let terms = id.terms.ok_or(Errno::INVAL)?;
            mask |= Mask::IBV_QP_AV | Mask::IBV_QP_PATH_MTU | Mask::IBV_QP_DEST_QPN;
            mask |= Mask::IBV_QP_RQ_PSN;
            if matches!(id.kind, Kind::IBV_QPT_RC | Kind::IBV_QPT_XRC_RECV) {
                mask |= Mask::IBV_QP_MAX_DEST_RD_ATOMIC | Mask::IBV_QP_MIN_RNR_TIMER;
            }
            answer.u32(12, terms.path_mtu.into()).u32(24, id.psn.get());
            answer.u32(32, terms.qpn.get()).vector(40, terms.peer);
            answer.put(131, &[terms.responder_resources.min(MOST_READS)]);
        }
        (RTS, false) => {
            let terms = id.terms.ok_or(Errno::INVAL)?;
            mask |= Mask::IBV_QP_SQ_PSN;
            if id.kind != Kind::IBV_QPT_UC {
                mask |= Mask::IBV_QP_TIMEOUT;
            }
            if matches!(id.kind, Kind::IBV_QPT_RC | Kind::IBV_QPT_XRC_SEND) {
                mask |= Mask::IBV_QP_RETRY_CNT | Mask::IBV_QP_RNR_RETRY;
                mask |= Mask::IBV_QP_MAX_QP_RD_ATOMIC;
            }
            answer
                .u32(28, terms.psn.get())
                .put(130, &[terms.initiator_depth]);
            let ack_timeout = id.ack_timeout.unwrap_or(terms.ack_timeout);
            let repetition = [ack_timeout, terms.retry_count, terms.rnr_retry_count];
            answer.put(134, &repetition);
        }
        _ => return Err(Errno::INVAL),
    }
    answer.u32(0, mask.0);
    Ok(answer)
}

fn set_option(
    state: &mut State,
    channel: &Arc<Channel>,
    fields: &Fields<'_>,
) -> Result<Reply, Errno> {
    /// `RDMA_OPTION_ID`. The type of service is accepted, and changes nothing.
    const LEVEL_ID: u32 = 0;
    const TYPE_OF_SERVICE: u32 = 0;
    const REUSE_ADDRESS: u32 = 1;
    const ONE_FAMILY: u32 = 2;
    const ACK_TIMEOUT: u32 = 3;
    let id = state.id(channel, fields.u32(8))?;
    let value = ptr::with_exposed_provenance::<u8>(fields.u64(0) as usize);
    let integer = || {
        let value = NonNull::new(value.cast::<u32>().cast_mut()).ok_or(Errno::FAULT)?;
        // SAFETY: librdmacm passes the address of a value of the length that the command has, which is compared below.
        Ok::<_, Errno>(unsafe { value.read_unaligned() })
    };
    match (fields.u32(12), fields.u32(16), fields.u32(20)) {
        (LEVEL_ID, TYPE_OF_SERVICE, _) => Ok(None),
        (LEVEL_ID, REUSE_ADDRESS, 4) => {
            let reuse = match integer()? {
                0 => Reuse::Exclusive,
                _ => Reuse::Shared,
            };
            // As in the kernel, an identifier that listens cannot share, and one that is bound continues to
            // share.
            if id.step == Step::Listening || reuse == Reuse::Exclusive && id.source.is_some() {
                return Err(Errno::INVAL);
            }
            id.reuse = reuse;
            Ok(None)
        }
        (LEVEL_ID, ONE_FAMILY, 4) => {
            let families = match integer()? {
                0 => Families::Both,
                _ => Families::Own,
            };
            if id.step != Step::New {
                return Err(Errno::INVAL);
            }
            id.families = Some(families);
            Ok(None)
        }
        (LEVEL_ID, ACK_TIMEOUT, 1) => {
            // SAFETY: librdmacm passes the address of a value of this length.
            let timeout = unsafe { value.as_ref() }.ok_or(Errno::FAULT)?;
            id.ack_timeout = Some(*timeout & 0x1f);
            Ok(None)
        }
        (LEVEL_ID, REUSE_ADDRESS | ONE_FAMILY | ACK_TIMEOUT, _) => Err(Errno::INVAL),
        _ => Err(Errno::NOSYS),
    }
}

fn notify(
    state: &mut State,
    channel: &Arc<Channel>,
    handle: u32,
    event: u32,
) -> Result<Reply, Errno> {
    /// `IBV_EVENT_COMM_EST`.
    const ESTABLISHED: u32 = 4;
    let id = state.id(channel, handle)?;
    let (Some(comm), Some(index)) = (id.comm, id.device) else {
        return Err(Errno::INVAL);
    };
    if event != ESTABLISHED {
        return Err(Errno::INVAL);
    }
    let noted = state.agent_of(handle)?.manager.note_traffic(comm);
    noted.map_err(|_| Errno::INVAL)?;
    state.pump_and_wake(index);
    Ok(None)
}

/// Joins a multicast group. RoCE has no subnet manager to ask, so it has succeeded at once.
fn join(
    state: &mut State,
    channel: &Arc<Channel>,
    command: &Command<'_>,
    handle: u32,
    group: Option<SocketAddr>,
) -> Result<Reply, Errno> {
    let group = group.map(|group| group.ip()).filter(IpAddr::is_multicast);
    let group = group.ok_or(Errno::INVAL)?;
    let id = state.id(channel, handle)?;
    let is_bound = matches!(id.step, Step::New | Step::AddressResolved) && id.device.is_some();
    if !is_bound || !id.is_of_datagrams() {
        return Err(Errno::INVAL);
    }
    let membership = state.join(handle, command.fields().u64(8), group)?;
    reply(command, 0, &membership.to_ne_bytes(), 4).inspect_err(|_| {
        state.end_membership(membership);
    })
}

/// Moves an identifier with its events to this channel.
fn migrate(
    state: &mut State,
    channel: &Arc<Channel>,
    command: &Command<'_>,
) -> Result<Reply, Errno> {
    let fields = command.fields();
    let handle = fields.u32(8);
    let from = descriptor::channel(fields.u32(12).cast_signed()).ok_or(Errno::INVAL)?;
    let id = state.id(&from, handle)?;
    id.channel = Arc::clone(channel);
    let reported = id.reported;
    let memberships = state.memberships_of(handle);
    for owner in memberships.into_iter().chain([handle]) {
        for event in from.remove(owner) {
            if let Some(new) = event.new.and_then(|new| state.ids.get_mut(&new)) {
                new.channel = Arc::clone(channel);
            }
            channel.push(event);
        }
    }
    reply(command, 0, &reported.to_ne_bytes(), 4)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use gdr_nic::Psn;
    use gdr_verbs_sys::{QpTransition, ibv_qp_state};

    /// The attributes of a connection on the way to RTR and RTS.
    fn attributes(kind: Kind) -> [Answer<144>; 2] {
        let channel = Arc::new(Channel::new().unwrap());
        let space = PortSpace::of(0x013f, kind).unwrap();
        let mut id = Id::new(channel, 1, space, Psn::new(5));
        id.device = Some(0);
        id.terms = Some(Terms {
            peer: Ipv4Addr::LOCALHOST.into(),
            qpn: Qpn::new(17),
            psn: Psn::new(6),
            path_mtu: 3,
            ack_timeout: 18,
            responder_resources: 128,
            initiator_depth: 128,
            retry_count: 7,
            rnr_retry_count: 7,
        });
        [2, 3].map(|state| {
            let answer = queue_pair_attributes(&id, state);
            answer.unwrap_or_else(|errno| panic!("{errno:?}"))
        })
    }

    #[test]
    fn each_side_sends_the_psns_that_the_other_one_asked_for() {
        let [rtr, rts] = attributes(Kind::IBV_QPT_RC).map(|answer| answer.0);
        assert_eq!(Fields(&rtr).u32(24), 5, "rq_psn");
        assert_eq!(Fields(&rts).u32(28), 6, "sq_psn");
    }

    #[test]
    fn each_kind_of_queue_pair_gets_the_attributes_that_it_takes() {
        for kind in [
            Kind::IBV_QPT_RC,
            Kind::IBV_QPT_UC,
            Kind::IBV_QPT_XRC_SEND,
            Kind::IBV_QPT_XRC_RECV,
        ] {
            let [rtr, rts] = attributes(kind).map(|answer| Mask(Fields(&answer.0).u32(0)));
            for (from, to, mask) in [(1, 2, rtr), (2, 3, rts)] {
                let [from, to] = [from, to].map(ibv_qp_state);
                let transition = QpTransition::new(kind, from, to).unwrap();
                assert!(transition.permits(mask), "{kind:?} to {to:?}: {mask:?}");
            }
        }
    }

    #[test]
    fn a_peer_with_more_outstanding_reads_gets_those_that_there_are() {
        let [rtr, _] = attributes(Kind::IBV_QPT_RC);
        assert_eq!(Fields(&rtr.0).u8(131), MOST_READS, "max_dest_rd_atomic");
    }
}
