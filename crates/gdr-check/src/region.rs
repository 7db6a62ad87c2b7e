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
    /// The device context, identified by its address.
    pub context: Object,
    /// The address of the region's structure.
    pub object: Object,
    /// The local key.
    pub lkey: u32,
    /// The first address, as requests name it.
    pub first: u64,
    /// The length in bytes; `u64::MAX` for the whole address space.
    pub len: u64,
    /// The offset from a request's address to the address in this process; `None` where the CPU cannot address the
    /// memory, as with GPU memory.
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

/// What the shadow knows about a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Key<'a> {
    Registered(&'a NewRegion),
    /// Deregistered, at this place.
    Deregistered(StackId),
    /// Not the key of a region registered through an observed function.
    Unknown,
}

/// All regions of the process.
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

    /// Returns the regions, of any context, with a local key.
    pub(crate) fn with_key(&self, lkey: u32) -> impl Iterator<Item = &NewRegion> {
        self.by_key.values().filter(move |it| it.lkey == lkey)
    }

    /// Removes everything that belongs to a context.
    pub(crate) fn close(&mut self, context: Object) {
        self.by_key.retain(|key, _| key.0 != context);
        self.by_object.retain(|_, key| key.0 != context);
        self.deregistered.retain(|key, _| key.0 != context);
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }
}
