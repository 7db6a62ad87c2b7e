//! The memory of simulated addresses: memfds.

use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::{CuResult, Error, Result};
use crate::volatile;

/// Identifies a memfd of a process: its descriptor there, and its inode at that time.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemfdName {
    pub(super) process: u32,
    pub(super) fd: u32,
    pub(super) inode: u64,
}

fn os(what: &'static str) -> impl FnOnce(Errno) -> Error {
    move |errno| Error::Os {
        what,
        source: errno.into(),
    }
}

/// A memfd and its mapping in this process.
#[derive(Debug)]
pub(super) struct Memfd {
    fd: OwnedFd,
    map: NonNull<u8>,
    len: usize,
}

// SAFETY: `map` is owned by this value alone and stays mapped until it is dropped; all access to the bytes is by
// `volatile`, which allows concurrent accesses.
unsafe impl Send for Memfd {}
// SAFETY: as above: no method returns a reference to the bytes.
unsafe impl Sync for Memfd {}

impl Memfd {
    /// Creates a memfd of `len` zeroed bytes; `len` is not 0.
    pub(super) fn new(len: u64) -> Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("gdr-simulated-gpu", flags)
            .map_err(os("memfd_create for simulated GPU memory failed"))?;
        rustix::fs::ftruncate(&fd, len).map_err(os("ftruncate of simulated GPU memory failed"))?;
        // A process that opens the memfd relies on its length.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK)
            .map_err(os("sealing of simulated GPU memory failed"))?;
        Self::map(fd, len)
    }

    /// Opens memory that another process has named.
    pub(super) fn open(name: MemfdName) -> Result<Self> {
        let invalid = |_| Error::Call {
            call: "cuIpcOpenMemHandle",
            result: CuResult::INVALID_VALUE,
        };
        let path = format!("/proc/{}/fd/{}", name.process, name.fd);
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(invalid)?;
        let stat = rustix::fs::fstat(&fd).map_err(invalid)?;
        match stat.st_ino == name.inode {
            true => Self::of(fd).map_err(invalid),
            false => Err(invalid(Errno::INVAL)),
        }
    }

    /// Opens memory through a descriptor that another process has passed.
    pub(super) fn import(fd: OwnedFd) -> Result<Self> {
        Self::of(fd).map_err(|_| Error::Call {
            call: "cuMemImportFromShareableHandle",
            result: CuResult::INVALID_VALUE,
        })
    }

    fn of(fd: OwnedFd) -> std::result::Result<Self, Errno> {
        let seals = rustix::fs::fcntl_get_seals(&fd)?;
        let stat = rustix::fs::fstat(&fd)?;
        if !seals.contains(SealFlags::SHRINK) || stat.st_size <= 0 {
            return Err(Errno::INVAL);
        }
        Self::map(fd, stat.st_size.unsigned_abs()).map_err(|_| Errno::NOMEM)
    }

    /// Returns the memfd's name for other processes, valid while it exists.
    pub(super) fn name(&self) -> Result<MemfdName> {
        let stat =
            rustix::fs::fstat(&self.fd).map_err(os("fstat of simulated GPU memory failed"))?;
        Ok(MemfdName {
            process: std::process::id(),
            fd: self.fd.as_raw_fd().unsigned_abs(),
            inode: stat.st_ino,
        })
    }

    fn map(fd: OwnedFd, len: u64) -> Result<Self> {
        let len = usize::try_from(len).map_err(|_| Error::Os {
            what: "simulated GPU memory does not fit this process's address space",
            source: std::io::ErrorKind::OutOfMemory.into(),
        })?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so no other mapping is replaced.
        let map =
            unsafe { rustix::mm::mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, &fd, 0) }
                .map_err(os("mmap of simulated GPU memory failed"))?;
        let map = NonNull::new(map.cast()).ok_or_else(|| Error::Os {
            what: "mmap of simulated GPU memory gave address 0",
            source: std::io::ErrorKind::OutOfMemory.into(),
        })?;
        Ok(Self { fd, map, len })
    }

    /// Returns another descriptor of the same memory.
    pub(super) fn share(&self) -> Result<OwnedFd> {
        self.fd.try_clone().map_err(|source| Error::Os {
            what: "duplicating the descriptor of simulated GPU memory failed",
            source,
        })
    }

    /// Returns the length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len as u64
    }

    /// Returns the address in this process.
    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.map.as_ptr()
    }
}

impl Drop for Memfd {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `map` created; every `View` of it has an `Arc` of this value, so no view is
        // left.
        if let Err(error) = unsafe { rustix::mm::munmap(self.map.as_ptr().cast(), self.len) } {
            tracing::debug!(%error, "munmap of simulated GPU memory failed");
        }
    }
}

/// A range of a [`Memfd`], which it keeps alive.
#[derive(Clone, Debug)]
pub(super) struct View {
    memfd: Arc<Memfd>,
    offset: usize,
    len: usize,
}

impl View {
    /// Creates a view, or returns `None` if the range ends after the memfd.
    pub(super) fn new(memfd: Arc<Memfd>, offset: u64, len: u64) -> Option<Self> {
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        (offset.checked_add(len)? <= memfd.len).then_some(Self { memfd, offset, len })
    }

