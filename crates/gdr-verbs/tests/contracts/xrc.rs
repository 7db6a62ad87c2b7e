//! ibv_open_xrcd(3), ibv_create_srq_ex(3), ibv_get_srq_num(3), and queue pairs of types `IBV_QPT_XRC_SEND` and
//! `IBV_QPT_XRC_RECV`.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::ptr;

use gdr_verbs_sys::{ibv_qp_attr_mask as Mask, *};

use crate::side::*;
use crate::verbs::{self, errno};

/// `struct ibv_xrcd_init_attr`.
#[repr(C)]
struct XrcdInit {
    comp_mask: u32,
    fd: c_int,
    oflags: c_int,
}

/// `struct ibv_srq_init_attr_ex`, with room for the fields after these.
#[repr(C)]
struct SrqInitEx {
    srq_context: *mut c_void,
    attr: ibv_srq_attr,
    comp_mask: u32,
    srq_type: u32,
    pd: *mut ibv_pd,
    xrcd: *mut ibv_xrcd,
    cq: *mut ibv_cq,
    tags: [u64; 2],
}

const XRC: u32 = 1;
/// All mask bits: type, protection domain, XRC domain and completion queue.
const ALL: u32 = 15;

/// Returns the structure that the inline functions of the header find in front of a context.
fn operations(context: *mut ibv_context) -> *mut verbs_context {
    context
        .map_addr(|at| at - offset_of!(verbs_context, context))
        .cast()
}

fn open_with(side: &Side, mut init: XrcdInit) -> *mut ibv_xrcd {
    // SAFETY: the context is open, and the attributes are readable.
    unsafe {
        let open = (*operations(side.context)).open_xrcd.unwrap();
        open(side.context, (&raw mut init).cast())
    }
}

fn open(side: &Side, fd: c_int, oflags: c_int) -> *mut ibv_xrcd {
    let comp_mask = 3;
    open_with(
        side,
        XrcdInit {
            comp_mask,
            fd,
            oflags,
        },
    )
}

fn close(side: &Side, xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: a handle, which the library checks.
    unsafe { (*operations(side.context)).close_xrcd.unwrap()(xrcd) }
}

fn queue_with(side: &Side, xrcd: *mut ibv_xrcd, comp_mask: u32, srq_type: u32) -> *mut ibv_srq {
    let mut init = SrqInitEx {
        srq_context: ptr::null_mut(),
        attr: ibv_srq_attr {
            max_wr: 8,
            max_sge: 1,
            srq_limit: 0,
        },
        comp_mask,
        srq_type,
        pd: side.domain,
        xrcd,
        cq: side.queue,
        tags: [0; 2],
    };
    // SAFETY: the context is open, and the attributes are readable.
    unsafe {
        let create = (*operations(side.context)).create_srq_ex.unwrap();
        create(side.context, (&raw mut init).cast())
    }
}

fn number(side: &Side, srq: *mut ibv_srq) -> Result<u32, c_int> {
    let mut number = 0;
    // SAFETY: the library checks the handle, and there is room for the number.
    match unsafe { (*operations(side.context)).get_srq_num.unwrap()(srq, &mut number) } {
        0 => Ok(number),
        errno => Err(errno),
    }
}

fn create(side: &Side, init: &mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    // SAFETY: the context is open, and the attributes are readable.
    unsafe { (*operations(side.context)).create_qp_ex.unwrap()(side.context, init) }
}

fn target(side: &Side, xrcd: *mut ibv_xrcd) -> *mut ibv_qp {
    let mut init = ibv_qp_init_attr_ex {
        qp_type: ibv_qp_type::IBV_QPT_XRC_RECV,
        comp_mask: ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_XRCD.0,
        xrcd,
        ..Default::default()
    };
    create(side, &mut init)
}

fn initiator(side: &Side) -> *mut ibv_qp {
    let mut init = ibv_qp_init_attr {
        qp_type: ibv_qp_type::IBV_QPT_XRC_SEND,
        send_cq: side.queue,
        sq_sig_all: 1,
        ..Default::default()
    };
    init.cap.max_send_wr = 8;
    init.cap.max_send_sge = 1;
    // SAFETY: the objects are alive.
    unsafe { verbs::ibv_create_qp(side.domain, &mut init) }
}

fn modify(side: &Side, pair: *mut ibv_qp, to: ibv_qp_state, peer: u32, mask: Mask) -> c_int {
    let (mut attr, _) = side.change_to(to, peer);
    // SAFETY: the library checks the handle, and the attributes are readable.
    let modified =
        unsafe { library().ibv_modify_qp(pair, &mut attr, (mask | Mask::IBV_QP_STATE).0 as i32) };
    modified.err().map_or(0, |error| error.errno().0)
}

