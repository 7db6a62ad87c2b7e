//! Fault injection in a queue pair.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use gdr_chaos::{Class, Direction, Fault, Icrc, Kinds, Queues, Rule, Site, StatusCode};
use gdr_roce::wire::{AtomicAckEth, Packet, icrc};
use gdr_roce::{Completion, Memory, Mtu, Psn, Qpn, RtrAttributes, Time, WcStatus};

use super::held_completions::HeldCompletions;
use super::late_bytes::{LateBytes, LateMemory};
use super::packet_line::{Arrival, HeldPacket, PacketLine, Schedule};
use super::packet_stream::{Headers, PacketStream, Role};
use super::{Chaos, Checksum, Counted, DeviceChaos};
use crate::device_state::DeviceState;
use gdr_udp::{Datagram, Socket};

/// What happens to a packet that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The packet is processed.
    Pass,
    /// The queue pair responds with an RNR NAK.
    NotReady(Psn),
}

/// A lost packet whose retransmissions may be lost too.
#[derive(Clone, Copy, Debug)]
struct Lost {
    direction: Direction,
    role: Role,
    psn: Psn,
    left: u32,
}

/// A message whose bytes are placed late.
#[derive(Debug)]
struct Placing {
    late: LateBytes,
    role: Role,
    rule: usize,
    site: Site,
}

/// The fault state of a queue pair.
pub(crate) struct QpChaos {
    chaos: Arc<Chaos>,
    /// The position of the queue pair in the creation order of the process.
    number: u64,
    qpn: Qpn,
    /// The path MTU, once connected.
    mtu: Option<Mtu>,
    device: Arc<DeviceState>,
    /// Indexed by direction and role.
    streams: [[PacketStream; 3]; 2],
    outbound: PacketLine,
    inbound: PacketLine,
    lost: Vec<Lost>,
    sends: HeldCompletions,
    receives: HeldCompletions,
    placing: Option<Placing>,
    /// The PSN of a request that gets RNR NAKs, and how many more.
    not_ready: Option<(Psn, u32)>,
    /// How often each rule has struck.
    strikes: Vec<u64>,
    atomics: u64,
}

impl QpChaos {
    pub(crate) fn new(chaos: &DeviceChaos, device: &Arc<DeviceState>, qpn: Qpn) -> Self {
        let number = chaos.chaos.count(Counted::QueuePair);
        Self::of(&chaos.chaos, device, qpn, number)
    }

    fn of(chaos: &Arc<Chaos>, device: &Arc<DeviceState>, qpn: Qpn, number: u64) -> Self {
        Self {
            strikes: vec![0; chaos.scenario.rules.len()],
            chaos: Arc::clone(chaos),
            number,
            qpn,
            mtu: None,
            device: Arc::clone(device),
            streams: Default::default(),
            outbound: PacketLine::default(),
            inbound: PacketLine::default(),
            lost: Vec::new(),
            sends: HeldCompletions::default(),
            receives: HeldCompletions::default(),
            placing: None,
            not_ready: None,
            atomics: 0,
        }
    }

    /// Returns fresh fault state for the same queue pair, after RESET.
    pub(crate) fn renewed(&self) -> Self {
        Self::of(&self.chaos, &self.device, self.qpn, self.number)
    }

    /// Starts the numbering of inbound requests at the connection's PSN.
    pub(crate) fn connect(&mut self, attributes: &RtrAttributes) {
        self.mtu = Some(attributes.path_mtu);
        let requests = PacketStream::from(attributes.rq_psn);
        self.streams[Direction::In as usize][Role::Request as usize] = requests;
    }

    /// Returns the current time by the device's clock.
    pub(crate) fn now(&self) -> Time {
        Time::since_epoch(Duration::from_nanos(self.device.clock.now()))
    }

    fn device_chaos(&self) -> Option<&DeviceChaos> {
        self.device.chaos.as_ref()
    }

    fn site(&self, operation: u64, part: u64) -> Site {
        Site {
            queue_pair: self.number,
            operation,
            part,
        }
    }

