//! Queue pairs: creation, queries, destruction.

use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use gdr_nic::{
    self as nic, Capabilities, CompletionCounter, Connection, CountedOperation, Datagrams,
    QueuePair, RawPackets, State,
};
use gdr_verbs_sys::{
    ibv_context, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask as Attributes, ibv_qp_cap,
    ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_qp_state,
    ibv_qp_type,
};

use crate::completion_counter::Attached;
use crate::completion_queue::Queue;
use crate::context::Context;
use crate::device::{LEAST_INLINE, MOST_INLINE, MOST_REQUESTS, MOST_SEGMENTS, PairOwner, lock};
use crate::device_use::{self, Step};
use crate::domain::{Domain, Use, Users, next_handle};
use crate::errno::Errno;
use crate::event::Subject;
use crate::event_queue::{ASYNC_EVENTS, Unacknowledged};
use crate::qp_ex::{self, Builder};
use crate::ret::{pointer, status, status_and_errno};
use crate::section::{self, Section};
use crate::shared_receive_queue::SharedQueue;
use crate::slab::{CObject, is_own};
use crate::system::forward;
use crate::table::Table;
use crate::work_queue::{INDIRECTIONS, receiver};
use crate::xrc_domain::XrcDomain;

/// The queue pair of the NIC, of one of the three services.
pub(crate) enum NicPair {
    Connection(QueuePair<Connection>),
    Datagrams(QueuePair<Datagrams>),
    RawPackets(QueuePair<RawPackets>),
}

/// Calls a method that all kinds have.
macro_rules! of_each {
    ($nic_pair:expr, $pair:ident => $call:expr) => {
        match $nic_pair {
            NicPair::Connection($pair) => $call,
            NicPair::Datagrams($pair) => $call,
            NicPair::RawPackets($pair) => $call,
        }
    };
}

impl NicPair {
    fn qpn(&self) -> u32 {
        of_each!(self, pair => pair.qpn()).get()
    }

    pub(crate) fn reset(&self) -> Result<(), Errno> {
        Ok(of_each!(self, pair => pair.reset())?)
    }

    pub(crate) fn to_sqd(&self) -> Result<(), Errno> {
        Ok(of_each!(self, pair => pair.to_sqd())?)
    }

    pub(crate) fn resume(&self) -> Result<(), Errno> {
        Ok(of_each!(self, pair => pair.resume())?)
    }

    /// Returns whether it finishes requests in SQD.
    fn is_draining(&self) -> bool {
        of_each!(self, pair => pair.is_draining())
    }

    pub(crate) fn to_error(&self) -> Result<(), Errno> {
        Ok(of_each!(self, pair => pair.to_error())?)
    }

    pub(crate) fn count_completions(
        &self,
        operations: &[CountedOperation],
        counter: &CompletionCounter,
    ) -> Result<(), Errno> {
        Ok(of_each!(self, pair => pair.count_completions(operations, counter))?)
    }

