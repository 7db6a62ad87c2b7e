//! The receive path: datagrams from the UDP socket and its raw socket.

use std::io::IoSliceMut;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use gdr_roce::wire::icrc::Path;
use gdr_roce::wire::{Grh, Ipv4Datagram, MAX_DATAGRAM, icrc};
use quinn_udp::RecvMeta;

use crate::error::{Error, Result};
use crate::partial_icrc::PartialIcrc;
use crate::peer_filter::PeerFilter;
use crate::raw_socket::RawSocket;
use crate::single_datagram;
use crate::socket::Socket;

/// The number of buffers that one system call fills under load. More would only evict one another from the CPU cache.
const RECEIVES: usize = 4;
/// The size of each buffer: room for the longest coalesced datagram.
const RECEIVE_LEN: usize = 1 << 16;

/// The number of packets that one poll of the raw socket receives; the kernel coalesces none of them.
const RAW_RECEIVES: usize = 32;
/// The size of each buffer: the longest packet, plus one byte to detect longer ones.
const RAW_LEN: usize = Ipv4Datagram::HEADERS + MAX_DATAGRAM + 1;
/// While the raw socket is idle, one in this many polls includes it, as a poll is a system call.
const RAW_EVERY: u32 = 16;
/// After this many empty polls in a row, the raw socket counts as idle.
const RAW_POLLS: u32 = 4096;

/// A received datagram.
pub struct Datagram<'a> {
    /// The sender's address.
    pub source: SocketAddr,
    /// The UDP payload; empty if the headers in front of it are malformed.
    pub payload: &'a [u8],
    check: Check<'a>,
}

/// How the ICRC of a datagram is verified.
enum Check<'a> {
    /// From the UDP socket, which over IPv4 hides a field that the ICRC covers. `position` is the index among coalesced
    /// datagrams.
    Udp {
        socket: &'a Socket,
        partial: &'a PartialIcrc,
        position: usize,
    },
    /// From the raw socket, with all headers.
    Raw(Path, Grh),
    /// Through shared memory, which cannot corrupt it; with the packet's length.
    Memory(&'a Socket, usize),
    /// From the socket of this multicast group, and already verified.
    Group(SocketAddr),
    /// The headers in front of the payload are malformed.
    Malformed,
}

impl<'a> Datagram<'a> {
    /// Returns a packet of `len` bytes that came through shared memory, as if `socket` had received it. `payload` may
    /// be truncated.
    pub fn by_memory(
        source: SocketAddr,
        payload: &'a [u8],
        len: usize,
        socket: &'a Socket,
    ) -> Self {
        Self {
            source,
            payload,
            check: Check::Memory(socket, len),
        }
    }

    /// Returns a packet to a multicast group whose ICRC is already verified.
    pub fn of_group(source: SocketAddr, payload: &'a [u8], group: SocketAddr) -> Self {
        Self {
            source,
            payload,
            check: Check::Group(group),
        }
    }

    /// Returns the multicast group that the packet was sent to.
    pub fn group(&self) -> Option<SocketAddr> {
        match self.check {
            Check::Group(group) => Some(group),
            _ => None,
        }
    }

    /// Returns whether the ICRC is correct, as far as it can be verified.
    // Inlined for the more frequent of its two callers.
    #[inline(always)]
    pub fn is_intact(&self) -> bool {
        match &self.check {
            Check::Udp {
                socket,
                partial,
                position,
            } => socket.is_intact(partial, self.source, *position, self.payload),
            Check::Raw(path, _) => icrc::matches(path, self.payload),
            Check::Memory(..) | Check::Group(_) => true,
            Check::Malformed => false,
        }
    }

    /// Returns the packet's length, including bytes that `payload` lacks.
    #[expect(clippy::len_without_is_empty, reason = "it is the length on the wire")]
    pub fn len(&self) -> usize {
        match self.check {
            Check::Memory(_, len) => len,
            _ => self.payload.len(),
        }
    }

    /// Returns the network header; `None` if the headers are malformed. A UDP socket reports only some of its fields;
    /// the others are set as this crate sends them.
    pub fn grh(&self) -> Option<Grh> {
        match &self.check {
            Check::Udp {
                socket, position, ..
            } => {
                let path = Socket::path(self.source, socket.local(), *position as u16)?;
                Some(Grh::of_fields(&path.ip, self.payload.len()))
            }
            Check::Raw(_, grh) => Some(*grh),
            Check::Group(group) => {
                let path = Socket::path(self.source, *group, 0)?;
                Some(Grh::of_fields(&path.ip, self.payload.len()))
            }
            Check::Memory(socket, len) => {
                let path = Socket::path(self.source, socket.local(), 0)?;
                Some(Grh::of_fields(&path.ip, *len))
            }
            Check::Malformed => None,
        }
    }

    /// Returns whether the sender is known to set UDP checksums. While there is a raw socket, the UDP socket delivers
    /// only datagrams with a checksum; shared memory carries packets of this crate's devices only.
    pub fn shows_checksums(&self) -> bool {
        matches!(self.check, Check::Udp { .. } | Check::Memory(..))
    }
}

/// Receive buffers, and the packets in them.
pub struct Rx {
    socket: Arc<Socket>,
    bytes: Box<[u8]>,
    metas: [RecvMeta; RECEIVES],
    count: usize,
    /// How many buffers to fill next: one while datagrams arrive singly, as looking for a second would only add
    /// latency.
    wanted: usize,
    partial: PartialIcrc,
    raw: Option<RawRx>,
}

