//! Datagrams as they come from a socket.

#![no_main]

use gdr_roce::wire::{Headers, Packet, icrc, padding};
use libfuzzer_sys::fuzz_target;
use std::net::Ipv6Addr;

fuzz_target!(|bytes: &[u8]| {
    let ip = icrc::Ip::V6 {
        src: Ipv6Addr::LOCALHOST,
        dst: Ipv6Addr::LOCALHOST,
    };
    let path = icrc::Path {
        ip,
        src_port: 0xc000,
        dst_port: 4791,
    };
    let mut sealed = bytes.to_vec();
    icrc::seal(&path, &mut sealed);
    assert_eq!(icrc::matches(&path, &sealed), bytes.len() >= icrc::LEN);

    let Ok(packet) = Packet::new(bytes) else {
        return;
    };
    let headers = Headers::parse(&packet);
    let payload = packet.payload();
    let mut again = vec![0; headers.datagram_len(payload.len())];
    let at = headers.emit(payload.len(), &mut again);
    assert_eq!(at, headers.buffer_len());
    again[at..at + payload.len()].copy_from_slice(payload);
    assert!(at + payload.len() + usize::from(packet.bth().pad) + icrc::LEN == bytes.len());

    let second = Packet::new(&again).expect("what was read can be written");
    assert_eq!(second.payload(), payload);
    let mut expected = headers;
    expected.bth.pad = padding(payload.len()) as u8;
    assert_eq!(Headers::parse(&second), expected);
});
