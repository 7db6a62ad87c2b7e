//! State changes of queue pairs.

use std::ffi::c_int;
use std::net::SocketAddr;

use gdr_nic::{Access, AckTimeout, Mtu, Psn, Qkey, Qpn, RetryCount, RnrRetry, RnrTimer};
use gdr_nic::{
    Connection, Datagrams, QueuePair, RawPackets, RetryLimit, RtrAttributes, RtsAttributes,
};
use gdr_verbs_sys::{
    QpTransition, ibv_mig_state, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask as Mask,
    ibv_qp_state as State,
};

use crate::address_handle::destination;
use crate::device::{MOST_READS, lock};
use crate::device_use::{self, Step};
use crate::errno::Errno;
use crate::queue_pair::{NicPair, Pair};
use crate::region;
use crate::ret::status_and_errno;
use crate::slab::is_own;
use crate::system::forward;

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

/// The READs and atomics that a queue pair has outstanding. Programs such as perftest set here what
/// the peer serves, which may be more than this device has; fewer are always right.
fn requester_depth(attr: &ibv_qp_attr) -> u8 {
    attr.max_rd_atomic.min(MOST_READS)
}

fn rts(attr: &ibv_qp_attr) -> Result<RtsAttributes, Errno> {
    let in_range = attr.timeout < 32 && attr.retry_cnt < 8 && attr.rnr_retry < 8;
    if !in_range {
        return Err(Errno::INVAL);
    }
    Ok(RtsAttributes {
        sq_psn: Psn::new(attr.sq_psn),
        timeout: AckTimeout::new(attr.timeout),
        retry_limit: RetryLimit::Count(RetryCount::new(attr.retry_cnt)),
        rnr_retry: RnrRetry::new(attr.rnr_retry),
        max_rd_atomic: requester_depth(attr),
    })
}

/// The attributes that every device knows, `IBV_QP_DEST_QPN` the last of them.
const STANDARD: u32 = (Mask::IBV_QP_DEST_QPN.0 << 1) - 1;

/// Changes a queue pair; `stored` has the attributes that were set before.
fn modify(pair: &Pair, stored: &ibv_qp_attr, attr: &ibv_qp_attr, mask: Mask) -> Result<(), Errno> {
    // Like the kernel, refuse rate limits and all later attributes.
    if mask.0 & !STANDARD != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let from = pair.state();
    let to = if mask.contains(Mask::IBV_QP_STATE) {
        attr.qp_state
    } else {
        from
    };
    if mask.contains(Mask::IBV_QP_CUR_STATE) && attr.cur_qp_state != from {
        return Err(Errno::INVAL);
    }
    let transition = QpTransition::new(pair.init().kind, from, to).ok_or(Errno::INVAL)?;
    if !transition.permits(mask) {
        return Err(Errno::INVAL);
    }
    // RoCE has no alternate paths.
    let migrates = mask.contains(Mask::IBV_QP_ALT_PATH)
        || mask.contains(Mask::IBV_QP_PATH_MIG_STATE)
            && attr.path_mig_state != ibv_mig_state::IBV_MIG_MIGRATED;
    if migrates
        || mask.contains(Mask::IBV_QP_PORT) && attr.port_num != 1
        || mask.contains(Mask::IBV_QP_PKEY_INDEX) && attr.pkey_index != 0
    {
        return Err(Errno::INVAL);
    }
    let mut wanted = *stored;
    store(&mut wanted, attr, mask);
    match (from, to) {
        (_, State::IBV_QPS_RESET) => return pair.nic().reset(),
        (_, State::IBV_QPS_ERR) => return pair.nic().to_error(),
        (State::IBV_QPS_RTS, State::IBV_QPS_SQD) => {
            let notify = mask.contains(Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY);
            pair.announce_drain(notify && attr.en_sqd_async_notify != 0);
            return pair.nic().to_sqd();
        }
        _ => {}
    }
    match pair.nic() {
        NicPair::Connection(nic) => {
            let changes = Changes::new(from, &wanted, mask)?;
            let largest = pair.context().mtu();
            modify_connection(nic, (from, to), &wanted, largest, &changes)?;
        }
        NicPair::Datagrams(nic) => {
            let qkey = mask.contains(Mask::IBV_QP_QKEY).then_some(Qkey(attr.qkey));
            modify_datagrams(nic, (from, to), attr, qkey)?;
        }
        NicPair::RawPackets(nic) => modify_raw_packets(nic, (from, to))?,
    }
    match (from, to) {
        (State::IBV_QPS_SQD | State::IBV_QPS_SQE, State::IBV_QPS_RTS) => pair.nic().resume()?,
        (_, State::IBV_QPS_RTR | State::IBV_QPS_RTS) => device_use::reached(Step::Ready),
        _ => {}
    }
    Ok(())
}

/// What changes of a connection beside its state.
struct Changes {
    access: Option<Access>,
    min_rnr_timer: Option<RnrTimer>,
    max_dest_rd_atomic: Option<u8>,
    requester: Option<RtsAttributes>,
    peer: Option<SocketAddr>,
}

