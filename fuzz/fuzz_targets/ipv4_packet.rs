//! Packets with their IPv4 headers, as they come from a raw socket.

#![no_main]

use gdr_roce::wire::{Ipv4Datagram, Packet, icrc};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(read) = Ipv4Datagram::new(bytes) else {
        return;
    };
    assert_eq!(read.payload, &bytes[Ipv4Datagram::HEADERS..]);
    let _ = Packet::new(read.payload);

    let mut sealed = bytes.to_vec();
    icrc::seal(&read.path, &mut sealed[Ipv4Datagram::HEADERS..]);
    let again = Ipv4Datagram::new(&sealed).expect("the headers are the same");
    assert_eq!(again.path, read.path);
    let has_icrc = read.payload.len() >= icrc::LEN;
    assert_eq!(icrc::matches(&again.path, again.payload), has_icrc);

    // Any other identification is another packet's.
    let mut other = sealed.clone();
    other[5] ^= 1;
    let other = Ipv4Datagram::new(&other).expect("any identification will do");
    assert!(!icrc::matches(&other.path, other.payload));
});
