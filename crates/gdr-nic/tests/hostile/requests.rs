//! Invalid requests from the real peer's socket.

use gdr_rdma::{LossRecovery, RecvRequest, State, WrId};

use crate::attacker::{Connection, FIRST_PSN, LEN, MTU, QPN, Target, V4, V6, everywhere, send};
use crate::packet::{ACK, Bytes, NAK_ACCESS, NAK_INVALID, NAK_SEQUENCE, RNR_NAK, Received, opcode};

fn said(psn: u32, syndrome: u8) -> Received {
    Received {
        opcode: opcode::ACKNOWLEDGE,
        qpn: QPN,
        psn: psn & 0xff_ffff,
        syndrome: Some(syndrome),
    }
}

/// Checks that the packet is refused with one NAK, puts the connection into the error state and places no byte.
fn refused(target: &Target, packet: impl Fn(&Connection) -> Bytes, syndrome: u8) {
    let connection = target.connect();
    let packet = packet(&connection);
    target.send(&packet);
    assert_eq!(target.answers(), [said(FIRST_PSN, syndrome)], "{packet:x?}");
    assert_eq!(connection.pair.state(), State::Error, "{packet:x?}");
    // In the error state, not even a valid request is executed.
    target.send(&target.write(&connection, FIRST_PSN, 0, 16));
    assert_eq!(target.answers(), [], "{packet:x?}");
    target.assert_untouched(&packet);
}

/// Checks that the packet is dropped and that the connection still works.
fn dropped(target: &Target, packet: &Bytes, connection: &Connection) {
    target.send(packet);
    assert_eq!(target.answers(), [], "{packet:x?}");
    target.assert_untouched(packet);
    assert_eq!(connection.pair.state(), State::ReadyToSend);
}

#[test]
fn a_valid_packet_is_served() {
    everywhere(|target| {
        let connection = target.connect();
        target.send(&target.write(&connection, FIRST_PSN, 8, 37));
        assert_eq!(target.answers(), [said(FIRST_PSN, ACK)]);
        let mut seen = [0; 46];
        let from = target.region.addr() - target.region.buffer().address();
        target.region.buffer().read_at(from, &mut seen).unwrap();
        assert_eq!(seen[7..46], [&[0x5e][..], &[0xbb; 37], &[0x5e]].concat());
    });
}

#[test]
fn wrong_keys_and_ranges_place_nothing() {
    everywhere(|target| {
        let (addr, rkey) = (target.region.addr(), target.region.rkey().0);
        let end = addr + LEN as u64;
        for key in [
            0,
            1,
            !0,
            rkey ^ 1,
            rkey ^ 0x100,
            rkey.swap_bytes(),
            target.region.lkey().0,
        ] {
            if key == rkey {
                continue;
            }
            refused(target, |to| write(to, addr, key, 16, 16), NAK_ACCESS);
            refused(target, |to| read(to, addr, key, 16), NAK_ACCESS);
            refused(target, |to| atomic(to, addr, key), NAK_ACCESS);
        }
        for at in [
            0,
            1,
            addr - 1,
            addr - 16,
            end - 15,
            end,
            u64::MAX - 15,
            u64::MAX - 14,
        ] {
            refused(target, |to| write(to, at, rkey, 16, 16), NAK_ACCESS);
            refused(target, |to| read(to, at, rkey, 16), NAK_ACCESS);
        }
        for at in [end, addr - 8, u64::MAX - 7] {
            refused(target, |to| atomic(to, at & !7, rkey), NAK_ACCESS);
        }
        for len in [LEN as u32 + 1, 1 << 20, (1 << 31) - 1] {
            refused(target, |to| read(to, addr, rkey, len), NAK_ACCESS);
            refused(
                target,
                |to| {
                    Bytes::new(opcode::WRITE_FIRST, to.qpn, FIRST_PSN)
                        .reth(addr, rkey, len)
                        .payload(&[0xbb; MTU])
                },
                NAK_ACCESS,
            );
        }
        for len in [(1 << 31) + 1, !0] {
            refused(target, |to| read(to, addr, rkey, len), NAK_INVALID);
        }
    });
}

