//! Values released only in the process that created them, not in a forked child.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use crate::fork::ProcessId;

/// A value whose destructor runs only in the process that created it.
///
/// In a forked child, the value's memory may be unmapped or replaced by other memory, and a driver's locks may be held
/// by threads that exist only in the parent.
#[derive(Debug)]
pub struct ProcessBound<T> {
    origin: ProcessId,
    value: ManuallyDrop<T>,
}

impl<T> ProcessBound<T> {
    /// Binds a value to this process.
    pub fn new(value: T) -> Self {
        Self {
            origin: ProcessId::current(),
            value: ManuallyDrop::new(value),
        }
    }

    /// Returns whether this process created the value.
    pub fn is_own(&self) -> bool {
        self.origin.is_current_fast()
    }
}

impl<T> Deref for ProcessBound<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for ProcessBound<T> {
    fn drop(&mut self) {
        if self.origin.is_current() {
            // SAFETY: dropped only here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