const INIT: Mask =
    Mask(Mask::IBV_QP_PKEY_INDEX.0 | Mask::IBV_QP_PORT.0 | Mask::IBV_QP_ACCESS_FLAGS.0);
const PATH: Mask = Mask(
    Mask::IBV_QP_AV.0 | Mask::IBV_QP_PATH_MTU.0 | Mask::IBV_QP_DEST_QPN.0 | Mask::IBV_QP_RQ_PSN.0,
);
const RESPONDER: Mask = Mask(Mask::IBV_QP_MAX_DEST_RD_ATOMIC.0 | Mask::IBV_QP_MIN_RNR_TIMER.0);
const RETRIES: Mask = Mask(
    Mask::IBV_QP_TIMEOUT.0
        | Mask::IBV_QP_RETRY_CNT.0
        | Mask::IBV_QP_RNR_RETRY.0
        | Mask::IBV_QP_MAX_QP_RD_ATOMIC.0,
);

/// Connects an initiator and a target, each with the attributes that the Linux kernel requires for it.
fn connect(from: (&Side, *mut ibv_qp), to: (&Side, *mut ibv_qp)) {
    use ibv_qp_state as State;
    // SAFETY: both queue pairs are alive.
    let (sender, receiver) = unsafe { ((*from.1).qp_num, (*to.1).qp_num) };
    let sequence = Mask::IBV_QP_SQ_PSN;
    let steps = [
        (from, State::IBV_QPS_INIT, INIT, receiver),
        (to, State::IBV_QPS_INIT, INIT, sender),
        (to, State::IBV_QPS_RTR, PATH | RESPONDER, sender),
        (from, State::IBV_QPS_RTR, PATH, receiver),
        (from, State::IBV_QPS_RTS, sequence | RETRIES, receiver),
        (
            to,
            State::IBV_QPS_RTS,
            sequence | Mask::IBV_QP_TIMEOUT,
            sender,
        ),
    ];
    for ((side, pair), state, mask, peer) in steps {
        assert_eq!(modify(side, pair, state, peer, mask), 0, "{state:?}");
    }
}

#[test]
fn a_domain_is_of_its_file_and_its_flags_are_checked() {
    let (a, b) = (
        Side::new(ibv_qp_type::IBV_QPT_RC),
        Side::new(ibv_qp_type::IBV_QPT_RC),
    );
    let path = std::env::temp_dir().join(format!("gdr-xrc-{}", std::process::id()));
    let file = File::create(&path).unwrap();
    let fd = file.as_raw_fd();
    // No domain of this file is open.
    assert!(open(&a, fd, 0).is_null());
    assert_eq!(errno(), libc::EAGAIN);
    let first = open(&a, fd, libc::O_CREAT);
    assert!(open(&b, fd, libc::O_CREAT | libc::O_EXCL).is_null());
    assert_eq!(errno(), libc::EINVAL);
    let second = open(&b, fd, 0);
    assert!(!first.is_null() && !second.is_null());
    // Both handles are one domain: a queue of one context is a valid destination in the other.
    let numbers = [(&a, first), (&b, second)].map(|(side, xrcd)| {
        let queue = queue_with(side, xrcd, ALL, XRC);
        let number = number(side, queue).unwrap();
        (queue, number)
    });
    assert_ne!(numbers[0].1, numbers[1].1);
    for (init, expected) in [
        ((1, fd, libc::O_CREAT), libc::EINVAL),
        ((3, fd, libc::O_TRUNC), libc::EINVAL),
        ((3, -2, libc::O_CREAT), libc::EBADF),
        ((3, 1 << 20, libc::O_CREAT), libc::EBADF),
    ] {
        let (comp_mask, fd, oflags) = init;
        let init = XrcdInit {
            comp_mask,
            fd,
            oflags,
        };
        assert!(open_with(&a, init).is_null());
        assert_eq!(errno(), expected);
    }
    let private = open(&a, -1, libc::O_CREAT);
    assert!(!private.is_null());
    assert_eq!(close(&a, private), 0);
    assert_eq!(close(&a, first), libc::EBUSY);
    for (queue, _) in numbers {
        // SAFETY: the queue is alive.
        assert_eq!(unsafe { verbs::ibv_destroy_srq(queue) }, 0);
    }
    assert_eq!([close(&a, first), close(&b, second)], [0, 0]);
    assert_eq!(close(&a, first), libc::EINVAL);
    drop(file);
    std::fs::remove_file(path).unwrap();
    a.close();
    b.close();
}

