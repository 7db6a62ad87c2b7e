//! Objects to which programs have handles, and tables of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use gdr_process::{BiasedLock, BiasedReadGuard, BiasedWriteGuard, PerProcess};

use crate::errno::Errno;

/// Objects by the address of their structure of C. A forked child has none of its parent's, and takes
/// no lock that a thread of the parent may hold.
pub(crate) struct Table<T: 'static>(PerProcess<BiasedLock<Objects<T>>>);

type Objects<T> = BTreeMap<usize, Arc<T>>;

impl<T: Send + Sync> Table<T> {
    pub(crate) const fn new() -> Self {
        Self(PerProcess::new())
    }

    fn read(&self) -> BiasedReadGuard<'static, Objects<T>> {
        self.0.get_fast().read()
    }

    fn write(&self) -> BiasedWriteGuard<'static, Objects<T>> {
        self.0.get_fast().write()
    }

    /// The first object that is `wanted`.
    pub(crate) fn find(&self, wanted: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        self.read().values().find(|object| wanted(object)).cloned()
    }

    pub(crate) fn insert<C>(&self, handle: *mut C, object: Arc<T>) {
        self.write().insert(handle.addr(), object);
    }

    /// The object of a handle; `EINVAL` if there is none.
    pub(crate) fn get<C>(&self, handle: *mut C) -> Result<Arc<T>, Errno> {
        let objects = self.read();
        objects.get(&handle.addr()).cloned().ok_or(Errno::INVAL)
    }

    /// Passes the object of a handle to a short call, which must not use this table again; `EINVAL` if there is none.
    /// Faster than [`Table::get`], as nothing counts references.
    pub(crate) fn with<C, R>(
        &self,
        handle: *mut C,
        call: impl FnOnce(&T) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let objects = self.read();
        call(objects.get(&handle.addr()).ok_or(Errno::INVAL)?)
    }

    /// Removes the object of a handle; it ends when the last call that uses it returns.
    pub(crate) fn remove<C>(&self, handle: *mut C) -> Result<Arc<T>, Errno> {
        self.write().remove(&handle.addr()).ok_or(Errno::INVAL)
    }

    /// Removes all objects for which `ended` is true, and returns them.
    pub(crate) fn remove_all(&self, ended: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut objects = self.write();
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
