//! Access control by memory window keys.

use std::sync::{Arc, Mutex};

use gdr_process::lock;
use gdr_roce::{AccessError, Key, Qpn};

use crate::types::Domain;

/// The binding of a memory window under one of its keys.
#[derive(Debug)]
pub(crate) struct Binding {
    pub(crate) domain: Domain,
    /// The queue pair whose peer may use it (type 2); `None` for type 1.
    pub(crate) queue_pair: Option<Qpn>,
    pub(crate) window: Arc<WindowState>,
}

/// The keys of a memory window, as bound and invalidated by requests.
#[derive(Debug, Default)]
pub(crate) struct WindowState(Mutex<Keys>);

#[derive(Debug, Default)]
struct Keys {
    /// The key that currently grants access.
    bound: Option<u32>,
    /// Keys that posted requests will bind.
    prepared: Vec<u32>,
}

impl Keys {
    /// Removes a prepared key. Returns whether it was prepared.
    fn take(&mut self, key: u32) -> bool {
        let place = self.prepared.iter().position(|prepared| *prepared == key);
        place.map(|place| self.prepared.remove(place)).is_some()
    }
}

impl WindowState {
    pub(crate) fn prepare(&self, key: u32) {
        lock::lock(&self.0).prepared.push(key);
    }

    /// Cancels a prepared key. Returns whether the key does not grant access.
    pub(crate) fn cancel(&self, key: u32) -> bool {
        let mut keys = lock::lock(&self.0);
        keys.take(key);
        keys.bound != Some(key)
    }

    /// Returns whether a key grants access, or will.
    pub(crate) fn is_in_use(&self, key: u32) -> bool {
        let keys = lock::lock(&self.0);
        keys.bound == Some(key) || keys.prepared.contains(&key)
    }
}

impl Binding {
    /// Returns whether the key grants access to this queue pair's peers.
    pub(crate) fn permits(&self, key: Key, domain: Domain, qpn: Qpn) -> bool {
        let Key::Remote(rkey) = key else {
            return false;
        };
        self.is_for(domain, qpn) && lock::lock(&self.window.0).bound == Some(rkey.0)
    }

    fn is_for(&self, domain: Domain, qpn: Qpn) -> bool {
        self.domain == domain && self.queue_pair.is_none_or(|own| own == qpn)
    }

    /// Binds the window under this key.
    pub(crate) fn begin(&self, key: u32, domain: Domain, qpn: Qpn) -> Result<(), AccessError> {
        let mut keys = lock::lock(&self.window.0);
        let was_prepared = keys.take(key);
        // A type 1 window can be rebound while bound; a type 2 window must be invalidated first.
        let is_free = self.queue_pair.is_none() || keys.bound.is_none();
        if !was_prepared || !is_free || !self.is_for(domain, qpn) {
            return Err(AccessError::UnknownKey);
        }
        keys.bound = Some(key);
        Ok(())
    }

    /// Revokes the access by this key to a type 2 window.
    pub(crate) fn end(&self, key: u32, domain: Domain, qpn: Qpn) -> Result<(), AccessError> {
        let mut keys = lock::lock(&self.window.0);
        let is_bound = keys.bound == Some(key) && self.queue_pair.is_some();
        if !is_bound || !self.is_for(domain, qpn) {
            return Err(AccessError::UnknownKey);
        }
        keys.bound = None;
        Ok(())
    }
}
