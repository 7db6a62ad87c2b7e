//! GPU memory: which registration method is used, why others are rejected, and whether the bytes are right.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fake_ibverbs::{DeviceSpec, Fake, GpuPath, Kind};
use gdr_cuda::{DeviceBuffer, Gpu, MemoryKind, Ordinal, SimDriver};
use gdr_rdma::{
    Access, Buffer, Error, MemoryRegion, RecvRequest, RegistrationMethod, SendRequest, VerbsError,
    WrId,
};

use crate::fixture::*;
use crate::gpu_memory::GpuMemory;

const LEN: u64 = 1 << 20;

/// Writes to a region, and reads its memory as CUDA does.
fn check_write(a: &Side, memory: &GpuMemory, region: &MemoryRegion) {
    let source = a.memory(70_000);
    let sent = fill(&source, 5);
    for (offset, len) in [(0, 4), (3, 64), (4097, 70_000)] {
        let write = SendRequest::write(WrId(0), region.remote().at(offset))
            .segment(source.segment(0, len).unwrap());
        a.pair.post_send(write).unwrap();
        a.done();
        let seen = memory.as_cuda_sees_it(offset, len as usize);
        assert!(seen == sent[..len as usize], "{len} bytes at {offset}");
    }
}

const REGISTERING: [&str; 3] = ["ibv_reg_dmabuf_mr", "ibv_reg_mr", "ibv_reg_mr_iova2"];

fn registering(fake: &Fake, side: &Side) -> Vec<String> {
    let calls = calls(fake, &side.name(), &REGISTERING);
    calls.into_iter().map(|call| call.verb).collect()
}

#[test]
fn dma_buf_is_tried_first_and_nothing_else_if_it_works() {
    let fake = clean_fake();
    let (a, b) = connected(
        &fake,
        &roce(),
        &DeviceSpec {
            peer_memory: GpuPath::Works,
            ..roce()
        },
    );
    let memory = GpuMemory::new(&fake, &SimDriver::new(1), LEN);
    let region = memory.register(&b).unwrap();
    assert_eq!(region.route(), RegistrationMethod::DmaBuf);
    assert_eq!(region.rejected_methods(), [""; 0]);
    assert_eq!(registering(&fake, &b), ["ibv_reg_dmabuf_mr"]);
    check_write(&a, &memory, &region);
}

#[test]
fn a_peer_memory_module_is_tried_second_and_the_reason_is_kept() {
    let fake = clean_fake();
    for (errno, words) in [
        (libc::EOPNOTSUPP, "kernel 5.12"),
        (libc::EPROTONOSUPPORT, "kernel 5.12"),
        (libc::EFAULT, "PCI path"),
        (libc::EINVAL, "alignment|range"),
        (libc::ENOMEM, "BAR1"),
        (524, "ACS|PCI path"),
        (libc::EIO, "PCI path"),
        (9999, "errno 9999"),
    ] {
        let (a, b) = connected(
            &fake,
            &roce(),
            &DeviceSpec {
                dma_buf: GpuPath::Refuses(errno),
                peer_memory: GpuPath::Works,
                ..roce()
            },
        );
        let memory = GpuMemory::new(&fake, &SimDriver::new(1), LEN);
        let region = memory.register(&b).unwrap();
        assert_eq!(region.route(), RegistrationMethod::PeerMemory);
        assert_eq!(registering(&fake, &b), ["ibv_reg_dmabuf_mr", "ibv_reg_mr"]);
        let refusals = region.rejected_methods();
        assert_eq!(refusals.len(), 1, "{refusals:?}");
        let said = words.split('|').any(|word| refusals[0].contains(word));
        assert!(said, "{errno}: {}", refusals[0]);
        check_write(&a, &memory, &region);
    }
}

#[test]
fn without_a_registration_method_the_reason_of_each_is_reported() {
    let fake = clean_fake();
    for (dma_buf, peer, words) in [
        (
            libc::EOPNOTSUPP,
            libc::EFAULT,
            ["EOPNOTSUPP", "nvidia_peermem"],
        ),
        (libc::EFAULT, libc::EINVAL, ["EFAULT", "managed"]),
        (libc::ENOMEM, libc::ENOMEM, ["ENOMEM", "BAR1"]),
    ] {
        let side = side(
            &fake,
            &DeviceSpec {
                dma_buf: GpuPath::Refuses(dma_buf),
                peer_memory: GpuPath::Refuses(peer),
                ..roce()
            },
        );
        let memory = GpuMemory::new(&fake, &SimDriver::new(1), LEN);
        let error = memory.register(&side).unwrap_err();
        let Error::Verbs(VerbsError::GpuRegistration(refusals)) = &error else {
            panic!("{error}");
        };
        assert_eq!(refusals.len(), 2, "{refusals:?}");
        for (refusal, word) in refusals.iter().zip(words) {
            assert!(refusal.contains(word), "{refusal}");
        }
        assert_eq!(fake.live(&side.name(), Kind::Region), 0);
    }
}

