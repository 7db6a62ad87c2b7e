//! A queue pair in RTS.

use gdr_roce::{
    Access, AckTimeout, Capabilities, Mtu, Psn, Qpn, QueuePair, RetryCount, RetryLimit, RnrRetry,
    RnrTimer, RtrAttributes, RtsAttributes, StateError,
};

/// Connects a new queue pair to `peer`, which may write.
pub(crate) fn connected(own: Qpn, peer: Qpn, path_mtu: Mtu) -> Result<QueuePair, StateError> {
    let capabilities = Capabilities {
        max_send_wr: 16,
        max_recv_wr: 16,
        max_inline: 64,
    };
    let mut pair = QueuePair::new(own, capabilities);
    pair.to_init(Access::REMOTE_WRITE)?;
    pair.to_rtr(&RtrAttributes {
        dest_qpn: peer,
        rq_psn: Psn::new(0),
        path_mtu,
        max_dest_rd_atomic: 4,
        min_rnr_timer: RnrTimer::new(12),
    })?;
    pair.to_rts(&RtsAttributes {
        sq_psn: Psn::new(0),
        timeout: AckTimeout::new(14),
        retry_limit: RetryLimit::Count(RetryCount::new(7)),
        rnr_retry: RnrRetry::FOREVER,
        max_rd_atomic: 4,
    })?;
    Ok(pair)
}
