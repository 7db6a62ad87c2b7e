//! A forked child that uses the objects of its parent.

use std::ptr;

use forked::{check, in_child, refused};
use gdr_copy::Context;
use gdr_cuda::{Gpu, MemoryKind, Ordinal, SimDriver};
use gdr_rdma::{
    Buffer, CopyEngineThreshold, CopyThread, Counters, Device, Qkey, RecvRequest, SendRequest,
    State, UdQueuePairOptions, UdSendRequest, WrId,
};

use crate::fixture::*;

#[test]
fn a_child_is_refused_everything_and_its_drops_change_nothing() {
    let Some((a, b)) = sides() else { return };
    let (source, target) = (a.memory(64), b.memory(64));
    let sent = fill(&source, 1);
    let write = || {
        SendRequest::write(WrId(1), target.remote().at(0)).segment(source.segment(0, 64).unwrap())
    };
    // This request of the parent is outstanding at the fork; the child must not complete it.
    a.pair.post_send(write()).unwrap();
    in_child(|| {
        refused(a.pair.post_send(write()), "post_send")?;
        refused(a.pair.post_recv(RecvRequest::new(WrId(2))), "post_recv")?;
        refused(a.pair.connect(&b.pair.endpoint(), &options()), "connect")?;
        refused(a.queue.poll(), "poll")?;
        refused(a.queue.wait(soon()), "wait")?;
        refused(a.device.wait_event(soon()), "wait_event")?;
        refused(source.buffer().write_at(0, &[1]), "write_at")?;
        refused(source.buffer().read_at(0, &mut [1]), "read_at")?;
        refused(source.buffer().load_u8(0), "load_u8")?;
        refused(a.domain.register(source.buffer(), EVERYTHING), "register")?;
        let options = gdr_rdma::QueuePairOptions::new(&a.queue);
        refused(a.domain.queue_pair(&options), "queue_pair")?;
        a.pair.to_error();
        check(a.pair.state() == State::Error, "state")?;
        check(a.device.poll_event().is_none(), "poll_event")?;
        check(!a.device.progress(), "progress")?;
        check(a.device.counters() == Counters::default(), "counters")?;
        for side in [&a, &b] {
            // SAFETY: the child leaves by `_exit` and uses neither of them again.
            unsafe { ptr::drop_in_place(ptr::from_ref(side).cast_mut()) };
        }
        for region in [&source, &target] {
            // SAFETY: as above.
            unsafe { ptr::drop_in_place(ptr::from_ref(region).cast_mut()) };
        }
        let own = Device::soft_with(gdr_rdma::SoftOptions::default().port(0));
        own.map(drop).map_err(|_| "a device of its own")
    });
    a.done();
    assert!(bytes(&target) == sent);
    assert_eq!([a.pair.state(), b.pair.state()], [State::ReadyToSend; 2]);
    a.pair.post_send(write()).unwrap();
    a.done();
}

#[test]
fn a_child_is_refused_datagrams_and_shared_receives_and_its_drops_change_nothing() {
    let Some(a) = Side::soft(FIRST) else { return };
    let shared = a.domain.shared_receive_queue(4).unwrap();
    let options = UdQueuePairOptions::new(&a.queue, Qkey(1)).shared_receive_queue(&shared);
    let pair = a.domain.ud_queue_pair(&options).unwrap();
    pair.to_rtr().unwrap();
    pair.to_rts().unwrap();
    let target = a.memory(64);
    let receive = |id| {
        let segment = target.segment(0, 64).unwrap();
        RecvRequest::new(WrId(id)).segment(segment)
    };
    let send = || UdSendRequest::new(WrId(9), pair.endpoint()).inline(b"hello");
    shared.post_recv(receive(1)).unwrap();
    shared.arm_limit(1).unwrap();
    in_child(|| {
        refused(shared.post_recv(receive(2)), "post_recv of a shared queue")?;
        refused(shared.arm_limit(3), "arm_limit")?;
        check(shared.limit() == 0, "limit")?;
        refused(pair.post_send(send()), "post_send")?;
        refused(pair.post_recv(RecvRequest::new(WrId(2))), "post_recv")?;
        refused(pair.to_rts(), "to_rts")?;
        refused(a.domain.shared_receive_queue(4), "shared_receive_queue")?;
        refused(a.domain.ud_queue_pair(&options), "ud_queue_pair")?;
        pair.to_error();
        check(pair.state() == State::Error, "state")?;
        // SAFETY: the child leaves by `_exit` and uses none of them again.
        unsafe {
            ptr::drop_in_place(ptr::from_ref(&pair).cast_mut());
            ptr::drop_in_place(ptr::from_ref(&shared).cast_mut());
        }
        Ok(())
    });
    assert_eq!(shared.limit(), 1);
    pair.post_send(send()).unwrap();
    let mut ended = [a.done().id, a.done().id];
    ended.sort_unstable();
    assert_eq!(ended, [WrId(1), WrId(9)]);
}

