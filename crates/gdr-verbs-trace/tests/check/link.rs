//! Two connected queue pairs of one process.

use std::mem::MaybeUninit;
use std::ptr;
use std::time::{Duration, Instant};

use gdr_verbs_sys::ibv_qp_attr_mask as Mask;
use gdr_verbs_sys::*;

use crate::shared_queue::SharedQueue;

/// Deadline of each wait.
const LIMIT: Duration = Duration::from_secs(30);

/// Parameters of a link.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) sends: u32,
    pub(crate) completions: i32,
    /// `IBV_ACCESS_*` of the regions.
    pub(crate) access: ibv_access_flags,
    pub(crate) timeout: u8,
    pub(crate) rnr_retry: u8,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            sends: 16,
            completions: 64,
            access: ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
                | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
                | ibv_access_flags::IBV_ACCESS_REMOTE_READ,
            timeout: 14,
            rnr_retry: 6,
        }
    }
}

/// One end: a queue pair with a registered page.
pub(crate) struct End {
    pub(crate) queue: *mut ibv_cq,
    pub(crate) pair: *mut ibv_qp,
    pub(crate) region: *mut ibv_mr,
    pub(crate) page: *mut u8,
}

/// Both ends, on one device.
pub(crate) struct Link {
    pub(crate) verbs: &'static Verbs,
    pub(crate) context: *mut ibv_context,
    pub(crate) domain: *mut ibv_pd,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) a: End,
    pub(crate) b: End,
    /// Receives of `b`, if it uses a shared queue.
    pub(crate) shared: Option<SharedQueue>,
    sizes: Sizes,
}

pub(crate) const PAGE: usize = 4096;

/// Returns a page that can be unmapped.
pub(crate) fn page() -> *mut u8 {
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: at an address chosen by the kernel, a mapping replaces nothing.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE, protection, flags, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    page.cast()
}

/// Returns what a queue pair is created with.
fn pair_of(sizes: Sizes, queue: *mut ibv_cq) -> ibv_qp_init_attr {
    let mut attr = ibv_qp_init_attr {
        send_cq: queue,
        recv_cq: queue,
        qp_type: ibv_qp_type::IBV_QPT_RC,
        ..Default::default()
    };
    attr.cap.max_send_wr = sizes.sends;
    attr.cap.max_recv_wr = 16;
    attr.cap.max_send_sge = 1;
    attr.cap.max_recv_sge = 1;
    attr
}

impl Link {
    /// Creates a connected link.
    pub(crate) fn new(sizes: Sizes) -> Self {
        let link = Self::unconnected(sizes);
        link.connect();
        link
    }

    /// Creates a link whose queue pairs are in RESET.
    pub(crate) fn unconnected(sizes: Sizes) -> Self {
        let verbs = Verbs::library().unwrap();
        let devices = verbs.devices().unwrap();
        // SAFETY: the objects are alive until `close`.
        unsafe {
            let context = verbs
                .ibv_open_device(devices.as_slice()[0])
                .unwrap()
                .as_ptr();
            let domain = verbs.ibv_alloc_pd(context).unwrap().as_ptr();
            let channel = verbs.ibv_create_comp_channel(context).unwrap().as_ptr();
            let end = || {
                let own = ptr::null_mut();
                let queue = verbs.ibv_create_cq(context, sizes.completions, own, channel, 0);
                let queue = queue.unwrap().as_ptr();
                let mut attr = pair_of(sizes, queue);
                let pair = verbs.ibv_create_qp(domain, &mut attr).unwrap().as_ptr();
                let page = page();
                let region = verbs
                    .reg_mr(domain, page.cast(), PAGE, sizes.access)
                    .unwrap();
                End {
                    queue,
                    pair,
                    region: region.as_ptr(),
                    page,
                }
            };
            let (a, b) = (end(), end());
            Self {
                verbs,
                context,
                domain,
                channel,
                a,
                b,
                shared: None,
                sizes,
            }
        }
    }

    /// Replaces the queue pair of `b` by one with a shared receive queue.
    pub(crate) fn share_receives(&mut self, room: u32) {
        let shared = self
            .shared
            .insert(SharedQueue::new(self.context, self.domain, room));
        let mut attr = pair_of(self.sizes, self.b.queue);
        attr.srq = shared.srq();
        // SAFETY: alive, and not used by anything.
        unsafe {
            self.verbs.ibv_destroy_qp(self.b.pair).unwrap();
            let pair = self.verbs.ibv_create_qp(self.domain, &mut attr);
            self.b.pair = pair.unwrap().as_ptr();
        }
    }

    fn modify(&self, end: &End, attr: &mut ibv_qp_attr, mask: Mask) {
        let mask = (mask | Mask::IBV_QP_STATE).0 as i32;
        // SAFETY: the queue pair is alive.
        unsafe { self.verbs.ibv_modify_qp(end.pair, attr, mask) }.unwrap();
    }

