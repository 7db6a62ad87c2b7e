//! Table in which copies find mappings, with one pointer per slot.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use gdr_copy::cpu::{self, Caching, Routine};
use gdr_copy::{Lease, Mapping};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::copy_error::CopyError;
use crate::handle::{SLOTS, likely_slot};
use crate::hazard_pointer::{NotProtected, Protected, Quiet, Record};
use crate::long_copies::{LeftToCpu, LongCopies};
use crate::stack::Depth;
use crate::tls::{self, FirstRecord, RECORDS};

/// How long unmapping waits for copies in progress. A copy of 1 GiB from a GPU takes about ten seconds. After
/// the wait, the mapping is left to be unmapped later, see [`MappingTable::unpublish`].
const COPIES_END_WITHIN: Duration = Duration::from_secs(20);

/// A mapping that copies can find. Everything a copy needs is in the first cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct PublishedMapping {
    handle: u64,
    start: usize,
    len: usize,
    caching: Caching,
    /// Whether the routine stores 16 bytes at once.
    stores_16: bool,
    routine: &'static Routine,
    /// Lengths in bytes from which copies to and from the GPU are long.
    long_from: [usize; 2],
    /// Start of the pinned range, from which offsets count. Not before `start`.
    pinned: usize,
    long: Option<LongCopies>,
    /// Keeps the range mapped.
    _mapping: Arc<Mapping>,
}

