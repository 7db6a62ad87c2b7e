//! Which packets the kernel passes to an engine.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use gdr_roce::Qpn;

use crate::error::Result;
use crate::socket::Socket;

/// The senders whose packets the kernel passes.
#[derive(Debug, Default)]
pub(crate) struct PeerFilter {
    /// The addresses of peers, and how many queue pairs are connected to each.
    peers: HashMap<IpAddr, u32>,
    /// The queue pairs that receive datagrams from any address.
    open_to_all: BTreeSet<Qpn>,
}

impl PeerFilter {
    /// Whether a queue pair is connected to this address.
    pub(crate) fn is_peer(&self, address: IpAddr) -> bool {
        self.peers.contains_key(&address)
    }

    /// Lets the kernel pass packets from this address.
    pub(crate) fn add_peer(&mut self, socket: &Socket, address: IpAddr) -> Result<()> {
        let count = self.peers.entry(address).or_default();
        *count += 1;
        if *count > 1 {
            return Ok(());
        }
        self.apply(socket).inspect_err(|_| {
            self.peers.remove(&address);
        })
    }

    /// Reverses one [`PeerFilter::add_peer`].
    pub(crate) fn remove_peer(&mut self, socket: &Socket, address: IpAddr) {
        let Some(count) = self.peers.get_mut(&address) else {
            return;
        };
        *count -= 1;
        if *count > 0 {
            return;
        }
        self.peers.remove(&address);
        self.narrow(socket);
    }

    /// Lets the kernel pass packets for this queue pair from any address; returns whether it did not
    /// before.
    pub(crate) fn open_to_all(&mut self, socket: &Socket, qpn: Qpn) -> Result<bool> {
        let is_new = self.open_to_all.insert(qpn);
        self.apply(socket).inspect_err(|_| {
            if is_new {
                self.close_to_all(socket, qpn);
            }
        })?;
        Ok(is_new)
    }

    /// Reverses [`PeerFilter::open_to_all`].
    pub(crate) fn close_to_all(&mut self, socket: &Socket, qpn: Qpn) {
        if self.open_to_all.remove(&qpn) {
            self.narrow(socket);
        }
    }

    fn apply(&self, socket: &Socket) -> Result<()> {
        socket.accept_from(self.peers.keys(), self.open_to_all.iter())
    }

    /// As [`PeerFilter::apply`], where fewer packets are passed than before.
    fn narrow(&self, socket: &Socket) {
        if let Err(error) = self.apply(socket) {
            // The engine drops those packets instead.
            tracing::debug!(%error, "the kernel still passes packets for former queue pairs");
        }
    }
}
