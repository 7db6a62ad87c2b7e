//! A packet capture for Wireshark and tcpdump.
//!
//! The file is in pcap format with nanosecond timestamps. Packets begin with a "Linux cooked" header
//! (`LINKTYPE_LINUX_SLL`), as with `tcpdump -i any`, which records whether a packet arrived or left. The IP and UDP
//! headers are rebuilt from the addresses, so that the ICRC checks out against them.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use gdr_chaos::Direction;
use gdr_roce::wire::icrc::{Ip, Path, seal};
use gdr_roce::wire::{Grh, Ipv4Datagram};
use rustix::fs::{FlockOperation, flock};

/// File header fields: draft-ietf-opsawg-pcap, section 4.
const MAGIC: u32 = 0xa1b2_3c4d;
const VERSION: [u16; 2] = [2, 4];
const LONGEST: u32 = 1 << 16;
const LINUX_SLL: u32 = 113;

/// Packet header fields: <https://www.tcpdump.org/linktypes/LINKTYPE_LINUX_SLL.html>.
const FOR_US: u16 = 0;
const SENT_BY_US: u16 = 4;
/// `ARPHRD_NONE` of linux/if_arp.h.
const NO_HARDWARE: u16 = 0xfffe;
/// `ETH_P_IP` and `ETH_P_IPV6` of linux/if_ether.h.
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// Whether the ICRC of a packet is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checksum {
    Right,
    Wrong,
}

/// A capture file. Each packet is written by one system call, so that processes can share the file.
#[derive(Debug)]
pub(super) struct Capture {
    file: File,
    /// Set once a write has failed. Packets after a truncated one could not be parsed.
    has_failed: AtomicBool,
}

impl Capture {
    /// Opens the file at `path` for appending, and writes the file header if it is empty.
    pub(super) fn open(path: &OsStr) -> io::Result<Self> {
        let mut file = OpenOptions::new().append(true).create(true).open(path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        if file.metadata()?.len() == 0 {
            file.write_all(&header())?;
        }
        flock(&file, FlockOperation::Unlock)?;
        Ok(Self {
            file,
            has_failed: AtomicBool::new(false),
        })
    }

    /// Appends a packet.
    pub(super) fn write(
        &self,
        direction: Direction,
        path: &Path,
        datagram: &[u8],
        checksum: Checksum,
    ) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH);
        let time = time.unwrap_or_default();
        let times = [time.as_secs() as u32, time.subsec_nanos()];
        let packet = record(times, direction, path, datagram, checksum);
        if !self.has_failed.load(Ordering::Relaxed)
            && let Err(error) = (&self.file).write_all(&packet)
            && !self.has_failed.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(%error, "the capture of packets ends here; give it a place with more room");
        }
    }
}

fn header() -> Vec<u8> {
    let mut bytes = MAGIC.to_ne_bytes().to_vec();
    bytes.extend(VERSION.iter().flat_map(|it| it.to_ne_bytes()));
    bytes.extend(
        [0, 0, LONGEST, LINUX_SLL]
            .iter()
            .flat_map(|it| it.to_ne_bytes()),
    );
    bytes
}

fn record(
    times: [u32; 2],
    direction: Direction,
    path: &Path,
    datagram: &[u8],
    checksum: Checksum,
) -> Vec<u8> {
    let ip = Grh::of_fields(&path.ip, datagram.len());
    let (protocol, ip) = match path.ip {
        Ip::V4 { .. } => (IPV4, &ip.as_bytes()[Grh::LEN - V4_LEN..]),
        Ip::V6 { .. } => (IPV6, &ip.as_bytes()[..]),
    };
    let len = (SLL_LEN + ip.len() + UDP_LEN + datagram.len()) as u32;
    let mut bytes = Vec::with_capacity(16 + len as usize);
    bytes.extend(
        [times[0], times[1], len, len]
            .iter()
            .flat_map(|it| it.to_ne_bytes()),
    );
    let kind = match direction {
        Direction::In => FOR_US,
        Direction::Out => SENT_BY_US,
    };
    let udp_len = (UDP_LEN + datagram.len()) as u16;
    let mut words = |words: &[u16]| bytes.extend(words.iter().flat_map(|it| it.to_be_bytes()));
    // The sender's address has length 0, so all eight bytes of the field are zero.
    words(&[kind, NO_HARDWARE, 0, 0, 0, 0, 0, protocol]);
    bytes.extend_from_slice(ip);
    let mut words = |words: &[u16]| bytes.extend(words.iter().flat_map(|it| it.to_be_bytes()));
    words(&[path.src_port, path.dst_port, udp_len, 0]);
    let begin = bytes.len();
    bytes.extend_from_slice(datagram);
    seal(path, &mut bytes[begin..]);
    if let (Checksum::Wrong, Some(last)) = (checksum, bytes.last_mut()) {
        *last ^= 1;
    }
    bytes
}

const SLL_LEN: usize = 16;
const UDP_LEN: usize = 8;
const V4_LEN: usize = Ipv4Datagram::HEADERS - UDP_LEN;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_file_has_one_header_and_the_packets_of_all_that_append() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("packets.pcap");
        let of = Path {
            ip: Ip::V4 {
                src: Ipv4Addr::new(10, 0, 0, 1),
                dst: Ipv4Addr::new(10, 0, 0, 2),
                identification: 0,
                dont_fragment: true,
            },
            src_port: 50000,
            dst_port: 4791,
        };
        let [one, two] = [(); 2].map(|()| Capture::open(path.as_os_str()).unwrap());
        one.write(Direction::Out, &of, &[1; 16], Checksum::Right);
        two.write(Direction::In, &of, &[2; 20], Checksum::Wrong);
        let bytes = std::fs::read(&path).unwrap();
        let word = |at: usize| u32::from_ne_bytes(*bytes[at..].first_chunk().unwrap());
        assert_eq!((word(0), word(20)), (MAGIC, LINUX_SLL));
        let (first, second) = (24, 24 + 16 + 16 + 28 + 16);
        assert_eq!((word(first + 8), word(second + 8)), (60, 64));
        assert_eq!(bytes.len(), second + 16 + 64);
        let kinds = [first, second].map(|at| bytes[at + 17]);
        assert_eq!(kinds, [SENT_BY_US as u8, FOR_US as u8]);
        let datagram = |at: usize, len: usize| &bytes[at + 60..][..len];
        assert!(gdr_roce::wire::icrc::matches(&of, datagram(first, 16)));
        assert!(!gdr_roce::wire::icrc::matches(&of, datagram(second, 20)));
    }
}