    /// Returns whether a rule strikes here, and counts the strike if so.
    fn strikes(&mut self, number: usize, rule: &Rule, site: Site) -> bool {
        let is_own = rule
            .queue_pair
            .is_none_or(|wanted| u64::from(wanted) == self.number);
        let strikes = is_own
            && rule.most.is_none_or(|most| self.strikes[number] < most)
            && self.chaos.scenario.strikes(number, site);
        self.strikes[number] += u64::from(strikes);
        strikes
    }

    fn log(&self, rule: usize, place: &str, details: &str) {
        let (number, qpn) = (self.number, self.qpn.get());
        self.chaos.log_strike(
            rule,
            format!("qp={number} {place}"),
            &format!("qpn={qpn:#x} {details}"),
        );
    }

    /// Decides the fate of a packet and adds it to its line, from which the caller takes packets that are due.
    fn meet(&mut self, direction: Direction, now: Time, packet: Arrival<'_>) {
        let Arrival { bytes, .. } = packet;
        self.chaos.count_bytes(bytes.len());
        let is_dark = self.device_chaos().is_some_and(DeviceChaos::is_dark);
        let Some(headers) = Headers::of(bytes, self.mtu).filter(|_| !is_dark) else {
            return;
        };
        let role = headers.role();
        let mut number = self.streams[direction as usize][role as usize].number(headers);
        if role == Role::Response && number.is_some() {
            let opposite = match direction {
                Direction::Out => Direction::In,
                Direction::In => Direction::Out,
            };
            let requests = &self.streams[opposite as usize][Role::Request as usize];
            number = requests.response(headers.psn);
        }
        let mut schedule = Schedule::default();
        if let Some(number) = number {
            let packet = Arrival {
                number: Some(number),
                ..packet
            };
            self.choose(direction, headers, packet, &mut schedule);
        }
        if self.is_lost(direction, role, headers.psn) {
            return;
        }
        let line = match direction {
            Direction::Out => &mut self.outbound,
            Direction::In => &mut self.inbound,
        };
        line.add(now, Arrival { number, ..packet }, schedule);
    }

    /// Applies the rules to a packet that is not a retransmission.
    fn choose(
        &mut self,
        direction: Direction,
        headers: Headers,
        packet: Arrival<'_>,
        schedule: &mut Schedule,
    ) {
        let (chaos, kind) = (Arc::clone(&self.chaos), headers.kind());
        let Some(number) = packet.number else {
            return;
        };
        for (at, rule) in chaos.rules(Class::Packet) {
            let selected = rule.direction.is_none_or(|wanted| wanted == direction)
                && rule.kinds.contains(kind)
                && rule.peer.is_none_or(|wanted| wanted == packet.address.ip())
                && (rule.fault != MENDED || !payload(packet.bytes).is_empty());
            let site = self.site(number.operation, number.packet);
            if !selected || !self.strikes(at, rule, site) {
                continue;
            }
            let mut how = String::new();
            match rule.fault {
                Fault::Drop { times } => self.lost.push(Lost {
                    direction,
                    role: headers.role(),
                    psn: headers.psn,
                    left: times,
                }),
                Fault::Duplicate { copies } => schedule.copies += copies,
                Fault::Corrupt { icrc: Icrc::Wrong } => schedule.is_corrupt = true,
                Fault::Corrupt { icrc: Icrc::Mended } => {
                    let payload = payload(packet.bytes);
                    let len = payload.len().max(1) as u64;
                    let byte = (self.chaos.scenario.draw(at, site, 1) % len) as usize;
                    how = format!(" byte={byte}");
                    schedule.changed = Some(payload.start + byte);
                }
                Fault::Delay { by, jitter } => {
                    let delay = by + self.jitter(at, site, jitter);
                    how = format!(" by={}ns", delay.as_nanos());
                    schedule.delay += delay;
                }
                Fault::Reorder { behind, by } => schedule.overtaken = Some((behind, by)),
                Fault::Rate { limit } => {
                    let least = schedule.rate.unwrap_or(limit);
                    schedule.rate = Some(least.min(limit));
                    // Log only the first strike, instead of a line for each packet.
                    if self.strikes[at] > 1 {
                        continue;
                    }
                }
                _ => {}
            }
            let (operation, packet) = (number.operation, number.packet);
            let place = format!(
                "dir={} kind={kind} op={operation} packet={packet}{how}",
                direction.name()
            );
            self.log(at, &place, &format!("psn={}", headers.psn.get()));
        }
    }

