//! Queue pairs of kernel devices.

mod post;

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use gdr_roce::{AckTimeout, Capabilities, Psn, Qpn, State, StateError};
use gdr_verbs_sys::{
    Errno, VerbError, ibv_ah_attr, ibv_global_route, ibv_mtu, ibv_qp, ibv_qp_attr,
    ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_create_send_ops_flags, ibv_qp_ex, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_qp_state, ibv_qp_type,
};

use self::post::PreparedRequest;
use super::completion_queue::VerbsCompletionQueue;
use super::context::{Context, bytes_of, gid_of, is_routing_error};
use super::memory_region::access_flags;
use super::outstanding::OutstandingRequests;
use super::protection_domain::VerbsDomain;
use crate::error::{Error, Feature, Foreign, NicError, Result, VerbsError};
use crate::provider::{DeviceOps, PreparedSendOps, QueuePairInit, QueuePairOps, downcast_queue};
use crate::types::{ConnectionOptions, Endpoint, Lid, SourcePort};
use crate::work_request::{RecvRequest, SendRequest};

/// Segments per request, if the device supports that many.
const SEGMENTS: u32 = 16;

/// Operations for which extended requests are used.
const REQUESTS: [ibv_qp_create_send_ops_flags; 7] = [
    ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_RDMA_WRITE,
    ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
    ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_SEND,
    ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_SEND_WITH_IMM,
    ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_RDMA_READ,
    ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
    ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
];

/// Exponent of the longest ACK timeout of a device: 2.4 hours.
const LONGEST_TIMEOUT: u8 = 31;

/// The hop limit of packets.
const HOPS: u8 = 64;

/// One end of a reliable connection.
#[derive(Debug)]
pub(super) struct VerbsQueuePair {
    domain: Arc<VerbsDomain>,
    queues: [Arc<VerbsCompletionQueue>; 2],
    qp: NonNull<ibv_qp>,
    /// The same queue pair, if the device supports extended requests.
    extended: Option<NonNull<ibv_qp_ex>>,
    outstanding: Arc<OutstandingRequests>,
    capabilities: Capabilities,
    most_segments: u32,
}

// SAFETY: as for `Context`.
unsafe impl Send for VerbsQueuePair {}
// SAFETY: as for `Context`.
unsafe impl Sync for VerbsQueuePair {}

impl VerbsQueuePair {
    /// Creates a queue pair in INIT.
    pub(super) fn new(domain: Arc<VerbsDomain>, init: &QueuePairInit<'_>) -> Result<Self> {
        let context = Arc::clone(domain.context());
        let queue = |queue| {
            let queue: Arc<VerbsCompletionQueue> = downcast_queue(queue)?;
            if !Arc::ptr_eq(queue.context(), &context) {
                return Err(Error::Nic(NicError::Foreign(Foreign::CompletionQueue)));
            }
            Ok(queue)
        };
        if init.queues.shared_receives.is_some() {
            return Err(Error::NotOffered(Feature::SharedReceiveQueues));
        }
        let queues = [
            queue(init.queues.send_queue)?,
            queue(init.queues.recv_queue)?,
        ];
        let capabilities = init.queues.capabilities;
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
        let qp = match Self::create(&context, &mut attr) {
            Err(error) if is_unsupported(error) => {
                tracing::debug!(%error, "the queue pair has no extended requests");
                attr.comp_mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
                attr.send_ops_flags = 0;
                attr.cap.max_inline_data = capabilities.max_inline;
                Self::create(&context, &mut attr)
            }
            created => created,
        }
        .map_err(|error| context.failed(error))?;
        let extended = match attr.send_ops_flags {
            0 => None,
            // SAFETY: the queue pair is alive, of this library, and created for extended requests.
            _ => unsafe { context.verbs().ibv_qp_to_qp_ex(qp.as_ptr()) }.ok(),
        };
        let created = Self {
            domain,
            queues,
            qp,
            extended,
            outstanding: Arc::default(),
            capabilities: Capabilities {
                max_inline: attr.cap.max_inline_data.min(capabilities.max_inline),
                ..capabilities
            },
            most_segments,
        };
        for queue in &created.queues {
            queue.add_qp(created.number(), &created.outstanding);
        }
        let mut to_init = attributes(ibv_qp_state::IBV_QPS_INIT);
        to_init.port_num = context.port();
        to_init.qp_access_flags = access_flags(init.access, false).0;
        created
            .modify(
                &mut to_init,
                &[
                    ibv_qp_attr_mask::IBV_QP_PKEY_INDEX,
                    ibv_qp_attr_mask::IBV_QP_PORT,
                    ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS,
                ],
            )
            .map_err(|error| context.failed(error))?;
        Ok(created)
    }

