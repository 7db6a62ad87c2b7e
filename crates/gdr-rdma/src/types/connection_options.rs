//! How a connection behaves.

use std::time::Duration;

use gdr_roce::{AckTimeout, Mtu, RetryCount, RnrRetry, RnrTimer};

/// Options of a connection (the rest of `struct ibv_qp_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct ConnectionOptions {
    /// The largest payload of a packet; both sides must use the same.
    pub path_mtu: Mtu,
    /// How long to wait for an acknowledgement before counting a retry. The soft provider retransmits
    /// earlier if the measured round-trip time suggests a loss.
    pub timeout: AckTimeout,
    /// How many times to retransmit without making progress.
    pub retry_count: RetryCount,
    /// How long to retransmit without progress before the connection fails with
    /// [`WcStatus::RetryExceeded`](crate::WcStatus::RetryExceeded); this replaces `retry_count`. The time
    /// between two retransmissions starts at the measured round-trip time plus its variation, at most
    /// `timeout`, and doubles each time, up to 500 ms. With `None`, `retry_count` alone decides, as IBTA
    /// specifies. A kernel device counts attempts with a fixed timeout, so it gets the shortest timeout,
    /// at least `timeout`, with which `retry_count + 1` attempts take this long.
    pub give_up_after: Option<Duration>,
    /// How many times to retry when the peer has no receive posted.
    pub rnr_retry: RnrRetry,
    /// How long the peer is asked to wait when this side has no receive posted.
    pub min_rnr_timer: RnrTimer,
    /// How many READs and atomics this side may have outstanding, at most the peer's
    /// `max_dest_rd_atomic`.
    pub max_rd_atomic: u8,
    /// How many outstanding READs and atomics this side accepts from the peer.
    pub max_dest_rd_atomic: u8,
    /// The service level of a kernel device's packets; the soft provider ignores it.
    pub service_level: u8,
    /// The traffic class (DSCP and ECN bits) of a kernel device's packets; the soft provider ignores it.
    pub traffic_class: u8,
}

impl ConnectionOptions {
    /// perftest's values: a timeout of 67 ms, 7 retries, unlimited retries for a receiver that is
    /// not ready (0.64 ms apart), 16 READs or atomics in each direction.
    pub const fn new(path_mtu: Mtu) -> Self {
        Self {
            path_mtu,
            timeout: AckTimeout::new(14),
            retry_count: RetryCount::new(7),
            give_up_after: None,
            rnr_retry: RnrRetry::FOREVER,
            min_rnr_timer: RnrTimer::new(12),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            service_level: 0,
            traffic_class: 0,
        }
    }
}
