//! Packets without a UDP checksum, as network cards and the kernel's rxe send them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use gdr_rdma::{Integrity, MemoryRegion, SendRequest, WrId};
use gdr_roce::wire::icrc::{self, Ip, Path};
use rustix::net::{AddressFamily, SocketType, ipproto, socket};

use crate::failures::foreign_write;
use crate::fixture::*;

/// What Linux writes for an unconnected socket that forbids fragmentation.
const WRITTEN: u16 = 0;
/// Another one.
const CLAIMED: u16 = 0x718c;
const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// Whether this process may have raw sockets; says loudly where not.
fn may_have_raw_sockets() -> bool {
    match socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::UDP)) {
        Ok(_) => true,
        Err(error) => {
            eprintln!("SKIPPED: no raw socket (CAP_NET_RAW): {error}");
            false
        }
    }
}

/// A socket at the peer's address.
fn sender(checksum: bool) -> UdpSocket {
    let socket = UdpSocket::bind((HERE, 0)).unwrap();
    for (level, option, value) in [
        (libc::SOL_SOCKET, libc::SO_NO_CHECK, i32::from(!checksum)),
        (
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_DO,
        ),
    ] {
        // SAFETY: both options take an int, which lives for the call.
        let answer = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                level,
                option,
                (&raw const value).cast(),
                size_of_val(&value) as libc::socklen_t,
            )
        };
        assert_eq!(answer, 0, "setsockopt");
    }
    socket
}

/// Sends `packet` with the ICRC of a packet with this identification.
fn send(from: &UdpSocket, to: SocketAddr, identification: u16, mut packet: Vec<u8>) {
    let path = Path {
        ip: Ip::V4 {
            src: HERE,
            dst: HERE,
            identification,
            dont_fragment: true,
        },
        src_port: from.local_addr().unwrap().port(),
        dst_port: to.port(),
    };
    icrc::seal(&path, &mut packet);
    assert_eq!(from.send_to(&packet, to).unwrap(), packet.len());
}

fn wait_until(what: impl Fn() -> bool) {
    let deadline = soon();
    while !what() {
        assert!(!deadline.has_passed());
        std::thread::yield_now();
    }
}

/// Two sides of which the second's engine is left to its own thread, and memory of the second.
fn target() -> (Side, Side, MemoryRegion) {
    let (a, b) = connected(IpAddr::V4(HERE), IpAddr::V4(HERE)).unwrap();
    let target = b.memory(64);
    fill(&target, 6);
    (a, b, target)
}

#[test]
fn a_packet_without_a_checksum_is_placed_where_all_of_its_icrc_holds() {
    let (a, b, target) = target();
    let packet = foreign_write(&a, &b, &target);
    send(&sender(false), b.device.address(), WRITTEN, packet);
    wait_until(|| bytes(&target)[..8] == [0xee; 8]);
    assert_eq!(b.device.counters().packets_received, 1, "once, not twice");
}

#[test]
fn half_an_icrc_is_not_enough_for_a_packet_without_a_checksum() {
    if !may_have_raw_sockets() {
        return;
    }
    let (a, b, target) = target();
    assert_eq!(b.device.integrity(), Integrity::IcrcOrChecksum);
    let before = bytes(&target);
    let packet = foreign_write(&a, &b, &target);
    // One identification explains this ICRC, but not the one that the packet has.
    send(&sender(false), b.device.address(), CLAIMED, packet.clone());
    wait_until(|| b.device.counters().icrc_mismatches == 1);
    assert!(bytes(&target) == before);
    // The kernel has checked this one, and nobody knows what identification it has.
    send(&sender(true), b.device.address(), CLAIMED, packet);
    wait_until(|| bytes(&target)[..8] == [0xee; 8]);
    let counters = b.device.counters();
    assert_eq!((counters.packets_received, counters.malformed), (2, 0));
}

#[test]
fn peers_with_and_without_checksums_are_served_side_by_side() {
    let (a, b, target) = target();
    let psn = a.pair.endpoint().psn.get();
    let (card, to) = (sender(false), b.device.address());
    let mut next = psn;
    for round in 0..200_u32 {
        let mut packet = foreign_write(&a, &b, &target);
        packet[8..12].copy_from_slice(&(next & 0xff_ffff).to_be_bytes());
        packet[28..36].copy_from_slice(&u64::from(round).to_be_bytes());
        send(&card, to, WRITTEN, packet);
        wait_until(|| bytes(&target)[..8] == u64::from(round).to_be_bytes());
        next = next.wrapping_add(1);
    }
    // The other way, with checksums, while the card's packets are still expected.
    let there = a.memory(64);
    let write = SendRequest::write(WrId(1), there.remote().at(0)).inline(b"the other way");
    b.pair.post_send(write).unwrap();
    b.done();
    assert_eq!(&bytes(&there)[..13], b"the other way");
    assert_eq!(b.device.counters().icrc_mismatches, 0);
}
