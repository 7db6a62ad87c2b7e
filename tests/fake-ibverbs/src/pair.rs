//! Reliable connected queue pairs.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::{Condvar, PoisonError};
use std::time::{Duration, Instant};

use gdr_verbs_sys::{
    QpTransition, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask as Mask,
    ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_qp_state as State,
    ibv_qp_type, ibv_wc_opcode, ibv_wc_status,
};

use crate::builder;
use crate::c_abi::{Handle, Outcome};
use crate::event;
use crate::ret::{pointer, status};
use crate::state::{DeviceId, Entry, LibraryState, Pair, Subject, lock_state};
use crate::wire;

/// Maximum number of inline bytes, as in mlx5.
const MAX_INLINE: u32 = 828;

impl LibraryState {
    /// Changes the state to ERR, and flushes all posted requests.
    pub(crate) fn break_pair(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else {
            return;
        };
        if matches!(pair.state, State::IBV_QPS_RESET | State::IBV_QPS_ERR) {
            return;
        }
        pair.set_state(State::IBV_QPS_ERR);
        self.flush(number);
    }

    /// Flushes all posted requests of a queue pair in ERR.
    pub(crate) fn flush(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else {
            return;
        };
        pair.silent_since = None;
        pair.unready_since = None;
        let (send_cq, recv_cq) = (pair.send_cq, pair.recv_cq);
        let flushed = |id, opcode, frees| Entry {
            wr_id: id,
            status: ibv_wc_status::IBV_WC_WR_FLUSH_ERR,
            opcode,
            vendor_err: 0xf5,
            byte_len: 0,
            immediate: None,
            pair: number,
            solicited: false,
            frees,
        };
        let sends: Vec<_> = pair.sends.drain(..).collect();
        let receives: Vec<_> = pair.receives.drain(..).collect();
        for send in sends {
            let entry = flushed(send.id, ibv_wc_opcode::IBV_WC_SEND, Some(send.count));
            self.complete(send_cq, entry);
        }
        for receive in receives {
            let entry = flushed(receive.id, ibv_wc_opcode::IBV_WC_RECV, None);
            self.complete(recv_cq, entry);
        }
    }

    fn create_pair(
        &mut self,
        verb: &str,
        attr: &mut ibv_qp_init_attr_ex,
        operations: Option<u64>,
        may_scatter: bool,
    ) -> Outcome<Handle<ibv_qp_ex>> {
        let (id, context) = self.domain(verb, attr.pd)?;
        let cap = attr.cap;
        let detail = format!(
            "{} sends, {} receives, {} inline, {} sge",
            cap.max_send_wr, cap.max_recv_wr, cap.max_inline_data, cap.max_send_sge
        );
        self.begin(verb, id, detail)?;
        for queue in [attr.send_cq, attr.recv_cq] {
            let of_queue = self.queue(verb, queue.addr())?;
            if of_queue != id {
                self.violation(verb, "a completion queue belongs to another device");
                return Err(libc::EINVAL);
            }
        }
        let spec = &self.devices[id].spec;
        let most = spec.max_requests as u32;
        if cap.max_send_wr > most || cap.max_recv_wr > most || cap.max_send_sge > 30 {
            return Err(libc::ENOMEM);
        }
        if cap.max_inline_data > MAX_INLINE || !attr.srq.is_null() {
            return Err(libc::EINVAL);
        }
        if attr.qp_type != ibv_qp_type::IBV_QPT_RC {
            return Err(libc::EOPNOTSUPP);
        }
        let switched_off = std::env::var_os("MLX5_SCATTER_TO_CQE").is_some_and(|it| it == "0");
        let scatters = spec.scatter_to_cqe && may_scatter && !switched_off;
        // SAFETY: numbers, pointers and functions that may be null, and a mutex that is not locked.
        let handle: Handle<ibv_qp_ex> = unsafe { Handle::zeroed() };
        // SAFETY: the object is new, and its address is not known elsewhere.
        let object = unsafe { &mut *handle.as_ptr() };
        let number = self.pair_number(id);
        object.qp_base.context = std::ptr::with_exposed_provenance_mut(context);
        if let Some(context) = self.contexts.get(&context) {
            object.qp_base.context = context.as_ptr();
        }
        object.qp_base.qp_context = attr.qp_context;
        object.qp_base.pd = attr.pd;
        object.qp_base.send_cq = attr.send_cq;
        object.qp_base.recv_cq = attr.recv_cq;
        object.qp_base.handle = number;
        object.qp_base.qp_num = number;
        object.qp_base.qp_type = attr.qp_type;
        if let Some(operations) = operations {
            builder::fill(object, operations);
        }
        attr.cap.max_send_sge = cap.max_send_sge.max(1);
        let pair = Pair {
            device: id,
            domain: attr.pd.addr(),
            object: handle,
            number,
            send_cq: attr.send_cq.addr(),
            recv_cq: attr.recv_cq.addr(),
            cap: attr.cap,
            signal_all: attr.sq_sig_all != 0,
            scatters,
            extended: operations.is_some(),
            state: State::IBV_QPS_RESET,
            attr: ibv_qp_attr::default(),
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            batch: None,
            posted: 0,
            freed: 0,
            silent_since: None,
            unready_since: None,
        };
        handle.as_ptr().expose_provenance();
        self.pairs.insert(number, pair);
        Ok(handle)
    }
}

