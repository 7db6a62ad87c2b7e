//! Completion counters.

use std::ffi::c_int;
use std::ptr;

use gdr_verbs_sys::ibv_qp_attach_comp_cntr_op as Operation;
use gdr_verbs_sys::*;

use crate::side::*;

/// A counter of the library.
#[derive(Clone, Copy)]
struct Counter(*mut ibv_comp_cntr);

type Create =
    unsafe extern "C" fn(*mut ibv_context, *mut ibv_comp_cntr_init_attr) -> *mut ibv_comp_cntr;
type Attach = unsafe extern "C" fn(
    *mut ibv_qp,
    *mut ibv_comp_cntr,
    *mut ibv_qp_attach_comp_cntr_attr,
) -> c_int;
type Change = unsafe extern "C" fn(*mut ibv_comp_cntr, u64) -> c_int;
type Read = unsafe extern "C" fn(*mut ibv_comp_cntr, *mut u64) -> c_int;
type Destroy = unsafe extern "C" fn(*mut ibv_comp_cntr) -> c_int;

fn create(side: &Side, mut attr: ibv_comp_cntr_init_attr) -> Result<Counter, c_int> {
    // SAFETY: the type of this function in rdma-core's header; the context is open.
    let made =
        unsafe { typed_function::<Create>(c"ibv_create_comp_cntr")(side.context, &raw mut attr) };
    match made.is_null() {
        true => Err(std::io::Error::last_os_error().raw_os_error().unwrap()),
        false => Ok(Counter(made)),
    }
}

impl Counter {
    fn new(side: &Side, unit: ibv_comp_cntr_type) -> Self {
        create(side, plain(unit)).unwrap()
    }

    fn attach(self, side: &Side, operations: &[Operation]) -> c_int {
        let op_mask = operations
            .iter()
            .fold(0, |mask, operation| mask | operation.0);
        let mut attr = ibv_qp_attach_comp_cntr_attr {
            comp_mask: 0,
            op_mask,
        };
        // SAFETY: the type of this function in rdma-core's header; the library checks handles.
        unsafe {
            typed_function::<Attach>(c"ibv_qp_attach_comp_cntr")(side.pair, self.0, &raw mut attr)
        }
    }

    /// Returns the number of successes and of failures.
    fn read(self) -> (u64, u64) {
        let values = [c"ibv_read_comp_cntr", c"ibv_read_err_comp_cntr"].map(|name| {
            let mut value = 0;
            // SAFETY: the type of these functions in rdma-core's header; the counter is alive.
            let read = unsafe { typed_function::<Read>(name)(self.0, &raw mut value) };
            assert_eq!(read, 0);
            value
        });
        values.into()
    }

    fn change(self, name: &std::ffi::CStr, value: u64) {
        // SAFETY: the type of these functions in rdma-core's header; the counter is alive.
        assert_eq!(unsafe { typed_function::<Change>(name)(self.0, value) }, 0);
    }

    fn destroy(self) -> c_int {
        // SAFETY: the type of this function in rdma-core's header; the library checks handles.
        unsafe { typed_function::<Destroy>(c"ibv_destroy_comp_cntr")(self.0) }
    }
}

const fn plain(unit: ibv_comp_cntr_type) -> ibv_comp_cntr_init_attr {
    ibv_comp_cntr_init_attr {
        comp_mask: 0,
        type_: unit,
        flags: 0,
    }
}

const REQUESTS: ibv_comp_cntr_type = ibv_comp_cntr_type::IBV_COMP_CNTR_TYPE_WRS;
const BYTES: ibv_comp_cntr_type = ibv_comp_cntr_type::IBV_COMP_CNTR_TYPE_BYTES;
const SEND: Operation = Operation::IBV_QP_ATTACH_COMP_CNTR_OP_SEND;
const RECV: Operation = Operation::IBV_QP_ATTACH_COMP_CNTR_OP_RECV;
const READ: Operation = Operation::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ;
const REMOTE_READ: Operation = Operation::IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ;
const WRITE: Operation = Operation::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE;
const REMOTE_WRITE: Operation = Operation::IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE;

/// Returns two sides in RESET.
fn unconnected() -> (Side, Side) {
    (
        Side::new(ibv_qp_type::IBV_QPT_RC),
        Side::new(ibv_qp_type::IBV_QPT_RC),
    )
}

