//! Size limits of archives.

use std::fmt;
use std::io::{self, Read};

use crate::source::MAX_FILE;

/// The most entries. About 30 files are kept per PCI function, and nodes may have thousands of virtual functions.
pub(super) const ENTRIES: usize = 250_000;
/// The most bytes of the manifest.
pub(super) const MANIFEST: u64 = 16 << 20;
/// The most bytes of all files together.
pub(super) const CONTENT: u64 = 64 << 20;
/// The most bytes when unpacked, headers and padding included.
pub(super) const UNPACKED: u64 = 256 << 20;
/// The longest path and link target, `PATH_MAX` of Linux.
pub(super) const PATH: usize = 4096;
/// The most output bytes per compressed byte, once more than [`FREE`] bytes were unpacked: small files padded to blocks
/// are mostly zeros, while decompression bombs reach a thousand.
const RATIO: u64 = 250;
const FREE: u64 = 4 << 20;

/// A limit that an archive exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// Entries.
    Entries,
    /// Bytes of the manifest.
    Manifest,
    /// Bytes of one file.
    File,
    /// Bytes of all files.
    Content,
    /// Bytes unpacked.
    Unpacked,
    /// Output bytes per compressed byte.
    Ratio,
    /// Bytes of a path.
    Path,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entries => write!(f, "{ENTRIES} entries"),
            Self::Manifest => write!(f, "{} MiB of manifest", MANIFEST >> 20),
            Self::File => write!(f, "{} MiB in one file", MAX_FILE >> 20),
            Self::Content => write!(f, "{} MiB of files", CONTENT >> 20),
            Self::Unpacked => write!(f, "{} MiB unpacked", UNPACKED >> 20),
            Self::Ratio => write!(f, "{RATIO} bytes for each compressed one"),
            Self::Path => write!(f, "{PATH} bytes in a path"),
        }
    }
}

/// The archive exceeds a limit; an I/O error, to pass through other libraries.
#[derive(Debug)]
pub(super) struct Exceeded(pub(super) Limit);

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "more than {}", self.0)
    }
}

impl std::error::Error for Exceeded {}

/// Counts the bytes read through it.
pub(super) struct Counted<R> {
    inner: R,
    pub(super) bytes: u64,
}

impl<R> Counted<R> {
    pub(super) fn new(inner: R) -> Self {
        Self { inner, bytes: 0 }
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.bytes += read as u64;
        Ok(read)
    }
}

/// The unpacked stream, which fails above the limits on size and compression ratio.
pub(super) struct Bounded<R> {
    inner: R,
    out: u64,
    compressed: fn(&R) -> Option<u64>,
}

impl<R: Read> Bounded<R> {
    /// `compressed` returns the number of bytes before decompression, if that differs.
    pub(super) fn new(inner: R, compressed: fn(&R) -> Option<u64>) -> Self {
        Self {
            inner,
            out: 0,
            compressed,
        }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.out += read as u64;
        let exceeded = if self.out > UNPACKED {
            Some(Limit::Unpacked)
        } else {
            (self.compressed)(&self.inner)
                .filter(|bytes| self.out > FREE + RATIO * bytes)
                .map(|_| Limit::Ratio)
        };
        match exceeded {
            Some(limit) => Err(io::Error::other(Exceeded(limit))),
            None => Ok(read),
        }
    }
}
