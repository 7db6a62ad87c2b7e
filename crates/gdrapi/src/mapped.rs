//! Mappings as copies see them: one pointer for each slot, and what it points to.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use gdr_copy::Mapping;
use gdr_copy::cpu::{self, Caching, Routine};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::handle::{SLOTS, likely_slot};
use crate::hazard::{self, FirstRecord, NotProtected, Protected, Quiet, Record};
use crate::own_record;

/// How long unmapping waits for copies that are under way. A copy of 1 GiB out of a GPU takes
/// some ten seconds; what takes longer is unmapped later, see [`Mapped::unpublish`].
const COPIES_END_WITHIN: Duration = Duration::from_secs(20);

/// A mapping; all that a copy needs is in its first cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Window {
    handle: u64,
    start: usize,
    len: usize,
    caching: Caching,
    routine: &'static Routine,
    /// Keeps the range mapped.
    _mapping: Mapping,
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

/// The table that copies look into: that of this process, null in a process that has none yet.
static ENTRIES: AtomicPtr<AtomicPtr<Window>> = AtomicPtr::new(ptr::null_mut());

extern "C" fn forget_in_child() {
    ENTRIES.store(ptr::null_mut(), Ordering::Relaxed);
}

/// All mappings of one process, by slot.
///
/// The table is one stretch of zeroed memory whose pages exist once they are used, and which the
/// kernel clears in a forked child (`MADV_WIPEONFORK`): a child finds no mapping, however it was
/// made.
#[derive(Debug)]
pub(crate) struct Mapped {
    entries: NonNull<AtomicPtr<Window>>,
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
    pub(crate) fn new() -> rustix::io::Result<Self> {
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
        // made by fork() find no table (see `ENTRIES`), not those of a bare clone system call.
        let _ = unsafe { rustix::mm::madvise(table, bytes, Advice::LinuxWipeOnFork) };
        let entries = NonNull::new(table.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self {
            entries,
            lingering: Mutex::default(),
        })
    }

    /// Lets copies find the mappings of this table, in this process.
    pub(crate) fn activate(&self) {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| {
            // SAFETY: `forget_in_child` is async-signal-safe (one atomic store) and is never
            // unloaded (`-z nodelete`). When there is no memory for the entry, children rely on
            // MADV_WIPEONFORK.
            unsafe { libc::pthread_atfork(None, None, Some(forget_in_child)) };
        });
        ENTRIES.store(self.entries.as_ptr(), Ordering::Release);
    }

    fn entry(&self, slot: usize) -> &AtomicPtr<Window> {
        debug_assert!(slot < SLOTS);
        // SAFETY: slot numbers come from a `SlotTable` of at most SLOTS slots. The table is never
        // unmapped, and zero pages are null pointers.
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
    /// Should a copy still be using it after [`COPIES_END_WITHIN`], the mapping stays, invisible,
    /// until a later call of this function finds the copy ended.
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
}

/// The entry that holds the mapping of `handle`, if it is a handle and has one.
#[inline(always)]
fn entry_of(handle: u64) -> Option<&'static AtomicPtr<Window>> {
    let entries = NonNull::new(ENTRIES.load(Ordering::Relaxed))?;
    // SAFETY: the table has SLOTS entries, of which `likely_slot` names one, is never unmapped,
    // and zero pages are null pointers. It needs no publishing: the kernel made it.
    Some(unsafe { entries.add(likely_slot(handle)).as_ref() })
}

/// Copies `len` bytes from host memory to `address` in the mapping of `handle`.
///
/// # Safety
/// `host` is null or valid for reading `len` bytes, and does not overlap the mapping.
#[inline(always)]
pub(crate) unsafe fn copy_to(
    handle: u64,
    address: usize,
    host: *const u8,
    len: usize,
) -> Result<(), Refused> {
    let entry = entry_of(handle).ok_or(Refused::NoHandle)?;
    match own_record::get() {
        // SAFETY: the caller's promise.
        Some(record) => unsafe { copy_to_by(record, entry, handle, address, host, len) },
        // SAFETY: as above.
        None => unsafe { first_copy_to(entry, handle, address, host, len) },
    }
}