impl PublishedMapping {
    pub(crate) fn new(handle: u64, mapping: Arc<Mapping>, long: Option<LongCopies>) -> Self {
        let (start, len) = mapping.window();
        let is_write_combined = mapping.caching() == Caching::WriteCombined;
        Self {
            handle,
            start: start.expose_provenance(),
            len: len as usize,
            caching: mapping.caching(),
            stores_16: is_write_combined && mapping.routine().has_store_of_16(),
            routine: mapping.routine(),
            long_from: long.as_ref().map_or([usize::MAX; 2], LongCopies::from),
            pinned: mapping.as_ptr().expose_provenance(),
            long,
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

    /// Checks that `len` bytes can be copied between `address` and `host`.
    #[inline(always)]
    fn allows(&self, address: usize, host: impl Host, len: usize) -> Result<(), CopyError> {
        if len > 0 {
            if !self.contains(address, len) {
                return Err(CopyError::OutsideMapping);
            }
            if host.is_null() {
                return Err(CopyError::NullHost);
            }
        }
        Ok(())
    }
}

/// The table of this process, which copies search; null until there is one.
static ENTRIES: AtomicPtr<AtomicPtr<PublishedMapping>> = AtomicPtr::new(ptr::null_mut());

extern "C" fn clear_in_child() {
    ENTRIES.store(ptr::null_mut(), Ordering::Relaxed);
    RECORDS.release_other_threads(tls::get());
}

/// All mappings of one process, by slot.
///
/// The table is one range of zeroed memory whose pages are allocated on first use, and which the kernel
/// clears in a forked child (`MADV_WIPEONFORK`), so that a child finds no mapping, even after a bare clone
/// system call.
#[derive(Debug)]
pub(crate) struct MappingTable {
    entries: NonNull<AtomicPtr<PublishedMapping>>,
    /// Mappings that a copy still used when they were unpublished.
    deferred: Mutex<Vec<Deferred>>,
}

/// An unpublished mapping, which a copy may still use.
#[derive(Debug)]
struct Deferred(NonNull<PublishedMapping>);

// SAFETY: it owns its mapping, which may be dropped on any thread.
unsafe impl Send for Deferred {}

// SAFETY: `entries` is a table of atomics that is never unmapped.
unsafe impl Send for MappingTable {}
// SAFETY: as above.
unsafe impl Sync for MappingTable {}

impl MappingTable {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let bytes = SLOTS * size_of::<AtomicPtr<PublishedMapping>>();
        // SAFETY: the kernel chooses the address, so no other mapping is replaced.
        let table = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut::<c_void>(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        // SAFETY: the range was made above. Before Linux 4.14 this fails, and only children of fork()
        // find no table (see `ENTRIES`), not children of a bare clone system call.
        let _ = unsafe { rustix::mm::madvise(table, bytes, Advice::LinuxWipeOnFork) };
        let entries = NonNull::new(table.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self {
            entries,
            deferred: Mutex::default(),
        })
    }

    /// Unmaps a table that was never activated.
    pub(crate) fn release(self) {
        let bytes = SLOTS * size_of::<AtomicPtr<PublishedMapping>>();
        // SAFETY: `new` made this range, and copies have not found it. After an error it stays mapped.
        let _ = unsafe { rustix::mm::munmap(self.entries.as_ptr().cast(), bytes) };
    }

    /// Makes this the table in which copies look.
    pub(crate) fn activate(&self) {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| {
            // SAFETY: `clear_in_child` is async-signal-safe (only atomic stores) and is never
            // unloaded (`-z nodelete`). If there is no memory for the handler, children rely on
            // MADV_WIPEONFORK.
            unsafe { libc::pthread_atfork(None, None, Some(clear_in_child)) };
        });
        ENTRIES.store(self.entries.as_ptr(), Ordering::Release);
    }

    fn entry(&self, slot: usize) -> &AtomicPtr<PublishedMapping> {
        debug_assert!(slot < SLOTS);
        // SAFETY: slot numbers come from a `SlotTable` of at most SLOTS slots. The table is never
        // unmapped, and zero pages are null pointers.
        unsafe { self.entries.add(slot).as_ref() }
    }

    /// Publishes `mapping` in `slot`, which must be empty.
    pub(crate) fn publish(&self, slot: usize, mapping: Box<PublishedMapping>) {
        let previous = self
            .entry(slot)
            .swap(Box::into_raw(mapping), Ordering::SeqCst);
        debug_assert!(previous.is_null());
    }

    /// Removes the mapping of `slot`, waits for copies in progress, and unmaps it.
    ///
    /// If a copy still uses it after [`COPIES_END_WITHIN`], the mapping stays until a later call of
    /// this function finds that the copy has ended; new copies cannot find it. `here` is the stack
    /// depth of the call into the library.
    pub(crate) fn unpublish(&self, slot: usize, here: Depth) {
        let mapping = self.entry(slot).swap(ptr::null_mut(), Ordering::SeqCst);
        let Some(mapping) = NonNull::new(mapping) else {
            return;
        };
        let earlier = {
            let mut all = self.deferred.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *all)
        };
        let mut left: Vec<_> = earlier
            .into_iter()
            .filter_map(|mapping| mapping.unmap(here, Duration::ZERO).err())
            .collect();
        if let Err(mapping) = Deferred(mapping).unmap(here, COPIES_END_WITHIN) {
            tracing::warn!("a copy still uses a mapping: it is unmapped later");
            left.push(mapping);
        }
        if !left.is_empty() {
            self.deferred
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .append(&mut left);
        }
    }
}

/// Returns the entry of `handle`, if it is a handle and this process has a table.
#[inline(always)]
fn entry_of(handle: u64) -> Option<&'static AtomicPtr<PublishedMapping>> {
    let entries = NonNull::new(ENTRIES.load(Ordering::Relaxed))?;
    // SAFETY: the table has SLOTS entries, and `likely_slot` names one of them; it is never
    // unmapped, and zero pages are null pointers. A relaxed load is enough: the kernel initialized
    // the table.
    Some(unsafe { entries.add(likely_slot(handle)).as_ref() })
}

/// Host side of a copy, and its direction.
pub(crate) trait Host: Copy {
    fn is_null(self) -> bool;

    /// Copies `len` bytes between this and `address` in `mapping`.
    ///
    /// # Safety
    /// The range is in the mapping, which stays mapped meanwhile; this side is valid for `len` bytes
    /// and does not overlap the mapping.
    unsafe fn copy(self, mapping: &PublishedMapping, address: usize, len: usize);

    /// Returns the length from which on copies in this direction are long.
    fn long_from(mapping: &PublishedMapping) -> usize;

