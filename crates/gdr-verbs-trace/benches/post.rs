//! Cost that tracing adds to a posted request: posts to a device that does nothing, with and without tracing.
//!
//! `cargo bench -p gdr-verbs-trace` prints nanoseconds per call. It asserts nothing; the tests do.
#![allow(clippy::unwrap_used, reason = "a measurement that fails is over")]
#![allow(missing_docs, reason = "a program")]

#[path = "../tests/library/fake_library.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod fake_library;

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::ptr;
use std::time::Instant;

use fake_library::{FakeLibrary, domain};
use gdr_verbs_sys::{ibv_mr, ibv_pd, ibv_qp, ibv_send_wr, ibv_sge, ibv_wr_opcode};
// Its `dlsym` replaces the C library's.
use gdr_verbs_trace as _;

const ROUNDS: u32 = 2_000_000;
const REPETITIONS: u32 = 7;

type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
type RegMr = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;

/// Returns the least time of a call, in nanoseconds.
fn time(mut call: impl FnMut()) -> f64 {
    let mut least = f64::MAX;
    for _ in 0..REPETITIONS {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            call();
        }
        least = least.min(start.elapsed().as_nanos() as f64 / f64::from(ROUNDS));
    }
    least
}

/// Stands in for a device's own function, and posts nothing.
unsafe extern "C" fn nothing(
    _: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    _: *mut *mut ibv_send_wr,
) -> c_int {
    black_box(wr);
    0
}

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let library = FakeLibrary::load(folder.path());
    let context = library.open("bench0");
    let pd = domain(context);
    // SAFETY: the function has this type in C.
    let register: RegMr = unsafe { library.function("ibv_reg_mr") };
    // As many regions and queue pairs as a large program has.
    let regions: Vec<_> = (0..10_000)
        // SAFETY: the fake library only keeps the address.
        .map(|_| unsafe { register(pd, ptr::null_mut(), 4096, 0) })
        .collect();
    let pairs: Vec<_> = (0..1_000).map(|_| library.queue_pair(context)).collect();
    // SAFETY: an open context.
    let traced = unsafe { (*context).ops.post_send }.unwrap();
    let mut list = [ibv_sge {
        addr: 0,
        length: 4096,
        lkey: 0,
    }];
    let mut wr = ibv_send_wr {
        opcode: ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        sg_list: list.as_mut_ptr(),
        num_sge: 1,
        ..ibv_send_wr::default()
    };
    let mut round = 0;
    for (name, regions, pairs) in [
        ("one queue pair, one region", &regions[..1], &pairs[..1]),
        ("1000 queue pairs, 10000 regions", &regions[..], &pairs[..]),
    ] {
        let mut run = |post: PostSend| {
            time(|| {
                round += 1;
                let mr = regions[round % regions.len()];
                // SAFETY: a valid region.
                list[0].lkey = unsafe { (*mr).lkey };
                wr.sg_list = list.as_mut_ptr();
                let mut bad = ptr::null_mut();
                // SAFETY: a valid queue pair and request.
                let result = unsafe { post(pairs[round % pairs.len()], &mut wr, &mut bad) };
                black_box(result);
            })
        };
        let (without, with) = (run(black_box(nothing)), run(black_box(traced)));
        println!(
            "{name}: {:.1} ns for each post ({without:.1} without, {with:.1} with)",
            with - without
        );
    }
}
