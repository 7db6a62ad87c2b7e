//! Detecting a forked child.
//!
//! A child has none of its parent's threads, while their locks stay as they were. The NVIDIA driver ties a client to
//! the process that allocated it, and gdr's mappings are not inherited (`MADV_DONTFORK`). So a child must neither use
//! nor unmap its parent's mappings: their addresses may hold other memory.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);
/// Not a `Once`: a child would wait forever if a thread of its parent was inside it.
static REGISTERED: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Identifies the process that created something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId {
    generation: u32,
    pid: u32,
}

impl ProcessId {
    /// Returns the calling process.
    pub fn current() -> Self {
        if !REGISTERED.load(Ordering::Acquire) {
            // SAFETY: `in_child` is async-signal-safe (one atomic add), and never called after it was unloaded: the C
            // library removes the handlers of an unloaded object. Threads that race here register it twice, which is
            // harmless. After a failure (out of memory), only process ids are compared.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            REGISTERED.store(true, Ordering::Release);
        }
        Self {
            generation: GENERATION.load(Ordering::Relaxed),
            pid: std::process::id(),
        }
    }

    /// Returns whether the calling process is this one. Costs one relaxed load. Unlike [`ProcessId::is_current`], it
    /// does not detect a child made by a bare `clone` system call.
    #[inline]
    pub fn is_current_fast(&self) -> bool {
        GENERATION.load(Ordering::Relaxed) == self.generation
    }

    /// Returns whether the calling process is this one. Costs one system call.
    pub fn is_current(&self) -> bool {
        self.is_current_fast() && std::process::id() == self.pid
    }
}

/// Per-process state: a forked child starts with fresh state.
///
/// A lock that another thread holds at the time of a fork stays locked in the child forever, because that thread does
/// not exist there.
#[derive(Debug)]
pub struct PerProcess<T: 'static>(AtomicPtr<(ProcessId, T)>);

impl<T: Default + Sync> PerProcess<T> {
    /// Returns the state's holder. Each process starts with the default on first use.
    #[expect(
        clippy::new_without_default,
        reason = "it is for statics, which need a constant"
    )]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Returns this process's state. The parent's state is never dropped.
    pub fn get(&self) -> &'static T {
        self.get_by(ProcessId::is_current)
    }

    /// Like [`PerProcess::get`], but without a system call: see [`ProcessId::is_current_fast`].
    #[inline]
    pub fn get_fast(&self) -> &'static T {
        // SAFETY: as in `get_by`.
        match unsafe { self.0.load(Ordering::Acquire).as_ref() } {
            Some((origin, state)) if origin.is_current_fast() => state,
            _ => self.get_by(ProcessId::is_current_fast),
        }
    }

    fn get_by(&self, is_current: fn(&ProcessId) -> bool) -> &'static T {
        let mut current = self.0.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or from `Box::into_raw` below, published by the release half of the
            // exchange and never freed.
            if let Some((origin, state)) = unsafe { current.as_ref() }
                && is_current(origin)
            {
                return state;
            }
            let fresh = Box::into_raw(Box::new((ProcessId::current(), T::default())));
            match self
                .0
                .compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire)
            {
                // SAFETY: as above; never freed from here on.
                Ok(_) => return unsafe { &(*fresh).1 },
                Err(other) => {
                    // SAFETY: created above and never published.
                    drop(unsafe { Box::from_raw(fresh) });
                    current = other;
                }
            }
        }
    }
}

/// A value that is made on first use and never dropped; a forked child has its parent's.
///
/// No thread waits for another one that makes it, unlike with `OnceLock`: a child would wait permanently if a thread of
/// its parent was about to make it. Threads that ask at once make several, and one of them stays.
#[derive(Debug)]
pub struct Inherited<T: 'static>(AtomicPtr<T>);

impl<T: Send + Sync> Inherited<T> {
    /// The value is not made yet.
    #[expect(
        clippy::new_without_default,
        reason = "it is for statics, which need a constant"
    )]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// The value, which `make` makes if there is none.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &'static T {
        // SAFETY: null, or from `Box::into_raw` below, published by the release half of the exchange and never freed.
        if let Some(value) = unsafe { self.0.load(Ordering::Acquire).as_ref() } {
            return value;
        }
        let fresh = Box::into_raw(Box::new(make()));
        let none = ptr::null_mut();
        let exchanged = self
            .0
            .compare_exchange(none, fresh, Ordering::AcqRel, Ordering::Acquire);
        let value = exchanged.map_or_else(
            |first| {
                // SAFETY: made above and never published.
                drop(unsafe { Box::from_raw(fresh) });
                first
            },
            |_| fresh,
        );
        // SAFETY: as above; what was published is not null.
        unsafe { &*value }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use forked::{check, in_child};

    use super::*;

    #[test]
    fn a_child_is_not_the_process_of_its_parent() {
        let origin = ProcessId::current();
        assert!(origin.is_current());
        in_child(|| {
            let is_same = origin.is_current_fast() || origin.is_current();
            check(!is_same, "the child is its parent")
        });
        assert!(origin.is_current());
    }

    #[test]
    fn a_child_waits_for_no_value_that_a_thread_of_its_parent_makes() {
        static VALUE: Inherited<u32> = Inherited::new();
        let (making, begun) = channel();
        let (forked, go_on) = channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                VALUE.get_or_init(|| {
                    making.send(()).unwrap();
                    // Until the other end is dropped.
                    go_on.recv().unwrap_err();
                    1
                })
            });
            let forked = forked;
            begun.recv().unwrap();
            in_child(|| check(*VALUE.get_or_init(|| 2) == 2, "it has another value"));
            drop(forked);
        });
        let is_inherited = || *VALUE.get_or_init(|| 3) == 1;
        assert!(is_inherited());
        in_child(|| check(is_inherited(), "it is made again"));
    }

    #[test]
    fn a_lock_that_is_locked_at_a_fork_is_free_in_the_child() {
        static LOCK: PerProcess<std::sync::Mutex<u32>> = PerProcess::new();
        let guard = LOCK.get().lock().unwrap();
        in_child(|| check(LOCK.get_fast().try_lock().is_ok(), "it is locked"));
        assert!(
            LOCK.get().try_lock().is_err(),
            "the parent's is still locked"
        );
        drop(guard);
    }
}
