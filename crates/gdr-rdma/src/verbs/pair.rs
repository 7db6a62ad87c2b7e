//! Queue pairs of the kernel.

use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use gdr_roce::{
    Access, AtomicOp, Capabilities, Immediate, MAX_MESSAGE, Operation, PostError, Psn, Qpn, Remote,
    SendFlags, State, StateError, WcOpcode,
};
use gdr_verbs_sys::{
    Errno, VerbError, ibv_ah_attr, ibv_global_route, ibv_mtu, ibv_post_recv, ibv_post_send, ibv_qp,
    ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_init_attr_mask, ibv_qp_state, ibv_qp_type, ibv_recv_wr, ibv_send_flags, ibv_send_wr,
    ibv_sge, ibv_wr_opcode,
};
use smallvec::SmallVec;

use super::context::{Context, bytes_of, gid_of, is_about_the_way};
use super::domain::Domain;
use super::error::VerbsError;
use super::held::{Ended, Held};
use super::queue::Queue;
use super::region::flags;
use crate::error::{Error, Result};
use crate::lid::Lid;
use crate::queue_pair::{ConnectionOptions, Endpoint};
use crate::region::Segment;
use crate::request::{Data, RecvRequest, SendRequest};

/// Segments of a request, where the device takes as many.
const SEGMENTS: u32 = 16;

/// How many routers a packet may pass.
const HOPS: u8 = 64;