impl Rx {
    pub(crate) fn new(socket: Arc<Socket>) -> Self {
        Self {
            bytes: vec![0; RECEIVES * RECEIVE_LEN].into_boxed_slice(),
            metas: [RecvMeta::default(); RECEIVES],
            count: 0,
            wanted: 1,
            partial: PartialIcrc::new(),
            raw: socket.raw().map(|_| RawRx::new()),
            socket,
        }
    }

    /// Receives the queued packets, without blocking. Returns whether there were any.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn receive(&mut self, peers: &PeerFilter) -> Result<bool> {
        let socket = &*self.socket;
        self.count = 0;
        let received = if self.wanted == 1 {
            let room = &mut self.bytes[..RECEIVE_LEN];
            single_datagram::receive(socket.as_fd(), room, &mut self.metas[0])
                .map_err(|error| Error::os("recvmsg", error))
        } else {
            let mut rooms = self.bytes.chunks_mut(RECEIVE_LEN).map(IoSliceMut::new);
            let mut rooms: [IoSliceMut<'_>; RECEIVES] =
                std::array::from_fn(|_| rooms.next().unwrap_or_else(|| IoSliceMut::new(&mut [])));
            socket
                .receive(&mut rooms, &mut self.metas)
                .map_err(|error| Error::os("recvmmsg", error))
        };
        self.count = received?;
        self.wanted = if self.count > 0 { RECEIVES } else { 1 };
        let mut any = self.count > 0;
        if let (Some(rx), Some(raw)) = (&mut self.raw, socket.raw()) {
            let is_empty = |meta: &RecvMeta| meta.len == 0 && peers.is_peer(meta.addr.ip());
            if self.metas[..self.count].iter().any(is_empty) {
                socket.enable_raw_permanently();
            }
            rx.count = 0;
            if raw.is_enabled() {
                any |= rx.receive(raw)?;
            }
        }
        Ok(any)
    }

    /// Discards the received datagrams.
    pub fn clear(&mut self) {
        self.count = 0;
        if let Some(raw) = &mut self.raw {
            raw.count = 0;
        }
    }

    /// Returns whether there are received datagrams.
    pub fn has_any(&self) -> bool {
        self.count > 0 || self.raw.as_ref().is_some_and(|raw| raw.count > 0)
    }

    /// Returns the received datagrams.
    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        let socket = &*self.socket;
        let rooms = self.bytes.chunks(RECEIVE_LEN);
        let udp = self.metas[..self.count].iter().zip(rooms);
        let udp = udp.flat_map(move |(meta, room)| {
            let merged = &room[..meta.len.min(room.len())];
            let datagrams = merged.chunks(meta.stride.max(1)).enumerate();
            datagrams.map(move |(position, payload)| Datagram {
                source: meta.addr,
                payload,
                check: Check::Udp {
                    socket,
                    partial: &self.partial,
                    position,
                },
            })
        });
        let raw = self.raw.as_ref().zip(socket.raw());
        udp.chain(raw.into_iter().flat_map(|(rx, raw)| rx.datagrams(raw)))
    }
}

/// Receive buffers of the raw socket.
struct RawRx {
    bytes: Box<[u8]>,
    lens: [usize; RAW_RECEIVES],
    count: usize,
    /// Polls of the UDP socket since this one was last polled.
    skipped: u32,
    /// Empty polls left before it counts as idle.
    polls_left: u32,
}

impl RawRx {
    fn new() -> Self {
        Self {
            bytes: vec![0; RAW_RECEIVES * RAW_LEN].into_boxed_slice(),
            lens: [0; RAW_RECEIVES],
            count: 0,
            skipped: 0,
            polls_left: 0,
        }
    }

    /// Receives the queued packets, if a poll is due.
    fn receive(&mut self, socket: &RawSocket) -> Result<bool> {
        self.count = 0;
        self.skipped += 1;
        if self.polls_left == 0 && self.skipped < RAW_EVERY {
            return Ok(false);
        }
        self.skipped = 0;
        for (len, room) in self.lens.iter_mut().zip(self.bytes.chunks_mut(RAW_LEN)) {
            let received = socket
                .receive(room)
                .map_err(|error| Error::os("recv on a raw socket", error))?;
            let Some(received) = received else { break };
            *len = received;
            self.count += 1;
        }
        self.polls_left = match self.count {
            0 => self.polls_left.saturating_sub(1),
            _ => RAW_POLLS,
        };
        Ok(self.count > 0)
    }

    fn datagrams<'a>(&'a self, socket: &'a RawSocket) -> impl Iterator<Item = Datagram<'a>> {
        let packets = self.bytes.chunks(RAW_LEN).zip(&self.lens[..self.count]);
        packets.filter_map(|(room, len)| match Ipv4Datagram::new(&room[..*len]) {
            Ok(read) if socket.is_for_us(&read) => Some(Datagram {
                source: SocketAddr::new(read.src.into(), read.path.src_port),
                payload: read.payload,
                check: Check::Raw(read.path, Grh::of_ipv4(read.header)),
            }),
            Ok(_) => None,
            // Counted later, when the payload is parsed.
            Err(_) => Some(Datagram {
                source: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
                payload: &[],
                check: Check::Malformed,
            }),
        })
    }
}
