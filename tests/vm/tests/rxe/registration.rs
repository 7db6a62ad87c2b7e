//! What rxe registers and what it refuses, as libibverbs says it.

use gdr_verbs_sys::{Errno, OptionalVerb, Verbs};
use gdr_vm_tests::{dmabuf, kernel};

const LEN: u64 = 1 << 20;

#[test]
#[ignore = "runs in the VM"]
fn a_dma_buffer_is_refused_as_not_supported() {
    assert!(Verbs::load().unwrap().has(OptionalVerb::RegDmabufMr));
    let device = kernel::Device::open("rxe0").unwrap();
    let buffer = dmabuf::new(LEN).unwrap();
    // rdma-core's provider for rxe answers so itself: it has no such function.
    assert_eq!(device.register_dmabuf(&buffer, LEN), Err(Errno::EOPNOTSUPP));
}

#[test]
#[ignore = "runs in the VM"]
fn the_mapping_of_a_dma_buffer_is_refused_as_no_memory_of_this_process() {
    let device = kernel::Device::open("rxe0").unwrap();
    let buffer = dmabuf::new(LEN).unwrap();
    // What becomes of GPU memory that no peer-memory module claims.
    assert_eq!(device.register_mapping_of(&buffer, LEN), Err(Errno::EFAULT));
}
