//! Mappings as copies see them: one pointer for each slot, and what it points to.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gdr_copy::cpu::{self, Caching, Routine};
use gdr_copy::{Mapping, Origin};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::handle::{HandleSpace, SLOTS};
use crate::hazard::{self, NotProtected, Quiet};

/// How long unmapping waits for copies that are under way. A copy of 1 GiB out of a GPU takes
/// some ten seconds; what takes longer is unmapped later, see [`Mapped::unpublish`].
const COPIES_END_WITHIN: Duration = Duration::from_secs(20);

/// A mapping with all that a copy needs, in one cache line and a bit.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Window {
    handle: u64,
    start: usize,
    len: usize,
    caching: Caching,
    routine: &'static Routine,
    /// Keeps the range mapped.
    _mapping: Mapping,
}

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Host memory to GPU memory.
    ToGpu,
    /// GPU memory to host memory.
    FromGpu,
}

/// Why a copy was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The number is no handle of this process.
    NoHandle,
    /// The handle has no mapping.
    NotMapped,
    /// Some byte lies outside the mapping.
    OutsideMapping,
    /// The host pointer is null.
    NullHost,
    /// Signal handlers that copy interrupt each other too deeply.
    TooDeep,
}

impl Window {
    pub(crate) fn new(handle: u64, mapping: Mapping) -> Self {
        let (start, len) = mapping.window();
        Self {
            handle,
            start: start.expose_provenance(),
            len: len as usize,
            caching: mapping.caching(),
            routine: mapping.routine(),
            _mapping: mapping,
        }
    }

    pub(crate) fn start(&self) -> usize {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn caching(&self) -> Caching {
        self.caching
    }

    #[inline(always)]
    fn contains(&self, address: usize, len: usize) -> bool {
        let offset = address.wrapping_sub(self.start);
        offset <= self.len && len <= self.len - offset
    }
}

/// All mappings of one process, by slot.
///
/// The table is one stretch of zeroed memory whose pages exist once they are used, and which the
/// kernel clears in a forked child (`MADV_WIPEONFORK`): a child finds no mapping, however it was
/// made.
#[derive(Debug)]
pub(crate) struct Mapped {
    entries: NonNull<AtomicPtr<Window>>,
    space: HandleSpace,
    origin: Origin,
    /// Mappings that a copy still used when they were given up.
    lingering: Mutex<Vec<Lingering>>,
}

/// A mapping that nothing can reach any more but, perhaps, a copy.
#[derive(Debug)]
struct Lingering(NonNull<Window>);

// SAFETY: it owns its window, which may be dropped on any thread.
unsafe impl Send for Lingering {}

// SAFETY: `entries` is a table of atomics that is never unmapped.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    pub(crate) fn new(space: HandleSpace) -> rustix::io::Result<Self> {
        let bytes = SLOTS * size_of::<AtomicPtr<Window>>();
        // SAFETY: a new mapping at an address of the kernel's choice disturbs no other.
        let table = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut::<c_void>(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        // SAFETY: the range is the one just made. Before Linux 4.14 this fails, and only children
        // made by fork() are told (by `origin`), not those of a bare clone system call.
        let _ = unsafe { rustix::mm::madvise(table, bytes, Advice::LinuxWipeOnFork) };
        let entries = NonNull::new(table.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self {
            entries,
            space,
            origin: Origin::current(),
            lingering: Mutex::default(),
        })
    }

    #[inline(always)]
    fn entry(&self, slot: usize) -> &AtomicPtr<Window> {
        debug_assert!(slot < SLOTS);
        // SAFETY: slot numbers are less than SLOTS (a `SlotId` comes from `HandleSpace::slot`,
        // which takes the rest of a division, or from a `SlotTable` of at most SLOTS slots). The
        // table is never unmapped, and zero pages are null pointers.
        unsafe { self.entries.add(slot).as_ref() }
    }

    /// Lets copies use `window` under slot `slot`, which must have none.
    pub(crate) fn publish(&self, slot: usize, window: Box<Window>) {
        let previous = self
            .entry(slot)
            .swap(Box::into_raw(window), Ordering::SeqCst);
        debug_assert!(previous.is_null());
    }

    /// Takes the window of `slot` away from copies, waits for those under way, and unmaps it.
    ///
    /// Should a copy still be using it after [`COPIES_END_WITHIN`], the mapping stays until a
    /// later call of this function finds the copy ended.
    pub(crate) fn unpublish(&self, slot: usize) {
        let window = self.entry(slot).swap(ptr::null_mut(), Ordering::SeqCst);
        let Some(window) = NonNull::new(window) else {
            return;
        };
        let earlier = {
            let mut all = self
                .lingering
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *all)
        };
        let mut left: Vec<_> = earlier
            .into_iter()
            .filter_map(|window| window.unmap(Duration::ZERO).err())
            .collect();
        if let Err(window) = Lingering(window).unmap(COPIES_END_WITHIN) {
            tracing::warn!("a copy is still using a mapping that was given up: unmapping it later");
            left.push(window);
        }
        if !left.is_empty() {
            self.lingering
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .append(&mut left);
        }
    }

    /// Copies `len` bytes between host memory and the mapping of `handle`.
    ///
    /// # Safety
    /// `host` is valid for reading ([`Direction::ToGpu`]) or writing ([`Direction::FromGpu`])
    /// `len` bytes, and does not overlap the mapping.
    #[inline(always)]
    pub(crate) unsafe fn copy(
        &self,
        direction: Direction,
        handle: u64,
        window_address: usize,
        host: *mut u8,
        len: usize,
    ) -> Result<(), Refused> {
        let slot = self.space.slot(handle).ok_or(Refused::NoHandle)?;
        if !self.origin.is_current_fast() {
            return Err(Refused::NoHandle);
        }
        let copied = hazard::protect(self.entry(slot.index()), |window| {
            if window.handle != handle {
                return Err(Refused::NoHandle);
            }
            if len == 0 {
                return Ok(());
            }
            if !window.contains(window_address, len) {
                return Err(Refused::OutsideMapping);
            }
            if host.is_null() {
                return Err(Refused::NullHost);
            }
            let at = ptr::with_exposed_provenance_mut::<u8>(window_address);
            // SAFETY: the range lies in the window, which consists of whole pages, is mapped as
            // `caching` says, holds no Rust memory, and stays mapped while `protect` runs this.
            // `host` is the caller's promise.
            unsafe {
                match direction {
                    Direction::ToGpu => {
                        cpu::copy_to(window.routine, window.caching, at, host, len);
                    }
                    Direction::FromGpu => {
                        cpu::copy_from(window.routine, window.caching, host, at, len);
                    }
                }
            }
            Ok(())
        });
        match copied {
            Ok(result) => result,
            Err(NotProtected::Empty) => Err(Refused::NotMapped),
            Err(NotProtected::TooDeep) => Err(Refused::TooDeep),
        }
    }
}

impl Lingering {
    /// Unmaps it, or gives it back when a copy uses it for all of `limit`.
    fn unmap(self, limit: Duration) -> Result<(), Self> {
        match hazard::wait_for(self.0.as_ptr().cast(), limit) {
            Quiet::Yes => {
                // SAFETY: the window came from a Box (`publish`); no entry holds it any more (it
                // was swapped out), no copy does (just waited for), and `self` was the last to.
                drop(unsafe { Box::from_raw(self.0.as_ptr()) });
                Ok(())
            }
            Quiet::NotYet => Err(self),
        }
    }
}
