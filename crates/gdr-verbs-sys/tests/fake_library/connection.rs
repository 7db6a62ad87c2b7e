//! Two connected queue pairs of simulated devices, and their memory.

use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use fake_ibverbs::{DeviceSpec, Fake};
use gdr_verbs_sys::ibv_qp_attr_mask as Mask;
use gdr_verbs_sys::*;

pub(crate) const FIRST: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 1);
pub(crate) const SECOND: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 2);

/// Deadline of each wait. The operations of these tests take a small fraction of it.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// The `rnr_retry` value for unlimited retries, ibv_modify_qp(3).
pub(crate) const FOREVER: u8 = 7;

/// The `cq_context` of each queue.
pub(crate) const OWN: usize = 0x1234;

/// Returns all access flags of a region.
pub(crate) fn all_access() -> ibv_access_flags {
    ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
        | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
        | ibv_access_flags::IBV_ACCESS_REMOTE_READ
        | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC
}

/// Returns a library with two RoCE devices, `mlx5_0` and `mlx5_1`.
pub(crate) fn two_devices() -> Fake {
    let fake = Fake::load();
    fake.add(DeviceSpec::roce("mlx5_0", FIRST));
    fake.add(DeviceSpec::roce("mlx5_1", SECOND));
    fake
}

/// Opens the device with this name.
pub(crate) fn open(verbs: &Verbs, name: &str) -> *mut ibv_context {
    let devices = verbs.devices().unwrap();
    let named = |device: &&*mut ibv_device| {
        // SAFETY: the list and its devices are alive, and names are C strings.
        let text = unsafe { std::ffi::CStr::from_ptr(verbs.ibv_get_device_name(**device)) };
        text.to_str() == Ok(name)
    };
    let device = *devices.as_slice().iter().find(named).unwrap();
    // SAFETY: the list and its devices are alive.
    unsafe { verbs.ibv_open_device(device) }.unwrap().as_ptr()
}

/// One side: a device, a domain, a completion queue and a queue pair. [`Side::close`] destroys them.
pub(crate) struct Side {
    pub(crate) verbs: &'static Verbs,
    pub(crate) context: *mut ibv_context,
    pub(crate) domain: *mut ibv_pd,
    /// Null if completions are only polled.
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) queue: *mut ibv_cq,
    pub(crate) pair: *mut ibv_qp,
}

impl Side {
    pub(crate) fn new(verbs: &'static Verbs, name: &str) -> Self {
        Self::make(verbs, name, |_| ptr::null_mut())
    }

    /// Like [`Side::new`], with a channel for completion events.
    pub(crate) fn with_channel(verbs: &'static Verbs, name: &str) -> Self {
        Self::make(verbs, name, |context| {
            // SAFETY: the context is open, and the side outlives the channel.
            unsafe { verbs.ibv_create_comp_channel(context) }
                .unwrap()
                .as_ptr()
        })
    }