#[test]
fn wrong_lengths_place_nothing_beyond_the_announced_range() {
    everywhere(|target| {
        let (addr, rkey) = (target.region.addr(), target.region.rkey().0);
        for (announced, sent) in [
            (0, 4),
            (4, 0),
            (4, 8),
            (8, 4),
            (15, 16),
            (16, 15),
            (5000, 16),
        ] {
            refused(
                target,
                |to| write(to, addr, rkey, announced, sent),
                NAK_INVALID,
            );
        }
        for (first, payload) in [
            (opcode::WRITE_FIRST, MTU - 4),
            (opcode::WRITE_FIRST, MTU + 4),
            (opcode::WRITE_FIRST, 0),
            (opcode::WRITE_ONLY, MTU + 4),
        ] {
            refused(
                target,
                |to| {
                    Bytes::new(first, to.qpn, FIRST_PSN)
                        .reth(addr, rkey, 2 * MTU as u32)
                        .payload(&vec![0xbb; payload])
                },
                NAK_INVALID,
            );
        }
    });
}

#[test]
fn messages_without_a_first_or_last_packet_place_nothing() {
    everywhere(|target| {
        for begin in [
            opcode::WRITE_MIDDLE,
            opcode::WRITE_LAST,
            0x01,
            0x02,
            0x03,
            0x09,
        ] {
            refused(
                target,
                |to| {
                    Bytes::new(begin, to.qpn, FIRST_PSN)
                        .raw(&[0; 4])
                        .payload(&[0xbb; 16])
                },
                NAK_INVALID,
            );
        }
        // A packet with a RETH in the middle of a message.
        let (addr, rkey) = (target.region.addr(), target.region.rkey().0);
        let connection = target.connect();
        let first = Bytes::new(opcode::WRITE_FIRST, connection.qpn, FIRST_PSN)
            .reth(addr, rkey, 3 * MTU as u32)
            .payload(&[0x5e; MTU]);
        target.send(&first);
        assert_eq!(target.answers(), []);
        let again = Bytes::new(opcode::WRITE_ONLY, connection.qpn, FIRST_PSN + 1)
            .reth(addr, rkey, 16)
            .payload(&[0xbb; 16]);
        target.send(&again);
        assert_eq!(target.answers(), [said(FIRST_PSN + 1, NAK_INVALID)]);
        target.assert_untouched(&again);
    });
}

#[test]
fn other_services_and_reserved_opcodes_are_dropped() {
    everywhere(|target| {
        let connection = target.connect();
        let reliable =
            |byte: &u8| matches!(*byte, 0x00..=0x17 | opcode::FLUSH | opcode::ATOMIC_WRITE);
        for byte in (0..=u8::MAX).filter(|byte| !reliable(byte)) {
            for len in [0, 4, 16, 28, 64, MTU] {
                let packet = Bytes::new(byte, connection.qpn, FIRST_PSN)
                    .reth(target.region.addr(), target.region.rkey().0, 16)
                    .payload(&vec![0xbb; len]);
                target.send(&packet);
            }
        }
        let dropped = target.answers();
        assert_eq!(dropped, []);
        target.assert_untouched(&"opcodes of other services");
        assert_eq!(connection.pair.state(), State::ReadyToSend);
    });
}

#[test]
fn packets_ahead_get_one_nak_and_duplicates_change_nothing() {
    everywhere(|target| {
        let connection = target.connect();
        for ahead in [1, 2, 77, (1 << 23) - 1] {
            target.send(&target.write(&connection, FIRST_PSN + ahead, 0, 16));
        }
        assert_eq!(target.answers(), [said(FIRST_PSN, NAK_SEQUENCE)]);
        for behind in [1_u32, 2, 77, 1 << 22] {
            let psn = FIRST_PSN.wrapping_sub(behind);
            target.send(&target.write(&connection, psn, 0, 16));
            let atomic = Bytes::new(opcode::FETCH_ADD, connection.qpn, psn).atomic(
                target.region.addr(),
                target.region.rkey().0,
                1,
                0,
            );
            target.send(&atomic);
        }
        for answer in target.answers() {
            assert_eq!(answer.syndrome, Some(ACK), "{answer:x?}");
        }
        target.assert_untouched(&"packets out of turn");
        assert_eq!(connection.pair.state(), State::ReadyToSend);
    });
}

