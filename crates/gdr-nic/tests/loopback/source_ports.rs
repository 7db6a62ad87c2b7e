//! Connections with source ports of their own.

use std::collections::HashMap;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use gdr_rdma::{
    Endpoint, LossRecovery, Psn, Qpn, QueuePair, SendRequest, SoftOptions, SourcePort, WrId,
};

use crate::fixture::*;

/// The first source port that RoCE v2 recommends.
const FIRST_PORT: u16 = 0xc000;

fn side(address: IpAddr, source_port: SourcePort, shards: usize) -> Option<Side> {
    let options = SoftOptions::new(address).port(0).shards(shards);
    let device = device_with(options.source_ports(source_port), address)?;
    Some(Side::on(device))
}

fn pairs(side: &Side, count: usize) -> Vec<QueuePair> {
    (0..count).map(|_| side.another()).collect()
}

#[test]
fn bytes_arrive_whatever_the_ports_and_the_shards_of_both_ends() {
    const PAIRS: usize = 6;
    for (address, other) in [(FIRST, SECOND), (V6, V6)] {
        for (source_port, shards) in [
            (SourcePort::Any, [1, 1]),
            (SourcePort::Any, [1, 4]),
            (SourcePort::Any, [4, 3]),
            (SourcePort::OfAddress, [2, 1]),
        ] {
            let near = side(address, SourcePort::Any, shards[0]);
            let far = side(other, source_port, shards[1]);
            let (Some(near), Some(far)) = (near, far) else {
                continue;
            };
            let ends = (pairs(&near, PAIRS), pairs(&far, PAIRS));
            assert_eq!(ends.0[0].endpoint().source_port, SourcePort::Any);
            assert_eq!(ends.1[0].endpoint().source_port, source_port);
            let len = 100_000;
            let source = near.memory(len);
            let sent = fill(&source, 3);
            let whole = || source.segment(0, len as u64).unwrap();
            for (n, (a, b)) in ends.0.iter().zip(&ends.1).enumerate() {
                a.connect(&b.endpoint(), &options()).unwrap();
                b.connect(&a.endpoint(), &options()).unwrap();
                let target = far.memory(len);
                let back = near.memory(len);
                let to = target.remote().at(0);
                let write = SendRequest::write(WrId(n as u64), to).segment(whole());
                let read = SendRequest::read(WrId(n as u64), to);
                let read = read.segment(back.segment(0, len as u64).unwrap());
                a.post_sends([write, read]).unwrap();
                near.done();
                near.done();
                assert!(bytes(&target) == sent && bytes(&back) == sent);
            }
            for counters in [near.device.counters(), far.device.counters()] {
                assert_eq!(counters.unknown_queue_pair, 0, "none was misdirected");
                assert_eq!(counters.wrong_source, 0, "none came from another sender");
            }
        }
    }
}

/// Returns the source port of a packet to each of these queue pairs, as received by a peer that only listens.
fn ports_to(side: &Side, peers: &[u32]) -> Vec<u16> {
    let listener = UdpSocket::bind((SECOND, 0)).unwrap();
    let limit = Some(Duration::from_secs(60));
    listener.set_read_timeout(limit).unwrap();
    let address = listener.local_addr().unwrap();
    let pairs = pairs(side, peers.len());
    for (pair, qpn) in pairs.iter().zip(peers) {
        let peer = Endpoint {
            address,
            qpn: Qpn::new(*qpn),
            psn: Psn::new(0),
            lid: None,
            source_port: SourcePort::OfAddress,
            loss_recovery: LossRecovery::GoBackN,
        };
        pair.connect(&peer, &options()).unwrap();
        let send = SendRequest::send(WrId(0)).inline(b"no receive");
        pair.post_send(send).unwrap();
    }
    let mut ports = HashMap::new();
    while ports.len() < peers.len() {
        let mut packet = [0; 100];
        let (_, from) = listener.recv_from(&mut packet).unwrap();
        let qpn = u32::from_be_bytes([0, packet[5], packet[6], packet[7]]);
        // A retransmission comes from the same port.
        assert_eq!(*ports.entry(qpn).or_insert(from.port()), from.port());
    }
    peers.iter().map(|qpn| ports[qpn]).collect()
}

#[test]
fn queue_pairs_of_two_shards_of_a_peer_get_packets_from_two_ports() {
    let near = side(FIRST, SourcePort::Any, 1).unwrap();
    // Two queue pairs of the first shard with even numbers, one with an odd number, and one of the second shard.
    let ports = ports_to(&near, &[0x100, 0x102, 0x101, 0x8100]);
    assert!(ports.iter().all(|port| *port >= FIRST_PORT), "{ports:?}");
    assert_eq!(ports[0], ports[1]);
    assert!(ports[0] != ports[2] && ports[2] != ports[3] && ports[0] != ports[3]);
}

#[test]
fn a_loopback_device_sends_from_its_address_by_default() {
    let near = Side::soft(FIRST).unwrap();
    let own = near.device.address().port();
    assert_eq!(ports_to(&near, &[0x100, 0x8100]), [own, own]);
    assert_eq!(near.pair.endpoint().source_port, SourcePort::OfAddress);
}
