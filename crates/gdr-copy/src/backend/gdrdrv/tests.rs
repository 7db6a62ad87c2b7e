//! The backend with the fake module.

use std::cell::Cell;

use forked::{check, in_child};
use gdr_cuda::DevicePtr;
use snapshot::assert_contains;

use super::fake::{CACHED, DEVICE, FakeModule, GPU_MEMORY};
use super::*;
use crate::options::{Bus, PinOptions};

const BASE: u64 = GPU_MEMORY.start;
const PAGE: u64 = 64 << 10;

const PIN: u32 = 0xC028_DA01;
const UNPIN: u32 = 0xC008_DA02;
const INFO: u32 = 0xC008_DA04;
const INFO_V2: u32 = 0xC008_DA05;
const PIN_V2: u32 = 0xC020_DA07;
const REQUEST: u32 = 0xC008_DA08;

fn request(ptr: u64, len: u64) -> PinRequest {
    PinRequest {
        ptr: DevicePtr::new(ptr),
        len,
        options: PinOptions::new(),
    }
}

fn forced(ptr: u64, len: u64) -> PinRequest {
    let options = PinOptions::new().with_bus(Bus::Pcie);
    PinRequest {
        options,
        ..request(ptr, len)
    }
}

fn open(module: &FakeModule) -> GdrdrvBackend {
    GdrdrvBackend::over(module.device()).unwrap()
}

/// Returns 64-bit words as the bytes of a call's argument.
fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn bytes_of(mapping: &BarMapping) -> &[std::sync::atomic::AtomicU8] {
    // SAFETY: `len` bytes of a memfd are mapped as long as the mapping is borrowed. The test also accesses the memfd,
    // which atomics allow.
    unsafe { std::slice::from_raw_parts(mapping.as_ptr().cast(), mapping.len()) }
}

#[test]
fn modules_from_2_0_on_are_supported_and_report_their_attributes() {
    for version in [(2, 0), (2, 4), (2, 5), (2, 6), (3, 1)] {
        let attributes = open(&FakeModule::new(version)).attributes();
        let modern = version >= (2, 5);
        assert_eq!(attributes.module, Some(version));
        assert_eq!(
            (attributes.persistent, attributes.force_pcie),
            (modern, modern)
        );
        assert!(!attributes.dma_buf_mmap);
    }
    let transient = FakeModule::new((2, 6)).with(|state| state.persistent = false);
    let attributes = open(&transient).attributes();
    assert!(!attributes.persistent && !attributes.force_pcie);
}

