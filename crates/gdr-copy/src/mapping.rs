//! Mappings: the CPU's window into pinned GPU memory.

use std::sync::Arc;

use gdr_cuda::DevicePtr;

use crate::cpu::{self, Caching, Routine};
use crate::error::{Error, Result};
use crate::flag::{Flag, FlagWord};
use crate::fork::Origin;
use crate::pinned::PinState;
use crate::window::Window;

/// The CPU's window into a pinned range. Unmapped on drop; the pin may be dropped before or
/// after.
///
/// Offsets count from the pointer that was pinned. All methods take `&self` and may run on
/// several threads at once: the memory is the GPU's, other agents write to it at any time, and a
/// race there tears data but never this process. [`Mapping::slice`] hands out parts for threads.
#[derive(Debug)]
pub struct Mapping {
    // Dropped by hand in `drop`, before the pin hears of it.
    window: Option<Window>,
    view: View,
    state: Arc<PinState>,
}

/// Where copies go: plain numbers, so that a hot copy touches one cache line.
#[derive(Clone, Copy, Debug)]
struct View {
    base: *mut u8,
    len: u64,
    caching: Caching,
    routine: &'static Routine,
    origin: Origin,
}

// SAFETY: the pointer is only ever used for device accesses inside a window that outlives the
// view (`Mapping` owns the window, `Slice` borrows the mapping), and those may come from any
// thread.
unsafe impl Send for View {}
// SAFETY: as above; a view has no interior state.
unsafe impl Sync for View {}

impl View {
    #[inline]
    fn at(&self, offset: u64, len: usize) -> Result<*mut u8> {
        let fits = (len as u64) <= self.len && offset <= self.len - len as u64;
        if !fits {
            return Err(Error::OutOfRange {
                offset,
                len: len as u64,
                mapped: self.len,
            });
        }
        if !self.origin.is_current_fast() {
            return Err(Error::ForkedChild);
        }
        // SAFETY: `offset <= self.len`, and the window is mapped for at least `self.len` bytes
        // from `base` on.
        Ok(unsafe { self.base.add(offset as usize) })
    }

    #[inline]
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let dst = self.at(offset, bytes.len())?;
        // SAFETY: `at` checked that the bytes lie in the window, `bytes` is readable, and no
        // Rust memory lies in a window, so the two cannot overlap.
        unsafe { cpu::copy_to(self.routine, self.caching, dst, bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    #[inline]
    fn write_at_unfenced(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let dst = self.at(offset, bytes.len())?;
        // SAFETY: as in `write_at`.
        unsafe {
            cpu::copy_to_unfenced(self.routine, self.caching, dst, bytes.as_ptr(), bytes.len())
        };
        Ok(())
    }

    #[inline]
    fn read_at_unfenced(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let src = self.at(offset, bytes.len())?;
        // SAFETY: as in `read_at`.
        unsafe {
            let to = bytes.as_mut_ptr();
            cpu::copy_from_unfenced(self.routine, self.caching, to, src, bytes.len());
        }
        Ok(())
    }

    #[inline]
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let src = self.at(offset, bytes.len())?;
        // SAFETY: `at` checked that the bytes lie in the window, whose lines are whole (it is
        // made of pages); `bytes` is writable and, being Rust memory, not in a window.
        unsafe {
            cpu::copy_from(
                self.routine,
                self.caching,
                bytes.as_mut_ptr(),
                src,
                bytes.len(),
            );
        }
        Ok(())
    }
}

impl Mapping {
    pub(crate) fn new(state: Arc<PinState>, window: Window, skip: u64) -> Self {
        let mapped = window.len() as u64;
        let view = View {
            // A mapping shorter than the distance to the pinned pointer shows none of its bytes.
            base: window.as_ptr().wrapping_add(skip.min(mapped) as usize),
            len: mapped.saturating_sub(skip).min(state.len()),
            caching: window.caching(),
            routine: state.routine(),
            origin: window.origin(),
        };
        Self {
            window: Some(window),
            view,
            state,
        }
    }

    /// Bytes that can be reached, counted from the pointer that was pinned.
    pub fn len(&self) -> u64 {
        self.view.len
    }

    /// Whether none can (the mapping was asked to be shorter than the way to the pointer).
    pub fn is_empty(&self) -> bool {
        self.view.len == 0
    }

    /// The GPU address that offset 0 shows.
    pub fn device_ptr(&self) -> DevicePtr {
        self.state.ptr()
    }

    /// How the CPU caches this mapping.
    pub fn caching(&self) -> Caching {
        self.view.caching
    }

    /// The copy routine in use.
    pub fn routine(&self) -> &'static Routine {
        self.view.routine
    }

    /// Uses `routine` from now on; for comparing them.
    pub fn set_routine(&mut self, routine: &'static Routine) {
        self.view.routine = routine;
    }

