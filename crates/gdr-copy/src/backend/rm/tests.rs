//! The backend's calls to the driver.

use std::cell::Cell;
use std::sync::Arc;

use forked::{check, in_child};
use gdr_cuda::BufferId;
use snapshot::assert_contains;

use super::abi::Escape;
use super::client::Client;
use super::device::{Device, Identity};
use super::extents::{Extent, head, widen};
use super::fake::{CUDA_CLIENT, CUDA_OBJECT, FakeDriver, OBJECT_SIZE};
use super::ioctl::Node;
use super::memory::Memory;
use super::{Mapped, RmPin};
use crate::backend::Pin;
use crate::cpu::Caching;
use crate::error::Error;
use crate::report::Route;

fn identity() -> Identity {
    Identity {
        buffer: Some(BufferId(1)),
        client: CUDA_CLIENT,
        object: CUDA_OBJECT,
    }
}

fn device(driver: &Arc<FakeDriver>) -> Arc<Device> {
    let client = Arc::new(Client::open(driver.clone()).unwrap());
    let card = client.cards().unwrap()[0];
    assert_eq!(
        (card.bdf.to_string().as_str(), card.minor),
        ("0000:06:00.0", 2)
    );
    Arc::new(Device::open(client, card).unwrap())
}

fn pin(device: &Arc<Device>) -> RmPin {
    let memory = Arc::new(Memory::dup(device, identity()).unwrap());
    let extents = vec![Extent {
        memory,
        offset: 0x1_0000,
        len: 0x2_0000,
    }];
    RmPin {
        extents,
        mapped: Default::default(),
        va: gdr_cuda::DevicePtr::new(0x7f00_0001_0000),
        len: 0x2_0000,
        route: Route::IpcHandle,
    }
}

#[test]
fn every_object_of_the_driver_is_freed() {
    let driver = FakeDriver::new();
    {
        let device = device(&driver);
        assert_eq!(device.client().version(), "580.159.04");
        let pin = pin(&device);
        let mapping = pin.map(0x2_0000, None).unwrap();
        assert_eq!(
            (mapping.len(), mapping.caching()),
            (0x2_0000, Caching::WriteCombined)
        );
        assert_eq!(driver.state().mappings.len(), 1);
        drop(mapping);
        // Another length needs another mapping, so the first is unmapped.
        let shorter = pin.map(0x1_0000, None).unwrap();
        assert_eq!(driver.state().mappings.len(), 1);
        drop(pin);
        assert!(
            driver.state().mappings.is_empty(),
            "freeing the object ends its mappings"
        );
        drop(shorter);
    }
    assert!(driver.state().objects.is_empty());
}

#[test]
fn mapping_again_makes_no_call_to_the_driver() {
    let driver = FakeDriver::new();
    let device = device(&driver);
    let pin = pin(&device);
    drop(pin.map(0x2_0000, None).unwrap());
    let before = driver.state().calls.len();
    drop(pin.map(0x2_0000, None).unwrap());
    assert_eq!(driver.state().calls.len(), before);
}

#[test]
fn a_full_bar1_is_reported_with_its_numbers() {
    let driver = FakeDriver::new();
    let device = device(&driver);
    let pin = pin(&device);
    for status in [0x51, 0x1a] {
        driver.refuse(Escape::RmMapMemory, status);
        let error = pin.map(0x2_0000, None).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Bar1Exhausted { .. }), "{text}");
        for part in [
            "GPU 0000:06:00.0",
            "map 131072 bytes",
            "268435456 bytes in all",
            "1048576",
        ] {
            assert_contains!(text, part);
        }
    }
    // No mapping is left, and the next attempt may succeed.
    assert!(driver.state().mappings.is_empty());
    assert!(pin.map(0x2_0000, None).is_ok());
}

#[test]
fn a_refused_duplication_reports_the_status_and_its_cause() {
    let driver = FakeDriver::new();
    let device = device(&driver);
    driver.refuse(Escape::RmDupObject, 0x1b);
    let text = Memory::dup(&device, identity()).unwrap_err().to_string();
    assert_contains!(text, "NV_ESC_RM_DUP_OBJECT");
    assert_contains!(text, "NV_ERR_INSUFFICIENT_PERMISSIONS (0x1b)");
    assert_contains!(text, "MIG");

    driver.refuse(Escape::RmMapMemory, 0x56);
    let text = pin(&device).map(0x2_0000, None).unwrap_err().to_string();
    assert_contains!(text, "confidential computing");

    let unknown = Identity {
        object: super::abi::Handle(0x5c00_0099),
        ..identity()
    };
    let text = Memory::dup(&device, unknown).unwrap_err().to_string();
    assert_contains!(text, "NV_ERR_OBJECT_NOT_FOUND");
}

#[test]
fn memory_under_a_subdevice_is_found_there() {
    let driver = FakeDriver::new();
    driver.state().under_subdevice = true;
    let device = device(&driver);
    assert_eq!(
        Memory::dup(&device, identity()).unwrap().size(),
        OBJECT_SIZE
    );
}

