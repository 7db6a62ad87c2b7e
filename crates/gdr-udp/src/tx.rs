//! Transmit batches of the UDP socket.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use gdr_roce::wire::MAX_DATAGRAM;
use gdr_roce::wire::icrc::IcrcCache;

use crate::qpn_range::steering_bits;
use crate::socket::Socket;

/// The longest UDP payload over IPv4: 65535 bytes less the IP and UDP headers. To the kernel, a segmented send is one
/// such datagram.
const MOST_BYTES: usize = 65_507;
/// The buffer size: the longest send, and one more packet.
const BATCH: usize = MOST_BYTES + MAX_DATAGRAM;

/// Packets to one destination that share a system call. All have the same length, except that the last may be shorter.
/// Their destination queue pairs share slot and shard, because the receiving kernel delivers packets sent together to
/// the socket of the first packet.
pub struct Batch {
    socket: Arc<Socket>,
    bytes: Box<[u8]>,
    len: usize,
    dst: SocketAddr,
    /// The destination bits by which the receiving kernel selects a socket.
    steering: Option<u32>,
    /// The length of each packet; unused while the batch is empty.
    segment: usize,
    count: usize,
    /// Whether the last packet is shorter, so that none may follow it.
    closed: bool,
    /// Whether the last send would have blocked.
    is_blocked: bool,
    /// The destination and length of one more packet, stored after the batch and held back while blocked.
    carried: Option<(SocketAddr, usize)>,
    icrc: IcrcCache,
    sent: SentDatagrams,
}

/// Counters of what was sent over UDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentDatagrams {
    /// Packets handed to the kernel.
    pub packets: u64,
    /// The share of `packets` that went to multicast groups.
    pub to_groups: u64,
    /// Bytes of `packets`, from the transport header to the end of the UDP payload.
    pub bytes: u64,
    /// Sends that failed (no route, no such interface).
    pub failed_calls: u64,
}

impl Batch {
    pub(crate) fn new(socket: Arc<Socket>) -> Self {
        Self {
            bytes: vec![0; BATCH].into_boxed_slice(),
            len: 0,
            dst: socket.local(),
            steering: None,
            segment: 0,
            count: 0,
            closed: false,
            is_blocked: false,
            carried: None,
            icrc: IcrcCache::new(),
            sent: SentDatagrams::default(),
            socket,
        }
    }

    /// Returns the counters so far.
    pub fn sent(&self) -> SentDatagrams {
        self.sent
    }

    /// Returns whether the last send would have blocked.
    pub fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Marks the batch as blocked, as if the kernel had no room.
    pub fn block(&mut self) {
        self.is_blocked = true;
    }

    /// Returns space for one packet after the batch.
    pub fn room(&mut self) -> &mut [u8] {
        // In bounds: `len` is at most MOST_BYTES.
        &mut self.bytes[self.len..][..MAX_DATAGRAM]
    }

    /// Adds the `len` bytes just written to [`Batch::room`] as a packet to `dst`. If the packet cannot join the batch,
    /// the batch is sent first; the packet itself leaves with the next [`Batch::send`] at the latest. Must not be
    /// called while the batch is blocked.
    pub fn push(&mut self, dst: SocketAddr, len: usize) {
        let fits = self.count == 0
            || (self.dst == dst
                && self.steering == steering_bits(&self.bytes[self.len..][..len])
                && self
                    .socket
                    .is_same_flow(&self.bytes, &self.bytes[self.len..][..len])
                && !self.closed
                && len <= self.segment
                && self.len + len <= MOST_BYTES
                && self.count < self.socket.max_segments());
        if !fits {
            let behind = self.len;
            self.send();
            if self.is_blocked {
                self.carried = Some((dst, len));
                return;
            }
            self.bytes.copy_within(behind..behind + len, 0);
        }
        let at = self.len;
        if self.count == 0 {
            (self.dst, self.segment) = (dst, len);
            self.steering = steering_bits(&self.bytes[at..at + len]);
        }
        let packet = &mut self.bytes[at..at + len];
        self.socket.seal(&self.icrc, dst, self.count, packet);
        self.closed = len < self.segment;
        self.len += len;
        self.count += 1;
    }