#[test]
fn a_child_has_no_thread_that_copies_gpu_memory_and_drops_it_at_once() {
    let Some((a, b)) = sides() else { return };
    let gpu = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
    let memory = std::sync::Arc::new(gpu.allocate(MemoryKind::Plain, 1 << 20).unwrap());
    let mapping = Context::open_for(&gpu).unwrap().pin_buffer(&memory);
    let mapping = mapping.unwrap().map().unwrap();
    let (thread, from) = (CopyThread::new(&gpu), CopyEngineThreshold::From(1));
    let buffer = Buffer::direct_with_copy_thread(mapping, memory, &thread, from).unwrap();
    let region = b.domain.register(&buffer, EVERYTHING).unwrap();
    let here = a.memory(1 << 20);
    let read = || {
        let whole = here.segment(0, 1 << 20).unwrap();
        SendRequest::read(WrId(0), region.remote().at(0)).segment(whole)
    };
    a.pair.post_send(read()).unwrap();
    a.done();
    in_child(|| {
        let threads = std::fs::read_dir("/proc/self/task").map_err(|_| "no /proc")?;
        check(threads.count() == 1, "a thread")?;
        refused(buffer.read_at(0, &mut [1]), "read_at")?;
        // SAFETY: the child leaves by `_exit` and uses none of these again.
        unsafe {
            ptr::drop_in_place(ptr::from_ref(&region).cast_mut());
            ptr::drop_in_place(ptr::from_ref(&buffer).cast_mut());
            ptr::drop_in_place(ptr::from_ref(&thread).cast_mut());
        }
        Ok(())
    });
    a.pair.post_send(read()).unwrap();
    a.done();
}

#[test]
fn memory_of_a_buffer_is_not_mapped_in_a_child() {
    let Some(a) = Side::soft(FIRST) else { return };
    let region = a.memory(4096);
    let is_mapped = || {
        let page = ptr::with_exposed_provenance_mut(region.addr() as usize);
        let mut resident = 0_u8;
        // SAFETY: `mincore` reads the page tables and writes one byte for the one page.
        unsafe { libc::mincore(page, 4096, &raw mut resident) == 0 }
    };
    assert!(is_mapped());
    in_child(|| check(!is_mapped(), "the pages are mapped"));
}

#[test]
fn a_child_that_drops_a_buffer_leaves_other_memory_at_its_address_alone() {
    let buffer = gdr_rdma::Buffer::host(4096).unwrap();
    let page = ptr::with_exposed_provenance_mut::<libc::c_void>(buffer.address() as usize);
    let is_mapped = || {
        let mut resident = 0_u8;
        // SAFETY: `mincore` reads the page tables and writes one byte for the one page.
        unsafe { libc::mincore(page, 4096, &raw mut resident) == 0 }
    };
    in_child(|| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: MAP_FIXED_NOREPLACE maps only where nothing is mapped.
        let own = unsafe { libc::mmap(page, 4096, libc::PROT_READ, flags, -1, 0) };
        check(own == page, "no page of its own")?;
        // SAFETY: the child leaves by `_exit` and does not use it again.
        unsafe { ptr::drop_in_place(ptr::from_ref(&buffer).cast_mut()) };
        check(is_mapped(), "the child's own page is gone")
    });
    buffer.write_at(0, b"the parent's").unwrap();
}
