//! GPU memory, simulated: direct and staged.

use std::sync::Arc;
use std::time::Duration;

use gdr_copy::{BackendKind, Context};
use gdr_cuda::{DeviceBuffer, Gpu, MemoryKind, Ordinal, SimDriver};
use gdr_rdma::{
    AtomicOp, Buffer, BufferKind, Immediate, MemoryRegion, RecvRequest, SendRequest, WrId,
};

use crate::fixture::*;

const LEN: u64 = 3 << 20;

/// The same simulated memory as CUDA sees it and as RDMA does.
struct GpuMemory {
    device: Arc<DeviceBuffer>,
    region: MemoryRegion,
}

impl GpuMemory {
    fn new(side: &Side, kind: BufferKind) -> Self {
        let driver = SimDriver::new(1);
        let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
        let device = Arc::new(gpu.allocate(MemoryKind::Plain, LEN).unwrap());
        let buffer = match kind {
            BufferKind::Direct => {
                let builder = Context::builder().simulated(driver);
                let context = builder.backend(BackendKind::Sim).open().unwrap();
                let pinned = context.pin(device.ptr(), LEN).unwrap();
                Buffer::direct(pinned.map().unwrap()).unwrap()
            }
            _ => Buffer::staged(Arc::clone(&device)).unwrap(),
        };
        assert_eq!(buffer.kind(), kind);
        assert_eq!((buffer.len(), buffer.address()), (LEN, device.ptr().get()));
        let region = side.domain.register(&buffer, EVERYTHING).unwrap();
        Self { device, region }
    }

    /// What a cudaMemcpy sees.
    fn as_cuda_sees_it(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.device.read(offset, &mut bytes).unwrap();
        bytes
    }
}

const KINDS: [BufferKind; 2] = [BufferKind::Direct, BufferKind::Staged];

#[test]
fn writes_are_in_gpu_memory_when_they_complete() {
    for kind in KINDS {
        let Some((a, b)) = sides() else { return };
        let gpu = GpuMemory::new(&b, kind);
        let source = a.memory(LEN as usize);
        let sent = fill(&source, 1);
        for (offset, len) in [(0, 1), (3, 2), (64, 64), (1001, 70_000), (4096, 2 << 20)] {
            let write = SendRequest::write(WrId(0), gpu.region.remote().at(offset))
                .segment(source.segment(0, len).unwrap());
            a.pair.post_send(write).unwrap();
            a.done();
            let seen = gpu.as_cuda_sees_it(offset, len as usize);
            assert!(seen == sent[..len as usize], "{kind}: {len} bytes");
        }
    }
}

#[test]
fn a_receiver_that_is_told_finds_the_message_in_gpu_memory() {
    for kind in KINDS {
        let Some((a, b)) = sides() else { return };
        let gpu = GpuMemory::new(&b, kind);
        let source = a.memory(100_000);
        let sent = fill(&source, 2);
        let place = gpu.region.segment(500, 100_000).unwrap();
        b.pair
            .post_recv(RecvRequest::new(WrId(0)).segment(place))
            .unwrap();
        b.pair.post_recv(RecvRequest::new(WrId(1))).unwrap();
        let whole = || source.segment(0, 100_000).unwrap();
        a.pair
            .post_send(SendRequest::send(WrId(0)).segment(whole()))
            .unwrap();
        b.done();
        assert!(gpu.as_cuda_sees_it(500, 100_000) == sent, "{kind}: SEND");
        let write = SendRequest::write(WrId(1), gpu.region.remote().at(1 << 20))
            .segment(whole())
            .immediate(Immediate(1));
        a.pair.post_send(write).unwrap();
        b.done();
        assert!(
            gpu.as_cuda_sees_it(1 << 20, 100_000) == sent,
            "{kind}: WRITE"
        );
    }
}

#[test]
fn reads_see_what_the_gpu_wrote_last() {
    for kind in KINDS {
        let Some((a, b)) = sides() else { return };
        let gpu = GpuMemory::new(&b, kind);
        let target = a.memory(2 << 20);
        let stream = gpu.device.gpu().stream().unwrap();
        for value in [1, 2, 3] {
            stream
                .fill(&gpu.device, value, Duration::from_secs(60))
                .unwrap();
            let read = SendRequest::read(WrId(0), gpu.region.remote().at(77))
                .segment(target.segment(0, 2 << 20).unwrap());
            a.pair.post_send(read).unwrap();
            a.done();
            assert!(bytes(&target).iter().all(|byte| *byte == value), "{kind}");
        }
    }
}

#[test]
fn gpu_memory_is_a_source_and_a_destination_of_this_sides_requests() {
    for kind in KINDS {
        let Some((a, b)) = sides() else { return };
        let gpu = GpuMemory::new(&a, kind);
        let far = b.memory(1 << 20);
        let kept = pattern(1 << 20, 3);
        gpu.device.write(12_345, &kept).unwrap();
        let write = SendRequest::write(WrId(0), far.remote().at(0))
            .segment(gpu.region.segment(12_345, 1 << 20).unwrap());
        a.pair.post_send(write).unwrap();
        a.done();
        assert!(bytes(&far) == kept, "{kind}: WRITE from");

        let sent = fill(&far, 4);
        let read = SendRequest::read(WrId(1), far.remote().at(0))
            .segment(gpu.region.segment(1, 1 << 20).unwrap());
        a.pair.post_send(read).unwrap();
        a.done();
        assert!(gpu.as_cuda_sees_it(1, 1 << 20) == sent, "{kind}: READ into");
    }
}

#[test]
fn atomics_work_on_gpu_memory() {
    for kind in KINDS {
        let Some((a, b)) = sides() else { return };
        let gpu = GpuMemory::new(&b, kind);
        let answer = a.memory(8);
        gpu.device.write(64, &5_u64.to_ne_bytes()).unwrap();
        for expected in [5, 8, 11] {
            let request = SendRequest::atomic(
                WrId(0),
                gpu.region.remote().at(64),
                AtomicOp::FetchAdd { add: 3 },
            );
            let request = request.segment(answer.segment(0, 8).unwrap());
            a.pair.post_send(request).unwrap();
            a.done();
            assert_eq!(answer.buffer().load_u64(0).unwrap(), expected, "{kind}");
        }
        assert_eq!(gpu.as_cuda_sees_it(64, 8), 14_u64.to_ne_bytes());
    }
}

#[test]
fn the_programs_own_copies_meet_those_of_the_network() {
    for kind in KINDS {
        let Some((a, b)) = sides() else { return };
        let gpu = GpuMemory::new(&b, kind);
        let buffer = gpu.region.buffer();
        buffer.copy_in(10, b"from the program").unwrap();
        assert_eq!(gpu.as_cuda_sees_it(10, 16), b"from the program");
        let write = SendRequest::write(WrId(0), gpu.region.remote().at(15)).inline(b"net");
        a.pair.post_send(write).unwrap();
        a.done();
        let mut seen = [0; 16];
        buffer.copy_out(10, &mut seen).unwrap();
        assert_eq!(&seen, b"from net program");
        assert_eq!(buffer.load_u8(10).unwrap(), b'f');
        assert!(buffer.load_u32(2).is_err());
        assert!(buffer.copy_in(LEN - 1, &[0; 2]).is_err());
    }
}
