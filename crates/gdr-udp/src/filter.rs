//! Socket filters: the kernel drops packets that the device would discard anyway.
//!
//! Filters are classic BPF programs, which need no privilege. A socket's program runs before a datagram takes up
//! receive buffer space or wakes a thread.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use gdr_roce::Qpn;
use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_IND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_LDX,
    BPF_MSH, BPF_RET, BPF_W, sock_filter, sock_fprog,
};

use crate::qpn_range::QpnRange;
use crate::slot::{QPN_MASK, Slot};
use crate::socket_option;

/// Return values of a program: the number of bytes to keep. 0 drops the packet; 8 keep only the UDP header.
pub(crate) const DROP: u32 = 0;
const EMPTY: u32 = UDP_HEADER;
pub(crate) const KEEP: u32 = u32::MAX;
const UDP_HEADER: u32 = 8;

/// `SKF_NET_OFF` of linux/filter.h: offsets are relative to the IP header for every socket type.
const NET: u32 = 0xfff0_0000;
/// Offsets of the source address in IPv4 and IPv6 headers.
const V4_SOURCE: u32 = NET + 12;
const V6_SOURCE: u32 = NET + 8;
/// The maximum number of addresses in a program. The kernel runs the program for every packet, so it stays short.
const MOST_SENDERS: usize = 16;

/// The senders whose datagrams are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Senders {
    /// Any sender.
    Any,
    /// These addresses, and any sender for the queue pairs in `open`; at most [`MOST_SENDERS`] of each.
    Only {
        addresses: Vec<IpAddr>,
        open: Vec<Qpn>,
    },
}

/// Where the UDP header starts in the data that a program sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UdpHeader {
    /// At offset 0.
    First,
    /// After an IPv4 header, whose length is in register X.
    AfterIpv4,
}

impl UdpHeader {
    /// Loads the field at offset `at` of the UDP header.
    fn load(self, width: u32, at: u32) -> sock_filter {
        let mode = match self {
            Self::First => BPF_ABS,
            Self::AfterIpv4 => BPF_IND,
        };
        statement(BPF_LD | width | mode, at)
    }
}

impl Senders {
    /// Accepts no sender.
    pub(crate) const NONE: Self = Self::Only {
        addresses: Vec::new(),
        open: Vec::new(),
    };

    /// Lists these addresses and queue pairs, or accepts any sender if there are more than a program can list.
    pub(crate) fn of<'a>(
        addresses: impl ExactSizeIterator<Item = &'a IpAddr>,
        open: impl ExactSizeIterator<Item = &'a Qpn>,
    ) -> Self {
        if addresses.len() > MOST_SENDERS || open.len() > MOST_SENDERS {
            return Self::Any;
        }
        Self::Only {
            addresses: addresses.copied().collect(),
            open: open.copied().collect(),
        }
    }

    /// Returns the first part of a program, which drops datagrams from other senders.
    fn program(&self, udp: UdpHeader) -> Vec<sock_filter> {
        let mut program = Vec::new();
        let Self::Only { addresses, open } = self else {
            return program;
        };
        let for_open = program_of_open(open, udp);
        for (n, address) in addresses.iter().enumerate() {
            let (at, words) = match address {
                IpAddr::V4(v4) => (V4_SOURCE, vec![u32::from(*v4)]),
                IpAddr::V6(v6) => {
                    let bits = u128::from(*v6);
                    let word = |shift: u32| (bits >> shift) as u32;
                    (V6_SOURCE, [96, 64, 32, 0].map(word).to_vec())
                }
            };
            let len = words.len();
            // A device's addresses are all of one family, so each address takes the same number of instructions.
            let behind = 2 * len * (addresses.len() - 1 - n) + for_open.len();
            for (i, (word, offset)) in words.into_iter().zip((at..).step_by(4)).enumerate() {
                let rest = 2 * (len - 1 - i);
                // A match on the last word jumps past the rest of the list and the drop. With 16 IPv6 addresses and 16
                // queue pairs the list has 141 instructions, so every jump fits in 8 bits.
                let yes = if rest == 0 { behind + 1 } else { 0 };
                program.push(statement(BPF_LD | BPF_W | BPF_ABS, offset));
                program.push(if_equal(word, yes as u8, rest as u8));
            }
        }
        program.extend(for_open);
        program.push(statement(BPF_RET | BPF_K, DROP));
        program
    }
}

/// Returns instructions that skip the drop after them if the packet is for one of these queue pairs. A packet too short
/// to have a destination is dropped.
fn program_of_open(open: &[Qpn], udp: UdpHeader) -> Vec<sock_filter> {
    if open.is_empty() {
        return Vec::new();
    }
    let mut program = vec![
        udp.load(BPF_W, UDP_HEADER + Slot::OFFSET),
        statement(BPF_ALU | BPF_AND | BPF_K, QPN_MASK),
    ];
    for (n, qpn) in open.iter().enumerate() {
        let behind = open.len() - 1 - n;
        program.push(if_equal(qpn.get(), behind as u8 + 1, 0));
    }
    program
}