    pub(crate) fn to_error(&self, end: &End) {
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_ERR,
            ..Default::default()
        };
        self.modify(end, &mut attr, Mask::NONE);
    }

    pub(crate) fn connect(&self) {
        for (end, peer) in [(&self.a, &self.b), (&self.b, &self.a)] {
            self.to_init(end);
            self.to_rtr(end, peer);
            self.to_rts(end);
        }
    }

    pub(crate) fn to_init(&self, end: &End) {
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            port_num: 1,
            qp_access_flags: self.sizes.access.0,
            ..Default::default()
        };
        let mask = Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_ACCESS_FLAGS;
        self.modify(end, &mut attr, mask);
    }

    pub(crate) fn to_rtr(&self, end: &End, peer: &End) {
        // SAFETY: the context is open.
        let gid = unsafe { self.verbs.query_gid(self.context, 1, 0) }
            .unwrap()
            .gid;
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTR,
            path_mtu: ibv_mtu::IBV_MTU_1024,
            // SAFETY: alive.
            dest_qp_num: unsafe { (*peer.pair).qp_num },
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            ..Default::default()
        };
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.dgid = gid;
        let path =
            Mask::IBV_QP_AV | Mask::IBV_QP_PATH_MTU | Mask::IBV_QP_DEST_QPN | Mask::IBV_QP_RQ_PSN;
        let reads = Mask::IBV_QP_MAX_DEST_RD_ATOMIC | Mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(end, &mut attr, path | reads);
    }

    pub(crate) fn to_rts(&self, end: &End) {
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            max_rd_atomic: 4,
            timeout: self.sizes.timeout,
            retry_cnt: 7,
            rnr_retry: self.sizes.rnr_retry,
            ..Default::default()
        };
        let mask = Mask::IBV_QP_SQ_PSN
            | Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(end, &mut attr, mask);
    }

    /// Returns a WRITE to the first bytes of the peer's page.
    pub(crate) fn write(&self, len: u32) -> ibv_send_wr {
        let mut wr = ibv_send_wr {
            wr_id: 1,
            opcode: ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
            ..Default::default()
        };
        wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
            remote_addr: self.b.page.addr() as u64,
            // SAFETY: alive.
            rkey: unsafe { (*self.b.region).rkey },
        };
        wr.num_sge = len.min(1) as i32;
        wr
    }

    /// Destroys everything in the right order.
    pub(crate) fn close(self) {
        // SAFETY: each object is destroyed before the objects it depends on.
        unsafe {
            for end in [&self.a, &self.b] {
                self.verbs.ibv_destroy_qp(end.pair).unwrap();
                self.verbs.ibv_destroy_cq(end.queue).unwrap();
                if !end.region.is_null() {
                    self.verbs.ibv_dereg_mr(end.region).unwrap();
                }
            }
            if let Some(shared) = self.shared {
                shared.destroy();
            }
            self.verbs.ibv_destroy_comp_channel(self.channel).unwrap();
            self.verbs.ibv_dealloc_pd(self.domain).unwrap();
            self.verbs.ibv_close_device(self.context).unwrap();
        }
    }
}

impl End {
    /// Returns a segment of the page.
    pub(crate) fn segment(&self, at: u64, length: u32) -> ibv_sge {
        ibv_sge {
            addr: self.page.addr() as u64 + at,
            length,
            // SAFETY: alive.
            lkey: unsafe { (*self.region).lkey },
        }
    }

    /// Posts a request with a segment; returns whether it was accepted.
    pub(crate) fn send(&self, mut wr: ibv_send_wr, mut sge: ibv_sge) -> bool {
        wr.sg_list = &raw mut sge;
        wr.num_sge = 1;
        // SAFETY: the objects are alive.
        unsafe { ibv_post_send(self.pair, &mut wr) }.is_ok()
    }

    /// Posts a receive.
    pub(crate) fn receive(&self, wr_id: u64, mut sge: ibv_sge) {
        let mut wr = ibv_recv_wr {
            wr_id,
            sg_list: &raw mut sge,
            num_sge: 1,
            ..Default::default()
        };
        // SAFETY: the objects are alive.
        unsafe { ibv_post_recv(self.pair, &mut wr) }.unwrap();
    }

    pub(crate) fn poll(&self) -> Option<ibv_wc> {
        let mut room = [MaybeUninit::uninit(); 1];
        // SAFETY: the queue is alive.
        unsafe { ibv_poll_cq(self.queue, &mut room) }
            .unwrap()
            .first()
            .copied()
    }

    /// Waits for a completion.
    pub(crate) fn completion(&self) -> ibv_wc {
        let until = Instant::now() + LIMIT;
        loop {
            if let Some(found) = self.poll() {
                return found;
            }
            assert!(Instant::now() < until, "nothing came within {LIMIT:?}");
            std::thread::yield_now();
        }
    }
}
