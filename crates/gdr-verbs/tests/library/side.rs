//! The loaded library, and queue pairs of its first device.

use std::mem::MaybeUninit;
use std::path::Path;
use std::process::Command;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use gdr_verbs_sys::ibv_qp_attr_mask as Mask;
use gdr_verbs_sys::*;

/// The limit of each wait; the operations of these tests take a small fraction of it.
const LIMIT: Duration = Duration::from_secs(60);

/// An address that no other test uses.
const ADDRESS: &str = "127.77.0.1";

/// The library, built and linked by the task that builds it for users.
pub(crate) fn library() -> &'static Verbs {
    static LIBRARY: OnceLock<&'static Verbs> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("verbs");
        let mut build = Command::new(env!("CARGO"));
        build.args(["run", "--quiet", "--package", "xtask", "--"]);
        build
            .args(["verbs-library", "--profile", "dev", "--out"])
            .arg(&out);
        assert!(
            build.status().unwrap().success(),
            "the library is not built"
        );
        // SAFETY: the threads of this test binary read no environment: they wait for this.
        unsafe { std::env::set_var("GDR_NICS", ADDRESS) };
        // SAFETY: it behaves as libibverbs.
        unsafe { Verbs::open(out.join("libgdr-verbs.so")) }.unwrap()
    })
}

pub(crate) fn all_access() -> ibv_access_flags {
    ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
        | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
        | ibv_access_flags::IBV_ACCESS_REMOTE_READ
        | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC
}

/// A context of its own, a domain, a completion queue and a queue pair. [`Side::close`] destroys them.
pub(crate) struct Side {
    pub(crate) context: *mut ibv_context,
    pub(crate) domain: *mut ibv_pd,
    pub(crate) queue: *mut ibv_cq,
    pub(crate) pair: *mut ibv_qp,
}

impl Side {
    pub(crate) fn new() -> Self {
        let verbs = library();
        let devices = verbs.devices().unwrap();
        // SAFETY: the context and its objects are alive until `close`.
        unsafe {
            let context = verbs
                .ibv_open_device(devices.as_slice()[0])
                .unwrap()
                .as_ptr();
            let domain = verbs.ibv_alloc_pd(context).unwrap().as_ptr();
            let (own, none) = (std::ptr::null_mut(), std::ptr::null_mut());
            let queue = verbs
                .ibv_create_cq(context, 64, own, none, 0)
                .unwrap()
                .as_ptr();
            let mut attr = ibv_qp_init_attr {
                send_cq: queue,
                recv_cq: queue,
                qp_type: ibv_qp_type::IBV_QPT_RC,
                ..Default::default()
            };
            attr.cap.max_send_wr = 16;
            attr.cap.max_recv_wr = 16;
            attr.cap.max_send_sge = 2;
            attr.cap.max_recv_sge = 2;
            attr.cap.max_inline_data = 64;
            let pair = verbs.ibv_create_qp(domain, &mut attr).unwrap().as_ptr();
            Self {
                context,
                domain,
                queue,
                pair,
            }
        }
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: Mask) -> Result<(), VerbError> {
        // SAFETY: a handle, which the library checks, and attributes.
        unsafe { library().ibv_modify_qp(self.pair, attr, mask.0 as i32) }
    }

