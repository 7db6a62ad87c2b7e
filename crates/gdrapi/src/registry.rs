//! Which libraries are open and which buffers are pinned: what makes a handle valid.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use gdr_copy::Context;

use crate::abi::{Gdr, gdr_t};
use crate::errno::{Failure, NO_HANDLE, NO_LIBRARY};
use crate::handle::{HandleSpace, SLOTS, SlotId, SlotTable};
use crate::pin::PinnedBuffer;

/// Closed objects whose addresses rest before the oldest is used for another `gdr_open`. Until
/// then a `gdr_t` that was closed is known as such.
const REST: usize = 1024;

/// One `gdr_open`, by a number that is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenId(u64);

/// What a valid `gdr_t` gives access to.
#[derive(Clone, Debug)]
pub(crate) struct Library {
    pub(crate) id: OpenId,
    pub(crate) context: Arc<Context>,
}

#[derive(Debug)]
struct Open {
    library: Library,
    pins: BTreeSet<SlotId>,
    /// Open for as long as the object names it.
    _fd: OwnedFd,
}

/// A pinned buffer and whose it is.
#[derive(Debug)]
struct Entry {
    owner: OpenId,
    buffer: Arc<PinnedBuffer>,
}

/// All handles of one process.
#[derive(Debug)]
pub(crate) struct Registry {
    space: HandleSpace,
    /// By the address of the object.
    opens: HashMap<usize, Open>,
    pins: SlotTable<Entry>,
    /// Addresses of closed objects, the one closed longest ago first.
    closed: VecDeque<usize>,
    last_id: u64,
}

/// Pinned buffers that no handle names any more, to be released outside of the registry's lock.
#[derive(Debug)]
#[must_use]
pub(crate) struct Removed {
    pub(crate) buffers: Vec<(SlotId, Arc<PinnedBuffer>)>,
}

impl Registry {
    pub(crate) fn new(space: HandleSpace) -> Self {
        Self {
            space,
            opens: HashMap::new(),
            pins: SlotTable::new(SLOTS, space.generations()),
            closed: VecDeque::new(),
            last_id: 0,
        }
    }

    /// Makes a `gdr_t` for `context`, whose object shows `fd`.
    pub(crate) fn open(&mut self, context: Context, fd: OwnedFd) -> gdr_t {
        let rested = (self.closed.len() > REST)
            .then(|| self.closed.pop_front())
            .flatten();
        let object = match rested {
            Some(address) => ptr::with_exposed_provenance_mut(address),
            None => Box::into_raw(Box::new(Gdr::new(-1))),
        };
        // SAFETY: a leaked box of our own, which no other open library uses. Callers may read it
        // (they should not), and one that does so with a closed `gdr_t` gets what it gets.
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

    /// The library that `g` stands for. `g` is compared, never followed.
    pub(crate) fn library(&self, g: gdr_t) -> Result<Library, Failure> {
        self.opens
            .get(&g.addr())
            .map(|open| open.library.clone())
            .ok_or(NO_LIBRARY)
    }

    /// Gives a handle to what `make` makes of it.
    pub(crate) fn add(
        &mut self,
        g: gdr_t,
        owner: OpenId,
        make: impl FnOnce(u64, usize) -> PinnedBuffer,
    ) -> Result<u64, Failure> {
        // Meanwhile the library may have been closed, and the address even opened anew.
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

    /// The pinned buffer of `g` that `handle` stands for.
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

    /// Makes `handle` invalid. What it stood for is released by the caller, who then calls
    /// [`Registry::recycle`].
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

    /// Makes `g` and all its handles invalid; as [`Registry::remove`].
    pub(crate) fn close(&mut self, g: gdr_t) -> Result<Removed, Failure> {
        let open = self.opens.remove(&g.addr()).ok_or(NO_LIBRARY)?;
        // SAFETY: the object of an open library, a leaked box of our own.
        unsafe { g.write(Gdr::new(-1)) };
        self.closed.push_back(g.addr());
        let take = |id| Some((id, self.pins.take(id)?.buffer));
        Ok(Removed {
            buffers: open.pins.into_iter().filter_map(take).collect(),
        })
    }

    /// Lets slots be used again, once what they held is released: a slot's next owner must find
    /// no mapping there.
    pub(crate) fn recycle(&mut self, slots: impl IntoIterator<Item = SlotId>) {
        for slot in slots {
            self.pins.free(slot);
        }
    }
}