    fn jitter(&self, rule: usize, site: Site, most: Duration) -> Duration {
        let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        match most {
            0 => Duration::ZERO,
            most => Duration::from_nanos(self.chaos.scenario.draw(rule, site, 1) % most),
        }
    }

    /// Returns whether a retransmission of a lost packet is lost again.
    fn is_lost(&mut self, direction: Direction, role: Role, psn: Psn) -> bool {
        let Some(at) = self
            .lost
            .iter()
            .position(|lost| (lost.direction, lost.role, lost.psn) == (direction, role, psn))
        else {
            return false;
        };
        self.lost[at].left -= 1;
        if self.lost[at].left == 0 {
            self.lost.swap_remove(at);
        }
        true
    }

    /// Queues an outbound packet.
    pub(crate) fn leave(&mut self, now: Time, bytes: &[u8], to: SocketAddr) {
        let packet = Arrival {
            bytes,
            address: to,
            group: None,
            number: None,
        };
        self.meet(Direction::Out, now, packet);
    }

    /// Queues an inbound packet whose ICRC is valid.
    pub(crate) fn arrive(&mut self, now: Time, datagram: &Datagram<'_>) {
        let packet = Arrival {
            bytes: datagram.payload,
            address: datagram.source,
            group: datagram.group(),
            number: None,
        };
        self.meet(Direction::In, now, packet);
    }

    /// Returns the next outbound packet that is due.
    pub(crate) fn take_outbound(&mut self, now: Time) -> Option<HeldPacket> {
        self.outbound.take(now)
    }

    /// Captures a packet as it is sent or processed.
    pub(crate) fn capture(&self, direction: Direction, packet: &HeldPacket, socket: &Socket) {
        let checksum = match packet.is_corrupt {
            true => Checksum::Wrong,
            false => Checksum::Right,
        };
        let own = packet.group.unwrap_or(socket.local());
        self.chaos
            .capture(direction, packet.address, &packet.bytes, checksum, own);
    }

    /// Puts back an outbound packet for which the socket had no room.
    pub(crate) fn keep_outbound(&mut self, packet: HeldPacket) {
        self.outbound.put_back(packet);
    }

    /// Returns the next inbound packet that is due; `None` while the bytes of a message are being placed.
    pub(crate) fn take_inbound(&mut self, now: Time) -> Option<HeldPacket> {
        match self.is_placing() {
            true => None,
            false => self.inbound.take(now),
        }
    }

    /// Returns whether a complete message still has bytes to place, which holds back its acknowledgement and
    /// completion.
    pub(crate) fn is_placing(&self) -> bool {
        self.placing
            .as_ref()
            .is_some_and(|placing| placing.late.has_begun())
    }

