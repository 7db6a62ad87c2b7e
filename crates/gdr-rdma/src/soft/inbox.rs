//! Where packets arrive: those of the UDP socket, and those of the raw one beside it.

use std::io::IoSliceMut;
use std::net::IpAddr;

use gdr_roce::wire::{Ipv4Datagram, MAX_DATAGRAM, Packet, icrc};
use quinn_udp::RecvMeta;

use super::counters::Counters;
use super::identification::AnyIdentification;
use super::raw::RawSocket;
use super::socket::Socket;
use crate::error::{Error, Result};

/// Datagrams, each merged from many by the kernel, taken by one system call where many come. More
/// would only push each other out of the CPU's cache.
const RECEIVES: usize = 4;
/// Room for one of them.
const RECEIVE_LEN: usize = 1 << 16;

/// Packets of the raw socket, none of which the kernel merges, taken in one turn.
const RAW_RECEIVES: usize = 32;
/// Room for one of them: the longest, and a byte by which a longer one is told.
const RAW_LEN: usize = Ipv4Datagram::HEADERS + MAX_DATAGRAM + 1;
/// How many looks at the UDP socket go by before the raw one is looked at, where nothing comes
/// there for long: a look is a system call.
const RAW_EVERY: u32 = 16;
/// How many looks at the raw socket may find nothing until nothing is taken to come there.
const RAW_PATIENCE: u32 = 4096;

/// Where a packet came from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    pub(super) address: IpAddr,
    /// The kernel has checked UDP's checksum, or it is not known whether there is one.
    pub(super) by_udp: bool,
}

/// What has arrived.
pub(super) struct Inbox {
    bytes: Box<[u8]>,
    metas: [RecvMeta; RECEIVES],
    count: usize,
    /// How many to ask for: one where one comes at a time, as the kernel's look for another would
    /// only delay it.
    wanted: usize,
    any: AnyIdentification,
    raw: Option<RawInbox>,
}

impl Inbox {
    pub(super) fn new(socket: &Socket) -> Self {
        Self {
            bytes: vec![0; RECEIVES * RECEIVE_LEN].into_boxed_slice(),
            metas: [RecvMeta::default(); RECEIVES],
            count: 0,
            wanted: 1,
            any: AnyIdentification::new(),
            raw: socket.raw().map(|_| RawInbox::new()),
        }
    }

    /// Takes what has arrived, without waiting; whether there was any.
    pub(super) fn fill(&mut self, socket: &Socket) -> Result<bool> {
        self.count = 0;
        let mut rooms = self.bytes.chunks_mut(RECEIVE_LEN).map(IoSliceMut::new);
        let mut rooms: [IoSliceMut<'_>; RECEIVES] =
            std::array::from_fn(|_| rooms.next().unwrap_or_else(|| IoSliceMut::new(&mut [])));
        self.count = socket
            .receive(&mut rooms[..self.wanted], &mut self.metas[..self.wanted])
            .map_err(|error| Error::os("recvmmsg", error))?;
        self.wanted = if self.count > 0 { RECEIVES } else { 1 };
        let mut any = self.count > 0;
        if let (Some(inbox), Some(raw)) = (&mut self.raw, socket.raw()) {
            if self.metas[..self.count].iter().any(|meta| meta.len == 0) {
                socket.rouse_for_good();
            }
            inbox.count = 0;
            if raw.is_roused() {
                any |= inbox.fill(raw)?;
            }
        }
        Ok(any)
    }

    /// The packets that arrived intact, each with its sender.
    pub(super) fn packets<'a>(
        &'a self,
        socket: &'a Socket,
        counters: &mut Counters,
        mut take: impl FnMut(Sender, &Packet<'_>, &mut Counters),
    ) {
        for (meta, room) in self.metas[..self.count]
            .iter()
            .zip(self.bytes.chunks(RECEIVE_LEN))
        {
            let merged = &room[..meta.len.min(room.len())];
            for (position, datagram) in merged.chunks(meta.stride.max(1)).enumerate() {
                let is_intact = || socket.is_intact(&self.any, meta.addr, position, datagram);
                let sender = Sender {
                    address: meta.addr.ip(),
                    by_udp: true,
                };
                judge(datagram, sender, is_intact, counters, &mut take);
            }
        }
        if let (Some(inbox), Some(socket)) = (&self.raw, socket.raw()) {
            inbox.packets(socket, counters, take);
        }
    }
}

/// The raw socket's part.
struct RawInbox {
    bytes: Box<[u8]>,
    lens: [usize; RAW_RECEIVES],
    count: usize,
    /// Looks at the UDP socket since the last one at this.
    skipped: u32,
    /// Looks that may find nothing until it is looked at more rarely.
    patience: u32,
}

impl RawInbox {
    fn new() -> Self {
        Self {
            bytes: vec![0; RAW_RECEIVES * RAW_LEN].into_boxed_slice(),
            lens: [0; RAW_RECEIVES],
            count: 0,
            skipped: 0,
            patience: 0,
        }
    }

    /// Takes what has arrived, where it is time to look.
    fn fill(&mut self, socket: &RawSocket) -> Result<bool> {
        self.count = 0;
        self.skipped += 1;
        if self.patience == 0 && self.skipped < RAW_EVERY {
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
        self.patience = match self.count {
            0 => self.patience.saturating_sub(1),
            _ => RAW_PATIENCE,
        };
        Ok(self.count > 0)
    }

    fn packets(
        &self,
        socket: &RawSocket,
        counters: &mut Counters,
        mut take: impl FnMut(Sender, &Packet<'_>, &mut Counters),
    ) {
        let rooms = self.bytes.chunks(RAW_LEN);
        for (room, len) in rooms.zip(&self.lens[..self.count]) {
            let Ok(read) = Ipv4Datagram::new(&room[..*len]) else {
                counters.packets_received += 1;
                counters.malformed += 1;
                continue;
            };
            if !socket.is_for_us(&read) {
                continue;
            }
            let is_intact = || icrc::matches(&read.path, read.payload);
            let sender = Sender {
                address: read.src.into(),
                by_udp: false,
            };
            judge(read.payload, sender, is_intact, counters, &mut take);
        }
    }
}

/// Hands a datagram on where it is an intact packet, and counts what it is.
fn judge(
    datagram: &[u8],
    from: Sender,
    is_intact: impl FnOnce() -> bool,
    counters: &mut Counters,
    take: &mut impl FnMut(Sender, &Packet<'_>, &mut Counters),
) {
    counters.packets_received += 1;
    match Packet::new(datagram) {
        Err(_) => counters.malformed += 1,
        Ok(packet) if is_intact() => take(from, &packet, counters),
        Ok(_) => counters.icrc_mismatches += 1,
    }
}
