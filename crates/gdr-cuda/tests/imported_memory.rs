//! Memory of the simulated GPU that is opened by another process.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

use std::env;
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{hint, thread};

use gdr_cuda::{
    CuResult, DeviceExport, Error, Gpu, GuardedCopy, GuardedState, HostBuffer, ImportedMemory,
    MemoryKind, Ordinal, SimDriver,
};

const LIMIT: Duration = Duration::from_secs(60);
/// The environment variable with an export, in hexadecimal digits, for the process that opens it.
const VARIABLE: &str = "GDR_TEST_EXPORT";

fn gpu() -> Gpu {
    Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap()
}

/// Page-locked memory for the words of guarded copies.
struct Words(Arc<HostBuffer>);

impl Words {
    fn new(gpu: &Gpu) -> Self {
        let words = gpu.allocate_host(GuardedCopy::LEN).unwrap();
        words.write(0, &[0; GuardedCopy::LEN]).unwrap();
        Self(Arc::new(words))
    }

    fn copy(&self, count: u64, len: u64) -> GuardedCopy {
        GuardedCopy::new(&self.0, 0, count, len).unwrap()
    }
}

/// Returns the bytes at `offset` of the export, as `gpu` reads them.
fn copied(gpu: &Gpu, export: &DeviceExport, offset: u64, len: usize) -> Vec<u8> {
    copied_from(
        gpu,
        &Arc::new(gpu.import(export, None).unwrap()),
        offset,
        len,
    )
}

fn copied_from(gpu: &Gpu, imported: &Arc<ImportedMemory>, offset: u64, len: usize) -> Vec<u8> {
    let (stream, to) = (
        gpu.stream().unwrap(),
        gpu.allocate(MemoryKind::Plain, len as u64 + 7).unwrap(),
    );
    let words = Words::new(gpu);
    let copy = words.copy(0, len as u64);
    let queued = stream.queue_guarded_copy(imported, offset, &to, 7, len as u64, &copy);
    queued.unwrap();
    stream.wait(LIMIT).unwrap();
    assert_eq!(copy.state(), GuardedState::Complete);
    let mut bytes = vec![0; len];
    to.read(7, &mut bytes).unwrap();
    bytes
}

#[test]
fn an_export_is_of_the_whole_allocation_and_survives_its_bytes() {
    let (exporter, importer) = (gpu(), gpu());
    // Covers small allocations, which share a block.
    for len in [1000, 3 << 20] {
        let _before = exporter.allocate(MemoryKind::Plain, 100).unwrap();
        let memory = exporter.allocate(MemoryKind::Plain, len).unwrap();
        memory.write(500, b"payload").unwrap();
        let middle = memory.ptr().checked_add(300).unwrap();
        // SAFETY: `memory` outlives `part`.
        let part = unsafe { gdr_cuda::DeviceBuffer::borrowed(&exporter, middle, 10) }.unwrap();
        let export = DeviceExport::from_bytes(&part.export().unwrap().export().to_bytes());
        assert_eq!(export, *memory.export().unwrap().export());
        assert_eq!((export.base(), export.len()), (memory.ptr(), len));
        assert_eq!(copied(&importer, &export, 500, 7), b"payload");
    }
}

#[test]
fn vmm_memory_is_opened_by_its_descriptor_alone() {
    let (exporter, importer) = (gpu(), gpu());
    let memory = exporter.allocate(MemoryKind::VmmPosixFd, 4096).unwrap();
    memory.write(8, b"payload").unwrap();
    let exported = memory.export().unwrap();
    let export = DeviceExport::from_bytes(&exported.export().to_bytes());
    assert_eq!(export.base(), memory.ptr());
    assert!(importer.import(&export, None).is_err());
    let descriptor = exported.descriptor().unwrap().try_clone_to_owned().unwrap();
    let imported = Arc::new(importer.import(&export, Some(descriptor)).unwrap());
    assert_eq!(copied_from(&importer, &imported, 8, 7), b"payload");
    // The address may be reused for other memory next.
    drop(memory);
    let plain = exporter.allocate(MemoryKind::Vmm, 4096).unwrap();
    assert!(plain.export().is_err());
}