fn connect(a: &Side, b: &Side) {
    for (side, peer) in [(a, b), (b, a)] {
        side.to_init().unwrap();
        side.to_rtr(peer.number()).unwrap();
    }
    a.to_rts().unwrap();
    b.to_rts().unwrap();
}

fn close(a: Side, b: Side, counters: &[Counter]) {
    a.close_pair();
    b.close_pair();
    for counter in counters {
        assert_eq!(counter.destroy(), 0);
        assert_eq!(counter.destroy(), libc::EINVAL, "it is gone");
    }
    a.close_rest();
    b.close_rest();
}

#[test]
fn requests_are_counted_by_their_operation_at_both_ends_signalled_or_not() {
    let (a, b) = unconnected();
    let [sends, writes, reads] = [REQUESTS, BYTES, BYTES].map(|unit| Counter::new(&a, unit));
    let [received, written, read] = [BYTES, REQUESTS, BYTES].map(|unit| Counter::new(&b, unit));
    for (counter, side, operation) in [
        (sends, &a, SEND),
        (writes, &a, WRITE),
        (reads, &a, READ),
        (received, &b, RECV),
        (written, &b, REMOTE_WRITE),
        (read, &b, REMOTE_READ),
    ] {
        assert_eq!(counter.attach(side, &[operation]), 0);
    }
    connect(&a, &b);
    let (mut near, mut far) = (vec![1_u64; 1000], vec![0_u64; 1000]);
    let (source, target) = (a.register(&mut near), b.register(&mut far));
    b.receive(9, &mut [segment(target, 0, 8000)]).unwrap();
    let silent = |opcode| ibv_send_wr {
        send_flags: 0,
        ..request(1, opcode, target, 0)
    };
    a.send(
        silent(ibv_wr_opcode::IBV_WR_SEND),
        &mut [segment(source, 0, 100)],
    )
    .unwrap();
    for len in [5000, 8] {
        let write = silent(ibv_wr_opcode::IBV_WR_RDMA_WRITE);
        a.send(write, &mut [segment(source, 0, len)]).unwrap();
    }
    let mut atomic = silent(ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD);
    // SAFETY: the region exists; every byte pattern is a valid request.
    unsafe {
        atomic.wr.atomic.remote_addr = target.as_ref().addr.addr() as u64;
        atomic.wr.atomic.rkey = target.as_ref().rkey;
    }
    a.send(atomic, &mut [segment(source, 0, 8)]).unwrap();
    let signalled = request(2, ibv_wr_opcode::IBV_WR_RDMA_READ, target, 0);
    a.send(signalled, &mut [segment(source, 0, 3000)]).unwrap();
    // The only completion that the program requested.
    assert_eq!(a.completion().wr_id, 2);
    assert!(a.poll().is_none());
    assert_eq!(b.completion().wr_id, 9);
    let expected = [(1, 0), (5008, 0), (3000, 0), (100, 0), (2, 0), (3000, 0)];
    let counters = [sends, writes, reads, received, written, read];
    wait_until(|| read.read().0 >= 3000);
    assert_eq!(counters.map(Counter::read), expected);
    deregister(source);
    deregister(target);
    close(a, b, &counters);
}

#[test]
fn what_was_counted_stays_when_a_queue_pair_is_reset() {
    let (a, b) = unconnected();
    let counter = Counter::new(&b, REQUESTS);
    assert_eq!(counter.attach(&b, &[REMOTE_WRITE]), 0);
    let (mut near, mut far) = ([7], [0]);
    let (source, region) = (a.register(&mut near), b.register(&mut far));
    for written in 1..3 {
        connect(&a, &b);
        let wr = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, region, 0);
        a.send(wr, &mut [segment(source, 0, 8)]).unwrap();
        assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_SUCCESS);
        for side in [&a, &b] {
            side.to_state(ibv_qp_state::IBV_QPS_RESET).unwrap();
        }
        assert_eq!(counter.read(), (written, 0));
    }
    deregister(region);
    deregister(source);
    close(a, b, &[counter]);
}

