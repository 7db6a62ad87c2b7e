//! Payloads passed by reference.
use std::time::Duration;

use crate::fixture::{BASE, Random, Settings, connected};
use gdr_roce::wire::{MAX_DATAGRAM, Packet};
use gdr_roce::{
    Access, AccessError, AtomicOp, Contents, Data, Extent, HeapMemory, Immediate, Key,
    LossRecovery, Memory, Operation, RecvRequest, Remote, RetryLimit, Segment, SendFlags,
    SendRequest, Time, WcStatus, WrId,
};

/// Memory that the other side can read directly.
struct Shared<'a> {
    own: &'a mut HeapMemory,
    other: &'a mut HeapMemory,
    /// The key of the other side's memory.
    other_key: Key,
    /// The payload reference of the packet being written.
    offered: Option<Extent>,
    /// Set while the bytes are still being copied.
    is_late: bool,
    /// The length of the message.
    len: u32,
    /// The maximum number of bytes that one packet may refer to.
    most: u32,
}

impl Memory for Shared<'_> {
    fn check(&self, key: Key, extent: Extent, access: Access) -> Result<(), AccessError> {
        self.own.check(key, extent, access)
    }

    fn read(&mut self, key: Key, addr: u64, out: &mut [u8]) -> Result<(), AccessError> {
        self.own.read(key, addr, out)
    }

    fn write(&mut self, key: Key, addr: u64, bytes: &[u8]) -> Result<(), AccessError> {
        self.own.write(key, addr, bytes)
    }

    fn write_from(
        &mut self,
        key: Key,
        addr: u64,
        from: Extent,
        room: u32,
    ) -> Result<(), AccessError> {
        let len = u64::from(self.len);
        assert_eq!(u64::from(room), len - (addr - BASE) % len);
        if self.is_late {
            return Err(AccessError::NotYet);
        }
        let mut bytes = vec![0; from.len as usize];
        self.other.read(self.other_key, from.addr, &mut bytes)?;
        self.own.write(key, addr, &bytes)
    }

    fn choose_payload(&mut self, _: Key, extent: Extent, message: u32) -> Result<u32, AccessError> {
        // A READ is requested piece by piece.
        assert!(message <= self.len);
        let len = extent.len.min(self.most);
        self.offered = Some(Extent { len, ..extent });
        Ok(len)
    }

    fn atomic(&mut self, key: Key, addr: u64, op: AtomicOp) -> Result<u64, AccessError> {
        self.own.atomic(key, addr, op)
    }
}

/// Three packets, merged into one.
const LEN: u32 = 2500;

/// Two connected queue pairs, and a region of each.
struct Pair {
    qps: [gdr_roce::QueuePair; 2],
    memories: [HeapMemory; 2],
    keys: [(gdr_roce::Lkey, gdr_roce::Rkey); 2],
    /// The number of times that each packet is passed in before its bytes are available.
    too_early: u32,
    /// The length of each message.
    len: u32,
    /// The maximum number of bytes that one packet may refer to.
    most: u32,
}

impl Pair {
    fn new() -> Self {
        Self::with(LEN, Settings::default().recovery)
    }

    fn with(len: u32, recovery: LossRecovery) -> Self {
        Self::with_messages(1, len, recovery)
    }

    /// Creates a pair with memory for `count` messages of `len` bytes.
    fn with_messages(count: u32, len: u32, recovery: LossRecovery) -> Self {
        let settings = Settings {
            recovery,
            retry_limit: RetryLimit::NoProgressFor(Duration::from_secs(60)),
            ..Settings::default()
        };
        let mut memories = [HeapMemory::new(), HeapMemory::new()];
        let all = (count * len) as usize;
        let bytes = |seed: usize| (0..all).map(|at| (at * seed) as u8).collect();
        let keys = [
            memories[0].register(BASE, bytes(3), Access::all()),
            memories[1].register(BASE, bytes(7), Access::all()),
        ];
        let qps = [connected(0, &settings), connected(1, &settings)];
        Self {
            qps,
            memories,
            keys,
            too_early: 0,
            len,
            most: u32::MAX,
        }
    }

