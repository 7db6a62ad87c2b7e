//! From a device pointer to memory objects of our own: three routes.
//!
//! Measured on an H200 with driver 580.159.04, without the reference that each ends with: the IPC
//! handle 0.3 us, the dma-buf export call 30 us, the POSIX descriptor 1100 us (two thirds of them
//! in the driver). So the first serves `cuMemAlloc`, the second everything else, and the third,
//! the only one CUDA documents, VMM memory where the second is not to be had.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use gdr_cuda::{BufferId, Cuda, DevicePtr, Driver, Family, PointerInfo};

use super::abi::{self, ExportInfo, Handle, ImportObject, ImportObjects};
use super::device::{Device, Identity};
use super::memory::Memory;
use super::pieces::{Piece, widen};
use super::source::Source;
use super::{ipc, observe};
use crate::backend::range::{self, Located};
use crate::backend::{GPU_PAGE, PinRequest};
use crate::error::Error;
use crate::pinned::Route;

/// A range of one GPU's memory.
#[derive(Clone, Debug)]
pub(super) struct Range {
    pub(super) ptr: DevicePtr,
    pub(super) len: u64,
    /// The allocation it starts in.
    pub(super) info: PointerInfo,
    /// Further VMM mappings that it runs on into, each of them starting where the last one ends.
    pub(super) further: Vec<PointerInfo>,
}

impl Range {
    /// Finds the memory behind a request, all of it.
    ///
    /// A range may run over several `cuMemMap` mappings side by side (that is how growing buffers
    /// are made); one past the end of any other allocation is an error, whatever lies behind.
    pub(super) fn locate(cuda: &Cuda, request: &PinRequest) -> Result<Self, Error> {
        let past = match range::locate(cuda, request) {
            Ok(Located { ptr, len, info }) => {
                return Ok(Self {
                    ptr,
                    len,
                    info,
                    further: Vec::new(),
                });
            }
            Err(past @ Error::PastAllocation { .. }) => past,
            Err(other) => return Err(other),
        };
        let PinRequest { ptr, len, .. } = *request;
        let first = cuda.pointer_info(ptr)?;
        let mut further: Vec<PointerInfo> = Vec::new();
        let end = ptr.get() + len;
        loop {
            let last = further.last().unwrap_or(&first);
            let next = DevicePtr::new(last.base.get().saturating_add(last.size));
            if next.get() >= end {
                return Ok(Self {
                    ptr,
                    len,
                    info: first,
                    further,
                });
            }
            match cuda.pointer_info(next) {
                Ok(info)
                    if last.family == Family::Vmm
                        && info.family == Family::Vmm
                        && info.device == first.device
                        && info.base == next
                        && info.size > 0 =>
                {
                    further.push(info);
                }
                _ => return Err(past),
            }
        }
    }

    /// The allocation's number, where the range lies in one.
    fn buffer(&self) -> Option<BufferId> {
        self.further.is_empty().then_some(self.info.buffer)
    }

    /// Whole GPU pages around the range: the start, and the bytes added before and after.
    pub(super) fn widening(&self) -> (DevicePtr, u64, u64) {
        let start = self.ptr.align_down(GPU_PAGE);
        let end = self.ptr.get() + self.len;
        (
            start,
            self.ptr.get() - start.get(),
            end.next_multiple_of(GPU_PAGE) - end,
        )
    }
}

/// The largest pages that the driver makes GPU memory of, bytes.
const HUGE: u64 = 2 << 20;

/// The routes, in the order they are tried.
pub(super) const ROUTES: [Route; 3] = [Route::IpcHandle, Route::DmaBufCall, Route::PosixFd];

/// The memory objects behind `range`, widened to GPU pages, by one route. The error is why this
/// route does not reach this memory.
pub(super) fn by_route(
    cuda: &Cuda,
    device: &Arc<Device>,
    range: &Range,
    route: Route,
) -> Result<Vec<Piece>, String> {
    match route {
        Route::PosixFd => by_posix_fd(cuda, device, range),
        Route::IpcHandle => by_ipc_handle(cuda, device, range),
        Route::DmaBufCall => by_dma_buf_call(cuda, device, range),
        _ => Err("not a route of this backend".to_owned()),
    }
}

