//! State changes of queue pairs.

use std::ffi::c_int;

use gdr_rdma::raw::{QueuePair, RetryLimit, RtrAttributes, RtsAttributes, UdQueuePair};
use gdr_rdma::{Access, AckTimeout, Mtu, Psn, Qkey, Qpn, RetryCount, RnrRetry, RnrTimer};
use gdr_verbs_sys::{
    ibv_qp, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state as State, ibv_qp_type as Type,
};

use crate::address_handle::destination;
use crate::device::{MOST_READS, lock};
use crate::errno::Errno;
use crate::queue_pair::{Pair, Service};
use crate::region;
use crate::ret::status_and_errno;

/// The required and the optional attributes of a state change, as in the kernel (`qp_state_table`).
fn attributes(kind: Type, from: State, to: State) -> Option<(Mask, Mask)> {
    if matches!(to, State::IBV_QPS_RESET | State::IBV_QPS_ERR) {
        return Some((Mask::NONE, Mask::NONE));
    }
    match kind {
        Type::IBV_QPT_UD => attributes_of_ud(from, to),
        _ => attributes_of_rc(from, to),
    }
}

fn attributes_of_ud(from: State, to: State) -> Option<(Mask, Mask)> {
    let keys = Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_QKEY;
    Some(match (from, to) {
        (State::IBV_QPS_RESET, State::IBV_QPS_INIT) => (keys | Mask::IBV_QP_PORT, Mask::NONE),
        (State::IBV_QPS_INIT, State::IBV_QPS_INIT) => (Mask::NONE, keys | Mask::IBV_QP_PORT),
        (State::IBV_QPS_INIT, State::IBV_QPS_RTR) => (Mask::NONE, keys),
        (State::IBV_QPS_RTR, State::IBV_QPS_RTS) => (
            Mask::IBV_QP_SQ_PSN,
            Mask::IBV_QP_CUR_STATE | Mask::IBV_QP_QKEY,
        ),
        (State::IBV_QPS_RTS, State::IBV_QPS_RTS) => {
            (Mask::NONE, Mask::IBV_QP_CUR_STATE | Mask::IBV_QP_QKEY)
        }
        _ => return None,
    })
}

fn attributes_of_rc(from: State, to: State) -> Option<(Mask, Mask)> {
    let access = Mask::IBV_QP_ACCESS_FLAGS | Mask::IBV_QP_PKEY_INDEX;
    Some(match (from, to) {
        (State::IBV_QPS_RESET, State::IBV_QPS_INIT) => (access | Mask::IBV_QP_PORT, Mask::NONE),
        (State::IBV_QPS_INIT, State::IBV_QPS_INIT) => (Mask::NONE, access | Mask::IBV_QP_PORT),
        (State::IBV_QPS_INIT, State::IBV_QPS_RTR) => (
            Mask::IBV_QP_AV
                | Mask::IBV_QP_PATH_MTU
                | Mask::IBV_QP_DEST_QPN
                | Mask::IBV_QP_RQ_PSN
                | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
                | Mask::IBV_QP_MIN_RNR_TIMER,
            Mask::IBV_QP_ALT_PATH | access,
        ),
        (State::IBV_QPS_RTR, State::IBV_QPS_RTS) => (
            Mask::IBV_QP_TIMEOUT
                | Mask::IBV_QP_RETRY_CNT
                | Mask::IBV_QP_RNR_RETRY
                | Mask::IBV_QP_SQ_PSN
                | Mask::IBV_QP_MAX_QP_RD_ATOMIC,
            Mask::IBV_QP_CUR_STATE
                | Mask::IBV_QP_ALT_PATH
                | Mask::IBV_QP_ACCESS_FLAGS
                | Mask::IBV_QP_MIN_RNR_TIMER
                | Mask::IBV_QP_PATH_MIG_STATE,
        ),
        (State::IBV_QPS_RTS, State::IBV_QPS_RTS) => (
            Mask::NONE,
            Mask::IBV_QP_ACCESS_FLAGS | Mask::IBV_QP_MIN_RNR_TIMER | Mask::IBV_QP_CUR_STATE,
        ),
        _ => return None,
    })
}

fn rtr(attr: &ibv_qp_attr, largest: Mtu) -> Result<RtrAttributes, Errno> {
    let code = u8::try_from(attr.path_mtu.0).unwrap_or(0);
    let path_mtu = Mtu::from_code(code).filter(|mtu| *mtu <= largest);
    if attr.max_dest_rd_atomic > MOST_READS {
        return Err(Errno::INVAL);
    }
    Ok(RtrAttributes {
        dest_qpn: Qpn::new(attr.dest_qp_num),
        rq_psn: Psn::new(attr.rq_psn),
        path_mtu: path_mtu.ok_or(Errno::INVAL)?,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: RnrTimer::new(attr.min_rnr_timer),
    })
}

