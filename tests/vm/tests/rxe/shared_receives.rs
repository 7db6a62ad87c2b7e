//! Connections of rxe whose peers share a receive queue of the soft provider.

use std::net::SocketAddr;

use gdr_rdma::{
    Access, AsyncEvent, Buffer, ConnectionOptions, Mtu, Psn, Qpn, QueuePairOptions, RecvRequest,
    SourcePort, WcStatus, WrId,
};
use gdr_vm_tests::{Endpoint, Peer, Settings, Work};

use crate::fixture::*;

/// How many connections there are.
const PAIRS: usize = 3;
/// Bytes of a message: several packets.
const LEN: u32 = 5000;

#[test]
#[ignore = "runs in the VM"]
fn connections_of_rxe_share_receives_and_wait_for_more() {
    let hosts = Hosts::new(Family::V4);
    let domain = hosts.soft().protection_domain();
    let queue = hosts.soft().completion_queue(64);
    let shared = domain.shared_receive_queue(16).unwrap();
    let memory = domain
        .register(&Buffer::host(16 * LEN as usize).unwrap(), Access::all())
        .unwrap();
    let options = QueuePairOptions::new(&queue).shared_receive_queue(&shared);
    let connections: Vec<_> = (0..PAIRS)
        .map(|_| {
            let pair = domain.queue_pair(&options).unwrap();
            let mut rxe = hosts.rxe_connection();
            let (near, far) = (pair.endpoint(), rxe.peer());
            let endpoint = gdr_rdma::Endpoint {
                address: SocketAddr::new(far.ip, 4791),
                qpn: Qpn::new(far.qpn),
                psn: Psn::new(far.psn),
                lid: None,
                source_port: SourcePort::Any,
                loss_recovery: gdr_rdma::LossRecovery::GoBackN,
            };
            pair.connect(&endpoint, &ConnectionOptions::new(Mtu::B1024))
                .unwrap();
            let near = Peer {
                ip: near.address.ip(),
                qpn: near.qpn.get(),
                psn: near.psn.get(),
                addr: 0,
                rkey: 0,
            };
            rxe.connect(&near, &Settings::new(Mtu::B1024));
            (pair, rxe)
        })
        .collect();
    let post = |id: u64| {
        let segment = memory.segment(id * u64::from(LEN), LEN.into()).unwrap();
        let request = RecvRequest::new(WrId(id)).segment(segment);
        shared.post_recv(request).unwrap();
    };
    // Nothing is posted: each is asked to wait.
    for (n, (_, rxe)) in connections.iter().enumerate() {
        fill(rxe, n as u8 + 1);
        let work = Work::Send {
            local: 0,
            len: LEN,
            immediate: None,
        };
        rxe.post(n as u64, work);
        rxe.post(n as u64 + 10, work);
    }
    (0..4).for_each(post);
    shared.arm_limit(1).unwrap();
    for _ in 0..4 {
        assert_eq!(queue.wait(soon()).unwrap().status, WcStatus::Success);
    }
    let srq = shared.number();
    let limit = AsyncEvent::SharedReceiveQueueLimit { srq };
    let events = || hosts.soft().wait_event(soon()).unwrap();
    // The connections also report that they are established.
    while events() != limit {}
    (4..6).for_each(post);
    let mut received = [0; PAIRS];
    for _ in 0..2 {
        assert_eq!(queue.wait(soon()).unwrap().status, WcStatus::Success);
    }
    for (n, (_, rxe)) in connections.iter().enumerate() {
        assert_eq!([done(rxe).id, done(rxe).id], [n as u64, n as u64 + 10]);
    }
    for id in 0..6 {
        let mut bytes = vec![0; LEN as usize];
        let at = id * u64::from(LEN);
        memory.buffer().read_at(at, &mut bytes).unwrap();
        let from = (0..PAIRS).find(|n| bytes == pattern(LEN as usize, *n as u8 + 1));
        received[from.unwrap()] += 1;
    }
    assert_eq!(received, [2; PAIRS], "no two messages are mixed");
}