#[test]
fn the_size_of_an_object_is_queried_once_per_allocation() {
    let driver = FakeDriver::new();
    let device = device(&driver);
    let controls = || {
        driver
            .state()
            .calls
            .iter()
            .filter(|c| **c == Escape::RmControl)
            .count()
    };
    drop(Memory::dup(&device, identity()).unwrap());
    let after_first = controls();
    drop(Memory::dup(&device, identity()).unwrap());
    assert_eq!(controls(), after_first);
    // The same handles with another allocation may denote another object.
    let other = Identity {
        buffer: Some(BufferId(2)),
        ..identity()
    };
    drop(Memory::dup(&device, other).unwrap());
    assert_eq!(controls(), after_first + 1);
    let one_of_several = Identity {
        buffer: None,
        ..identity()
    };
    drop(Memory::dup(&device, one_of_several).unwrap());
    drop(Memory::dup(&device, one_of_several).unwrap());
    assert_eq!(controls(), after_first + 3);
}

#[test]
fn a_missing_or_forbidden_node_is_reported_with_its_remedy() {
    for (errno, remedy) in [(libc::ENOENT, "--gpus"), (libc::EACCES, "mode and group")] {
        let driver = FakeDriver::new();
        driver.state().closed = Some((Node::Control, errno));
        let text = Client::open(driver).unwrap_err().to_string();
        assert!(
            text.contains("/dev/nvidiactl") && text.contains(remedy),
            "{text}"
        );
    }
    let driver = FakeDriver::new();
    driver.state().closed = Some((Node::Gpu { minor: 2 }, libc::ENOENT));
    let client = Arc::new(Client::open(driver.clone()).unwrap());
    let card = client.cards().unwrap()[0];
    let text = Device::open(client, card).unwrap_err().to_string();
    assert_contains!(text, "/dev/nvidia2");
    assert!(
        driver.state().objects.is_empty(),
        "a device that did not open leaves nothing"
    );
}

#[test]
fn a_device_that_opens_in_part_is_freed() {
    let driver = FakeDriver::new();
    let client = Arc::new(Client::open(driver.clone()).unwrap());
    let card = client.cards().unwrap()[0];
    // The driver allocates the device and refuses the subdevice.
    {
        let mut state = driver.state();
        state.refusals.push((Escape::RmAlloc, 0));
        state.refusals.push((Escape::RmAlloc, 0x1a));
    }
    assert!(Device::open(client.clone(), card).is_err());
    assert_eq!(driver.state().objects.len(), 1, "only the client is left");
}

#[test]
fn a_child_frees_no_object_of_its_parent() {
    let driver = FakeDriver::new();
    let device = device(&driver);
    let pin = pin(&device);
    let mapping = pin.map(0x2_0000, None).unwrap();
    let before = driver.state().calls.len();
    let all = Cell::new(Some((mapping, pin, device)));
    in_child(|| {
        drop(all.take());
        check(
            driver.state().calls.len() == before,
            "the child called the driver",
        )
    });
    // The parent's mapping still works.
    let (mapping, ..) = all.take().unwrap();
    // SAFETY: one byte of the mapping.
    unsafe { mapping.as_ptr().write_volatile(7) };
}

#[test]
fn widening_refuses_extents_that_do_not_fit_the_object() {
    let driver = FakeDriver::new();
    let device = device(&driver);
    let memory = Arc::new(Memory::dup(&device, identity()).unwrap());
    let extent = |offset, len| {
        vec![Extent {
            memory: memory.clone(),
            offset,
            len,
        }]
    };

    let whole = widen(extent(0x1_1000, 0x1000), 0x1000, 0xe000).unwrap();
    assert_eq!((whole[0].offset, whole[0].len), (0x1_0000, 0x1_0000));

    for (extents, before, after, says) in [
        (extent(0x800, 0x1000), 0x1000, 0, "starts before"),
        (
            extent(OBJECT_SIZE - 0x1000, 0x1000),
            0,
            0x1000,
            "do not fit",
        ),
        (extent(u64::MAX - 0xfff, 0x1000), 0, 0, "do not fit"),
        (extent(0x1_0200, 0x1000), 0, 0, "not whole pages"),
        (Vec::new(), 0, 0, "no memory object"),
    ] {
        let error = widen(extents, before, after).unwrap_err().to_string();
        assert!(error.contains(says), "{says} in {error}");
    }
}

#[test]
fn a_range_of_several_objects_is_mapped_side_by_side() {
    let driver = FakeDriver::new();
    let device = device(&driver);
    let memory = Arc::new(Memory::dup(&device, identity()).unwrap());
    let extents: Vec<_> = [0x1_0000, 0x4_0000, 0]
        .map(|offset| Extent {
            memory: memory.clone(),
            offset,
            len: 0x2000,
        })
        .into();

    let first = head(&extents, 0x3000);
    assert_eq!(
        first.iter().map(|extent| extent.len).collect::<Vec<_>>(),
        [0x2000, 0x1000]
    );

    let mapped = Mapped::new(&extents, 0x6000).unwrap();
    let mapping = mapped.bar_mapping().unwrap();
    assert_eq!(mapping.len(), 0x6000);
    assert_eq!(driver.state().mappings.len(), 3);
    for at in (0..0x6000).step_by(0x800) {
        // SAFETY: inside the mapping.
        unsafe { mapping.as_ptr().add(at).write_volatile(at as u8) };
    }
    drop(mapping);
    drop(mapped);
    assert!(driver.state().mappings.is_empty());
}