#[test]
fn another_process_opens_the_memory() {
    if let Ok(digits) = env::var(VARIABLE) {
        let byte = |at: usize| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap();
        let export = DeviceExport::from_bytes(&std::array::from_fn(byte));
        assert_eq!(copied(&gpu(), &export, 5, 7), b"payload");
        return;
    }
    let gpu = gpu();
    let memory = gpu.allocate(MemoryKind::Plain, 4096).unwrap();
    memory.write(5, b"payload").unwrap();
    let digits = memory.export().unwrap().export().to_bytes();
    let digits: String = digits.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", "another_process_opens_the_memory"]);
    assert!(child.env(VARIABLE, digits).status().unwrap().success());
}

#[test]
fn only_memory_of_cu_mem_alloc_is_exported() {
    let gpu = gpu();
    for kind in [MemoryKind::Vmm, MemoryKind::Pool, MemoryKind::Managed] {
        let refused = gpu.allocate(kind, 4096).unwrap().export().unwrap_err();
        assert!(matches!(refused, Error::NotExportable { .. }), "{refused}");
    }
}

#[test]
fn what_is_no_export_or_claims_too_much_is_not_opened() {
    let gpu = gpu();
    let memory = gpu.allocate(MemoryKind::Plain, 4096).unwrap();
    let bytes = memory.export().unwrap().export().to_bytes();
    for wrong in 0..40 {
        let mut bytes = bytes;
        bytes[wrong] ^= 0x40;
        let opened = gpu.import(&DeviceExport::from_bytes(&bytes), None);
        // Another offset in the same block still belongs to the same process.
        let is_place = (24..40).contains(&wrong);
        assert!(opened.is_err() || is_place, "byte {wrong}: {opened:?}");
    }
    for claimed in [0, 4097, u64::MAX] {
        let mut bytes = bytes;
        bytes[72..80].copy_from_slice(&u64::to_le_bytes(claimed));
        let refused = gpu
            .import(&DeviceExport::from_bytes(&bytes), None)
            .unwrap_err();
        assert!(matches!(refused, Error::FalseExport { .. }), "{refused}");
    }
    let export = DeviceExport::from_bytes(&bytes);
    drop(memory);
    let refused = gpu.import(&export, None).unwrap_err();
    assert_eq!(refused.cu_result(), Some(CuResult::INVALID_VALUE));
}

#[test]
fn ranges_and_gpus_are_checked_before_a_copy() {
    let driver = SimDriver::new(2);
    let [one, other] = [0, 1].map(|at| Gpu::open(driver.clone(), Ordinal(at)).unwrap());
    let memory = one.allocate(MemoryKind::Plain, 4096).unwrap();
    let to = other.allocate(MemoryKind::Plain, 4096).unwrap();
    let import = |gpu: &Gpu| Arc::new(gpu.import(memory.export().unwrap().export(), None).unwrap());
    let (imported, foreign) = (import(&other), import(&one));
    let stream = other.stream().unwrap();
    let words = Words::new(&other);
    let copy = words.copy(0, 4096);
    for (from, at, len) in [(0, 0, 4097), (1, 0, 4096), (0, 1, 4096), (u64::MAX, 0, 2)] {
        let refused = stream.queue_guarded_copy(&imported, from, &to, at, len, &copy);
        assert!(matches!(refused, Err(Error::OutOfRange { .. })));
    }
    let refused = stream.queue_guarded_copy(&foreign, 0, &to, 0, 1, &copy);
    assert!(matches!(refused, Err(Error::ForeignBuffer { .. })));
    stream
        .queue_guarded_copy(&imported, 0, &to, 0, 4096, &copy)
        .unwrap();
    stream.wait(LIMIT).unwrap();
}

#[test]
fn memory_is_open_until_the_copies_of_it_are_complete() {
    let gpu = gpu();
    let memory = gpu.allocate(MemoryKind::Plain, 64).unwrap();
    let to = gpu.allocate(MemoryKind::Plain, 64).unwrap();
    let stream = gpu.stream().unwrap();
    let imported = Arc::new(gpu.import(memory.export().unwrap().export(), None).unwrap());
    let open = Arc::downgrade(&imported);
    let copy = Words::new(&gpu).copy(0, 64);
    stream
        .queue_guarded_copy(&imported, 0, &to, 0, 64, &copy)
        .unwrap();
    drop(imported);
    assert_eq!(open.strong_count(), 1);
    stream.wait(LIMIT).unwrap();
    assert_eq!(open.strong_count(), 0);
}