#[test]
fn part_of_an_allocation_that_shares_its_pages_is_registered_where_it_is() {
    let fake = clean_fake();
    let (a, b) = sides(&fake);
    // Small allocations share a block, so the second one does not start at a page.
    let driver = SimDriver::new(1);
    let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
    let neighbour = gpu.allocate(MemoryKind::Plain, 1000).unwrap();
    let device = Arc::new(gpu.allocate(MemoryKind::Plain, 5000).unwrap());
    let buffer = Buffer::staged(Arc::clone(&device)).unwrap();
    let region = b
        .domain
        .register_range(&buffer, 100, 4000, Access::all())
        .unwrap();
    assert_eq!(region.route(), RegistrationMethod::DmaBuf);
    let source = a.memory(4000);
    let sent = fill(&source, 8);
    let write = SendRequest::write(WrId(0), region.remote().at(0))
        .segment(source.segment(0, 4000).unwrap());
    a.pair.post_send(write).unwrap();
    a.done();
    let mut seen = vec![0; 5000];
    device.read(0, &mut seen).unwrap();
    assert!(seen[100..4100] == sent[..]);
    assert!(
        seen[..100]
            .iter()
            .chain(&seen[4100..])
            .all(|byte| *byte == 0)
    );
    let mut beside = vec![0; 1000];
    neighbour.read(0, &mut beside).unwrap();
    assert!(beside.iter().all(|byte| *byte == 0));
}

#[test]
fn small_messages_are_not_copied_to_gpu_pointers_by_the_cpu() {
    let fake = clean_fake();
    let (a, b) = sides(&fake);
    let memory = GpuMemory::new(&fake, &SimDriver::new(1), LEN);
    let region = memory.register(&b).unwrap();
    b.pair
        .post_recv(RecvRequest::new(WrId(1)).segment(region.segment(0, 64).unwrap()))
        .unwrap();
    let source = a.memory(8);
    let sent = fill(&source, 6);
    let send = SendRequest::send(WrId(2)).segment(source.segment(0, 8).unwrap());
    a.pair.post_send(send).unwrap();
    b.done();
    assert_eq!(memory.as_cuda_sees_it(0, 8), sent);
}

#[test]
fn gpu_memory_outlives_its_registration_and_its_dma_buf_is_open_as_long() {
    let fake = clean_fake();
    let (a, b) = sides(&fake);
    let driver = SimDriver::new(1);
    let memory = GpuMemory::new(&fake, &driver, LEN);
    let region = memory.register(&b).unwrap();
    let address = memory.device.ptr();
    drop(memory);
    assert!(driver.share(address).is_ok(), "the region keeps it");
    let source = a.memory(64);
    let write =
        SendRequest::write(WrId(0), region.remote().at(0)).segment(source.segment(0, 64).unwrap());
    a.pair.post_send(write).unwrap();
    a.done();
    drop((source, region));
    assert!(driver.share(address).is_err(), "nothing keeps it any more");
    let ended = calls(&fake, &b.name(), &["ibv_dereg_mr"]);
    assert_eq!(ended.len(), 1);
    let detail = &ended[0].detail;
    assert!(detail.ends_with("descriptor open: Some(true)"), "{detail}");
}

#[test]
fn managed_memory_is_refused_by_name() {
    let fake = clean_fake();
    let side = side(&fake, &roce());
    let driver = SimDriver::new(1);
    let gpu = Gpu::open(driver, Ordinal(0)).unwrap();
    let device = Arc::new(gpu.allocate(MemoryKind::Managed, LEN).unwrap());
    let text = match Buffer::staged(device) {
        Ok(buffer) => {
            let refused = side.domain.register(&buffer, Access::all());
            refused.unwrap_err().to_string()
        }
        Err(refused) => refused.to_string(),
    };
    assert!(text.contains("managed"), "{text}");
}

#[test]
fn memory_of_another_library_is_registered_like_any_other() {
    let fake = clean_fake();
    let (a, b) = connected(&fake, &roce(), &roce());
    // The allocation stands in for a tensor of another library.
    let tensor = GpuMemory::new(&fake, &SimDriver::new(1), LEN);
    let gpu = tensor.device.gpu();
    // SAFETY: the tensor is dropped last, and accessed only by copies.
    let wrapped = unsafe { DeviceBuffer::borrowed(gpu, tensor.device.ptr(), LEN) }.unwrap();
    let buffer = Buffer::staged(wrapped).unwrap();
    let region = b.domain.register(&buffer, Access::all()).unwrap();
    assert_eq!(region.route(), RegistrationMethod::DmaBuf);
    check_write(&a, &tensor, &region);
    drop((region, buffer));

    let words: Arc<[AtomicU64]> = (0..1 << 10).map(|_| AtomicU64::new(0)).collect();
    let address = NonNull::new(words.as_ptr().cast_mut().cast()).unwrap();
    // SAFETY: the words are kept by a reference, and accessed only atomically and by the device.
    let host = unsafe { Buffer::host_from_owner(address, 1 << 13, Arc::clone(&words)) }.unwrap();
    let region = b.domain.register(&host, Access::all()).unwrap();
    assert_eq!(region.route(), RegistrationMethod::HostPages);
    let source = a.memory(1 << 13);
    let sent = fill(&source, 5);
    let write = SendRequest::write(WrId(0), region.remote().at(0));
    a.pair
        .post_send(write.segment(source.segment(0, 1 << 13).unwrap()))
        .unwrap();
    a.done();
    let last = words[(1 << 10) - 1].load(Ordering::Acquire);
    assert_eq!(last.to_ne_bytes(), sent[sent.len() - 8..]);
    drop((source, region, host));
    assert_eq!(Arc::strong_count(&words), 1);
}
