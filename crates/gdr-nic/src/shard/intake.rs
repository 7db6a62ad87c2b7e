//! What threads leave to the thread that has the engine's lock.
//!
//! A thread that posts a short request and finds the engine locked does not wait: it leaves the request here, and
//! the holder posts and sends it. No request is lost, as each side does two things in one order, with a fence
//! between them: the poster leaves its request and then tries the lock, the holder unlocks and then looks here.
//! One of them sees what the other has done first.
//!
//! The poster returns before the request is posted, so it must be certain that it will be accepted. For that the
//! holder of the lock opens the intake for a queue pair with the room of its send queue, and closes it
//! before it posts to that queue itself.

use std::mem;

use super::primitives::{AtomicBool, Mutex, Ordering, fence, lock};
use crate::int_map::IntMap;

/// What threads leave to the holder of the engine's lock, for each open queue pair.
#[derive(Debug)]
pub(crate) struct Intake<T> {
    state: Mutex<State<T>>,
    /// Whether anything was left that no thread has taken.
    has_any: AtomicBool,
}

#[derive(Debug)]
struct State<T> {
    /// In the order in which it was left.
    left: Vec<Left<T>>,
    open: IntMap<Terms>,
}

/// What was left for a queue pair of this number.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Left<T> {
    pub(crate) qpn: u32,
    pub(crate) request: T,
}

/// What a queue pair accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// How many requests.
    pub(crate) room: u32,
    /// How many inline bytes a request has at most.
    pub(crate) max_inline: u32,
    /// READs and atomics as well.
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

    /// Leaves what `request` makes for an open queue pair whose terms it keeps; returns whether it did. It is followed
    /// by [`Intake::serve`].
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

    /// Whether anything was left by this thread, or before this thread has locked the engine.
    pub(crate) fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Relaxed)
    }

    /// While there is anything and `try_lock` succeeds, passes the lock to `serve`, which takes it. For threads that have
    /// left something, or have unlocked the engine. Any other thread that has the lock calls this afterwards.
    pub(crate) fn serve<G>(&self, try_lock: impl Fn() -> Option<G>, mut serve: impl FnMut(G)) {
        loop {
            // Between what the caller has done and the look at what others have.
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

    /// Lets the next [`Intake::serve`] lock the engine though nothing was left.
    pub(crate) fn call(&self) {
        self.has_any.store(true, Ordering::Relaxed);
    }

    /// Takes what was left; puts it into `taken`, which is empty.
    pub(crate) fn take(&self, taken: &mut Vec<Left<T>>) {
        let mut state = lock(&self.state);
        self.has_any.store(false, Ordering::Relaxed);
        mem::swap(&mut state.left, taken);
    }

    /// Opens it for a queue pair.
    pub(crate) fn open(&self, qpn: u32, terms: Terms) {
        lock(&self.state).open.insert(qpn, terms);
    }

    /// Closes it for a queue pair. What was left for it before can still be taken.
    pub(crate) fn close(&self, qpn: u32) {
        lock(&self.state).open.remove(&qpn);
    }

    /// Closes it for a queue pair, and discards what was left for that.
    pub(crate) fn discard(&self, qpn: u32) {
        let mut state = lock(&self.state);
        state.open.remove(&qpn);
        state.left.retain(|left| left.qpn != qpn);
    }
}
