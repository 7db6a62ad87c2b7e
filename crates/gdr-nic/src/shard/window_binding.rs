//! What decides about accesses by the key of a memory window.

use std::sync::{Arc, Mutex};

use gdr_process::lock;
use gdr_roce::{AccessError, Key, Qpn};

use crate::types::Domain;

/// How a memory window is bound under one of its keys.
#[derive(Debug)]
pub(crate) struct Binding {
    pub(crate) domain: Domain,
    /// The queue pair whose peer may use it (type 2), or `None` (type 1).
    pub(crate) queue_pair: Option<Qpn>,
    pub(crate) window: Arc<WindowState>,
}

/// The keys of a memory window that requests begin and end.
#[derive(Debug, Default)]
pub(crate) struct WindowState(Mutex<Keys>);

#[derive(Debug, Default)]
struct Keys {
    /// The key by which there is access.
    bound: Option<u32>,
    /// Those that requests will bind.
    prepared: Vec<u32>,
}

impl Keys {
    /// Takes a key that was prepared; returns whether it was.
    fn take(&mut self, key: u32) -> bool {
        let place = self.prepared.iter().position(|prepared| *prepared == key);
        place.map(|place| self.prepared.remove(place)).is_some()
    }
}

impl WindowState {
    pub(crate) fn prepare(&self, key: u32) {
        lock::lock(&self.0).prepared.push(key);
    }

    /// Forgets a key that was prepared; returns whether there is no access by it.
    pub(crate) fn cancel(&self, key: u32) -> bool {
        let mut keys = lock::lock(&self.0);
        keys.take(key);
        keys.bound != Some(key)
    }

    /// Returns whether there is access by a key, or will be.
    pub(crate) fn is_in_use(&self, key: u32) -> bool {
        let keys = lock::lock(&self.0);
        keys.bound == Some(key) || keys.prepared.contains(&key)
    }
}

impl Binding {
    /// Returns whether peers of this queue pair have access by the key.
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
        // A window of type 1 can be rebound while it is bound; one of type 2 must have been invalidated
        // first.
        let is_free = self.queue_pair.is_none() || keys.bound.is_none();
        if !was_prepared || !is_free || !self.is_for(domain, qpn) {
            return Err(AccessError::UnknownKey);
        }
        keys.bound = Some(key);
        Ok(())
    }

    /// Ends the access by this key to a window of type 2.
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