fn rts(attr: &ibv_qp_attr) -> Result<RtsAttributes, Errno> {
    let in_range = attr.max_rd_atomic <= MOST_READS
        && attr.timeout < 32
        && attr.retry_cnt < 8
        && attr.rnr_retry < 8;
    if !in_range {
        return Err(Errno::INVAL);
    }
    Ok(RtsAttributes {
        sq_psn: Psn::new(attr.sq_psn),
        timeout: AckTimeout::new(attr.timeout),
        retry_limit: RetryLimit::Count(RetryCount::new(attr.retry_cnt)),
        rnr_retry: RnrRetry::new(attr.rnr_retry),
        max_rd_atomic: attr.max_rd_atomic,
    })
}

fn modify(pair: &Pair, attr: &ibv_qp_attr, mask: Mask) -> Result<(), Errno> {
    let from = pair.state();
    let to = if mask.contains(Mask::IBV_QP_STATE) {
        attr.qp_state
    } else {
        from
    };
    if mask.contains(Mask::IBV_QP_CUR_STATE) && attr.cur_qp_state != from {
        return Err(Errno::INVAL);
    }
    let (required, optional) = attributes(pair.init().kind, from, to).ok_or(Errno::INVAL)?;
    let allowed = required | optional | Mask::IBV_QP_STATE;
    if !mask.contains(required) || !allowed.contains(mask) {
        return Err(Errno::INVAL);
    }
    if mask.contains(Mask::IBV_QP_PORT) && attr.port_num != 1
        || mask.contains(Mask::IBV_QP_PKEY_INDEX) && attr.pkey_index != 0
    {
        return Err(Errno::INVAL);
    }
    match (from, to) {
        (_, State::IBV_QPS_RESET) => return pair.raw().reset(),
        (State::IBV_QPS_RESET, State::IBV_QPS_ERR) => return Err(Errno::INVAL),
        (_, State::IBV_QPS_ERR) => return pair.raw().to_error(),
        _ => {}
    }
    match pair.raw() {
        Service::Connection(raw) => {
            let largest = pair.context().device().mtu();
            let access = match mask.contains(Mask::IBV_QP_ACCESS_FLAGS) {
                true => Some(region::rights(attr.qp_access_flags)?),
                false => None,
            };
            modify_connection(raw, (from, to), attr, largest, access)
        }
        Service::Datagrams(raw) => {
            let qkey = mask.contains(Mask::IBV_QP_QKEY).then_some(Qkey(attr.qkey));
            modify_datagrams(raw, (from, to), attr, qkey)
        }
    }
}

fn modify_connection(
    raw: &QueuePair,
    change: (State, State),
    attr: &ibv_qp_attr,
    largest: Mtu,
    access: Option<Access>,
) -> Result<(), Errno> {
    match change {
        (State::IBV_QPS_RESET, State::IBV_QPS_INIT) => {
            raw.to_init(access.ok_or(Errno::INVAL)?)?;
        }
        (State::IBV_QPS_INIT, State::IBV_QPS_RTR) => {
            raw.to_rtr(destination(&attr.ah_attr)?, &rtr(attr, largest)?)?;
        }
        (State::IBV_QPS_RTR, State::IBV_QPS_RTS) => raw.to_rts(&rts(attr)?)?,
        _ => {}
    }
    if let Some(access) = access {
        raw.set_access(access)?;
    }
    Ok(())
}

fn modify_datagrams(
    raw: &UdQueuePair,
    change: (State, State),
    attr: &ibv_qp_attr,
    qkey: Option<Qkey>,
) -> Result<(), Errno> {
    match change {
        (State::IBV_QPS_RESET, State::IBV_QPS_INIT) => {
            raw.to_init(qkey.ok_or(Errno::INVAL)?)?;
        }
        (State::IBV_QPS_INIT, State::IBV_QPS_RTR) => raw.to_rtr()?,
        (State::IBV_QPS_RTR, State::IBV_QPS_RTS) => raw.to_rts(Psn::new(attr.sq_psn))?,
        _ => {}
    }
    if let Some(qkey) = qkey {
        raw.set_qkey(qkey)?;
    }
    Ok(())
}

/// # Safety
/// `attr` is readable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    status_and_errno(|| {
        let pair = Pair::of(qp)?;
        // SAFETY: the contract of this function.
        let attr = unsafe { attr.read() };
        let mask = Mask(mask.cast_unsigned());
        // One at a time, so that the check of the state holds.
        let mut stored = lock(&pair.attributes);
        modify(&pair, &attr, mask)?;
        if mask.contains(Mask::IBV_QP_STATE) {
            if attr.qp_state == State::IBV_QPS_RESET {
                *stored = ibv_qp_attr::default();
            }
            // SAFETY: the structure lives as long as the queue pair; libibverbs writes it here too.
            unsafe { (*qp).state = attr.qp_state };
        }
        store(&mut stored, &attr, mask);
        Ok(())
    })
}

/// Keeps the attributes that were set.
fn store(stored: &mut ibv_qp_attr, attr: &ibv_qp_attr, mask: Mask) {
    macro_rules! keep {
        ($($flag:ident: $field:ident;)*) => {$(
            if mask.contains(Mask::$flag) {
                stored.$field = attr.$field;
            }
        )*};
    }
    keep! {
        IBV_QP_ACCESS_FLAGS: qp_access_flags;
        IBV_QP_PKEY_INDEX: pkey_index;
        IBV_QP_PORT: port_num;
        IBV_QP_QKEY: qkey;
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
