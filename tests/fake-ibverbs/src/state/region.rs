//! Registered memory, and the memory of simulated GPUs.

use std::ffi::c_int;

use gdr_verbs_sys::{ibv_access_flags, ibv_mr};

use super::device::DeviceId;
use crate::c_abi::Handle;
use crate::dma::Mapping;
use crate::spec::GpuPath;

/// GPU memory that a peer-memory module supports.
pub(crate) struct GpuMemory {
    pub(crate) base: u64,
    pub(crate) size: u64,
    pub(crate) fd: c_int,
}

/// The location of the bytes.
pub(crate) enum Backing {
    /// At the address of the program.
    Host,
    /// In memory without an address in the program.
    Gpu { mapping: Mapping, path: GpuPath },
}

/// The identity of a file, independent of its descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) fd: c_int,
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl File {
    pub(crate) fn of(fd: c_int) -> Option<Self> {
        // SAFETY: a place of the right type, which may be all zeros.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: a writable place.
        let answer = unsafe { libc::fstat(fd, &mut status) };
        (answer == 0).then_some(Self {
            fd,
            device: status.st_dev,
            inode: status.st_ino,
        })
    }
}

pub(crate) struct Region {
    pub(crate) device: DeviceId,
    pub(crate) domain: usize,
    pub(crate) object: Handle<ibv_mr>,
    pub(crate) iova: u64,
    pub(crate) len: usize,
    /// The address of host memory; meaningless for GPU memory.
    pub(crate) address: usize,
    pub(crate) access: u32,
    pub(crate) backing: Backing,
    /// The file of the dma-buf.
    pub(crate) file: Option<File>,
}

/// The access of a request to a region.
pub(crate) struct Place {
    pub(crate) address: usize,
    /// The treatment of GPU memory, if the region is GPU memory.
    pub(crate) gpu: Option<GpuPath>,
}

impl Region {
    /// The location of `len` bytes at `addr`, if they are in the region.
    pub(crate) fn place(&self, addr: u64, len: usize) -> Option<Place> {
        let offset = usize::try_from(addr.checked_sub(self.iova)?).ok()?;
        if offset.checked_add(len)? > self.len {
            return None;
        }
        let (start, gpu) = match &self.backing {
            Backing::Host => (self.address, None),
            Backing::Gpu { mapping, path } => (mapping.start(), Some(*path)),
        };
        Some(Place {
            address: start + offset,
            gpu,
        })
    }

    pub(crate) fn permits(&self, wanted: ibv_access_flags) -> bool {
        self.access & wanted.0 == wanted.0
    }
}
