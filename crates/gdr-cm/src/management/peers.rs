//! Processes of this host with which this one has connections.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// A process of this host, identified by its address and ID prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProcess {
    /// The source address of its messages.
    pub address: IpAddr,
    /// The prefix of its communication IDs.
    pub prefix: u16,
}

/// Connections to their names, by epoll key.
#[derive(Default)]
pub(super) struct Peers {
    last: u32,
    watched: BTreeMap<u64, (PeerProcess, OwnedFd)>,
}

impl Peers {
    pub(super) fn watches(&self, peer: PeerProcess) -> bool {
        self.watched.values().any(|(known, _)| *known == peer)
    }

    /// Returns the next epoll key.
    pub(super) fn next(&mut self, first: u64) -> u64 {
        self.last = self.last.wrapping_add(1);
        first + u64::from(self.last)
    }

    pub(super) fn add(&mut self, number: u64, peer: PeerProcess, connection: OwnedFd) {
        self.watched.insert(number, (peer, connection));
    }

    /// Removes the peer that has ended.
    pub(super) fn ended(&mut self, number: u64) -> Option<PeerProcess> {
        let (peer, _) = self.watched.remove(&number)?;
        Some(peer)
    }
}