    fn make(
        verbs: &'static Verbs,
        name: &str,
        channel: impl FnOnce(*mut ibv_context) -> *mut ibv_comp_channel,
    ) -> Self {
        let context = open(verbs, name);
        let channel = channel(context);
        // SAFETY: the context and its objects are alive until `close`.
        unsafe {
            let domain = verbs.ibv_alloc_pd(context).unwrap().as_ptr();
            let own = ptr::without_provenance_mut(OWN);
            let queue = verbs
                .ibv_create_cq(context, 64, own, channel, 0)
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
                verbs,
                context,
                domain,
                channel,
                queue,
                pair,
            }
        }
    }

    fn number(&self) -> u32 {
        // SAFETY: the queue pair is alive.
        unsafe { (*self.pair).qp_num }
    }

    pub(crate) fn modify(&self, attr: &mut ibv_qp_attr, mask: Mask) -> Result<(), VerbError> {
        // SAFETY: the queue pair is alive.
        unsafe { self.verbs.ibv_modify_qp(self.pair, attr, mask.0 as i32) }
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

    /// Returns the port's GID for RoCE v2 over IPv4.
    fn gid(&self) -> ibv_gid {
        // SAFETY: the context is open.
        unsafe { self.verbs.query_gid(self.context, 1, 3) }
            .unwrap()
            .gid
    }

    pub(crate) fn to_rtr(&self, peer: &Self) -> Result<(), VerbError> {
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTR,
            path_mtu: ibv_mtu::IBV_MTU_1024,
            dest_qp_num: peer.number(),
            rq_psn: 7,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            ..Default::default()
        };
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.dgid = peer.gid();
        attr.ah_attr.grh.sgid_index = 3;
        attr.ah_attr.grh.hop_limit = 64;
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_AV
            | Mask::IBV_QP_PATH_MTU
            | Mask::IBV_QP_DEST_QPN
            | Mask::IBV_QP_RQ_PSN
            | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | Mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attr, mask)
    }

    /// Allows 8 attempts of 67 ms for a response, however busy the host is, and `rnr_retries` attempts if the peer has
    /// no receive.
    pub(crate) fn to_rts(&self, rnr_retries: u8) -> Result<(), VerbError> {
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: rnr_retries,
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

    pub(crate) fn state(&self) -> ibv_qp_state {
        let (mut attr, mut made) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        let mask = Mask::IBV_QP_STATE.0 as i32;
        // SAFETY: the queue pair is alive.
        unsafe {
            self.verbs
                .ibv_query_qp(self.pair, &mut attr, mask, &mut made)
        }
        .unwrap();
        attr.qp_state
    }

    pub(crate) fn register(&self, bytes: &mut [u64], access: ibv_access_flags) -> NonNull<ibv_mr> {
        let address = bytes.as_mut_ptr().cast();
        // SAFETY: the tests keep the bytes until they deregister them, and read them only
        // while no transfer runs.
        unsafe {
            self.verbs
                .reg_mr(self.domain, address, size_of_val(bytes), access)
        }
        .unwrap()
    }

    pub(crate) fn deregister(&self, region: NonNull<ibv_mr>) {
        // SAFETY: the region is alive, and no request uses it.
        unsafe { self.verbs.ibv_dereg_mr(region.as_ptr()) }.unwrap();
    }

    /// Posts one request.
    pub(crate) fn send(
        &self,
        mut request: ibv_send_wr,
        segments: &mut [ibv_sge],
    ) -> Result<(), Errno> {
        request.sg_list = segments.as_mut_ptr();
        request.num_sge = segments.len() as i32;
        // SAFETY: the queue pair is alive, and the tests keep the memory alive.
        let posted = unsafe { ibv_post_send(self.pair, &mut request) };
        posted.map_err(|refusal| refusal.error.errno())
    }

    pub(crate) fn receive(&self, id: u64, segments: &mut [ibv_sge]) -> Result<(), Errno> {
        let mut request = ibv_recv_wr {
            wr_id: id,
            sg_list: segments.as_mut_ptr(),
            num_sge: segments.len() as i32,
            ..Default::default()
        };
        // SAFETY: the queue pair is alive, and the tests keep the memory alive.
        let posted = unsafe { ibv_post_recv(self.pair, &mut request) };
        posted.map_err(|refusal| refusal.error.errno())
    }

    /// Polls for the next completion, if the queue has one.
    pub(crate) fn poll(&self) -> Option<ibv_wc> {
        let mut room = [MaybeUninit::uninit(); 1];
        // SAFETY: the queue is alive.
        let found = unsafe { ibv_poll_cq(self.queue, &mut room) }.unwrap();
        found.first().copied()
    }

    /// Waits for the next completion.
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
        // SAFETY: the objects are alive and unused, and each is destroyed before the objects it depends on.
        unsafe {
            self.verbs.ibv_destroy_qp(self.pair).unwrap();
            self.verbs.ibv_destroy_cq(self.queue).unwrap();
            if !self.channel.is_null() {
                self.verbs.ibv_destroy_comp_channel(self.channel).unwrap();
            }
            self.verbs.ibv_dealloc_pd(self.domain).unwrap();
            self.verbs.ibv_close_device(self.context).unwrap();
        }
    }
}

/// Connects two sides in both directions.
pub(crate) fn connect(a: &Side, b: &Side, rnr_retries: u8) {
    a.to_init().unwrap();
    b.to_init().unwrap();
    a.to_rtr(b).unwrap();
    b.to_rtr(a).unwrap();
    a.to_rts(rnr_retries).unwrap();
    b.to_rts(rnr_retries).unwrap();
}

/// Returns two connected sides.
pub(crate) fn sides(fake: &Fake) -> (Side, Side) {
    sides_that_retry(fake, FOREVER)
}

/// Returns two connected sides that retry a message this many times while the peer has no receive for it.
pub(crate) fn sides_that_retry(fake: &Fake, rnr_retries: u8) -> (Side, Side) {
    let verbs = fake.verbs();
    let (a, b) = (Side::new(verbs, "mlx5_0"), Side::new(verbs, "mlx5_1"));
    connect(&a, &b, rnr_retries);
    (a, b)
}

/// Returns a range of registered memory.
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
    let mut request = ibv_send_wr {
        wr_id: id,
        opcode,
        send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
        ..Default::default()
    };
    request.wr.rdma.remote_addr = region.addr.addr() as u64 + offset;
    request.wr.rdma.rkey = region.rkey;
    request
}
