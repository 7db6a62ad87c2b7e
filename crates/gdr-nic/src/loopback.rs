//! Queue pairs of one device for tests.

use gdr_roce::{
    Access, AckTimeout, Capabilities, Data, Mtu, Operation, PostError, Psn, RecvRequest,
    Reliability, RetryCount, RetryLimit, RnrRetry, RnrTimer, RtrAttributes, RtsAttributes,
    SendFlags, SendRequest, WrId,
};

use crate::completion_queue::CompletionQueue;
use crate::connection::Connection;
use crate::device::Device;
use crate::error::Result;
use crate::peer::Peer;
use crate::queue_pair::{QueuePair, Queues};
use crate::types::{Domain, SoftOptions};
use gdr_udp::SourcePort;

/// Returns a device at a free port of 127.0.0.1.
pub(crate) fn device() -> Device {
    Device::open(&SoftOptions::default().port(0), None).unwrap()
}

/// Returns a queue pair in INIT.
pub(crate) fn pair(domain: Domain, queue: &CompletionQueue) -> Result<QueuePair<Connection>> {
    let sizes = Capabilities {
        max_send_wr: 128,
        max_recv_wr: 128,
        max_inline: 256,
    };
    let queues = Queues::completing_in(queue);
    let pair = queue
        .device()
        .queue_pair(domain, queues, sizes, Reliability::Reliable)?;
    pair.to_init(Access::all())?;
    Ok(pair)
}

/// Connects a queue pair to another one of its device.
pub(crate) fn connect(pair: &QueuePair<Connection>, other: &QueuePair<Connection>) -> Result<()> {
    let peer = Peer {
        source_port: SourcePort::OfAddress,
        ..pair.device().address().into()
    };
    connect_to(pair, peer, other, (AckTimeout::new(14), RetryCount::new(7)))
}

/// Connects a queue pair to a peer with the number of another one, with this timeout and retry count.
pub(crate) fn connect_to(
    pair: &QueuePair<Connection>,
    peer: Peer,
    other: &QueuePair<Connection>,
    (timeout, retries): (AckTimeout, RetryCount),
) -> Result<()> {
    pair.to_rtr(
        peer,
        &RtrAttributes {
            dest_qpn: other.qpn(),
            rq_psn: Psn::default(),
            path_mtu: Mtu::B4096,
            max_dest_rd_atomic: 1,
            min_rnr_timer: RnrTimer::new(12),
        },
    )?;
    pair.to_rts(&RtsAttributes {
        sq_psn: Psn::default(),
        timeout,
        retry_limit: RetryLimit::Count(retries),
        rnr_retry: RnrRetry::FOREVER,
        max_rd_atomic: 1,
    })
}

/// Returns a signalled message of these bytes.
pub(crate) fn message(id: WrId, bytes: &[u8]) -> SendRequest<'_> {
    SendRequest {
        id,
        operation: Operation::Send { immediate: None },
        data: Data::Inline(bytes),
        flags: SendFlags::SIGNALLED,
    }
}

/// Returns a receive without memory.
pub(crate) fn receive(id: WrId) -> RecvRequest<'static> {
    RecvRequest { id, segments: &[] }
}

/// Posts a request to the send queue.
pub(crate) fn send(
    pair: &QueuePair<Connection>,
    request: &SendRequest<'_>,
) -> std::result::Result<(), PostError> {
    pair.post_sends(|queue| queue.push(request)).unwrap()
}

/// Posts a receive without memory.
pub(crate) fn post_receive(pair: &QueuePair<Connection>) {
    let posted = pair.post_recvs(|queue| queue.push(&receive(WrId(0))));
    posted.unwrap().unwrap();
}
