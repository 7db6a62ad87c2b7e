//! Transfers through a ring of page-locked memory, for GPU memory that the device refuses.

use std::sync::Arc;
use std::time::Duration;

use gdr_cuda::{DeviceBuffer, Gpu, MemoryKind, Ordinal, SimDriver};
use gdr_rdma::{Deadline, Error, NicError, RingConfig, Rkey, StagingRing};

use crate::fixture::*;

const SLOT: u64 = 4096;
const SHAPE: RingConfig = RingConfig {
    slot_len: SLOT as u32,
    slots: 3,
};
const LEN: u64 = 20 * SLOT;

/// A ring at the first side, connected to a queue pair of the second side.
struct Pair {
    ring: StagingRing,
    memory: Arc<DeviceBuffer>,
    a: Side,
    b: Side,
    fake: CleanFake,
}

impl Pair {
    fn new() -> Self {
        let fake = clean_fake();
        let (a, b) = (side(&fake, &without_gpu_memory()), side(&fake, &roce()));
        let gpu = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
        let memory = Arc::new(gpu.allocate(MemoryKind::Plain, LEN).unwrap());
        let ring = StagingRing::new(&a.domain, Arc::clone(&memory), SHAPE).unwrap();
        ring.pair().connect(&b.pair.endpoint(), &options()).unwrap();
        b.pair.connect(&ring.pair().endpoint(), &options()).unwrap();
        Self {
            fake,
            a,
            b,
            memory,
            ring,
        }
    }
}

/// Sizes around the boundaries of slots and of the ring.
fn sizes() -> [u64; 11] {
    let ring = 3 * SLOT;
    let all = LEN - 1;
    [
        0,
        1,
        SLOT - 1,
        SLOT,
        SLOT + 1,
        2 * SLOT,
        ring - 1,
        ring,
        ring + 1,
        7 * SLOT + 5,
        all,
    ]
}

#[test]
fn every_byte_arrives_at_every_size_around_the_edges_of_slots() {
    let mut ends = Pair::new();
    let there = ends.b.memory(LEN as usize);
    for (round, len) in (1..).zip(sizes()) {
        // To the peer, from an odd offset.
        let sent = pattern(LEN as usize, round);
        ends.memory.write(0, &sent).unwrap();
        let before = fill(&there, round ^ 0x55);
        ends.ring.write(1, &there.remote(), len, soon()).unwrap();
        let (moved, rest) = (len as usize, bytes(&there));
        assert!(rest[..moved] == sent[1..=moved], "to the peer, {len}");
        assert!(rest[moved..] == before[moved..], "beyond, {len}");

        // From the peer.
        let offered = fill(&there, round ^ 0xaa);
        ends.ring.read(1, &there.remote(), len, soon()).unwrap();
        let mut seen = vec![0; LEN as usize];
        ends.memory.read(0, &mut seen).unwrap();
        assert!(seen[1..=moved] == offered[..moved], "from the peer, {len}");
        assert!(seen[moved + 1..] == sent[moved + 1..], "beyond, {len}");
    }
}

#[test]
fn a_range_beyond_either_memory_is_refused_and_the_ring_stays_usable() {
    let mut ends = Pair::new();
    let there = ends.b.memory(100);
    for (offset, len) in [(0, 101), (LEN - 10, 11), (u64::MAX, 2)] {
        let refused = ends.ring.write(offset, &there.remote(), len, soon());
        assert!(matches!(
            refused,
            Err(Error::Nic(NicError::OutOfRange { .. }))
        ));
    }
    ends.ring.write(0, &there.remote(), 100, soon()).unwrap();
}

#[test]
fn a_transfer_that_the_peer_refuses_fails_and_ends_the_ring() {
    let mut ends = Pair::new();
    let there = ends.b.memory(LEN as usize);
    let mut wrong = there.remote();
    wrong.rkey = Rkey(wrong.rkey.0 ^ 1);
    for _ in 0..2 {
        let failed = ends.ring.write(0, &wrong, LEN, soon());
        match failed {
            Err(Error::Transfer(_)) => {}
            other => panic!("{other:?}"),
        }
        // The second attempt is refused even though the key is right.
        wrong = there.remote();
    }
}

#[test]
fn a_peer_that_does_not_answer_ends_the_transfer_at_its_deadline() {
    let mut ends = Pair::new();
    let there = ends.b.memory(LEN as usize);
    hold(&ends.fake, &ends.a.name(), true);
    let deadline = Deadline::after(Duration::from_millis(50));
    let late = ends.ring.read(0, &there.remote(), LEN, deadline);
    assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
    let posted = calls(&ends.fake, &ends.a.name(), &POSTING).len();
    assert_eq!(posted, 3, "a request for each slot at once");
    hold(&ends.fake, &ends.a.name(), false);
}
