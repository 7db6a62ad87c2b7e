//! Function tables that many objects share, each stored once.

use std::slice;
use std::sync::{Mutex, PoisonError};

use gdr_process::PerProcess;

/// Values that are stored once and never freed.
///
/// A forked child has its own values, because a thread of the parent may hold the lock.
pub(crate) struct Interned<T: 'static>(PerProcess<Mutex<Vec<&'static T>>>);

impl<T: Copy + Send + Sync> Interned<T> {
    pub(crate) const fn new() -> Self {
        Self(PerProcess::new())
    }

    /// Returns the value that is kept for an equal one.
    ///
    /// # Safety
    /// `T` has fields of type `Option<fn>` only.
    pub(crate) unsafe fn get(&self, value: T) -> &'static T {
        let all = self.0.get_fast();
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.iter().find(|known| {
            // SAFETY: the caller guarantees the layout of both values.
            unsafe { addresses(**known) == addresses(&value) }
        });
        if let Some(known) = known {
            return known;
        }
        let kept = Box::leak(Box::new(value));
        all.push(kept);
        kept
    }
}

/// # Safety
/// `T` has fields of type `Option<fn>` only.
unsafe fn addresses<T>(value: &T) -> &[usize] {
    let words = size_of::<T>() / size_of::<usize>();
    // SAFETY: all fields are one word without padding, and a null function is 0.
    unsafe { slice::from_raw_parts(std::ptr::from_ref(value).cast(), words) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Pair(Option<fn() -> u8>, Option<fn() -> u8>);

    fn one() -> u8 {
        1
    }

    #[test]
    fn equal_tables_are_kept_once() {
        let all = Interned::new();
        // SAFETY: the structure consists of two functions.
        let get = |pair| unsafe { all.get(pair) };
        let first = get(Pair(Some(one), None));
        assert!(std::ptr::eq(first, get(Pair(Some(one), None))));
        assert!(!std::ptr::eq(first, get(Pair(None, Some(one)))));
    }
}