    /// Creates a queue pair, with inline data if the device supports it.
    fn create(
        context: &Context,
        attr: &mut ibv_qp_init_attr_ex,
    ) -> std::result::Result<NonNull<ibv_qp>, VerbError> {
        match Self::create_with(context, attr) {
            Err(error) if attr.cap.max_inline_data > 0 => {
                // Some devices support no inline data, or less. They then refuse such requests.
                attr.cap.max_inline_data = 0;
                tracing::debug!(%error, "the queue pair has no inline data");
                Self::create_with(context, attr)
            }
            created => created,
        }
    }

    /// Creates a queue pair. It may access GPU memory, which the CPU cannot address, so the library must not copy small
    /// messages to their segments itself (as mlx5 would).
    fn create_with(
        context: &Context,
        attr: &mut ibv_qp_init_attr_ex,
    ) -> std::result::Result<NonNull<ibv_qp>, VerbError> {
        let verbs = context.verbs();
        // SAFETY: the context is open, and the domain and the queues are alive and belong to it. The queue pair will
        // hold them.
        let created = unsafe { verbs.mlx5_create_qp_without_scatter(context.raw(), attr) };
        // SAFETY: as above.
        created.unwrap_or_else(|| unsafe { verbs.ibv_create_qp_ex(context.raw(), attr) })
    }

    fn number(&self) -> u32 {
        // SAFETY: the queue pair is alive, and its number never changes.
        unsafe { self.qp.as_ref().qp_num }
    }

    fn check_process(&self) -> Result<()> {
        self.domain.context().check_process()
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
        unsafe { verbs.ibv_modify_qp(self.qp.as_ptr(), attr, mask as i32) }
    }

    /// Returns whether packets to the peer need a global route header. On Ethernet all do; on InfiniBand only packets
    /// to another subnet, whose GIDs have a different prefix.
    fn needs_global_route(&self, peer: &Endpoint) -> bool {
        let context = self.domain.context();
        let prefix = |address| u128::from_be_bytes(bytes_of(address)) >> 64;
        !context.is_infiniband() || prefix(context.address().ip()) != prefix(peer.address.ip())
    }

    /// Returns whether the device does not support this many outstanding READs and atomics.
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
}

impl QueuePairOps for VerbsQueuePair {
    fn qpn(&self) -> Qpn {
        Qpn::new(self.number())
    }

    fn source_port(&self) -> SourcePort {
        SourcePort::Any
    }

    /// Returns ERR if the device does not report the state, and in a forked child.
    fn state(&self) -> State {
        if self.check_process().is_err() {
            return State::Error;
        }
        let verbs = self.domain.context().verbs();
        let mut attr = attributes(ibv_qp_state::IBV_QPS_RESET);
        // SAFETY: numbers and null pointers.
        let mut init: ibv_qp_init_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 as i32;
        // SAFETY: the queue pair is alive; both are writable.
        let asked = unsafe { verbs.ibv_query_qp(self.qp.as_ptr(), &mut attr, mask, &mut init) };
        match (asked, attr.qp_state) {
            (Ok(()), ibv_qp_state::IBV_QPS_RESET) => State::Reset,
            (Ok(()), ibv_qp_state::IBV_QPS_INIT) => State::Init,
            (Ok(()), ibv_qp_state::IBV_QPS_RTR) => State::ReadyToReceive,
            (Ok(()), ibv_qp_state::IBV_QPS_RTS) => State::ReadyToSend,
            (Ok(()), ibv_qp_state::IBV_QPS_SQD) => State::SendQueueDrained,
            (Ok(()), ibv_qp_state::IBV_QPS_SQE) => State::SendQueueError,
            _ => State::Error,
        }
    }

