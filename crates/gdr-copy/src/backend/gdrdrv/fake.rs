//! A fake of the kernel module, for tests.
//!
//! It reads and writes arguments at the literal offsets of the module's header, returns what GDRCopy 2.6's `gdrdrv.c`
//! returns, and keeps each pinned range in a memfd, at the offset of its handle.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{MemfdFlags, Mode, OFlags};

use super::abi::Request;
use super::device::Device;
use crate::bar_mapping::host_page;
use crate::report::ModuleVersion;

const GPU_PAGE: u64 = 0x1_0000;

/// The addresses of GPU memory.
pub(super) const GPU_MEMORY: std::ops::Range<u64> = 0x7f00_0000_0000..0x7f00_4000_0000;

pub(super) const WC: u32 = 1;
pub(super) const CACHED: u32 = 2;
pub(super) const DEVICE: u32 = 3;

/// One call: the request's number and the argument's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) number: u32,
    pub(super) argument: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) version: ModuleVersion,
    pub(super) minimum_api: ModuleVersion,
    pub(super) persistent: bool,
    pub(super) force_pcie: bool,
    /// The kind of a mapping on this platform unless another kind is requested.
    pub(super) platform: u32,
    /// The kinds that can be requested.
    pub(super) allowed: Vec<u32>,
    pub(super) next_handle: u64,
    pub(super) calls: Vec<Call>,
    /// The next call of this kind fails with this errno.
    pub(super) faults: VecDeque<(Request, i32)>,
    /// mmap fails as in another process than the one that opened the file.
    pub(super) mmap_is_refused: bool,
    /// Calls with an unknown handle, which the module applies to another range.
    pub(super) unknown_handles: usize,
    /// Ranges that were unpinned while they were mapped.
    pub(super) unpinned_while_mapped: usize,
    /// Added to the address by GET_INFO.
    pub(super) reported_shift: u64,
    ranges: Vec<Range>,
}

#[derive(Clone, Debug)]
struct Range {
    handle: u64,
    va: u64,
    size: u64,
    requested: u32,
    freed: bool,
}

/// The module, shared by the test and its device.
#[derive(Clone, Debug)]
pub(super) struct FakeModule(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    memory: OwnedFd,
    read_only: OwnedFd,
    state: Mutex<State>,
}

impl FakeModule {
    pub(super) fn new(version: ModuleVersion) -> Self {
        let memory = rustix::fs::memfd_create("fake-gdrdrv", MemfdFlags::CLOEXEC).unwrap();
        // A sparse file, long enough for handles of more than 32 bits.
        rustix::fs::ftruncate(&memory, 1 << 56).unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&memory));
        let read_only =
            rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let state = Mutex::new(State {
            version,
            minimum_api: (2, 0),
            persistent: true,
            force_pcie: true,
            platform: WC,
            allowed: vec![WC],
            next_handle: 0,
            calls: Vec::new(),
            faults: VecDeque::new(),
            mmap_is_refused: false,
            unknown_handles: 0,
            unpinned_while_mapped: 0,
            reported_shift: 0,
            ranges: Vec::new(),
        });
        Self(Arc::new(Inner {
            memory,
            read_only,
            state,
        }))
    }

    pub(super) fn with(self, change: impl FnOnce(&mut State)) -> Self {
        change(&mut self.state());
        self
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    pub(super) fn device(&self) -> Box<dyn Device> {
        Box::new(self.clone())
    }

    /// Handles of the ranges that are pinned.
    pub(super) fn pinned(&self) -> Vec<u64> {
        self.state()
            .ranges
            .iter()
            .map(|range| range.handle)
            .collect()
    }

    /// Returns whether a mapping of the range exists in this process.
    pub(super) fn is_mapped(&self, handle: u64) -> bool {
        self.0.is_mapped(handle)
    }

    /// Returns what the GPU reads of a range, from its first page on.
    pub(super) fn gpu_reads(&self, handle: u64, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let at = handle * host_page() + offset;
        assert_eq!(
            rustix::io::pread(&self.0.memory, &mut bytes[..], at).unwrap(),
            len
        );
        bytes
    }

    /// Notifies the module that `cudaFree` freed all memory.
    pub(super) fn free_all(&self) {
        let mut state = self.state();
        if !state.persistent {
            state.ranges.iter_mut().for_each(|range| range.freed = true);
        }
    }

    /// Returns the calls of one kind, oldest first.
    pub(super) fn calls(&self, number: u32) -> Vec<Vec<u8>> {
        let state = self.state();
        state
            .calls
            .iter()
            .filter(|c| c.number == number)
            .map(|c| c.argument.clone())
            .collect()
    }
}

impl Inner {
    /// Reads the process's list of mappings, independent of this library's state.
    fn is_mapped(&self, handle: u64) -> bool {
        let inode = rustix::fs::fstat(&self.memory).unwrap().st_ino.to_string();
        let Some(offset) = handle.checked_mul(host_page()) else {
            return false;
        };
        let offset = format!("{offset:08x}");
        fs::read_to_string("/proc/self/maps")
            .unwrap()
            .lines()
            .any(|line| {
                let fields: Vec<_> = line.split_ascii_whitespace().collect();
                fields.get(2) == Some(&offset.as_str()) && fields.get(4) == Some(&inode.as_str())
            })
    }
}

