//! Guard of the locked engine.

use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{NEVER, NOW, SharedEngine};
use crate::shard::clock::nanoseconds;
use crate::shard::engine::Engine;

impl SharedEngine {
    /// Returns the guard of the engine, which the caller has locked, after taking the requests in the intake.
    pub(super) fn guard<'a>(&'a self, mut engine: MutexGuard<'a, Engine>) -> EngineGuard<'a> {
        engine.take_left();
        EngineGuard {
            engine,
            look: IntakeLook(Some(self)),
            due: &self.found.0.due,
        }
    }
}

/// Guard of the locked engine. Unlocking updates [`SharedEngine::due`].
pub(crate) struct EngineGuard<'a> {
    engine: MutexGuard<'a, Engine>,
    // Dropped after the mutex guard above, which unlocks the engine.
    look: IntakeLook<'a>,
    due: &'a AtomicU64,
}

impl EngineGuard<'_> {
    /// Returns when the engine will have something to do even if nothing arrives, as [`SharedEngine::due`].
    fn due(&self) -> u64 {
        let wakeup = self.engine.wakeup();
        match wakeup.at {
            _ if wakeup.when_writable
                || wakeup.when_frames_fit
                || self.engine.rings.is_blocked()
                || self.engine.has_work() =>
            {
                NOW
            }
            Some(at) => nanoseconds(at.elapsed()),
            None => NEVER,
        }
    }

    /// Skips the look at the intake after unlocking.
    pub(super) fn leave_intake(&mut self) {
        self.look.0 = None;
    }
}

impl Deref for EngineGuard<'_> {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl DerefMut for EngineGuard<'_> {
    fn deref_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }
}

impl Drop for EngineGuard<'_> {
    fn drop(&mut self) {
        let due = match self.engine.rings.has_hidden() {
            // The usual case of many posts, at hardly any cost.
            true => NOW,
            false => self.due(),
        };
        // A store would take the cache line from those who only read it.
        if self.due.load(Ordering::Relaxed) != due {
            self.due.store(due, Ordering::Release);
        }
        if !self.engine.has_intake() {
            self.look.0 = None;
        }
    }
}

/// Looks at the intake when dropped, after the engine was unlocked.
struct IntakeLook<'a>(Option<&'a SharedEngine>);

impl Drop for IntakeLook<'_> {
    fn drop(&mut self) {
        if let Some(shared) = self.0 {
            shared.serve_intake();
        }
    }
}
