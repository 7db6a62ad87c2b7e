//! Management datagrams as they come from a socket, to a manager that listens and has asked.

#![no_main]

use std::net::IpAddr;

use gdr_roce::Time;
use gdr_cm::{IpAddresses, MAD_LEN, Mad, Manager, Message, ServiceId, SidrReq};
use libfuzzer_sys::fuzz_target;

/// What each datagram begins with: version, class and method, as almost all bytes are refused by them.
const KIND: [u8; 4] = [1, 7, 2, 3];

fuzz_target!(|bytes: &[u8]| {
    let peer = IpAddr::from([127, 0, 0, 1]);
    let mut now = Time::EPOCH;
    let mut manager = Manager::new(1, 0);
    manager.listen(ServiceId::of_port(0x0106, 7174));
    for bytes in bytes.chunks(MAD_LEN) {
        let mut datagram = [0; MAD_LEN];
        datagram[..bytes.len()].copy_from_slice(bytes);
        datagram[..4].copy_from_slice(&KIND);
        let mad = Mad::of(&datagram).expect("of the right kind");
        if let Ok(message) = Message::parse(&mad) {
            assert_eq!(
                Message::parse(&message.emit(mad.transaction())),
                Ok(message)
            );
            if let Message::SidrReq(SidrReq { private_data, .. }) = message
                && let Some(addresses) = IpAddresses::parse(&private_data)
            {
                assert_eq!(IpAddresses::parse(&addresses.emit()), Some(addresses));
            }
            if let Message::SidrReq(req) = message {
                manager.resolve(now, peer, &req);
            }
        }
        manager.receive(now, peer, &mad);
        let _answer = Manager::answer_to_stray(&mad);
        while manager.poll_event().is_some() {}
        while let Some((to, mad)) = manager.poll_transmit() {
            assert_eq!(to, peer);
            Message::parse(&mad).expect("what is sent can be read");
        }
        if let Some(deadline) = manager.deadline() {
            now = now.max(deadline);
            manager.poll(now);
        }
    }
});
