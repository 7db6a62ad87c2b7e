//! State changes of queue pairs.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use gdr_rdma::raw::{RetryLimit, RtrAttributes, RtsAttributes};
use gdr_rdma::{AckTimeout, Mtu, Psn, Qpn, RetryCount, RnrRetry, RnrTimer};
use gdr_verbs_sys::{
    ibv_ah_attr, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state as State,
};

use crate::device::lock;
use crate::errno::Errno;
use crate::query::MOST_READS;
use crate::queue_pair::Pair;
use crate::region;
use crate::ret::status_and_errno;

/// RoCE's UDP port.
const PORT: u16 = 4791;

/// The required and the optional attributes of a state change of an RC queue pair, as in the kernel
/// (`qp_state_table`).
fn attributes(from: State, to: State) -> Option<(Mask, Mask)> {
    let access = Mask::IBV_QP_ACCESS_FLAGS | Mask::IBV_QP_PKEY_INDEX;
    Some(match (from, to) {
        (_, State::IBV_QPS_RESET | State::IBV_QPS_ERR) => (Mask::NONE, Mask::NONE),
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

/// The IP address of a peer's GID.
fn peer(path: &ibv_ah_attr) -> Result<IpAddr, Errno> {
    // RoCE has no other addresses than GIDs.
    if path.is_global == 0 || path.grh.sgid_index != 0 {
        return Err(Errno::INVAL);
    }
    // SAFETY: all bytes of the union are initialized, and every value is valid.
    let gid = Ipv6Addr::from(unsafe { path.grh.dgid.raw });
    if gid.is_unspecified() {
        return Err(Errno::INVAL);
    }
    Ok(gid.to_ipv4_mapped().map_or(IpAddr::V6(gid), IpAddr::V4))
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
    let (required, optional) = attributes(from, to).ok_or(Errno::INVAL)?;
    let allowed = required | optional | Mask::IBV_QP_STATE;
    if !mask.contains(required) || !allowed.contains(mask) {
        return Err(Errno::INVAL);
    }
    if mask.contains(Mask::IBV_QP_PORT) && attr.port_num != 1
        || mask.contains(Mask::IBV_QP_PKEY_INDEX) && attr.pkey_index != 0
    {
        return Err(Errno::INVAL);
    }
    let access = match mask.contains(Mask::IBV_QP_ACCESS_FLAGS) {
        true => Some(region::rights(attr.qp_access_flags)?),
        false => None,
    };
    let raw = pair.raw();
    match (from, to) {
        (_, State::IBV_QPS_RESET) => raw.reset()?,
        (State::IBV_QPS_RESET, State::IBV_QPS_ERR) => return Err(Errno::INVAL),
        (_, State::IBV_QPS_ERR) => raw.to_error()?,
        (State::IBV_QPS_RESET, State::IBV_QPS_INIT) => {
            raw.to_init(access.ok_or(Errno::INVAL)?)?;
        }
        (State::IBV_QPS_INIT, State::IBV_QPS_RTR) => {
            let attributes = rtr(attr, pair.context().device().mtu())?;
            let peer = SocketAddr::new(peer(&attr.ah_attr)?, PORT);
            raw.to_rtr(peer, &attributes)?;
        }
        (State::IBV_QPS_RTR, State::IBV_QPS_RTS) => raw.to_rts(&rts(attr)?)?,
        _ => {}
    }
    if let Some(access) = access {
        raw.set_access(access)?;
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
