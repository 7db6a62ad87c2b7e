//! The owner's end of a link's queue pair: a mailbox that the link writes to, and wake-ups.
//!
//! The mailbox has a cell for each object that the link has open, with two words that only the link writes: the epoch
//! that it waits for (`wanted`), and the last epoch that it has read as a follower (`read`). The owner loads them when
//! it publishes. It sends one wake-up for each value of `wanted`, so a link that does not wait costs one load, and no
//! link can be sent more wake-ups than it has asked for.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex};

use gdr_rdma::{
    Access, Buffer, Deadline, Immediate, MemoryRegion, Mtu, ProtectionDomain, RemoteMemory,
    SendRequest, Session, WcStatus, WrId,
};

use crate::connection::{CELL, CELLS, Connection, LANES};
use crate::epoch::Epoch;
use crate::error::Result;
use crate::lock::lock;

/// The offset of `wanted` in a cell.
pub(crate) const WANTED: u64 = 0;
/// The offset of `read` in a cell.
pub(crate) const READ: u64 = 8;

/// One link's queue pair in one domain.
#[derive(Debug)]
pub(crate) struct PeerChannel {
    // Fields drop in order: the queue pair before the mailbox that it accesses.
    connected: Mutex<Option<Connected>>,
    /// Queue pairs for large transfers, in addition to `connected`.
    lanes: Mutex<Vec<Connection>>,
    mailbox: MemoryRegion,
    domain: ProtectionDomain,
    peer: SocketAddr,
}

#[derive(Debug)]
struct Connected {
    connection: Connection,
    /// The link's mailbox.
    cells: RemoteMemory,
    /// The last answered value of `wanted`, for each cell.
    answered: Vec<Wanted>,
}

impl PeerChannel {
    pub(crate) fn new(domain: &ProtectionDomain, peer: SocketAddr) -> Result<Self> {
        let mailbox = Buffer::host((CELL * u64::from(CELLS)) as usize)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        Ok(Self {
            connected: Mutex::new(None),
            lanes: Mutex::default(),
            mailbox: domain.register(&mailbox, access)?,
            domain: domain.clone(),
            peer,
        })
    }

    /// Returns the address of the link.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Connects a new queue pair to one of the link, replacing an earlier one.
    pub(crate) fn connect(
        &self,
        session: &mut Session,
        mtu: Mtu,
        deadline: Deadline,
    ) -> Result<()> {
        // The earlier ones failed, or the link gave them up.
        lock(&self.connected).take();
        lock(&self.lanes).clear();
        let connection = Connection::new(&self.domain)?;
        let cells = connection.connect(session, mtu, self.mailbox.remote(), deadline)?;
        *lock(&self.connected) = Some(Connected {
            connection,
            cells,
            answered: vec![Wanted(0); usize::from(CELLS)],
        });
        Ok(())
    }

    /// Returns whether the link has as many queue pairs as it may.
    pub(crate) fn is_wide(&self) -> bool {
        lock(&self.lanes).len() + 1 >= LANES
    }

    /// Connects a queue pair of the link beside the first one.
    pub(crate) fn widen(&self, session: &mut Session, mtu: Mtu, deadline: Deadline) -> Result<()> {
        let lane = Connection::new(&self.domain)?;
        lane.connect(session, mtu, self.mailbox.remote(), deadline)?;
        lock(&self.lanes).push(lane);
        Ok(())
    }

    /// Empties a cell for another object.
    pub(crate) fn clear(&self, cell: u16) -> Result<()> {
        let zeros = [0; CELL as usize];
        let at = CELL * u64::from(cell);
        self.mailbox.buffer().write_at(at, &zeros)?;
        if let Some(connected) = &mut *lock(&self.connected)
            && let Some(answered) = connected.answered.get_mut(usize::from(cell))
        {
            *answered = Wanted(0);
        }
        Ok(())
    }

    /// Returns the last epoch that the link has read as a follower.
    pub(crate) fn last_read(&self, cell: u16) -> Result<u64> {
        let at = CELL * u64::from(cell) + READ;
        Ok(u64::from_le(self.mailbox.buffer().load_u64(at)?))
    }

    /// Records the epoch after which a follower begins.
    pub(crate) fn set_last_read(&self, cell: u16, epoch: Option<Epoch>) -> Result<()> {
        let at = CELL * u64::from(cell) + READ;
        let number = epoch.map_or(0, Epoch::get);
        Ok(self.mailbox.buffer().write_at(at, &number.to_le_bytes())?)
    }

    /// Wakes the link if it waits for this epoch of the object in `cell`. Without a queue pair, or if the link has
    /// stopped, this does nothing: a link also checks the header from time to time.
    fn wake(&self, cell: u16, epoch: Epoch) -> Result<()> {
        let wanted = CELL * u64::from(cell) + WANTED;
        let wanted = Wanted(u64::from_le(self.mailbox.buffer().load_u64(wanted)?));
        if !wanted.is_answered_by(epoch, Wanted(0)) {
            return Ok(());
        }
        let mut connected = lock(&self.connected);
        let Some(Connected {
            connection,
            cells,
            answered,
        }) = &mut *connected
        else {
            return Ok(());
        };
        let Some(answered) = answered.get_mut(usize::from(cell)) else {
            return Ok(());
        };
        if !wanted.is_answered_by(epoch, *answered) {
            return Ok(());
        }
        let write = SendRequest::write(WrId(u64::from(cell)), cells.at(CELL * u64::from(cell)))
            .inline(&epoch.get().to_le_bytes())
            .immediate(Immediate(u32::from(cell)));
        let posted = connection.pair.post_send(write);
        // After the wake-up, which must be sent at once.
        let mut failed = false;
        while let Some(completion) = connection.queue.poll()? {
            failed |= completion.status != WcStatus::Success;
        }
        if failed {
            *connected = None;
            return Ok(());
        }
        posted?;
        *answered = wanted;
        Ok(())
    }
}

/// The first epoch that a link waits for; 0 if it waits for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Wanted(pub(crate) u64);

impl Wanted {
    /// Returns whether this epoch is what the link waits for, and its wait was not `answered`
    /// before.
    pub(crate) fn is_answered_by(self, epoch: Epoch, answered: Self) -> bool {
        self.0 != 0 && self.0 <= epoch.get() && answered < self
    }
}

/// One object that a link has open.
#[derive(Debug)]
pub(crate) struct Watcher {
    pub(crate) channel: Arc<PeerChannel>,
    pub(crate) cell: u16,
    /// Whether the link reads every epoch.
    pub(crate) follows: AtomicBool,
}

impl Watcher {
    /// Wakes the link if it waits for this epoch.
    pub(crate) fn wake(&self, epoch: Epoch) {
        // The link stores `wanted`, then reads the header; the owner has stored the header and loads `wanted`. With
        // this fence, at least one of them sees the other's store.
        fence(Ordering::SeqCst);
        if let Err(error) = self.channel.wake(self.cell, epoch) {
            tracing::debug!(peer = %self.channel.peer(), %error, "a wake-up was not sent");
        }
    }

    /// Returns the last epoch that the link has read; `None` if it does not follow.
    pub(crate) fn last_read(&self) -> Option<u64> {
        let follows = self.follows.load(Ordering::Acquire);
        // In a forked child, the mailbox does not count as a follower's.
        follows.then(|| self.channel.last_read(self.cell).ok())?
    }
}
