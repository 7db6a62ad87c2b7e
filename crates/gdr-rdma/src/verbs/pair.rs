//! Queue pairs of the kernel.

mod post;

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use gdr_roce::{Access, Capabilities, Psn, Qpn, State, StateError};
use gdr_verbs_sys::{
    Errno, VerbError, ibv_ah_attr, ibv_global_route, ibv_mtu, ibv_qp, ibv_qp_attr,
    ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_create_send_ops_flags, ibv_qp_ex, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_qp_state, ibv_qp_type,
};

use super::context::{Context, bytes_of, gid_of, is_about_the_way};
use super::domain::Domain;
use super::error::VerbsError;
use super::held::Held;
use super::queue::{Queue, is_of_the_form};
use super::region::flags;
use crate::error::Result;
use crate::lid::Lid;
use crate::queue_pair::{ConnectionOptions, Endpoint};

/// Segments of a request, where the device takes as many.
const SEGMENTS: u32 = 16;

/// What extended requests are used for.
const REQUESTS: [ibv_qp_create_send_ops_flags; 7] = [
    ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_RDMA_WRITE,
    ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
    ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_SEND,
    ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_SEND_WITH_IMM,
    ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_RDMA_READ,
    ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
    ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
];

/// How many routers a packet may pass.
const HOPS: u8 = 64;

/// One end of a reliable connection.
#[derive(Debug)]
pub(crate) struct Pair {
    domain: Arc<Domain>,
    queues: [Arc<Queue>; 2],
    pair: NonNull<ibv_qp>,
    /// The same, where the device takes extended requests.
    extended: Option<NonNull<ibv_qp_ex>>,
    held: Arc<Held>,
    capabilities: Capabilities,
    most_segments: u32,
}

// SAFETY: as for `Context`.
unsafe impl Send for Pair {}
// SAFETY: as for `Context`.
unsafe impl Sync for Pair {}

