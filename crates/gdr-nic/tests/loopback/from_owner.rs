//! Memory that another library allocated.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gdr_cuda::{DeviceBuffer, Gpu, MemoryKind, Ordinal, SimDriver};
use gdr_rdma::{Access, Buffer, BufferKind, NicError, SendRequest, WrId};

use crate::fixture::*;

/// Stands for a tensor of another library.
struct Tensor {
    words: Box<[AtomicU64]>,
    released: Arc<AtomicBool>,
}

impl Drop for Tensor {
    fn drop(&mut self) {
        self.released.store(true, Ordering::Release);
    }
}

impl Tensor {
    fn new(len: usize) -> (Arc<Self>, Arc<AtomicBool>) {
        let released = Arc::new(AtomicBool::new(false));
        let words = (0..len / 8).map(|_| AtomicU64::new(0)).collect();
        let tensor = Self {
            words,
            released: Arc::clone(&released),
        };
        (Arc::new(tensor), released)
    }

    fn buffer(self: Arc<Self>) -> Buffer {
        let address = NonNull::new(self.words.as_ptr().cast_mut().cast()).unwrap();
        let len = self.words.len() * 8;
        // SAFETY: the tensor owns the words, which are accessed only by atomic accesses and through the buffer.
        unsafe { Buffer::host_from_owner(address, len, self) }.unwrap()
    }
}

#[test]
fn host_memory_of_another_library_is_written_and_then_released() {
    let Some((a, b)) = sides() else { return };
    let (tensor, released) = Tensor::new(1 << 16);
    let buffer = Arc::clone(&tensor).buffer();
    assert_eq!((buffer.kind(), buffer.len()), (BufferKind::Host, 1 << 16));
    let target = b.domain.register(&buffer, EVERYTHING).unwrap();
    drop(buffer);
    let source = a.memory(1 << 16);
    let sent = fill(&source, 3);
    let write = SendRequest::write(WrId(1), target.remote().at(0));
    a.pair
        .post_send(write.segment(source.segment(0, 1 << 16).unwrap()))
        .unwrap();
    a.done();
    assert_eq!(bytes(&target), sent);
    let first = tensor.words[0].load(Ordering::Acquire);
    assert_eq!(first.to_ne_bytes(), sent[..8]);
    drop(tensor);
    assert!(!released.load(Ordering::Acquire), "the region holds it");
    drop(target);
    wait_until(|| released.load(Ordering::Acquire));
}

#[test]
fn memory_of_another_library_stays_until_the_last_request_has_completed() {
    let Some((a, _b)) = sides() else { return };
    let (tensor, released) = Tensor::new(4096);
    let region = a.domain.register(&tensor.buffer(), EVERYTHING).unwrap();
    let receive = gdr_rdma::RecvRequest::new(WrId(1));
    let receive = receive.segment(region.segment(0, 4096).unwrap());
    a.pair.post_recv(receive).unwrap();
    drop(region);
    assert!(!released.load(Ordering::Acquire), "the request holds it");
    a.pair.to_error();
    a.status();
    wait_until(|| released.load(Ordering::Acquire));
}

#[test]
fn empty_memory_of_another_library_is_refused_and_released() {
    let (tensor, released) = Tensor::new(8);
    let address = NonNull::new(tensor.words.as_ptr().cast_mut().cast()).unwrap();
    // SAFETY: as in `Tensor::buffer`.
    let refused = unsafe { Buffer::host_from_owner(address, 0, tensor) };
    assert!(matches!(refused, Err(NicError::EmptyBuffer)));
    assert!(released.load(Ordering::Acquire));
}

#[test]
fn gpu_memory_of_another_library_is_written() {
    let Some((a, b)) = sides() else { return };
    let gpu = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
    let tensor = gpu.allocate(MemoryKind::Plain, 1 << 20).unwrap();
    let (ptr, len) = (tensor.ptr().checked_add(4096).unwrap(), 1 << 16);
    // SAFETY: the tensor is dropped last and is accessed only by copies.
    let wrapped = unsafe { DeviceBuffer::borrowed(&gpu, ptr, len) }.unwrap();
    let buffer = Buffer::staged(wrapped).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let target = b.domain.register(&buffer, access).unwrap();
    let source = a.memory(1 << 16);
    let sent = fill(&source, 9);
    let write = SendRequest::write(WrId(1), target.remote().at(0));
    a.pair
        .post_send(write.segment(source.segment(0, 1 << 16).unwrap()))
        .unwrap();
    a.done();
    let mut seen = vec![0; 1 << 16];
    tensor.read(4096, &mut seen).unwrap();
    assert!(seen == sent);
    drop((target, buffer));
    drop((a, b));
    drop(tensor);
}