    fn to_rtr(&self, peer: &Endpoint, options: &ConnectionOptions) -> Result<()> {
        self.check_process()?;
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
                sgid_index: u8::try_from(context.chosen_gid().entry.index).unwrap_or(0),
                hop_limit: HOPS,
                traffic_class: options.traffic_class,
            },
            is_global: u8::from(self.needs_global_route(peer)),
            port_num: context.port(),
            dlid: peer.lid.map_or(0, Lid::get),
            sl: options.service_level,
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
            errno if is_routing_error(errno) => VerbsError::Route {
                device: context.name().to_owned(),
                local: context.address().ip(),
                peer: peer.address.ip(),
                errno,
            },
            _ => context.failed(error),
        })?;
        Ok(())
    }

    fn to_rts(&self, psn: Psn, options: &ConnectionOptions) -> Result<()> {
        self.check_process()?;
        let from = self.state();
        if from != State::ReadyToReceive {
            let to = State::ReadyToSend;
            return Err(StateError { from, to }.into());
        }
        let mut rts = attributes(ibv_qp_state::IBV_QPS_RTS);
        rts.sq_psn = psn.get();
        rts.timeout = ack_timeout(options).exponent();
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

    fn to_error(&self) {
        if self.check_process().is_err() {
            return;
        }
        let mut attr = attributes(ibv_qp_state::IBV_QPS_ERR);
        if let Err(error) = self.modify(&mut attr, &[]) {
            tracing::warn!(%error, "a queue pair cannot be moved to ERR");
        }
    }

    fn post_sends(&self, requests: &mut [SendRequest]) -> (usize, Result<()>) {
        match self.check_process() {
            Ok(()) => self.post_send_list(requests),
            Err(error) => (0, Err(error)),
        }
    }

    fn prepare(&self, request: SendRequest) -> Result<Box<dyn PreparedSendOps + '_>> {
        Ok(Box::new(PreparedRequest::new(self, request)?))
    }

    fn post_recv(&self, request: RecvRequest) -> Result<()> {
        self.check_process()?;
        self.post_receive(request)
    }
}

impl Drop for VerbsQueuePair {
    fn drop(&mut self) {
        if !self.domain.context().may_destroy() {
            return;
        }
        let number = self.number();
        let verbs = self.domain.context().verbs();
        // The library waits until all events of the queue pair are acknowledged.
        self.domain.context().take_events();
        // Do this before the device may reuse its number for another queue pair of the same queues.
        for queue in &self.queues {
            queue.remove_qp(number);
        }
        // SAFETY: it is alive and not used again. The memory of its requests stays registered until it is destroyed,
        // because `outstanding` is dropped after this.
        if let Err(error) = unsafe { verbs.ibv_destroy_qp(self.qp.as_ptr()) } {
            tracing::warn!(%error, "a queue pair is not destroyed");
        }
    }
}

/// Returns the ACK timeout with which all attempts together take [`ConnectionOptions::give_up_after`] (IBTA 9.7.6.1.3:
/// the device waits between one and four times the timeout).
fn ack_timeout(options: &ConnectionOptions) -> AckTimeout {
    let Some(limit) = options.give_up_after else {
        return options.timeout;
    };
    let attempts = u32::from(options.retry_count.get()) + 1;
    let reaches = |timeout: &AckTimeout| {
        // `None` is an infinite timeout.
        timeout
            .duration()
            .is_none_or(|time| time.saturating_mul(attempts) >= limit)
    };
    let longest = AckTimeout::new(LONGEST_TIMEOUT);
    (options.timeout.exponent()..=LONGEST_TIMEOUT)
        .map(AckTimeout::new)
        .find(reaches)
        .unwrap_or(longest)
}

/// Returns whether an extended queue pair failed because the device does not support it, so that a plain one may work.
fn is_unsupported(error: VerbError) -> bool {
    matches!(
        error.errno(),
        Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINVAL
    )
}

fn attributes(state: ibv_qp_state) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: state,
        // SAFETY: the structure consists of numbers and a union of bytes.
        ..unsafe { MaybeUninit::zeroed().assume_init() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gdr_roce::{Mtu, RetryCount};

    use super::*;

    #[test]
    fn all_attempts_of_a_device_together_take_the_time_to_give_up_after() {
        let with = |limit: Option<u64>| {
            let options = ConnectionOptions {
                timeout: AckTimeout::new(14),
                retry_count: RetryCount::new(7),
                give_up_after: limit.map(Duration::from_secs),
                ..ConnectionOptions::new(Mtu::B1024)
            };
            ack_timeout(&options)
        };
        assert_eq!(with(None), AckTimeout::new(14));
        for seconds in [1, 8, 9, 60, 3600] {
            let time = with(Some(seconds)).duration().unwrap();
            let limit = Duration::from_secs(seconds);
            assert!(time * 8 >= limit, "{seconds} s");
            // No longer than necessary: half of the timeout would be too short.
            assert!(time * 4 < limit || time == AckTimeout::new(14).duration().unwrap());
        }
        assert_eq!(with(Some(0)), AckTimeout::new(14));
        assert_eq!(with(Some(u64::MAX)), AckTimeout::new(31));
        let infinite = ConnectionOptions {
            timeout: AckTimeout::new(0),
            give_up_after: Some(Duration::from_secs(5)),
            ..ConnectionOptions::new(Mtu::B1024)
        };
        assert_eq!(ack_timeout(&infinite), AckTimeout::new(0));
    }
}