    pub(crate) fn post_recvs<T>(
        &self,
        post: impl FnOnce(&mut nic::RecvQueue<'_>) -> T,
    ) -> Result<T, Errno> {
        Ok(of_each!(self, pair => pair.post_recvs(post))?)
    }
}

/// A queue pair.
pub(crate) struct Pair {
    // Dropped before the objects that it uses.
    pair: NicPair,
    object: CObject<ibv_qp_ex>,
    context: Arc<Context>,
    init: Init,
    /// The attributes that were set, for queries.
    pub(crate) attributes: Mutex<ibv_qp_attr>,
    pub(crate) attached: Mutex<Attached>,
    unacknowledged: Arc<Unacknowledged>,
    /// Its flows.
    users: Users,
    /// Requests of the extended interface, if it has that.
    section: Option<Section<Builder>>,
    _uses: Vec<Use>,
}

/// How it was created.
pub(crate) struct Init {
    pub(crate) cap: ibv_qp_cap,
    pub(crate) kind: ibv_qp_type,
    /// Every request generates a completion.
    pub(crate) signals_all: bool,
}

pub(crate) static PAIRS: Table<Pair> = Table::new();

impl Pair {
    pub(crate) fn of(qp: *mut ibv_qp) -> Result<Arc<Self>, Errno> {
        PAIRS.get(qp)
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_qp {
        self.object.as_ptr().cast()
    }

    pub(crate) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn nic(&self) -> &NicPair {
        &self.pair
    }

    pub(crate) fn init(&self) -> &Init {
        &self.init
    }

    /// The structure of the extended interface; null if it has none.
    pub(crate) fn as_extended(&self) -> *mut ibv_qp_ex {
        match self.section {
            Some(_) => self.object.as_ptr(),
            None => std::ptr::null_mut(),
        }
    }

    /// From `ibv_wr_start` to `ibv_wr_complete` or `ibv_wr_abort`.
    pub(crate) fn section(&self) -> Result<&Section<Builder>, Errno> {
        self.section.as_ref().ok_or(Errno::INVAL)
    }

    /// Its handle is gone: no thread waits for it, and no event of it comes any more.
    pub(crate) fn leave(&self) {
        self.section.iter().for_each(Section::close);
        let qpn = self.pair.qpn();
        lock(&self.context.device().owners().pairs).remove(&qpn);
        let address = self.as_ptr().addr();
        let events = self.context.events();
        events.forget(|event| event.is_about(address));
    }

    /// Sets whether the program gets the event of the change to SQD that follows.
    pub(crate) fn announce_drain(&self, is_wanted: bool) {
        let mut pairs = lock(&self.context.device().owners().pairs);
        if let Some(owner) = pairs.get_mut(&self.pair.qpn()) {
            owner.announces_drain = is_wanted;
        }
    }

    pub(crate) fn users(&self) -> &Users {
        &self.users
    }

    /// Its state, which failures change too.
    pub(crate) fn state(&self) -> ibv_qp_state {
        match of_each!(&self.pair, pair => pair.state()) {
            State::Reset => ibv_qp_state::IBV_QPS_RESET,
            State::Init => ibv_qp_state::IBV_QPS_INIT,
            State::ReadyToReceive => ibv_qp_state::IBV_QPS_RTR,
            State::ReadyToSend => ibv_qp_state::IBV_QPS_RTS,
            State::SendQueueDrained => ibv_qp_state::IBV_QPS_SQD,
            State::SendQueueError => ibv_qp_state::IBV_QPS_SQE,
            State::Error => ibv_qp_state::IBV_QPS_ERR,
        }
    }

    fn create(
        wanted: &mut ibv_qp_init_attr_ex,
        operations: Option<u64>,
    ) -> Result<Arc<Self>, Errno> {
        let (context, pair, uses) = match wanted.qp_type {
            ibv_qp_type::IBV_QPT_XRC_RECV => Self::target(wanted)?,
            _ if ibv_qp_init_attr_mask(wanted.comp_mask)
                .contains(ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_IND_TABLE) =>
            {
                Self::spreading(wanted)?
            }
            _ => Self::in_domain(wanted)?,
        };
        let qpn = pair.qpn();
        let mut filled = Ok(());
        // SAFETY: numbers, pointers and functions that may be null, and a mutex that is not locked.
        let object = unsafe {
            CObject::<ibv_qp_ex>::new(|object| {
                if let Some(operations) = operations {
                    filled = qp_ex::fill(object, wanted.qp_type, operations);
                }
                let qp = &mut object.qp_base;
                qp.context = context.as_ptr();
                qp.qp_context = wanted.qp_context;
                qp.pd = wanted.pd;
                qp.send_cq = wanted.send_cq;
                qp.recv_cq = wanted.recv_cq;
                qp.srq = wanted.srq;
                qp.handle = next_handle();
                qp.qp_num = qpn;
                qp.qp_type = wanted.qp_type;
            })
        };
        filled?;
        // SAFETY: computes an address in the structure.
        let completed = unsafe { &raw mut (*object.as_ptr().cast::<ibv_qp>()).events_completed };
        // SAFETY: a field of the structure.
        let unacknowledged = Arc::new(unsafe { Unacknowledged::new(completed) });
        let address = object.as_ptr().expose_provenance();
        let owner = PairOwner {
            subject: Subject::Pair(address, Arc::clone(&unacknowledged)),
            events: Arc::clone(context.events()),
            announces_drain: false,
        };
        lock(&context.device().owners().pairs).insert(qpn, owner);
        let created = Arc::new(Self {
            pair,
            object,
            context,
            init: Init {
                cap: wanted.cap,
                kind: wanted.qp_type,
                signals_all: wanted.sq_sig_all != 0,
            },
            attributes: Mutex::default(),
            attached: Mutex::default(),
            unacknowledged,
            users: Users::default(),
            section: operations.map(|_| Section::new(section::Users::AnyThread)),
            _uses: uses,
        });
        ASYNC_EVENTS.insert(created.as_ptr(), Arc::clone(&created.unacknowledged));
        PAIRS.insert(created.as_ptr(), Arc::clone(&created));
        device_use::reached(Step::QueuePair);
        Ok(created)
    }

    /// The queue pair of an XRC domain, which receives by the queues that its peer names.
    fn target(
        wanted: &mut ibv_qp_init_attr_ex,
    ) -> Result<(Arc<Context>, NicPair, Vec<Use>), Errno> {
        let domain = XrcDomain::of(wanted.xrcd)?;
        // The queue pair has no queues of its own.
        wanted.cap = ibv_qp_cap::default();
        let pair = NicPair::Connection(domain.nic().target()?);
        Ok((
            Arc::clone(domain.context()),
            pair,
            vec![domain.users().add()],
        ))
    }

    /// A raw packet queue pair whose flows are for the work queues of a table.
    fn spreading(
        wanted: &mut ibv_qp_init_attr_ex,
    ) -> Result<(Arc<Context>, NicPair, Vec<Use>), Errno> {
        if wanted.qp_type != ibv_qp_type::IBV_QPT_RAW_PACKET {
            return Err(Errno::OPNOTSUPP);
        }
        let domain = Domain::of(wanted.pd)?;
        let table = INDIRECTIONS.get(wanted.rwq_ind_tbl)?;
        let context = Arc::clone(domain.context());
        if !table.is_of(&context) {
            return Err(Errno::INVAL);
        }
        // SAFETY: the program has set the configuration with the table.
        let spread = unsafe { table.spread(&wanted.rx_hash_conf) }?;
        // The queue pair has no queues of its own, and so no completions.
        wanted.cap = ibv_qp_cap::default();
        let engine = context.engine()?;
        let pair = receiver(engine, &domain, &engine.completion_queue(1, None), 0)?;
        pair.spread(spread)?;
        let uses = [domain.users(), table.users()].map(Users::add).into();
        Ok((context, NicPair::RawPackets(pair), uses))
    }

    /// A queue pair of a protection domain.
    fn in_domain(
        wanted: &mut ibv_qp_init_attr_ex,
    ) -> Result<(Arc<Context>, NicPair, Vec<Use>), Errno> {
        let is_initiator = wanted.qp_type == ibv_qp_type::IBV_QPT_XRC_SEND;
        let shared = match wanted.srq.is_null() || is_initiator {
            true => None,
            false => Some(SharedQueue::of(wanted.srq)?),
        };
        let domain = Domain::of(wanted.pd)?;
        let send_cq = Queue::of(wanted.send_cq)?;
        let recv_cq = match is_initiator {
            true => Arc::clone(&send_cq),
            false => Queue::of(wanted.recv_cq)?,
        };
        if shared.is_some() || is_initiator {
            // These sizes concern a queue that the queue pair does not have.
            (wanted.cap.max_recv_wr, wanted.cap.max_recv_sge) = (0, 0);
        }
        check(&wanted.cap)?;
        // Like other providers, return at least what was requested.
        wanted.cap.max_send_sge = wanted.cap.max_send_sge.max(1);
        wanted.cap.max_recv_sge = wanted.cap.max_recv_sge.max(1);
        wanted.cap.max_inline_data = wanted.cap.max_inline_data.max(LEAST_INLINE);
        let capabilities = Capabilities {
            max_send_wr: wanted.cap.max_send_wr,
            max_recv_wr: wanted.cap.max_recv_wr,
            max_inline: wanted.cap.max_inline_data,
        };
        let context = Arc::clone(domain.context());
        let engine = context.engine()?;
        let queues = nic::Queues {
            send: send_cq.nic(),
            recv: recv_cq.nic(),
            shared_receives: shared.as_ref().map(|queue| queue.nic()),
        };
        let pair = match wanted.qp_type {
            kind @ (ibv_qp_type::IBV_QPT_RC
            | ibv_qp_type::IBV_QPT_UC
            | ibv_qp_type::IBV_QPT_XRC_SEND) => {
                let service = match kind {
                    ibv_qp_type::IBV_QPT_UC => nic::Reliability::Unreliable,
                    ibv_qp_type::IBV_QPT_XRC_SEND => nic::Reliability::Extended,
                    _ => nic::Reliability::Reliable,
                };
                let domain = domain.nic();
                let pair = engine.queue_pair(domain, queues, capabilities, service)?;
                NicPair::Connection(pair)
            }
            ibv_qp_type::IBV_QPT_UD => {
                let mtu = context.mtu();
                let pair = engine.ud_queue_pair(domain.nic(), queues, capabilities, mtu)?;
                NicPair::Datagrams(pair)
            }
            ibv_qp_type::IBV_QPT_RAW_PACKET => {
                let pair = engine.raw_packet_queue_pair(domain.nic(), queues, capabilities);
                NicPair::RawPackets(pair.inspect_err(announce)?)
            }
            _ => return Err(Errno::OPNOTSUPP),
        };
        let used = [domain.users(), send_cq.users(), recv_cq.users()];
        let shared = shared.as_ref().map(|queue| queue.users());
        let uses = used.into_iter().chain(shared).map(Users::add).collect();
        Ok((context, pair, uses))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let qpn = self.pair.qpn();
        lock(&self.context.device().owners().pairs).remove(&qpn);
        // An error means that creation failed before the entry existed.
        let _ = ASYNC_EVENTS.remove(self.as_ptr());
    }
}

/// Writes why there are no raw packets to stderr, as rdma-core's providers do: an errno is all that
/// the program sees.
pub(crate) fn announce(error: &gdr_nic::Error) {
    eprintln!("gdr: {error}");
}

fn check(cap: &ibv_qp_cap) -> Result<(), Errno> {
    let fits = cap.max_send_wr <= MOST_REQUESTS
        && cap.max_recv_wr <= MOST_REQUESTS
        && cap.max_send_sge <= MOST_SEGMENTS
        && cap.max_recv_sge <= MOST_SEGMENTS
        && cap.max_inline_data <= MOST_INLINE;
    if fits { Ok(()) } else { Err(Errno::INVAL) }
}

/// # Safety
/// `attr` is readable and writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the contract of this function.
    let (send, recv, shared) = unsafe { ((*attr).send_cq, (*attr).recv_cq, (*attr).srq) };
    let is_of_own = is_own(pd) || is_own(send) || is_own(recv) || is_own(shared);
    forward!(unless is_of_own, ibv_create_qp(pd, attr));
    pointer(|| {
        // SAFETY: the contract of this function.
        let plain = unsafe { &mut *attr };
        let mut wanted = ibv_qp_init_attr_ex {
            qp_context: plain.qp_context,
            send_cq: plain.send_cq,
            recv_cq: plain.recv_cq,
            srq: plain.srq,
            cap: plain.cap,
            qp_type: plain.qp_type,
            sq_sig_all: plain.sq_sig_all,
            pd,
            ..Default::default()
        };
        let created = Pair::create(&mut wanted, None)?;
        plain.cap = wanted.cap;
        Ok(created.as_ptr())
    })
}

/// # Safety
/// `attr` is readable and writable.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    pointer(|| {
        Context::of(context)?;
        // SAFETY: the contract of this function.
        let wanted = unsafe { &mut *attr };
        use ibv_qp_init_attr_mask as Mask;
        let mask = Mask(wanted.comp_mask);
        let known = Mask::IBV_QP_INIT_ATTR_PD
            | Mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
            | Mask::IBV_QP_INIT_ATTR_CREATE_FLAGS
            | Mask::IBV_QP_INIT_ATTR_XRCD
            | Mask::IBV_QP_INIT_ATTR_IND_TABLE
            | Mask::IBV_QP_INIT_ATTR_RX_HASH;
        let has_flags = mask.contains(Mask::IBV_QP_INIT_ATTR_CREATE_FLAGS);
        if !known.contains(mask) || has_flags && wanted.create_flags != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let is_target = wanted.qp_type == ibv_qp_type::IBV_QPT_XRC_RECV;
        if is_target != mask.contains(Mask::IBV_QP_INIT_ATTR_XRCD) {
            return Err(Errno::INVAL);
        }
        let spreads = mask.contains(Mask::IBV_QP_INIT_ATTR_IND_TABLE);
        if spreads != mask.contains(Mask::IBV_QP_INIT_ATTR_RX_HASH) {
            return Err(Errno::INVAL);
        }
        let has = mask.contains(Mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS);
        let operations = has.then_some(wanted.send_ops_flags);
        Ok(Pair::create(wanted, operations)?.as_ptr())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    forward!(unless is_own(qp), ibv_destroy_qp(qp));
    status(|| {
        Pair::of(qp)?.users.check_unused()?;
        let pair = PAIRS.remove(qp)?;
        pair.leave();
        pair.unacknowledged.wait();
        Ok(())
    })
}

/// # Safety
/// `attr` and `init_attr` are writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    forward!(unless is_own(qp), ibv_query_qp(qp, attr, mask, init_attr));
    status_and_errno(|| {
        let pair = Pair::of(qp)?;
        let state = pair.state();
        let current = ibv_qp_attr {
            qp_state: state,
            cur_qp_state: state,
            sq_draining: u8::from(pair.pair.is_draining()),
            cap: pair.init.cap,
            ..*lock(&pair.attributes)
        };
        if Attributes(mask.cast_unsigned()).contains(Attributes::IBV_QP_STATE) {
            // SAFETY: the structure lives as long as the queue pair.
            unsafe { (*qp).state = state };
        }
        // SAFETY: the contract of this function.
        unsafe {
            attr.write(current);
            init_attr.write(ibv_qp_init_attr {
                qp_context: (*qp).qp_context,
                send_cq: (*qp).send_cq,
                recv_cq: (*qp).recv_cq,
                srq: (*qp).srq,
                cap: pair.init.cap,
                qp_type: pair.init.kind,
                sq_sig_all: c_int::from(pair.init.signals_all),
            });
        }
        Ok(())
    })
}
