//! The routes from a pointer to a mapping, with fakes of CUDA and the driver.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use gdr_cuda::{DevicePtr, MemoryKind};
use snapshot::assert_contains;

use super::abi::IMPORT_VIDMEM;
use super::fake::FakeDriver;
use super::fake_cuda::{FakeCuda, WrongAnswers};
use super::resolve::{self, Range, by_route};
use super::selftest::Verdicts;
use super::*;
use crate::options::PinOptions;
use gdr_process::PerProcess;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

struct Machine {
    driver: Arc<FakeDriver>,
    cuda: Arc<FakeCuda>,
    backend: RmBackend,
}

impl Machine {
    fn new() -> Self {
        let driver = FakeDriver::new();
        let cuda = FakeCuda::new(&driver);
        // Uses verdicts of its own, because the library keeps its verdicts for the whole process.
        let verdicts: &'static Verdicts = Box::leak(Box::new(PerProcess::new()));
        let backend = RmBackend::over(cuda.clone(), driver.clone(), verdicts).unwrap();
        Self {
            driver,
            cuda,
            backend,
        }
    }

    fn with(wrong: WrongAnswers) -> Self {
        let machine = Self::new();
        machine.cuda.state().wrong = wrong;
        machine
    }

    fn pin(&self, ptr: DevicePtr, len: u64) -> Result<Box<dyn Pin>> {
        self.backend.pin(&request(ptr, len))
    }

    /// Returns the result of one route, without its self-test.
    fn route(&self, ptr: DevicePtr, len: u64, route: Route) -> Result<Vec<Extent>, String> {
        let range = Range::locate(&*self.cuda, &request(ptr, len)).unwrap();
        let device = self.backend.device(range.info.device).unwrap();
        by_route(&*self.cuda, &device, &range, route).map_err(|error| error.to_string())
    }
}

fn request(ptr: DevicePtr, len: u64) -> PinRequest {
    PinRequest::new(ptr, len, PinOptions::new()).unwrap()
}

fn plus(ptr: DevicePtr, offset: u64) -> DevicePtr {
    ptr.checked_add(offset).unwrap()
}

/// Checks that a byte stored through the mapping is at the pointer.
fn assert_maps(machine: &Machine, pin: &dyn Pin, ptr: DevicePtr) {
    let mapping = pin.map(pin.len(), None).unwrap();
    let skip = ptr.offset_from(pin.va()).unwrap();
    // SAFETY: the pinned pointer lies in the mapping.
    unsafe { mapping.as_ptr().add(skip as usize).write_volatile(0xA5) };
    assert_eq!(machine.cuda.byte(ptr), 0xA5);
}

#[test]
fn every_kind_of_memory_is_reached_by_its_route_after_one_self_test() {
    let machine = Machine::new();
    let first = machine.cuda.allocate(MemoryKind::Plain, 10 * KIB);
    for (kind, len, route) in [
        (MemoryKind::Plain, 10 * KIB, Route::IpcHandle),
        (MemoryKind::Plain, 6 * MIB, Route::IpcHandle),
        (MemoryKind::Vmm, 3 * MIB, Route::DmaBufCall),
        (MemoryKind::VmmPosixFd, MIB, Route::DmaBufCall),
        (MemoryKind::Pool, 100 * KIB, Route::DmaBufCall),
    ] {
        let ptr = machine.cuda.allocate(kind, len);
        let middle = plus(ptr, len / 2 + 8);
        let pin = machine.pin(middle, len / 2 - 8).unwrap();
        assert_eq!(pin.route(), route, "{kind:?}");
        assert_maps(&machine, &*pin, middle);
    }
    assert_eq!(machine.cuda.state().proofs, 2, "one for each route");
    assert_maps(&machine, &*machine.pin(first, KIB).unwrap(), first);
    assert_eq!(machine.cuda.state().proofs, 2, "no further one");
}

#[test]
fn vmm_memory_is_reached_by_its_descriptor_where_it_is_not_exported() {
    let machine = Machine::with(WrongAnswers {
        no_export: true,
        ..WrongAnswers::default()
    });
    let ptr = machine.cuda.allocate(MemoryKind::VmmPosixFd, 3 * MIB);
    let pin = machine.pin(plus(ptr, 5000), MIB).unwrap();
    assert_eq!(pin.route(), Route::PosixFd);
    assert_maps(&machine, &*pin, plus(ptr, 5000));

    let without = machine.cuda.allocate(MemoryKind::Vmm, MIB);
    let refused = machine.pin(without, KIB).unwrap_err().to_string();
    assert_contains!(refused, "POSIX_FILE_DESCRIPTOR");
}

