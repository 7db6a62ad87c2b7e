//! What crosses the C ABI: objects to which programs have pointers, and `errno`.

use std::ffi::c_int;
use std::mem;

/// An `errno`.
pub(crate) type Errno = c_int;

/// The result of a verb.
pub(crate) type Outcome<T> = Result<T, Errno>;

pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: the C library returns the address of the errno of this thread.
    unsafe { *libc::__errno_location() = errno };
}

/// An object to which the program has a pointer. It is never freed, so that the use of a pointer after
/// the destruction of its object can be reported.
pub(crate) struct Handle<T>(*mut T);

// SAFETY: the object is plain data that is never freed, and this library accesses it only while
// its state is locked.
unsafe impl<T> Send for Handle<T> {}

impl<T> Handle<T> {
    /// A new object of zeros.
    ///
    /// # Safety
    ///
    /// `T` may be all zeros.
    pub(crate) unsafe fn zeroed() -> Self {
        // SAFETY: the contract of this function.
        let object: Box<T> = Box::new(unsafe { mem::zeroed() });
        Self(Box::into_raw(object))
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0
    }

    /// Its address, which identifies it.
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
