//! A driver's end of the port for tests: objects, references and mappings as the real one keeps
//! them, over memfds, with refusals on demand.

use std::collections::HashMap;
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::MemfdFlags;

use super::abi::{self, ControlParams, Escape, Handle};
use super::port::{Node, Port};

/// CUDA's client and the object in it that the tests look for.
pub(super) const CUDA_CLIENT: Handle = Handle(0xc1d0_0001);
pub(super) const CUDA_OBJECT: Handle = Handle(0x5c00_0010);
/// Bytes in that object.
pub(super) const OBJECT_SIZE: u64 = 2 << 20;
/// What BAR1 has in all, and what of it is free, KiB.
pub(super) const BAR1_KIB: (u32, u32) = (262_144, 1_024);

#[derive(Debug, Default)]
pub(super) struct State {
    next: u32,
    /// Live objects: name to class, or to 0 for memory.
    pub(super) objects: HashMap<u32, u32>,
    /// Live mappings of ours: linear address to object.
    pub(super) mappings: HashMap<u64, u32>,
    pub(super) calls: Vec<Escape>,
    /// The status that the next escapes of a number answer.
    pub(super) refusals: Vec<(Escape, u32)>,
    /// The error that opening a node gives.
    pub(super) closed: Option<(Node, i32)>,
    /// Whether CUDA's object lives under a subdevice.
    pub(super) under_subdevice: bool,
    subdevice: u32,
}

#[derive(Debug, Default)]
pub(super) struct FakeDriver(Mutex<State>);

impl FakeDriver {
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Makes the next escape of this number answer `status`.
    pub(super) fn refuse(&self, escape: Escape, status: u32) {
        self.state().refusals.push((escape, status));
    }
}

impl State {
    fn object(&mut self, class: u32) -> Handle {
        self.next += 1;
        let name = 0xcaf0_0000 + self.next;
        self.objects.insert(name, class);
        Handle(name)
    }

    fn refusal(&mut self, escape: Escape) -> Option<u32> {
        let at = self
            .refusals
            .iter()
            .position(|(number, _)| *number == escape)?;
        Some(self.refusals.remove(at).1)
    }

    fn control(&mut self, control: &abi::Control) -> u32 {
        let info = control.params as *mut c_void;
        match control.cmd {
            // SAFETY: the caller passes each command's own structure (`ControlParams`).
            abi::GpuIdInfo::CMD => unsafe {
                let info = &mut *info.cast::<abi::GpuIdInfo>();
                assert_eq!(info.gpu_id, 0x600);
                info.device_instance = 3;
            },
            // SAFETY: as above; its list has `count` entries.
            abi::SurfaceInfo::CMD => unsafe {
                let info = &*info.cast::<abi::SurfaceInfo>();
                let list = info.list as *mut abi::IndexedInfo;
                for entry in std::slice::from_raw_parts_mut(list, info.count as usize) {
                    entry.data = match entry.index {
                        abi::SURFACE_PHYS_SIZE => (OBJECT_SIZE >> 12) as u32,
                        abi::SURFACE_ADDR_SPACE => abi::ADDR_SPACE_VIDMEM,
                        other => panic!("surface info {other}"),
                    };
                }
            },
            // SAFETY: as above.
            abi::FbInfo::CMD => unsafe {
                let info = &mut *info.cast::<abi::FbInfo>();
                info.list[0].data = BAR1_KIB.0;
                info.list[1].data = BAR1_KIB.1;
            },
            other => panic!("control {other:#x}"),
        }
        0
    }

