//! Memory of the simulated GPU through the crate's public face: what holds here is what software
//! above may rely on with any driver.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;
use std::time::Duration;

use gdr_cuda::{
    CuResult, DevicePtr, Driver, DriverKind, Error, Gpu, Launch, MemoryKind, Ordinal, PointerKind,
    SimDriver, pattern_word,
};
use proptest::prelude::*;

/// Nothing here takes a noticeable part of this; a test that hits it is stuck.
const LIMIT: Duration = Duration::from_secs(60);

fn gpu() -> Gpu {
    Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap()
}

fn at(ptr: DevicePtr, offset: u64) -> DevicePtr {
    ptr.checked_add(offset).unwrap()
}

fn every_kind() -> impl Iterator<Item = MemoryKind> {
    MemoryKind::DEVICE.into_iter().chain([MemoryKind::Managed])
}

#[test]
fn every_kind_of_memory_holds_what_was_written() {
    let gpu = gpu();
    for kind in every_kind() {
        let buffer = gpu.allocate(kind, 100_000).unwrap();
        assert_eq!((buffer.kind(), buffer.len()), (kind, 100_000));
        let bytes: Vec<u8> = (0..100_000_u32).map(|i| i as u8).collect();
        buffer.write(0, &bytes).unwrap();
        let mut back = vec![0; 100_000];
        buffer.read(0, &mut back).unwrap();
        assert!(bytes == back, "{kind:?}");
    }
}

#[test]
fn copies_of_live_memory_can_be_made_synchronous() {
    let gpu = gpu();
    let buffer = gpu.allocate(MemoryKind::Plain, 4096).unwrap();
    buffer.synchronize_copies().unwrap();
    let (ptr, device) = (buffer.ptr(), gpu.info().ordinal);
    drop(buffer);
    let refused = gpu.driver().synchronize_copies(device, ptr).unwrap_err();
    assert!(matches!(refused, Error::UnknownPointer { .. }), "{refused}");
}

#[test]
fn a_simulated_gpu_says_that_it_is_one() {
    let gpu = gpu();
    assert_eq!(gpu.driver().kind(), DriverKind::Simulated);
    let info = gpu.info();
    assert_eq!(
        (info.name.as_str(), info.compute_capability),
        ("Simulated GPU", (0, 0))
    );
    assert!(!info.dma_buf && !info.gpudirect_rdma);
}

#[test]
fn a_pointer_into_the_middle_belongs_to_its_allocation() {
    let gpu = gpu();
    let neighbours: Vec<_> = (0..8)
        .map(|_| gpu.allocate(MemoryKind::Plain, 1000).unwrap())
        .collect();
    let driver = gpu.driver();
    for buffer in &neighbours {
        let info = driver.pointer_info(at(buffer.ptr(), 700)).unwrap();
        assert_eq!((info.kind, info.device), (PointerKind::Device, Ordinal(0)));
        assert_eq!((info.base, info.size), (buffer.ptr(), 1000));
        let past = driver.pointer_info(at(buffer.ptr(), 1000));
        assert!(
            matches!(past, Err(Error::UnknownPointer { .. })),
            "{past:?}"
        );
    }
    let ids: HashSet<_> = neighbours
        .iter()
        .map(|b| driver.pointer_info(b.ptr()).unwrap().buffer)
        .collect();
    assert_eq!(ids.len(), neighbours.len());
}

#[test]
fn vmm_memory_is_as_large_as_its_mapping_and_managed_memory_says_what_it_is() {
    let gpu = gpu();
    let vmm = gpu.allocate(MemoryKind::Vmm, 1).unwrap();
    assert_eq!(gpu.driver().pointer_info(vmm.ptr()).unwrap().size, 2 << 20);
    assert_eq!(vmm.len(), 1);
    let managed = gpu.allocate(MemoryKind::Managed, 1).unwrap();
    let info = gpu.driver().pointer_info(managed.ptr()).unwrap();
    assert_eq!(info.kind, PointerKind::Managed);
}

