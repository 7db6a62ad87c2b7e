//! CPU mappings of pinned GPU memory.

use std::sync::Arc;

use gdr_cuda::DevicePtr;

use crate::backend_kind::BackendKind;
use crate::bar_mapping::BarMapping;
use crate::cpu::{self, Caching, Routine};
use crate::error::{Error, Result};
use crate::flag::{Flag, FlagWord};
use crate::pin_state::PinState;
use gdr_process::ProcessId;

/// A CPU mapping of a pinned range. It is unmapped on drop; the pin may be dropped before or after.
///
/// Offsets are relative to the pointer that was pinned. All methods take `&self` and may run on several threads at
/// once: the GPU and the network may write to the memory at any time anyway, and a race can tear data but is not
/// undefined behaviour. [`Mapping::slice`] returns parts for use by other threads.
#[derive(Debug)]
pub struct Mapping {
    // Set to `None` by `drop` before the pin may be mapped again.
    bar: Option<BarMapping>,
    view: View,
    state: Arc<PinState>,
}

/// The values that a copy needs, so that it reads a single cache line.
#[derive(Clone, Copy, Debug)]
struct View {
    base: *mut u8,
    len: u64,
    caching: Caching,
    routine: &'static Routine,
    origin: ProcessId,
}

// SAFETY: the pointer is used only for device accesses to a mapping that outlives the view (`Mapping` owns it, `Slice`
// borrows it). Any thread may make these.
unsafe impl Send for View {}
// SAFETY: as above; a view has no interior state.
unsafe impl Sync for View {}

impl View {
    #[inline]
    fn at(&self, offset: u64, len: usize) -> Result<*mut u8> {
        // Compares a difference, because the sum of offset and length may overflow.
        let fits = (len as u64) <= self.len && offset <= self.len - len as u64;
        if !fits {
            return Err(Error::OutOfRange {
                offset,
                len: len as u64,
                mapped: self.len,
            });
        }
        // A forked child does not inherit the mapping, and may have other memory at its address.
        if !self.origin.is_current_fast() {
            return Err(Error::ForkedChild);
        }
        // SAFETY: `offset <= self.len`, and at least `self.len` bytes are mapped from `base` on.
        Ok(unsafe { self.base.add(offset as usize) })
    }

    #[inline]
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let dst = self.at(offset, bytes.len())?;
        // SAFETY: `at` checked that the bytes are in the mapping, `bytes` is readable, and no Rust memory is in a
        // mapping, so the two cannot overlap.
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
        // SAFETY: `at` checked that the bytes are in the mapping, which consists of pages and so of whole lines;
        // `bytes` is writable and, being Rust memory, not in a mapping.
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
    pub(crate) fn new(state: Arc<PinState>, bar: BarMapping, skip: u64) -> Self {
        let mapped = bar.len() as u64;
        let view = View {
            // A mapping may end before the pinned pointer, and then has no bytes.
            base: bar.as_ptr().wrapping_add(skip.min(mapped) as usize),
            // The last page may extend past the range, into memory that was not pinned for the caller.
            len: mapped.saturating_sub(skip).min(state.len),
            caching: bar.caching(),
            routine: state.routine(bar.caching()),
            origin: bar.origin(),
        };
        Self {
            bar: Some(bar),
            view,
            state,
        }
    }

    /// Returns how many bytes can be accessed, starting at the pointer that was pinned.
    pub fn len(&self) -> u64 {
        self.view.len
    }

    /// Returns whether no bytes can be accessed, because the mapping ends before the pinned pointer.
    pub fn is_empty(&self) -> bool {
        self.view.len == 0
    }

    /// Returns the GPU address of offset 0.
    pub fn device_ptr(&self) -> DevicePtr {
        self.state.ptr
    }

    /// Returns the backend that created the mapping.
    pub fn backend(&self) -> BackendKind {
        self.state.backend.kind()
    }

    /// Returns how the CPU caches this mapping.
    pub fn caching(&self) -> Caching {
        self.view.caching
    }