    fn escape(&mut self, escape: Escape, arg: *mut c_void) {
        self.calls.push(escape);
        let refusal = self.refusal(escape);
        // SAFETY: the caller passes the escape's own structure (`Port::escape`).
        unsafe {
            match escape {
                Escape::CheckVersion => {
                    let version = &mut *arg.cast::<abi::ApiVersion>();
                    assert_eq!(version.cmd, u32::from(b'2'));
                    version.version[..10].copy_from_slice(b"580.159.04");
                }
                Escape::CardInfo => {
                    let cards = &mut *arg.cast::<[abi::CardInfo; abi::MAX_CARDS]>();
                    cards[5] = abi::CardInfo {
                        valid: 1,
                        bus: 6,
                        gpu_id: 0x600,
                        minor: 2,
                        ..Default::default()
                    };
                }
                Escape::RmAlloc => {
                    let alloc = &mut *arg.cast::<abi::Alloc>();
                    alloc.status = refusal.unwrap_or(0);
                    if alloc.status == 0 {
                        alloc.object = self.object(alloc.class);
                        if alloc.class == abi::CLASS_SUBDEVICE {
                            self.subdevice = alloc.object.0;
                        }
                    }
                }
                Escape::RmControl => {
                    let control = &mut *arg.cast::<abi::Control>();
                    control.status = match refusal {
                        Some(status) => status,
                        None => self.control(control),
                    };
                }
                Escape::RmFree => {
                    let free = &mut *arg.cast::<abi::Free>();
                    let class = self.objects.remove(&free.object.0);
                    free.status = if class.is_some() { 0 } else { 0x57 };
                    if class == Some(abi::CLASS_ROOT_CLIENT) {
                        self.objects.clear();
                    }
                    self.mappings.retain(|_, object| *object != free.object.0);
                }
                Escape::RmDupObject => {
                    let dup = &mut *arg.cast::<abi::Dup>();
                    let wanted = (dup.source_client, dup.source_object);
                    let parent_fits = (dup.parent.0 == self.subdevice) == self.under_subdevice;
                    dup.status = match refusal {
                        Some(status) => status,
                        None if wanted != (CUDA_CLIENT, CUDA_OBJECT) => 0x57,
                        None if !parent_fits => 0x36,
                        None => 0,
                    };
                    if dup.status == 0 {
                        dup.object = self.object(0);
                    }
                }
                Escape::RmMapMemory => {
                    let map = &mut *arg.cast::<abi::MapMemory>();
                    let end = map.offset.checked_add(map.length);
                    map.status = match refusal {
                        Some(status) => status,
                        None if !self.objects.contains_key(&map.memory.0) => 0x57,
                        None if end.is_none_or(|end| end > OBJECT_SIZE) => 0x2e,
                        None => 0,
                    };
                    if map.status == 0 {
                        // The file shows exactly the mapping, as the real one does.
                        let file = BorrowedFd::borrow_raw(map.fd);
                        rustix::fs::ftruncate(file, map.length).unwrap();
                        self.next += 1;
                        map.linear_address = 0xd000_0000 + u64::from(self.next) * 4096;
                        map.flags = 2 << 23;
                        self.mappings.insert(map.linear_address, map.memory.0);
                    }
                }
                Escape::RmUnmapMemory => {
                    let unmap = &mut *arg.cast::<abi::UnmapMemory>();
                    let known = self.mappings.remove(&unmap.linear_address).is_some();
                    unmap.status = if known { 0 } else { 0x57 };
                }
            }
        }
    }
}

impl Port for FakeDriver {
    fn open(&self, node: Node) -> io::Result<OwnedFd> {
        if let Some((closed, errno)) = self.state().closed
            && closed == node
        {
            return Err(io::Error::from_raw_os_error(errno));
        }
        Ok(rustix::fs::memfd_create(
            node.to_string().replace('/', "-"),
            MemfdFlags::CLOEXEC,
        )?)
    }

    unsafe fn escape(
        &self,
        fd: BorrowedFd<'_>,
        escape: Escape,
        arg: *mut c_void,
        _size: usize,
    ) -> io::Result<()> {
        assert!(fd.as_fd().as_raw_fd() >= 0);
        self.state().escape(escape, arg);
        Ok(())
    }
}
