//! Memory regions.

use std::collections::HashMap;

use crate::finding::StackId;
use crate::request::Segment;
use crate::shadow::Object;

/// `IBV_ACCESS_LOCAL_WRITE` of infiniband/verbs.h.
const LOCAL_WRITE: u32 = 1;

/// A region that the program registered.
#[derive(Clone, Copy, Debug)]
pub struct NewRegion {
    /// The device context, by its address.
    pub context: Object,
    /// The address of the structure.
    pub object: Object,
    /// The local key.
    pub lkey: u32,
    /// The first address that requests name.
    pub first: u64,
    /// The length; `u64::MAX` for the whole address space.
    pub len: u64,
    /// What to add to an address of a request for the address in this process; `None` where the CPU has no
    /// such address, as of GPU memory.
    pub offset: Option<u64>,
    /// The value of `enum ibv_access_flags`.
    pub access: u32,
    /// Where it was registered.
    pub stack: StackId,
}

impl NewRegion {
    pub(crate) fn holds(&self, segment: &Segment) -> bool {
        if self.len == u64::MAX {
            return true;
        }
        let Some(begin) = segment.address.checked_sub(self.first) else {
            return false;
        };
        begin
            .checked_add(segment.len.into())
            .is_some_and(|end| end <= self.len)
    }

    pub(crate) fn may_be_written(&self) -> bool {
        self.access & LOCAL_WRITE != 0
    }
}

/// What is known of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Key<'a> {
    Registered(&'a NewRegion),
    /// Deregistered there.
    Deregistered(StackId),
    /// Of no region that was registered by a function that is known.
    Unknown,
}

/// The regions of a process.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    by_key: HashMap<(Object, u32), NewRegion>,
    by_object: HashMap<Object, (Object, u32)>,
    deregistered: HashMap<(Object, u32), StackId>,
}

impl Regions {
    pub(crate) fn add(&mut self, region: NewRegion) {
        let key = (region.context, region.lkey);
        self.deregistered.remove(&key);
        self.by_object.insert(region.object, key);
        self.by_key.insert(key, region);
    }

    pub(crate) fn of(&self, object: Object) -> Option<&NewRegion> {
        self.by_key.get(self.by_object.get(&object)?)
    }

    pub(crate) fn remove(&mut self, object: Object, stack: StackId) -> Option<NewRegion> {
        let key = self.by_object.remove(&object)?;
        self.deregistered.insert(key, stack);
        self.by_key.remove(&key)
    }

    pub(crate) fn forget(&mut self, object: Object) {
        if let Some(key) = self.by_object.remove(&object) {
            self.by_key.remove(&key);
        }
    }

    pub(crate) fn key(&self, context: Object, lkey: u32) -> Key<'_> {
        let key = (context, lkey);
        if let Some(region) = self.by_key.get(&key) {
            return Key::Registered(region);
        }
        self.deregistered
            .get(&key)
            .map_or(Key::Unknown, |stack| Key::Deregistered(*stack))
    }

    /// The regions that have a local key, of any context.
    pub(crate) fn with_key(&self, lkey: u32) -> impl Iterator<Item = &NewRegion> {
        self.by_key.values().filter(move |it| it.lkey == lkey)
    }

    /// Forgets what a context had.
    pub(crate) fn close(&mut self, context: Object) {
        self.by_key.retain(|key, _| key.0 != context);
        self.by_object.retain(|_, key| key.0 != context);
        self.deregistered.retain(|key, _| key.0 != context);
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }
}