    pub(crate) fn to_init(&self) -> Result<(), VerbError> {
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            port_num: 1,
            qp_access_flags: all_access().0,
            ..Default::default()
        };
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_PKEY_INDEX
            | Mask::IBV_QP_PORT
            | Mask::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attr, mask)
    }

    pub(crate) fn to_rtr(&self, peer: u32) -> Result<(), VerbError> {
        // SAFETY: the context is open.
        let gid = unsafe { library().query_gid(self.context, 1, 0) }
            .unwrap()
            .gid;
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTR,
            path_mtu: ibv_mtu::IBV_MTU_1024,
            dest_qp_num: peer,
            rq_psn: 7,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            ..Default::default()
        };
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.dgid = gid;
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_AV
            | Mask::IBV_QP_PATH_MTU
            | Mask::IBV_QP_DEST_QPN
            | Mask::IBV_QP_RQ_PSN
            | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | Mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attr, mask)
    }

    pub(crate) fn to_rts(&self) -> Result<(), VerbError> {
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            timeout: 10,
            retry_cnt: 7,
            rnr_retry: 7,
            sq_psn: 7,
            max_rd_atomic: 16,
            ..Default::default()
        };
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_SQ_PSN
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attr, mask)
    }

    pub(crate) fn to_error(&self) -> Result<(), VerbError> {
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_ERR,
            ..Default::default()
        };
        self.modify(&mut attr, Mask::IBV_QP_STATE)
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair is alive.
        unsafe { (*self.pair).qp_num }
    }

    pub(crate) fn state(&self) -> ibv_qp_state {
        let (mut attr, mut made) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        let mask = Mask::IBV_QP_STATE.0 as i32;
        // SAFETY: the queue pair is alive.
        unsafe { library().ibv_query_qp(self.pair, &mut attr, mask, &mut made) }.unwrap();
        attr.qp_state
    }

    pub(crate) fn register(&self, words: &mut [u64]) -> NonNull<ibv_mr> {
        let (address, len) = (words.as_mut_ptr().cast(), size_of_val(words));
        // SAFETY: the tests keep the words until they deregister them, and read them only while no
        // transfer runs.
        unsafe { library().reg_mr(self.domain, address, len, all_access()) }.unwrap()
    }

    pub(crate) fn send(&self, mut wr: ibv_send_wr, list: &mut [ibv_sge]) -> Result<(), Errno> {
        wr.sg_list = list.as_mut_ptr();
        wr.num_sge = list.len() as i32;
        // SAFETY: the context is open, and the tests keep the memory alive.
        let posted = unsafe { ibv_post_send(self.pair, &mut wr) };
        posted.map_err(|refusal| refusal.error.errno())
    }

    pub(crate) fn receive(&self, id: u64, list: &mut [ibv_sge]) -> Result<(), Errno> {
        let mut wr = ibv_recv_wr {
            wr_id: id,
            sg_list: list.as_mut_ptr(),
            num_sge: list.len() as i32,
            ..Default::default()
        };
        // SAFETY: as for `send`.
        let posted = unsafe { ibv_post_recv(self.pair, &mut wr) };
        posted.map_err(|refusal| refusal.error.errno())
    }

    pub(crate) fn poll(&self) -> Option<ibv_wc> {
        let mut room = [MaybeUninit::uninit(); 1];
        // SAFETY: the queue is alive.
        let found = unsafe { ibv_poll_cq(self.queue, &mut room) }.unwrap();
        found.first().copied()
    }

    pub(crate) fn completion(&self) -> ibv_wc {
        let until = Instant::now() + LIMIT;
        loop {
            if let Some(completion) = self.poll() {
                return completion;
            }
            assert!(Instant::now() < until, "no completion came");
            std::thread::yield_now();
        }
    }

    pub(crate) fn close(self) {
        let verbs = library();
        // SAFETY: each object is destroyed before what it depends on.
        unsafe {
            verbs.ibv_destroy_qp(self.pair).unwrap();
            verbs.ibv_destroy_cq(self.queue).unwrap();
            verbs.ibv_dealloc_pd(self.domain).unwrap();
            verbs.ibv_close_device(self.context).unwrap();
        }
    }
}

pub(crate) fn deregister(region: NonNull<ibv_mr>) {
    // SAFETY: the region is alive.
    unsafe { library().ibv_dereg_mr(region.as_ptr()) }.unwrap();
}

/// Two connected sides, each with its own context.
pub(crate) fn sides() -> (Side, Side) {
    let (a, b) = (Side::new(), Side::new());
    for side in [&a, &b] {
        side.to_init().unwrap();
    }
    a.to_rtr(b.number()).unwrap();
    b.to_rtr(a.number()).unwrap();
    a.to_rts().unwrap();
    b.to_rts().unwrap();
    (a, b)
}

pub(crate) fn segment(region: NonNull<ibv_mr>, offset: u64, length: u32) -> ibv_sge {
    // SAFETY: the region is alive.
    let region = unsafe { region.as_ref() };
    ibv_sge {
        addr: region.addr.addr() as u64 + offset,
        length,
        lkey: region.lkey,
    }
}

/// A signalled request for an address of the peer.
pub(crate) fn request(
    id: u64,
    opcode: ibv_wr_opcode,
    region: NonNull<ibv_mr>,
    offset: u64,
) -> ibv_send_wr {
    // SAFETY: the region is alive.
    let region = unsafe { region.as_ref() };
    let mut wr = ibv_send_wr {
        wr_id: id,
        opcode,
        send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
        ..Default::default()
    };
    wr.wr.rdma.remote_addr = region.addr.addr() as u64 + offset;
    wr.wr.rdma.rkey = region.rkey;
    wr
}
