//! What requests keep alive.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

/// Something that a posted request keeps alive until it is complete: the owner of its memory, so that a program
/// cannot free that memory too soon.
pub trait Retained: fmt::Debug + Send + Sync {
    /// Releases the hold of one request. The calling thread drives all queue pairs of a device, or has its caller's
    /// deadline to meet, so this must not wait. No lock of the device is held.
    fn release(self: Arc<Self>);
}

/// What a request retains, or the few requests that complete together.
pub type RetainedList = SmallVec<[Arc<dyn Retained>; 2]>;

/// Adds what a request retained to a list, in any order. Mostly this is a single owner, for which `extend` would take
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
