//! Connections of rxe whose peers share a receive queue of the soft provider.

use conformance::{Side, pattern, soon};
use gdr_rdma::{AsyncEvent, Mtu, QueuePairOptions, RecvRequest, SendRequest, WcStatus, WrId};

use crate::fixture::*;

/// Number of connections.
const PAIRS: usize = 3;
/// Bytes of a message: several packets.
const LEN: usize = 5000;

#[test]
#[ignore = "runs in the VM"]
fn connections_of_rxe_share_receives_and_wait_for_more() {
    let [soft, rxe] = [Host::Soft, Host::Rxe].map(|host| host.device(Family::V4));
    let near = Side::on(soft);
    let shared = near.domain.shared_receive_queue(16).unwrap();
    let memory = near.memory(16 * LEN);
    let with_shared = QueuePairOptions::new(&near.queue).shared_receive_queue(&shared);
    let connections: Vec<_> = (0..PAIRS)
        .map(|n| {
            let pair = near.domain.queue_pair(&with_shared).unwrap();
            let far = Side::on(rxe.clone());
            pair.connect(&far.pair.endpoint(), &options(Mtu::B1024))
                .unwrap();
            far.pair
                .connect(&pair.endpoint(), &options(Mtu::B1024))
                .unwrap();
            let source = far.memory(LEN);
            fill(&source, 0, LEN, n as u8 + 1);
            (pair, far, source)
        })
        .collect();
    let post = |id: u64| {
        let segment = memory.segment(id * LEN as u64, LEN as u64).unwrap();
        let request = RecvRequest::new(WrId(id)).segment(segment);
        shared.post_recv(request).unwrap();
    };
    // Nothing is posted, so each is asked to wait.
    for (n, (_, far, source)) in connections.iter().enumerate() {
        for id in [n as u64, n as u64 + 10] {
            let whole = source.segment(0, LEN as u64).unwrap();
            let send = SendRequest::send(WrId(id)).segment(whole);
            far.pair.post_send(send).unwrap();
        }
    }
    (0..4).for_each(post);
    shared.arm_limit(1).unwrap();
    for _ in 0..4 {
        assert_eq!(near.queue.wait(soon()).unwrap().status, WcStatus::Success);
    }
    let srq = shared.number();
    let limit = AsyncEvent::SharedReceiveQueueLimit { srq };
    let events = || near.device.wait_event(soon()).unwrap();
    // The connections also report that they are established.
    while events() != limit {}
    (4..6).for_each(post);
    let mut received = [0; PAIRS];
    for _ in 0..2 {
        assert_eq!(near.queue.wait(soon()).unwrap().status, WcStatus::Success);
    }
    for (n, (_, far, _)) in connections.iter().enumerate() {
        assert_eq!([(); 2].map(|()| far.done().id.0), [n as u64, n as u64 + 10]);
    }
    for id in 0..6 {
        let bytes = bytes(&memory, id * LEN as u64, LEN);
        let from = (0..PAIRS).find(|n| bytes == pattern(LEN, *n as u8 + 1));
        received[from.unwrap()] += 1;
    }
    assert_eq!(received, [2; PAIRS], "no two messages are mixed");
}
