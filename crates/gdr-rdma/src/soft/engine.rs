//! The engine: queue pairs, timers and the socket. One thread at a time turns it.

use std::collections::{BTreeSet, VecDeque};
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use gdr_roce::{Qpn, State, Time};

use super::counters::Counters;
use super::inbox::Inbox;
use super::memory::{Dirty, DomainMemory};
use super::pair::{Held, Pair};
use super::socket::{Batch, Sent, Socket};
use crate::error::Result;
use crate::event::AsyncEvent;
use crate::mailbox::Mailbox;
use crate::number_map::NumberMap;
use crate::random;
use crate::region::Regions;

/// Packets that one queue pair sends before the next one has its turn.
const QUANTUM: usize = 64;

/// What a queue pair may hold back, bytes: half of what one system call sends.
const HELD_BACK: usize = 32 << 10;

/// Until when the engine's thread sleeps, told to those who post meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sleep {
    pub(super) until: Option<Time>,
    /// Whether room in the socket wakes it.
    pub(super) for_room: bool,
}

/// What turns.
pub(super) struct Engine {
    socket: Arc<Socket>,
    inbox: Inbox,
    batch: Batch,
    /// The kernel has no room for the batch.
    blocked: bool,
    epoch: Instant,
    pairs: NumberMap<Box<Pair>>,
    next_qpn: u32,
    /// How many are [`Pair::unproved`].
    unproved: usize,
    /// Those that may have a packet, a completion or an event.
    listed: VecDeque<u32>,
    timers: BTreeSet<(Time, u32)>,
    dirty: Dirty,
    fresh: Vec<u32>,
    events: Arc<Mailbox<AsyncEvent>>,
    counters: Counters,
    /// The socket is lost; nothing moves any more.
    dead: bool,
    /// Requests that are over. Whoever turned the engine drops them once it is unlocked: with them
    /// may go memory regions and, behind those, whole GPU allocations.
    pub(super) retired: Vec<Held>,
    pub(super) sleep: Option<Sleep>,
}

impl Engine {
    pub(super) fn new(socket: Arc<Socket>, events: Arc<Mailbox<AsyncEvent>>) -> Result<Self> {
        Ok(Self {
            batch: Batch::new(socket.local()),
            inbox: Inbox::new(&socket),
            socket,
            blocked: false,
            epoch: Instant::now(),
            pairs: NumberMap::default(),
            next_qpn: random::number()?,
            unproved: 0,
            listed: VecDeque::new(),
            timers: BTreeSet::new(),
            dirty: Dirty::default(),
            fresh: Vec::new(),
            events,
            counters: Counters::default(),
            dead: false,
            retired: Vec::new(),
            sleep: None,
        })
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead
    }

    /// What the engine's thread has to wait for, besides packets.
    pub(super) fn rest(&self) -> Sleep {
        Sleep {
            until: self.timers.first().map(|(time, _)| *time),
            for_room: self.blocked,
        }
    }

    /// Whether a thread that sleeps must wake for what was done since.
    pub(super) fn must_wake(&self) -> bool {
        let Some(sleep) = self.sleep else {
            return false;
        };
        let rest = self.rest();
        let earlier = match (rest.until, sleep.until) {
            (Some(new), Some(old)) => new < old,
            (Some(_), None) => true,
            (None, _) => false,
        };
        earlier || (rest.for_room && !sleep.for_room) || self.has_work()
    }

    /// Whether a turn would do something even if nothing arrives.
    pub(super) fn has_work(&self) -> bool {
        !self.blocked && !self.listed.is_empty()
    }

    pub(super) fn now(&self) -> Time {
        Time::since_epoch(self.epoch.elapsed())
    }

    /// A number that no queue pair has, to be used at once.
    pub(super) fn new_qpn(&mut self) -> Qpn {
        loop {
            let qpn = Qpn::new(self.next_qpn);
            self.next_qpn = self.next_qpn.wrapping_add(1);
            // 0 and 1 are the management queue pairs'.
            if qpn.get() > 1 && !self.pairs.contains_key(&qpn.get()) {
                return qpn;
            }
        }
    }