impl Device for FakeModule {
    fn call(&self, request: Request, argument: &mut [u8]) -> io::Result<()> {
        let mut state = self.state();
        state.calls.push(Call {
            number: request as u32,
            argument: argument.to_vec(),
        });
        if let Some(at) = state.faults.iter().position(|(r, _)| *r == request) {
            let (_, errno) = state.faults.remove(at).unwrap();
            return Err(io::Error::from_raw_os_error(errno));
        }
        state
            .answer(request as u32, argument, &self.0)
            .map_err(io::Error::from_raw_os_error)
    }

    fn file(&self) -> BorrowedFd<'_> {
        if self.state().mmap_is_refused {
            self.0.read_only.as_fd()
        } else {
            self.0.memory.as_fd()
        }
    }
}

impl State {
    fn answer(&mut self, number: u32, argument: &mut [u8], module: &Inner) -> Result<(), i32> {
        let since = match number {
            0xC008_DA05 => (2, 4),
            0xC008_DA06..=0xC008_DA08 | 0xC020_DA07 => (2, 5),
            _ => (2, 0),
        };
        if self.version < since && number != 0xC008_DAFF {
            return Err(libc::ENOTTY);
        }
        match number {
            0xC008_DAFF => {
                put32(argument, 0, pack(self.version));
                put32(argument, 4, pack(self.minimum_api));
            }
            0xC028_DA01 => {
                let tokens = u64_at(argument, 16) != 0 || u32_at(argument, 24) != 0;
                if tokens && self.persistent {
                    return Err(libc::EINVAL);
                }
                let handle = self.pin(u64_at(argument, 0), u64_at(argument, 8))?;
                put64(argument, 32, handle);
            }
            0xC020_DA07 => {
                match u32_at(argument, 16) {
                    0 => {}
                    1 if self.force_pcie && self.persistent => {}
                    _ => return Err(libc::EINVAL),
                }
                let handle = self.pin(u64_at(argument, 0), u64_at(argument, 8))?;
                put64(argument, 24, handle);
            }
            0xC008_DA02 => {
                let at = self.find(u64_at(argument, 0))?;
                let range = self.ranges.remove(at);
                self.unpinned_while_mapped += usize::from(module.is_mapped(range.handle));
            }
            0xC008_DA03 => {
                let at = self.find(u64_at(argument, 0))?;
                put32(argument, 8, self.ranges[at].freed.into());
            }
            0xC008_DA04 | 0xC008_DA05 => {
                let at = self.find(u64_at(argument, 0))?;
                let range = self.ranges[at].clone();
                let is_mapped = !range.freed && module.is_mapped(range.handle);
                let kind = match (is_mapped, range.requested) {
                    (false, _) => 0,
                    (true, 0) => self.platform,
                    (true, requested) => requested,
                };
                put64(argument, 8, range.va + self.reported_shift);
                put64(argument, 16, range.size);
                put32(argument, 24, GPU_PAGE as u32);
                if number == 0xC008_DA04 {
                    put32(argument, 40, is_mapped.into());
                    put32(argument, 44, (kind == WC).into());
                } else {
                    put32(argument, 40, kind);
                }
            }
            0xC008_DA06 => {
                let value = match u32_at(argument, 0) {
                    1 => self.persistent,
                    2 => self.persistent && self.force_pcie,
                    _ => return Err(libc::EINVAL),
                };
                put32(argument, 4, value.into());
            }
            0xC008_DA08 => {
                let wanted = u32_at(argument, 8);
                if wanted > DEVICE {
                    return Err(libc::EINVAL);
                }
                let at = self.find(u64_at(argument, 0))?;
                if module.is_mapped(self.ranges[at].handle) {
                    return Err(libc::EBUSY);
                }
                if wanted != 0 && !self.allowed.contains(&wanted) {
                    return Err(libc::EOPNOTSUPP);
                }
                self.ranges[at].requested = wanted;
            }
            _ => return Err(libc::ENOTTY),
        }
        Ok(())
    }

    fn pin(&mut self, address: u64, size: u64) -> Result<u64, i32> {
        let end = address + size;
        if address < GPU_MEMORY.start || end > GPU_MEMORY.end {
            return Err(libc::EINVAL);
        }
        let va = address / GPU_PAGE * GPU_PAGE;
        let size = end.next_multiple_of(GPU_PAGE) - va;
        let handle = self.next_handle;
        self.next_handle += (size / host_page()).max(1);
        self.ranges.insert(
            0,
            Range {
                handle,
                va,
                size,
                requested: 0,
                freed: false,
            },
        );
        Ok(handle)
    }

    /// Searches like the module: for an unknown handle it returns the oldest range.
    fn find(&mut self, handle: u64) -> Result<usize, i32> {
        match self.ranges.iter().position(|range| range.handle == handle) {
            Some(at) => Ok(at),
            None => {
                self.unknown_handles += 1;
                self.ranges.len().checked_sub(1).ok_or(libc::EINVAL)
            }
        }
    }
}

fn pack((major, minor): ModuleVersion) -> u32 {
    u32::from(major) << 16 | u32::from(minor)
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_ne_bytes(bytes[offset..offset + 8].try_into().unwrap())
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_ne_bytes(bytes[offset..offset + 4].try_into().unwrap())
}

fn put64(bytes: &mut [u8], offset: usize, value: u64) {
    bytes[offset..offset + 8].copy_from_slice(&value.to_ne_bytes());
}

fn put32(bytes: &mut [u8], offset: usize, value: u32) {
    bytes[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
}
