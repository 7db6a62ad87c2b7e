//! A fake of the driver for tests, based on memfds: it keeps objects, references and mappings as the driver does, and
//! fails on demand.

use std::collections::HashMap;
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::MemfdFlags;

use super::abi::{self, ControlParams, Escape, Handle};
use super::ioctl::{Node, RmIoctl};

/// CUDA's client and its object.
pub(super) const CUDA_CLIENT: Handle = Handle(0xc1d0_0001);
pub(super) const CUDA_OBJECT: Handle = Handle(0x5c00_0010);
/// The number of bytes in that object.
pub(super) const OBJECT_SIZE: u64 = 2 << 20;
/// The size and free space of BAR1 in KiB.
pub(super) const BAR1_KIB: (u32, u32) = (262_144, 1_024);

#[derive(Debug, Default)]
pub(super) struct State {
    next: u32,
    /// Existing objects: handle to class, or to 0 for memory.
    pub(super) objects: HashMap<u32, u32>,
    /// Existing mappings of the library: linear address to object.
    pub(super) mappings: HashMap<u64, u32>,
    /// The parts of CUDA's objects that each mapping maps.
    pub(super) views: HashMap<u64, View>,
    /// CUDA's objects besides [`CUDA_OBJECT`]: handle to size in bytes.
    pub(super) cuda_objects: HashMap<u32, u64>,
    /// CUDA's objects that are not on a GPU.
    pub(super) in_host_memory: Vec<u32>,
    /// CUDA's object for each object of the library.
    behind: HashMap<u32, u32>,
    /// CUDA's objects in each descriptor, with their types.
    pub(super) descriptors: HashMap<i32, Vec<(u8, u32)>>,
    pub(super) calls: Vec<Escape>,
    /// The statuses that the next escapes return, by escape.
    pub(super) refusals: Vec<(Escape, u32)>,
    /// The error of opening a node.
    pub(super) closed: Option<(Node, i32)>,
    /// Whether the parent of CUDA's object is a subdevice.
    pub(super) under_subdevice: bool,
    subdevice: u32,
}

/// A file that maps `len` bytes of one of CUDA's objects from `offset` on.
#[derive(Debug)]
pub(super) struct View {
    pub(super) object: u32,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) file: OwnedFd,
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

    /// Makes the next escape of this number return `status`.
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

    /// Returns the size of one of CUDA's objects, if it exists.
    fn size_of(&self, object: u32) -> Option<u64> {
        match object == CUDA_OBJECT.0 {
            true => Some(OBJECT_SIZE),
            false => self.cuda_objects.get(&object).copied(),
        }
    }

    /// Duplicates one of CUDA's objects.
    fn duplicate(&mut self, theirs: u32) -> Handle {
        let ours = self.object(0);
        self.behind.insert(ours.0, theirs);
        ours
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
            // SAFETY: as above; the list has `count` entries.
            abi::SurfaceInfo::CMD => unsafe {
                let info = &*info.cast::<abi::SurfaceInfo>();
                let list = info.list as *mut abi::IndexedInfo;
                let theirs = self.behind[&control.object.0];
                for entry in std::slice::from_raw_parts_mut(list, info.count as usize) {
                    entry.data = match entry.index {
                        abi::SURFACE_PHYS_SIZE => (self.size_of(theirs).unwrap() >> 12) as u32,
                        abi::SURFACE_ADDR_SPACE if self.in_host_memory.contains(&theirs) => 1,
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
            // SAFETY: as above.
            abi::ExportInfo::CMD => unsafe {
                let info = &mut *info.cast::<abi::ExportInfo>();
                info.device_instance = 3;
                info.max_objects = self.descriptors[&info.fd].len() as u16;
            },
            // SAFETY: as above.
            abi::ImportObject::CMD => unsafe {
                let import = &mut *info.cast::<abi::ImportObject>();
                let (_, theirs) = self.descriptors[&import.fd][0];
                import.object = self.duplicate(theirs);
            },
            // SAFETY: as above.
            abi::ImportObjects::CMD => unsafe {
                let import = &mut *info.cast::<abi::ImportObjects>();
                let inside = self.descriptors[&import.fd].clone();
                for (at, (kind, theirs)) in inside.into_iter().enumerate() {
                    import.types[at] = kind;
                    if kind != 0 {
                        import.objects[at] = self.duplicate(theirs);
                    }
                }
            },
            other => panic!("control {other:#x}"),
        }
        0
    }

    fn escape(&mut self, escape: Escape, arg: *mut c_void) {
        self.calls.push(escape);
        let refusal = self.refusal(escape);
        // SAFETY: the caller passes the escape's own structure (`RmIoctl::escape`).
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
                    let mappings = &self.mappings;
                    self.views
                        .retain(|address, _| mappings.contains_key(address));
                }
                Escape::RmDupObject => {
                    let dup = &mut *arg.cast::<abi::Dup>();
                    let wanted = (dup.source_client, dup.source_object);
                    let parent_fits = (dup.parent.0 == self.subdevice) == self.under_subdevice;
                    dup.status = match refusal {
                        Some(status) => status,
                        None if wanted.0 != CUDA_CLIENT => 0x57,
                        None if self.size_of(wanted.1.0).is_none() => 0x57,
                        None if !parent_fits => 0x36,
                        None => 0,
                    };
                    if dup.status == 0 {
                        dup.object = self.duplicate(wanted.1.0);
                    }
                }
                Escape::RmMapMemory => {
                    let map = &mut *arg.cast::<abi::MapMemory>();
                    let end = map.offset.checked_add(map.length);
                    let theirs = self.behind.get(&map.memory.0).copied().unwrap_or_default();
                    let size = self.size_of(theirs).unwrap_or_default();
                    map.status = match refusal {
                        Some(status) => status,
                        None if !self.objects.contains_key(&map.memory.0) => 0x57,
                        None if end.is_none_or(|end| end > size) => 0x2e,
                        None => 0,
                    };
                    if map.status == 0 {
                        // The driver's file has the length of the mapping, too.
                        let file = BorrowedFd::borrow_raw(map.fd);
                        rustix::fs::ftruncate(file, map.length).unwrap();
                        self.next += 1;
                        map.linear_address = 0xd000_0000 + u64::from(self.next) * 4096;
                        map.flags = 2 << 23;
                        self.mappings.insert(map.linear_address, map.memory.0);
                        let view = View {
                            object: theirs,
                            offset: map.offset,
                            len: map.length,
                            file: file.try_clone_to_owned().unwrap(),
                        };
                        self.views.insert(map.linear_address, view);
                    }
                }
                Escape::RmUnmapMemory => {
                    let unmap = &mut *arg.cast::<abi::UnmapMemory>();
                    let known = self.mappings.remove(&unmap.linear_address).is_some();
                    self.views.remove(&unmap.linear_address);
                    unmap.status = if known { 0 } else { 0x57 };
                }
            }
        }
    }
}

impl RmIoctl for FakeDriver {
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