    pub(super) fn insert(&mut self, pair: Pair) {
        self.pairs.insert(pair.roce.qpn().get(), Box::new(pair));
    }

    /// Takes a queue pair out. Its numbers stay on the lists until those come to them.
    pub(super) fn remove(&mut self, qpn: Qpn) -> Option<Box<Pair>> {
        let pair = self.pairs.remove(&qpn.get())?;
        if let Some(time) = pair.timer {
            self.timers.remove(&(time, qpn.get()));
        }
        if pair.unproved {
            prove(&mut self.unproved, &self.socket);
        }
        Some(pair)
    }

    /// A queue pair has got its peer.
    pub(super) fn set_peer(&mut self, qpn: Qpn, peer: SocketAddr) {
        let Some(pair) = self.pairs.get_mut(&qpn.get()) else {
            return;
        };
        pair.peer = Some(peer);
        if !mem::replace(&mut pair.unproved, true) {
            self.unproved += 1;
            self.socket.rouse();
        }
    }

    /// A queue pair, which is looked at in the next turn.
    pub(super) fn touch(&mut self, qpn: Qpn) -> Option<&mut Pair> {
        let pair = self.pairs.get_mut(&qpn.get())?;
        list(&mut self.listed, pair);
        Some(pair)
    }

    /// Whether what was just posted may leave with a turn that is to come soon anyway, for the
    /// acknowledgement of what is on its way: messages of several posts then share a system call,
    /// and so do the acknowledgements of theirs.
    pub(super) fn may_hold_back(&self, qpn: Qpn) -> bool {
        // The engine's thread, when it sleeps, has first to be woken: then sending is as quick. And
        // an engine that is dead takes no turn.
        self.sleep.is_none()
            && !self.dead
            && self
                .pairs
                .get(&qpn.get())
                .is_some_and(|pair| pair.held_back < HELD_BACK && pair.roce.is_on_its_way())
    }

    pub(super) fn state(&self, qpn: Qpn) -> Option<State> {
        self.pairs.get(&qpn.get()).map(|pair| pair.roce.state())
    }

    /// Takes what has arrived, does what is due, sends what is to be sent; whether there was
    /// anything to do. Does not wait.
    pub(super) fn turn(&mut self, regions: &Regions) -> bool {
        if self.dead {
            return false;
        }
        let arrived = match self.inbox.fill(&self.socket) {
            Ok(arrived) => arrived,
            Err(error) => {
                self.die(&error);
                true
            }
        };
        let now = self.now();
        self.fresh.clear();
        if arrived {
            self.receive(now, regions);
        }
        let due = self.expire(now);
        let unblocked = self.unblock();
        let sent = self.transmit(regions);
        arrived || due || unblocked || sent
    }

    fn receive(&mut self, now: Time, regions: &Regions) {
        let Self {
            socket,
            inbox,
            pairs,
            unproved,
            listed,
            dirty,
            fresh,
            counters,
            ..
        } = self;
        inbox.packets(socket, counters, |from, packet, counters| {
            let qpn = packet.bth().dest_qpn;
            let pair = pairs
                .get_mut(&qpn.get())
                .filter(|pair| pair.peer.is_some_and(|peer| peer.ip() == from.address));
            let Some(pair) = pair else {
                counters.unknown_queue_pair += 1;
                return;
            };
            if from.by_udp && mem::take(&mut pair.unproved) {
                prove(unproved, socket);
            }
            let mut memory = DomainMemory {
                regions,
                domain: pair.domain,
                qpn,
                dirty,
                fresh,
            };
            pair.roce.receive(now, packet, &mut memory);
            list(listed, pair);
        });
        self.flush();
    }