    /// The CPU address of the byte at the pinned pointer.
    ///
    /// Valid for [`Mapping::len`] bytes while this mapping lives and in this process only. The
    /// memory is not Rust's: use volatile or the routines of [`cpu`], never a reference.
    pub fn as_ptr(&self) -> *mut u8 {
        self.view.base
    }

    /// The whole window: the CPU address of [`crate::PinInfo::va`] and the bytes mapped from
    /// there, in whole host pages.
    pub fn window(&self) -> (*mut u8, u64) {
        self.window
            .as_ref()
            .map_or((std::ptr::null_mut(), 0), |w| (w.as_ptr(), w.len() as u64))
    }

    /// Copies `bytes` into GPU memory at `offset`.
    ///
    /// On return the stores have left the CPU's write-combining buffers, in address order. A
    /// kernel launched afterwards sees them; one already running sees them after some hundred
    /// nanoseconds, if it polls with volatile or system-scope loads. Naturally aligned pieces of
    /// 1, 2, 4 and 8 bytes arrive whole. See [`cpu`] for the full contract.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] and nothing is written; [`Error::ForkedChild`].
    #[inline]
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.view.write_at(offset, bytes)
    }

    /// As [`Mapping::write_at`] without the final fence: for batches that end with
    /// [`Mapping::flush`]. Until then the bytes may linger in the CPU.
    ///
    /// # Errors
    /// As [`Mapping::write_at`].
    #[inline]
    pub fn write_at_unfenced(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.view.write_at_unfenced(offset, bytes)
    }

    /// Pushes out what this thread wrote with [`Mapping::write_at_unfenced`].
    #[inline]
    pub fn flush(&self) {
        cpu::fence::store_fence();
    }

    /// Copies GPU memory at `offset` into `bytes`.
    ///
    /// The values are no older than the call. Reading is slow: a PCIe round trip (about 1 us)
    /// for each 64-byte line, a few of them in flight at once; above some 8 KiB `cuMemcpy` is
    /// faster.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] and nothing is read; [`Error::ForkedChild`].
    #[inline]
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.view.read_at(offset, bytes)
    }

    /// As [`Mapping::read_at`] without the fence before it: for several reads whose order does not
    /// matter. They overlap then, so that ten reads of a line each take little longer than one.
    ///
    /// The values are no older than this thread's last fenced read, [`Flag::load_acquire`] or
    /// [`Mapping::begin_reads`]: a line may be answered from a buffer of the CPU.
    ///
    /// # Errors
    /// As [`Mapping::read_at`].
    #[inline]
    pub fn read_at_unfenced(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.view.read_at_unfenced(offset, bytes)
    }

    /// From here on [`Mapping::read_at_unfenced`] on this thread returns no older values than now.
    #[inline]
    pub fn begin_reads(&self) {
        cpu::fence::fresh_load_fence();
    }

    /// A word of 1, 2, 4 or 8 bytes at `offset`, to be stored and polled whole.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Unaligned`] where the address is no multiple of the size.
    pub fn flag<T: FlagWord>(&self, offset: u64) -> Result<Flag<'_, T>> {
        let at = self.view.at(offset, size_of::<T>())?;
        Flag::new(at, offset, self.view.origin)
    }

    /// The part `offset..offset + len`, to be handed to a thread.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn slice(&self, offset: u64, len: u64) -> Result<Slice<'_>> {
        Slice::new(self.view, offset, len)
    }

    /// The mapping in parts of `part` bytes (the last one shorter), for threads.
    ///
    /// Parts that are multiples of 64 bytes keep every thread on lines of its own.
    pub fn chunks(&self, part: std::num::NonZeroU64) -> impl Iterator<Item = Slice<'_>> {
        let view = self.view;
        (0..view.len)
            .step_by(usize::try_from(part.get()).unwrap_or(usize::MAX))
            .filter_map(move |offset| {
                Slice::new(view, offset, part.get().min(view.len - offset)).ok()
            })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.window = None;
        self.state.unmapped();
    }
}

/// A part of a [`Mapping`]; offsets count from its own start.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'mapping> {
    view: View,
    mapping: std::marker::PhantomData<&'mapping Mapping>,
}

impl Slice<'_> {
    fn new(view: View, offset: u64, len: u64) -> Result<Self> {
        let fits = len <= view.len && offset <= view.len - len;
        if !fits {
            return Err(Error::OutOfRange {
                offset,
                len,
                mapped: view.len,
            });
        }
        // SAFETY: `offset <= view.len`, which is mapped from `base` on.
        let base = unsafe { view.base.add(offset as usize) };
        Ok(Self {
            view: View { base, len, ..view },
            mapping: std::marker::PhantomData,
        })
    }

    /// Bytes in this part.
    pub fn len(&self) -> u64 {
        self.view.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.view.len == 0
    }

    /// As [`Mapping::write_at`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.view.write_at(offset, bytes)
    }

    /// As [`Mapping::read_at`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.view.read_at(offset, bytes)
    }
}