    /// Like [`Host::copy`], on another path. `offset` is the position of the address in the pinned range.
    ///
    /// # Safety
    /// As there; the lease belongs to the cell that protects the mapping.
    unsafe fn copy_long(
        self,
        copies: &LongCopies,
        lease: &Lease,
        offset: u64,
        len: usize,
    ) -> Result<(), LeftToCpu>;
}

/// Host memory to copy to the GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source(pub(crate) *const u8);

/// Host memory to copy to from the GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination(pub(crate) *mut u8);

impl Host for Source {
    #[inline(always)]
    fn is_null(self) -> bool {
        self.0.is_null()
    }

    #[inline(always)]
    unsafe fn copy(self, mapping: &PublishedMapping, address: usize, len: usize) {
        let to = ptr::with_exposed_provenance_mut(address);
        // SAFETY: the caller's promise; a mapping consists of whole pages, is mapped as `caching`
        // says, and is not Rust memory.
        unsafe { cpu::copy_to(mapping.routine, mapping.caching, to, self.0, len) };
    }

    #[inline(always)]
    fn long_from(mapping: &PublishedMapping) -> usize {
        mapping.long_from[0]
    }

    unsafe fn copy_long(
        self,
        copies: &LongCopies,
        _lease: &Lease,
        offset: u64,
        len: usize,
    ) -> Result<(), LeftToCpu> {
        // SAFETY: the caller's promise.
        unsafe { copies.write(offset, self.0, len) }
    }
}

impl Host for Destination {
    #[inline(always)]
    fn is_null(self) -> bool {
        self.0.is_null()
    }

    #[inline(always)]
    unsafe fn copy(self, mapping: &PublishedMapping, address: usize, len: usize) {
        let from = ptr::with_exposed_provenance(address);
        // SAFETY: the caller's promise; a mapping consists of whole pages, is mapped as `caching`
        // says, and is not Rust memory.
        unsafe { cpu::copy_from(mapping.routine, mapping.caching, self.0, from, len) };
    }

    #[inline(always)]
    fn long_from(mapping: &PublishedMapping) -> usize {
        mapping.long_from[1]
    }

    unsafe fn copy_long(
        self,
        copies: &LongCopies,
        lease: &Lease,
        offset: u64,
        len: usize,
    ) -> Result<(), LeftToCpu> {
        // SAFETY: the caller's promise.
        unsafe { copies.read(lease, offset, self.0, len) }
    }
}

/// Copies at most 16 bytes to `address` in the mapping of `handle` if nothing prevents it; otherwise does nothing and
/// returns false. It calls no function, so its caller need not save registers, which took as long as the store itself.
///
/// # Safety
/// Same as [`copy`].
#[inline(always)]
pub(crate) unsafe fn store_few(handle: u64, address: usize, host: Source, len: usize) -> bool {
    let here = Depth::here();
    let (Some(entry), Some(record)) = (entry_of(handle), tls::get()) else {
        return false;
    };
    let Some(mapping) = RECORDS.protect_at_once(record, here, entry) else {
        return false;
    };
    let has_store = len < 16 || (mapping.stores_16 && address.is_multiple_of(16));
    let is_short = len <= 16 && len < mapping.long_from[0];
    if mapping.handle != handle
        || !(is_short && has_store)
        || mapping.allows(address, host, len).is_err()
    {
        return false;
    }
    let to = ptr::with_exposed_provenance_mut(address);
    // SAFETY: the range is in the mapping, which stays mapped while it is protected and is not Rust
    // memory; `allows` and the caller's promise cover the host side.
    unsafe { cpu::copy_few_to(to, host.0, len) };
    true
}

