//! The processes of this host that this one has connections with.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// A process of this host, by the names of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProcess {
    /// The address that its messages come from.
    pub address: IpAddr,
    /// The prefix of its communication identifiers.
    pub prefix: u16,
}

/// The connections to their names, by the numbers of what can be read.
#[derive(Default)]
pub(super) struct Peers {
    last: u32,
    watched: BTreeMap<u64, (PeerProcess, OwnedFd)>,
}

impl Peers {
    pub(super) fn watches(&self, peer: PeerProcess) -> bool {
        self.watched.values().any(|(known, _)| *known == peer)
    }

    /// The number of the next one.
    pub(super) fn next(&mut self, first: u64) -> u64 {
        self.last = self.last.wrapping_add(1);
        first + u64::from(self.last)
    }

    pub(super) fn add(&mut self, number: u64, peer: PeerProcess, connection: OwnedFd) {
        self.watched.insert(number, (peer, connection));
    }

    /// Takes out the one that has ended.
    pub(super) fn ended(&mut self, number: u64) -> Option<PeerProcess> {
        let (peer, _) = self.watched.remove(&number)?;
        Some(peer)
    }
}
