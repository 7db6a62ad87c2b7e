//! A conforming device under test, and an attacker's socket at the address of its peer.
#![allow(dead_code)] // Each test binary uses a part of this module.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use gdr_rdma::{
    Access, Buffer, CompletionQueue, ConnectionOptions, Deadline, Device, Endpoint, Error,
    LossRecovery, MemoryRegion, Mtu, NicError, ProtectionDomain, Psn, Qpn, QueuePair,
    QueuePairOptions, SocketError, SoftOptions,
};

use crate::packet::{ACK, Bytes, Received, opcode};

/// Returns a deadline that only a stuck test reaches.
pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// The attacker's queue pair number and first PSN.
pub(crate) const QPN: u32 = 0x0a_77ac;
pub(crate) const FIRST_PSN: u32 = 0xff_fff0;

/// The length of the region that the peer may access, and of the guards on both sides of it.
pub(crate) const LEN: usize = 4096;
const GUARD: usize = 4096;
const SECRET: u8 = 0x5e;

pub(crate) const MTU: usize = 1024;

/// The addresses of target and attacker, which no other test uses.
pub(crate) const V4: (IpAddr, IpAddr) = (
    IpAddr::V4(Ipv4Addr::new(127, 81, 0, 1)),
    IpAddr::V4(Ipv4Addr::new(127, 81, 0, 2)),
);
pub(crate) const V6: (IpAddr, IpAddr) = (
    IpAddr::V6(Ipv6Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
);

/// The device under test, with a registered region between two guards.
pub(crate) struct Target {
    pub(crate) device: Device,
    pub(crate) domain: ProtectionDomain,
    pub(crate) queue: CompletionQueue,
    pub(crate) region: MemoryRegion,
    buffer: Buffer,
    /// The socket of the attacker, at the address of the target's peer.
    pub(crate) attacker: UdpSocket,
    /// A connection on which the attacker conforms: an answer on it shows that earlier packets were processed.
    honest: Honest,
}

struct Honest {
    pair: QueuePair,
    region: MemoryRegion,
    next: std::cell::Cell<u32>,
}

/// A queue pair of the target that is connected to the attacker.
pub(crate) struct Connection {
    pub(crate) pair: QueuePair,
    pub(crate) qpn: u32,
}

impl Target {
    /// Opens the device. Returns `None` if this machine lacks the address; the test is then reported as skipped.
    pub(crate) fn new(addresses: (IpAddr, IpAddr)) -> Option<Self> {
        Self::with(addresses, |options| options)
    }

    /// Like [`Target::new`], with further options of the device.
    pub(crate) fn with(
        (here, there): (IpAddr, IpAddr),
        set: impl Fn(SoftOptions) -> SoftOptions,
    ) -> Option<Self> {
        // With one shard, an answer on the honest connection follows all answers to earlier packets.
        let device = match Device::soft_with(set(SoftOptions::new(here).port(0).shards(1))) {
            Ok(device) => device,
            Err(Error::Nic(NicError::Socket(SocketError::AddressNotLocal { .. }))) => {
                skip::skip(format_args!("this machine has no {here}"));
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let attacker = socket(there);
        let domain = device.protection_domain();
        let queue = device.completion_queue(1 << 16);
        let buffer = Buffer::host(LEN + 2 * GUARD).unwrap();
        buffer.write_at(0, &[SECRET; LEN + 2 * GUARD]).unwrap();
        let region = domain
            .register_range(&buffer, GUARD as u64, LEN as u64, Access::all())
            .unwrap();
        let own = Buffer::host(64).unwrap();
        let honest = Honest {
            pair: domain.queue_pair(&QueuePairOptions::new(&queue)).unwrap(),
            region: domain.register(&own, Access::all()).unwrap(),
            next: std::cell::Cell::new(FIRST_PSN),
        };
        let target = Self {
            honest,
            device,
            domain,
            queue,
            region,
            buffer,
            attacker,
        };
        target.connect_pair(&target.honest.pair, QPN + 1, LossRecovery::GoBackN);
        Some(target)
    }

    fn connect_pair(&self, pair: &QueuePair, qpn: u32, loss_recovery: LossRecovery) {
        let peer = Endpoint {
            address: self.attacker.local_addr().unwrap(),
            qpn: Qpn::new(qpn),
            psn: Psn::new(FIRST_PSN),
            loss_recovery,
            ..pair.endpoint()
        };
        let options = ConnectionOptions {
            max_dest_rd_atomic: 4,
            max_rd_atomic: 4,
            ..ConnectionOptions::new(Mtu::B1024)
        };
        pair.connect(&peer, &options).unwrap();
    }

    /// Opens a new connection.
    pub(crate) fn connect(&self) -> Connection {
        self.connect_with(LossRecovery::GoBackN)
    }

    /// Like [`Target::connect`], with a peer that announces this method of loss recovery.
    pub(crate) fn connect_with(&self, recovery: LossRecovery) -> Connection {
        let options = QueuePairOptions::new(&self.queue);
        let pair = self.domain.queue_pair(&options).unwrap();
        self.connect_pair(&pair, QPN, recovery);
        let qpn = pair.qpn().get();
        Connection { pair, qpn }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.device.address()
    }

    /// Sends a packet with a valid ICRC as the target's peer.
    pub(crate) fn send(&self, packet: &Bytes) {
        send(&self.attacker, packet, self.address());
    }

    /// Returns the target's answers to all packets sent so far.
    pub(crate) fn answers(&self) -> Vec<Received> {
        let psn = self.honest.next.get();
        self.honest.next.set((psn + 1) & 0xff_ffff);
        let probe = Bytes::new(opcode::WRITE_ONLY, self.honest.pair.qpn().get(), psn)
            .asking_for_ack()
            .reth(self.honest.region.addr(), self.honest.region.rkey().0, 4)
            .payload(&[1; 4]);
        self.send(&probe);
        let mut answers = Vec::new();
        loop {
            let answer = self.receive();
            if answer.qpn == QPN + 1 {
                assert_eq!((answer.psn, answer.syndrome), (psn, Some(ACK)));
                return answers;
            }
            answers.push(answer);
        }
    }

    /// Receives the target's next packet.
    pub(crate) fn receive(&self) -> Received {
        let mut datagram = [0; 9000];
        let (len, from) = self.attacker.recv_from(&mut datagram).unwrap();
        assert_eq!(from, self.address());
        Received::parse(&datagram[..len], from, self.attacker.local_addr().unwrap())
    }

    /// Checks that no byte of the region or its guards has changed.
    pub(crate) fn assert_untouched(&self, what: &dyn std::fmt::Debug) {
        let mut seen = [0; LEN + 2 * GUARD];
        self.buffer.read_at(0, &mut seen).unwrap();
        let changed = seen.iter().position(|byte| *byte != SECRET);
        assert_eq!(changed, None, "{what:?}");
    }

    /// Returns a valid WRITE of `len` bytes at `offset` of the region.
    pub(crate) fn write(&self, to: &Connection, psn: u32, offset: u64, len: usize) -> Bytes {
        Bytes::new(opcode::WRITE_ONLY, to.qpn, psn)
            .asking_for_ack()
            .reth(
                self.region.addr() + offset,
                self.region.rkey().0,
                len as u32,
            )
            .payload(&vec![0xbb; len])
    }

    /// Returns a READ request for `len` bytes at `offset` of the region.
    pub(crate) fn read(&self, to: &Connection, psn: u32, offset: u64, len: u32) -> Bytes {
        Bytes::new(opcode::READ_REQUEST, to.qpn, psn)
            .asking_for_ack()
            .reth(self.region.addr() + offset, self.region.rkey().0, len)
    }
}

/// Runs a test over IPv4 and IPv6.
pub(crate) fn everywhere(test: impl Fn(&Target)) {
    for addresses in [V4, V6] {
        if let Some(target) = Target::new(addresses) {
            test(&target);
        }
    }
}

/// Binds a socket at this address and a free port. It does not fragment, and a read times out after a minute.
pub(crate) fn socket(address: IpAddr) -> UdpSocket {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    if address.is_ipv4() {
        let value = libc::IP_PMTUDISC_DO;
        // SAFETY: the option takes an int, which lives for the call.
        let answer = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_IP,
                libc::IP_MTU_DISCOVER,
                (&raw const value).cast(),
                size_of_val(&value) as libc::socklen_t,
            )
        };
        assert_eq!(answer, 0, "setsockopt");
    }
    socket
}

/// Sends a packet with a valid ICRC from any socket.
pub(crate) fn send(from: &UdpSocket, packet: &Bytes, to: SocketAddr) {
    let datagram = packet.sealed(from.local_addr().unwrap(), to);
    assert_eq!(from.send_to(&datagram, to).unwrap(), datagram.len());
}