#[test]
fn packets_behind_a_gap_are_kept_only_for_a_peer_that_retransmits_selectively() {
    for (recovery, kept) in [(LossRecovery::Selective, 1), (LossRecovery::GoBackN, 0)] {
        everywhere(|target| {
            let connection = target.connect_with(recovery);
            target.send(&target.write(&connection, FIRST_PSN + 1, 16, 16));
            assert_eq!(target.answers(), [said(FIRST_PSN, NAK_SEQUENCE)]);
            target.assert_untouched(&"a packet after a gap");
            target.send(&target.write(&connection, FIRST_PSN, 0, 16));
            let last = target.answers().pop();
            assert_eq!(last, Some(said(FIRST_PSN + kept, ACK)), "{recovery:?}");
        });
    }
}

#[test]
fn a_duplicate_read_returns_only_the_range_of_the_original() {
    everywhere(|target| {
        let connection = target.connect();
        for behind in [1_u32, 4, 77, 1 << 22] {
            let psn = FIRST_PSN.wrapping_sub(behind);
            dropped(target, &target.read(&connection, psn, 0, 16), &connection);
        }
        target.send(&target.read(&connection, FIRST_PSN, 0, 16));
        assert_eq!(target.answers().len(), 1);
        for (offset, len) in [(16, 16), (0, 17), (0, LEN as u32), (1, 15)] {
            let again = target.read(&connection, FIRST_PSN, offset, len);
            dropped(target, &again, &connection);
        }
        target.send(&target.read(&connection, FIRST_PSN, 0, 16));
        assert_eq!(target.answers().len(), 1, "a true repetition is answered");
    });
}

#[test]
fn other_reads_behind_the_expected_packet_get_no_response() {
    everywhere(|target| {
        let connection = target.connect();
        target.send(&target.read(&connection, FIRST_PSN, 0, LEN as u32));
        assert_eq!(target.answers().len(), LEN / MTU);
        // A thousand other duplicate requests get no response.
        for n in 0..1000 {
            let psn = FIRST_PSN.wrapping_sub(1 + 4 * n);
            target.send(&target.read(&connection, psn, 0, LEN as u32));
        }
        assert_eq!(target.answers(), []);
    });
}

#[test]
fn more_reads_than_agreed_are_refused() {
    everywhere(|target| {
        let connection = target.connect();
        // The device may answer some of them before the next one arrives.
        for n in 0..16 {
            let psn = FIRST_PSN + 4 * n;
            target.send(&target.read(&connection, psn, 0, LEN as u32));
        }
        let answers = target.answers();
        assert!(answers.len() <= 16 * LEN / MTU);
        assert!(
            answers
                .iter()
                .all(|answer| answer.opcode != opcode::ACKNOWLEDGE
                    || answer.syndrome == Some(NAK_INVALID)),
            "{answers:x?}"
        );
    });
}

#[test]
fn misaligned_atomics_are_refused() {
    everywhere(|target| {
        let (addr, rkey) = (target.region.addr(), target.region.rkey().0);
        for odd in 1..8 {
            for code in [opcode::FETCH_ADD, opcode::COMPARE_SWAP] {
                refused(
                    target,
                    |to| Bytes::new(code, to.qpn, FIRST_PSN).atomic(addr + odd, rkey, 1, 0),
                    NAK_INVALID,
                );
            }
        }
    });
}

#[test]
fn keys_are_not_invalidated_for_a_peer() {
    everywhere(|target| {
        let rkey = target.region.rkey().0;
        refused(
            target,
            |to| {
                to.pair.post_recv(RecvRequest::new(WrId(1))).unwrap();
                Bytes::new(opcode::SEND_ONLY_INVALIDATE, to.qpn, FIRST_PSN).raw(&rkey.to_be_bytes())
            },
            NAK_INVALID,
        );
        let connection = target.connect();
        target.send(&target.read(&connection, FIRST_PSN, 0, 16));
        assert_eq!(target.answers().len(), 1, "the key is good still");
    });
}