impl Changes {
    /// The changes of the attributes in the mask.
    ///
    /// # Errors
    /// `EINVAL` for values out of range. Nothing is changed then.
    fn new(from: State, wanted: &ibv_qp_attr, mask: Mask) -> Result<Self, Errno> {
        let requester = Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        let has = |attributes: Mask| mask.0 & attributes.0 != 0;
        let has_reads = has(Mask::IBV_QP_MAX_DEST_RD_ATOMIC);
        if has_reads && wanted.max_dest_rd_atomic > MOST_READS {
            return Err(Errno::INVAL);
        }
        // The change to RTR sets the first path.
        let moves = has(Mask::IBV_QP_AV) && from == State::IBV_QPS_SQD;
        Ok(Self {
            access: has(Mask::IBV_QP_ACCESS_FLAGS)
                .then(|| region::rights(wanted.qp_access_flags))
                .transpose()?,
            min_rnr_timer: has(Mask::IBV_QP_MIN_RNR_TIMER)
                .then(|| RnrTimer::new(wanted.min_rnr_timer)),
            max_dest_rd_atomic: has_reads.then_some(wanted.max_dest_rd_atomic),
            requester: has(requester).then(|| rts(wanted)).transpose()?,
            peer: moves.then(|| destination(&wanted.ah_attr)).transpose()?,
        })
    }

    fn apply(&self, nic: &QueuePair<Connection>) -> Result<(), Errno> {
        if let Some(peer) = self.peer {
            nic.set_peer(peer)?;
        }
        if let Some(access) = self.access {
            nic.set_access(access)?;
        }
        if let Some(timer) = self.min_rnr_timer {
            nic.set_min_rnr_timer(timer)?;
        }
        if let Some(most) = self.max_dest_rd_atomic {
            nic.set_max_dest_rd_atomic(most)?;
        }
        if let Some(attributes) = &self.requester {
            nic.set_rts_attributes(attributes)?;
        }
        Ok(())
    }
}

fn modify_connection(
    nic: &QueuePair<Connection>,
    change: (State, State),
    wanted: &ibv_qp_attr,
    largest: Mtu,
    changes: &Changes,
) -> Result<(), Errno> {
    match change {
        (State::IBV_QPS_RESET, State::IBV_QPS_INIT) => {
            nic.to_init(changes.access.ok_or(Errno::INVAL)?)?;
        }
        (State::IBV_QPS_INIT, State::IBV_QPS_RTR) => {
            nic.to_rtr(destination(&wanted.ah_attr)?, &rtr(wanted, largest)?)?;
        }
        (State::IBV_QPS_RTR, State::IBV_QPS_RTS) => nic.to_rts(&rts(wanted)?)?,
        _ => {}
    }
    changes.apply(nic)
}

fn modify_datagrams(
    nic: &QueuePair<Datagrams>,
    change: (State, State),
    attr: &ibv_qp_attr,
    qkey: Option<Qkey>,
) -> Result<(), Errno> {
    match change {
        (State::IBV_QPS_RESET, State::IBV_QPS_INIT) => {
            nic.to_init(qkey.ok_or(Errno::INVAL)?)?;
        }
        (State::IBV_QPS_INIT, State::IBV_QPS_RTR) => nic.to_rtr()?,
        (State::IBV_QPS_RTR, State::IBV_QPS_RTS) => nic.to_rts(Psn::new(attr.sq_psn))?,
        _ => {}
    }
    if let Some(qkey) = qkey {
        nic.set_qkey(qkey)?;
    }
    Ok(())
}

fn modify_raw_packets(nic: &QueuePair<RawPackets>, change: (State, State)) -> Result<(), Errno> {
    match change {
        (State::IBV_QPS_RESET, State::IBV_QPS_INIT) => nic.to_init()?,
        (State::IBV_QPS_INIT, State::IBV_QPS_RTR) => nic.to_rtr()?,
        (State::IBV_QPS_RTR, State::IBV_QPS_RTS) => nic.to_rts()?,
        _ => {}
    }
    Ok(())
}

/// # Safety
/// `attr` is readable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    forward!(unless is_own(qp), ibv_modify_qp(qp, attr, mask));
    status_and_errno(|| {
        let pair = Pair::of(qp)?;
        // SAFETY: the contract of this function.
        let attr = unsafe { attr.read() };
        let mask = Mask(mask.cast_unsigned());
        // Allow one change at a time, so that the checked state stays valid.
        let mut stored = lock(&pair.attributes);
        modify(&pair, &stored, &attr, mask)?;
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
    }
    if mask.contains(Mask::IBV_QP_MAX_QP_RD_ATOMIC) {
        stored.max_rd_atomic = requester_depth(attr);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_mtu_above_that_of_the_interface_is_refused() {
        let of_path = |code| {
            let attr = ibv_qp_attr {
                path_mtu: gdr_verbs_sys::ibv_mtu(code),
                ..Default::default()
            };
            rtr(&attr, Mtu::B1024).map(|attributes| attributes.path_mtu)
        };
        // `IBV_MTU_256` to `IBV_MTU_1024`, then `IBV_MTU_2048` and codes that do not exist.
        let permitted = [1, 2, 3].map(of_path);
        assert_eq!(permitted, [Ok(Mtu::B256), Ok(Mtu::B512), Ok(Mtu::B1024)]);
        for refused in [4, 5, 0, 6, u32::MAX] {
            assert_eq!(of_path(refused), Err(Errno::INVAL), "{refused}");
        }
    }
}
