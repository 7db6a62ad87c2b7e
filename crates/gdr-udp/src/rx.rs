//! The receive path: datagrams of the UDP socket, and of the raw socket beside it.

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

/// How many merged datagrams one system call receives while many arrive. More would only evict each
/// other from the CPU's cache.
const RECEIVES: usize = 4;
/// Bytes for one of them.
const RECEIVE_LEN: usize = 1 << 16;

/// How many packets of the raw socket one poll receives; the kernel merges none of them.
const RAW_RECEIVES: usize = 32;
/// Bytes for one of them: the longest packet, and one byte by which a longer one is detected.
const RAW_LEN: usize = Ipv4Datagram::HEADERS + MAX_DATAGRAM + 1;
/// How many polls of the UDP socket there are for each of the raw socket while nothing arrives
/// there: a poll is a system call.
const RAW_EVERY: u32 = 16;
/// How many polls of the raw socket may find nothing before it is polled that rarely.
const RAW_POLLS: u32 = 4096;

/// A datagram that arrived.
pub struct Datagram<'a> {
    /// Its sender.
    pub source: SocketAddr,
    /// The UDP payload; empty if the headers before it are malformed.
    pub payload: &'a [u8],
    check: Check<'a>,
}

/// How the ICRC of a datagram is checked.
enum Check<'a> {
    /// The datagram came by the UDP socket, which hides a field that the ICRC covers over IPv4. It
    /// is the one at `position` among those that the kernel merged.
    Udp {
        socket: &'a Socket,
        partial: &'a PartialIcrc,
        position: usize,
    },
    /// The datagram came by the raw socket, with all its headers.
    Raw(Path, Grh),
    /// It came by shared memory, which changes nothing, with this many bytes.
    Memory(&'a Socket, usize),
    /// It came by the socket of this multicast group, and was checked.
    Group(SocketAddr),
    /// The headers before it are malformed.
    Malformed,
}

impl<'a> Datagram<'a> {
    /// A packet of `len` bytes that came by shared memory, as if it had come to the socket. `payload` may lack the end.
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

    /// A packet to a multicast group, whose ICRC was checked.
    pub fn of_group(source: SocketAddr, payload: &'a [u8], group: SocketAddr) -> Self {
        Self {
            source,
            payload,
            check: Check::Group(group),
        }
    }

    /// The multicast group that it was sent to.
    pub fn group(&self) -> Option<SocketAddr> {
        match self.check {
            Check::Group(group) => Some(group),
            _ => None,
        }
    }

    /// Whether its ICRC is correct, as far as can be seen.
    // For the usual one of its two callers.
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

    /// Its length, with what is not in its bytes.
    #[expect(clippy::len_without_is_empty, reason = "it is the length on the wire")]
    pub fn len(&self) -> usize {
        match self.check {
            Check::Memory(_, len) => len,
            _ => self.payload.len(),
        }
    }

    /// Its network header. A UDP socket reports only some fields, and for the others the header has
    /// what this crate sends. `None` if the headers are malformed.
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

    /// Whether its sender sets UDP checksums: while there is a raw socket, only datagrams with one come by
    /// the UDP socket. Shared memory carries packets of devices such as this one only.
    pub fn shows_checksums(&self) -> bool {
        matches!(self.check, Check::Udp { .. } | Check::Memory(..))
    }
}

/// Buffers for received datagrams.
pub struct Rx {
    socket: Arc<Socket>,
    bytes: Box<[u8]>,
    metas: [RecvMeta; RECEIVES],
    count: usize,
    /// How many to receive at once: one while one arrives at a time, as the kernel's search for
    /// another would only delay it.
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

    /// Receives what has arrived, without waiting; returns whether there was anything.
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

    /// Forgets what was received.
    pub fn clear(&mut self) {
        self.count = 0;
        if let Some(raw) = &mut self.raw {
            raw.count = 0;
        }
    }

    /// Whether there are datagrams that were received.
    pub fn has_any(&self) -> bool {
        self.count > 0 || self.raw.as_ref().is_some_and(|raw| raw.count > 0)
    }

    /// The datagrams that were received.
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

/// Buffers for packets of the raw socket.
struct RawRx {
    bytes: Box<[u8]>,
    lens: [usize; RAW_RECEIVES],
    count: usize,
    /// Polls of the UDP socket since the last one of this.
    skipped: u32,
    /// How many more polls may find nothing before it is polled rarely.
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

    /// Receives what has arrived, if a poll is due.
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
            // It is counted where its payload is parsed.
            Err(_) => Some(Datagram {
                source: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
                payload: &[],
                check: Check::Malformed,
            }),
        })
    }
}