fn by_posix_fd(cuda: &Cuda, device: &Arc<Device>, range: &Range) -> Result<Vec<Piece>, String> {
    const POSIX_FD: u32 = 1; // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    if ![Family::Vmm, Family::Unknown].contains(&range.info.family) {
        return Err("it is no VMM memory".to_owned());
    }
    let retained = cuda.retain_allocation(range.ptr).map_err(text)?;
    if retained.handle_types().map_err(text)? & POSIX_FD == 0 {
        return Err("it was made without CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR".to_owned());
    }
    let memory = import(device, &retained.export_posix_fd().map_err(text)?)?;
    // CUDA maps a VMM allocation from its start (cuMemMap's offset must be 0), so the mapping's
    // start shows the object's start; that CUDA's extent is the object's tells the two belong
    // together, where a reservation holds several.
    if memory.size() != range.info.size {
        return Err(format!(
            "CUDA tells {} bytes, the driver's object has {}",
            range.info.size,
            memory.size()
        ));
    }
    let (_, before, after) = range.widening();
    let offset = range.ptr.get() - range.info.base.get();
    widen(
        vec![Piece {
            memory: Arc::new(memory),
            offset,
            len: range.len,
        }],
        before,
        after,
    )
}

/// Imports the one video memory object of an exported descriptor.
fn import(device: &Arc<Device>, fd: &OwnedFd) -> Result<Memory, String> {
    let client = device.client();
    let what = "an exported allocation";
    let fd = fd.as_raw_fd();
    let mut info = ExportInfo {
        fd,
        device_instance: 0,
        gpu_instance: 0,
        max_objects: 0,
        metadata: [0; 64],
        pad: [0; 2],
    };
    client
        .control(client.handle(), &mut info, what)
        .map_err(text)?;
    if info.device_instance != device.instance() {
        return Err(format!(
            "the allocation is on device {}, the pointer on {}",
            info.device_instance,
            device.instance()
        ));
    }
    if info.max_objects <= 1 {
        let mut one = ImportObject {
            fd,
            kind: 1,
            device: device.handle(),
            parent: device.handle(),
            object: Handle(0),
        };
        client
            .control(client.handle(), &mut one, what)
            .map_err(text)?;
        return Memory::own(device, device.handle(), one.object).map_err(text);
    }
    let mut many = ImportObjects {
        fd,
        parent: device.handle(),
        objects: [Handle(0); abi::MAX_IMPORT],
        types: [0; abi::MAX_IMPORT],
        count: info.max_objects.min(abi::MAX_IMPORT as u16),
        index: 0,
    };
    client
        .control(client.handle(), &mut many, what)
        .map_err(text)?;
    // Everything that came in is ours to free, whatever becomes of it; slots of type 0 are empty.
    let mut video = Vec::new();
    for (object, kind) in many.objects.into_iter().zip(many.types) {
        if kind == abi::IMPORT_VIDMEM {
            video.push(Memory::own(device, device.handle(), object).map_err(text)?);
        } else if kind != 0 {
            client.free(device.handle(), object);
        }
    }
    match (video.pop(), video.len()) {
        (Some(memory), 0) => Ok(memory),
        (Some(_), more) => Err(format!("the descriptor holds {} memory objects", more + 1)),
        (None, _) => Err("the descriptor holds no video memory object".to_owned()),
    }
}

