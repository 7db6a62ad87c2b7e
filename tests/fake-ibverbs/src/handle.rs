//! Objects that C programs hold pointers to.

use std::mem;

/// An object that a program was given a pointer to. It is never freed: a pointer that is used
/// after its object was destroyed is a mistake to be reported, not one to fall over.
pub(crate) struct Handle<T>(*mut T);

// SAFETY: the object is plain data that is never freed, and this library touches it only while it
// holds the lock of its world.
unsafe impl<T> Send for Handle<T> {}

impl<T> Handle<T> {
    /// A new object of zeros.
    ///
    /// # Safety
    ///
    /// `T` may be all zeros.
    pub(crate) unsafe fn zeroed() -> Self {
        // SAFETY: the caller answers for it.
        let object: Box<T> = Box::new(unsafe { mem::zeroed() });
        Self(Box::into_raw(object))
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0
    }

    /// What tells it from all others.
    pub(crate) fn address(&self) -> usize {
        self.0.addr()
    }
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}