#[test]
fn a_freed_pointer_is_unknown_and_its_address_is_not_used_again() {
    let gpu = gpu();
    for kind in every_kind() {
        let freed = gpu.allocate(kind, 4096).unwrap();
        let ptr = freed.ptr();
        drop(freed);
        let info = gpu.driver().pointer_info(ptr);
        assert!(
            matches!(info, Err(Error::UnknownPointer { ptr: p }) if p == ptr),
            "{info:?}"
        );
        assert_ne!(gpu.allocate(kind, 4096).unwrap().ptr(), ptr);
    }
}

#[test]
fn plain_host_memory_and_null_are_unknown() {
    let driver = SimDriver::new(1);
    let local = 0_u8;
    for address in [0, (&raw const local).addr() as u64, u64::MAX] {
        let info = driver.pointer_info(DevicePtr::new(address));
        assert!(
            matches!(info, Err(Error::UnknownPointer { .. })),
            "{info:?}"
        );
    }
}

#[test]
fn more_than_there_is_is_out_of_memory_until_some_is_freed() {
    let gpu = gpu();
    let total = gpu.info().total_memory;
    let most = gpu.allocate(MemoryKind::Plain, total - (1 << 20)).unwrap();
    let error = gpu.allocate(MemoryKind::Vmm, 1 << 20).unwrap_err();
    assert_eq!(error.cu_result(), Some(CuResult::OUT_OF_MEMORY));
    drop(most);
    gpu.allocate(MemoryKind::Vmm, 1 << 20).unwrap();
    let error = gpu.allocate(MemoryKind::Plain, 0).unwrap_err();
    assert_eq!(error.cu_result(), Some(CuResult::INVALID_VALUE));
}

#[test]
fn two_gpus_have_addresses_of_their_own() {
    let gpus = Gpu::all(SimDriver::new(2)).unwrap();
    let buffers: Vec<_> = gpus
        .iter()
        .map(|gpu| gpu.allocate(MemoryKind::Plain, 64).unwrap())
        .collect();
    for (number, buffer) in buffers.iter().enumerate() {
        let info = gpus[1 - number]
            .driver()
            .pointer_info(buffer.ptr())
            .unwrap();
        assert_eq!(info.device, Ordinal(number as u32));
    }
    assert_ne!(gpus[0].info().uuid, gpus[1].info().uuid);
    assert_ne!(gpus[0].info().bdf, gpus[1].info().bdf);
}

#[test]
fn a_gpu_that_is_not_there_is_refused_with_the_count() {
    let error = Gpu::open(SimDriver::new(2), Ordinal(2)).unwrap_err();
    assert!(
        matches!(
            error,
            Error::NoSuchDevice {
                ordinal: Ordinal(2),
                count: 2
            }
        ),
        "{error}"
    );
}

#[test]
fn access_past_the_end_is_refused_and_moves_nothing() {
    let gpu = gpu();
    let buffer = gpu.allocate(MemoryKind::Plain, 16).unwrap();
    buffer.write(0, &[7; 16]).unwrap();
    for (offset, len) in [(0, 17), (16, 1), (u64::MAX, 1), (u64::MAX, 0)] {
        let error = buffer.write(offset, &vec![9; len]).unwrap_err();
        assert!(
            matches!(error, Error::OutOfRange { len: 16, .. }),
            "{error}"
        );
        let mut back = vec![1; len];
        assert!(buffer.read(offset, &mut back).is_err());
        assert!(back.iter().all(|byte| *byte == 1));
    }
    let mut back = [0; 16];
    buffer.read(0, &mut back).unwrap();
    assert_eq!(back, [7; 16]);
    buffer.write(16, &[]).unwrap();
}