    /// Decides what to do with an inbound packet that is due, before the protocol sees it.
    pub(crate) fn judge(&mut self, packet: &HeldPacket) -> Verdict {
        let Some(headers) = Headers::of(&packet.bytes, self.mtu) else {
            return Verdict::Pass;
        };
        let (role, kind, psn) = (headers.role(), headers.kind(), headers.psn);
        if let Some((refused, left)) = &mut self.not_ready
            && *refused == psn
            && role == Role::Request
            && *left > 0
        {
            *left -= 1;
            return Verdict::NotReady(psn);
        }
        let is_data = match role {
            Role::Request => kind == Kinds::SEND || kind == Kinds::WRITE,
            Role::Response => kind == Kinds::READ,
            Role::Acknowledgement => false,
        };
        let Some(number) = packet.number.filter(|_| is_data) else {
            return Verdict::Pass;
        };
        if !number.is_first {
            return Verdict::Pass;
        }
        let (chaos, operation) = (Arc::clone(&self.chaos), number.operation);
        let mut verdict = Verdict::Pass;
        for (at, rule) in chaos.rules(Class::Message) {
            let is_possible = match rule.fault {
                Fault::ReceiverNotReady { .. } => role == Role::Request && kind == Kinds::SEND,
                _ => self.placing.is_none(),
            };
            let selected = rule.kinds.contains(kind)
                && rule.peer.is_none_or(|wanted| wanted == packet.address.ip());
            let site = self.site(operation, operation);
            if !is_possible || !selected || !self.strikes(at, rule, site) {
                continue;
            }
            let mut how = String::new();
            match rule.fault {
                Fault::ReceiverNotReady { times } => {
                    self.not_ready = Some((psn, times - 1));
                    verdict = Verdict::NotReady(psn);
                }
                Fault::Place { order, piece, by } => {
                    how = format!(" order={}", order.name());
                    self.placing = Some(Placing {
                        late: LateBytes::new(order, piece, by),
                        role,
                        rule: at,
                        site,
                    });
                }
                _ => {}
            }
            let place = format!("kind={kind} op={operation}{how}");
            self.log(at, &place, &format!("psn={}", psn.get()));
        }
        verdict
    }

    /// Returns the memory with which a packet is processed.
    pub(crate) fn memory<'a>(
        &'a mut self,
        packet: &HeldPacket,
        memory: &'a mut dyn Memory,
    ) -> LateMemory<'a> {
        let headers = Headers::of(&packet.bytes, self.mtu);
        let is_atomic = packet.number.is_some()
            && headers.is_some_and(|headers| {
                headers.role() == Role::Request && headers.kind() == Kinds::ATOMIC
            });
        let contended = if is_atomic { self.contend() } else { None };
        let of_message =
            |placing: &&mut Placing| headers.is_some_and(|headers| headers.role() == placing.role);
        let placing = self.placing.as_mut().filter(of_message);
        LateMemory {
            memory,
            late: placing.map(|placing| &mut placing.late),
            contended,
        }
    }

    /// Returns the value that the next compare-and-swap finds, if a rule lets another party change the word.
    fn contend(&mut self) -> Option<u64> {
        let operation = self.atomics;
        self.atomics += 1;
        let chaos = Arc::clone(&self.chaos);
        for (at, rule) in chaos.rules(Class::Atomic) {
            let site = self.site(operation, operation);
            if self.strikes(at, rule, site) {
                self.log(at, &format!("atomic={operation}"), "");
                return Some(chaos.scenario.draw(at, site, 1));
            }
        }
        None
    }

    /// Starts to place the bytes of a message once its last packet has been processed.
    pub(crate) fn processed(&mut self, now: Time, packet: &HeldPacket) {
        let Some(headers) = Headers::of(&packet.bytes, self.mtu) else {
            return;
        };
        if let Some(placing) = &mut self.placing
            && headers.role() == placing.role
            && headers.opcode.position().is_last()
        {
            let (rule, site, scenario) = (placing.rule, placing.site, &self.chaos.scenario);
            placing
                .late
                .begin(now, |number| scenario.draw(rule, site, number + 1));
        }
    }

    /// Places the bytes that are due; returns whether this completed a message.
    pub(crate) fn place(&mut self, now: Time, memory: &mut dyn Memory) -> bool {
        let placing = self.placing.as_mut();
        let is_over = placing.is_some_and(|placing| placing.late.place(now, memory));
        if is_over {
            self.placing = None;
        }
        is_over
    }

    /// Holds a completion as the rules say; returns whether the queue pair fails.
    // Inlining this would slow down queue pairs without faults.
    #[cold]
    #[inline(never)]
    pub(crate) fn complete(&mut self, mut completion: Completion, is_silent: bool) -> bool {
        let now = self.now();
        let queue = match completion.opcode.is_receive() {
            true => Queues::Recv,
            false => Queues::Send,
        };
        let held = match queue {
            Queues::Recv => &mut self.receives,
            Queues::Send => &mut self.sends,
        };
        let operation = held.operations;
        held.operations += 1;
        let (mut late, mut burst) = (Duration::ZERO, None);
        let (mut is_silent, mut is_stuck, mut fails) = (is_silent, held.is_stuck(), false);
        let chaos = Arc::clone(&self.chaos);
        for (at, rule) in chaos.rules(Class::Completion) {
            let selected = rule.queue.is_none_or(|wanted| wanted == queue)
                && completion.status == WcStatus::Success
                && !is_stuck;
            let site = self.site(operation, operation);
            if !selected || !self.strikes(at, rule, site) {
                continue;
            }
            let mut how = String::new();
            match rule.fault {
                Fault::Hang => is_stuck = true,
                Fault::Late { by, jitter } => {
                    let more = by + self.jitter(at, site, jitter);
                    how = format!(" by={}ns", more.as_nanos());
                    late += more;
                }
                Fault::Burst { count, by } => burst = Some((count, by)),
                Fault::Status { code } => {
                    how = format!(" code={}", code.name());
                    completion.status = status_of(code);
                    (is_silent, fails) = (false, true);
                }
                _ => {}
            }
            let place = format!("queue={} op={operation}{how}", queue.name());
            self.log(at, &place, &format!("wr_id={:#x}", completion.id.0));
        }
        let held = match queue {
            Queues::Recv => &mut self.receives,
            Queues::Send => &mut self.sends,
        };
        if is_stuck {
            held.get_stuck();
        }
        held.add(now, completion, is_silent, late, burst);
        fails
    }

    /// Returns the next completion that is due. With `has_failed` the queue pair is in ERR.
    pub(crate) fn take_completion(&mut self, has_failed: bool) -> Option<Completion> {
        let now = self.now();
        loop {
            let taken = self.sends.take(now, has_failed);
            let (completion, is_silent) = taken.or_else(|| self.receives.take(now, has_failed))?;
            if !is_silent {
                return Some(completion);
            }
        }
    }

    /// Returns the device time of the next fault timer.
    pub(crate) fn next(&self) -> Option<Time> {
        let placing = self.placing.as_ref();
        let inbound = match self.is_placing() {
            true => placing.and_then(|placing| placing.late.next()),
            false => self.inbound.next(),
        };
        let times = [
            self.outbound.next(),
            inbound,
            self.sends.next(),
            self.receives.next(),
        ];
        times.into_iter().flatten().min()
    }

    /// Returns the time of the device's next fault timer.
    pub(crate) fn next_of_device(&self) -> Option<Time> {
        self.device_chaos()?.next(self.now())
    }
}

