//! Raw packets in the engine: flows, and frames between the packet socket and queue pairs.

use std::io;

use gdr_roce::{Memory, Qpn, RawPacketQueuePair, WcStatus};

use crate::error::{Error, Result};
use crate::int_map::IntMap;
use crate::shard::qp_table::Acceptor;
use crate::types::Counters;
use gdr_udp::{
    FlowId, FlowRule, FlowTable, FrameHeaders, Join, LONGEST_FRAME, Membership, PacketSocket, ROOM,
    SentFrame, Spread,
};

/// The maximum number of frames received by one poll.
const RECEIVES: usize = 64;
/// The number of frames that one queue pair sends before the next one has its turn.
const SENDS: usize = 64;

/// The raw-packet state of an engine.
#[derive(Default)]
pub(crate) struct PacketPort {
    flows: FlowTable,
    /// The spreads of queue pairs whose frames are distributed over others, by queue pair number.
    spreads: IntMap<Spread>,
    /// The memberships that make the interface receive what the flows need.
    memberships: Vec<Membership>,
    /// The queue pairs whose next frame waits for room in the socket.
    waiting: Vec<u32>,
    /// Sent frames that the interface itself receives; at most [`RECEIVES`].
    looped: Vec<Vec<u8>>,
    /// A buffer for one frame.
    room: Vec<u8>,
}

/// The outcome of sending a queue pair's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SentFrames {
    /// All frames were sent.
    All,
    /// There may be more frames to send.
    More,
    /// The next frame waits for room in the socket.
    Blocked,
}

impl PacketPort {
    /// Returns whether any frame can have a receiver.
    pub(crate) fn has_flows(&self) -> bool {
        !self.flows.is_empty()
    }

    /// Returns whether looped-back frames wait to be received, in which case there are flows.
    pub(crate) fn has_looped(&self) -> bool {
        !self.looped.is_empty()
    }

    /// Returns whether frames wait for room in the socket.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Adds a flow, whose frames the queue pair receives from now on.
    pub(crate) fn add_flow(
        &mut self,
        socket: &PacketSocket,
        qpn: Qpn,
        rule: FlowRule,
    ) -> Result<FlowId> {
        self.make_room();
        // Add the flow first, because the memberships depend on all flows.
        let id = self.flows.add(qpn, rule);
        let applied = self
            .apply_memberships(socket)
            .map_err(|source| Error::os("setsockopt(PACKET_ADD_MEMBERSHIP)", source))
            .and_then(|()| {
                let listening = socket.listen();
                listening.map_err(|source| Error::os("bind(AF_PACKET)", source))
            });
        match applied {
            Ok(()) => Ok(id),
            Err(error) => {
                self.remove_flow(socket, id);
                Err(error)
            }
        }
    }

    pub(crate) fn remove_flow(&mut self, socket: &PacketSocket, id: FlowId) {
        self.flows.remove(id);
        self.narrow(socket);
    }

    /// Removes the flows of a queue pair.
    pub(crate) fn remove_flows(&mut self, socket: &PacketSocket, qpn: Qpn) {
        self.flows.remove_all(qpn);
        self.spreads.remove(&qpn.get());
        self.narrow(socket);
    }

    /// Distributes the frames of a queue pair's flows over others from now on.
    pub(crate) fn spread(&mut self, qpn: Qpn, spread: Spread) {
        self.spreads.insert(qpn.get(), spread);
    }

    /// Restricts what the interface receives to what the flows need.
    fn narrow(&mut self, socket: &PacketSocket) {
        let mut narrowed = self.apply_memberships(socket);
        if self.flows.is_empty() {
            self.looped.clear();
            self.make_room();
            narrowed = narrowed.and_then(|()| socket.be_silent(&mut self.room));
        }
        if let Err(error) = narrowed {
            // The frames are dropped here instead.
            tracing::debug!(%error, "the kernel still passes frames of former flows");
        }
    }