impl Pair {
    /// A queue pair in INIT.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        queues: [&Arc<Queue>; 2],
        capabilities: Capabilities,
        access: Access,
    ) -> std::result::Result<Self, VerbsError> {
        let context = domain.context();
        let most_segments = context.max_sge.min(SEGMENTS);
        let mut attr = ibv_qp_init_attr_ex {
            send_cq: queues[0].raw()?,
            recv_cq: queues[1].raw()?,
            cap: ibv_qp_cap {
                max_send_wr: capabilities.max_send_wr,
                max_recv_wr: capabilities.max_recv_wr,
                max_send_sge: most_segments,
                max_recv_sge: most_segments,
                max_inline_data: capabilities.max_inline,
            },
            qp_type: ibv_qp_type::IBV_QPT_RC,
            comp_mask: ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0,
            pd: domain.raw()?,
            ..Default::default()
        };
        attr.comp_mask |= ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
        attr.send_ops_flags = REQUESTS.iter().fold(0, |all, flag| all | u64::from(flag.0));
        let pair = match Self::create(context, &mut attr) {
            Err(error) if is_of_the_form(error) => {
                tracing::debug!(%error, "a queue pair without extended requests");
                attr.comp_mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
                attr.send_ops_flags = 0;
                attr.cap.max_inline_data = capabilities.max_inline;
                Self::create(context, &mut attr)
            }
            made => made,
        }
        .map_err(|error| context.failed(error))?;
        let extended = match attr.send_ops_flags {
            0 => None,
            // SAFETY: the queue pair is alive, of this library, and made for extended requests.
            _ => unsafe { context.verbs().ibv_qp_to_qp_ex(pair.as_ptr()) }.ok(),
        };
        let made = Self {
            domain: Arc::clone(domain),
            queues: queues.map(Arc::clone),
            pair,
            extended,
            held: Arc::new(Held::default()),
            capabilities: Capabilities {
                max_inline: attr.cap.max_inline_data.min(capabilities.max_inline),
                ..capabilities
            },
            most_segments,
        };
        for queue in &made.queues {
            queue.enter(made.number(), &made.held);
        }
        let mut init = attributes(ibv_qp_state::IBV_QPS_INIT);
        init.port_num = context.port();
        init.qp_access_flags = flags(access, false).0;
        made.modify(
            &mut init,
            &[
                ibv_qp_attr_mask::IBV_QP_PKEY_INDEX,
                ibv_qp_attr_mask::IBV_QP_PORT,
                ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS,
            ],
        )
        .map_err(|error| context.failed(error))?;
        Ok(made)
    }

    /// Makes a queue pair, with inline data where the device has such.
    fn create(
        context: &Context,
        attr: &mut ibv_qp_init_attr_ex,
    ) -> std::result::Result<NonNull<ibv_qp>, VerbError> {
        match Self::create_with(context, attr) {
            Err(error) if attr.cap.max_inline_data > 0 => {
                // Some devices have no inline data, or less: this side copies then.
                attr.cap.max_inline_data = 0;
                tracing::debug!(%error, "a queue pair without inline data");
                Self::create_with(context, attr)
            }
            made => made,
        }
    }

    /// Makes a queue pair. Any may touch GPU memory, which the CPU has no address of: the library
    /// must not copy small messages to where they belong (mlx5 would).
    fn create_with(
        context: &Context,
        attr: &mut ibv_qp_init_attr_ex,
    ) -> std::result::Result<NonNull<ibv_qp>, VerbError> {
        let verbs = context.verbs();
        // SAFETY: the context is open, and so are the domain and the queues, which are its own; the
        // queue pair will hold them.
        let made = unsafe { verbs.mlx5_create_qp_without_scatter(context.raw(), attr) };
        // SAFETY: as above.
        made.unwrap_or_else(|| unsafe { verbs.ibv_create_qp_ex(context.raw(), attr) })
    }

    fn number(&self) -> u32 {
        // SAFETY: the queue pair is alive; its number never changes.
        unsafe { self.pair.as_ref().qp_num }
    }

    pub(crate) fn qpn(&self) -> Qpn {
        Qpn::new(self.number())
    }

    fn modify(
        &self,
        attr: &mut ibv_qp_attr,
        mask: &[ibv_qp_attr_mask],
    ) -> std::result::Result<(), VerbError> {
        let state = ibv_qp_attr_mask::IBV_QP_STATE.0;
        let mask = mask.iter().fold(state, |all, bit| all | bit.0);
        let verbs = self.domain.context().verbs();
        // SAFETY: the queue pair is alive and the attributes are readable.
        unsafe { verbs.ibv_modify_qp(self.pair.as_ptr(), attr, mask as i32) }
    }

    /// Where it stands; ERR where the device does not say.
    pub(crate) fn state(&self) -> State {
        let verbs = self.domain.context().verbs();
        let mut attr = attributes(ibv_qp_state::IBV_QPS_RESET);
        // SAFETY: numbers and null pointers.
        let mut init: ibv_qp_init_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 as i32;
        // SAFETY: the queue pair is alive; both are writable.
        let asked = unsafe { verbs.ibv_query_qp(self.pair.as_ptr(), &mut attr, mask, &mut init) };
        match (asked, attr.qp_state) {
            (Ok(()), ibv_qp_state::IBV_QPS_RESET) => State::Reset,
            (Ok(()), ibv_qp_state::IBV_QPS_INIT) => State::Init,
            (Ok(()), ibv_qp_state::IBV_QPS_RTR) => State::ReadyToReceive,
            (Ok(()), ibv_qp_state::IBV_QPS_RTS | ibv_qp_state::IBV_QPS_SQD) => State::ReadyToSend,
            _ => State::Error,
        }
    }

    pub(crate) fn to_rtr(&self, peer: &Endpoint, options: &ConnectionOptions) -> Result<()> {
        let from = self.state();
        if from != State::Init {
            let to = State::ReadyToReceive;
            return Err(StateError { from, to }.into());
        }
        let context = self.domain.context();
        if context.is_infiniband() && peer.lid.is_none() {
            return Err(VerbsError::NoLid {
                device: context.name().to_owned(),
            }
            .into());
        }
        let mut rtr = attributes(ibv_qp_state::IBV_QPS_RTR);
        rtr.path_mtu = ibv_mtu(options.path_mtu.code().into());
        rtr.dest_qp_num = peer.qpn.get();
        rtr.rq_psn = peer.psn.get();
        rtr.max_dest_rd_atomic = options.max_dest_rd_atomic;
        rtr.min_rnr_timer = options.min_rnr_timer.code();
        rtr.ah_attr = ibv_ah_attr {
            grh: ibv_global_route {
                dgid: gid_of(peer.address.ip()),
                flow_label: 0,
                sgid_index: u8::try_from(context.gid().entry.index).unwrap_or(0),
                hop_limit: HOPS,
                traffic_class: 0,
            },
            is_global: u8::from(self.needs_global_route(peer)),
            port_num: context.port(),
            dlid: peer.lid.map_or(0, Lid::get),
            sl: 0,
            src_path_bits: 0,
            static_rate: 0,
        };
        self.modify(
            &mut rtr,
            &[
                ibv_qp_attr_mask::IBV_QP_AV,
                ibv_qp_attr_mask::IBV_QP_PATH_MTU,
                ibv_qp_attr_mask::IBV_QP_DEST_QPN,
                ibv_qp_attr_mask::IBV_QP_RQ_PSN,
                ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC,
                ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER,
            ],
        )
        .map_err(|error| match error.errno() {
            Errno::EINVAL if self.reads_too_many(options.max_dest_rd_atomic) => {
                self.too_many_reads(options.max_dest_rd_atomic)
            }
            errno if is_about_the_way(errno) => VerbsError::Route {
                device: context.name().to_owned(),
                local: context.address().ip(),
                peer: peer.address.ip(),
                errno,
            },
            _ => context.failed(error),
        })?;
        Ok(())
    }

    pub(crate) fn to_rts(&self, psn: Psn, options: &ConnectionOptions) -> Result<()> {
        let from = self.state();
        if from != State::ReadyToReceive {
            let to = State::ReadyToSend;
            return Err(StateError { from, to }.into());
        }
        let mut rts = attributes(ibv_qp_state::IBV_QPS_RTS);
        rts.sq_psn = psn.get();
        rts.timeout = options.timeout.exponent();
        rts.retry_cnt = options.retry_count.get();
        rts.rnr_retry = options.rnr_retry.times().unwrap_or(7);
        rts.max_rd_atomic = options.max_rd_atomic;
        self.modify(
            &mut rts,
            &[
                ibv_qp_attr_mask::IBV_QP_SQ_PSN,
                ibv_qp_attr_mask::IBV_QP_TIMEOUT,
                ibv_qp_attr_mask::IBV_QP_RETRY_CNT,
                ibv_qp_attr_mask::IBV_QP_RNR_RETRY,
                ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC,
            ],
        )
        .map_err(|error| match error.errno() {
            Errno::EINVAL if self.reads_too_many(options.max_rd_atomic) => {
                self.too_many_reads(options.max_rd_atomic)
            }
            _ => self.domain.context().failed(error),
        })?;
        Ok(())
    }

    /// Whether packets to the peer need a global route header: on Ethernet all do, on InfiniBand
    /// those to another subnet, whose GIDs have another prefix.
    fn needs_global_route(&self, peer: &Endpoint) -> bool {
        let context = self.domain.context();
        let prefix = |address| u128::from_be_bytes(bytes_of(address)) >> 64;
        !context.is_infiniband() || prefix(context.address().ip()) != prefix(peer.address.ip())
    }

    /// Whether the device does not do so many READs and atomics at a time.
    fn reads_too_many(&self, asked: u8) -> bool {
        i32::from(asked) > self.domain.context().max_reads
    }

    fn too_many_reads(&self, asked: u8) -> VerbsError {
        let context = self.domain.context();
        VerbsError::Reads {
            device: context.name().to_owned(),
            asked,
            most: context.max_reads,
        }
    }

    pub(crate) fn to_error(&self) {
        let mut attr = attributes(ibv_qp_state::IBV_QPS_ERR);
        if let Err(error) = self.modify(&mut attr, &[]) {
            tracing::warn!(%error, "a queue pair does not go to ERR");
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let number = self.number();
        let verbs = self.domain.context().verbs();
        // An event that names it and was not taken would keep it for ever.
        self.domain.context().take_events();
        // SAFETY: it is alive and not used again. Nothing that it was posted is reached once it is
        // destroyed, so that what is held may go.
        if let Err(error) = unsafe { verbs.ibv_destroy_qp(self.pair.as_ptr()) } {
            tracing::warn!(%error, "a queue pair is not given back");
        }
        for queue in &self.queues {
            queue.leave(number);
        }
    }
}

fn attributes(state: ibv_qp_state) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: state,
        // SAFETY: numbers, and a union of bytes.
        ..unsafe { MaybeUninit::zeroed().assume_init() }
    }
}
