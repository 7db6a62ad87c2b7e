//! Memory of the simulated GPU that another process opens.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

use std::env;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use gdr_cuda::{CuResult, DeviceExport, Error, Gpu, MemoryKind, Ordinal, SimDriver};

const LIMIT: Duration = Duration::from_secs(60);
/// Holds an export, in hexadecimal digits, in the process that opens it.
const VARIABLE: &str = "GDR_TEST_EXPORT";

fn gpu() -> Gpu {
    Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap()
}

/// What `gpu` reads at `offset` of the export.
fn copied(gpu: &Gpu, export: &DeviceExport, offset: u64, len: usize) -> Vec<u8> {
    let imported = Arc::new(gpu.import(export, None).unwrap());
    let (stream, to) = (
        gpu.stream().unwrap(),
        gpu.allocate(MemoryKind::Plain, len as u64 + 7).unwrap(),
    );
    let queued = stream.queue_copy_from_imported(&imported, offset, &to, 7, len as u64);
    queued.unwrap();
    stream.wait(LIMIT).unwrap();
    let mut bytes = vec![0; len];
    to.read(7, &mut bytes).unwrap();
    bytes
}

#[test]
fn an_export_is_of_the_whole_allocation_and_survives_its_bytes() {
    let (exporter, importer) = (gpu(), gpu());
    // Small allocations share a block.
    for len in [1000, 3 << 20] {
        let _before = exporter.allocate(MemoryKind::Plain, 100).unwrap();
        let memory = exporter.allocate(MemoryKind::Plain, len).unwrap();
        memory.write(500, b"payload").unwrap();
        let middle = memory.ptr().checked_add(300).unwrap();
        // SAFETY: `memory` outlives it.
        let part = unsafe { gdr_cuda::DeviceBuffer::borrowed(&exporter, middle, 10) }.unwrap();
        let export = DeviceExport::from_bytes(&part.export().unwrap().export().to_bytes());
        assert_eq!(export, *memory.export().unwrap().export());
        assert_eq!((export.base(), export.len()), (memory.ptr(), len));
        assert_eq!(copied(&importer, &export, 500, 7), b"payload");
    }
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
        // Another place in the same block belongs to the same process.
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
    for (from, at, len) in [(0, 0, 4097), (1, 0, 4096), (0, 1, 4096), (u64::MAX, 0, 2)] {
        let refused = stream.queue_copy_from_imported(&imported, from, &to, at, len);
        assert!(matches!(refused, Err(Error::OutOfRange { .. })));
    }
    let refused = stream.queue_copy_from_imported(&foreign, 0, &to, 0, 1);
    assert!(matches!(refused, Err(Error::ForeignBuffer { .. })));
    stream
        .queue_copy_from_imported(&imported, 0, &to, 0, 4096)
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
    stream
        .queue_copy_from_imported(&imported, 0, &to, 0, 64)
        .unwrap();
    drop(imported);
    assert_eq!(open.strong_count(), 1);
    stream.wait(LIMIT).unwrap();
    assert_eq!(open.strong_count(), 0);
}
