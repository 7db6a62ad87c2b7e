//! READ requests before the expected PSN, which are answered only if they repeat a READ.

use gdr_roce::wire::{NakCode, Opcode};
use gdr_roce::{Access, Rkey};

use super::target::{MTU, Sent, Target, nak, reth};
use crate::fixture::{BASE, Settings};

const READ: Opcode = Opcode::ReadRequest;

/// Returns a target that has responded to `count` READs of two packets each.
fn target_of_reads(count: u32) -> (Target, Rkey) {
    let mut target = Target::new();
    let rkey = target.open.1;
    for index in 0..count {
        target.receive(&reth(READ, 2 * index, rkey, at(index), 2 * MTU as u32, 0));
        assert_eq!(target.poll(), Sent::Packet(Opcode::ReadResponseFirst));
        assert_eq!(target.poll(), Sent::Packet(Opcode::ReadResponseLast));
    }
    (target, rkey)
}

/// Returns the address of the READ with this index.
fn at(index: u32) -> u64 {
    BASE + u64::from(index) * 64
}

#[test]
fn a_read_with_the_psn_of_no_earlier_read_gets_no_response() {
    for max_rd_atomic in [0, 4] {
        let settings = Settings {
            max_rd_atomic,
            ..Settings::default()
        };
        let mut target = Target::with(&settings);
        let rkey = target.open.1;
        for back in [1u32, 77, 1 << 20, (1 << 23) - 1] {
            target.receive(&reth(READ, back.wrapping_neg(), rkey, BASE, 16, 0));
            assert_eq!(target.poll(), Sent::Nothing, "{back} back");
        }
        // This PSN belongs to a WRITE.
        target.receive(&reth(Opcode::WriteOnly, 0, rkey, BASE, 4, 4));
        assert!(matches!(target.poll(), Sent::Ack(..)));
        target.receive(&reth(READ, 0, rkey, BASE, 4, 0));
        assert_eq!(target.poll(), Sent::Nothing);
    }
}

#[test]
fn a_read_is_invalid_if_max_dest_rd_atomic_is_zero() {
    let settings = Settings {
        max_rd_atomic: 0,
        ..Settings::default()
    };
    let mut target = Target::with(&settings);
    let rkey = target.open.1;
    target.receive(&reth(READ, 0, rkey, BASE, 4, 0));
    assert_eq!(target.poll(), nak(NakCode::InvalidRequest, target.first));
}

#[test]
fn a_read_can_be_repeated_whole_or_from_any_of_its_packets() {
    let (mut target, rkey) = target_of_reads(1);
    target.receive(&reth(READ, 0, rkey, at(0), 2 * MTU as u32, 0));
    assert_eq!(target.poll(), Sent::Packet(Opcode::ReadResponseFirst));
    assert_eq!(target.poll(), Sent::Packet(Opcode::ReadResponseLast));
    target.receive(&reth(READ, 1, rkey, at(0) + MTU as u64, MTU as u32, 0));
    assert_eq!(target.poll(), Sent::Packet(Opcode::ReadResponseOnly));
}

#[test]
fn a_repeated_read_with_another_key_or_range_gets_no_response() {
    let (mut target, rkey) = target_of_reads(1);
    let readable = target.readable.1;
    // A different key for the same addresses.
    let (_, alias) = target
        .memory
        .register(BASE, vec![0; 2 * MTU], Access::REMOTE_READ);
    let (all, half) = (2 * MTU as u32, MTU as u32);
    for (psn, rkey, addr, len) in [
        (0, rkey, at(0) + 1, all),
        (0, rkey, at(0) - 1, 16),
        (0, rkey, at(0) + MTU as u64, half),
        (0, rkey, at(0), all + 1),
        (0, rkey, at(0), 1 << 31),
        (1, rkey, at(0), half),
        (1, rkey, at(0) + MTU as u64, half + 1),
        (1, rkey, at(0) + MTU as u64, all),
        (0, readable, at(0), all),
        (0, readable, BASE + (1 << 20), all),
        (0, Rkey(0), at(0), all),
        (0, alias, at(0), all),
    ] {
        target.receive(&reth(READ, psn, rkey, addr, len, 0));
        assert_eq!(target.poll(), Sent::Nothing, "{psn} {addr:#x} {len}");
    }
}

#[test]
fn only_the_latest_max_dest_rd_atomic_reads_can_be_repeated() {
    let limit = u32::from(Settings::default().max_rd_atomic);
    let (mut target, rkey) = target_of_reads(limit + 1);
    target.receive(&reth(READ, 0, rkey, at(0), 2 * MTU as u32, 0));
    assert_eq!(
        target.poll(),
        Sent::Nothing,
        "the record of the oldest is gone"
    );
    for index in 1..=limit {
        target.receive(&reth(READ, 2 * index, rkey, at(index), 2 * MTU as u32, 0));
        assert_eq!(target.poll(), Sent::Packet(Opcode::ReadResponseFirst));
        assert_eq!(target.poll(), Sent::Packet(Opcode::ReadResponseLast));
    }
}

#[test]
fn a_repeated_read_of_deregistered_memory_does_not_block_later_responses() {
    let (mut target, rkey) = target_of_reads(1);
    target.receive(&reth(READ, 0, rkey, at(0), 2 * MTU as u32, 0));
    target.receive(&reth(Opcode::WriteOnly, 2, Rkey(0), 0, 0, 0));
    target.memory.deregister(target.open.0);
    assert!(matches!(target.poll(), Sent::Ack(_, psn) if psn == (target.first + 2) & 0xff_ffff));
    assert_eq!(target.poll(), Sent::Nothing);
}
