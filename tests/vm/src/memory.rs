//! Memory for rxe endpoints.

use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};

use anyhow::Context;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// Mapped memory.
#[derive(Debug)]
pub(crate) struct Memory {
    start: NonNull<u8>,
    len: usize,
}

impl Memory {
    /// Private anonymous memory.
    pub(crate) fn new(len: usize) -> anyhow::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses replaces no other.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE) }?;
        Self::at_start(start.cast(), len)
    }

    /// Creates a shared mapping of a file.
    pub(crate) fn map(file: &OwnedFd, len: usize) -> anyhow::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as in `new`.
        let start = unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) }?;
        Self::at_start(start.cast(), len)
    }

    fn at_start(start: *mut u8, len: usize) -> anyhow::Result<Self> {
        let start = NonNull::new(start).context("a mapping at 0")?;
        Ok(Self { start, len })
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of `len` bytes at `offset`. Panics if they are not in the mapping.
    pub(crate) fn at(&self, offset: u64, len: usize) -> *mut u8 {
        let offset = usize::try_from(offset).expect("in range");
        assert!(offset <= self.len && len <= self.len - offset, "in range");
        // SAFETY: within the mapping, as was just checked.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned by `self`, and is deregistered.
        if let Err(error) = unsafe { munmap(self.start.as_ptr().cast(), self.len) } {
            eprintln!("munmap: {error}");
        }
    }
}
