use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use fake_ibverbs::{DeviceSpec, Fake, Fault, GpuPath};
use gdr_verbs_sys::*;

use crate::connection::*;

/// Returns a memfd, which this library accepts like a dma-buf.
fn memory(len: u64, word: u64) -> OwnedFd {
    // SAFETY: the name is a C string; the descriptor is new and has no other owner.
    let fd = unsafe {
        let fd = libc::memfd_create(c"gpu".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0);
        OwnedFd::from_raw_fd(fd)
    };
    let bytes = word.to_ne_bytes().repeat(len as usize / 8);
    // SAFETY: the bytes are readable.
    let written = unsafe { libc::pwrite(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
    assert_eq!(written, bytes.len() as isize);
    fd
}

fn word_at(fd: &OwnedFd, offset: i64) -> u64 {
    let mut word = [0_u8; 8];
    // SAFETY: there is room for 8 bytes.
    let read = unsafe { libc::pread(fd.as_raw_fd(), word.as_mut_ptr().cast(), 8, offset) };
    assert_eq!(read, 8);
    u64::from_ne_bytes(word)
}

const IOVA: u64 = 0x7f00_dead_0000_0000;

fn register_dma_buf(
    side: &Side,
    fd: i32,
    offset: u64,
    len: usize,
    iova: u64,
    access: ibv_access_flags,
) -> Result<ptr::NonNull<ibv_mr>, Errno> {
    let access = access.0 as i32;
    // SAFETY: the domain is alive; the test owns the memory.
    let mr = unsafe {
        side.verbs
            .ibv_reg_dmabuf_mr(side.domain, offset, len, iova, fd, access)
    };
    mr.map_err(|error| error.errno())
}

#[test]
fn the_region_of_a_dma_buf_works_after_its_descriptor_is_closed() {
    let fake = two_devices();
    let (a, b) = sides(&fake);
    let gpu = memory(1 << 16, 5);
    let copy = gpu.try_clone().unwrap();
    let target = register_dma_buf(&b, copy.as_raw_fd(), 4096, 8192, IOVA, all_access()).unwrap();
    drop(copy);
    let mut near = vec![7; 2];
    let source = a.register(&mut near, all_access());
    let mut write = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, target, 0);
    write.wr.rdma.remote_addr = IOVA + 4088;
    a.send(write, &mut [segment(source, 0, 16)]).unwrap();
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_SUCCESS);
    assert_eq!((word_at(&gpu, 8184), word_at(&gpu, 8192)), (7, 7));
    assert_eq!((word_at(&gpu, 8176), word_at(&gpu, 8200)), (5, 5));
    a.deregister(source);
    b.deregister(target);
    let ended = fake.calls(&["ibv_dereg_mr"]);
    assert!(
        ended[1].detail.ends_with("descriptor open: Some(false)"),
        "{ended:?}"
    );
    a.close();
    b.close();
    fake.assert_clean();
}

#[test]
fn a_dma_buf_is_rejected_for_the_same_reasons_as_in_the_kernel() {
    let fake = two_devices();
    let (a, b) = sides(&fake);
    let gpu = memory(1 << 16, 0);
    let fd = gpu.as_raw_fd();
    let zero_based = all_access() | ibv_access_flags::IBV_ACCESS_ON_DEMAND;
    let none = ibv_access_flags::NONE;
    for (fd, offset, len, iova, access, errno) in [
        (-1, 0, 0, 0, none, Errno::EBADF),
        (fd, 8, 64, IOVA, all_access(), Errno::EINVAL),
        (fd, 0, 1 << 17, IOVA, all_access(), Errno::EINVAL),
        (fd, 0, 64, IOVA, zero_based, Errno::EINVAL),
        (
            fd,
            0,
            64,
            IOVA,
            ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
            Errno::EINVAL,
        ),
    ] {
        let answer = register_dma_buf(&a, fd, offset, len, iova, access);
        assert_eq!(
            answer,
            Err(errno),
            "{fd} {offset} {len} {iova:#x} {access:?}"
        );
    }
    for errno in [
        Errno::EOPNOTSUPP,
        Errno::EFAULT,
        Errno::ENOMEM,
        Errno::ENOTSUPP,
    ] {
        let path = GpuPath::Refuses(errno.0);
        fake.fault("mlx5_0", Fault::DmaBuf(path));
        assert_eq!(
            register_dma_buf(&a, fd, 0, 64, IOVA, all_access()),
            Err(errno)
        );
        let probe = match errno {
            Errno::EOPNOTSUPP => errno,
            _ => Errno::EBADF,
        };
        assert_eq!(register_dma_buf(&a, -1, 0, 0, 0, none), Err(probe));
    }
    a.close();
    b.close();
    fake.assert_clean();
}