    fn segment(&self, side: usize) -> Segment {
        Segment {
            lkey: self.keys[side].0,
            addr: BASE,
            len: self.len,
        }
    }

    fn post(&mut self, operation: Operation) {
        self.post_at(0, operation);
    }

    /// Posts an operation whose local bytes are at an offset.
    fn post_at(&mut self, offset: u64, operation: Operation) {
        let segment = Segment {
            addr: BASE + offset,
            ..self.segment(0)
        };
        let request = SendRequest {
            id: WrId(1),
            operation,
            data: Data::Segments(&[segment]),
            flags: SendFlags::SIGNALLED,
        };
        self.qps[0].post_send(&request).unwrap();
    }

    fn shared(&mut self, side: usize) -> (&mut gdr_roce::QueuePair, Shared<'_>) {
        let [one, two] = &mut self.memories;
        let (own, other) = if side == 0 { (one, two) } else { (two, one) };
        let shared = Shared {
            own,
            other,
            other_key: Key::Local(self.keys[1 - side].0),
            offered: None,
            is_late: false,
            len: self.len,
            most: self.most,
        };
        (&mut self.qps[side], shared)
    }

    /// Returns the next packet of a side, and its payload reference.
    fn poll(&mut self, side: usize, now: Time) -> Option<(Vec<u8>, Option<Extent>)> {
        let (qp, mut memory) = self.shared(side);
        let mut out = [0; MAX_DATAGRAM];
        let len = qp.poll_transmit(now, &mut memory, &mut out)?;
        Some((out[..len].to_vec(), memory.offered))
    }

    fn deliver(&mut self, side: usize, now: Time, (packet, reference): &(Vec<u8>, Option<Extent>)) {
        let too_early = self.too_early;
        let (qp, mut memory) = self.shared(side);
        let packet = match reference {
            Some(payload) => Packet::referring(packet, *payload),
            None => Packet::new(packet),
        }
        .unwrap();
        memory.is_late = reference.is_some();
        for _ in 0..too_early {
            qp.receive(now, &packet, &mut memory);
        }
        memory.is_late = false;
        qp.receive(now, &packet, &mut memory);
    }

    /// Delivers packets until there are none. Returns how many had a payload reference.
    fn run(&mut self, now: Time) -> usize {
        let mut references = 0;
        loop {
            let mut any = false;
            for side in [0, 1] {
                while let Some(packet) = self.poll(side, now) {
                    references += usize::from(packet.1.is_some());
                    self.deliver(1 - side, now, &packet);
                    any = true;
                }
            }
            if !any {
                return references;
            }
        }
    }

    fn status(&mut self) -> WcStatus {
        self.qps[0].poll_completion().unwrap().status
    }

    fn bytes(&self, side: usize) -> &[u8] {
        self.memories[side].bytes(self.keys[side].0).unwrap()
    }

    fn remote(&self) -> Remote {
        Remote {
            addr: BASE,
            rkey: self.keys[1].1,
        }
    }
}

#[test]
fn every_operation_moves_the_bytes_that_its_packets_refer_to() {
    every_operation(Pair::new());
}

#[test]
fn a_packet_whose_bytes_are_not_there_yet_changes_nothing() {
    every_operation(Pair {
        too_early: 2,
        ..Pair::new()
    });
}