#[test]
fn a_message_without_a_receive_gets_an_rnr_nak() {
    everywhere(|target| {
        for (code, extra) in [(opcode::SEND_ONLY, 0), (opcode::WRITE_ONLY_IMM, 4)] {
            let connection = target.connect();
            let mut packet = Bytes::new(code, connection.qpn, FIRST_PSN);
            if extra > 0 {
                packet = packet
                    .reth(target.region.addr(), target.region.rkey().0, 16)
                    .raw(&[0; 4]);
            }
            let packet = packet.payload(&[0xbb; 16]);
            target.send(&packet);
            let [answer] = &target.answers()[..] else {
                panic!("one answer");
            };
            assert_eq!(answer.syndrome.unwrap() & 0xe0, RNR_NAK, "{answer:x?}");
            target.assert_untouched(&packet);
        }
    });
}

#[test]
fn packets_with_another_version_partition_or_queue_pair_are_dropped() {
    everywhere(|target| {
        let connection = target.connect();
        let good = target.write(&connection, FIRST_PSN, 0, 16);
        for (at, value) in [(1, 0x41), (1, 0x4f), (2, 0), (3, 0xfe), (5, !good.0[5])] {
            let mut packet = good.clone();
            packet.0[at] = value;
            dropped(target, &packet, &connection);
        }
        for qpn in [0, 1, 0xff_ffff, connection.qpn + 0x1000] {
            let mut packet = good.clone();
            packet.0[4..8].copy_from_slice(&qpn.to_be_bytes());
            dropped(target, &packet, &connection);
        }
    });
}

#[test]
fn every_flipped_bit_is_detected() {
    everywhere(|target| {
        let connection = target.connect();
        let from = target.attacker.local_addr().unwrap();
        let good = target
            .write(&connection, FIRST_PSN, 0, 37)
            .sealed(from, target.address());
        let before = target.device.counters();
        let mut sent = 0;
        for bit in 0..good.len() * 8 {
            // The ICRC does not cover byte 4, where routers mark congestion.
            if bit / 8 == 4 {
                continue;
            }
            let mut broken = good.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            target.attacker.send_to(&broken, target.address()).unwrap();
            sent += 1;
        }
        assert_eq!(target.answers(), []);
        target.assert_untouched(&"flipped bits");
        let after = target.device.counters();
        let noticed = after.icrc_mismatches + after.malformed + after.unknown_queue_pair
            - before.icrc_mismatches
            - before.malformed
            - before.unknown_queue_pair;
        assert!(noticed >= sent, "{noticed} of {sent}: {after:?}");
        target.attacker.send_to(&good, target.address()).unwrap();
        assert_eq!(target.answers(), [said(FIRST_PSN, ACK)]);
    });
}

#[test]
fn every_truncation_places_nothing() {
    everywhere(|target| {
        let connection = target.connect();
        let from = target.attacker.local_addr().unwrap();
        let good = target
            .write(&connection, FIRST_PSN, 0, 37)
            .sealed(from, target.address());
        for len in 0..good.len() {
            target
                .attacker
                .send_to(&good[..len], target.address())
                .unwrap();
        }
        // Over IPv4, the last bytes of one truncated packet in 65536 match an ICRC of the bytes before them. The length
        // of that packet is still invalid.
        for answer in target.answers() {
            assert_eq!(answer, said(FIRST_PSN, NAK_INVALID));
        }
        target.assert_untouched(&"truncations");
    });
}

#[test]
fn datagrams_of_every_size_do_no_harm() {
    everywhere(|target| {
        let connection = target.connect();
        let largest = if target.address().is_ipv4() {
            65_507
        } else {
            65_527
        };
        for len in [
            0, 1, 11, 12, 15, 16, 4095, 4096, 4097, 4172, 9000, 30_000, largest,
        ] {
            let zeros = vec![0; len];
            // The MTU of the loopback interface may be too small for the largest datagrams without fragmentation.
            let _ = target.attacker.send_to(&zeros, target.address());
            if len == 0 {
                continue;
            }
            let long = target
                .write(&connection, FIRST_PSN, 0, 16)
                .raw(&vec![0xbb; len.min(60_000)]);
            let from = target.attacker.local_addr().unwrap();
            let _ = target
                .attacker
                .send_to(&long.sealed(from, target.address()), target.address());
        }
        let answers = target.answers();
        assert!(
            answers
                .iter()
                .all(|answer| answer.syndrome == Some(NAK_INVALID))
        );
        assert_eq!(connection.pair.state() == State::Error, !answers.is_empty());
        target.assert_untouched(&"sizes");
    });
}