#[test]
fn a_peer_memory_module_registers_gpu_addresses() {
    let fake = Fake::load();
    fake.add(DeviceSpec {
        peer_memory: GpuPath::Works,
        ..DeviceSpec::roce("mlx5_0", FIRST)
    });
    fake.add(DeviceSpec::roce("mlx5_1", SECOND));
    let (a, b) = sides(&fake);
    let gpu = memory(1 << 16, 3);
    fake.add_gpu_memory(IOVA, 1 << 16, gpu.as_fd());
    let address: *mut c_void = ptr::without_provenance_mut(IOVA as usize + 64);
    // SAFETY: the domain is alive; the CPU does not access the address.
    let region = unsafe { a.verbs.reg_mr(a.domain, address, 64, all_access()) }.unwrap();
    // SAFETY: as above.
    let refused = unsafe { b.verbs.reg_mr(b.domain, address, 64, all_access()) }.unwrap_err();
    assert_eq!(refused.errno(), Errno::EFAULT);
    let mut far = vec![0; 1];
    let target = b.register(&mut far, all_access());
    let write = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, target, 0);
    a.send(write, &mut [segment(region, 0, 8)]).unwrap();
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_SUCCESS);
    assert_eq!(far, [3]);
    a.deregister(region);
    b.deregister(target);
    a.close();
    b.close();
    fake.assert_clean();
}

#[test]
fn unmapped_memory_is_rejected() {
    let fake = Fake::load();
    fake.add(DeviceSpec::roce("mlx5_0", FIRST));
    let side = Side::new(fake.verbs(), "mlx5_0");
    let nowhere: *mut c_void = ptr::without_provenance_mut(1 << 46);
    // SAFETY: the domain is alive; the address is not mapped.
    let error = unsafe { side.verbs.reg_mr(side.domain, nowhere, 64, all_access()) }.unwrap_err();
    assert_eq!(error.errno(), Errno::EFAULT);
    side.close();
    fake.assert_clean();
}

#[test]
fn access_flags_request_relaxed_ordering_and_on_demand_paging() {
    let fake = Fake::load();
    fake.add(DeviceSpec::roce("mlx5_0", FIRST));
    fake.add(DeviceSpec::rxe("rxe0", SECOND));
    let (card, software) = (
        Side::new(fake.verbs(), "mlx5_0"),
        Side::new(fake.verbs(), "rxe0"),
    );
    let mut bytes = vec![0; 16];
    let relaxed = card.register(&mut bytes, ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING);
    let paged = card.register(&mut bytes, ibv_access_flags::IBV_ACCESS_ON_DEMAND);
    let verbs: Vec<_> = fake
        .report()
        .calls
        .into_iter()
        .map(|call| call.verb)
        .collect();
    assert!(verbs.contains(&"ibv_reg_mr_iova2".to_owned()));
    let advice = ib_uverbs_advise_mr_advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH;
    let mut range = [segment(paged, 0, 64)];
    // SAFETY: domain and region are alive.
    unsafe { ibv_advise_mr(card.domain, advice, 0, &mut range) }.unwrap();
    let address = bytes.as_mut_ptr().cast();
    let on_demand = ibv_access_flags::IBV_ACCESS_ON_DEMAND;
    // SAFETY: the domain is alive, and the registration fails.
    let error = unsafe {
        software
            .verbs
            .reg_mr(software.domain, address, 64, on_demand)
    };
    assert_eq!(error.unwrap_err().errno(), Errno::EOPNOTSUPP);
    card.deregister(relaxed);
    card.deregister(paged);
    card.close();
    software.close();
    fake.assert_clean();
}

#[test]
fn a_path_can_report_success_and_lose_bytes() {
    for (path, status) in [
        (GpuPath::LosesBytes, ibv_wc_status::IBV_WC_SUCCESS),
        (GpuPath::Fails, ibv_wc_status::IBV_WC_REM_ACCESS_ERR),
    ] {
        let fake = two_devices();
        fake.fault("mlx5_1", Fault::DmaBuf(path));
        let (a, b) = sides(&fake);
        let gpu = memory(4096, 5);
        let target = register_dma_buf(&b, gpu.as_raw_fd(), 0, 4096, IOVA, all_access()).unwrap();
        let mut near = vec![7; 1];
        let source = a.register(&mut near, all_access());
        let write = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, target, 0);
        a.send(write, &mut [segment(source, 0, 8)]).unwrap();
        assert_eq!(a.completion().status, status);
        assert_eq!(word_at(&gpu, 0), 5);
        a.deregister(source);
        b.deregister(target);
        a.close();
        b.close();
    }
}

#[test]
fn small_messages_to_gpu_memory_are_a_violation_unless_scatter_to_cqe_is_off() {
    for scatter_to_cqe in [true, false] {
        let fake = Fake::load();
        fake.add(DeviceSpec::roce("mlx5_0", FIRST));
        fake.add(DeviceSpec {
            scatter_to_cqe,
            ..DeviceSpec::roce("mlx5_1", SECOND)
        });
        let (a, b) = sides(&fake);
        let gpu = memory(4096, 5);
        let target = register_dma_buf(&b, gpu.as_raw_fd(), 0, 4096, IOVA, all_access()).unwrap();
        b.receive(1, &mut [segment(target, 0, 64)]).unwrap();
        let mut near = vec![7; 1];
        let source = a.register(&mut near, all_access());
        let send = request(1, ibv_wr_opcode::IBV_WR_SEND, target, 0);
        a.send(send, &mut [segment(source, 0, 8)]).unwrap();
        assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_SUCCESS);
        assert_eq!(fake.report().violations.len(), usize::from(scatter_to_cqe));
        a.deregister(source);
        b.deregister(target);
        a.close();
        b.close();
    }
}