/// Runs a READ, a WRITE, a SEND and a WRITE with immediate data, each of three packets merged into one.
fn every_operation(mut pair: Pair) {
    let (one, two) = (pair.bytes(0).to_vec(), pair.bytes(1).to_vec());
    let remote = pair.remote();
    pair.post(Operation::Read { remote });
    assert_eq!(
        (pair.run(Time::EPOCH), pair.status()),
        (1, WcStatus::Success)
    );
    assert_eq!(pair.bytes(0), two);

    let lkey = pair.keys[0].0;
    pair.memories[0]
        .bytes_mut(lkey)
        .unwrap()
        .copy_from_slice(&one);
    pair.post(Operation::Write {
        remote,
        immediate: None,
    });
    assert_eq!(
        (pair.run(Time::EPOCH), pair.status()),
        (1, WcStatus::Success)
    );
    assert_eq!(pair.bytes(1), one);

    pair.memories[0].bytes_mut(lkey).unwrap().fill(0x5a);
    let segments = [pair.segment(1)];
    let receive = RecvRequest {
        id: WrId(2),
        segments: &segments,
    };
    pair.qps[1].post_recv(&receive).unwrap();
    pair.post(Operation::Send { immediate: None });
    assert_eq!(
        (pair.run(Time::EPOCH), pair.status()),
        (1, WcStatus::Success)
    );
    assert_eq!(pair.bytes(1), [0x5a; LEN as usize]);

    pair.memories[0].bytes_mut(lkey).unwrap().fill(0xa5);
    for id in [WrId(3), WrId(4)] {
        let segments = &segments;
        pair.qps[1]
            .post_recv(&RecvRequest { id, segments })
            .unwrap();
    }
    pair.post(Operation::Write {
        remote,
        immediate: Some(Immediate(5)),
    });
    assert_eq!(
        (pair.run(Time::EPOCH), pair.status()),
        (1, WcStatus::Success)
    );
    assert_eq!(pair.bytes(1), [0xa5; LEN as usize]);
    let received = std::iter::from_fn(|| pair.qps[1].poll_completion());
    let received: Vec<_> = received.map(|done| (done.id, done.immediate)).collect();
    assert_eq!(received, [(WrId(2), None), (WrId(3), Some(Immediate(5)))]);
}

#[test]
fn a_packet_that_is_sent_again_has_a_copy() {
    let mut pair = Pair::new();
    let remote = pair.remote();
    pair.post(Operation::Write {
        remote,
        immediate: None,
    });
    let mut sent = 0;
    while let Some((_, reference)) = pair.poll(0, Time::EPOCH) {
        assert!(reference.is_some(), "and is lost");
        sent += 1;
    }
    assert_eq!(sent, 1);
    let now = pair.qps[0].next_deadline().unwrap();
    pair.qps[0].handle_deadline(now);
    assert_eq!((pair.run(now), pair.status()), (0, WcStatus::Success));
    assert_eq!(pair.bytes(0), pair.bytes(1));
}

/// Lost packets are retransmitted one by one, starting anywhere within a merged one.
#[test]
fn messages_of_many_packets_take_few_and_survive_the_loss_of_any() {
    // Packets, the maximum number of bytes per reference, and the expected number of references.
    for (packets, most, references) in [(150, 64 << 10, 4), (1500, u32::MAX, 3)] {
        for (number, recovery) in [LossRecovery::GoBackN, LossRecovery::Selective]
            .into_iter()
            .enumerate()
        {
            for lost in 0..references {
                for kind in 0..3 {
                    let case = (packets, number, lost, kind);
                    let mut pair = Pair::with(packets * 1024 - 7, recovery);
                    pair.most = most;
                    let (count, timeouts) = pair.lose(lost, kind);
                    assert_eq!(pair.bytes(0), pair.bytes(1), "{case:?}");
                    // A READ is requested in small pieces at first, and after a loss.
                    let few = if kind == 2 { packets } else { references };
                    assert!(count <= few, "{case:?}: {count} for {packets}");
                    assert!(timeouts <= 2, "{case:?}: {timeouts}");
                }
            }
        }
    }
}

