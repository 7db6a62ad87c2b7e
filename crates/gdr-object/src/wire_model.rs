//! A model of the slot protocol on the wire: the owner of the slot model, a reader, and between them two queue pairs
//! over a network that loses, repeats and reorders packets, in virtual time.
//!
//! The reader posts what a link posts: a READ of the object's line; then READs of the slot's bytes and, after a fence,
//! a READ of the slot's line. A follower also WRITEs what it has read. A READ is answered by several packets, and again
//! if some are lost, so its bytes may come from several moments.

use std::collections::VecDeque;
use std::time::Duration;

use gdr_roce::wire::{MAX_DATAGRAM, Packet};
use gdr_roce::{
    Access, AccessError, AckTimeout, AtomicOp, Capabilities, Data, Extent, HeapMemory, Key, Lkey,
    Memory, Mtu, Operation, Psn, Qpn, QueuePair, Remote, RetryLimit, Rkey, RnrRetry, RnrTimer,
    RtrAttributes, RtsAttributes, Segment, SendFlags, SendRequest, Time, WcStatus, WrId,
};
use proptest::prelude::*;

use crate::epoch::Epoch;
use crate::header::{LINE, ObjectLine, Slot, SlotLine, SlotState};
use crate::mode::{Mode, WhenFull};
use crate::slot_model::{Owner, WORDS};

/// The owner's memory, by key: the header, the slots, and the word that a follower writes.
const HEADER: Rkey = Rkey(1);
const SLOTS: Rkey = Rkey(2);
const READ: Rkey = Rkey(3);

/// Bytes per word of a slot: one packet.
const PACKET: u64 = 256;
const SLOT: u64 = PACKET * WORDS as u64;

/// Offsets in the reader's memory.
const OBJECT_LINE: u64 = 0;
const SLOT_LINE: u64 = LINE;
const BYTES: u64 = 2 * LINE;

/// Identifies the last request of each of the reader's steps; requests that it does not wait for have 0.
const LAST: WrId = WrId(1);

/// The owner, as its queue pair sees it.
struct Served {
    owner: Owner,
    /// The last epoch that the follower has read.
    read: u64,
    follows: bool,
}

impl Served {
    fn step(&mut self, gives_up: bool) {
        let read = self.follows.then_some(self.read);
        self.owner.step(read, gives_up);
    }
}

impl Memory for Served {
    fn check(&self, key: Key, extent: Extent, _: Access) -> Result<(), AccessError> {
        let len = match key {
            Key::Remote(HEADER) => self.owner.header.buffer().len(),
            Key::Remote(SLOTS) => SLOT * self.owner.words.len() as u64,
            Key::Remote(READ) => 8,
            _ => return Err(AccessError::UnknownKey),
        };
        match extent.addr + u64::from(extent.len) <= len {
            true => Ok(()),
            false => Err(AccessError::OutOfRange),
        }
    }

    fn read(&mut self, key: Key, addr: u64, out: &mut [u8]) -> Result<(), AccessError> {
        if key == Key::Remote(HEADER) {
            let header = self.owner.header.buffer();
            return header
                .read_at(addr, out)
                .map_err(|_| AccessError::OutOfRange);
        }
        for (at, byte) in (addr..).zip(out) {
            let slot = &self.owner.words[(at / SLOT) as usize];
            let word = slot[(at % SLOT / PACKET) as usize];
            *byte = word.to_le_bytes()[(at % 8) as usize];
        }
        Ok(())
    }

    fn write(&mut self, key: Key, addr: u64, bytes: &[u8]) -> Result<(), AccessError> {
        assert_eq!((key, addr), (Key::Remote(READ), 0));
        self.read = u64::from_le_bytes(bytes.try_into().unwrap());
        Ok(())
    }

    fn atomic(&mut self, _: Key, _: u64, _: AtomicOp) -> Result<u64, AccessError> {
        Err(AccessError::Permission)
    }
}

