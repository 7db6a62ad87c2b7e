//! Requests that posting threads hand to the thread that holds the engine's lock.
//!
//! A thread that posts a short request and finds the engine locked does not wait: it leaves the request here, and the
//! lock holder posts and sends it. No request is lost, because both sides do two steps with a fence in between. The
//! poster leaves its request, then tries the lock; the holder unlocks, then looks here. At least one of them sees the
//! other's first step.
//!
//! The poster returns before the request is posted, so acceptance must be certain. Therefore the lock holder opens the
//! intake for a queue pair with the free room of its send queue, and closes it before it posts to that queue itself.

use std::mem;

use super::primitives::{AtomicBool, Mutex, Ordering, fence, lock};
use crate::int_map::IntMap;

/// Requests left for the holder of the engine's lock, for each queue pair that is open.
#[derive(Debug)]
pub(crate) struct Intake<T> {
    state: Mutex<State<T>>,
    /// Whether there is a request that no thread has taken.
    has_any: AtomicBool,
}

#[derive(Debug)]
struct State<T> {
    /// In posting order.
    left: Vec<Left<T>>,
    open: IntMap<Terms>,
}

/// A request for the queue pair of this number.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Left<T> {
    pub(crate) qpn: u32,
    pub(crate) request: T,
}

/// The requests that a queue pair is certain to accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The number of requests.
    pub(crate) room: u32,
    /// The maximum number of inline bytes per request.
    pub(crate) max_inline: u32,
    /// Whether READs and atomics are accepted.
    pub(crate) takes_reads: bool,
}

impl<T> Intake<T> {
    pub(crate) fn new() -> Self {
        let (left, open) = (Vec::new(), IntMap::default());
        Self {
            state: Mutex::new(State { left, open }),
            has_any: AtomicBool::new(false),
        }
    }

    /// Leaves the request that `request` builds for an open queue pair within its terms. Returns whether it did. Must
    /// be followed by [`Intake::serve`].
    pub(crate) fn leave(&self, qpn: u32, request: impl FnOnce(&Terms) -> Option<T>) -> bool {
        let mut state = lock(&self.state);
        let State { left, open } = &mut *state;
        let Some(terms) = open.get_mut(&qpn).filter(|terms| terms.room > 0) else {
            return false;
        };
        let Some(request) = request(terms) else {
            return false;
        };
        terms.room -= 1;
        left.push(Left { qpn, request });
        self.has_any.store(true, Ordering::Relaxed);
        true
    }

    /// Returns whether there is a request that this thread has left, or that was left before this thread locked the
    /// engine.
    pub(crate) fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Relaxed)
    }

    /// Passes the lock to `serve`, which takes the requests, as long as there are any and `try_lock` succeeds. For
    /// threads that have left a request or unlocked the engine. Any other lock holder calls this after unlocking.
    pub(crate) fn serve<G>(&self, try_lock: impl Fn() -> Option<G>, mut serve: impl FnMut(G)) {
        loop {
            // Orders the caller's first step before the look for the other side's.
            fence(Ordering::SeqCst);
            if !self.has_any() {
                return;
            }
            let Some(locked) = try_lock() else {
                return;
            };
            serve(locked);
        }
    }

    /// Makes the next [`Intake::serve`] lock the engine even if no request was left.
    pub(crate) fn call(&self) {
        self.has_any.store(true, Ordering::Relaxed);
    }

    /// Takes all requests into `taken`, which must be empty.
    pub(crate) fn take(&self, taken: &mut Vec<Left<T>>) {
        let mut state = lock(&self.state);
        self.has_any.store(false, Ordering::Relaxed);
        mem::swap(&mut state.left, taken);
    }

    /// Opens the intake for a queue pair.
    pub(crate) fn open(&self, qpn: u32, terms: Terms) {
        lock(&self.state).open.insert(qpn, terms);
    }

    /// Closes the intake for a queue pair. Requests left before can still be taken.
    pub(crate) fn close(&self, qpn: u32) {
        lock(&self.state).open.remove(&qpn);
    }

    /// Closes the intake for a queue pair, and discards the requests left for it.
    pub(crate) fn discard(&self, qpn: u32) {
        let mut state = lock(&self.state);
        state.open.remove(&qpn);
        state.left.retain(|left| left.qpn != qpn);
    }
}