const MENDED: Fault = Fault::Corrupt { icrc: Icrc::Mended };

/// Returns the range of a packet's payload, or of an atomic's result.
fn payload(bytes: &[u8]) -> Range<usize> {
    let Ok(packet) = Packet::new(bytes) else {
        return 0..0;
    };
    let end = bytes.len() - icrc::LEN - usize::from(packet.bth().pad);
    let len = match packet.atomic_ack() {
        Some(_) => AtomicAckEth::LEN,
        None => packet.payload().len(),
    };
    end - len..end
}

fn status_of(code: StatusCode) -> WcStatus {
    match code {
        StatusCode::LocalLength => WcStatus::LocalLength,
        StatusCode::LocalOperation => WcStatus::LocalOperation,
        StatusCode::LocalProtection => WcStatus::LocalProtection,
        StatusCode::Flushed => WcStatus::WrFlushed,
        StatusCode::BadResponse => WcStatus::BadResponse,
        StatusCode::RemoteInvalidRequest => WcStatus::RemoteInvalidRequest,
        StatusCode::RemoteAccess => WcStatus::RemoteAccess,
        StatusCode::RemoteOperation => WcStatus::RemoteOperation,
        StatusCode::RetryExceeded => WcStatus::RetryExceeded,
        StatusCode::RnrRetryExceeded => WcStatus::RnrRetryExceeded,
    }
}
