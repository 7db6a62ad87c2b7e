//! Forked children, and peers that end unexpectedly. In a test binary of its own, because a fork affects the whole
//! process.

#![allow(clippy::unwrap_used)]

#[path = "library/built.rs"]
mod built;
#[path = "library/child.rs"]
mod child;
#[allow(dead_code, reason = "the other test binary uses the rest")]
#[path = "library/side.rs"]
mod side;

use std::ffi::c_int;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use child::Child;
use gdr_verbs_sys::*;
use side::*;

/// Returns both ends of a pipe.
fn pipe() -> (File, File) {
    let mut fds = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe(fds.as_mut_ptr()) }, 0);
    // SAFETY: two new descriptors, which each file owns.
    fds.map(|fd| unsafe { File::from_raw_fd(fd) }).into()
}

fn errno_of<T>(result: Result<T, VerbError>) -> Option<Errno> {
    result.err().map(|error| error.errno())
}

/// Writes eight bytes from one side to the other.
fn write(a: &Side, b: &Side) {
    let (mut near, mut far) = (vec![7], vec![0]);
    let (source, target) = (a.register(&mut near), b.register(&mut far));
    let wr = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, target, 0);
    a.send(wr, &mut [segment(source, 0, 8)]).unwrap();
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_SUCCESS);
    deregister(source);
    deregister(target);
    assert_eq!(far, [7]);
}

#[test]
fn a_forked_child_neither_uses_nor_destroys_the_objects_of_its_parent() {
    let (a, b) = sides();
    let mut words = vec![0; 8];
    let region = a.register(&mut words);
    let child = Child::fork(|| {
        let einval = Some(Errno::EINVAL);
        let mut list = [segment(region, 0, 8)];
        let wr = request(1, ibv_wr_opcode::IBV_WR_SEND, region, 0);
        assert_eq!(a.send(wr, &mut list).err(), einval);
        assert_eq!(a.receive(1, &mut list).err(), einval);
        assert_eq!(errno_of(a.to_error()), einval);
        let mut room = [std::mem::MaybeUninit::uninit(); 1];
        let verbs = library();
        // SAFETY: handles, which the library checks.
        unsafe {
            assert!(ibv_poll_cq(a.queue, &mut room).is_err());
            assert_eq!(errno_of(verbs.ibv_destroy_qp(a.pair)), einval);
            assert_eq!(errno_of(verbs.ibv_destroy_cq(a.queue)), einval);
            assert_eq!(errno_of(verbs.ibv_dereg_mr(region.as_ptr())), einval);
            assert_eq!(errno_of(verbs.ibv_dealloc_pd(a.domain)), einval);
            assert_eq!(errno_of(verbs.ibv_alloc_pd(a.context)), einval);
            assert_eq!(errno_of(verbs.ibv_close_device(a.context)), einval);
        }
    });
    assert_eq!(child.wait(), 0);
    write(&a, &b);
    deregister(region);
    a.close();
    b.close();
}

#[test]
fn a_forked_child_opens_the_device_for_itself() {
    let (a, b) = sides();
    // SAFETY: no other thread of this process is in the library.
    assert_eq!(unsafe { library().ibv_fork_init() }, Ok(()));
    let child = Child::fork(|| {
        let (c, d) = sides();
        write(&c, &d);
        c.close();
        d.close();
    });
    write(&a, &b);
    assert_eq!(child.wait(), 0);
    write(&a, &b);
    a.close();
    b.close();
}

#[test]
fn a_child_that_is_forked_while_threads_register_can_load_libraries() {
    const FORKS: usize = 300;
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let (domain, ended) = (side.domain.expose_provenance(), AtomicBool::new(false));
    let failed = std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let domain = std::ptr::with_exposed_provenance_mut(domain);
                let mut words = vec![0_u64; 512];
                let (address, len) = (words.as_mut_ptr().cast(), size_of_val(&words[..]));
                while !ended.load(Ordering::Relaxed) {
                    // SAFETY: the words live until the region is deregistered.
                    let region = unsafe { library().reg_mr(domain, address, len, all_access()) };
                    deregister(region.unwrap());
                }
            });
        }
        let load = || {
            // SAFETY: a C string; the library does not exist, so the loader searches all folders.
            let none = unsafe { libc::dlopen(c"libgdr-no-such.so".as_ptr(), libc::RTLD_NOW) };
            assert!(none.is_null());
        };
        let statuses = (0..FORKS).map(|_| Child::fork(load).wait());
        // A child that hangs takes a minute.
        let failed = statuses.into_iter().find(|status| *status != 0);
        ended.store(true, Ordering::Relaxed);
        failed
    });
    assert_eq!(failed, None);
    side.close();
}

