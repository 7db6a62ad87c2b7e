//! A fake CUDA for tests: allocations in objects of [`FakeDriver`], CUDA's reports about them, and wrong answers on
//! demand.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use gdr_cuda::{
    AddressRange, BufferId, CuResult, DeviceInfo, DevicePtr, Driver, Error, Family, MemoryKind,
    Ordinal, PointerInfo, PointerKind, Result, SimDriver,
};
use rustix::fs::MemfdFlags;

use super::abi::{Handle, IMPORT_VIDMEM};
use super::cuda::{CudaCalls, ProbeMemory};
use super::extents::ObjectRange;
use super::fake::{CUDA_CLIENT, FakeDriver};
use super::ioctl_hook::HookError;

/// The unit of the sizes and addresses of objects.
const OBJECT: u64 = 2 << 20;

/// The wrong answers of this CUDA.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WrongAnswers {
    /// Bytes added to the allocation's offset in IPC handles.
    pub(super) ipc_offset: u64,
    /// Whether the mapping that CUDA reports is moved by the same number of bytes.
    pub(super) ipc_offset_fits_mapping: bool,
    /// Bytes added to the object's size in IPC handles.
    pub(super) ipc_object_size: u64,
    /// Bytes added to the range's offset in exports.
    pub(super) export_offset: u64,
    /// Bytes subtracted from the range's length in exports.
    pub(super) export_short: u64,
    /// Whether exports are refused.
    pub(super) no_export: bool,
    /// Whether copies to the device do not reach the mapping.
    pub(super) lost_writes: bool,
    /// Bytes added to the size of VMM mappings.
    pub(super) vmm_size: u64,
    /// Whether each query of an address returns another allocation.
    pub(super) reused: bool,
}

#[derive(Clone, Copy, Debug)]
struct Allocation {
    ptr: u64,
    size: u64,
    kind: MemoryKind,
    buffer: u64,
    object: u32,
    /// The start of the object in the address space.
    object_at: u64,
    object_size: u64,
}

#[derive(Debug, Default)]
pub(super) struct State {
    allocations: Vec<Allocation>,
    pub(super) wrong: WrongAnswers,
    looks: u64,
    /// How many self-tests have allocated probe memory.
    pub(super) proofs: u32,
}

#[derive(Debug)]
pub(super) struct FakeCuda {
    driver: Arc<FakeDriver>,
    state: Mutex<State>,
}

