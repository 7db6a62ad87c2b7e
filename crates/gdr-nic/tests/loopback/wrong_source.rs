//! Datagrams that do not come from the peer.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use gdr_rdma::{Endpoint, MemoryRegion, Psn, Qpn, SendRequest, SoftOptions, SourcePort, WrId};
use gdr_roce::wire::icrc::{self, Ip, Path};

use crate::failures::foreign_write;
use crate::fixture::*;

/// Returns a valid WRITE of the peer, with an ICRC for the source address `from`.
fn good_write(a: &Side, b: &Side, target: &MemoryRegion, from: SocketAddr) -> Vec<u8> {
    let to = b.device.address();
    let mut packet = foreign_write(a, b, target);
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (from.ip(), to.ip()) else {
        panic!("IPv4 addresses");
    };
    let path = Path {
        ip: Ip::V4 {
            src,
            dst,
            identification: 0,
            dont_fragment: true,
        },
        src_port: from.port(),
        dst_port: to.port(),
    };
    icrc::seal(&path, &mut packet);
    packet
}

/// Checks that the connection still works.
fn works(a: &Side, target: &MemoryRegion) {
    let write = SendRequest::write(WrId(0), target.remote().at(0)).inline(b"works");
    a.pair.post_send(write).unwrap();
    a.done();
    assert_eq!(&bytes(target)[..5], b"works");
}

#[test]
fn datagrams_of_other_addresses_are_dropped_by_the_kernel() {
    let Some((a, b)) = sides() else { return };
    let target = b.memory(64);
    let before = fill(&target, 3);
    let stranger = UdpSocket::bind(("127.0.0.3", 0)).unwrap();
    let to = b.device.address();
    for len in [0, 1, 11, 16, 100, 5000] {
        stranger.send_to(&vec![0x5a; len], to).unwrap();
    }
    let packet = good_write(&a, &b, &target, stranger.local_addr().unwrap());
    stranger.send_to(&packet, to).unwrap();
    wait_until(|| b.device.counters().kernel_drops == 7);
    assert_eq!(b.device.counters().packets_received, 0);
    assert!(bytes(&target) == before);
    works(&a, &target);
}

#[test]
fn a_packet_from_another_port_than_the_peers_is_dropped_whatever_its_icrc() {
    let Some((a, b)) = sides() else { return };
    let target = b.memory(64);
    let before = fill(&target, 3);
    let neighbour = UdpSocket::bind((FIRST, 0)).unwrap();
    let good = good_write(&a, &b, &target, neighbour.local_addr().unwrap());
    let damaged = foreign_write(&a, &b, &target);
    for packet in [good, damaged] {
        neighbour.send_to(&packet, b.device.address()).unwrap();
    }
    wait_until(|| b.device.counters().wrong_source == 2);
    assert_eq!(b.device.counters().icrc_mismatches, 0);
    assert!(bytes(&target) == before);
    works(&a, &target);
}

#[test]
fn a_former_peer_is_a_stranger_to_the_kernel() {
    let Some((a, mut b)) = sides() else { return };
    let sender = UdpSocket::bind((FIRST, 0)).unwrap();
    sender.send_to(&[1], b.device.address()).unwrap();
    wait_until(|| b.device.counters().malformed == 1);
    b.pair = b.another();
    sender.send_to(&[1], b.device.address()).unwrap();
    wait_until(|| b.device.counters().kernel_drops == 1);
    assert_eq!(b.device.counters().malformed, 1);
    drop(a);
}

#[test]
fn more_peers_than_the_kernel_lists_are_distinguished_from_strangers_by_the_device() {
    // The kernel's filter lists the peers of one shard, so each device has only one.
    let one = |address| {
        Side::on(device_with(SoftOptions::new(address).port(0).shards(1), address).unwrap())
    };
    let (a, b) = (one(FIRST), one(SECOND));
    connect(&a, &b, &options());
    let others: Vec<_> = (1..=16)
        .map(|n| {
            let pair = b.another();
            let peer = Endpoint {
                address: SocketAddr::from((Ipv4Addr::new(127, 0, 8, n), 4791)),
                qpn: Qpn::new(17),
                psn: Psn::new(0),
                lid: None,
                source_port: SourcePort::Any,
                loss_recovery: gdr_rdma::LossRecovery::GoBackN,
            };
            pair.to_rtr(&peer, &options()).unwrap();
            pair
        })
        .collect();
    let target = b.memory(64);
    let before = fill(&target, 3);
    let stranger = UdpSocket::bind(("127.0.0.3", 0)).unwrap();
    let packet = good_write(&a, &b, &target, stranger.local_addr().unwrap());
    stranger.send_to(&packet, b.device.address()).unwrap();
    wait_until(|| b.device.counters().wrong_source == 1);
    assert!(bytes(&target) == before);
    works(&a, &target);
    // The remaining peers fit in the list, so the kernel filters again.
    drop(others);
    stranger.send_to(&packet, b.device.address()).unwrap();
    wait_until(|| b.device.counters().kernel_drops == 1);
    works(&a, &target);
}