impl Pair {
    /// Transfers a message that loses one packet with a reference. Returns the number of references, and how often only
    /// a timer made progress.
    fn lose(&mut self, lost: u32, kind: u32) -> (u32, u32) {
        let (remote, immediate) = (self.remote(), None);
        let segments = [self.segment(1)];
        let (id, segments) = (WrId(2), &segments);
        self.qps[1]
            .post_recv(&RecvRequest { id, segments })
            .unwrap();
        self.post(match kind {
            0 => Operation::Write { remote, immediate },
            1 => Operation::Send { immediate },
            _ => Operation::Read { remote },
        });
        let mut now = Time::EPOCH;
        let (mut count, mut timeouts) = (0, 0);
        loop {
            let mut any = false;
            for side in [0, 1] {
                while let Some(packet) = self.poll(side, now) {
                    let is_reference = packet.1.is_some();
                    if !(is_reference && count == lost) {
                        self.deliver(1 - side, now, &packet);
                    }
                    count += u32::from(is_reference);
                    any = true;
                }
            }
            if let Some(done) = self.qps[0].poll_completion() {
                assert_eq!(done.status, WcStatus::Success);
                return (count, timeouts);
            }
            let deadline = self.qps[0].next_deadline();
            if let Some(at) = deadline.filter(|at| !any || *at <= now) {
                timeouts += u32::from(at > now + Duration::from_micros(500));
                now = now.max(at);
                self.qps[0].handle_deadline(now);
            }
        }
    }
}

/// Alternating READs and WRITEs, with many packets lost in both directions.
#[test]
fn random_losses_among_references_corrupt_no_byte() {
    const MESSAGES: u32 = 12;
    for seed in 0..200 {
        let mut random = Random(seed);
        let recovery = match seed % 2 {
            0 => LossRecovery::GoBackN,
            _ => LossRecovery::Selective,
        };
        let len = 1 + random.below(200 * 1024) as u32;
        let mut pair = Pair::with_messages(MESSAGES, len, recovery);
        pair.most = [4 << 10, 64 << 10, u32::MAX][random.below(3) as usize];
        pair.too_early = random.below(2) as u32;
        let before = [0, 1].map(|side| pair.bytes(side).to_vec());
        let reads: Vec<bool> = (0..MESSAGES).map(|_| random.happens(5000)).collect();
        for (number, read) in reads.iter().enumerate() {
            let offset = number as u64 * u64::from(len);
            let remote = Remote {
                addr: BASE + offset,
                ..pair.remote()
            };
            let immediate = None;
            let operation = match read {
                true => Operation::Read { remote },
                false => Operation::Write { remote, immediate },
            };
            pair.post_at(offset, operation);
        }
        let (mut now, mut lossy, mut done) = (Time::EPOCH, 100, 0);
        while done < MESSAGES {
            let mut any = false;
            for side in [0, 1] {
                while let Some(packet) = pair.poll(side, now) {
                    any = true;
                    if lossy > 0 && random.happens(1500) {
                        lossy -= 1;
                        continue;
                    }
                    pair.deliver(1 - side, now, &packet);
                }
            }
            now = now + Duration::from_micros(20);
            while let Some(completion) = pair.qps[0].poll_completion() {
                assert_eq!(completion.status, WcStatus::Success, "seed {seed}");
                done += 1;
            }
            for side in [0, 1] {
                if let Some(at) = pair.qps[side]
                    .next_deadline()
                    .filter(|at| !any || *at <= now)
                {
                    now = now.max(at);
                    pair.qps[side].handle_deadline(now);
                }
            }
        }
        for (number, read) in reads.iter().enumerate() {
            let part = number * len as usize..(number + 1) * len as usize;
            let expected = &before[usize::from(*read)][part.clone()];
            for side in [0, 1] {
                let bytes = &pair.bytes(side)[part.clone()];
                assert!(bytes == expected, "message {number} of seed {seed}");
            }
        }
    }
}