    /// What was placed is where it belongs before anybody hears of it.
    fn flush(&mut self) {
        let (pairs, listed) = (&mut self.pairs, &mut self.listed);
        self.dirty.flush(|qpn| {
            if let Some(pair) = pairs.get_mut(&qpn.get()) {
                pair.roce.to_error();
                list(listed, pair);
            }
        });
    }

    /// Tells queue pairs whose time has come.
    fn expire(&mut self, now: Time) -> bool {
        let mut any = false;
        while let Some(&(time, qpn)) = self.timers.first()
            && time <= now
        {
            self.timers.pop_first();
            any = true;
            if let Some(pair) = self.pairs.get_mut(&qpn) {
                pair.timer = None;
                pair.roce.handle_deadline(now);
                list(&mut self.listed, pair);
            }
        }
        any
    }

    /// Tries again what the kernel had no room for.
    fn unblock(&mut self) -> bool {
        if !self.blocked {
            return false;
        }
        self.blocked = self.batch.send(&self.socket, &mut self.counters) == Sent::Blocked;
        !self.blocked
    }

    /// Sends for every queue pair on the list, round and round, and settles what it completed.
    pub(super) fn transmit(&mut self, regions: &Regions) -> bool {
        let mut any = false;
        // Once blocked, the rest of the list is still settled: completions need no room.
        for _ in 0..self.listed.len() {
            let Some(qpn) = self.listed.pop_front() else {
                break;
            };
            let Some(mut pair) = self.pairs.remove(&qpn) else {
                continue;
            };
            pair.listed = false;
            pair.held_back = 0;
            let more = self.transmit_one(&mut pair, regions, &mut any);
            self.flush();
            self.settle(&mut pair);
            if more {
                list(&mut self.listed, &mut pair);
            }
            self.pairs.insert(qpn, pair);
        }
        if !self.blocked {
            self.blocked = self.batch.send(&self.socket, &mut self.counters) == Sent::Blocked;
            if !self.blocked && !self.batch.is_empty() {
                // One was carried over.
                self.blocked = self.batch.send(&self.socket, &mut self.counters) == Sent::Blocked;
            }
        }
        any
    }

    /// Sends up to a quantum; whether there may be more.
    fn transmit_one(&mut self, pair: &mut Pair, regions: &Regions, any: &mut bool) -> bool {
        let Some(peer) = pair.peer else {
            return false;
        };
        let now = self.now();
        let mut memory = DomainMemory {
            regions,
            domain: pair.domain,
            qpn: pair.roce.qpn(),
            dirty: &mut self.dirty,
            fresh: &mut self.fresh,
        };
        for _ in 0..QUANTUM {
            if self.blocked {
                return true;
            }
            let room = self.batch.room();
            let Some(len) = pair.roce.poll_transmit(now, &mut memory, room) else {
                return false;
            };
            *any = true;
            let sent = self.batch.push(&self.socket, &mut self.counters, peer, len);
            self.blocked = sent == Sent::Blocked;
        }
        true
    }

    /// Hands on completions and events, and sets the timer.
    fn settle(&mut self, pair: &mut Pair) {
        let (events, qpn) = (&self.events, pair.roce.qpn());
        pair.complete(&mut self.retired, &mut |mailbox| {
            let capacity = mailbox.capacity();
            events.push(AsyncEvent::CompletionQueueOverrun { qpn, capacity });
        });
        while let Some(event) = pair.roce.poll_event() {
            events.push(AsyncEvent::QueuePair { qpn, event });
        }
        let timer = pair.roce.next_deadline();
        if timer != pair.timer {
            if let Some(old) = mem::replace(&mut pair.timer, timer) {
                self.timers.remove(&(old, qpn.get()));
            }
            if let Some(new) = timer {
                self.timers.insert((new, qpn.get()));
            }
        }
    }