/// What a reader reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The newest epoch.
    Newest,
    /// Every epoch.
    Every,
}

/// A reader, by what it waits for.
struct Reader {
    kind: Kind,
    memory: HeapMemory,
    lkey: Lkey,
    waits_for: Waits,
    last: u64,
    whole: u64,
    overtaken: u64,
}

#[derive(Clone, Copy, Debug)]
enum Waits {
    Nothing,
    Object,
    Slot(Epoch),
}

impl Reader {
    fn new(kind: Kind) -> Self {
        let mut memory = HeapMemory::new();
        let bytes = vec![0; (BYTES + SLOT) as usize];
        let (lkey, _) = memory.register(0, bytes, Access::LOCAL_WRITE);
        Self {
            kind,
            memory,
            lkey,
            waits_for: Waits::Nothing,
            last: 0,
            whole: 0,
            overtaken: 0,
        }
    }

    fn read(
        &self,
        pair: &mut QueuePair,
        id: WrId,
        from: Remote,
        [to, len]: [u64; 2],
        fence: SendFlags,
    ) {
        let segment = Segment {
            lkey: self.lkey,
            addr: to,
            len: len as u32,
        };
        let request = SendRequest {
            id,
            operation: Operation::Read { remote: from },
            data: Data::Segments(&[segment]),
            flags: SendFlags::SIGNALLED | fence,
        };
        pair.post_send(&request).unwrap();
    }

    /// Begins to read the object, if it does not already.
    fn begin(&mut self, pair: &mut QueuePair) {
        if let Waits::Nothing = self.waits_for {
            let line = Remote {
                rkey: HEADER,
                addr: 0,
            };
            self.read(pair, LAST, line, [OBJECT_LINE, LINE], SendFlags::empty());
            self.waits_for = Waits::Object;
        }
    }

    fn bytes(&self, at: u64, len: u64) -> &[u8] {
        let memory = self.memory.bytes(self.lkey).unwrap();
        &memory[at as usize..][..len as usize]
    }

    /// Goes on after the requests of a step have completed.
    fn step(&mut self, pair: &mut QueuePair) {
        match self.waits_for {
            Waits::Nothing => {}
            Waits::Object => {
                let line = self.bytes(OBJECT_LINE, LINE).try_into().unwrap();
                let newest = ObjectLine::parse(line).unwrap().newest;
                self.waits_for = Waits::Nothing;
                let Some((newest, slot)) = newest else {
                    return;
                };
                match self.kind {
                    Kind::Newest => self.read_slot(pair, newest, slot),
                    Kind::Every if newest.get() > self.last => {
                        let next = Epoch::new(self.last + 1).unwrap();
                        // A ring of three slots.
                        self.read_slot(pair, next, Slot((self.last % 3) as u16));
                    }
                    Kind::Every => {}
                }
            }
            Waits::Slot(epoch) => {
                self.waits_for = Waits::Nothing;
                let line = self.bytes(SLOT_LINE, LINE).try_into().unwrap();
                let state = SlotLine::parse(line).unwrap().state;
                self.take(pair, epoch, state);
            }
        }
    }

    fn read_slot(&mut self, pair: &mut QueuePair, epoch: Epoch, slot: Slot) {
        // In two pieces, each of several packets.
        let half = SLOT / 2;
        for at in [0, half] {
            let from = Remote {
                rkey: SLOTS,
                addr: SLOT * slot.index() as u64 + at,
            };
            self.read(pair, WrId(0), from, [BYTES + at, half], SendFlags::empty());
        }
        let line = Remote {
            rkey: HEADER,
            addr: slot.line(),
        };
        self.read(pair, LAST, line, [SLOT_LINE, LINE], SendFlags::FENCE);
        self.waits_for = Waits::Slot(epoch);
    }

