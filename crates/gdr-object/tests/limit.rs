//! The limit on the rate at which an owner sends.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

mod fixture;

use std::num::NonZeroU64;
use std::time::Instant;

use gdr_object::{Link, LinkOptions, ObjectServer, Place, Security, ServerOptions};
use gdr_rdma::{Device, SoftOptions, Wires};

use fixture::{limit, name, row};

const LEN: usize = 1 << 20;
const READERS: u64 = 3;
const BYTES_PER_SECOND: u64 = 8 << 20;

/// The burst that may leave at once, and a packet of each shard.
const AT_ONCE: u64 = 2 * (128 << 10);

/// Checks that concurrent readers get the right bytes, and that the owner has not sent more than the limit permits in
/// the time that it took, however long that was.
fn readers_get_no_more_than(wires: Wires) {
    let device = |address: &str| {
        let options = SoftOptions::new(address.parse().unwrap());
        Device::soft_with(options.port(0).shards(2).wires(wires)).unwrap()
    };
    let options = ServerOptions::new(Security::Loopback)
        .device(&device("127.0.0.1"))
        .limit(NonZeroU64::new(BYTES_PER_SECOND).unwrap());
    let server = ObjectServer::bind("127.0.0.1:0".parse().unwrap(), options).unwrap();
    let object = server
        .create(name("w"), row(LEN as u64), &Place::host())
        .unwrap();
    let content: Vec<u8> = (0..LEN).map(|at| (at / 7) as u8).collect();
    object.publish(&content, limit()).unwrap();
    let (before, began) = (server.device().counters(), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                let options = LinkOptions::new(Security::Loopback).device(&device("127.0.0.1"));
                let link = Link::connect(server.address(), options, limit()).unwrap();
                let remote = link.open(name("w"), limit()).unwrap();
                let (_, bytes) = remote.get(limit()).unwrap();
                assert!(bytes == content);
            });
        }
    });
    let took = began.elapsed().as_nanos();
    let after = server.device().counters();
    let sent = after.bytes_sent - before.bytes_sent;
    assert!(sent >= READERS * LEN as u64, "{sent}");
    let due = u128::from(BYTES_PER_SECOND) * took / 1_000_000_000;
    assert!(
        u128::from(sent) <= due + u128::from(AT_ONCE),
        "{sent} bytes left in {took} ns"
    );
    assert_eq!(after.sent_by_memory > 0, wires == Wires::All);
}

#[test]
fn readers_over_udp_get_no_more_than_the_limit_together() {
    readers_get_no_more_than(Wires::Udp);
}

#[test]
fn readers_of_this_host_get_no_more_than_the_limit_together() {
    readers_get_no_more_than(Wires::All);
}
