//! The loaded library, and queue pairs of its first device.

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use gdr_verbs_sys::ibv_qp_attr_mask as Mask;
use gdr_verbs_sys::*;

use crate::built::libraries;

/// The limit of each wait, far longer than the operations of these tests take.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The queue key of each UD queue pair.
pub(crate) const QKEY: u32 = 0x1111_1111;

/// An address that no other test uses.
const ADDRESS: &str = "127.77.0.1";

/// The file of the library, as a C string.
const FILE: &CStr = match CStr::from_bytes_with_nul(
    concat!(env!("CARGO_TARGET_TMPDIR"), "/verbs/libgdr-verbs.so\0").as_bytes(),
) {
    Ok(file) => file,
    Err(_) => c"",
};

/// Returns the address of a function of the library that [`Verbs`] does not declare.
pub(crate) fn function(name: &CStr) -> *mut c_void {
    library();
    // SAFETY: the library is already loaded, so this only returns its handle.
    let handle = unsafe { libc::dlopen(FILE.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    assert!(!handle.is_null());
    // SAFETY: a handle, and a C string.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    assert!(!found.is_null(), "{name:?}");
    found
}

/// Like [`function`], with the function's type.
///
/// # Safety
/// `F` is the type of the function of this name.
pub(crate) unsafe fn typed_function<F: Copy>(name: &CStr) -> F {
    let address = function(name);
    assert_eq!(size_of::<F>(), size_of_val(&address));
    // SAFETY: the contract of this function.
    unsafe { std::mem::transmute_copy(&address) }
}

/// Returns the library, built and linked by the task that builds it for users.
pub(crate) fn library() -> &'static Verbs {
    static LIBRARY: OnceLock<&'static Verbs> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let folder = libraries();
        // SAFETY: the threads of this test binary wait for this call and do not read the environment before it.
        unsafe { std::env::set_var("GDR_NICS", ADDRESS) };
        // SAFETY: the file behaves as libibverbs does.
        unsafe { Verbs::open(folder.join("libgdr-verbs.so")) }.unwrap()
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
    pub(crate) kind: ibv_qp_type,
    pub(crate) context: *mut ibv_context,
    pub(crate) domain: *mut ibv_pd,
    pub(crate) queue: *mut ibv_cq,
    pub(crate) pair: *mut ibv_qp,
}

impl Side {
    /// Returns a side whose queue pair has this type.
    pub(crate) fn new(kind: ibv_qp_type) -> Self {
        let verbs = library();
        let devices = verbs.devices().unwrap();
        // SAFETY: the context and its objects exist until `close`.
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
                qp_type: kind,
                ..Default::default()
            };
            attr.cap.max_send_wr = 16;
            attr.cap.max_recv_wr = 16;
            attr.cap.max_send_sge = 2;
            attr.cap.max_recv_sge = 2;
            attr.cap.max_inline_data = 64;
            let pair = verbs.ibv_create_qp(domain, &mut attr).unwrap().as_ptr();
            Self {
                kind,
                context,
                domain,
                queue,
                pair,
            }
        }
    }

    pub(crate) fn modify(&self, attr: &mut ibv_qp_attr, mask: Mask) -> Result<(), VerbError> {
        // SAFETY: the library checks the handle, and the attributes are readable.
        unsafe { library().ibv_modify_qp(self.pair, attr, mask.0 as i32) }
    }

    /// Returns the attributes and mask of a transition to this state, as a program sets them.
    pub(crate) fn change_to(&self, to: ibv_qp_state, peer: u32) -> (ibv_qp_attr, Mask) {
        let mut attr = ibv_qp_attr {
            qp_state: to,
            port_num: 1,
            qp_access_flags: all_access().0,
            qkey: QKEY,
            path_mtu: ibv_mtu::IBV_MTU_1024,
            dest_qp_num: peer,
            rq_psn: 7,
            sq_psn: 7,
            max_dest_rd_atomic: 16,
            // The maximum of some devices, which is more than this device supports.
            max_rd_atomic: 128,
            min_rnr_timer: 12,
            // A quarter of a second per attempt, so that an end that gets no CPU for a while has not failed.
            timeout: 16,
            retry_cnt: 7,
            rnr_retry: 7,
            ..Default::default()
        };
        attr.ah_attr = self.path();
        let port = Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT;
        let path =
            Mask::IBV_QP_AV | Mask::IBV_QP_PATH_MTU | Mask::IBV_QP_DEST_QPN | Mask::IBV_QP_RQ_PSN;
        let reads = Mask::IBV_QP_MAX_DEST_RD_ATOMIC | Mask::IBV_QP_MIN_RNR_TIMER;
        let retries = Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        let mask = match (to, self.kind) {
            (ibv_qp_state::IBV_QPS_INIT, ibv_qp_type::IBV_QPT_UD) => port | Mask::IBV_QP_QKEY,
            (ibv_qp_state::IBV_QPS_INIT, _) => port | Mask::IBV_QP_ACCESS_FLAGS,
            (ibv_qp_state::IBV_QPS_RTR, ibv_qp_type::IBV_QPT_RC) => path | reads,
            (ibv_qp_state::IBV_QPS_RTR, ibv_qp_type::IBV_QPT_UC) => path,
            (ibv_qp_state::IBV_QPS_RTS, ibv_qp_type::IBV_QPT_RC) => Mask::IBV_QP_SQ_PSN | retries,
            (ibv_qp_state::IBV_QPS_RTS, _) => Mask::IBV_QP_SQ_PSN,
            _ => Mask::NONE,
        };
        (attr, mask | Mask::IBV_QP_STATE)
    }

    /// Returns the path to the device itself.
    pub(crate) fn path(&self) -> ibv_ah_attr {
        // SAFETY: the context is open.
        let gid = unsafe { library().query_gid(self.context, 1, 0) };
        let mut path = ibv_ah_attr {
            is_global: 1,
            port_num: 1,
            ..Default::default()
        };
        path.grh.dgid = gid.unwrap().gid;
        path
    }

    fn change(&self, to: ibv_qp_state, peer: u32) -> Result<(), VerbError> {
        let (mut attr, mask) = self.change_to(to, peer);
        self.modify(&mut attr, mask)
    }

    pub(crate) fn to_init(&self) -> Result<(), VerbError> {
        self.change(ibv_qp_state::IBV_QPS_INIT, 0)
    }

    pub(crate) fn to_rtr(&self, peer: u32) -> Result<(), VerbError> {
        self.change(ibv_qp_state::IBV_QPS_RTR, peer)
    }

    pub(crate) fn to_rts(&self) -> Result<(), VerbError> {
        self.change(ibv_qp_state::IBV_QPS_RTS, 0)
    }

    /// Changes the state with `IBV_QP_STATE` alone.
    pub(crate) fn to_state(&self, to: ibv_qp_state) -> Result<(), VerbError> {
        let mut attr = ibv_qp_attr {
            qp_state: to,
            ..Default::default()
        };
        self.modify(&mut attr, Mask::IBV_QP_STATE)
    }

    pub(crate) fn to_error(&self) -> Result<(), VerbError> {
        self.to_state(ibv_qp_state::IBV_QPS_ERR)
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair is alive.
        unsafe { (*self.pair).qp_num }
    }

    pub(crate) fn query(&self) -> (ibv_qp_attr, ibv_qp_init_attr) {
        let (mut attr, mut made) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        let mask = (Mask::IBV_QP_STATE | Mask::IBV_QP_MAX_QP_RD_ATOMIC).0 as i32;
        // SAFETY: the queue pair is alive.
        unsafe { library().ibv_query_qp(self.pair, &mut attr, mask, &mut made) }.unwrap();
        (attr, made)
    }

    pub(crate) fn state(&self) -> ibv_qp_state {
        self.query().0.qp_state
    }

    pub(crate) fn attributes(&self) -> ibv_qp_attr {
        self.query().0
    }

    pub(crate) fn register(&self, words: &mut [u64]) -> NonNull<ibv_mr> {
        let (address, len) = (words.as_mut_ptr().cast(), size_of_val(words));
        // SAFETY: the tests keep the words until they deregister them, and read them only while no transfer runs.
        unsafe { library().reg_mr(self.domain, address, len, all_access()) }.unwrap()
    }

    pub(crate) fn send(&self, mut wr: ibv_send_wr, list: &mut [ibv_sge]) -> Result<(), Errno> {
        wr.sg_list = list.as_mut_ptr();
        wr.num_sge = list.len() as i32;
        // SAFETY: the context is open, and the tests keep the memory.
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
        let mut found = None;
        wait_until(|| {
            found = self.poll();
            found.is_some()
        });
        found.unwrap()
    }

    pub(crate) fn close(self) {
        self.close_pair();
        self.close_rest();
    }

    /// Destroys the queue pair.
    pub(crate) fn close_pair(&self) {
        // SAFETY: a handle, which the library checks.
        unsafe { library().ibv_destroy_qp(self.pair) }.unwrap();
    }

    /// Closes the objects that [`Self::close_pair`] has left.
    pub(crate) fn close_rest(self) {
        let verbs = library();
        // SAFETY: each object is destroyed before what it depends on.
        unsafe {
            verbs.ibv_destroy_cq(self.queue).unwrap();
            verbs.ibv_dealloc_pd(self.domain).unwrap();
            verbs.ibv_close_device(self.context).unwrap();
        }
    }
}

/// Waits until `done` returns `true`.
pub(crate) fn wait_until(mut done: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < until, "nothing came within {LIMIT:?}");
        std::thread::yield_now();
    }
}

pub(crate) fn deregister(region: NonNull<ibv_mr>) {
    // SAFETY: the region is alive.
    unsafe { library().ibv_dereg_mr(region.as_ptr()) }.unwrap();
}

/// Returns two connected sides, each with its own context.
pub(crate) fn sides() -> (Side, Side) {
    sides_of(ibv_qp_type::IBV_QPT_RC)
}

/// Returns two sides with queue pairs of this type in RTS, connected if the type has connections.
pub(crate) fn sides_of(kind: ibv_qp_type) -> (Side, Side) {
    let (a, b) = (Side::new(kind), Side::new(kind));
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

/// Returns a signalled request for an address of the peer.
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
