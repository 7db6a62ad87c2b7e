//! Queue pairs between a link and an owner.

use std::time::Duration;

use gdr_rdma::{
    AckTimeout, CompletionQueue, ConnectionOptions, Deadline, Device, HandshakeError, Mtu,
    PeerInfo, ProtectionDomain, QueuePair, QueuePairOptions, RemoteMemory, RetryCount, Session,
};

use crate::error::Result;

/// How long unanswered requests are retransmitted before the connection fails. Calls have their own deadlines; this
/// ends a connection to a host that is gone.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);

/// Requests of each queue of a queue pair.
pub(crate) const QUEUE: u32 = 128;

/// Bytes of an object's cell, in the owner's mailbox and in the link's.
pub(crate) const CELL: u64 = 64;
/// Objects that a link may have open in each domain.
pub(crate) const CELLS: u16 = 1024;

/// Queue pairs of a link in one domain, over which large transfers are striped. A device works on several of them at a
/// time, and each has its own window on the network.
pub(crate) const LANES: usize = 4;

/// A queue pair with its completion queue, which both directions use.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) pair: QueuePair,
    pub(crate) queue: CompletionQueue,
}

impl Connection {
    pub(crate) fn new(domain: &ProtectionDomain) -> Result<Self> {
        let queue = domain.device().completion_queue(2 * QUEUE as usize);
        Self::with_queue(domain, queue)
    }

    /// Creates a connection whose completion queue others may share.
    pub(crate) fn with_queue(domain: &ProtectionDomain, queue: CompletionQueue) -> Result<Self> {
        let pair = domain.queue_pair(&QueuePairOptions::new(&queue))?;
        Ok(Self { pair, queue })
    }

    /// Exchanges with the peer what both need, connects, and waits at a barrier. Returns the peer's mailbox.
    pub(crate) fn connect(
        &self,
        session: &mut Session,
        mtu: Mtu,
        mailbox: RemoteMemory,
        deadline: Deadline,
    ) -> Result<RemoteMemory> {
        let theirs = session.introduce(
            &PeerInfo {
                endpoint: self.pair.endpoint(),
                path_mtu: mtu,
                regions: vec![mailbox],
            },
            deadline,
        )?;
        let [cells] = theirs.regions[..] else {
            let what = "another number of regions than one";
            return Err(gdr_rdma::Error::from(HandshakeError::Malformed(what)).into());
        };
        if cells.len < CELL * u64::from(CELLS) {
            let what = "a mailbox that is too short";
            return Err(gdr_rdma::Error::from(HandshakeError::Malformed(what)).into());
        }
        let options = ConnectionOptions {
            timeout: AckTimeout::new(14),
            retry_count: RetryCount::new(7),
            give_up_after: Some(GIVE_UP_AFTER),
            ..ConnectionOptions::new(mtu)
        };
        self.pair.connect(&theirs.endpoint, &options)?;
        session.barrier(deadline)?;
        Ok(cells)
    }
}

/// Returns the path MTU that two sides use: the smaller of their codes, which must both be known.
pub(crate) fn common_mtu(device: &Device, session: &Session, theirs: u8) -> Result<Mtu> {
    let ours = path_mtu(device, session)?;
    let what = HandshakeError::Malformed("an unknown path MTU");
    let theirs = Mtu::from_code(theirs).ok_or(gdr_rdma::Error::from(what))?;
    Ok(if theirs.bytes() < ours.bytes() {
        theirs
    } else {
        ours
    })
}

/// Returns the largest path MTU of the route to the peer.
pub(crate) fn path_mtu(device: &Device, session: &Session) -> Result<Mtu> {
    Ok(device.path_mtu(session.peer()?.ip().to_canonical())?)
}