/// One end of a reliable connection.
#[derive(Debug)]
pub(crate) struct Pair {
    domain: Arc<Domain>,
    queues: [Arc<Queue>; 2],
    pair: NonNull<ibv_qp>,
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
        let pair = match Self::create(context, &mut attr) {
            Err(error) if capabilities.max_inline > 0 => {
                // Some devices have no inline data, or less: this side copies then.
                attr.cap.max_inline_data = 0;
                tracing::debug!(%error, "a queue pair without inline data");
                Self::create(context, &mut attr)
            }
            made => made,
        }
        .map_err(|error| context.failed(error))?;
        let made = Self {
            domain: Arc::clone(domain),
            queues: queues.map(Arc::clone),
            pair,
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

    /// Makes a queue pair. Any may touch GPU memory, which the CPU has no address of: the library
    /// must not copy small messages to where they belong (mlx5 would).
    fn create(
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

    /// Posts requests in order, up to the first that is refused.
    pub(crate) fn post_sends(
        &self,
        requests: impl IntoIterator<Item = Result<SendRequest>>,
    ) -> (usize, Result<()>) {
        let mut posted = 0;
        for request in requests {
            if let Err(error) = request.and_then(|request| self.post_send(request)) {
                return (posted, Err(error));
            }
            posted += 1;
        }
        (posted, Ok(()))
    }

    fn post_send(&self, request: SendRequest) -> Result<()> {
        let SendRequest {
            id,
            operation,
            data,
            flags,
        } = request;
        let (mut entries, len) = self.entries(&operation, &data)?;
        // SAFETY: numbers, null pointers, and unions of them.
        let mut wr: ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        wr.sg_list = entries.as_mut_ptr();
        wr.num_sge = i32::try_from(entries.len()).unwrap_or(i32::MAX);
        wr.send_flags = send_flags(flags, matches!(data, Data::Inline(_)));
        let opcode = describe(&operation, &mut wr);
        let segments = match &data {
            Data::Segments(segments) => segments.clone(),
            Data::Inline(_) => SmallVec::new(),
        };
        let ended = Ended { id, opcode, len };
        self.held
            .post(ended, segments, |number| {
                wr.wr_id = number;
                // SAFETY: the queue pair is alive, the request and its entries are readable, and
                // what they name is held until the request has ended: registered memory by
                // `segments`, inline bytes until this returns, by when they were copied.
                unsafe { ibv_post_send(self.pair.as_ptr(), &mut wr) }.map_err(|error| error.error)
            })
            .map_err(|error| self.refused(error, self.capabilities.max_send_wr))
    }

    /// The segments of a request as the device takes them, and their length.
    fn entries(&self, operation: &Operation, data: &Data) -> Result<(SmallVec<[ibv_sge; 2]>, u32)> {
        let answers = matches!(operation, Operation::Read { .. } | Operation::Atomic { .. });
        let (entries, len): (SmallVec<[ibv_sge; 2]>, u64) = match data {
            Data::Segments(segments) => (
                segments.iter().map(entry).collect(),
                segments
                    .iter()
                    .map(|segment| u64::from(segment.len()))
                    .sum(),
            ),
            Data::Inline(_) if answers => return Err(PostError::InlineAnswer.into()),
            Data::Inline(bytes) => {
                let max = self.capabilities.max_inline;
                if bytes.len() > max as usize {
                    let len = bytes.len();
                    return Err(PostError::InlineTooLong { len, max }.into());
                }
                let inline = ibv_sge {
                    addr: bytes.as_ptr().expose_provenance() as u64,
                    length: bytes.len() as u32,
                    lkey: 0,
                };
                (SmallVec::from_iter([inline]), bytes.len() as u64)
            }
        };
        if entries.len() > self.most_segments as usize {
            return Err(VerbsError::Segments {
                segments: entries.len(),
                most: self.most_segments,
            }
            .into());
        }
        match u32::try_from(len) {
            Ok(len) if matches!(operation, Operation::Atomic { .. }) && len != 8 => {
                Err(PostError::AtomicLength(u64::from(len)).into())
            }
            Ok(len) if len <= MAX_MESSAGE => Ok((entries, len)),
            _ => Err(PostError::TooLong(len).into()),
        }
    }

    pub(crate) fn post_recv(&self, request: RecvRequest) -> Result<()> {
        let mut entries: SmallVec<[ibv_sge; 2]> = request.segments.iter().map(entry).collect();
        if entries.len() > self.most_segments as usize {
            return Err(VerbsError::Segments {
                segments: entries.len(),
                most: self.most_segments,
            }
            .into());
        }
        let mut wr = ibv_recv_wr {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list: entries.as_mut_ptr(),
            num_sge: i32::try_from(entries.len()).unwrap_or(i32::MAX),
        };
        let ended = Ended {
            id: request.id,
            opcode: WcOpcode::Recv,
            len: 0,
        };
        self.held
            .post(ended, request.segments, |number| {
                wr.wr_id = number;
                // SAFETY: the queue pair is alive, the request and its entries are readable, and
                // what they name is held until the request has ended.
                unsafe { ibv_post_recv(self.pair.as_ptr(), &mut wr) }.map_err(|error| error.error)
            })
            .map_err(|error| self.refused(error, self.capabilities.max_recv_wr))
    }

    /// Why a request was not taken.
    fn refused(&self, error: VerbError, room: u32) -> Error {
        let state = self.state();
        match error.errno() {
            Errno::ENOMEM => PostError::Full(room).into(),
            Errno::EINVAL if !matches!(state, State::ReadyToSend | State::Error) => {
                PostError::State(state).into()
            }
            _ => self.domain.context().failed(error).into(),
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

fn entry(segment: &Segment) -> ibv_sge {
    let raw = segment.raw();
    ibv_sge {
        addr: raw.addr,
        length: raw.len,
        lkey: raw.lkey.0,
    }
}

fn send_flags(flags: SendFlags, inline: bool) -> u32 {
    let mut all = 0;
    for (is, flag) in [
        (
            flags.contains(SendFlags::SIGNALLED),
            ibv_send_flags::IBV_SEND_SIGNALED,
        ),
        (
            flags.contains(SendFlags::FENCE),
            ibv_send_flags::IBV_SEND_FENCE,
        ),
        (
            flags.contains(SendFlags::SOLICITED),
            ibv_send_flags::IBV_SEND_SOLICITED,
        ),
        (inline, ibv_send_flags::IBV_SEND_INLINE),
    ] {
        if is {
            all |= flag.0;
        }
    }
    all
}

/// Fills in what a request is; gives the opcode of its completion.
fn describe(operation: &Operation, wr: &mut ibv_send_wr) -> WcOpcode {
    let place = |wr: &mut ibv_send_wr, remote: &Remote| {
        wr.wr.rdma.remote_addr = remote.addr;
        wr.wr.rdma.rkey = remote.rkey.0;
    };
    let carry = |wr: &mut ibv_send_wr, immediate: &Option<Immediate>, plain, with| match immediate {
        Some(immediate) => {
            wr.opcode = with;
            wr.__bindgen_anon_1.imm_data = immediate.0.to_be();
        }
        None => wr.opcode = plain,
    };
    match operation {
        Operation::Send { immediate } => {
            carry(
                wr,
                immediate,
                ibv_wr_opcode::IBV_WR_SEND,
                ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
            );
            WcOpcode::Send
        }
        Operation::Write { remote, immediate } => {
            place(wr, remote);
            carry(
                wr,
                immediate,
                ibv_wr_opcode::IBV_WR_RDMA_WRITE,
                ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
            );
            WcOpcode::Write
        }
        Operation::Read { remote } => {
            place(wr, remote);
            wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
            WcOpcode::Read
        }
        Operation::Atomic { remote, op } => {
            let (opcode, compare_add, swap, completes) = match op {
                AtomicOp::FetchAdd { add } => (
                    ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
                    *add,
                    0,
                    WcOpcode::FetchAdd,
                ),
                AtomicOp::CompareSwap { compare, swap } => (
                    ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP,
                    *compare,
                    *swap,
                    WcOpcode::CompareSwap,
                ),
            };
            wr.opcode = opcode;
            wr.wr.atomic.remote_addr = remote.addr;
            wr.wr.atomic.rkey = remote.rkey.0;
            wr.wr.atomic.compare_add = compare_add;
            wr.wr.atomic.swap = swap;
            completes
        }
    }
}
