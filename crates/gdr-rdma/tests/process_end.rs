//! How the end of a process appears to its peer. The test runs itself as that process.
#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::env;
use std::net::SocketAddr;
use std::process::{self, Command};
use std::time::Duration;

use gdr_rdma::{
    ConnectionOptions, Deadline, Device, Listener, Mtu, PeerInfo, QueuePair, QueuePairOptions,
    RecvRequest, Security, SendRequest, Session, SoftOptions, WcStatus, WrId,
};

/// The environment variable with the address at which the peer listens, for the process that ends.
const PEER: &str = "GDR_TEST_PEER";
/// The number of messages in each direction before the last one.
const ROUNDS: u64 = 200;
const RECEIVE: WrId = WrId(1);
const SEND: WrId = WrId(2);

/// Returns a deadline that only a stuck test reaches.
fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn connected(session: &mut Session, device: &Device) -> (QueuePair, gdr_rdma::CompletionQueue) {
    let queue = device.completion_queue(64);
    let domain = device.protection_domain();
    let pair = domain.queue_pair(&QueuePairOptions::new(&queue)).unwrap();
    let ours = PeerInfo {
        endpoint: pair.endpoint(),
        path_mtu: Mtu::B1024,
        regions: Vec::new(),
    };
    let theirs = session.introduce(&ours, soon()).unwrap();
    pair.post_recv(RecvRequest::new(RECEIVE)).unwrap();
    let options = ConnectionOptions::new(Mtu::B1024);
    pair.connect(&theirs.endpoint, &options).unwrap();
    session.barrier(soon()).unwrap();
    (pair, queue)
}

/// Answers messages, and ends after the last one.
fn answer(peer: SocketAddr) -> ! {
    let mut session = Session::connect(peer, &Security::Loopback, soon()).unwrap();
    let device = Device::soft_with(SoftOptions::default().port(0)).unwrap();
    let (pair, queue) = connected(&mut session, &device);
    let mut received = 0;
    loop {
        let done = queue.wait(soon()).unwrap();
        assert_eq!(done.status, WcStatus::Success);
        if done.id != RECEIVE {
            continue;
        }
        received += 1;
        if received > ROUNDS {
            process::exit(0);
        }
        pair.post_recv(RecvRequest::new(RECEIVE)).unwrap();
        pair.post_send(SendRequest::send(SEND).inline(&[])).unwrap();
    }
}

#[test]
fn the_last_message_before_a_process_ends_is_acknowledged() {
    if let Ok(peer) = env::var(PEER) {
        answer(peer.parse().unwrap());
    }
    for _ in 0..5 {
        let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let mut child = Command::new(env::current_exe().unwrap())
            .arg("the_last_message_before_a_process_ends_is_acknowledged")
            .env(PEER, listener.address().unwrap().to_string())
            .spawn()
            .unwrap();
        let mut session = listener.accept(&Security::Loopback, soon()).unwrap();
        let device = Device::soft_with(SoftOptions::default().port(0)).unwrap();
        let (pair, queue) = connected(&mut session, &device);
        for _ in 0..ROUNDS {
            pair.post_send(SendRequest::send(SEND).inline(&[])).unwrap();
            let mut done = [queue.wait(soon()).unwrap(), queue.wait(soon()).unwrap()];
            done.sort_by_key(|done| done.id.0);
            assert_eq!(done.map(|done| done.id), [RECEIVE, SEND]);
            assert!(done.iter().all(|done| done.status == WcStatus::Success));
            pair.post_recv(RecvRequest::new(RECEIVE)).unwrap();
        }
        pair.post_send(SendRequest::send(SEND).inline(&[])).unwrap();
        let last = queue.wait(soon()).unwrap();
        assert_eq!((last.id, last.status), (SEND, WcStatus::Success));
        assert!(child.wait().unwrap().success());
    }
}