#[test]
fn shared_memory_shows_the_allocation_at_its_offset_and_outlives_it() {
    let driver = SimDriver::new(1);
    let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
    let buffers: Vec<_> = [100, 100, 1 << 20]
        .map(|len| gpu.allocate(MemoryKind::Plain, len).unwrap())
        .into();
    for (i, buffer) in buffers.into_iter().enumerate() {
        let value = [i as u8 + 1; 50];
        buffer.write(50, &value).unwrap();
        let ptr = at(buffer.ptr(), 50);
        let share = driver.share(ptr).unwrap();
        drop(buffer);
        assert!(share.size.is_multiple_of(64 << 10));
        let mut file = File::from(share.fd);
        file.seek(SeekFrom::Start(ptr.offset_from(share.base).unwrap()))
            .unwrap();
        let mut back = [0; 50];
        file.read_exact(&mut back).unwrap();
        assert_eq!(back, value);
        assert!(matches!(
            driver.share(ptr),
            Err(Error::UnknownPointer { .. })
        ));
    }
}

#[test]
fn managed_and_host_memory_are_not_shared() {
    let driver = SimDriver::new(1);
    let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
    let managed = gpu.allocate(MemoryKind::Managed, 64).unwrap();
    let host = gpu.allocate_host(64).unwrap();
    for ptr in [managed.ptr(), host.gpu_ptr()] {
        let error = driver.share(ptr).unwrap_err();
        assert_eq!(error.cu_result(), Some(CuResult::NOT_SUPPORTED));
    }
}

#[test]
fn host_memory_is_one_memory_at_two_addresses() {
    let gpu = gpu();
    let host = gpu.allocate_host(4096).unwrap();
    assert_ne!(host.gpu_ptr().get(), host.cpu_ptr().addr() as u64);
    let info = gpu.driver().pointer_info(at(host.gpu_ptr(), 100)).unwrap();
    assert_eq!(info.kind, PointerKind::Host);

    let stream = gpu.stream().unwrap();
    let fill = Launch::Fill {
        dst: host.gpu_ptr(),
        words: 4,
        seed: 5,
    };
    // SAFETY: 16 of the buffer's 4096 bytes, and the stream is waited for while it lives.
    unsafe { stream.launch(&fill) }.unwrap();
    stream.wait(LIMIT).unwrap();
    assert_eq!(host.load_u32(12).unwrap(), pattern_word(5, 3));

    host.store_u32(4092, 9).unwrap();
    let mut tail = [0; 4];
    host.read(4092, &mut tail).unwrap();
    assert_eq!(tail, 9_u32.to_ne_bytes());
    assert!(matches!(host.load_u32(4093), Err(Error::OutOfRange { .. })));
    assert!(matches!(
        host.store_u32(2, 0),
        Err(Error::Misaligned { .. })
    ));
    assert!(host.write(4090, &[0; 7]).is_err());
    assert!(host.read(usize::MAX, &mut tail).is_err());
}

#[test]
fn a_buffer_keeps_its_driver() {
    let driver: Arc<dyn Driver> = SimDriver::new(1);
    let weak = Arc::downgrade(&driver);
    let buffer = {
        let gpu = Gpu::open(driver, Ordinal(0)).unwrap();
        gpu.allocate(MemoryKind::Plain, 4).unwrap()
    };
    buffer.write(0, &[1; 4]).unwrap();
    drop(buffer);
    assert_eq!(weak.strong_count(), 0);
}

proptest! {
    #[test]
    fn any_range_comes_back_as_written_and_its_surroundings_stay(
        len in 1_usize..20_000,
        from in 0_usize..20_000,
        to in 0_usize..20_000,
        value in 1_u8..,
    ) {
        let (start, end) = (from.min(to).min(len), from.max(to).min(len));
        let buffer = gpu().allocate(MemoryKind::Plain, len as u64).unwrap();
        buffer.write(0, &vec![0; len]).unwrap();
        buffer.write(start as u64, &vec![value; end - start]).unwrap();

        let mut part = vec![0; end - start];
        buffer.read(start as u64, &mut part).unwrap();
        prop_assert!(part.iter().all(|byte| *byte == value));
        let mut whole = vec![1; len];
        buffer.read(0, &mut whole).unwrap();
        let right = |(i, byte): (usize, &u8)| {
            *byte == if (start..end).contains(&i) { value } else { 0 }
        };
        prop_assert!(whole.iter().enumerate().all(right));
    }
}