/// The more responses are merged, the more packets one READ request and its response cover.
#[test]
fn reads_are_requested_in_long_pieces_while_their_responses_are_merged() {
    const PACKETS: u32 = 20_000;
    let requests = |pair: &mut Pair, now: Time| {
        let mut lengths = Vec::new();
        while let Some(packet) = pair.poll(0, now) {
            let reth = Packet::new(&packet.0).unwrap().reth();
            lengths.extend(reth.map(|reth| reth.dma_len / 1024));
            pair.deliver(1, now, &packet);
        }
        lengths
    };
    // In the last case the receiver itself copies.
    for (most, longest, too_early) in [(u32::MAX, 1024, 1), (1024, 64, 1), (u32::MAX, 64, 0)] {
        let mut pair = Pair::with(PACKETS * 1024, LossRecovery::Selective);
        (pair.most, pair.too_early) = (most, too_early);
        let remote = pair.remote();
        pair.post(Operation::Read { remote });
        let (mut lengths, mut references) = (Vec::new(), 0);
        let mut now = Time::EPOCH;
        loop {
            lengths.extend(requests(&mut pair, now));
            // After a round trip all requested responses are there.
            now = now + Duration::from_micros(100);
            let before = references;
            while let Some(packet) = pair.poll(1, now) {
                references += 1;
                pair.deliver(0, now, &packet);
            }
            if references == before {
                break;
            }
        }
        assert_eq!(pair.status(), WcStatus::Success);
        assert_eq!(pair.bytes(0), pair.bytes(1));
        assert_eq!(lengths.iter().sum::<u32>(), PACKETS);
        assert_eq!(lengths.iter().max(), Some(&longest));
        let few = match (most, longest) {
            (1024, _) => PACKETS,
            (_, longest) => 60 + PACKETS / longest,
        };
        assert!(references <= few, "{references} packets");
    }
}

#[test]
fn a_reference_to_too_many_bytes_is_refused() {
    let mut pair = Pair::with(1025 * 1024, LossRecovery::GoBackN);
    let remote = pair.remote();
    pair.post(Operation::Write {
        remote,
        immediate: None,
    });
    let (mut packet, reference) = pair.poll(0, Time::EPOCH).unwrap();
    let reference = reference.map(|extent| Extent {
        len: pair.len,
        ..extent
    });
    // Turns it into a single-packet message.
    packet[0] = gdr_roce::wire::Opcode::write(gdr_roce::wire::Position::Only, false).byte();
    pair.deliver(1, Time::EPOCH, &(packet, reference));
    pair.run(Time::EPOCH);
    assert_eq!(pair.qps[1].state(), gdr_roce::State::Error);
}

#[test]
fn a_reference_of_another_length_than_the_request_has_is_refused() {
    let mut pair = Pair::new();
    let remote = pair.remote();
    pair.post(Operation::Write {
        remote,
        immediate: None,
    });
    let (packet, reference) = pair.poll(0, Time::EPOCH).unwrap();
    for len in [0, 1, 1023, 1025, 4096, u32::MAX] {
        let before = pair.bytes(1).to_vec();
        let reference = reference.map(|reference| Extent { len, ..reference });
        let mut other = Pair::new();
        other.deliver(1, Time::EPOCH, &(packet.clone(), reference));
        assert_eq!(other.bytes(1), before, "{len}");
        assert_eq!(other.qps[1].state(), gdr_roce::State::ReadyToSend);
        other.run(Time::EPOCH);
        assert_eq!(other.qps[1].state(), gdr_roce::State::Error, "{len}");
    }
}

#[test]
fn what_could_not_be_placed_is_not_completed_with_success() {
    let mut pair = Pair::new();
    let receive = RecvRequest {
        id: WrId(2),
        segments: &[pair.segment(1)],
    };
    pair.qps[1].post_recv(&receive).unwrap();
    pair.post(Operation::Send { immediate: None });
    while let Some(packet) = pair.poll(0, Time::EPOCH) {
        pair.deliver(1, Time::EPOCH, &packet);
    }
    pair.qps[1].fail_placement();
    let completion = pair.qps[1].poll_completion().unwrap();
    assert_eq!(completion.id, WrId(2));
    assert_eq!(completion.status, WcStatus::LocalOperation);
    assert_eq!(completion.byte_len, 0);
    assert!(
        pair.poll(1, Time::EPOCH).is_none(),
        "nothing is acknowledged"
    );
}

#[test]
fn a_packet_that_has_a_payload_refers_to_none_besides() {
    let mut pair = Pair::new();
    let remote = pair.remote();
    pair.post(Operation::Read { remote });
    let (request, _) = pair.poll(0, Time::EPOCH).unwrap();
    let payload = Extent { addr: BASE, len: 8 };
    Packet::referring(&request, payload).unwrap_err();
    let Contents::Bytes([]) = Packet::new(&request).unwrap().contents() else {
        panic!("it has a payload");
    };
}