impl FakeCuda {
    pub(super) fn new(driver: &Arc<FakeDriver>) -> Arc<Self> {
        Arc::new(Self {
            driver: driver.clone(),
            state: Mutex::default(),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Allocates like CUDA: small plain allocations share an object, pool memory is part of a large one, and VMM memory
    /// has an object of its own.
    pub(super) fn allocate(&self, kind: MemoryKind, len: u64) -> DevicePtr {
        self.allocate_after(4 * OBJECT, kind, len)
    }

    /// Like [`FakeCuda::allocate`], but a new object begins `gap` bytes after the last one.
    pub(super) fn allocate_after(&self, gap: u64, kind: MemoryKind, len: u64) -> DevicePtr {
        let mut state = self.state();
        let number = state.allocations.len() as u64 + 1;
        let last = state.allocations.last().copied();
        let shared = last.filter(|last| {
            let room = last.object_at + last.object_size - (last.ptr + last.size);
            last.kind == kind && kind == MemoryKind::Plain && len + 512 <= room
        });
        let is_vmm = matches!(kind, MemoryKind::Vmm | MemoryKind::VmmPosixFd);
        let size = match is_vmm {
            true => len.next_multiple_of(OBJECT),
            false => len,
        };
        let allocation = match shared {
            Some(last) => Allocation {
                ptr: (last.ptr + last.size).next_multiple_of(512),
                size,
                buffer: number,
                ..last
            },
            None => {
                let object_at = last.map_or(0x7f00_0000_0000, |last| {
                    (last.object_at + last.object_size).next_multiple_of(OBJECT) + gap
                });
                let object_size = match kind {
                    MemoryKind::Pool => 16 * OBJECT,
                    _ => size.next_multiple_of(OBJECT),
                };
                let object = 0x5c00_1000 + number as u32;
                self.driver.state().cuda_objects.insert(object, object_size);
                // A pool's chunk contains other allocations before this one.
                let skip = if kind == MemoryKind::Pool { 0x5000 } else { 0 };
                Allocation {
                    ptr: object_at + skip,
                    size,
                    kind,
                    buffer: number,
                    object,
                    object_at,
                    object_size,
                }
            }
        };
        state.allocations.push(allocation);
        DevicePtr::new(allocation.ptr)
    }

    fn find(&self, ptr: DevicePtr) -> Result<Allocation> {
        let state = self.state();
        let holds = |a: &&Allocation| (a.ptr..a.ptr + a.size).contains(&ptr.get());
        let found = state.allocations.iter().find(holds);
        found.copied().ok_or(Error::UnknownPointer { ptr })
    }

    /// Copies `bytes` between CUDA and every mapping of the memory at `ptr`.
    fn each_view(&self, ptr: DevicePtr, len: usize, mut copy: impl FnMut(&OwnedFd, u64)) {
        let allocation = self.find(ptr).unwrap();
        let offset = ptr.get() - allocation.object_at;
        for view in self.driver.state().views.values() {
            let inside = offset.checked_sub(view.offset);
            if view.object == allocation.object
                && let Some(inside) = inside.filter(|at| at + len as u64 <= view.len)
            {
                copy(&view.file, inside);
            }
        }
    }

    /// Returns the byte at an address, as its mapping contains it.
    pub(super) fn byte(&self, ptr: DevicePtr) -> u8 {
        let mut byte = [0];
        self.each_view(ptr, 1, |file, at| {
            rustix::io::pread(file, &mut byte, at).unwrap();
        });
        byte[0]
    }
}

fn memfd() -> OwnedFd {
    rustix::fs::memfd_create("export", MemfdFlags::CLOEXEC).unwrap()
}

impl CudaCalls for FakeCuda {
    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        // The description of the simulated GPU, with another address.
        let gpu = SimDriver::new(1).devices()?.remove(0);
        let bdf = "0000:06:00.0".parse().unwrap();
        Ok(vec![DeviceInfo { bdf, ..gpu }])
    }

    fn pointer_info(&self, ptr: DevicePtr) -> Result<PointerInfo> {
        let found = self.find(ptr)?;
        let mut state = self.state();
        state.looks += 1;
        let wrong = state.wrong;
        let is_vmm = matches!(found.kind, MemoryKind::Vmm | MemoryKind::VmmPosixFd);
        let moved = match wrong.ipc_offset_fits_mapping && found.kind == MemoryKind::Plain {
            true => wrong.ipc_offset,
            false => 0,
        };
        Ok(PointerInfo {
            kind: PointerKind::Device,
            device: Ordinal(0),
            buffer: BufferId(match wrong.reused {
                true => 1000 + state.looks,
                false => found.buffer,
            }),
            base: DevicePtr::new(found.ptr),
            size: found.size + if is_vmm { wrong.vmm_size } else { 0 },
            family: match found.kind {
                MemoryKind::Plain => Family::Plain,
                MemoryKind::Pool => Family::Pool,
                _ => Family::Vmm,
            },
            mapping: Some(AddressRange {
                base: DevicePtr::new(found.object_at - moved),
                size: found.object_size,
            }),
        })
    }

    fn posix_fd(&self, ptr: DevicePtr) -> Result<Option<OwnedFd>> {
        let found = self.find(ptr)?;
        if found.kind != MemoryKind::VmmPosixFd {
            return Ok(None);
        }
        let fd = memfd();
        let inside = vec![(IMPORT_VIDMEM, found.object)];
        self.driver
            .state()
            .descriptors
            .insert(fd.as_raw_fd(), inside);
        Ok(Some(fd))
    }

    fn ipc_handle(&self, _: Ordinal, ptr: DevicePtr) -> Result<[u8; 64]> {
        let (found, wrong) = (self.find(ptr)?, self.state().wrong);
        if found.kind != MemoryKind::Plain {
            let (call, result) = ("cuIpcGetMemHandle", CuResult::INVALID_VALUE);
            return Err(Error::Call { call, result });
        }
        let words = [
            (2, std::process::id()),
            (4, found.size as u32),
            (5, (found.size >> 32) as u32),
            (
                6,
                ((found.object_size + wrong.ipc_object_size) >> 12) as u32,
            ),
            (7, (found.ptr - found.object_at + wrong.ipc_offset) as u32),
            (12, CUDA_CLIENT.0),
            (13, found.object),
        ];
        let mut handle = [0; 64];
        for (at, word) in words {
            handle[4 * at..4 * at + 4].copy_from_slice(&u32::to_le_bytes(word));
        }
        Ok(handle)
    }

    fn export(
        &self,
        _: Ordinal,
        ptr: DevicePtr,
        len: u64,
    ) -> Result<(OwnedFd, Vec<ObjectRange>), HookError> {
        let wrong = self.state().wrong;
        if wrong.no_export {
            return Err(HookError::not_exported());
        }
        let state = self.state();
        let end = ptr.get() + len;
        let mut sources: Vec<ObjectRange> = Vec::new();
        let mut at = ptr.get();
        while at < end {
            let holds = |a: &&Allocation| (a.object_at..a.object_at + a.object_size).contains(&at);
            let found = state
                .allocations
                .iter()
                .find(holds)
                .ok_or_else(HookError::not_exported)?;
            let len = end.min(found.object_at + found.object_size) - at;
            sources.push(ObjectRange {
                client: CUDA_CLIENT,
                object: Handle(found.object),
                offset: at - found.object_at + wrong.export_offset,
                len: len - wrong.export_short,
            });
            at += len;
        }
        Ok((memfd(), sources))
    }

    fn with_probe_memory(
        &self,
        _: Ordinal,
        _: DevicePtr,
        work: &mut dyn FnMut(&mut dyn ProbeMemory),
    ) -> Result<()> {
        self.state().proofs += 1;
        work(&mut FakeProbeMemory(self));
        Ok(())
    }
}

struct FakeProbeMemory<'cuda>(&'cuda FakeCuda);

impl ProbeMemory for FakeProbeMemory<'_> {
    fn allocate(&mut self, kind: MemoryKind, len: u64) -> Result<DevicePtr> {
        Ok(self.0.allocate(kind, len))
    }

    fn write(&self, ptr: DevicePtr, bytes: &[u8], _: Duration) -> Result<()> {
        if !self.0.state().wrong.lost_writes {
            self.0.each_view(ptr, bytes.len(), |file, at| {
                assert_eq!(rustix::io::pwrite(file, bytes, at).unwrap(), bytes.len());
            });
        }
        Ok(())
    }

    fn read(&self, ptr: DevicePtr, bytes: &mut [u8], _: Duration) -> Result<()> {
        bytes.fill(0xEE);
        let len = bytes.len();
        self.0.each_view(ptr, len, |file, at| {
            assert_eq!(rustix::io::pread(file, &mut *bytes, at).unwrap(), len);
        });
        Ok(())
    }
}
