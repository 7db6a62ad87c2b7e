//! Registration with rxe: the results of libibverbs, and of gdr-rdma.

use std::sync::Arc;

use gdr_cuda::{Gpu, MemoryKind, Ordinal, SimDriver};
use gdr_rdma::{Access, Buffer, Error, RegistrationMethod, VerbsError};
use gdr_verbs_sys::{Errno, OptionalVerb, Verbs};
use gdr_vm_tests::{dmabuf, rxe_endpoint};

const LEN: u64 = 1 << 20;

#[test]
#[ignore = "runs in the VM"]
fn a_dma_buffer_is_refused_as_not_supported() {
    assert!(Verbs::load().unwrap().has(OptionalVerb::RegDmabufMr));
    let device = rxe_endpoint::Device::open("rxe0").unwrap();
    let buffer = dmabuf::new(LEN).unwrap();
    // The rxe provider of rdma-core lacks this function.
    assert_eq!(device.register_dmabuf(&buffer, LEN), Err(Errno::EOPNOTSUPP));
}

#[test]
#[ignore = "runs in the VM"]
fn the_mapping_of_a_dma_buffer_is_refused_with_efault() {
    let device = rxe_endpoint::Device::open("rxe0").unwrap();
    let buffer = dmabuf::new(LEN).unwrap();
    // The result for GPU memory without a peer-memory module.
    assert_eq!(device.register_mapping_of(&buffer, LEN), Err(Errno::EFAULT));
}

#[test]
#[ignore = "runs in the VM"]
fn host_memory_is_registered_directly() {
    let device = rxe_endpoint::verbs_device("rxe0", rxe_endpoint::V4).unwrap();
    let buffer = Buffer::host(LEN as usize).unwrap();
    let domain = device.protection_domain();
    let region = domain.register(&buffer, Access::all()).unwrap();
    assert_eq!(region.route(), RegistrationMethod::HostPages);
    assert_eq!(region.rejected_methods(), [""; 0]);
}

#[test]
#[ignore = "runs in the VM"]
fn gpu_memory_is_refused_with_the_reason_of_each_method() {
    let device = rxe_endpoint::verbs_device("rxe0", rxe_endpoint::V4).unwrap();
    let gpu = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
    let memory = Arc::new(gpu.allocate(MemoryKind::Plain, LEN).unwrap());
    let buffer = Buffer::staged(memory).unwrap();
    let refused = device.protection_domain().register(&buffer, Access::all());
    let Err(Error::Verbs(VerbsError::GpuRegistration(refusals))) = refused else {
        panic!("{refused:?}");
    };
    let [dma_buf, peer_memory] = &refusals[..] else {
        panic!("{refusals:?}");
    };
    for words in ["dma-buf:", "EOPNOTSUPP", "cannot import dma-bufs"] {
        assert!(dma_buf.contains(words), "{dma_buf}");
    }
    for words in ["peer-memory module:", "EFAULT"] {
        assert!(peer_memory.contains(words), "{peer_memory}");
    }
}
