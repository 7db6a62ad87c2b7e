//! Which packets the kernel delivers to an engine.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use gdr_roce::Qpn;

use crate::error::Result;
use crate::socket::Socket;

/// The senders whose packets the kernel delivers to a device.
pub struct PeerFilter {
    socket: Arc<Socket>,
    /// Peer addresses, with the number of queue pairs connected to each.
    peers: HashMap<IpAddr, u32>,
    /// Queue pairs that receive datagrams from any address.
    open_to_all: BTreeSet<Qpn>,
}

impl PeerFilter {
    pub(crate) fn new(socket: Arc<Socket>) -> Self {
        Self {
            socket,
            peers: HashMap::new(),
            open_to_all: BTreeSet::new(),
        }
    }

    /// Returns whether any queue pair is connected to this address.
    pub(crate) fn is_peer(&self, address: IpAddr) -> bool {
        self.peers.contains_key(&address)
    }

    /// Lets the kernel deliver packets from this address. Calls nest: each is undone by one
    /// [`PeerFilter::remove_peer`].
    ///
    /// # Errors
    /// [`Error::Os`](crate::Error::Os).
    pub fn add_peer(&mut self, address: IpAddr) -> Result<()> {
        let count = self.peers.entry(address).or_default();
        *count += 1;
        if *count > 1 {
            return Ok(());
        }
        self.apply().inspect_err(|_| {
            self.peers.remove(&address);
        })
    }

    /// Undoes one [`PeerFilter::add_peer`].
    pub fn remove_peer(&mut self, address: IpAddr) {
        let Some(count) = self.peers.get_mut(&address) else {
            return;
        };
        *count -= 1;
        if *count > 0 {
            return;
        }
        self.peers.remove(&address);
        self.narrow();
    }

    /// Lets the kernel deliver packets for this queue pair from any address. Returns whether this is a change.
    ///
    /// # Errors
    /// [`Error::Os`](crate::Error::Os).
    pub fn open_to_all(&mut self, qpn: Qpn) -> Result<bool> {
        let is_new = self.open_to_all.insert(qpn);
        self.apply().inspect_err(|_| {
            if is_new {
                self.close_to_all(qpn);
            }
        })?;
        Ok(is_new)
    }

    /// Undoes [`PeerFilter::open_to_all`].
    pub fn close_to_all(&mut self, qpn: Qpn) {
        if self.open_to_all.remove(&qpn) {
            self.narrow();
        }
    }

    fn apply(&self) -> Result<()> {
        self.socket
            .accept_from(self.peers.keys(), self.open_to_all.iter())
    }

    /// Like [`PeerFilter::apply`], for a change that only narrows the filter; failures are logged.
    fn narrow(&self) {
        if let Err(error) = self.apply() {
            // Harmless: the engine drops those packets itself.
            tracing::debug!(%error, "the kernel still passes packets for former queue pairs");
        }
    }
}
