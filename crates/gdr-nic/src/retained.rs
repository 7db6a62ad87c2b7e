//! What requests keep alive.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

/// What a posted request keeps alive until it is complete: the owner of the memory that it names, so that
/// a program cannot free that memory too soon.
pub trait Retained: fmt::Debug + Send + Sync {
    /// Gives up the hold of one request. The thread that calls this drives all queue pairs of a device, or
    /// has the deadline of its caller: it holds no lock of the device, and must not wait.
    fn release(self: Arc<Self>);
}

/// What a request retains, or the few requests that complete at a time.
pub type RetainedList = SmallVec<[Arc<dyn Retained>; 2]>;

/// Adds what a request retained to a list, in any order. Mostly it is a single owner, for which `extend` takes
/// longer.
pub(crate) fn append(list: &mut RetainedList, mut retained: RetainedList) {
    while let Some(owner) = retained.pop() {
        list.push(owner);
    }
}

/// Gives up what completed requests retained.
pub(crate) fn release(completed: impl IntoIterator<Item = Arc<dyn Retained>>) {
    completed.into_iter().for_each(Retained::release);
}