#[test]
fn a_route_to_other_memory_is_never_used() {
    let elsewhere = WrongAnswers {
        ipc_offset: 64 * KIB,
        ipc_offset_fits_mapping: true,
        ..WrongAnswers::default()
    };
    // Both directions are compared: here CUDA reads the CPU's bytes, but the CPU does not read CUDA's.
    let one_way = WrongAnswers {
        lost_writes: true,
        ..WrongAnswers::default()
    };
    for (wrong, says) in [
        (
            elsewhere,
            "CUDA does not read the bytes that the CPU wrote at 0",
        ),
        (
            one_way,
            "the CPU does not read the bytes that CUDA wrote at 0",
        ),
    ] {
        let machine = Machine::with(WrongAnswers {
            no_export: true,
            ..wrong
        });
        let ptr = machine.cuda.allocate(MemoryKind::Plain, 10 * KIB);
        for _ in 0..2 {
            let refused = machine.pin(ptr, 10 * KIB).unwrap_err();
            let is_verdict = matches!(
                refused,
                Error::SelfTest {
                    route: Route::IpcHandle,
                    ..
                }
            );
            assert!(
                is_verdict && refused.to_string().contains(says),
                "{refused}"
            );
        }
        assert_eq!(machine.cuda.state().proofs, 1, "a verdict is permanent");
    }

    // Another route that passes its self-test is used instead.
    let machine = Machine::with(elsewhere);
    let ptr = machine.cuda.allocate(MemoryKind::Plain, 10 * KIB);
    let pin = machine.pin(ptr, 10 * KIB).unwrap();
    assert_eq!(pin.route(), Route::DmaBufCall);
    assert_maps(&machine, &*pin, ptr);

    let machine = Machine::with(WrongAnswers {
        export_offset: 64 * KIB,
        ..WrongAnswers::default()
    });
    let ptr = machine.cuda.allocate(MemoryKind::Vmm, MIB);
    let refused = machine.pin(ptr, KIB).unwrap_err();
    assert!(matches!(refused, Error::SelfTest { .. }), "{refused}");
}

#[test]
fn an_ipc_handle_that_contradicts_cuda_or_the_driver_is_refused() {
    for (wrong, says) in [
        // Inside the object, but not at the offset that CUDA reports for the mapping.
        (
            WrongAnswers {
                ipc_offset: 64 * KIB,
                ..WrongAnswers::default()
            },
            "the handle contains offset 65536",
        ),
        // Larger than the driver's object.
        (
            WrongAnswers {
                ipc_object_size: 3 * MIB,
                ..WrongAnswers::default()
            },
            "the handle describes an object of",
        ),
    ] {
        let machine = Machine::with(wrong);
        let ptr = machine.cuda.allocate(MemoryKind::Plain, 10 * KIB);
        let refused = machine.route(ptr, 10 * KIB, Route::IpcHandle).unwrap_err();
        assert!(refused.contains(says), "{refused}");
    }
}

#[test]
fn an_export_of_another_length_is_refused() {
    let machine = Machine::with(WrongAnswers {
        export_short: 4 * KIB,
        ..WrongAnswers::default()
    });
    let ptr = machine.cuda.allocate(MemoryKind::Vmm, MIB);
    let refused = machine.route(ptr, 64 * KIB, Route::DmaBufCall).unwrap_err();
    assert_contains!(refused, "were exported of 65536");
}

#[test]
fn vmm_memory_of_another_size_than_its_object_is_refused() {
    let machine = Machine::new();
    let ptr = machine.cuda.allocate(MemoryKind::VmmPosixFd, MIB);
    machine.cuda.state().wrong.vmm_size = 2 * MIB;
    let refused = machine.route(ptr, KIB, Route::PosixFd).unwrap_err();
    assert_contains!(refused, "CUDA reports 4194304 bytes");
}

#[test]
fn memory_that_is_freed_and_allocated_again_while_it_is_pinned_is_refused() {
    let machine = Machine::new();
    for kind in [MemoryKind::Plain, MemoryKind::Vmm] {
        machine.cuda.state().wrong.reused = false;
        let ptr = machine.cuda.allocate(kind, 10 * KIB);
        drop(machine.pin(ptr, KIB).unwrap());
        machine.cuda.state().wrong.reused = true;
        let refused = machine.pin(ptr, KIB).unwrap_err();
        assert!(
            matches!(refused, Error::Gpu(gdr_cuda::Error::UnknownPointer { .. })),
            "{refused}"
        );
    }
}