/// Copies `len` bytes from `address` in the mapping of `handle` to host memory.
///
/// # Safety
/// `host` is null or valid for writing `len` bytes, and does not overlap the mapping.
#[inline(always)]
pub(crate) unsafe fn copy_from(
    handle: u64,
    host: *mut u8,
    address: usize,
    len: usize,
) -> Result<(), Refused> {
    let entry = entry_of(handle).ok_or(Refused::NoHandle)?;
    match own_record::get() {
        // SAFETY: the caller's promise.
        Some(record) => unsafe { copy_from_by(record, entry, handle, host, address, len) },
        // SAFETY: as above.
        None => unsafe { first_copy_from(entry, handle, host, address, len) },
    }
}

/// The mapping of `handle`, kept for a copy of `len` bytes at `address` of it.
#[inline(always)]
fn protect<'a>(
    record: &'a Record,
    entry: &'a AtomicPtr<Window>,
    handle: u64,
    address: usize,
    host: *const u8,
    len: usize,
) -> Result<Protected<'a, Window>, Refused> {
    let window = record.protect(entry).map_err(|not| match not {
        NotProtected::Empty => Refused::NotMapped,
        NotProtected::TooDeep => Refused::TooDeep,
    })?;
    if window.handle != handle {
        return Err(Refused::NoHandle);
    }
    if len > 0 {
        if !window.contains(address, len) {
            return Err(Refused::OutsideMapping);
        }
        if host.is_null() {
            return Err(Refused::NullHost);
        }
    }
    Ok(window)
}

/// # Safety
/// As [`copy_to`].
#[inline(always)]
unsafe fn copy_to_by(
    record: &Record,
    entry: &AtomicPtr<Window>,
    handle: u64,
    address: usize,
    host: *const u8,
    len: usize,
) -> Result<(), Refused> {
    let window = protect(record, entry, handle, address, host, len)?;
    if len > 0 {
        let to = ptr::with_exposed_provenance_mut(address);
        // SAFETY: `protect` found the range in the window, which consists of whole pages, is
        // mapped as `caching` says, holds no Rust memory, and stays mapped while it is protected.
        // `host` is the caller's promise.
        unsafe { cpu::copy_to(window.routine, window.caching, to, host, len) };
    }
    Ok(())
}

/// # Safety
/// As [`copy_from`].
#[inline(always)]
unsafe fn copy_from_by(
    record: &Record,
    entry: &AtomicPtr<Window>,
    handle: u64,
    host: *mut u8,
    address: usize,
    len: usize,
) -> Result<(), Refused> {
    let window = protect(record, entry, handle, address, host, len)?;
    if len > 0 {
        let from = ptr::with_exposed_provenance(address);
        // SAFETY: as in `copy_to_by`.
        unsafe { cpu::copy_from(window.routine, window.caching, host, from, len) };
    }
    Ok(())
}

/// # Safety
/// As [`copy_to`].
#[cold]
#[inline(never)]
unsafe fn first_copy_to(
    entry: &AtomicPtr<Window>,
    handle: u64,
    address: usize,
    host: *const u8,
    len: usize,
) -> Result<(), Refused> {
    let first = FirstRecord::claim();
    // SAFETY: the caller's promise.
    unsafe { copy_to_by(first.record(), entry, handle, address, host, len) }
}

/// # Safety
/// As [`copy_from`].
#[cold]
#[inline(never)]
unsafe fn first_copy_from(
    entry: &AtomicPtr<Window>,
    handle: u64,
    host: *mut u8,
    address: usize,
    len: usize,
) -> Result<(), Refused> {
    let first = FirstRecord::claim();
    // SAFETY: the caller's promise.
    unsafe { copy_from_by(first.record(), entry, handle, host, address, len) }
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