#[test]
fn a_fork_within_a_section_leaves_it_to_the_parent() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let mut init = ibv_qp_init_attr_ex {
        send_cq: side.queue,
        recv_cq: side.queue,
        qp_type: ibv_qp_type::IBV_QPT_RC,
        pd: side.domain,
        comp_mask: (ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD
            | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
            .0,
        send_ops_flags: ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_RDMA_WRITE
            .0
            .into(),
        ..Default::default()
    };
    init.cap.max_send_wr = 4;
    // SAFETY: the objects exist; a child has a copy of the structure of its parent's queue pair.
    unsafe {
        let made = library().ibv_create_qp_ex(side.context, &mut init);
        let other = Side {
            pair: made.unwrap().as_ptr(),
            ..side
        };
        let qp = library().ibv_qp_to_qp_ex(other.pair).unwrap().as_ptr();
        other.to_init().unwrap();
        other.to_rtr(other.number()).unwrap();
        other.to_rts().unwrap();
        ibv_wr_start(qp).unwrap();
        (*qp).wr_id = 1;
        (*qp).wr_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        ibv_wr_rdma_write(qp, 0, 0).unwrap();
        let child = Child::fork(|| {
            ibv_wr_start(qp).unwrap();
            let einval = Some(Errno::EINVAL);
            assert_eq!(errno_of(ibv_wr_complete(qp)), einval);
        });
        assert_eq!(child.wait(), 0);
        ibv_wr_complete(qp).unwrap();
        assert_eq!(other.completion().wr_id, 1);
        library().ibv_destroy_qp(other.pair).unwrap();
    }
    side.close();
}

#[test]
fn a_fork_while_threads_are_in_the_library_leaves_no_lock_in_the_child() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let (context, ended) = (side.context.addr(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let context = std::ptr::with_exposed_provenance_mut(context);
                while !ended.load(Ordering::Relaxed) {
                    // SAFETY: the context is open until the threads have ended.
                    unsafe {
                        let domain = library().ibv_alloc_pd(context).unwrap();
                        library().ibv_dealloc_pd(domain.as_ptr()).unwrap();
                    }
                }
            });
        }
        let children: Vec<_> = (0..20)
            .map(|_| {
                Child::fork(|| {
                    let devices = library().devices().unwrap();
                    // SAFETY: the device is in a list that is not freed; the context belongs to this thread and is
                    // closed once; the library checks the parent's handle.
                    unsafe {
                        let own = library().ibv_open_device(devices.as_slice()[0]).unwrap();
                        let channel = library().ibv_create_comp_channel(own.as_ptr()).unwrap();
                        library()
                            .ibv_destroy_comp_channel(channel.as_ptr())
                            .unwrap();
                        assert!(library().ibv_dealloc_pd(side.domain).is_err());
                        library().ibv_close_device(own.as_ptr()).unwrap();
                    }
                })
            })
            .collect();
        let statuses: Vec<_> = children.into_iter().map(Child::wait).collect();
        ended.store(true, Ordering::Relaxed);
        assert_eq!(statuses, [0; 20]);
    });
    side.close();
}

/// Connects a side to a side of a child, which then waits for a byte and runs `end`. Returns the result of `finish`
/// after the child has ended.
fn peer_that(end: fn() -> !, finish: impl FnOnce(Child, File) -> c_int) -> c_int {
    let (mut numbers, mut of_child) = pipe();
    let (mut of_parent, mut to_child) = pipe();
    let child = Child::fork(|| {
        let side = Side::new(ibv_qp_type::IBV_QPT_RC);
        of_child.write_all(&side.number().to_ne_bytes()).unwrap();
        let mut peer = [0; 4];
        of_parent.read_exact(&mut peer).unwrap();
        side.to_init().unwrap();
        side.to_rtr(u32::from_ne_bytes(peer)).unwrap();
        side.to_rts().unwrap();
        of_child.write_all(&[1]).unwrap();
        of_parent.read_exact(&mut [0]).unwrap();
        end();
    });
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    to_child.write_all(&side.number().to_ne_bytes()).unwrap();
    let mut peer = [0; 4];
    numbers.read_exact(&mut peer).unwrap();
    side.to_init().unwrap();
    side.to_rtr(u32::from_ne_bytes(peer)).unwrap();
    side.to_rts().unwrap();
    numbers.read_exact(&mut [0]).unwrap();
    side.receive(3, &mut []).unwrap();
    let status = finish(child, to_child);
    for id in [1, 2] {
        let mut wr = ibv_send_wr {
            wr_id: id,
            opcode: ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
            ..Default::default()
        };
        wr.wr.rdma.rkey = 1;
        side.send(wr, &mut []).unwrap();
    }
    let failed = side.completion();
    let timed_out = ibv_wc_status::IBV_WC_RETRY_EXC_ERR;
    assert_eq!((failed.wr_id, failed.status), (1, timed_out));
    let mut flushed = [side.completion(), side.completion()].map(|wc| (wc.wr_id, wc.status));
    flushed.sort_by_key(|(id, _)| *id);
    let flush = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
    assert_eq!(flushed, [(2, flush), (3, flush)]);
    assert_eq!(side.state(), ibv_qp_state::IBV_QPS_ERR);
    side.close();
    status
}

#[test]
fn requests_to_a_peer_that_was_killed_fail_after_their_retries() {
    let status = peer_that(
        || unreachable!("it is killed before"),
        |child, _kept| {
            child.kill();
            child.wait()
        },
    );
    assert_eq!(libc::WTERMSIG(status), libc::SIGKILL);
}

#[test]
fn a_program_may_exit_with_open_objects_and_its_peer_gets_errors() {
    let status = peer_that(
        // SAFETY: ends the child as a return from `main` does.
        || unsafe { libc::exit(0) },
        |child, mut to_child| {
            to_child.write_all(&[1]).unwrap();
            child.wait()
        },
    );
    assert_eq!(status, 0);
}