    /// The socket failed for good: every queue pair is told.
    fn die(&mut self, error: &crate::Error) {
        tracing::error!(%error, local = %self.socket.local(), "the engine cannot go on");
        self.dead = true;
        self.events.push(AsyncEvent::DeviceFatal);
        for pair in self.pairs.values_mut() {
            pair.roce.to_error();
            list(&mut self.listed, pair);
        }
    }
}

/// The peer of a queue pair sets UDP checksums, or there is none any more.
fn prove(unproved: &mut usize, socket: &Socket) {
    *unproved -= 1;
    if *unproved == 0 {
        socket.lull();
    }
}

fn list(listed: &mut VecDeque<u32>, pair: &mut Pair) {
    if !mem::replace(&mut pair.listed, true) {
        listed.push_back(pair.roce.qpn().get());
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use gdr_roce::{
        Access, AckTimeout, Capabilities, Mtu, Psn, RetryCount, RnrRetry, RnrTimer, RtrAttributes,
        RtsAttributes, WrId,
    };

    use super::*;
    use crate::region::DomainId;
    use crate::request::SendRequest;
    use crate::soft::pair;

    /// An engine that nothing turns, with a queue pair that talks to itself.
    fn engine() -> (Engine, Qpn) {
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let socket = Arc::new(Socket::bind(here, 1 << 20).unwrap());
        let mut engine = Engine::new(Arc::clone(&socket), Arc::new(Mailbox::new(16))).unwrap();
        let qpn = engine.new_qpn();
        let capabilities = Capabilities {
            max_send_wr: 64,
            max_recv_wr: 1,
            max_inline: 8,
        };
        let mut roce = pair::protocol(qpn, capabilities, 1 << 20);
        roce.to_init(Access::all()).unwrap();
        roce.to_rtr(&RtrAttributes {
            dest_qpn: qpn,
            rq_psn: Psn::default(),
            path_mtu: Mtu::B4096,
            max_dest_rd_atomic: 1,
            min_rnr_timer: RnrTimer::new(12),
        })
        .unwrap();
        roce.to_rts(&RtsAttributes {
            sq_psn: Psn::default(),
            timeout: AckTimeout::NEVER,
            retry_count: RetryCount::new(0),
            rnr_retry: RnrRetry::new(0),
            max_rd_atomic: 1,
        })
        .unwrap();
        let mailbox = || Arc::new(Mailbox::new(64));
        let mut pair = Pair::new(roce, DomainId(0), mailbox(), mailbox());
        pair.peer = Some(socket.local());
        engine.insert(pair);
        (engine, qpn)
    }

    fn post(engine: &mut Engine, qpn: Qpn) {
        let request = SendRequest::send(WrId(0)).inline(&[1]);
        engine.touch(qpn).unwrap().post_send(request).unwrap();
    }

    #[test]
    fn short_requests_are_held_back_behind_others_eight_at_most() {
        let (mut engine, qpn) = engine();
        post(&mut engine, qpn);
        assert!(!engine.may_hold_back(qpn), "nothing is on its way");
        engine.transmit(&Regions::default());
        for n in 1..8 {
            post(&mut engine, qpn);
            assert!(engine.may_hold_back(qpn), "{n}");
        }
        post(&mut engine, qpn);
        assert!(!engine.may_hold_back(qpn));
        engine.transmit(&Regions::default());
        assert_eq!(engine.counters().packets_sent, 9);
        post(&mut engine, qpn);
        assert!(engine.may_hold_back(qpn));
    }

    #[test]
    fn nothing_is_held_back_where_no_turn_would_come_for_it() {
        let (mut engine, qpn) = engine();
        post(&mut engine, qpn);
        engine.transmit(&Regions::default());
        post(&mut engine, qpn);
        assert!(engine.may_hold_back(qpn));
        engine.sleep = Some(engine.rest());
        assert!(!engine.may_hold_back(qpn), "the thread sleeps");
        engine.sleep = None;
        engine.dead = true;
        assert!(!engine.may_hold_back(qpn), "the engine is dead");
    }
}
