//! Values that are released in the process that made them, and not in a forked child.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use gdr_copy::ProcessId;

use crate::error::{Error, Result};

/// A value whose destructor runs only in the process that made it.
///
/// In a forked child its pages may not be mapped, other memory may be at their addresses, and locks of
/// a driver may be held by threads that exist only in the parent.
#[derive(Debug)]
pub(crate) struct ProcessBound<T> {
    origin: ProcessId,
    value: ManuallyDrop<T>,
}

impl<T> ProcessBound<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            origin: ProcessId::current(),
            value: ManuallyDrop::new(value),
        }
    }

    /// Fails in a child of the process that made the value.
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.origin.is_current_fast() {
            Ok(())
        } else {
            Err(Error::ForkedChild)
        }
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