/// The part of a datagram without a checksum that a UDP socket keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unchecked {
    /// All of it.
    Whole,
    /// The headers only: the socket reports that it arrived, with no payload.
    Empty,
    /// Nothing; the raw socket receives it.
    Nothing,
}

/// Returns the program of a UDP socket.
pub(crate) fn udp(senders: &Senders, unchecked: Unchecked) -> Vec<sock_filter> {
    let rest = match unchecked {
        Unchecked::Whole => KEEP,
        Unchecked::Empty => EMPTY,
        Unchecked::Nothing => DROP,
    };
    let header = UdpHeader::First;
    let mut program = senders.program(header);
    program.extend([
        header.load(BPF_H, 6),
        if_equal(0, 0, 1),
        statement(BPF_RET | BPF_K, rest),
        statement(BPF_RET | BPF_K, KEEP),
    ]);
    program
}

/// Returns the program of a raw socket over IPv4: it keeps UDP datagrams to `port` for queue pairs in `range` that
/// carry no checksum. A load beyond the end of a packet drops it.
pub(crate) fn raw(senders: &Senders, port: u16, range: QpnRange) -> Vec<sock_filter> {
    let header = UdpHeader::AfterIpv4;
    // The data starts with the IP header; its length goes to X.
    let mut program = vec![statement(BPF_LDX | BPF_B | BPF_MSH, 0)];
    program.extend(senders.program(header));
    if let Some((mask, value)) = range.mask_and_value() {
        program.extend([
            header.load(BPF_W, UDP_HEADER + Slot::OFFSET),
            statement(BPF_ALU | BPF_AND | BPF_K, mask),
            if_equal(value, 1, 0),
            statement(BPF_RET | BPF_K, DROP),
        ]);
    }
    program.extend([
        header.load(BPF_H, 2),
        if_equal(port.into(), 0, 3),
        header.load(BPF_H, 6),
        if_equal(0, 0, 1),
        statement(BPF_RET | BPF_K, KEEP),
        statement(BPF_RET | BPF_K, DROP),
    ]);
    program
}

/// Returns the program of a packet socket: of the frames that this host transmits, it keeps multicast frames and those
/// for `address`, whose first octet is in bits 40 to 47.
pub(crate) fn frames_for(address: u64) -> [sock_filter; 11] {
    /// `SKF_AD_OFF` and `SKF_AD_PKTTYPE` of linux/filter.h.
    const PACKET_TYPE: u32 = 0xffff_f000 + 4;
    [
        statement(BPF_LD | BPF_B | BPF_ABS, PACKET_TYPE),
        if_equal(libc::PACKET_OUTGOING.into(), 0, 7),
        statement(BPF_LD | BPF_B | BPF_ABS, 0),
        statement(BPF_ALU | BPF_AND | BPF_K, 1),
        if_equal(1, 4, 0),
        statement(BPF_LD | BPF_W | BPF_ABS, 0),
        if_equal((address >> 16) as u32, 0, 3),
        statement(BPF_LD | BPF_H | BPF_ABS, 4),
        if_equal((address & 0xffff) as u32, 0, 1),
        statement(BPF_RET | BPF_K, KEEP),
        statement(BPF_RET | BPF_K, DROP),
    ]
}

pub(crate) fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

/// Skips `yes` instructions if the loaded value equals `k`, `no` otherwise.
pub(crate) fn if_equal(k: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter {
        jt: yes,
        jf: no,
        ..statement(BPF_JMP | BPF_JEQ | BPF_K, k)
    }
}

/// Attaches a socket filter, replacing any previous one.
pub(crate) fn attach(socket: BorrowedFd<'_>, filter: &[sock_filter]) -> io::Result<()> {
    set_program(socket, libc::SO_ATTACH_FILTER, filter)
}