    /// Returns the copy routine in use.
    pub fn routine(&self) -> &'static Routine {
        self.view.routine
    }

    /// Switches to `routine`, to compare routines.
    ///
    /// # Errors
    /// [`Error::Routine`] if it [requires an uncached mapping](Routine::needs_uncached_mapping), but this one is cached
    /// or simulated, so that the first copy would fault.
    pub fn set_routine(&mut self, routine: &'static Routine) -> Result<()> {
        if !self.state.accepts(routine, self.view.caching) {
            return Err(Error::Routine {
                routine: routine.name(),
                caching: self.view.caching,
                backend: self.state.backend.kind(),
            });
        }
        self.view.routine = routine;
        Ok(())
    }

    /// Returns the CPU address of the byte at the pinned pointer.
    ///
    /// It is valid for [`Mapping::len`] bytes while this mapping exists, and only in this process. Access it with
    /// volatile accesses or the routines of [`cpu`], never through a reference.
    pub fn as_ptr(&self) -> *mut u8 {
        self.view.base
    }

    /// Returns the CPU address of `len` bytes at `offset`.
    pub(crate) fn window_at(&self, offset: u64, len: usize) -> Result<*mut u8> {
        self.view.at(offset, len)
    }

    /// Returns everything that is mapped, in whole host pages: the CPU address of [`crate::PinInfo::va`], and the
    /// number of bytes mapped from there.
    pub fn window(&self) -> (*mut u8, u64) {
        self.bar.as_ref().map_or((std::ptr::null_mut(), 0), |bar| {
            (bar.as_ptr(), bar.len() as u64)
        })
    }

    /// Copies `bytes` into GPU memory at `offset`.
    ///
    /// On return the stores have left the CPU's write-combining buffers, in address order. A kernel that is launched
    /// afterwards sees them; a running kernel sees them after a few hundred nanoseconds, if it polls with volatile or
    /// system-scope loads. A naturally aligned word of 1, 2, 4 or 8 bytes is never torn. See [`cpu`] for the full
    /// contract.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], in which case nothing is written; [`Error::ForkedChild`].
    #[inline]
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.view.write_at(offset, bytes)
    }

    /// Like [`Mapping::write_at`], but without the final fence, for batches that end with [`Mapping::flush`]. Until
    /// then the bytes may stay in the CPU.
    ///
    /// # Errors
    /// Same as [`Mapping::write_at`].
    #[inline]
    pub fn write_at_unfenced(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.view.write_at_unfenced(offset, bytes)
    }

    /// Flushes this thread's stores from [`Mapping::write_at_unfenced`].
    #[inline]
    pub fn flush(&self) {
        cpu::fence::store_fence();
    }

    /// Copies GPU memory at `offset` into `bytes`.
    ///
    /// Returns the bytes as they are during the call. Each 64-byte line takes a PCIe round trip (about 1 us), and only a
    /// few are in flight at once. Above about 8 KiB, `cuMemcpy` is faster.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], in which case nothing is read; [`Error::ForkedChild`].
    #[inline]
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.view.read_at(offset, bytes)
    }

    /// Like [`Mapping::read_at`], but without the fence before it, for several reads whose order does not matter. Such
    /// reads overlap, so ten reads of one line each take hardly longer than one.
    ///
    /// The values are no older than this thread's last fenced read, [`Flag::load_acquire`] or
    /// [`Mapping::begin_reads`]: the CPU may return a line from a buffer.
    ///
    /// # Errors
    /// Same as [`Mapping::read_at`].
    #[inline]
    pub fn read_at_unfenced(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.view.read_at_unfenced(offset, bytes)
    }

    /// Begins a batch of [`Mapping::read_at_unfenced`] on this thread. These reads return no values older than this
    /// call.
    #[inline]
    pub fn begin_reads(&self) {
        cpu::fence::fresh_load_fence();
    }

    /// Returns a word of 1, 2, 4 or 8 bytes at `offset`, which is stored and loaded as a whole.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Unaligned`] if the address is not a multiple of the size.
    pub fn flag<T: FlagWord>(&self, offset: u64) -> Result<Flag<'_, T>> {
        let at = self.view.at(offset, size_of::<T>())?;
        Flag::new(at, offset, self.view.origin)
    }

    /// Returns the part `offset..offset + len`, for use by another thread.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn slice(&self, offset: u64, len: u64) -> Result<Slice<'_>> {
        Slice::new(self.view, offset, len)
    }

    /// Splits the mapping into parts of `part` bytes (the last one may be shorter), for use by several threads.
    ///
    /// If `part` is a multiple of 64, no two threads access the same line.
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
        // The munmap comes first: after `unmapped` the pin may be mapped again.
        self.bar = None;
        self.state.unmapped();
    }
}

