//! Locks that stay usable after a panic, and waiting for a value with a deadline.
//!
//! A panic of a caller's closure leaves no data of this crate half changed, so poisoning is ignored.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::sync::{RwLockReadGuard, RwLockWriteGuard};

use gdr_rdma::Deadline;

/// Locks a mutex.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for reading.
pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for writing.
pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// A value that one thread at a time uses, for as long as a transfer takes. Others wait for it up to
/// a deadline, which a mutex cannot do.
#[derive(Debug)]
pub(crate) struct Turns<T> {
    value: Mutex<Option<T>>,
    returned: Condvar,
}

/// The value, until this is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a, T> {
    turns: &'a Turns<T>,
    /// Present until the drop.
    value: Option<T>,
}

impl<T> Turns<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: Mutex::new(Some(value)),
            returned: Condvar::new(),
        }
    }

    /// Takes the value; `None` if another thread uses it beyond the deadline.
    pub(crate) fn take(&self, deadline: Deadline) -> Option<Turn<'_, T>> {
        let waited =
            self.returned
                .wait_timeout_while(lock(&self.value), deadline.remaining(), |value| {
                    value.is_none()
                });
        let (mut value, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let value = value.take()?;
        Some(Turn {
            turns: self,
            value: Some(value),
        })
    }
}

impl<T> Deref for Turn<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("present until the drop")
    }
}

impl<T> DerefMut for Turn<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("present until the drop")
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        *lock(&self.turns.value) = self.value.take();
        self.turns.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_second_thread_waits_for_its_turn_up_to_its_deadline() {
        let turns = Turns::new(1);
        let mut turn = turns.take(Deadline::after(Duration::ZERO)).unwrap();
        assert!(turns.take(Deadline::after(Duration::ZERO)).is_none());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                *turns
                    .take(Deadline::after(Duration::from_secs(60)))
                    .unwrap()
            });
            *turn = 2;
            drop(turn);
            assert_eq!(other.join().unwrap(), 2);
        });
    }
}