#[test]
fn a_range_over_vmm_mappings_side_by_side_is_one_pin() {
    let machine = Machine::new();
    let first = machine.cuda.allocate(MemoryKind::Vmm, 2 * MIB);
    let second = machine.cuda.allocate_after(0, MemoryKind::Vmm, 2 * MIB);
    assert_eq!(plus(first, 2 * MIB), second);
    let pin = machine.pin(plus(first, MIB), 2 * MIB).unwrap();
    assert_eq!((pin.va(), pin.len()), (plus(first, MIB), 2 * MIB));
    assert_maps(&machine, &*pin, plus(first, MIB));
    assert_maps(&machine, &*pin, plus(second, 100));
    // Each mapping is queried again after the pin.
    let range = Range::locate(&*machine.cuda, &request(plus(first, MIB), 2 * MIB)).unwrap();
    assert_eq!(range.further.len(), 1);
    assert!(resolve::unchanged(&*machine.cuda, &range).is_ok());
    let mut other = range.clone();
    other.further[0].buffer = gdr_cuda::BufferId(77);
    assert!(resolve::unchanged(&*machine.cuda, &other).is_err());
    let past = machine.pin(plus(first, MIB), 3 * MIB + 1).unwrap_err();
    assert!(matches!(past, Error::PastAllocation { .. }), "{past}");
}

#[test]
fn an_import_of_several_objects_that_fails_leaves_none_of_them() {
    let machine = Machine::new();
    // Opens the device first, so that only objects of the import are counted below.
    let ptr = machine.cuda.allocate(MemoryKind::VmmPosixFd, MIB);
    let info = machine.cuda.pointer_info(ptr).unwrap();
    let device = machine.backend.device(info.device).unwrap();
    let objects = [0x5c00_2000, 0x5c00_2001, 0x5c00_2002];
    let import = |inside: &[(u8, u32)], in_host_memory: Vec<u32>| {
        let fd: OwnedFd =
            rustix::fs::memfd_create("export", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        {
            let mut state = machine.driver.state();
            for object in objects {
                state.cuda_objects.insert(object, 2 * MIB);
            }
            state.in_host_memory = in_host_memory;
            state.descriptors.insert(fd.as_raw_fd(), inside.to_vec());
        }
        let objects = || machine.driver.state().objects.len();
        let before = objects();
        let memory = resolve::import(&device, &fd);
        let imported = objects() - before;
        let answer = memory
            .map(|memory| memory.size())
            .map_err(|error| error.to_string());
        assert_eq!(objects(), before);
        (answer, imported)
    };
    let video = objects.map(|object| (IMPORT_VIDMEM, object));
    for bad in objects {
        let (answer, left) = import(&video, vec![bad]);
        assert!(answer.unwrap_err().contains("should be on the GPU"));
        assert_eq!(left, 0, "object {bad:#x} is not memory of the GPU");
    }
    let (answer, left) = import(&video, vec![]);
    assert!(answer.unwrap_err().contains("3 memory objects"));
    assert_eq!(left, 0);

    // One video memory object among others: the others are freed.
    let (answer, kept) = import(&[(2, objects[0]), video[1], (0, 0)], vec![]);
    assert_eq!(
        (answer, kept),
        (Ok(2 * MIB), 1),
        "a slot of type 0 is empty"
    );
    let (answer, left) = import(&[(2, objects[0]), (2, objects[1])], vec![]);
    assert!(answer.unwrap_err().contains("no video memory"));
    assert_eq!(left, 0);
}

#[test]
fn a_report_of_the_routes_has_the_reason_of_each_refusal() {
    let machine = Machine::new();
    let ptr = machine.cuda.allocate(MemoryKind::Plain, 10 * KIB);
    let reports = machine.backend.routes(&request(ptr, KIB)).unwrap();
    let open: Vec<_> = reports
        .iter()
        .map(|r| (r.route, r.refusal.is_none()))
        .collect();
    assert_eq!(
        open,
        [
            (Route::IpcHandle, true),
            (Route::DmaBufCall, true),
            (Route::PosixFd, false)
        ]
    );
    assert!(
        machine.driver.state().mappings.is_empty(),
        "nothing stays mapped"
    );
}