/// Sets the socket option `option` to a BPF program.
pub(crate) fn set_program(
    socket: BorrowedFd<'_>,
    option: libc::c_int,
    filter: &[sock_filter],
) -> io::Result<()> {
    /// `sock_fprog`, with its padding as a field so that the kernel never reads uninitialized bytes.
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Program {
        len: u16,
        padding: [u8; size_of::<usize>() - 2],
        filter: *const sock_filter,
    }
    const { assert!(size_of::<Program>() == size_of::<sock_fprog>()) };
    let program = Program {
        len: filter.len() as u16,
        padding: [0; size_of::<usize>() - 2],
        filter: filter.as_ptr(),
    };
    socket_option::set(socket, (libc::SOL_SOCKET, option), &program)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::*;

    /// Sends a datagram from each address in `from` to a socket with this filter, then one from `last`, which the
    /// filter must accept. Returns the sources received before it.
    fn arrived(to: &str, from: &[IpAddr], allowed: &[IpAddr], last: IpAddr) -> Vec<IpAddr> {
        let receiver = UdpSocket::bind((to, 0)).unwrap();
        // If the filter drops `last`, the test fails instead of hanging.
        let limit = Duration::from_secs(30);
        receiver.set_read_timeout(Some(limit)).unwrap();
        let senders = Senders::of(allowed.iter(), [].iter());
        let program = udp(&senders, Unchecked::Whole);
        attach(receiver.as_fd(), &program).unwrap();
        for address in from.iter().chain([&last]) {
            let sender = UdpSocket::bind((*address, 0)).unwrap();
            sender
                .send_to(b"hello", receiver.local_addr().unwrap())
                .unwrap();
        }
        let mut seen = Vec::new();
        loop {
            let (len, sender) = receiver.recv_from(&mut [0; 9]).unwrap();
            assert_eq!(len, 5);
            if sender.ip() == last {
                return seen;
            }
            seen.push(sender.ip());
        }
    }

    fn loopback(n: u8) -> IpAddr {
        IpAddr::from([127, 0, 7, n])
    }

    #[test]
    fn a_program_of_any_length_accepts_only_its_senders() {
        let from: Vec<_> = (1..=20).map(loopback).collect();
        for count in [1, 2, 3, 16] {
            // Skips the first addresses so that some packet takes each jump.
            let allowed: Vec<_> = (3..3 + count).map(loopback).collect();
            let last = loopback(2 + count);
            let expected: Vec<_> = (3..2 + count).map(loopback).collect();
            let seen = arrived("127.0.0.1", &from, &allowed, last);
            assert_eq!(seen[..expected.len()], expected, "{count}");
            assert_eq!(seen.len(), expected.len(), "{count}");
        }
    }

    #[test]
    fn more_senders_than_a_program_lists_are_all_accepted() {
        let many: Vec<_> = (1..=17).map(loopback).collect();
        assert_eq!(Senders::of(many.iter(), [].iter()), Senders::Any);
        let last = loopback(30);
        assert_eq!(arrived("127.0.0.1", &many, &many, last), many);
    }

    #[test]
    fn every_word_of_an_ipv6_address_is_compared() {
        let here: IpAddr = "::1".parse().unwrap();
        if UdpSocket::bind((here, 0)).is_err() {
            skip::skip(format_args!("this machine has no {here}"));
            return;
        }
        for word in 0..4 {
            let mut octets = [0; 16];
            octets[15] = 1;
            octets[4 * word] ^= 0x80;
            let other = IpAddr::from(octets);
            for allowed in [vec![other, here], vec![here, other], vec![here]] {
                assert!(arrived("::1", &[], &allowed, here).is_empty());
            }
            // Accepts `other` only, so the datagram from `here` is dropped.
            let receiver = UdpSocket::bind((here, 0)).unwrap();
            let senders = Senders::of([other].iter(), [].iter());
            let program = udp(&senders, Unchecked::Whole);
            attach(receiver.as_fd(), &program).unwrap();
            let sender = UdpSocket::bind((here, 0)).unwrap();
            sender
                .send_to(b"hello", receiver.local_addr().unwrap())
                .unwrap();
            receiver.set_nonblocking(true).unwrap();
            // Loopback delivery is synchronous: by now the datagram was queued or dropped.
            assert!(receiver.recv_from(&mut [0; 9]).is_err(), "word {word}");
        }
    }

    #[test]
    fn packets_for_a_queue_pair_that_is_open_to_all_pass_from_any_address() {
        let packet = |qpn: u32| {
            let mut packet = vec![0xff; 16];
            packet[4..8].copy_from_slice(&(0xff00_0000 | qpn).to_be_bytes());
            packet
        };
        for (peers, open) in [(0, 1), (1, 1), (16, 16), (16, 2), (2, 0)] {
            let receiver = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
            receiver.set_nonblocking(true).unwrap();
            let to = receiver.local_addr().unwrap();
            let peers: Vec<_> = (1..=peers).map(loopback).collect();
            let open: Vec<_> = (1..=open).map(|n| Qpn::new(0x10_0000 + n)).collect();
            let senders = Senders::of(peers.iter(), open.iter());
            attach(receiver.as_fd(), &udp(&senders, Unchecked::Whole)).unwrap();
            // Loopback delivery is synchronous: when `send_to` returns, the datagram was queued or dropped.
            let passes = |from: IpAddr, bytes: &[u8]| {
                let sender = UdpSocket::bind((from, 0)).unwrap();
                sender.send_to(bytes, to).unwrap();
                receiver.recv_from(&mut [0; 32]).is_ok()
            };
            let stranger = loopback(200);
            for qpn in &open {
                assert!(passes(stranger, &packet(qpn.get())), "{qpn:?}");
            }
            assert!(!passes(stranger, &packet(0x10_0011)));
            assert!(!passes(stranger, &packet(1)));
            assert!(
                !passes(stranger, &[0; 7]),
                "too short to have a destination"
            );
            for peer in &peers {
                assert!(passes(*peer, &packet(1)), "{peer}");
                assert!(passes(*peer, &[]), "{peer}");
            }
        }
        let many: Vec<_> = (1..=17).map(Qpn::new).collect();
        assert_eq!(Senders::of([].iter(), many.iter()), Senders::Any);
    }
}
