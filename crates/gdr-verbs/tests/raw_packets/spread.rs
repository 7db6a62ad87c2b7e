//! Frames of one flow spread over two work queues by a hash of their source ports (receive-side scaling).

use std::ffi::c_int;
use std::mem::offset_of;

use super::*;

/// `struct ibv_wq` up to its function pointer.
#[repr(C)]
struct Wq {
    context: *mut ibv_context,
    wq_context: *mut c_void,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    wq_num: u32,
    handle: u32,
    state: u32,
    wq_type: u32,
    post_recv: Option<PostRecv>,
}

type PostRecv = unsafe extern "C" fn(*mut Wq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

/// `struct ibv_wq_init_attr`.
#[repr(C)]
struct WqInit {
    wq_context: *mut c_void,
    wq_type: u32,
    max_wr: u32,
    max_sge: u32,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    comp_mask: u32,
    create_flags: u32,
}

/// `struct ibv_wq_attr`.
#[repr(C)]
struct WqAttr {
    attr_mask: u32,
    wq_state: u32,
    curr_wq_state: u32,
    flags: u32,
    flags_mask: u32,
}

/// `struct ibv_rwq_ind_table_init_attr`.
#[repr(C)]
struct TableInit {
    log_ind_tbl_size: u32,
    ind_tbl: *mut *mut ibv_wq,
    comp_mask: u32,
}

const WITH_STATE: u32 = 1;
const READY: u32 = 1;
const TOEPLITZ: u8 = 1;
const SOURCE_PORT_UDP: u64 = 1 << 6;
/// The number of source ports, enough for hashes that differ in one bit.
const PORTS: u16 = 16;
const RECEIVES: u32 = 2 * PORTS as u32;

/// Returns the structure that the inline functions of the header find in front of a context.
fn operations(context: *mut ibv_context) -> *mut verbs_context {
    let in_front = |at| at - offset_of!(verbs_context, context);
    context.map_addr(in_front).cast()
}

/// A work queue in the ready state, with its completion queue.
struct WorkQueue {
    queue: *mut ibv_cq,
    wq: *mut ibv_wq,
}

impl WorkQueue {
    fn new(end: &End, region: *mut ibv_mr) -> Self {
        let none = ptr::null_mut::<c_void>();
        // SAFETY: the objects and the region exist, the attributes are readable, and the region is posted as a whole.
        unsafe {
            let queue = end
                .verbs
                .ibv_create_cq(end.context, 64, none, none.cast(), 0);
            let queue = queue.unwrap().as_ptr();
            let mut init = WqInit {
                wq_context: none,
                wq_type: 0,
                max_wr: RECEIVES,
                max_sge: 1,
                pd: end.domain,
                cq: queue,
                comp_mask: 0,
                create_flags: 0,
            };
            let verbs = &*operations(end.context);
            let wq = verbs.create_wq.unwrap()(end.context, (&raw mut init).cast());
            assert!(!wq.is_null());
            let mut attr = WqAttr {
                attr_mask: WITH_STATE,
                wq_state: READY,
                curr_wq_state: 0,
                flags: 0,
                flags_mask: 0,
            };
            assert_eq!(verbs.modify_wq.unwrap()(wq, (&raw mut attr).cast()), 0);
            let mut list = ibv_sge {
                addr: (*region).addr.addr() as u64,
                length: (*region).length as u32,
                lkey: (*region).lkey,
            };
            let mut wr = ibv_recv_wr {
                sg_list: &mut list,
                num_sge: 1,
                ..Default::default()
            };
            let post = (*wq.cast::<Wq>()).post_recv.unwrap();
            for _ in 0..RECEIVES {
                assert_eq!(post(wq.cast(), &mut wr, &mut ptr::null_mut()), 0);
            }
            Self { queue, wq }
        }
    }

    fn has_received(&self) -> bool {
        let mut room = [MaybeUninit::uninit(); 1];
        // SAFETY: the queue is alive.
        let found = unsafe { ibv_poll_cq(self.queue, &mut room) }.unwrap();
        found.first().is_some_and(|it| {
            assert_eq!(it.status, ibv_wc_status::IBV_WC_SUCCESS);
            it.opcode == ibv_wc_opcode::IBV_WC_RECV
        })
    }
}

/// Returns a queue pair whose frames go to the work queues of a table.
fn spreading(end: &End, table: *mut ibv_rwq_ind_table) -> *mut ibv_qp {
    use ibv_qp_init_attr_mask as Init;
    let mut key: [u8; 40] = std::array::from_fn(|at| 0x6d ^ (at as u8).wrapping_mul(29));
    let mask = Init::IBV_QP_INIT_ATTR_PD
        | Init::IBV_QP_INIT_ATTR_IND_TABLE
        | Init::IBV_QP_INIT_ATTR_RX_HASH;
    let mut init = ibv_qp_init_attr_ex {
        qp_type: ibv_qp_type::IBV_QPT_RAW_PACKET,
        comp_mask: mask.0,
        pd: end.domain,
        rwq_ind_tbl: table,
        rx_hash_conf: ibv_rx_hash_conf {
            rx_hash_function: TOEPLITZ,
            rx_hash_key_len: key.len() as u8,
            rx_hash_key: key.as_mut_ptr(),
            rx_hash_fields_mask: SOURCE_PORT_UDP,
        },
        ..Default::default()
    };
    // SAFETY: the objects are alive, and the attributes and the key readable.
    let pair = unsafe { (*operations(end.context)).create_qp_ex.unwrap()(end.context, &mut init) };
    assert!(!pair.is_null());
    pair
}

/// Returns a frame from this UDP port.
fn frame_from(port: u16) -> Vec<u8> {
    let mut frame = frame(PORT);
    frame[34..36].copy_from_slice(&port.to_be_bytes());
    frame
}

/// Checks that all frames of one port go to one work queue, and frames of many ports to both.
pub(crate) fn over_work_queues(verbs: &'static Verbs, device: *mut ibv_device) {
    let (end, sender) = (End::new(verbs, device), End::new(verbs, device));
    let mut room = vec![0; 2048];
    let region = end.register(&mut room);
    let queues = [(); 2].map(|()| WorkQueue::new(&end, region));
    let mut entries = [queues[0].wq, queues[1].wq];
    let table_of = |ind_tbl| {
        let mut init = TableInit {
            log_ind_tbl_size: 1,
            ind_tbl,
            comp_mask: 0,
        };
        // SAFETY: the objects are alive, and the attributes and their table, if there is one, readable.
        unsafe {
            let create = (*operations(end.context)).create_rwq_ind_table.unwrap();
            create(end.context, (&raw mut init).cast())
        }
    };
    assert!(table_of(ptr::null_mut()).is_null());
    let table = table_of(entries.as_mut_ptr());
    assert!(!table.is_null());
    let pair = spreading(&end, table);
    let flow = steer(pair, RECEIVER, PORT);

    let receiver_of = |port| {
        let mut bytes = frame_from(port);
        let from = sender.register(&mut bytes);
        sender.send(from);
        // SAFETY: the region exists, and is not used again.
        unsafe { verbs.ibv_dereg_mr(from) }.unwrap();
        let until = Instant::now() + LIMIT;
        loop {
            assert!(Instant::now() < until, "nothing arrived within {LIMIT:?}");
            if let Some(at) = queues.iter().position(WorkQueue::has_received) {
                return at;
            }
            std::thread::yield_now();
        }
    };
    let [first, second] = [(); 2].map(|()| (0..PORTS).map(receiver_of).collect::<Vec<_>>());
    assert_eq!(first, second, "the queue of a port");
    assert!(first.contains(&0) && first.contains(&1), "{first:?}");

    // SAFETY: each object is destroyed once; the library refuses those that are in use.
    unsafe {
        let verbs_of = &*operations(end.context);
        let destroy_table = verbs_of.destroy_rwq_ind_table.unwrap();
        let destroy_wq = verbs_of.destroy_wq.unwrap();
        assert_ne!(destroy_table(table), 0, "the queue pair uses it");
        assert_ne!(destroy_wq(queues[0].wq), 0, "the table uses it");
        ibv_destroy_flow(flow).unwrap();
        verbs.ibv_destroy_qp(pair).unwrap();
        assert_eq!(destroy_table(table), 0);
        for queue in &queues {
            assert_eq!(destroy_wq(queue.wq), 0);
            verbs.ibv_destroy_cq(queue.queue).unwrap();
        }
    }
    end.close(&[region]);
    sender.close(&[]);
}
