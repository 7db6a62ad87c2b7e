//! Packets without a UDP checksum, as network cards and the Linux kernel's rxe send them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use gdr_rdma::{Integrity, MemoryRegion, SendRequest, WrId};
use gdr_roce::wire::icrc::{self, Ip, Path};
use rustix::net::{AddressFamily, SocketType, ipproto, socket};

use crate::failures::foreign_write;
use crate::fixture::*;

/// The IPv4 identification that Linux writes for an unconnected socket that forbids fragmentation.
const WRITTEN: u16 = 0;
/// An identification that Linux does not write.
const CLAIMED: u16 = 0x718c;
const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// Returns whether this process may open raw sockets; reports the test as skipped if not.
fn may_have_raw_sockets() -> bool {
    match socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::UDP)) {
        Ok(_) => true,
        Err(error) => {
            skip::skip(format_args!("no raw socket (CAP_NET_RAW): {error}"));
            false
        }
    }
}

fn set_option(socket: &UdpSocket, (level, option, value): (i32, i32, i32)) {
    // SAFETY: the options that these tests set take an int, which lives for the call.
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

/// Returns a socket at the peer's address.
fn sender(checksum: bool) -> UdpSocket {
    let socket = UdpSocket::bind((HERE, 0)).unwrap();
    set_option(
        &socket,
        (libc::SOL_SOCKET, libc::SO_NO_CHECK, i32::from(!checksum)),
    );
    let never = (
        libc::IPPROTO_IP,
        libc::IP_MTU_DISCOVER,
        libc::IP_PMTUDISC_DO,
    );
    set_option(&socket, never);
    socket
}

/// Sends `packet` with an ICRC that covers this IPv4 identification.
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

/// Returns a WRITE of `value` from a peer that has already sent `before` packets.
fn write(peer: &Side, to: &Side, target: &MemoryRegion, before: u32, value: u64) -> Vec<u8> {
    let mut packet = foreign_write(peer, to, target);
    let psn = peer.pair.endpoint().psn.wrapping_add(before);
    packet[8..12].copy_from_slice(&psn.get().to_be_bytes());
    packet[28..36].copy_from_slice(&value.to_be_bytes());
    packet
}

fn holds(target: &MemoryRegion, value: u64) -> bool {
    bytes(target)[..8] == value.to_be_bytes()
}

/// Returns two connected sides and memory of the second, whose engine runs on its own thread.
fn sides_with_a_card() -> (Side, Side, MemoryRegion) {
    let side = || Side::soft(IpAddr::V4(HERE)).unwrap();
    let (a, b) = (side(), side());
    connect_to_card(&a, &b);
    let target = b.memory(64);
    (a, b, target)
}

#[test]
fn a_packet_without_a_checksum_is_accepted_if_its_whole_icrc_matches() {
    let (a, b, target) = sides_with_a_card();
    let card = sender(false);
    for n in 0..200 {
        let packet = write(&a, &b, &target, n, 1 + u64::from(n));
        send(&card, b.device.address(), WRITTEN, packet);
        wait_until(|| holds(&target, 1 + u64::from(n)));
    }
    assert_eq!(b.device.counters().icrc_mismatches, 0);
}

#[test]
fn a_packet_without_a_checksum_is_dropped_if_half_of_its_icrc_matches() {
    if !may_have_raw_sockets() {
        return;
    }
    let (a, b, target) = sides_with_a_card();
    assert_eq!(b.device.integrity(), Integrity::IcrcOrChecksum);
    let packet = write(&a, &b, &target, 0, 1);
    // The ICRC covers an identification that the packet does not carry.
    send(&sender(false), b.device.address(), CLAIMED, packet.clone());
    wait_until(|| b.device.counters().icrc_mismatches == 1);
    assert!(holds(&target, 0));
    // The kernel has verified the UDP checksum, so the unknown identification does not matter.
    send(&sender(true), b.device.address(), CLAIMED, packet);
    wait_until(|| holds(&target, 1));
}

#[test]
fn no_packet_is_received_twice() {
    let (a, b, target) = sides_with_a_card();
    for (n, checksum) in [(0, false), (1, false), (2, true)] {
        let packet = write(&a, &b, &target, n, 1 + u64::from(n));
        send(&sender(checksum), b.device.address(), WRITTEN, packet);
        wait_until(|| holds(&target, 1 + u64::from(n)));
    }
    let counters = b.device.counters();
    assert_eq!((counters.packets_received, counters.malformed), (3, 0));
}

#[test]
fn a_peer_that_sets_some_checksums_is_served_when_it_retransmits() {
    let (a, b, target) = sides_with_a_card();
    for (n, checksum) in [(0, true), (1, false), (2, true), (3, false)] {
        let (sender, value) = (sender(checksum), 1 + u64::from(n));
        wait_until(|| {
            let packet = write(&a, &b, &target, n, value);
            send(&sender, b.device.address(), WRITTEN, packet);
            holds(&target, value)
        });
    }
}

#[test]
fn peers_with_and_without_checksums_are_served_side_by_side() {
    let (a, b, _) = sides_with_a_card();
    let there = a.memory(64);
    let write = SendRequest::write(WrId(1), there.remote().at(0)).inline(b"the other way");
    b.pair.post_send(write).unwrap();
    b.done();
    assert_eq!(&bytes(&there)[..13], b"the other way");
}

#[test]
fn a_datagram_of_a_stranger_without_a_checksum_never_reaches_the_device() {
    let Some((a, b)) = sides() else { return };
    let stranger = UdpSocket::bind(("127.0.0.3", 0)).unwrap();
    stranger.send_to(&[], b.device.address()).unwrap();
    wait_until(|| b.device.counters().kernel_drops == 1);
    assert_eq!(b.device.counters().packets_received, 0);
    let target = b.memory(64);
    for n in 0..20_u64 {
        let write = SendRequest::write(WrId(n), target.remote().at(0)).inline(&n.to_be_bytes());
        a.pair.post_send(write).unwrap();
        a.done();
        assert!(holds(&target, n));
    }
}

#[test]
fn ipv6_works_with_every_icrc_checked() {
    let Some((a, b)) = connected(V6, V6) else {
        return;
    };
    assert_eq!(a.device.integrity(), Integrity::Icrc);
    let v4 = device(FIRST).map(|device| device.integrity());
    assert_ne!(v4, Some(Integrity::Icrc), "IPv4 is never as good");
    let (source, target) = (a.memory(1 << 20), b.memory(1 << 20));
    let sent = fill(&source, 10);
    let request = SendRequest::write(WrId(0), target.remote().at(0))
        .segment(source.segment(0, 1 << 20).unwrap());
    a.pair.post_send(request).unwrap();
    a.done();
    assert!(bytes(&target) == sent);
    assert_eq!(b.device.counters().icrc_mismatches, 0);
    // Over shared memory, up to 64 packets are merged into one.
    assert!(b.device.counters().packets_received >= 4);
}

#[test]
fn ipv6_datagrams_without_a_checksum_arrive() {
    let Some(b) = Side::soft(V6) else { return };
    // The kernel's filter accepts datagrams from the address of any peer.
    b.pair.to_rtr(&b.pair.endpoint(), &options()).unwrap();
    let card = UdpSocket::bind((V6, 0)).unwrap();
    set_option(&card, (libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_TX, 1));
    card.send_to(b"no packet", b.device.address()).unwrap();
    wait_until(|| b.device.counters().malformed == 1);
}
