//! Registrations of GPU memory are trusted only after a checked transfer.

use fake_ibverbs::{DeviceSpec, Fake, GpuPath};
use gdr_cuda::SimDriver;
use gdr_rdma::{
    Access, Device, Error, MemoryRegion, RegistrationMethod, Result, VerbsError, VerbsOptions,
};

use crate::fixture::*;
use crate::gpu_memory::GpuMemory;

const LEN: u64 = 1 << 16;

/// Registers GPU memory with a device of this kind; the memory's bytes must be unchanged afterwards.
fn register(fake: &Fake, spec: &DeviceSpec, access: Access) -> Result<MemoryRegion> {
    fake.add(spec.clone());
    let options = VerbsOptions::new().library(fake.verbs());
    let device = Device::verbs(&options.device(&spec.name))?;
    let memory = GpuMemory::new(fake, &SimDriver::new(1), LEN);
    let bytes: Vec<u8> = (0..LEN).map(|at| (at * 7 + 3) as u8).collect();
    memory.device.write(0, &bytes).unwrap();
    let registered = device
        .protection_domain()
        .register_range(&memory.buffer, 4096, 8192, access);
    let after = memory.as_cuda_sees_it(0, LEN as usize);
    assert!(after == bytes, "registering changed the memory");
    registered
}

fn spec(dma_buf: GpuPath, peer_memory: GpuPath) -> DeviceSpec {
    DeviceSpec {
        dma_buf,
        peer_memory,
        ..roce()
    }
}

fn refusals(registered: Result<MemoryRegion>) -> Vec<String> {
    match registered {
        Err(Error::Verbs(VerbsError::GpuRegistration(refusals))) => refusals,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_method_that_transfers_bytes_is_verified_and_the_bytes_are_restored() {
    let fake = clean_fake();
    let works = spec(GpuPath::Works, GpuPath::Refuses(libc::EFAULT));
    for access in [Access::all(), Access::LOCAL_WRITE, Access::empty()] {
        let works = DeviceSpec {
            name: roce().name,
            ..works.clone()
        };
        let region = register(&fake, &works, access).unwrap();
        assert_eq!(region.route(), RegistrationMethod::DmaBuf);
        assert_eq!(
            (region.rejected_methods().len(), region.unverified_reason()),
            (0, None)
        );
        drop(region);
    }
}

#[test]
fn a_method_that_loses_bytes_is_rejected_for_the_next_one() {
    let fake = clean_fake();
    let region = register(
        &fake,
        &spec(GpuPath::LosesBytes, GpuPath::Works),
        Access::all(),
    )
    .unwrap();
    assert_eq!(region.route(), RegistrationMethod::PeerMemory);
    let [refusal] = region.rejected_methods() else {
        panic!("{:?}", region.rejected_methods());
    };
    assert!(
        refusal.starts_with("dma-buf: the registration succeeded"),
        "{refusal}"
    );
    assert!(refusal.contains("without moving the bytes"), "{refusal}");
}

#[test]
fn a_method_whose_transfers_fail_is_rejected_with_their_status() {
    let fake = clean_fake();
    let fails = spec(GpuPath::Fails, GpuPath::Fails);
    let refusals = refusals(register(&fake, &fails, Access::all()));
    assert_eq!(refusals.len(), 2, "{refusals:?}");
    assert!(refusals[0].starts_with("dma-buf: the registration succeeded, and a transfer"));
    assert!(refusals[0].contains("fails: "), "{refusals:?}");
    assert!(
        refusals[1].starts_with("peer-memory module: "),
        "{refusals:?}"
    );
}

#[test]
fn rejected_methods_are_reported_in_the_order_in_which_they_were_tried() {
    let fake = clean_fake();
    let lossy = spec(GpuPath::Refuses(libc::EOPNOTSUPP), GpuPath::LosesBytes);
    let refusals = refusals(register(&fake, &lossy, Access::all()));
    assert_eq!(refusals.len(), 2, "{refusals:?}");
    assert!(refusals[0].contains("kernel 5.12"), "{refusals:?}");
    assert!(refusals[1].contains("without moving"), "{refusals:?}");
}

#[test]
fn a_region_is_reported_as_unverified_if_no_transfer_can_be_made() {
    let fake = clean_fake();
    let mut spec = spec(GpuPath::Works, GpuPath::Works);
    spec.refusals
        .insert("ibv_modify_qp RTR".to_owned(), libc::EINVAL);
    let region = register(&fake, &spec, Access::all()).unwrap();
    assert_eq!(region.route(), RegistrationMethod::DmaBuf);
    assert!(region.unverified_reason().is_some());
}

#[test]
fn an_infiniband_port_verifies_through_its_own_lid() {
    let fake = clean_fake();
    let infiniband = DeviceSpec {
        dma_buf: GpuPath::LosesBytes,
        ..DeviceSpec::infiniband("ib_proof", 5)
    };
    let refusals = refusals(register(&fake, &infiniband, Access::all()));
    assert!(refusals[0].contains("without moving"), "{refusals:?}");
}