    /// Like [`Batch::push`], for a packet whose ICRC is made wrong. It is sent on its own.
    pub fn push_corrupt(&mut self, dst: SocketAddr, len: usize) {
        let packet = self.room()[..len].to_vec();
        self.send();
        if self.is_blocked {
            // Dropped rather than held back: a corrupt packet is lost anyway.
            return;
        }
        self.room()[..len].copy_from_slice(&packet);
        self.push(dst, len);
        if let Some(last) = self.bytes[..self.len].last_mut() {
            *last ^= 1;
        }
        self.send();
    }

    /// Sends the batch, and the packet held back with it. Does nothing while blocked.
    // Inlined, as it has nothing to send in most polls.
    #[inline]
    pub fn send(&mut self) {
        if !self.is_blocked && self.count > 0 {
            self.send_packets();
        }
    }

    fn send_packets(&mut self) {
        while !self.is_blocked && self.count > 0 {
            let segment = (self.count > 1).then_some(self.segment);
            let contents = &self.bytes[..self.len];
            let sent = match self.socket.send(self.dst, contents, segment) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_blocked = true;
                    return;
                }
                Err(_) if segment.is_some() => self.send_singly(),
                other => other,
            };
            match sent {
                Ok(()) => {
                    self.sent.packets += self.count as u64;
                    if self.dst.ip().is_multicast() {
                        self.sent.to_groups += self.count as u64;
                    }
                    self.sent.bytes += self.len as u64;
                }
                Err(error) => {
                    self.sent.failed_calls += 1;
                    let to = self.dst;
                    if self.sent.failed_calls == 1 {
                        tracing::warn!(%error, %to, "the kernel refuses to send; packets are lost");
                    } else {
                        tracing::trace!(%error, %to, "sending failed");
                    }
                }
            }
            let end = std::mem::take(&mut self.len);
            self.count = 0;
            if let Some((dst, len)) = self.carried.take() {
                self.bytes.copy_within(end..end + len, 0);
                self.push(dst, len);
            }
        }
    }

    /// Retries a send that would have blocked. Returns whether this unblocked the batch.
    pub fn unblock(&mut self) -> bool {
        let was_blocked = std::mem::take(&mut self.is_blocked);
        if was_blocked {
            self.send();
        }
        was_blocked && !self.is_blocked
    }

    /// Sends each packet on its own, for a kernel or interface that cannot segment. Each ICRC is recomputed, as an
    /// unsegmented packet has identification 0.
    fn send_singly(&mut self) -> io::Result<()> {
        for packet in self.bytes[..self.len].chunks_mut(self.segment) {
            self.socket.seal(&self.icrc, self.dst, 0, packet);
            match self.socket.send(self.dst, packet, None) {
                // Treated as lost, which the protocol tolerates.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => other?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, UdpSocket};
    use std::time::Duration;

    use gdr_roce::Qpn;
    use gdr_roce::wire::icrc;

    use super::*;
    use crate::options::{PortUse, Shards, SocketOptions, SourcePort};

    const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    /// The length of each packet, so short that the kernel's limit on segments, not the length, ends a batch.
    const LEN: usize = 40;

    fn receiver() -> UdpSocket {
        let receiver = UdpSocket::bind(HERE).unwrap();
        receiver
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        receiver
    }

    /// Sends `count` packets in batches. For each one received, returns its sequence number, and whether its ICRC
    /// matches the identification given by `identification`.
    fn sent(
        socket: &Arc<Socket>,
        count: usize,
        identification: impl Fn(usize) -> u16,
    ) -> Vec<(usize, bool)> {
        let receiver = receiver();
        let to = receiver.local_addr().unwrap();
        let mut batch = Batch::new(Arc::clone(socket));
        for n in 0..count {
            batch.room()[..LEN].fill(0);
            batch.room()[0] = n as u8;
            batch.push(to, LEN);
        }
        batch.send();
        assert_eq!(
            (batch.sent().packets, batch.sent().failed_calls),
            (count as u64, 0)
        );
        let mut bytes = [0; 100];
        let judge = |n| {
            assert_eq!(receiver.recv(&mut bytes).unwrap(), LEN);
            let path = Socket::path(socket.local(), to, identification(n)).unwrap();
            (usize::from(bytes[0]), icrc::matches(&path, &bytes[..LEN]))
        };
        (0..count).map(judge).collect()
    }

    fn all_intact(count: usize) -> Vec<(usize, bool)> {
        (0..count).map(|n| (n, true)).collect()
    }

    #[test]
    fn a_batch_holds_no_more_than_the_kernel_segments() {
        let socket = Arc::new(Socket::bind(HERE, 1 << 20).unwrap());
        let most = socket.max_segments();
        if most == 1 {
            skip::skip("this kernel does not segment UDP");
        }
        let count = 3 * most.min(64) + 7;
        // Linux increments the identification for each segment of a send.
        let seen = sent(&socket, count, |n| (n % most) as u16);
        assert_eq!(seen, all_intact(count));
    }

    #[test]
    fn packets_to_queue_pairs_of_two_sockets_are_not_sent_together() {
        let socket = Arc::new(Socket::bind(HERE, 1 << 20).unwrap());
        let receiver = receiver();
        let to = receiver.local_addr().unwrap();
        let mut batch = Batch::new(Arc::clone(&socket));
        // The last number of a slot, the first of the next slot, another number of that slot, and one of its next
        // shard.
        let sent = [
            (0x03_ffff_u32, 0),
            (0x04_0000, 1),
            (0x04_1234, 1),
            (0x04_8000, 3),
        ];
        for (qpn, sent) in sent {
            batch.room()[..LEN].fill(0);
            batch.room()[4..8].copy_from_slice(&qpn.to_be_bytes());
            batch.push(to, LEN);
            assert_eq!(batch.sent().packets, sent, "{qpn:#x}");
        }
    }

    #[test]
    fn packets_of_two_source_ports_are_not_sent_together() {
        let options = SocketOptions {
            address: HERE,
            port_use: PortUse::Exclusive,
            receive_buffer: 1 << 20,
            source_port: SourcePort::Any,
        };
        let sockets = Socket::bind_shards(&options, Shards::Exactly(1));
        let socket = Arc::new(sockets.unwrap().remove(0));
        let receiver = receiver();
        let to = receiver.local_addr().unwrap();
        // One shard with two even numbers and one odd.
        let peers = [0x100_u32, 0x102, 0x101];
        for peer in peers {
            socket.open_flow(Qpn::new(7), Qpn::new(peer));
        }
        let mut batch = Batch::new(Arc::clone(&socket));
        for (peer, sent) in peers.into_iter().zip([0, 0, 2]) {
            batch.room()[..LEN].fill(0);
            batch.room()[4..8].copy_from_slice(&peer.to_be_bytes());
            batch.push(to, LEN);
            assert_eq!(batch.sent().packets, sent, "{peer:#x}");
        }
        batch.send();
        let mut bytes = [0; 100];
        let mut received = || receiver.recv_from(&mut bytes).unwrap().1.port();
        let ports = [(); 3].map(|()| received());
        assert_eq!(ports[0], ports[1]);
        assert_ne!(ports[1], ports[2]);
    }

    #[test]
    fn packets_that_the_kernel_does_not_segment_are_sealed_as_single_packets() {
        /// Returns a socket that sets no checksums; Linux refuses to segment for it.
        fn without_checksums() -> Arc<Socket> {
            let socket = Arc::new(Socket::bind(HERE, 1 << 20).unwrap());
            let on: libc::c_int = 1;
            let option = (libc::SOL_SOCKET, libc::SO_NO_CHECK);
            crate::socket_option::set(socket.as_fd(), option, &on).unwrap();
            socket
        }
        let to = receiver().local_addr().unwrap();
        let segmented = without_checksums().send(to, &[0; 2 * LEN], Some(LEN));
        if segmented.is_ok() {
            skip::skip("this kernel segments what has no checksum");
            return;
        }
        let seen = sent(&without_checksums(), 20, |_| 0);
        assert_eq!(seen, all_intact(20));
    }
}