/// Copies `len` bytes between host memory and `address` in the mapping of `handle`.
///
/// # Safety
/// `host` is null or valid for `len` bytes, and does not overlap the mapping.
#[inline(always)]
pub(crate) unsafe fn copy<H: Host>(
    handle: u64,
    address: usize,
    host: H,
    len: usize,
) -> Result<(), CopyError> {
    let here = Depth::here();
    let entry = entry_of(handle).ok_or(CopyError::NoHandle)?;
    let Some(record) = tls::get() else {
        // SAFETY: the caller's promise.
        return unsafe { first_copy(here, entry, handle, address, host, len) };
    };
    let mapping = protect(record, here, entry, handle)?;
    mapping.allows(address, host, len)?;
    if len > 0 {
        // SAFETY: the range is in the mapping, which stays mapped while it is protected. `host` is the
        // caller's promise.
        unsafe { copy_protected(&mapping, address, host, len) };
    }
    Ok(())
}

/// Copies by the path of this length.
///
/// # Safety
/// Same as [`Host::copy`].
#[inline(always)]
unsafe fn copy_protected<H: Host>(
    mapping: &Protected<'_, PublishedMapping>,
    address: usize,
    host: H,
    len: usize,
) {
    if len >= H::long_from(mapping) {
        // SAFETY: the caller's promise.
        unsafe { copy_long(mapping, address, host, len) };
    } else {
        // SAFETY: the caller's promise.
        unsafe { host.copy(mapping, address, len) };
    }
}

/// Like [`copy_protected`], for long copies. The CPU makes a copy that begins before the pinned range.
///
/// # Safety
/// Same as [`Host::copy`].
#[cold]
#[inline(never)]
unsafe fn copy_long<H: Host>(
    mapping: &Protected<'_, PublishedMapping>,
    address: usize,
    host: H,
    len: usize,
) {
    let offset = address.checked_sub(mapping.pinned);
    let copied = match (&mapping.long, offset) {
        // SAFETY: the caller's promise.
        (Some(copies), Some(offset)) => unsafe {
            host.copy_long(copies, mapping.lease(), offset as u64, len)
        },
        _ => Err(LeftToCpu),
    };
    if copied == Err(LeftToCpu) {
        // SAFETY: the caller's promise.
        unsafe { host.copy(mapping, address, len) };
    }
}

/// Like [`copy`], for a thread without a record. The thread gets one if its copy is not refused.
///
/// # Safety
/// Same as [`copy`].
#[cold]
#[inline(never)]
unsafe fn first_copy<H: Host>(
    here: Depth,
    entry: &AtomicPtr<PublishedMapping>,
    handle: u64,
    address: usize,
    host: H,
    len: usize,
) -> Result<(), CopyError> {
    let mut first = FirstRecord::claim().ok_or(CopyError::TooDeep)?;
    let mapping = protect(first.record(), here, entry, handle)?;
    mapping.allows(address, host, len)?;
    first.keep();
    if len > 0 {
        // SAFETY: as in `copy`.
        unsafe { copy_protected(&mapping, address, host, len) };
    }
    Ok(())
}

/// Protects the mapping of `handle` for a copy at depth `here`.
#[inline(always)]
fn protect<'a>(
    record: &'a Record,
    here: Depth,
    entry: &'a AtomicPtr<PublishedMapping>,
    handle: u64,
) -> Result<Protected<'a, PublishedMapping>, CopyError> {
    let mapping = RECORDS
        .protect(record, here, entry)
        .map_err(|not| match not {
            NotProtected::Empty => CopyError::NotMapped,
            NotProtected::TooDeep => CopyError::TooDeep,
        })?;
    if mapping.handle != handle {
        return Err(CopyError::NoHandle);
    }
    Ok(mapping)
}

impl Deferred {
    /// Unmaps the mapping, or returns it if a copy still uses it after `limit`.
    fn unmap(self, here: Depth, limit: Duration) -> Result<(), Self> {
        let own = tls::get();
        match RECORDS.wait_for(self.0.as_ptr().cast(), own, here, limit) {
            Quiet::Yes => {
                // SAFETY: the mapping is from a Box (`publish`); no entry points to it (it was swapped
                // out), no copy uses it (waited for above), and `self` was its owner.
                drop(unsafe { Box::from_raw(self.0.as_ptr()) });
                Ok(())
            }
            Quiet::NotYet => Err(self),
        }
    }
}