/// # Safety
///
/// `attr` is readable and writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
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
    pointer(|library| {
        let pair = library.create_pair("ibv_create_qp", &mut wanted, None, true)?;
        plain.cap = wanted.cap;
        Ok(pair.as_ptr().cast())
    })
}

/// # Safety
///
/// `attr` is readable and writable.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the contract of this function.
    let wanted = unsafe { &mut *attr };
    pointer(|library| library.create_pair_ex("ibv_create_qp_ex", context, wanted, true))
}

impl LibraryState {
    pub(crate) fn create_pair_ex(
        &mut self,
        verb: &str,
        context: *mut ibv_context,
        wanted: &mut ibv_qp_init_attr_ex,
        may_scatter: bool,
    ) -> Outcome<*mut ibv_qp> {
        self.device_of(verb, context)?;
        let known = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD
            | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
            | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_CREATE_FLAGS;
        if wanted.comp_mask & !known.0 != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let flags = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        let operations = (wanted.comp_mask & flags.0 != 0).then_some(wanted.send_ops_flags);
        let pair = self.create_pair(verb, wanted, operations, may_scatter)?;
        Ok(pair.as_ptr().cast())
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    pointer(|library| {
        let (number, _) = library.pair("ibv_qp_to_qp_ex", qp.addr())?;
        let pair = library.pairs.get(&number).filter(|pair| pair.extended);
        pair.map(|pair| pair.object.as_ptr())
            .ok_or(libc::EOPNOTSUPP)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    let verb = "ibv_destroy_qp";
    let address = qp.addr();
    event::wait_for_acknowledgement(verb, Subject::Pair(address));
    let mut device = None;
    let answer = status(|library| {
        let (number, id) = library.pair(verb, address)?;
        library.note(verb, id, "")?;
        if !library.devices[id].spec.keeps_completions {
            library.forget_completions(number);
        }
        library.forget_events(Subject::Pair(address));
        library.pairs.remove(&number);
        wire::advance(library);
        device = Some(id);
        Ok(())
    });
    if let Some(id) = device {
        wait_for_release(id);
    }
    answer
}

/// Notified when blocked calls that destroyed queue pairs may continue.
pub(crate) static RELEASED: Condvar = Condvar::new();

/// The maximum time that they block.
const LIMIT: Duration = Duration::from_secs(20);

fn wait_for_release(id: DeviceId) {
    let until = Instant::now() + LIMIT;
    let mut library = lock_state();
    while library.devices[id].detains {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        let waited = RELEASED.wait_timeout(library, left);
        library = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

impl LibraryState {
    /// Whether the path of a connection exists.
    fn check_path(&self, pair: &Pair, attr: &ibv_qp_attr) -> Outcome<()> {
        let port = self.devices[pair.device]
            .port(pair.attr.port_num)
            .ok_or(libc::EINVAL)?;
        let mtu = attr.path_mtu.0;
        if mtu == 0 || mtu > 5 || mtu > port.active_mtu {
            return Err(libc::EINVAL);
        }
        let route = &attr.ah_attr;
        if port.link_layer == 2 && route.is_global == 0 {
            return Err(libc::EINVAL);
        }
        if route.is_global != 0 {
            let index = u32::from(route.grh.sgid_index);
            if !port.gids.iter().any(|gid| gid.index == index) {
                return Err(libc::EINVAL);
            }
        }
        Ok(())
    }
}

/// # Safety
///
/// `attr` is readable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    let verb = "ibv_modify_qp";
    // SAFETY: the contract of this function.
    let attr = unsafe { attr.read() };
    let mask = Mask(mask as u32);
    status(|library| {
        let (number, id) = library.pair(verb, qp.addr())?;
        let to = match mask.contains(Mask::IBV_QP_STATE) {
            true => attr.qp_state,
            false => library.pairs[&number].state,
        };
        let name = to
            .name()
            .and_then(|name| name.strip_prefix("IBV_QPS_"))
            .unwrap_or("?");
        let detail = format!("to {name}, mask {:#x}", mask.0);
        if matches!(to, State::IBV_QPS_RESET | State::IBV_QPS_ERR) {
            library.note(verb, id, detail)?;
        } else {
            library.begin(verb, id, detail)?;
        }
        library.check_refusals(&format!("{verb} {name}"), id)?;
        let pair = &library.pairs[&number];
        let transition = QpTransition::new(ibv_qp_type::IBV_QPT_RC, pair.state, to);
        let transition = transition.ok_or(libc::EINVAL)?;
        if !transition.permits(mask) {
            return Err(libc::EINVAL);
        }
        let given = Mask(mask.0 & !Mask::IBV_QP_STATE.0);
        if given.contains(Mask::IBV_QP_PORT) && library.devices[id].port(attr.port_num).is_none() {
            return Err(libc::EINVAL);
        }
        if to == State::IBV_QPS_RTR {
            library.check_path(pair, &attr)?;
        }
        let reads = library.devices[id].spec.max_reads;
        if i32::from(attr.max_rd_atomic) > reads && given.contains(Mask::IBV_QP_MAX_QP_RD_ATOMIC)
            || i32::from(attr.max_dest_rd_atomic) > reads
                && given.contains(Mask::IBV_QP_MAX_DEST_RD_ATOMIC)
        {
            return Err(libc::EINVAL);
        }
        if to == State::IBV_QPS_ERR {
            library.break_pair(number);
        } else if let Some(pair) = library.pairs.get_mut(&number) {
            keep(&mut pair.attr, &attr, given);
            pair.set_state(to);
            if to == State::IBV_QPS_RESET {
                pair.sends.clear();
                pair.receives.clear();
                pair.freed = pair.posted;
                pair.silent_since = None;
                pair.unready_since = None;
            }
        }
        wire::advance(library);
        Ok(())
    })
}

/// Copies the attributes in the mask.
fn keep(kept: &mut ibv_qp_attr, attr: &ibv_qp_attr, mask: Mask) {
    macro_rules! keep {
        ($($flag:ident: $($field:ident)+;)*) => {$(
            if mask.contains(Mask::$flag) {
                $(kept.$field = attr.$field;)+
            }
        )*};
    }
    keep! {
        IBV_QP_ACCESS_FLAGS: qp_access_flags;
        IBV_QP_PKEY_INDEX: pkey_index;
        IBV_QP_PORT: port_num;
        IBV_QP_AV: ah_attr;
        IBV_QP_PATH_MTU: path_mtu;
        IBV_QP_DEST_QPN: dest_qp_num;
        IBV_QP_RQ_PSN: rq_psn;
        IBV_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        IBV_QP_MIN_RNR_TIMER: min_rnr_timer;
        IBV_QP_TIMEOUT: timeout;
        IBV_QP_RETRY_CNT: retry_cnt;
        IBV_QP_RNR_RETRY: rnr_retry;
        IBV_QP_SQ_PSN: sq_psn;
        IBV_QP_MAX_QP_RD_ATOMIC: max_rd_atomic;
    }
}

/// # Safety
///
/// `attr` and `init_attr` are writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    let verb = "ibv_query_qp";
    status(|library| {
        let (number, id) = library.pair(verb, qp.addr())?;
        library.begin(verb, id, "")?;
        let pair = &library.pairs[&number];
        let current = ibv_qp_attr {
            cur_qp_state: pair.state,
            cap: pair.cap,
            ..pair.attr
        };
        let queue = |address| std::ptr::with_exposed_provenance_mut::<ibv_cq>(address);
        let made = ibv_qp_init_attr {
            send_cq: queue(pair.send_cq),
            recv_cq: queue(pair.recv_cq),
            cap: pair.cap,
            qp_type: ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: c_int::from(pair.signal_all),
            ..Default::default()
        };
        // SAFETY: the contract of this function.
        unsafe {
            attr.write(current);
            init_attr.write(made);
        }
        Ok(())
    })
}