#[test]
fn what_is_not_of_the_type_is_refused() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let xrcd = open(&side, -1, libc::O_CREAT);
    // Without a completion queue, with the tag matching type, and with the tag matching attributes.
    for (mask, kind, expected) in [
        (7, XRC, libc::EINVAL),
        (ALL, 2, libc::EOPNOTSUPP),
        (ALL | 16, XRC, libc::EOPNOTSUPP),
    ] {
        assert!(queue_with(&side, xrcd, mask, kind).is_null());
        assert_eq!(errno(), expected);
    }
    let basic = queue_with(&side, ptr::null_mut(), 3, 0);
    assert!(!basic.is_null());
    assert_eq!(number(&side, basic), Err(libc::EOPNOTSUPP));
    // SAFETY: the queue is alive.
    assert_eq!(unsafe { verbs::ibv_destroy_srq(basic) }, 0);
    // A target without an XRC domain.
    assert!(target(&side, ptr::null_mut()).is_null());
    assert_eq!(errno(), libc::EINVAL);
    let pair = target(&side, xrcd);
    // SAFETY: the queue pair is alive; each call is refused.
    unsafe {
        let receive = verbs::post_recv(pair, &mut ibv_recv_wr::default(), &mut ptr::null_mut());
        assert_eq!(receive, libc::EINVAL);
        assert_eq!(close(&side, xrcd), libc::EBUSY);
        assert_eq!(verbs::ibv_destroy_qp(pair), 0);
    }
    assert_eq!(close(&side, xrcd), 0);
    side.close();
}

#[test]
fn messages_arrive_in_the_queue_that_they_name_with_the_number_of_the_target() {
    let (a, b) = (
        Side::new(ibv_qp_type::IBV_QPT_RC),
        Side::new(ibv_qp_type::IBV_QPT_RC),
    );
    let xrcd = open(&b, -1, libc::O_CREAT);
    let queues = [0, 1].map(|_| queue_with(&b, xrcd, ALL, XRC));
    let (sender, receiver) = (initiator(&a), target(&b, xrcd));
    connect((&a, sender), (&b, receiver));
    let (mut words, mut filled) = ([7_u64; 8], [0_u64; 8]);
    let (from, to) = (a.register(&mut words), b.register(&mut filled));
    for (id, queue) in queues.into_iter().enumerate() {
        let mut list = [segment(to, 8 * id as u64, 8)];
        let mut receive = ibv_recv_wr {
            wr_id: 10 + id as u64,
            sg_list: list.as_mut_ptr(),
            num_sge: 1,
            ..Default::default()
        };
        // SAFETY: the queue and the list are alive.
        let posted =
            unsafe { verbs::post_srq_recv(b.context, queue, &mut receive, &mut ptr::null_mut()) };
        assert_eq!(posted, 0);
    }
    for id in [1, 0] {
        let mut list = [segment(from, 0, 8)];
        let mut send = ibv_send_wr {
            wr_id: 1,
            opcode: ibv_wr_opcode::IBV_WR_SEND,
            sg_list: list.as_mut_ptr(),
            num_sge: 1,
            ..Default::default()
        };
        send.qp_type.xrc.remote_srqn = number(&b, queues[id]).unwrap();
        // SAFETY: the queue pair and the list are alive.
        let posted = unsafe { verbs::post_send(sender, &mut send, &mut ptr::null_mut()) };
        assert_eq!(posted, 0);
        let sent = a.completion();
        assert_eq!(
            (sent.wr_id, sent.status),
            (1, ibv_wc_status::IBV_WC_SUCCESS)
        );
        let received = b.completion();
        assert_eq!(received.status, ibv_wc_status::IBV_WC_SUCCESS);
        // SAFETY: the queue pair is alive.
        let expected = (10 + id as u64, unsafe { (*receiver).qp_num });
        assert_eq!((received.wr_id, received.qp_num), expected);
    }
    [from, to].into_iter().for_each(deregister);
    assert_eq!((filled[0], filled[1], filled[2]), (7, 7, 0));
    // SAFETY: each is alive, and destroyed before what it depends on.
    unsafe {
        assert_eq!(verbs::ibv_destroy_qp(sender), 0);
        assert_eq!(verbs::ibv_destroy_qp(receiver), 0);
        for queue in queues {
            assert_eq!(verbs::ibv_destroy_srq(queue), 0);
        }
    }
    assert_eq!(close(&b, xrcd), 0);
    a.close();
    b.close();
}