#[test]
fn replies_go_to_the_peer_of_the_connection_only() {
    everywhere(|target| {
        let other = crate::attacker::socket(target.attacker.local_addr().unwrap().ip());
        let connection = target.connect();
        // The packet has the peer's address and another source port, as packets of network cards do.
        let packet = target.read(&connection, FIRST_PSN, 0, 16);
        send(&other, &packet, target.address());
        for answer in target.answers() {
            assert_eq!(answer.qpn, QPN);
        }
        other.set_nonblocking(true).unwrap();
        assert!(
            other.recv(&mut [0; 64]).is_err(),
            "nothing went to the sender"
        );
    });
}

fn write(to: &Connection, addr: u64, rkey: u32, len: u32, payload: usize) -> Bytes {
    Bytes::new(opcode::WRITE_ONLY, to.qpn, FIRST_PSN)
        .reth(addr, rkey, len)
        .payload(&vec![0xbb; payload])
}

fn read(to: &Connection, addr: u64, rkey: u32, len: u32) -> Bytes {
    Bytes::new(opcode::READ_REQUEST, to.qpn, FIRST_PSN).reth(addr, rkey, len)
}

fn atomic(to: &Connection, addr: u64, rkey: u32) -> Bytes {
    Bytes::new(opcode::FETCH_ADD, to.qpn, FIRST_PSN).atomic(addr, rkey, 1, 0)
}

#[test]
fn all_queue_pairs_of_a_device_share_its_reorder_buffer() {
    // Headers, payload and ICRC of a WRITE, and the fixed overhead of each packet in the buffer.
    const COUNTED: usize = 12 + 16 + MTU + 4 + 64;
    for addresses in [V4, V6] {
        let target = Target::with(addresses, |options| options.reorder_buffer(4 * COUNTED));
        let Some(target) = target else {
            continue;
        };
        let connections = [(); 2].map(|()| target.connect_with(LossRecovery::Selective));
        for connection in &connections {
            for ahead in 1..4 {
                target.send(&target.write(connection, FIRST_PSN + ahead, 0, MTU));
            }
        }
        target.answers();
        // The first connection keeps two packets after the gap, the second only one.
        for (connection, kept) in connections.iter().zip([2, 1]).rev() {
            target.send(&target.write(connection, FIRST_PSN, 0, MTU));
            let last = target.answers().pop();
            assert_eq!(last, Some(said(FIRST_PSN + kept, ACK)));
        }
    }
}

#[test]
fn a_flush_without_its_right_and_an_atomic_write_of_no_word_are_refused() {
    everywhere(|target| {
        let (addr, rkey) = (target.region.addr(), target.region.rkey().0);
        // These connections do not permit FLUSH.
        for feth in [0_u32, 1, 2, 3, 0x11, 0x31] {
            refused(
                target,
                |to| {
                    Bytes::new(opcode::FLUSH, to.qpn, FIRST_PSN)
                        .raw(&feth.to_be_bytes())
                        .reth(addr, rkey, 16)
                },
                NAK_INVALID,
            );
        }
        for (at, announced, sent) in [(4, 8, 8), (0, 16, 8), (0, 8, 4), (0, 8, 16), (0, 4, 4)] {
            refused(
                target,
                |to| {
                    Bytes::new(opcode::ATOMIC_WRITE, to.qpn, FIRST_PSN)
                        .reth(addr + at, rkey, announced)
                        .payload(&vec![0xbb; sent])
                },
                NAK_INVALID,
            );
        }
        refused(
            target,
            |to| {
                Bytes::new(opcode::ATOMIC_WRITE, to.qpn, FIRST_PSN)
                    .reth(addr, rkey ^ 1, 8)
                    .payload(&[0xbb; 8])
            },
            NAK_ACCESS,
        );
    });
}
