//! The packets that leave this host, byte by byte: the IPv4 identification field of segmented sends, and the ICRC over
//! it.
//!
//! The packets go to a tun interface in a network namespace of the test, where the kernel must segment them in
//! software. The test needs CAP_NET_ADMIN and /dev/net/tun, and is reported as skipped without them.

use std::fs::File;
use std::io::{self, Read};
use std::mem;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread;

use gdr_rdma::{
    Access, AckTimeout, Buffer, ConnectionOptions, Device, Endpoint, Mtu, Psn, Qpn,
    QueuePairOptions, Remote, Rkey, SendRequest, SoftOptions, SourcePort, WrId,
};
use gdr_roce::wire::icrc::{self, Ip, Path};
use gdr_roce::wire::{Opcode, Packet};

const HERE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// The UDP port of both devices.
const PORT: u16 = 4791;
/// The length of an IPv4 and a UDP header.
const HEADERS: usize = 28;

/// Opens a point-to-point interface whose other end is this file: each read returns one packet.
fn tun() -> io::Result<File> {
    let ok = |status: libc::c_int| {
        if status < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    };
    // SAFETY: takes no pointers, and moves only this thread to a new namespace.
    ok(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
    let tun = File::options()
        .read(true)
        .write(true)
        .open("/dev/net/tun")?;
    let socket = UdpSocket::bind("0.0.0.0:0")?;

    let request = || -> libc::ifreq {
        // SAFETY: a C struct of integers, for which all zeros is a valid value.
        let mut request: libc::ifreq = unsafe { mem::zeroed() };
        request.ifr_name[..4].copy_from_slice(&b"gdr0".map(|byte| byte as libc::c_char));
        request
    };
    let address = |ip: Ipv4Addr| {
        // SAFETY: as above.
        let mut address: libc::sockaddr_in = unsafe { mem::zeroed() };
        address.sin_family = libc::AF_INET as libc::sa_family_t;
        address.sin_addr.s_addr = u32::from_ne_bytes(ip.octets());
        // SAFETY: both are plain C structs of 16 bytes that start with the address family.
        unsafe { mem::transmute::<libc::sockaddr_in, libc::sockaddr>(address) }
    };
    let mut create = request();
    create.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF takes an ifreq, which lives for the call.
    ok(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &mut create) })?;
    let (mut ours, mut theirs, mut mtu, mut up) = (request(), request(), request(), request());
    ours.ifr_ifru.ifru_addr = address(HERE);
    theirs.ifr_ifru.ifru_addr = address(THERE);
    mtu.ifr_ifru.ifru_mtu = 9000;
    up.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    for (call, argument) in [
        (libc::SIOCSIFADDR, &mut ours),
        (libc::SIOCSIFDSTADDR, &mut theirs),
        (libc::SIOCSIFMTU, &mut mtu),
        (libc::SIOCSIFFLAGS, &mut up),
    ] {
        // SAFETY: each takes an ifreq, which lives for the call.
        ok(unsafe { libc::ioctl(socket.as_raw_fd(), call as libc::Ioctl, argument) })?;
    }
    Ok(tun)
}

/// Returns whether a source port is the device's own, or one of RoCE v2's range for connections.
fn is_right(source_port: SourcePort, port: u16) -> bool {
    match source_port {
        SourcePort::OfAddress => port == PORT,
        SourcePort::Any => port >= 0xc000,
    }
}

/// Reads packets up to the last one of a WRITE; returns the identification of each and whether its ICRC is valid.
fn judge(tun: &mut File, source_port: SourcePort) -> Vec<(u16, bool)> {
    let mut seen = Vec::new();
    let mut bytes = [0; 9000];
    loop {
        let len = tun.read(&mut bytes).unwrap();
        let packet = &bytes[..len];
        let is_roce = len > HEADERS && packet[0] == 0x45 && packet[9] == 17;
        if !is_roce || packet[22..24] != PORT.to_be_bytes() {
            continue;
        }
        let from = u16::from_be_bytes([packet[20], packet[21]]);
        assert!(is_right(source_port, from), "{from}");
        let identification = u16::from_be_bytes([packet[4], packet[5]]);
        assert_eq!(packet[6] & 0x40, 0x40, "fragmentation is forbidden");
        let path = Path {
            ip: Ip::V4 {
                src: HERE,
                dst: THERE,
                identification,
                dont_fragment: true,
            },
            src_port: from,
            dst_port: PORT,
        };
        let datagram = &packet[HEADERS..];
        seen.push((identification, icrc::matches(&path, datagram)));
        let opcode = Packet::new(datagram).unwrap().opcode();
        if matches!(opcode, Opcode::WriteLast | Opcode::WriteOnly) {
            return seen;
        }
    }
}

fn scenario() {
    let mut tun = match tun() {
        Ok(tun) => tun,
        Err(error) => {
            skip::skip(format_args!(
                "no tun interface in a namespace of its own: {error}"
            ));
            return;
        }
    };
    for source_port in [SourcePort::Any, SourcePort::OfAddress] {
        let options = SoftOptions::new(IpAddr::V4(HERE)).source_ports(source_port);
        from_device(Device::soft_with(options).unwrap(), source_port, &mut tun);
    }
}

/// Sends from a device and checks the packets that leave.
fn from_device(device: Device, source_port: SourcePort, tun: &mut File) {
    assert_eq!(device.path_mtu(IpAddr::V4(THERE)).unwrap(), Mtu::B4096);
    let domain = device.protection_domain();
    let queue = device.completion_queue(16);
    let pair = domain.queue_pair(&QueuePairOptions::new(&queue)).unwrap();
    let peer = Endpoint {
        address: SocketAddr::from((THERE, PORT)),
        qpn: Qpn::new(99),
        psn: Psn::new(7),
        lid: None,
        source_port: SourcePort::Any,
        loss_recovery: gdr_rdma::LossRecovery::GoBackN,
    };
    let mut options = ConnectionOptions::new(Mtu::B1024);
    // The peer never answers, and no packet may be retransmitted.
    options.timeout = AckTimeout::NEVER;
    pair.connect(&peer, &options).unwrap();
    let source = domain
        .register(&Buffer::host(1 << 16).unwrap(), Access::empty())
        .unwrap();
    let remote = Remote {
        rkey: Rkey(1),
        addr: 0,
    };

    // A packet that is not segmented has 0, as Linux writes it for an unconnected socket that forbids fragmentation.
    let one = SendRequest::write(WrId(0), remote).segment(source.segment(0, 100).unwrap());
    pair.post_send(one).unwrap();
    assert_eq!(judge(tun, source_port), [(0, true)]);

    // Ten packets: the first is longer, so a segmented send ends after the second; a second send takes the other eight.
    let ten = SendRequest::write(WrId(1), remote).segment(source.segment(0, 10_000).unwrap());
    pair.post_send(ten).unwrap();
    let seen = judge(tun, source_port);
    let expected: Vec<_> = (0..2).chain(0..8).map(|id| (id, true)).collect();
    assert_eq!(seen, expected);
}

#[test]
fn the_icrc_covers_the_identification_that_linux_writes() {
    // The namespace belongs to the thread that created it, and so to this test alone.
    thread::spawn(scenario).join().unwrap();
}