#[test]
fn an_unsupported_module_is_refused_with_both_versions() {
    let old = FakeModule::new((1, 3));
    let older = FakeModule::new((1, 0)).with(|state| {
        state
            .faults
            .push_back((abi::Request::GetVersion, libc::ENOTTY))
    });
    let new = FakeModule::new((3, 0)).with(|state| state.minimum_api = (2, 7));
    for (module, found, wanted) in [
        (old, "1.3", "2.0 or later"),
        (older, "1.x", "2.0 or later"),
        (new, "3.0", "2.7"),
    ] {
        let error = GdrdrvBackend::over(module.device()).unwrap_err();
        assert!(matches!(error, Error::ModuleVersion { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(found) && text.contains(wanted), "{text}");
    }
}

#[test]
fn a_range_is_widened_to_pages_that_the_module_maps() {
    let module = FakeModule::new((2, 6));
    let pin = open(&module)
        .pin(&request(BASE + PAGE + 100, PAGE))
        .unwrap();
    assert_eq!(
        (pin.va().get(), pin.len(), pin.page_size()),
        (BASE + PAGE, 2 * PAGE, 65536)
    );
    assert_eq!(pin.route(), Route::Module);
    assert_eq!(
        module.calls(PIN_V2),
        [words(&[BASE + PAGE, 2 * PAGE, 0, 0])]
    );
    pin.map(2 * PAGE, None).unwrap();
}

#[test]
fn modules_before_2_5_are_pinned_with_the_first_call_and_no_tokens() {
    for version in [(2, 0), (2, 4)] {
        let module = FakeModule::new(version);
        let pin = open(&module).pin(&request(BASE, 1)).unwrap();
        assert_eq!(module.calls(PIN), [words(&[BASE, PAGE, 0, 0, 0])]);
        drop(pin);
        assert_eq!(module.calls(UNPIN), [words(&[0])]);
        assert!(module.calls(PIN_V2).is_empty());
    }
}

#[test]
fn pcie_is_forced_only_where_the_module_has_the_attribute() {
    let module = FakeModule::new((2, 6));
    let pin = open(&module).pin(&forced(BASE, PAGE)).unwrap();
    assert_eq!(module.calls(PIN_V2), [words(&[BASE, PAGE, 1, 0])]);
    drop(pin);

    let old = FakeModule::new((2, 4));
    let transient = FakeModule::new((2, 6)).with(|state| state.persistent = false);
    for module in [old, transient] {
        let error = open(&module).pin(&forced(BASE, PAGE)).unwrap_err();
        assert!(matches!(error, Error::ForcePcie { .. }), "{error}");
        assert!(module.calls(PIN).is_empty() && module.calls(PIN_V2).is_empty());
    }

    let refusing = FakeModule::new((2, 6)).with(|state| {
        state
            .faults
            .push_back((abi::Request::PinBufferV2, libc::EINVAL))
    });
    let error = open(&refusing).pin(&forced(BASE, PAGE)).unwrap_err();
    assert!(matches!(error, Error::ForcePcie { .. }), "{error}");
}

#[test]
fn a_mapping_is_of_its_own_range_at_its_handle() {
    let module = FakeModule::new((2, 6));
    let backend = open(&module);
    let first = backend.pin(&request(BASE, PAGE)).unwrap();
    let second = backend.pin(&request(BASE + PAGE, 3 * PAGE)).unwrap();
    let handles = module.pinned();
    let (second_handle, first_handle) = (handles[0], handles[1]);
    assert_eq!(second_handle, PAGE / crate::bar_mapping::host_page());

    let mapping = second.map(3 * PAGE, None).unwrap();
    assert_eq!(
        (mapping.len() as u64, mapping.caching()),
        (3 * PAGE, Caching::WriteCombined)
    );
    let last = mapping.len() - 1;
    bytes_of(&mapping)[last].store(7, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(module.gpu_reads(second_handle, last as u64, 1), [7]);
    assert!(module.is_mapped(second_handle) && !module.is_mapped(first_handle));

    // A second mapping after the first is unmapped, shorter than the pin.
    drop(mapping);
    assert!(!module.is_mapped(second_handle));
    assert_eq!(second.map(PAGE, None).unwrap().len() as u64, PAGE);
    drop((first, second));
    assert_eq!(module.state().unknown_handles, 0);
}

#[test]
fn a_range_is_unpinned_once_and_after_its_munmap_in_either_order() {
    let module = FakeModule::new((2, 6));
    let backend = open(&module);
    for pin_goes_first in [true, false] {
        let pin = backend.pin(&request(BASE, PAGE)).unwrap();
        let mapping = pin.map(PAGE, None).unwrap();
        if pin_goes_first {
            drop(pin);
            assert_eq!(
                module.pinned().len(),
                1,
                "the mapping keeps the range pinned"
            );
            drop(mapping);
        } else {
            drop(mapping);
            assert_eq!(module.pinned().len(), 1, "the pin keeps the range pinned");
            drop(pin);
        }
        assert!(module.pinned().is_empty());
    }
    let pin = backend.pin(&request(BASE, PAGE)).unwrap();
    drop(backend);
    drop(pin);
    let state = module.state();
    assert_eq!((state.unknown_handles, state.unpinned_while_mapped), (0, 0));
    drop(state);
    assert_eq!(module.calls(UNPIN).len(), 3);
}

#[test]
fn handles_of_more_than_32_bits_stay_whole() {
    let start = (5 << 32) + 3;
    let module = FakeModule::new((2, 6)).with(|state| state.next_handle = start);
    let pin = open(&module).pin(&request(BASE, PAGE)).unwrap();
    let mapping = pin.map(PAGE, None).unwrap();
    assert!(module.is_mapped(start));
    drop((mapping, pin));
    assert_eq!(module.calls(UNPIN), [words(&[start])]);
}

#[test]
fn a_handle_past_the_end_of_every_file_is_refused_before_the_mmap() {
    let module = FakeModule::new((2, 6)).with(|state| state.next_handle = 1 << 60);
    let pin = open(&module).pin(&request(BASE, PAGE)).unwrap();
    let error = pin.map(PAGE, None).unwrap_err();
    assert_contains!(error.to_string(), "open a new one", "{error}");
}

#[test]
fn the_kind_of_mapping_is_what_the_module_reports() {
    for (version, platform, made) in [
        ((2, 0), fake::WC, Caching::WriteCombined),
        ((2, 3), CACHED, Caching::Cached),
        ((2, 4), CACHED, Caching::Cached),
        ((2, 4), DEVICE, Caching::Device),
        ((2, 6), DEVICE, Caching::Device),
    ] {
        let module = FakeModule::new(version).with(|state| state.platform = platform);
        let pin = open(&module).pin(&request(BASE, PAGE)).unwrap();
        assert_eq!(pin.map(PAGE, None).unwrap().caching(), made);
        let (asked, not_asked) = if version >= (2, 4) {
            (INFO_V2, INFO)
        } else {
            (INFO, INFO_V2)
        };
        assert_eq!(
            (module.calls(asked).len(), module.calls(not_asked).len()),
            (1, 0)
        );
    }
}

#[test]
fn a_kind_of_mapping_can_be_requested_and_reset() {
    let module = FakeModule::new((2, 5)).with(|state| {
        state.platform = CACHED;
        state.allowed = vec![fake::WC, CACHED];
    });
    let pin = open(&module).pin(&request(BASE, PAGE)).unwrap();
    let combined = pin.map(PAGE, Some(Caching::WriteCombined)).unwrap();
    assert_eq!(combined.caching(), Caching::WriteCombined);
    drop(combined);
    assert_eq!(pin.map(PAGE, None).unwrap().caching(), Caching::Cached);
    assert_eq!(module.calls(REQUEST), [words(&[0, 1]), words(&[0, 0])]);
}

#[test]
fn a_kind_that_is_not_offered_is_refused_and_leaves_nothing_mapped() {
    for version in [(2, 0), (2, 4), (2, 6)] {
        let module = FakeModule::new(version);
        let pin = open(&module).pin(&request(BASE, PAGE)).unwrap();
        let error = pin.map(PAGE, Some(Caching::Cached)).unwrap_err();
        assert!(
            matches!(
                error,
                Error::Caching {
                    offered: Caching::WriteCombined,
                    ..
                }
            ),
            "{error}"
        );
        assert!(!module.is_mapped(0));
        pin.map(PAGE, Some(Caching::WriteCombined)).unwrap();
    }
}

#[test]
fn a_cached_mapping_is_not_requested_over_pcie() {
    let module = FakeModule::new((2, 6)).with(|state| state.allowed = vec![fake::WC, CACHED]);
    let pin = open(&module).pin(&forced(BASE, PAGE)).unwrap();
    let error = pin.map(PAGE, Some(Caching::Cached)).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Caching {
                wanted: Caching::Cached,
                ..
            }
        ),
        "{error}"
    );
    assert!(module.calls(REQUEST).is_empty());
}

#[test]
fn errors_are_explained_and_leave_nothing_pinned() {
    for (errno, meaning) in [
        (libc::EACCES, "another process"),
        (libc::EINVAL, "not GPU memory"),
        (libc::ENOMEM, "BAR1"),
        (libc::EIO, "dmesg"),
    ] {
        for (version, request_kind) in [
            ((2, 4), abi::Request::PinBuffer),
            ((2, 6), abi::Request::PinBufferV2),
        ] {
            let module = FakeModule::new(version);
            let backend = open(&module);
            module.state().faults.push_back((request_kind, errno));
            let error = backend.pin(&request(BASE, PAGE)).unwrap_err();
            assert!(error.to_string().contains(meaning), "{error}");
            assert!(module.pinned().is_empty() && module.calls(UNPIN).is_empty());
        }
    }
    let host_memory = open(&FakeModule::new((2, 6)))
        .pin(&request(0x1000, PAGE))
        .unwrap_err();
    assert_contains!(host_memory.to_string(), "not GPU memory", "{host_memory}");
}

#[test]
fn a_mapping_that_fails_half_way_is_undone() {
    for (call, errno) in [
        (abi::Request::GetInfoV2, libc::EIO),
        (abi::Request::ChooseMapping, libc::EBUSY),
    ] {
        let module = FakeModule::new((2, 6));
        let pin = open(&module).pin(&request(BASE, PAGE)).unwrap();
        module.state().faults.push_back((call, errno));
        pin.map(PAGE, Some(Caching::WriteCombined)).unwrap_err();
        assert!(!module.is_mapped(0));
        pin.map(PAGE, None).unwrap();
        drop(pin);
        assert!(module.pinned().is_empty());
    }
    let module = FakeModule::new((2, 6)).with(|state| state.mmap_is_refused = true);
    let pin = open(&module).pin(&request(BASE, PAGE)).unwrap();
    let error = pin.map(PAGE, None).unwrap_err();
    assert!(error.to_string().contains("mmap") && error.to_string().contains("another process"));
}

#[test]
fn information_about_another_range_is_an_error() {
    let module = FakeModule::new((2, 6)).with(|state| state.reported_shift = PAGE);
    let pin = open(&module).pin(&request(BASE, PAGE)).unwrap();
    let error = pin.map(PAGE, None).unwrap_err();
    assert_contains!(error.to_string(), "another range", "{error}");
    assert!(!module.is_mapped(0));
}

#[test]
fn freed_memory_is_reported_where_pins_are_not_persistent() {
    for persistent in [true, false] {
        let module = FakeModule::new((2, 6)).with(|state| state.persistent = persistent);
        let pin = open(&module).pin_pages(&request(BASE, PAGE)).unwrap();
        assert!(!pin.invalidated().unwrap());
        module.free_all();
        assert_eq!(pin.invalidated().unwrap(), !persistent);
        if persistent {
            pin.map(PAGE, None).unwrap();
        } else {
            assert!(matches!(pin.map(PAGE, None), Err(Error::Invalidated)));
            // Without the check before, the module refuses the mmap.
            let refused = Error::os("mmap", io::Error::from_raw_os_error(libc::EINVAL));
            assert!(matches!(pin.explain(refused), Error::Invalidated));
        }
    }
}

#[test]
fn a_forked_child_leaves_its_parents_pins_alone() {
    let module = FakeModule::new((2, 6));
    let pin = Cell::new(Some(open(&module).pin(&request(BASE, PAGE)).unwrap()));
    in_child(|| {
        drop(pin.take());
        check(module.calls(UNPIN).is_empty(), "the child unpinned")
    });
    drop(pin);
    assert!(module.pinned().is_empty());
}

/// A module that returns arbitrary bytes from every call.
#[derive(Debug)]
struct RandomModule {
    memory: std::os::fd::OwnedFd,
    answers: std::sync::Mutex<Vec<(i32, Vec<u8>)>>,
}

impl Device for RandomModule {
    fn call(&self, _: abi::Request, argument: &mut [u8]) -> io::Result<()> {
        let Some((errno, bytes)) = self.answers.lock().unwrap().pop() else {
            return Ok(());
        };
        if errno != 0 {
            return Err(io::Error::from_raw_os_error(errno));
        }
        argument
            .iter_mut()
            .zip(bytes)
            .for_each(|(place, byte)| *place = byte);
        Ok(())
    }

    fn file(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.memory)
    }
}

proptest::proptest! {
    #[test]
    fn any_bytes_from_a_module_are_a_result_or_an_error(
        version in 0x2_0000u32..0x2_0009,
        answers in proptest::collection::vec(
            (proptest::prop_oneof![5 => proptest::strategy::Just(0), 1 => 1..140],
             proptest::collection::vec(proptest::num::u8::ANY, 0..48)),
            0..12,
        ),
        caching in proptest::option::of(proptest::sample::select(
            vec![Caching::WriteCombined, Caching::Cached, Caching::Device],
        )),
    ) {
        let memory =
            rustix::fs::memfd_create("random", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memory, 1 << 56).unwrap();
        let mut answers = answers;
        // The version is supported, so that the other calls are made.
        let version = [version.to_ne_bytes(), 0x2_0000u32.to_ne_bytes()].concat();
        answers.push((0, version));
        let device = RandomModule { memory, answers: std::sync::Mutex::new(answers) };
        if let Ok(backend) = GdrdrvBackend::over(Box::new(device))
            && let Ok(pin) = backend.pin(&request(BASE, 1))
        {
            let _either = pin.map(PAGE, caching).map(|mapping| mapping.caching());
            let _either = pin.invalidated();
        }
    }
}