    /// Returns a part of the view.
    ///
    /// # Panics
    /// If the view does not contain these bytes.
    pub(super) fn part(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} of {self:?}"
        );
        Self {
            memfd: Arc::clone(&self.memfd),
            offset: self.offset + range.start,
            len: range.len(),
        }
    }

    /// Returns whether the range starts at a multiple of `alignment`, which is at most the page size.
    pub(super) fn is_aligned(&self, alignment: usize) -> bool {
        self.offset.is_multiple_of(alignment)
    }

    /// Returns the number of whole 32-bit words.
    pub(super) fn words(&self) -> usize {
        self.len / 4
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: `offset` lies inside the mapping, as `new` checked.
        unsafe { self.memfd.as_ptr().add(self.offset) }
    }

    /// Fills the whole view from `src`.
    ///
    /// # Safety
    /// `src` is readable for the length of this view.
    pub(super) unsafe fn write_from(&self, src: *const u8) {
        let mut piece = [0; 4096];
        for at in (0..self.len).step_by(piece.len()) {
            let piece = &mut piece[..(self.len - at).min(4096)];
            // SAFETY: at + piece.len() <= len, which is in the caller's range; the piece is a local array.
            unsafe { ptr::copy_nonoverlapping(src.add(at), piece.as_mut_ptr(), piece.len()) };
            // SAFETY: in range as above, inside the mapping.
            unsafe { volatile::write(self.start().add(at), piece) };
        }
    }

    /// Reads the whole view to `dst`.
    ///
    /// # Safety
    /// `dst` is writable for the length of this view.
    pub(super) unsafe fn read_to(&self, dst: *mut u8) {
        let mut piece = [0; 4096];
        for at in (0..self.len).step_by(piece.len()) {
            let piece = &mut piece[..(self.len - at).min(4096)];
            // SAFETY: at + piece.len() <= len, so inside the mapping.
            unsafe { volatile::read(self.start().add(at), piece) };
            // SAFETY: `dst` may be uninitialized, so this is a raw copy; in range as above, and the piece is a local
            // array.
            unsafe { ptr::copy_nonoverlapping(piece.as_ptr(), dst.add(at), piece.len()) };
        }
    }

    /// Returns the length in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Passes all bytes to `see`, each piece with its offset, a multiple of 8.
    pub(super) fn visit(&self, mut see: impl FnMut(usize, &[u8])) {
        let mut piece = [0; 4096];
        for at in (0..self.len).step_by(piece.len()) {
            let piece = &mut piece[..(self.len - at).min(4096)];
            // SAFETY: at + piece.len() <= len, so inside the mapping.
            unsafe { volatile::read(self.start().add(at), piece) };
            see(at, piece);
        }
    }

    /// Returns the 8 bytes at `offset`, with zeros after the end.
    pub(super) fn line(&self, offset: u64) -> [u8; 8] {
        let mut line = [0; 8];
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.len);
        let len = line.len().min(self.len - start);
        // SAFETY: start + len <= self.len, so inside the mapping.
        unsafe { volatile::read(self.start().add(start), &mut line[..len]) };
        line
    }

    /// Copies all of `src`, a view of other memory with the same length.
    pub(super) fn copy_from(&self, src: &Self) {
        let mut piece = [0; 4096];
        let len = self.len.min(src.len);
        for at in (0..len).step_by(piece.len()) {
            let piece = &mut piece[..(len - at).min(4096)];
            // SAFETY: at + piece.len() <= src.len, so inside the mapping.
            unsafe { volatile::read(src.start().add(at), piece) };
            // SAFETY: at + piece.len() <= self.len, so inside the mapping.
            unsafe { volatile::write(self.start().add(at), piece) };
        }
    }

    /// Writes `value` to every byte.
    pub(super) fn fill(&self, value: u8) {
        let piece = [value; 4096];
        for at in (0..self.len).step_by(piece.len()) {
            let piece = &piece[..(self.len - at).min(4096)];
            // SAFETY: at + piece.len() <= len, so inside the mapping.
            unsafe { volatile::write(self.start().add(at), piece) };
        }
    }

    /// Returns the `index`-th 32-bit word, which other threads and mappings may use at the same time.
    ///
    /// # Panics
    /// If the view has no such word or is not 4-byte aligned; both are checked when a kernel is prepared.
    pub(super) fn word(&self, index: usize) -> &AtomicU32 {
        assert!(
            index < self.words() && self.is_aligned(4),
            "word {index} of {self:?}"
        );
        // SAFETY: in range and aligned (checked above; the mapping starts at a page), and mapped as long as `self`
        // keeps the memfd alive.
        unsafe { volatile::flag(self.start().add(4 * index)) }
    }

    /// Returns the `index`-th 64-bit word, which other threads and mappings may use at the same time.
    ///
    /// # Panics
    /// If the view has no such word or is not 8-byte aligned.
    pub(super) fn wide_word(&self, index: usize) -> &AtomicU64 {
        assert!(
            index < self.len / 8 && self.is_aligned(8),
            "wide word {index} of {self:?}"
        );
        // SAFETY: as for `word`.
        unsafe { volatile::counter(self.start().add(8 * index)) }
    }
}