fn by_ipc_handle(cuda: &Cuda, device: &Arc<Device>, range: &Range) -> Result<Vec<Piece>, String> {
    let PointerInfo {
        base,
        size,
        family,
        mapping,
        ..
    } = range.info;
    if ![Family::Plain, Family::Unknown].contains(&family) {
        return Err("it was not made by cuMemAlloc, so CUDA gives no IPC handle for it".to_owned());
    }
    let handle = cuda
        .ipc_handle(range.info.device, base)
        .map_err(|error| format!("CUDA gives no IPC handle for it ({error})"))?;
    let hint = ipc::parse(&handle, std::process::id(), size)?;
    // CUDA itself tells where in its mapping the allocation lies, by a documented way.
    if let Some(mapping) = mapping
        && mapping.base.checked_add(hint.source.offset) != Some(base)
    {
        return Err(format!(
            "the handle tells offset {}, CUDA a mapping of {} bytes from {} for {base}",
            hint.source.offset, mapping.size, mapping.base
        ));
    }
    let Source { client, object, .. } = hint.source;
    let identity = Identity {
        buffer: range.buffer(),
        client,
        object,
    };
    let memory = Memory::dup(device, identity).map_err(text)?;
    // The handle counts what was asked for, the driver what that takes in pages of 2 MiB.
    if memory.size() != hint.object_size && memory.size() != hint.object_size.next_multiple_of(HUGE)
    {
        return Err(format!(
            "the handle tells an object of {} bytes, the driver one of {}",
            hint.object_size,
            memory.size()
        ));
    }
    let (_, before, after) = range.widening();
    let offset = hint.source.offset + (range.ptr.get() - base.get());
    widen(
        vec![Piece {
            memory: Arc::new(memory),
            offset,
            len: range.len,
        }],
        before,
        after,
    )
}

fn by_dma_buf_call(cuda: &Cuda, device: &Arc<Device>, range: &Range) -> Result<Vec<Piece>, String> {
    // CUDA exports whole host pages.
    let page = crate::window::host_page();
    let start = range.ptr.align_down(page);
    let end = (range.ptr.get() + range.len).next_multiple_of(page);
    // Of a pool, CUDA exports ranges from the start of a chunk on only; that the chunk may hold
    // other allocations of this process does not matter, they are not mapped.
    let from = match (range.info.family, range.info.mapping) {
        (Family::Pool, Some(chunk)) if chunk.base <= start => chunk.base,
        _ => start,
    };
    let (fd, sources) = observe::export_of(cuda.symbol_address(), || {
        cuda.dma_buf_fd(range.info.device, from, end - from.get(), 0)
    })?;
    let exported = sources
        .iter()
        .try_fold(0u64, |sum, source| sum.checked_add(source.len));
    if exported != Some(end - from.get()) {
        return Err(format!(
            "{exported:?} bytes were exported of {}",
            end - from.get()
        ));
    }
    let mut pieces: Vec<Piece> = Vec::new();
    let mut skip = start.get() - from.get();
    for Source {
        client,
        object,
        offset,
        len,
    } in sources
    {
        if skip >= len {
            skip -= len;
            continue;
        }
        let identity = Identity {
            buffer: range.buffer(),
            client,
            object,
        };
        let memory = Arc::new(Memory::dup(device, identity).map_err(text)?);
        pieces.push(Piece {
            memory,
            offset: offset.saturating_add(skip),
            len: len - skip,
        });
        skip = 0;
    }
    // The export itself is not needed any more: our own references hold the memory now.
    drop(fd);
    let (first, _, _) = range.widening();
    widen(
        pieces,
        start.get() - first.get(),
        end.next_multiple_of(GPU_PAGE) - end,
    )
}

/// Whether `range` is still the same allocation: our references were taken while it lived.
pub(super) fn unchanged(cuda: &Cuda, range: &Range) -> Result<(), Error> {
    let further = range.further.iter().map(|info| (info.base, info));
    for (ptr, before) in [(range.ptr, &range.info)].into_iter().chain(further) {
        match cuda.pointer_info(ptr) {
            Ok(info) if info.buffer == before.buffer => {}
            Ok(_) => return Err(gdr_cuda::Error::UnknownPointer { ptr }.into()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
