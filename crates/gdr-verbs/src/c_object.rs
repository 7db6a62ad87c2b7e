//! Objects of the C interface, to which programs have pointers.

use std::mem;

/// A structure of C at a fixed address, which is freed with this value. Programs read and write its
/// public fields, so there is no reference to it.
#[derive(Debug)]
pub(crate) struct CObject<T>(*mut T);

// SAFETY: the value is only an address; its users access the structure by rules of their own.
unsafe impl<T> Send for CObject<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for CObject<T> {}

impl<T> CObject<T> {
    /// A new structure of zeros, which `fill` completes.
    ///
    /// # Safety
    /// `T` may be all zeros.
    pub(crate) unsafe fn new(fill: impl FnOnce(&mut T)) -> Self {
        // SAFETY: the contract of this function.
        let mut object: Box<T> = Box::new(unsafe { mem::zeroed() });
        fill(&mut object);
        Self(Box::into_raw(object))
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0
    }
}

impl<T> Drop for CObject<T> {
    fn drop(&mut self) {
        // SAFETY: from a box, and freed once. The program no longer uses a destroyed object.
        drop(unsafe { Box::from_raw(self.0) });
    }
}
