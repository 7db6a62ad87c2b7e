//! Memory of the simulated GPU through the crate's public interface: the properties that software on top of it may rely
//! on with every driver.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gdr_cuda::{
    CuResult, DeviceBuffer, DevicePtr, Driver, DriverKind, Error, Gpu, Launch, MemoryKind, Ordinal,
    PointerKind, RawStream, SimDriver, pattern_word,
};
use proptest::prelude::*;

/// A limit that only a test that hangs reaches.
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
fn a_simulated_gpu_is_reported_as_simulated() {
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
fn vmm_memory_has_the_size_of_its_mapping_and_managed_memory_its_kind() {
    let gpu = gpu();
    let vmm = gpu.allocate(MemoryKind::Vmm, 1).unwrap();
    assert_eq!(gpu.driver().pointer_info(vmm.ptr()).unwrap().size, 2 << 20);
    assert_eq!(vmm.len(), 1);
    let managed = gpu.allocate(MemoryKind::Managed, 1).unwrap();
    let info = gpu.driver().pointer_info(managed.ptr()).unwrap();
    assert_eq!(info.kind, PointerKind::Managed);
}

#[test]
fn a_freed_pointer_is_unknown_and_its_address_is_not_reused() {
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
fn an_allocation_beyond_the_capacity_fails_until_memory_is_freed() {
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
fn two_gpus_have_different_addresses() {
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
fn a_missing_gpu_is_reported_with_the_count() {
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
fn a_share_contains_the_allocation_at_its_offset_and_outlives_it() {
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
fn host_memory_has_a_cpu_address_and_a_gpu_address() {
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
    // SAFETY: 16 of the buffer's 4096 bytes; the buffer is dropped only after the stream was waited for.
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
    fn any_range_is_read_as_written_and_other_bytes_are_unchanged(
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

#[test]
fn borrowed_memory_is_used_like_an_allocation_and_not_freed() {
    let driver = SimDriver::new(1);
    let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
    for kind in MemoryKind::DEVICE {
        let owner = gpu.allocate(kind, 10_000).unwrap();
        // SAFETY: `owner` outlives the buffer, and no other code uses it.
        let buffer = unsafe { DeviceBuffer::borrowed(&gpu, at(owner.ptr(), 100), 9_000) }.unwrap();
        assert_eq!((buffer.ptr(), buffer.len()), (at(owner.ptr(), 100), 9_000));
        buffer.write(8_990, b"last bytes").unwrap();
        let past = buffer.write(8_991, b"last bytes").unwrap_err();
        assert!(matches!(past, Error::OutOfRange { .. }), "{past}");
        // A stream keeps the owner until its work is complete, as for an allocation.
        gpu.stream()
            .unwrap()
            .fill_pattern(&buffer, 0, 16, 7, LIMIT)
            .unwrap();
        drop(buffer);

        let mut seen = [0; 10];
        owner.read(9_090, &mut seen).unwrap();
        assert_eq!(&seen, b"last bytes");
        assert_eq!(driver.pointer_info(owner.ptr()).unwrap().base, owner.ptr());
    }
}

#[test]
fn a_range_that_is_not_in_memory_of_the_gpu_is_refused() {
    let driver = SimDriver::new(2);
    let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
    let other = Gpu::open(driver, Ordinal(1)).unwrap();
    let plain = gpu.allocate(MemoryKind::Plain, 5_000).unwrap();
    let managed = gpu.allocate(MemoryKind::Managed, 5_000).unwrap();
    let host = gpu.allocate_host(5_000).unwrap();
    // SAFETY: every call fails, so no buffer is created.
    let refusal =
        |gpu: &Gpu, ptr, len| unsafe { DeviceBuffer::borrowed(gpu, ptr, len) }.unwrap_err();

    for len in [0, 5_001, u64::MAX] {
        let error = refusal(&gpu, plain.ptr(), len);
        assert!(
            matches!(
                error,
                Error::PastAllocation {
                    available: 5_000,
                    ..
                }
            ),
            "{len}: {error}"
        );
    }
    let inside = refusal(&gpu, at(plain.ptr(), 4_999), 2);
    assert!(inside.to_string().contains("use 1 to 1 bytes"), "{inside}");
    for ptr in [managed.ptr(), host.gpu_ptr()] {
        let error = refusal(&gpu, ptr, 8);
        assert!(matches!(error, Error::NotDeviceMemory { .. }), "{error}");
    }
    let error = refusal(&other, plain.ptr(), 8);
    assert!(matches!(error, Error::OtherDevice { .. }), "{error}");
    let unknown = refusal(&gpu, DevicePtr::new(0x10), 8);
    assert!(matches!(unknown, Error::UnknownPointer { .. }), "{unknown}");
}

/// An owner of device memory, such as a tensor, which records when it is dropped.
struct Tensor {
    memory: DeviceBuffer,
    dropped: Arc<AtomicBool>,
}

impl Tensor {
    fn new(gpu: &Gpu, kind: MemoryKind, len: u64) -> Self {
        Self {
            memory: gpu.allocate(kind, len).unwrap(),
            dropped: Arc::default(),
        }
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::SeqCst);
    }
}

/// Returns all of a tensor as a buffer that owns it.
fn wrap(gpu: &Gpu, tensor: Tensor) -> DeviceBuffer {
    let (ptr, len) = (tensor.memory.ptr(), tensor.memory.len());
    // SAFETY: the tensor owns `len` bytes at `ptr`, and no other code uses them.
    unsafe { DeviceBuffer::from_owner(gpu, ptr, len, tensor) }.unwrap()
}

#[test]
fn memory_of_another_library_keeps_its_owner_until_the_buffer_is_dropped() {
    let gpu = gpu();
    for kind in MemoryKind::DEVICE {
        let tensor = Tensor::new(&gpu, kind, 10_000);
        let dropped = tensor.dropped.clone();
        let buffer = wrap(&gpu, tensor);
        buffer.write(9_995, b"hello").unwrap();
        let mut seen = [0; 5];
        buffer.read(9_995, &mut seen).unwrap();
        assert_eq!(&seen, b"hello");
        assert!(!dropped.load(Ordering::SeqCst));

        let ptr = buffer.ptr();
        // Any thread may drop the buffer.
        std::thread::spawn(move || drop(buffer)).join().unwrap();
        assert!(dropped.load(Ordering::SeqCst), "{kind:?}");
        // The tensor freed its memory, and the buffer did not free it again.
        assert!(gpu.driver().pointer_info(ptr).is_err());
    }
}

#[test]
fn memory_of_another_library_keeps_its_owner_during_queued_work() {
    let gpu = gpu();
    let tensor = Tensor::new(&gpu, MemoryKind::Pool, 4096);
    let dropped = tensor.dropped.clone();
    let buffer = wrap(&gpu, tensor);
    let (stream, host) = (
        gpu.stream().unwrap(),
        Arc::new(gpu.allocate_host(64).unwrap()),
    );
    host.write(0, b"queued").unwrap();
    stream.queue_write(&host, 0, &buffer, 0, 6).unwrap();
    drop(buffer);
    assert!(
        !dropped.load(Ordering::SeqCst),
        "the stream was not waited for"
    );
    stream.wait(LIMIT).unwrap();
    assert!(dropped.load(Ordering::SeqCst));
}

#[test]
fn an_owner_is_dropped_where_its_memory_cannot_be_wrapped() {
    let gpu = gpu();
    let tensor = Tensor::new(&gpu, MemoryKind::Plain, 4096);
    let (dropped, ptr) = (tensor.dropped.clone(), tensor.memory.ptr());
    // SAFETY: the call fails, so no buffer is created.
    let refused = unsafe { DeviceBuffer::from_owner(&gpu, ptr, 4097, tensor) };
    assert!(matches!(refused, Err(Error::PastAllocation { .. })));
    assert!(dropped.load(Ordering::SeqCst));
}

#[test]
fn a_stream_copies_on_the_device_then_calls_the_cpu_in_order() {
    let gpu = gpu();
    let stream = gpu.stream().unwrap();
    let from = gpu.allocate(MemoryKind::Plain, 10_000).unwrap();
    let to = Arc::new(gpu.allocate(MemoryKind::Plain, 10_000).unwrap());
    let bytes: Vec<u8> = (0..10_000_u32).map(|at| (at % 251) as u8).collect();
    from.write(0, &bytes).unwrap();
    to.write(0, &[0; 10_000]).unwrap();
    stream.queue_copy(&from, 1, &to, 5, 9_000).unwrap();
    let (sender, results) = std::sync::mpsc::channel();
    let after_panic = sender.clone();
    stream.queue_call(move || sender.send(1).unwrap()).unwrap();
    stream
        .queue_call(|| panic!("expected by this test"))
        .unwrap();
    stream
        .queue_call(move || after_panic.send(2).unwrap())
        .unwrap();
    assert_eq!(results.recv_timeout(LIMIT), Ok(1));
    let mut seen = vec![0; 10_000];
    to.read(0, &mut seen).unwrap();
    assert_eq!(seen[5..9_005], bytes[1..9_001]);
    assert!(
        seen[..5]
            .iter()
            .chain(&seen[9_005..])
            .all(|byte| *byte == 0)
    );
    assert_eq!(results.recv_timeout(LIMIT), Ok(2));
    stream.wait(LIMIT).unwrap();
}

#[test]
fn page_locked_memory_is_copied_both_ways_and_only_within_its_ends() {
    let gpu = gpu();
    let buffer = gpu.allocate(MemoryKind::Plain, 100).unwrap();
    let host = gpu.allocate_host(50).unwrap();
    host.write(0, &[7; 50]).unwrap();
    buffer.write(0, &[1; 100]).unwrap();
    buffer.write_from_host(60, &host, 10, 40).unwrap();
    host.write(0, &[0; 50]).unwrap();
    buffer.read_to_host(55, &host, 1, 10).unwrap();
    let mut seen = [9; 12];
    host.read(0, &mut seen).unwrap();
    assert_eq!(seen, [0, 1, 1, 1, 1, 1, 7, 7, 7, 7, 7, 0]);
    for (offset, host_offset, len) in [(61, 0, 40), (0, 11, 40)] {
        let written = buffer.write_from_host(offset, &host, host_offset, len);
        assert!(matches!(written, Err(Error::OutOfRange { .. })));
        let read = buffer.read_to_host(offset, &host, host_offset, len);
        assert!(matches!(read, Err(Error::OutOfRange { .. })));
    }
}

#[test]
fn a_stream_waits_for_what_another_had_queued_and_holds_up_nothing_there() {
    let gpu = gpu();
    let (first, second) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let (release, held) = std::sync::mpsc::channel::<()>();
    let (sender, results) = std::sync::mpsc::channel();
    let from_second = sender.clone();
    let hold = |held: std::sync::mpsc::Receiver<()>| {
        move || {
            let _released = held.recv_timeout(LIMIT);
        }
    };
    first.queue_call(hold(held)).unwrap();
    second.queue_wait(&first).unwrap();
    second
        .queue_call(move || from_second.send("second").unwrap())
        .unwrap();
    assert!(!second.is_idle().unwrap());
    assert!(results.try_recv().is_err());
    drop(release);
    assert_eq!(results.recv_timeout(LIMIT), Ok("second"));
    second.wait(LIMIT).unwrap();

    // Work that was queued later is not waited for, and nothing waits in the opposite direction.
    let (release, held) = std::sync::mpsc::channel::<()>();
    second.queue_call(hold(held)).unwrap();
    second.queue_wait(&first).unwrap();
    first
        .queue_call(move || sender.send("first").unwrap())
        .unwrap();
    assert_eq!(results.recv_timeout(LIMIT), Ok("first"));
    drop(release);
    second.wait(LIMIT).unwrap();
}

#[test]
fn streams_of_different_gpus_do_not_wait_for_each_other() {
    let driver = SimDriver::new(2);
    let streams = [0, 1].map(|ordinal| {
        let gpu = Gpu::open(driver.clone(), Ordinal(ordinal)).unwrap();
        gpu.stream().unwrap()
    });
    let refused = streams[0].queue_wait(&streams[1]).unwrap_err();
    assert!(matches!(
        refused,
        Error::ForeignStream {
            stream: Ordinal(0),
            other: Ordinal(1)
        }
    ));
}

#[test]
fn a_copy_onto_itself_or_past_a_buffer_is_refused() {
    let gpu = gpu();
    let stream = gpu.stream().unwrap();
    let buffer = gpu.allocate(MemoryKind::Plain, 100).unwrap();
    let overlap = stream.queue_copy(&buffer, 0, &buffer, 9, 10);
    assert!(matches!(overlap, Err(Error::Overlap { len: 10, .. })));
    let past = stream.queue_copy(&buffer, 0, &buffer, 95, 10);
    assert!(matches!(past, Err(Error::OutOfRange { .. })));
    stream.queue_copy(&buffer, 0, &buffer, 10, 10).unwrap();
    stream.queue_copy(&buffer, 0, &buffer, 0, 0).unwrap();
    stream.wait(LIMIT).unwrap();
    assert_ne!(stream.id(), gpu.stream().unwrap().id());
}

#[test]
fn a_word_is_written_after_the_work_queued_before_it() {
    let gpu = gpu();
    let driver = gpu.driver();
    let buffer = gpu.allocate(MemoryKind::Plain, 8 << 20).unwrap();
    let host = gpu.allocate_host(64).unwrap();
    host.write(0, &[0; 64]).unwrap();
    let word = at(host.gpu_ptr(), 8);
    let stream = driver.create_stream(Ordinal(0)).unwrap();
    // SAFETY: both ranges are in existing memory, which is used below only after the work is complete.
    unsafe {
        driver.fill(stream, buffer.ptr(), 7, buffer.len()).unwrap();
        driver.queue_write_u32(stream, word, 9).unwrap();
    }
    let start = Instant::now();
    while host.load_u32(8).unwrap() != 9 {
        assert!(start.elapsed() < LIMIT, "the word is not written");
        std::thread::yield_now();
    }
    let mut last = [0];
    buffer.read(buffer.len() - 1, &mut last).unwrap();
    assert_eq!(last, [7]);
    // SAFETY: the stream was created above and is out of use.
    unsafe { driver.destroy_stream(stream) }.unwrap();

    let default = RawStream {
        handle: 0,
        ..stream
    };
    // SAFETY: the word is in existing memory, and its stream always exists.
    unsafe { driver.queue_write_u32(default, word, 10) }.unwrap();
    assert_eq!(host.load_u32(8).unwrap(), 10);
    for wrong in [at(host.gpu_ptr(), 2), DevicePtr::new(64)] {
        // SAFETY: the address is invalid, so no memory is written.
        let refused = unsafe { driver.queue_write_u32(default, wrong, 11) }.unwrap_err();
        assert_eq!(refused.cu_result(), Some(CuResult::INVALID_VALUE));
    }
    assert_eq!(host.load_u32(8).unwrap(), 10);
}

#[test]
fn a_flag_comes_after_the_work_before_it() {
    let gpu = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
    let host = Arc::new(gpu.register_host(8192).unwrap());
    assert!(host.len() >= 8192);
    host.write(0, &[0; 8192]).unwrap();
    let memory = gpu.allocate(MemoryKind::Plain, 4096).unwrap();
    memory.write(0, &[7; 4096]).unwrap();
    let stream = gpu.stream().unwrap();
    let (release, released) = std::sync::mpsc::channel::<()>();
    stream
        .queue_call(move || assert!(released.recv().is_err()))
        .unwrap();
    stream.queue_read(&memory, 0, &host, 0, 4096).unwrap();
    stream.queue_flag(&host, 4096, 5).unwrap();
    assert_eq!(host.load_u32(4096).unwrap(), 0);
    drop(release);
    while host.load_u32(4096).unwrap() != 5 {
        std::thread::yield_now();
    }
    let mut seen = [0; 4096];
    host.read(0, &mut seen).unwrap();
    assert_eq!(seen, [7; 4096]);
    assert!(matches!(
        stream.queue_flag(&host, host.len() - 2, 1),
        Err(Error::OutOfRange { .. })
    ));
    assert!(matches!(
        stream.queue_flag(&host, 2, 1),
        Err(Error::Misaligned { .. })
    ));
}
