//! Resources that work requests keep alive.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

/// A resource that a posted request keeps alive until it completes: the owner of its memory, so that a program cannot
/// free that memory too early.
pub trait Retained: fmt::Debug + Send + Sync {
    /// Releases the hold of one request. Must not block: the calling thread drives all queue pairs of a device, or has
    /// to meet its caller's deadline. No lock of the device is held.
    fn release(self: Arc<Self>);
}

/// The resources retained by a request, or by the few requests that complete together.
pub type RetainedList = SmallVec<[Arc<dyn Retained>; 2]>;

/// Adds the resources that a request retained to a list, in any order. Usually there is a single owner, for which
/// `extend` would be slower.
pub(crate) fn append(list: &mut RetainedList, mut retained: RetainedList) {
    while let Some(owner) = retained.pop() {
        list.push(owner);
    }
}

/// Releases the resources that completed requests retained.
pub(crate) fn release(completed: impl IntoIterator<Item = Arc<dyn Retained>>) {
    completed.into_iter().for_each(Retained::release);
}
