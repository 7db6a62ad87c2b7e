//! Values that are released only in the process that made them, not in a forked child.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use crate::fork::ProcessId;

/// A value whose destructor runs only in the process that made it.
///
/// In a forked child, its pages may not be mapped, other memory may be at their addresses, and a
/// driver's locks may be held by threads that exist only in the parent.
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

    /// Returns whether this is the process that made the value.
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
            // SAFETY: it is dropped only here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
