//! Management datagrams as packets.

use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{MAD_LEN, MANAGEMENT_QKEY, Mad};
use gdr_process::lock::lock;
use gdr_roce::wire::icrc::{self, Ip, Path};
use gdr_roce::wire::{Bth, Deth, Headers, Opcode, Packet};
use gdr_roce::{PartitionKey, Psn, Qpn};

use gdr_udp::PartialIcrc;

/// Length of a packet with a message: headers, message and ICRC.
const LEN: usize = Bth::LEN + Deth::LEN + MAD_LEN + icrc::LEN;
/// Buffer size for a packet; one byte more reveals packets that are too long.
pub(super) const MOST: usize = LEN + 1;

/// Encodes and decodes the packets.
pub(super) struct Packets {
    /// The source address of packets.
    sender: SocketAddr,
    /// The destination port, both here and at peers.
    port: u16,
    next_psn: AtomicU32,
    icrc: Mutex<PartialIcrc>,
}

impl Packets {
    pub(super) fn new(sender: SocketAddr, port: u16) -> Self {
        Self {
            sender,
            port,
            next_psn: AtomicU32::new(0),
            icrc: Mutex::new(PartialIcrc::new()),
        }
    }

    /// Encodes a packet to `to`.
    pub(super) fn seal(&self, to: IpAddr, mad: &Mad) -> [u8; LEN] {
        let bth = Bth {
            opcode: Opcode::DatagramSend.byte(),
            solicited: false,
            migrated: true,
            pad: 0,
            version: 0,
            partition: PartitionKey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qpn: Qpn::MANAGEMENT,
            ack_request: false,
            filled: false,
            psn: Psn::new(self.next_psn.fetch_add(1, Ordering::Relaxed)),
        };
        let mut headers = Headers::new(Opcode::DatagramSend, bth);
        headers.deth = Some(Deth {
            qkey: MANAGEMENT_QKEY,
            source_qpn: Qpn::MANAGEMENT,
        });
        let mut packet = [0; LEN];
        let at = headers.emit(MAD_LEN, &mut packet);
        packet[at..at + MAD_LEN].copy_from_slice(mad.as_bytes());
        if let Some(path) = path(self.sender, SocketAddr::new(to, self.port)) {
            icrc::seal(&path, &mut packet);
        }
        packet
    }

    /// Decodes an untrusted packet. Returns `None` unless it is a valid management packet.
    pub(super) fn open(&self, from: SocketAddr, bytes: &[u8]) -> Option<Mad> {
        let packet = Packet::new(bytes).ok()?;
        let bth = packet.bth();
        let deth = packet.deth()?;
        if bth.dest_qpn != Qpn::MANAGEMENT
            || deth.qkey != MANAGEMENT_QKEY
            || !bth.partition.matches(PartitionKey::DEFAULT)
        {
            return None;
        }
        let mad = Mad::of(packet.payload()).ok()?;
        let path = path(from, SocketAddr::new(self.sender.ip(), self.port))?;
        lock(&self.icrc).matches(&path, bytes).then_some(mad)
    }
}

/// Returns the fields that the ICRC covers besides the headers below; `None` if the address families differ.
fn path(from: SocketAddr, to: SocketAddr) -> Option<Path> {
    let ip = match (from.ip(), to.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Ip::V4 {
            src,
            dst,
            identification: 0,
            dont_fragment: true,
        },
        (IpAddr::V6(src), IpAddr::V6(dst)) => Ip::V6 { src, dst },
        _ => return None,
    };
    Some(Path {
        ip,
        src_port: from.port(),
        dst_port: to.port(),
    })
}

#[cfg(test)]
mod tests {
    use crate::{IdPair, Message};

    use super::*;

    fn ends() -> (Packets, Packets) {
        let end = |n| {
            Packets::new(
                SocketAddr::from(([127, 0, 0, n], 4000 + u16::from(n))),
                4791,
            )
        };
        (end(1), end(2))
    }

    #[test]
    fn a_packet_is_opened_by_its_receiver_alone_and_undamaged_only() {
        let (one, other) = ends();
        let mad = Message::Rtu(IdPair::default()).emit(1);
        let packet = one.seal(other.sender.ip(), &mad);
        assert_eq!(other.open(one.sender, &packet), Some(mad));
        assert_eq!(
            one.open(other.sender, &packet),
            None,
            "the addresses are covered"
        );
        for at in 0..packet.len() {
            let mut damaged = packet;
            damaged[at] ^= 1;
            // FECN, BECN and the bits that share their byte may change in transit.
            let is_covered = at != 4;
            assert_eq!(
                other.open(one.sender, &damaged).is_none(),
                is_covered,
                "{at}"
            );
            assert_eq!(other.open(one.sender, &packet[..at]), None, "{at}");
        }
    }

    #[test]
    fn a_packet_without_the_key_of_management_has_no_message() {
        let (one, other) = ends();
        let mad = Message::Rtu(IdPair::default()).emit(1);
        let mut packet = one.seal(other.sender.ip(), &mad);
        packet[12] ^= 0x80;
        let to = SocketAddr::new(other.sender.ip(), 4791);
        icrc::seal(&path(one.sender, to).unwrap(), &mut packet);
        assert_eq!(other.open(one.sender, &packet), None);
    }
}