    /// Judges what it has read.
    fn take(&mut self, pair: &mut QueuePair, epoch: Epoch, state: SlotState) {
        if state != SlotState::Whole(epoch) {
            assert_eq!(
                self.kind,
                Kind::Newest,
                "a slot that was kept was overwritten"
            );
            self.overtaken += 1;
            return;
        }
        for word in self.bytes(BYTES, SLOT).chunks_exact(8) {
            assert_eq!(word, epoch.get().to_le_bytes(), "torn");
        }
        match self.kind {
            Kind::Newest => assert!(epoch.get() >= self.last, "back"),
            Kind::Every => {
                assert_eq!(epoch.get(), self.last + 1, "missed");
                let read = SendRequest {
                    id: WrId(0),
                    operation: Operation::Write {
                        remote: Remote {
                            rkey: READ,
                            addr: 0,
                        },
                        immediate: None,
                    },
                    data: Data::Inline(&epoch.get().to_le_bytes()),
                    flags: SendFlags::SIGNALLED,
                };
                pair.post_send(&read).unwrap();
            }
        }
        self.last = epoch.get();
        self.whole += 1;
    }
}

/// Returns a connected queue pair.
fn connected(own: Qpn, peer: Qpn) -> QueuePair {
    let capabilities = Capabilities {
        max_send_wr: 16,
        max_recv_wr: 1,
        max_inline: 8,
    };
    let mut pair = QueuePair::new(own, capabilities);
    pair.to_init(Access::REMOTE_READ | Access::REMOTE_WRITE)
        .unwrap();
    pair.to_rtr(&RtrAttributes {
        dest_qpn: peer,
        rq_psn: Psn::new(0),
        path_mtu: Mtu::B256,
        max_dest_rd_atomic: 4,
        min_rnr_timer: RnrTimer::new(1),
    })
    .unwrap();
    pair.to_rts(&RtsAttributes {
        sq_psn: Psn::new(0),
        timeout: AckTimeout::new(8),
        // Schedules may lose every packet for long.
        retry_limit: RetryLimit::NoProgressFor(Duration::from_secs(1_000_000)),
        rnr_retry: RnrRetry::FOREVER,
        max_rd_atomic: 4,
    })
    .unwrap();
    pair
}

/// One side of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Owner,
    Reader,
}

/// Everything, between two steps.
struct World {
    now: Time,
    served: Served,
    owner: QueuePair,
    reader: Reader,
    pair: QueuePair,
    /// Packets and where they go.
    network: VecDeque<(Side, Vec<u8>)>,
}

/// A step of a schedule.
#[derive(Clone, Copy, Debug)]
enum Step {
    Publish {
        gives_up: bool,
    },
    Transmit,
    Deliver(usize),
    Lose(usize),
    Repeat(usize),
    /// Until the next retransmission.
    Wait,
}

impl World {
    fn new(kind: Kind) -> Self {
        let mode = match kind {
            Kind::Newest => Mode::Latest,
            Kind::Every => Mode::Ring {
                slots: 3,
                when_full: WhenFull::Block,
            },
        };
        let served = Served {
            owner: Owner::new(mode),
            read: 0,
            follows: kind == Kind::Every,
        };
        let (own, peer) = (Qpn::new(17), Qpn::new(18));
        Self {
            now: Time::EPOCH,
            served,
            owner: connected(own, peer),
            reader: Reader::new(kind),
            pair: connected(peer, own),
            network: VecDeque::new(),
        }
    }

