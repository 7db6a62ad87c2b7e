//! Objects to which programs have handles, and tables of them.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, PoisonError, RwLock};

use crate::errno::Errno;

/// Objects by the address of their structure of C.
pub(crate) struct Table<T>(RwLock<BTreeMap<usize, Arc<T>>>);

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self(RwLock::new(BTreeMap::new()))
    }

    pub(crate) fn insert<C>(&self, handle: *mut C, object: Arc<T>) {
        let mut objects = self.0.write().unwrap_or_else(PoisonError::into_inner);
        objects.insert(handle.addr(), object);
    }

    /// The object of a handle; `EINVAL` if there is none.
    pub(crate) fn get<C>(&self, handle: *mut C) -> Result<Arc<T>, Errno> {
        let objects = self.0.read().unwrap_or_else(PoisonError::into_inner);
        objects.get(&handle.addr()).cloned().ok_or(Errno::INVAL)
    }

    /// Removes the object of a handle; it ends when the last call that uses it returns.
    pub(crate) fn remove<C>(&self, handle: *mut C) -> Result<Arc<T>, Errno> {
        let mut objects = self.0.write().unwrap_or_else(PoisonError::into_inner);
        objects.remove(&handle.addr()).ok_or(Errno::INVAL)
    }

    /// Removes all objects for which `ended` is true, and returns them.
    pub(crate) fn remove_all(&self, ended: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut objects = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut gone = Vec::new();
        objects.retain(|_, object| {
            let ends = ended(object);
            if ends {
                gone.push(Arc::clone(object));
            }
            !ends
        });
        gone
    }
}

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