#[test]
fn failures_are_counted_apart_and_reach_the_completion_queue() {
    let (a, b) = unconnected();
    let counter = Counter::new(&a, BYTES);
    assert_eq!(counter.attach(&a, &[WRITE, SEND]), 0);
    connect(&a, &b);
    let mut near = vec![0_u64];
    let source = a.register(&mut near);
    let mut wrong = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, source, 0);
    (wrong.send_flags, wrong.wr.rdma.rkey) = (0, 0x55);
    a.send(wrong, &mut [segment(source, 0, 8)]).unwrap();
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
    let flushed = ibv_send_wr {
        wr_id: 2,
        opcode: ibv_wr_opcode::IBV_WR_SEND,
        ..Default::default()
    };
    a.send(flushed, &mut []).unwrap();
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
    assert_eq!(counter.read(), (0, 2));
    deregister(source);
    close(a, b, &[counter]);
}

#[test]
fn a_counter_is_set_and_increased_and_wraps() {
    let (a, b) = unconnected();
    let counter = Counter::new(&a, REQUESTS);
    assert_eq!(counter.read(), (0, 0));
    counter.change(c"ibv_set_comp_cntr", u64::MAX - 1);
    counter.change(c"ibv_inc_comp_cntr", 3);
    counter.change(c"ibv_set_err_comp_cntr", 40);
    counter.change(c"ibv_inc_err_comp_cntr", 2);
    assert_eq!(counter.read(), (1, 42));
    close(a, b, &[counter]);
}

#[test]
fn queue_pairs_share_a_counter_which_lives_as_long_as_they_do() {
    let (a, b) = unconnected();
    let counter = Counter::new(&a, REQUESTS);
    assert_eq!(
        counter.attach(&b, &[SEND]),
        libc::EINVAL,
        "of another device"
    );
    assert_eq!(counter.attach(&a, &[]), libc::EINVAL);
    assert_eq!(counter.attach(&a, &[Operation(1 << 6)]), libc::EOPNOTSUPP);
    assert_eq!(counter.attach(&a, &[SEND, RECV]), 0);
    assert_eq!(
        counter.attach(&a, &[READ, RECV]),
        libc::EBUSY,
        "receives are counted"
    );
    assert_eq!(counter.attach(&a, &[READ]), 0);
    assert_eq!(counter.destroy(), libc::EBUSY);
    connect(&a, &b);
    assert_eq!(counter.attach(&a, &[WRITE]), libc::EINVAL, "in RTS");
    close(a, b, &[counter]);
}

#[test]
fn a_counter_of_another_kind_is_refused_and_the_device_says_what_it_counts() {
    type Query = unsafe extern "C" fn(*mut ibv_context, *mut ibv_comp_cntr_caps, usize) -> c_int;
    let (a, b) = unconnected();
    let refused = |attr| create(&a, attr).err();
    let kind = plain(ibv_comp_cntr_type(2));
    assert_eq!(refused(kind), Some(libc::EOPNOTSUPP));
    let mask = ibv_comp_cntr_init_attr {
        comp_mask: 1,
        ..plain(BYTES)
    };
    assert_eq!(refused(mask), Some(libc::EOPNOTSUPP));
    let flags = ibv_comp_cntr_init_attr {
        flags: 1,
        ..plain(BYTES)
    };
    assert_eq!(refused(flags), Some(libc::EINVAL));
    // The structure of a later version is longer.
    let mut caps = [ibv_comp_cntr_caps {
        max_value: 1,
        max_counters: 1,
        supported_qp_attach_ops: 1,
    }; 2];
    // SAFETY: the type of this function in rdma-core's header; there is room for this many bytes.
    let queried = unsafe {
        typed_function::<Query>(c"_ibv_query_comp_cntr_caps")(
            a.context,
            caps.as_mut_ptr(),
            size_of_val(&caps),
        )
    };
    assert_eq!(queried, 0);
    assert_eq!(
        (caps[0].max_value, caps[0].supported_qp_attach_ops),
        (u64::MAX, 0x3f)
    );
    assert!(caps[0].max_counters > 1000);
    assert_eq!((caps[1].max_value, caps[1].max_counters), (0, 0));
    assert_eq!(Counter(ptr::null_mut()).destroy(), libc::EINVAL);
    close(a, b, &[]);
}
