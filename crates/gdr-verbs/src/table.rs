//! Objects to which programs have handles, and tables of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use gdr_process::{BiasedLock, BiasedReadGuard, BiasedWriteGuard, Lending, Lent, PerProcess};

use crate::errno::Errno;

/// Objects by the address of their structure of C. A forked child has none of its parent's, and takes
/// no lock that a thread of the parent may hold.
pub(crate) struct Table<T: 'static>(PerProcess<BiasedLock<Objects<T>>>);

type Objects<T> = BTreeMap<usize, Lending<T>>;

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

    /// Returns the first object that is `wanted`.
    pub(crate) fn find(&self, wanted: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let objects = self.read();
        let mut objects = objects.values().map(Lending::object);
        objects.find(|object| wanted(object)).cloned()
    }

    pub(crate) fn insert<C>(&self, handle: *mut C, object: Arc<T>) {
        self.write().insert(handle.addr(), Lending::new(object));
    }

    /// Returns a handle's object, or `EINVAL` for a handle without one.
    pub(crate) fn get<C>(&self, handle: *mut C) -> Result<Arc<T>, Errno> {
        let objects = self.read();
        let lending = objects.get(&handle.addr()).ok_or(Errno::INVAL)?;
        Ok(Arc::clone(lending.object()))
    }

    /// Lends a handle's object to a short call. Returns `EINVAL` for a handle without an object. Faster than
    /// [`Table::get`], which counts a reference.
    #[inline]
    pub(crate) fn lend<C>(&self, handle: *mut C) -> Result<Lent<T>, Errno> {
        let lent = self.read().lend(|objects| objects.get(&handle.addr()));
        lent.ok_or(Errno::INVAL)
    }

    /// Removes the object of a handle, and waits for the calls to which it is lent. It ends when the last call that uses
    /// it returns.
    pub(crate) fn remove<C>(&self, handle: *mut C) -> Result<Arc<T>, Errno> {
        let removed = self.write().remove(&handle.addr());
        Ok(Arc::clone(removed.ok_or(Errno::INVAL)?.object()))
    }

    /// Removes all objects for which `ended` is true like [`Table::remove`], and returns them.
    pub(crate) fn remove_all(&self, ended: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut objects = self.write();
        let has_ended = |lending: &Lending<T>| ended(lending.object());
        let handles = objects.iter().filter(|(_, lending)| has_ended(lending));
        let handles: Vec<_> = handles.map(|(handle, _)| *handle).collect();
        let removed: Vec<_> = handles
            .iter()
            .filter_map(|handle| objects.remove(handle))
            .collect();
        drop(objects);
        removed
            .iter()
            .map(|lending| Arc::clone(lending.object()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn an_object_that_is_lent_holds_up_its_own_removal_only() {
        static TABLE: Table<u32> = Table::new();
        let handle = |number: usize| ptr::without_provenance_mut::<u8>(number);
        TABLE.insert(handle(1), Arc::new(10));
        let (lent, is_over) = (TABLE.lend(handle(1)).unwrap(), AtomicBool::new(false));
        thread::scope(|scope| {
            let others = scope.spawn(|| {
                TABLE.insert(handle(2), Arc::new(20));
                let removed = TABLE.remove(handle(2)).map(|object| *object);
                (removed, TABLE.get(handle(1)).map(|object| *object))
            });
            assert_eq!(others.join().unwrap(), (Ok(20), Ok(10)));
            scope.spawn(|| {
                let all = TABLE.remove_all(|object| *object == 10);
                assert!(is_over.load(Ordering::Relaxed));
                assert_eq!(all, [Arc::new(10)]);
            });
            while TABLE.get(handle(1)).is_ok() {
                thread::yield_now();
            }
            assert_eq!(*lent, 10, "its handle is gone");
            is_over.store(true, Ordering::Relaxed);
            drop(lent);
        });
        assert_eq!(TABLE.lend(handle(1)).unwrap_err(), Errno::INVAL);
    }
}
