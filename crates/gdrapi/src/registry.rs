//! Open libraries and pinned buffers, which determine whether a handle is valid.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use gdr_copy::Context;

use crate::abi::{Gdr, gdr_t};
use crate::errno::{Failure, NO_HANDLE, NO_LIBRARY};
use crate::handle::{HandleSpace, SLOTS, SlotId, SlotTable};
use crate::pin::PinnedBuffer;

/// Number of closed objects to keep before `gdr_open` reuses the oldest address. Until then, a closed `gdr_t` is
/// recognized.
const QUARANTINE: usize = 1024;

/// Number of a `gdr_open`, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenId(u64);

/// The library of a valid `gdr_t`.
#[derive(Clone, Debug)]
pub(crate) struct Library {
    pub(crate) id: OpenId,
    pub(crate) context: Arc<Context>,
}

#[derive(Debug)]
struct Open {
    library: Library,
    pins: BTreeSet<SlotId>,
    /// Stays open as long as the object contains its number.
    _fd: OwnedFd,
}

/// A pinned buffer and its owner.
#[derive(Debug)]
struct Entry {
    owner: OpenId,
    buffer: Arc<PinnedBuffer>,
}

/// All handles of one process.
#[derive(Debug)]
pub(crate) struct Registry {
    space: HandleSpace,
    /// Open libraries by the address of the object.
    opens: HashMap<usize, Open>,
    pins: SlotTable<Entry>,
    /// Addresses of closed objects, oldest first.
    closed: VecDeque<usize>,
    last_id: u64,
}

/// Pinned buffers without a handle, to release once the registry is unlocked.
#[derive(Debug)]
#[must_use]
pub(crate) struct Removed {
    pub(crate) buffers: Vec<(SlotId, Arc<PinnedBuffer>)>,
}

impl Registry {
    /// Releases the address space of a registry that never created a handle.
    pub(crate) fn release(self) {
        debug_assert!(self.last_id == 0);
        // SAFETY: no handle of this space exists, so the space is not read.
        unsafe { self.space.release() };
    }

    pub(crate) fn new(space: HandleSpace) -> Self {
        Self {
            space,
            opens: HashMap::new(),
            pins: SlotTable::new(SLOTS, space.generations()),
            closed: VecDeque::new(),
            last_id: 0,
        }
    }

    /// Creates a `gdr_t` for `context`, whose object contains `fd`.
    pub(crate) fn open(&mut self, context: Context, fd: OwnedFd) -> gdr_t {
        let reused = (self.closed.len() > QUARANTINE)
            .then(|| self.closed.pop_front())
            .flatten();
        let object = match reused {
            Some(address) => ptr::with_exposed_provenance_mut(address),
            None => Box::into_raw(Box::new(Gdr::new(-1))),
        };
        // SAFETY: a leaked box of this library, which no other open library uses. A caller that reads
        // it (which the interface does not allow) may race with this write.
        unsafe { object.write(Gdr::new(fd.as_raw_fd())) };
        self.last_id += 1;
        let library = Library {
            id: OpenId(self.last_id),
            context: Arc::new(context),
        };
        let open = Open {
            library,
            pins: BTreeSet::new(),
            _fd: fd,
        };
        self.opens.insert(object.expose_provenance(), open);
        object
    }

    /// Returns the library of `g`, which is compared, but never dereferenced.
    pub(crate) fn library(&self, g: gdr_t) -> Result<Library, Failure> {
        self.opens
            .get(&g.addr())
            .map(|open| open.library.clone())
            .ok_or(NO_LIBRARY)
    }

    /// Creates a handle for the buffer that `make` returns.
    pub(crate) fn add(
        &mut self,
        g: gdr_t,
        owner: OpenId,
        make: impl FnOnce(u64, usize) -> PinnedBuffer,
    ) -> Result<u64, Failure> {
        // The library may have been closed in the meantime, and its address reused by another `gdr_open`.
        let open = self
            .opens
            .get_mut(&g.addr())
            .filter(|open| open.library.id == owner)
            .ok_or(NO_LIBRARY)?;
        let space = self.space;
        let id = self
            .pins
            .put(|id| Entry {
                owner,
                buffer: Arc::new(make(space.handle(id), id.index())),
            })
            .ok_or(Failure::TooManyPins(SLOTS))?;
        open.pins.insert(id);
        Ok(space.handle(id))
    }

    /// Returns the pinned buffer of `handle`, which belongs to `g`.
    pub(crate) fn buffer(&self, g: gdr_t, handle: u64) -> Result<Arc<PinnedBuffer>, Failure> {
        let owner = self.opens.get(&g.addr()).ok_or(NO_LIBRARY)?.library.id;
        let id = self.space.slot(handle).ok_or(NO_HANDLE)?;
        let entry = self
            .pins
            .get(id)
            .filter(|entry| entry.owner == owner)
            .ok_or(NO_HANDLE)?;
        Ok(entry.buffer.clone())
    }

    /// Makes `handle` invalid. The caller releases its buffer and then calls [`Registry::recycle`].
    pub(crate) fn remove(&mut self, g: gdr_t, handle: u64) -> Result<Removed, Failure> {
        let open = self.opens.get_mut(&g.addr()).ok_or(NO_LIBRARY)?;
        let id = self.space.slot(handle).ok_or(NO_HANDLE)?;
        if !open.pins.remove(&id) {
            return Err(NO_HANDLE);
        }
        let entry = self.pins.take(id).ok_or(NO_HANDLE)?;
        Ok(Removed {
            buffers: vec![(id, entry.buffer)],
        })
    }

    /// Makes `g` and all its handles invalid, like [`Registry::remove`].
    pub(crate) fn close(&mut self, g: gdr_t) -> Result<Removed, Failure> {
        let open = self.opens.remove(&g.addr()).ok_or(NO_LIBRARY)?;
        // SAFETY: the object of an open library, a leaked box of this library.
        unsafe { g.write(Gdr::new(-1)) };
        self.closed.push_back(g.addr());
        let take = |id| Some((id, self.pins.take(id)?.buffer));
        Ok(Removed {
            buffers: open.pins.into_iter().filter_map(take).collect(),
        })
    }

    /// Makes slots available again once their buffers are released, because the next buffer in a slot must not
    /// find a mapping there.
    pub(crate) fn recycle(&mut self, slots: impl IntoIterator<Item = SlotId>) {
        for slot in slots {
            self.pins.free(slot);
        }
    }
}
