//! DMA buffers without a GPU: pages of a memfd, through `/dev/udmabuf`.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::Context;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

/// `struct udmabuf_create` (linux/udmabuf.h).
#[repr(C)]
struct Create {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_FLAGS_CLOEXEC`.
const CLOEXEC: u32 = 1;
/// `UDMABUF_CREATE`: `_IOW('u', 0x42, struct udmabuf_create)`.
const CREATE: libc::Ioctl = 0x4018_7542;

/// Allocates a DMA buffer of `len` bytes, a multiple of the page size.
///
/// # Errors
/// If the kernel has no udmabuf, or the call fails.
pub fn new(len: u64) -> anyhow::Result<OwnedFd> {
    let memfd = memfd_create("gdr-vm", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memfd, len)?;
    // udmabuf requires a memfd that cannot shrink.
    fcntl_add_seals(&memfd, SealFlags::SHRINK)?;
    let device = File::options()
        .read(true)
        .write(true)
        .open("/dev/udmabuf")
        .context("/dev/udmabuf")?;
    let create = Create {
        memfd: memfd.as_raw_fd() as u32,
        flags: CLOEXEC,
        offset: 0,
        size: len,
    };
    // SAFETY: the request takes this structure, which lives for the call.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), CREATE, &raw const create) };
    if fd < 0 {
        return Err(io::Error::last_os_error()).context("UDMABUF_CREATE");
    }
    // SAFETY: the kernel has just created the descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