    fn apply_memberships(&mut self, socket: &PacketSocket) -> io::Result<()> {
        let wanted = self.flows.memberships();
        let mut result = Ok(());
        // A membership that cannot be dropped stays in the list, to be retried later.
        self.memberships.retain(|membership| {
            if wanted.contains(membership) {
                return true;
            }
            let left = socket.set_membership(*membership, Join::Leave);
            let stays = left.is_err();
            result = std::mem::replace(&mut result, Ok(())).and(left);
            stays
        });
        for membership in wanted {
            if !self.memberships.contains(&membership) {
                socket.set_membership(membership, Join::Join)?;
                self.memberships.push(membership);
            }
        }
        result
    }

    fn make_room(&mut self) {
        self.room.resize(ROOM, 0);
    }

    /// Passes the frames that have arrived to queue pairs. Returns whether any of them accepted one.
    pub(crate) fn receive(&mut self, socket: &PacketSocket, acceptor: &mut Acceptor<'_>) -> bool {
        let mut accepted = false;
        if self.flows.is_empty() {
            return accepted;
        }
        for frame in std::mem::take(&mut self.looped) {
            accepted |= steer(&self.flows, &self.spreads, &frame, acceptor);
        }
        for _ in 0..RECEIVES {
            let frame = match socket.receive(&mut self.room) {
                Ok(Some(frame)) => &*frame,
                Ok(None) => break,
                // The interface went down, which the socket reports once, or the kernel cannot describe the kind of a
                // frame.
                Err(error) => {
                    tracing::debug!(%error, "receiving a frame failed");
                    break;
                }
            };
            accepted |= steer(&self.flows, &self.spreads, frame, acceptor);
        }
        accepted
    }

    /// Sends frames of a queue pair through the device's socket.
    pub(crate) fn transmit(
        &mut self,
        socket: Option<&PacketSocket>,
        pair: &mut RawPacketQueuePair,
        memory: &mut dyn Memory,
        counters: &mut Counters,
    ) -> SentFrames {
        let Some(socket) = socket else {
            return SentFrames::All;
        };
        self.make_room();
        for _ in 0..SENDS {
            // Looped-back frames are received by the next poll; limit how many can accumulate until then.
            if self.looped.len() >= RECEIVES {
                break;
            }
            let out = &mut self.room[..LONGEST_FRAME];
            let Some(next) = pair.poll_transmit(memory, out) else {
                return SentFrames::All;
            };
            let frame = &mut out[..next.len];
            if next.ip_checksum
                && let Some(headers) = FrameHeaders::parse(frame)
            {
                headers.fill_checksums(frame);
            }
            let sent = socket.send(frame).unwrap_or_else(|error| {
                tracing::warn!(%error, "a frame was not sent; see whether the interface is up");
                SentFrame::Failed
            });
            let status = match sent {
                SentFrame::Sent => WcStatus::Success,
                SentFrame::TooLong => WcStatus::LocalLength,
                SentFrame::Failed => WcStatus::LocalOperation,
                SentFrame::Blocked => {
                    self.waiting.push(pair.qpn().get());
                    return SentFrames::Blocked;
                }
            };
            match status {
                WcStatus::Success => {
                    counters.frames_sent += 1;
                    if !self.flows.is_empty() && socket.takes_back(frame) {
                        self.looped.push(frame.to_vec());
                    }
                }
                _ => counters.sends_failed += 1,
            }
            pair.transmitted(status);
        }
        SentFrames::More
    }

    /// Takes the queue pairs whose next frame waited for room in the socket.
    pub(crate) fn take_waiting(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.waiting)
    }
}

/// Passes a frame to the queue pairs that receive it. Returns whether any of them accepted it.
fn steer(
    flows: &FlowTable,
    spreads: &IntMap<Spread>,
    frame: &[u8],
    acceptor: &mut Acceptor<'_>,
) -> bool {
    let Some(headers) = FrameHeaders::parse(frame) else {
        return false;
    };
    let receivers = flows.receivers(&headers);
    let checksum_ok = !receivers.is_empty() && headers.checksums_are_right(frame);
    let mut accepted = false;
    for qpn in receivers {
        let spread = spreads.get(&qpn.get());
        let qpn = spread.map_or(qpn, |spread| spread.select(&headers));
        accepted |= acceptor.accept_frame(qpn, frame, checksum_ok);
    }
    accepted
}