/// A part of a [`Mapping`]; offsets are relative to its start.
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

    /// Returns the number of bytes in this part.
    pub fn len(&self) -> u64 {
        self.view.len
    }

    /// Returns whether this part is empty.
    pub fn is_empty(&self) -> bool {
        self.view.len == 0
    }

    /// Like [`Mapping::write_at`].
    ///
    /// # Errors
    /// Same as [`Mapping::write_at`].
    #[inline]
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.view.write_at(offset, bytes)
    }

    /// Like [`Mapping::read_at`].
    ///
    /// # Errors
    /// Same as [`Mapping::read_at`].
    #[inline]
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.view.read_at(offset, bytes)
    }
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::backend::fake::FakeBackend;
    use crate::cpu::FOR_UNCACHED_ONLY;
    use crate::cpu::trace::{LOAD, STORE, barrier, steps_of};

    fn mapping(kind: BackendKind, caching: Caching) -> Mapping {
        FakeBackend { kind, caching }
            .pin(100, 10_000)
            .map()
            .unwrap()
    }

    #[test]
    fn a_routine_that_faults_on_cacheable_memory_is_refused() {
        for (kind, caching, accepted) in [
            (BackendKind::Rm, Caching::WriteCombined, true),
            (BackendKind::Rm, Caching::Device, true),
            (BackendKind::Rm, Caching::Cached, false),
            (BackendKind::DmaBuf, Caching::Cached, false),
            (BackendKind::Sim, Caching::WriteCombined, false),
        ] {
            let mut mapping = mapping(kind, caching);
            let before = mapping.routine();
            let set = mapping.set_routine(&FOR_UNCACHED_ONLY);
            assert_eq!(set.is_ok(), accepted, "{kind} {caching}");
            match set {
                Ok(()) => assert_eq!(mapping.routine(), &FOR_UNCACHED_ONLY),
                Err(error) => {
                    assert_contains!(error.to_string(), "portable", "{error}");
                    assert_eq!(mapping.routine(), before);
                }
            }
            for routine in Routine::supported() {
                let fits = accepted || !routine.needs_uncached_mapping();
                assert_eq!(mapping.set_routine(routine).is_ok(), fits, "{routine:?}");
            }
        }
    }

    #[test]
    fn fenced_calls_run_their_fence_and_unfenced_calls_run_none() {
        let mapping = mapping(BackendKind::Rm, Caching::WriteCombined);
        let (mut bytes, m) = ([7; 100], &mapping);
        let fresh = match m.routine().has_streaming_loads() {
            true => barrier::FRESH_LOAD,
            false => barrier::LOAD,
        };
        let write = steps_of(|| m.write_at(1, &bytes).unwrap());
        assert_eq!(write, [STORE, barrier::STORE]);
        let read = steps_of(|| m.read_at(1, &mut bytes).unwrap());
        assert_eq!(read, [fresh, LOAD]);

        let write = steps_of(|| m.write_at_unfenced(1, &bytes).unwrap());
        assert_eq!(write, [STORE]);
        assert_eq!(steps_of(|| m.flush()), [barrier::STORE]);
        let read = steps_of(|| m.read_at_unfenced(1, &mut bytes).unwrap());
        assert_eq!(read, [LOAD]);
        assert_eq!(steps_of(|| m.begin_reads()), [barrier::FRESH_LOAD]);

        let slice = m.slice(64, 1000).unwrap();
        let write = steps_of(|| slice.write_at(1, &bytes).unwrap());
        assert_eq!(write, [STORE, barrier::STORE]);
        let read = steps_of(|| slice.read_at(1, &mut bytes).unwrap());
        assert_eq!(read, [fresh, LOAD]);
    }

    #[test]
    fn an_access_outside_of_the_mapping_is_refused_and_touches_no_memory() {
        let mapping = mapping(BackendKind::Rm, Caching::WriteCombined);
        let (mut bytes, m) = ([7; 2], &mapping);
        for offset in [9_999, 10_000, u64::MAX - 1, u64::MAX] {
            let steps = steps_of(|| {
                assert!(m.write_at(offset, &bytes).is_err());
                assert!(m.write_at_unfenced(offset, &bytes).is_err());
                assert!(m.read_at(offset, &mut bytes).is_err());
                assert!(m.read_at_unfenced(offset, &mut bytes).is_err());
                assert!(m.flag::<u16>(offset).is_err());
                assert!(m.slice(offset, 2).is_err());
            });
            assert!(steps.is_empty(), "{steps:?} at {offset}");
        }
        m.write_at(9_998, &[1, 2]).unwrap();
        let last = m.slice(9_998, 2).unwrap();
        last.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2]);
        assert!(last.read_at(1, &mut bytes).is_err());
        assert!(m.slice(1, u64::MAX).is_err() && m.slice(10_000, 0).unwrap().is_empty());
        // An empty access at the very end is in range.
        m.write_at(10_000, &[]).unwrap();
        assert!(m.write_at(10_001, &[]).is_err());
    }
}