    fn step(&mut self, step: Step) {
        let among = self.network.len().max(1);
        match step {
            Step::Publish { gives_up } => self.served.step(gives_up),
            Step::Transmit => self.transmit(),
            Step::Deliver(at) => {
                if let Some((to, packet)) = self.network.remove(at % among) {
                    self.deliver(to, &packet);
                }
            }
            Step::Lose(at) => drop(self.network.remove(at % among)),
            Step::Repeat(at) => {
                if let Some(packet) = self.network.get(at % among).cloned() {
                    self.network.push_back(packet);
                }
            }
            Step::Wait => {
                let deadlines = [self.pair.next_deadline(), self.owner.next_deadline()];
                if let Some(next) = deadlines.into_iter().flatten().min() {
                    self.now = self.now.max(next);
                    self.pair.handle_deadline(self.now);
                    self.owner.handle_deadline(self.now);
                }
            }
        }
        while let Some(completion) = self.pair.poll_completion() {
            assert_eq!(completion.status, WcStatus::Success);
            if completion.id == LAST {
                self.reader.step(&mut self.pair);
            }
        }
        self.reader.begin(&mut self.pair);
    }

    /// Sends one packet of each side.
    fn transmit(&mut self) {
        let mut packet = vec![0; MAX_DATAGRAM];
        let len = self
            .pair
            .poll_transmit(self.now, &mut self.reader.memory, &mut packet);
        if let Some(len) = len {
            self.network
                .push_back((Side::Owner, packet[..len].to_vec()));
        }
        let len = self
            .owner
            .poll_transmit(self.now, &mut self.served, &mut packet);
        if let Some(len) = len {
            self.network
                .push_back((Side::Reader, packet[..len].to_vec()));
        }
    }

    fn deliver(&mut self, to: Side, packet: &[u8]) {
        let packet = Packet::new(packet).unwrap();
        match to {
            Side::Owner => self.owner.receive(self.now, &packet, &mut self.served),
            Side::Reader => self
                .pair
                .receive(self.now, &packet, &mut self.reader.memory),
        }
    }

    /// Lets the network deliver everything while the owner rests, until the reader has read again.
    fn settle(&mut self) {
        let before = self.reader.whole;
        for _ in 0..10_000 {
            if self.reader.whole > before {
                return;
            }
            for step in [
                Step::Transmit,
                Step::Deliver(0),
                Step::Deliver(0),
                Step::Wait,
            ] {
                self.step(step);
            }
        }
        panic!("the reader does not go on");
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = any::<usize>;
    let step = prop_oneof![
        6 => prop::bool::weighted(0.1).prop_map(|gives_up| Step::Publish { gives_up }),
        8 => Just(Step::Transmit),
        8 => at().prop_map(Step::Deliver),
        6 => Just(Step::Deliver(0)),
        1 => at().prop_map(Step::Lose),
        1 => at().prop_map(Step::Repeat),
        1 => Just(Step::Wait),
    ];
    prop::collection::vec(step, 0..3000)
}

/// Runs a schedule, and lets the reader end.
fn run(kind: Kind, schedule: &[Step]) -> World {
    let mut world = World::new(kind);
    for step in schedule {
        world.step(*step);
    }
    let newest = world.served.owner.newest();
    if newest.is_some_and(|(newest, _)| newest.get() > world.reader.last) {
        world.settle();
    }
    world
}

proptest! {
    #[test]
    fn no_schedule_of_packets_tears_or_brings_a_reader_back(schedule in steps()) {
        run(Kind::Newest, &schedule);
    }

    #[test]
    fn no_schedule_of_packets_loses_an_epoch_of_a_ring_that_blocks(schedule in steps()) {
        let world = run(Kind::Every, &schedule);
        prop_assert!(world.reader.last <= world.reader.whole);
    }
}

#[test]
fn the_schedules_overtake_readers_and_make_responses_repeat() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let (mut whole, mut overtaken, mut repeated) = (0, 0, 0);
    for _ in 0..50 {
        let schedule = steps().new_tree(&mut runner).unwrap().current();
        let world = run(Kind::Newest, &schedule);
        whole += world.reader.whole;
        overtaken += world.reader.overtaken;
        repeated += world.pair.statistics().retransmissions;
    }
    assert!(
        whole > 100 && overtaken > 100 && repeated > 100,
        "{whole} {overtaken} {repeated}"
    );
}
