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
pub(crate) struct DeadlineMutex<T> {
    state: Mutex<State<T>>,
    returned: Condvar,
}

#[derive(Debug)]
struct State<T> {
    /// `None` while a thread uses it.
    value: Option<T>,
    /// How many threads wait for it.
    waiting: usize,
}

/// The value, until this is dropped.
#[derive(Debug)]
pub(crate) struct DeadlineGuard<'a, T> {
    mutex: &'a DeadlineMutex<T>,
    /// Present until the drop.
    value: Option<T>,
}

impl<T> DeadlineMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            state: Mutex::new(State {
                value: Some(value),
                waiting: 0,
            }),
            returned: Condvar::new(),
        }
    }

    /// Takes the value; `None` if another thread uses it beyond the deadline.
    pub(crate) fn take(&self, deadline: Deadline) -> Option<DeadlineGuard<'_, T>> {
        let mut state = lock(&self.state);
        if state.value.is_none() {
            state.waiting += 1;
            let is_used = |state: &mut State<T>| state.value.is_none();
            let remaining = deadline.remaining();
            let waited = self.returned.wait_timeout_while(state, remaining, is_used);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        let value = state.value.take()?;
        Some(DeadlineGuard {
            mutex: self,
            value: Some(value),
        })
    }
}

impl<T> Deref for DeadlineGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("present until the drop")
    }
}

impl<T> DerefMut for DeadlineGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("present until the drop")
    }
}

impl<T> Drop for DeadlineGuard<'_, T> {
    fn drop(&mut self) {
        let mut state = lock(&self.mutex.state);
        state.value = self.value.take();
        // Without a waiter the wake-up would be a system call for nothing, at the end of each transfer.
        if state.waiting > 0 {
            self.mutex.returned.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_second_thread_waits_for_its_turn_up_to_its_deadline() {
        let mutex = &DeadlineMutex::new(1);
        let mut state = mutex.take(Deadline::after(Duration::ZERO)).unwrap();
        assert!(mutex.take(Deadline::after(Duration::ZERO)).is_none());
        std::thread::scope(|scope| {
            let limit = Deadline::after(Duration::from_secs(60));
            let other = scope.spawn(move || {
                let value = *mutex.take(limit).unwrap();
                (value, limit.has_passed())
            });
            while lock(&mutex.state).waiting == 0 {
                std::thread::yield_now();
            }
            *state = 2;
            drop(state);
            assert_eq!(other.join().unwrap(), (2, false), "it is woken");
        });
    }
}