#[test]
fn a_copy_that_is_cancelled_before_the_gpu_comes_to_it_writes_nothing() {
    const LEN: u64 = 300_001;
    let gpu = gpu();
    let [memory, to] = [(); 2].map(|()| gpu.allocate(MemoryKind::Plain, LEN).unwrap());
    memory.write(0, &[7; LEN as usize]).unwrap();
    let imported = Arc::new(gpu.import(memory.export().unwrap().export(), None).unwrap());
    let (stream, words) = (gpu.stream().unwrap(), Words::new(&gpu));
    for (count, is_cancelled) in [(0, true), (1, false), (2, true)] {
        to.write(0, &[0; LEN as usize]).unwrap();
        let copy = words.copy(count, LEN);
        let (release, held) = mpsc::channel::<()>();
        stream
            .queue_call(move || assert!(held.recv().is_err()))
            .unwrap();
        let queued = stream.queue_guarded_copy(&imported, 0, &to, 0, LEN, &copy);
        queued.unwrap();
        assert_eq!(copy.state(), GuardedState::InProgress);
        let expected = match is_cancelled {
            true => {
                copy.cancel();
                assert_eq!(copy.state(), GuardedState::Cancelled);
                GuardedState::Cancelled
            }
            false => GuardedState::Complete,
        };
        assert!(!copy.has_ended());
        drop(release);
        stream.wait(LIMIT).unwrap();
        assert!(copy.has_ended());
        assert_eq!(copy.state(), expected);
        let mut bytes = vec![0; LEN as usize];
        to.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, vec![if is_cancelled { 0 } else { 7 }; LEN as usize]);
    }
}

#[test]
fn what_is_cancelled_while_it_is_made_writes_nothing_afterwards() {
    const LEN: u64 = 1 << 20;
    let gpu = gpu();
    let [memory, to] = [(); 2].map(|()| gpu.allocate(MemoryKind::Plain, LEN).unwrap());
    memory.write(0, &[7; LEN as usize]).unwrap();
    let imported = Arc::new(gpu.import(memory.export().unwrap().export(), None).unwrap());
    let (stream, words) = (gpu.stream().unwrap(), Words::new(&gpu));
    let mut bytes = vec![0; LEN as usize];
    for count in 0..200 {
        let copy = words.copy(count, LEN);
        let queued = stream.queue_guarded_copy(&imported, 0, &to, 0, LEN, &copy);
        queued.unwrap();
        // Cancels at a different point of the copy each time.
        for _ in 0..count * 100 {
            hint::spin_loop();
        }
        copy.cancel();
        while copy.state() == GuardedState::InProgress {
            thread::yield_now();
        }
        if copy.state() == GuardedState::Complete {
            to.read(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 7), "{count}");
        }
        to.write(0, &[0; LEN as usize]).unwrap();
        stream.wait(LIMIT).unwrap();
        assert!(copy.has_ended());
        to.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0), "{count}");
    }
}

#[test]
fn words_that_are_out_of_range_or_not_aligned_are_refused() {
    let words = Words::new(&gpu());
    let len = GuardedCopy::LEN;
    for offset in [1, 4, len, usize::MAX] {
        let refused = GuardedCopy::new(&words.0, offset, 0, 64).unwrap_err();
        assert!(matches!(refused, Error::OutOfRange { .. }), "{refused}");
    }
    let larger = Arc::new(gpu().allocate_host(len + 2).unwrap());
    let refused = GuardedCopy::new(&larger, 2, 0, 64).unwrap_err();
    assert!(matches!(refused, Error::Misaligned { .. }), "{refused}");
    // A copy whose kernel is never queued leaves its words to the next copy.
    let copy = words.copy(0, 64);
    assert!(!copy.has_ended());
    copy.leave_out();
    assert!(copy.has_ended());
    assert_eq!(copy.state(), GuardedState::Cancelled);
    assert_eq!(words.copy(1, 64).state(), GuardedState::InProgress);
}
