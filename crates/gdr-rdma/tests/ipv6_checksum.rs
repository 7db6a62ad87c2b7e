//! RoCE over IPv6 as rxe and network cards send it: with no UDP checksum.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

use std::io;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use gdr_rdma::{
    ConnectionOptions, Deadline, Device, Error, Mtu, NicError, QueuePairOptions, SoftOptions,
};

#[test]
fn datagrams_without_a_checksum_arrive() {
    let ip = IpAddr::V6(Ipv6Addr::LOCALHOST);
    let device = match Device::soft_with(SoftOptions::new(ip).port(0)) {
        Ok(device) => device,
        Err(Error::Nic(NicError::AddressNotLocal { .. })) => {
            skip::skip(format_args!("this machine has no {ip}"));
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let socket = UdpSocket::bind((ip, 0)).unwrap();
    let on: libc::c_int = 1;
    // SAFETY: the option takes an int, which lives for the call.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_UDP,
            libc::UDP_NO_CHECK6_TX,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    assert_eq!(answer, 0, "{}", io::Error::last_os_error());
    // The kernel lets in what comes from the address of a peer.
    let queue = device.completion_queue(1);
    let domain = device.protection_domain();
    let pair = domain.queue_pair(&QueuePairOptions::new(&queue)).unwrap();
    let options = ConnectionOptions::new(Mtu::B1024);
    pair.to_rtr(&pair.endpoint(), &options).unwrap();
    socket.send_to(b"no packet", device.address()).unwrap();
    let deadline = Deadline::after(Duration::from_secs(20));
    while device.counters().malformed == 0 {
        assert!(!deadline.has_passed(), "it was dropped");
        device.progress();
        thread::yield_now();
    }
}
