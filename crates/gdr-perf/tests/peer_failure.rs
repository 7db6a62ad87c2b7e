//! A peer that vanishes, or falls silent, after each message of `gdr loopback` in two processes; and a peer that speaks
//! another version, or offers other memory or a different path MTU.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod fixture;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fixture::target;
use gdr_perf::Error;
use gdr_perf::loopback::{
    self, CauseKind, Destination, Ended, Event, ListeningEnd, Report, Settings, Timeouts, Verdict,
};
use gdr_perf::transfer::TransferMemory;
use gdr_rdma::{Deadline, HandshakeError, Listener, Mtu, PeerInfo, Security, Session};

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Time limit of a step.
const STEP: Duration = Duration::from_secs(1);
/// A run with a dead peer ends by its deadlines, after a few times [`STEP`]. A run that takes this long hangs.
const HANGS: Duration = Duration::from_secs(60);
/// The version of `gdr loopback`'s messages.
const VERSION: u32 = 3;
/// Bytes of a greeting, and of a frame's header.
const GREETING: usize = 60;
const HEADER: usize = 8;

fn go_on(_: Event<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Runs the end with the GPU.
fn receive(listener: &Listener) -> Result<Report, Error> {
    let device = loopback::open_listener(LOCALHOST, None, 0)?;
    let timeouts = Timeouts {
        peer: STEP,
        step: STEP,
    };
    let to = Destination::default();
    let security = Security::Loopback;
    loopback::listen(
        &target(),
        &device,
        listener,
        &security,
        &ListeningEnd::new(to, timeouts),
        &mut go_on,
    )
}

/// Runs the other end.
fn send(peer: SocketAddr) -> Result<Report, Error> {
    send_within(STEP, peer)
}

/// Runs the same with another limit for a step.
fn send_within(timeout: Duration, peer: SocketAddr) -> Result<Report, Error> {
    // Open it at the address that the proxy connects from.
    let device = loopback::open_connector(peer.ip(), Some(LOCALHOST), 0)?;
    let settings = Settings {
        size: 4096,
        iterations: 2,
        timeout,
        ..Settings::default()
    };
    loopback::connect(
        &device,
        peer,
        &Security::Loopback,
        TransferMemory::Host,
        &settings,
        &mut go_on,
    )
}

/// What a proxy does once it has passed on its number of messages.
#[derive(Clone, Copy, Debug)]
enum Then {
    Close,
    FallSilent,
}

/// A proxy between the two ends.
struct Proxy {
    left: AtomicUsize,
    /// Locked while the run lasts.
    run: Mutex<()>,
    then: Then,
}

impl Proxy {
    /// Passes messages on one by one.
    fn pass(&self, from: &TcpStream, mut to: &TcpStream) {
        let mut message = bytes(from, GREETING);
        while let Some(whole) = message {
            let count = |left: usize| left.checked_sub(1);
            let passes = self
                .left
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, count);
            if passes.is_err() || to.write_all(&whole).is_err() {
                break;
            }
            message = frame(from);
        }
        if let Then::FallSilent = self.then {
            drop(self.run.lock().unwrap());
        }
        // Either may be closed already.
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}

fn bytes(mut from: &TcpStream, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes).ok().map(|()| bytes)
}

fn frame(from: &TcpStream) -> Option<Vec<u8>> {
    let mut frame = bytes(from, HEADER)?;
    let len = u32::from_le_bytes(frame[4..].try_into().unwrap());
    frame.extend(bytes(from, len as usize)?);
    Some(frame)
}

/// Runs both ends through a proxy that passes on `messages`; returns how they fared, receiver first.
fn cut_after(messages: usize, then: Then) -> [Result<Report, Error>; 2] {
    let listener = Listener::bind((LOCALHOST, 0).into()).unwrap();
    let behind = listener.address().unwrap();
    let front = TcpListener::bind((LOCALHOST, 0)).unwrap();
    let address = front.local_addr().unwrap();
    let proxy = Proxy {
        left: AtomicUsize::new(messages),
        run: Mutex::new(()),
        then,
    };
    let start = Instant::now();
    let run = proxy.run.lock().unwrap();
    let ends = thread::scope(|scope| {
        scope.spawn(|| {
            let (client, _) = front.accept().unwrap();
            let server = TcpStream::connect(behind).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| proxy.pass(&client, &server));
                scope.spawn(|| proxy.pass(&server, &client));
            });
        });
        let receiver = scope.spawn(|| receive(&listener));
        let sender = send(address);
        let receiver = receiver.join().unwrap();
        drop(run);
        [receiver, sender]
    });
    assert!(start.elapsed() < HANGS, "cut after {messages}, {then:?}");
    ends
}

fn passed(end: &Result<Report, Error>) -> bool {
    matches!(end, Ok(report) if report.verdict == Verdict::Pass)
}

/// Returns what an end that did not pass says of it.
fn words(end: &Result<Report, Error>) -> String {
    match end {
        Ok(report) => {
            let cause = report.cause.as_ref();
            cause.map_or_else(String::new, |cause| {
                format!("{}; {}", cause.what, cause.remedy)
            })
        }
        Err(error) => error.to_string(),
    }
}

/// The messages of a whole run: greetings, ask, ready, agreed, introductions, barriers, and four
/// an iteration.
const MESSAGES: usize = 2 + 3 + 2 + 2 + 2 * 4;

#[test]
fn with_all_messages_both_ends_pass() {
    let ends = cut_after(MESSAGES, Then::Close);
    assert!(ends.iter().all(passed), "{ends:?}");
}

fn without_some(then: Then, expected: &str) {
    thread::scope(|scope| {
        for messages in 0..MESSAGES {
            scope.spawn(move || {
                let ends = cut_after(messages, then);
                let failed: Vec<_> = ends.iter().filter(|end| !passed(end)).collect();
                assert!(!failed.is_empty(), "{then:?} after {messages}: both passed");
                for end in failed {
                    let words = words(end);
                    assert!(
                        words.contains(expected),
                        "{then:?} after {messages}: {words}"
                    );
                }
            });
        }
    });
}

#[test]
fn a_peer_that_vanishes_after_any_message_is_named_as_gone() {
    without_some(Then::Close, "closed the connection during");
}

#[test]
fn a_peer_that_falls_silent_after_any_message_costs_its_deadline() {
    without_some(Then::FallSilent, "did not happen before the deadline");
}

/// Returns how the end with the GPU fares with a peer that speaks as `talk` does.
fn against(talk: impl FnOnce(&mut Session) + Send) -> Error {
    let listener = Listener::bind((LOCALHOST, 0).into()).unwrap();
    let address = listener.address().unwrap();
    thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(&listener));
        let mut session = Session::connect(address, &Security::Loopback, soon()).unwrap();
        talk(&mut session);
        receiver.join().unwrap().unwrap_err()
    })
}

fn soon() -> Deadline {
    Deadline::after(HANGS)
}

fn ask(version: u32) -> Vec<u8> {
    let end = r#"{"device":"d","address":"127.0.0.1:9","provider":"p","integrity":"i"}"#;
    let ask = format!(
        r#"{{"message":"ask","version":{version},"size":4096,"iterations":1,"seed":1,"queue_pairs":1,"end":{end}}}"#
    );
    ask.into_bytes()
}

#[test]
fn another_version_is_refused_and_the_peer_gets_the_reason() {
    let mut refusal = None;
    let error = against(|session| {
        session.send(&ask(77), soon()).unwrap();
        refusal = Some(session.receive(soon()).unwrap_err());
    });
    let words = error.to_string();
    assert!(words.contains("speaks version 77"), "{words}");
    assert!(
        words.contains("use the same version of gdr on both sides"),
        "{words}"
    );
    let refusal = refusal.unwrap();
    assert!(
        matches!(&refusal, gdr_rdma::Error::Handshake(HandshakeError::Refused(why))
            if why.as_str().contains("version 77")),
        "{refusal}"
    );
}

#[test]
fn unusable_settings_of_the_peer_are_refused_and_the_peer_gets_the_reason() {
    let end = r#"{"device":"d","address":"127.0.0.1:9","provider":"p","integrity":"i"}"#;
    for (size, iterations, queue_pairs, expected) in [
        (0_u64, 1, 1, "0 bytes cannot be transferred"),
        (3, 1, 1, "a multiple of 4"),
        (2 << 30, 1, 1, "up to 1G"),
        (4096, 0, 1, "0 iterations"),
        (4096, 1, 0, "over 0 queue pairs: use 1 to 8"),
        (4096, 1, 1000, "over 1000 queue pairs: use 1 to 8"),
    ] {
        let ask = format!(
            r#"{{"message":"ask","version":{VERSION},"size":{size},"iterations":{iterations},"seed":1,"queue_pairs":{queue_pairs},"end":{end}}}"#
        );
        let mut refusal = None;
        let error = against(|session| {
            session.send(ask.as_bytes(), soon()).unwrap();
            refusal = Some(session.receive(soon()).unwrap_err().to_string());
        });
        assert!(matches!(error, Error::Peer(_)), "{error:?}");
        for words in [error.to_string(), refusal.unwrap()] {
            assert!(words.contains(expected), "{words}");
        }
    }
}

/// Returns an endpoint whose queue pair is gone.
fn dead_endpoint() -> gdr_rdma::Endpoint {
    let device = loopback::open_connector(LOCALHOST, Some(LOCALHOST), 0).unwrap();
    let queue = device.completion_queue(8);
    let domain = device.protection_domain();
    let options = gdr_rdma::QueuePairOptions::new(&queue);
    domain.queue_pair(&options).unwrap().endpoint()
}

/// Returns how the end with the host memory fares with a peer that takes its WRITEs at `endpoint` and `talk`s from then
/// on.
fn writes_to(
    endpoint: gdr_rdma::Endpoint,
    step: Duration,
    talk: impl FnOnce(&mut Session) + Send,
) -> Result<Report, Error> {
    let listener = Listener::bind((LOCALHOST, 0).into()).unwrap();
    let address = listener.address().unwrap();
    thread::scope(|scope| {
        let sender = scope.spawn(move || send_within(step, address));
        let mut session = listener.accept(&Security::Loopback, soon()).unwrap();
        session.receive(soon()).unwrap();
        let ready = serde_json::json!({
            "message": "ready",
            "memory": {
                "gpu": "g", "simulated": true, "backend": "b", "route": "r", "pci": "p",
                "cuda": "c", "driver": null, "allocated_by": "a", "reached": "direct", "why": "w",
            },
            "end": {
                "device": "d", "address": endpoint.address.to_string(), "provider": "p",
                "integrity": "i",
            },
            "mtu": 3,
        });
        session
            .send(&serde_json::to_vec(&ready).unwrap(), soon())
            .unwrap();
        session.receive(soon()).unwrap();
        let ours = PeerInfo {
            endpoint,
            path_mtu: Mtu::B1024,
            regions: vec![gdr_rdma::RemoteMemory {
                rkey: gdr_rdma::Rkey(1),
                addr: 0,
                len: 4096,
            }],
        };
        session.introduce(&ours, soon()).unwrap();
        session.barrier(soon()).unwrap();
        let filled = br#"{"message":"filled","outcome":{"outcome":"equal"}}"#;
        session.send(filled, soon()).unwrap();
        talk(&mut session);
        sender.join().unwrap()
    })
}

#[test]
fn a_failed_write_is_the_cause_though_the_peer_says_nothing_more() {
    let report = writes_to(dead_endpoint(), STEP, |session| {
        session.receive(soon()).unwrap();
        // It gets the cause, too.
        let error = session.receive(soon()).unwrap_err().to_string();
        assert!(error.contains("RETRY_EXC_ERR"), "{error}");
    })
    .unwrap();
    assert_eq!(report.verdict, Verdict::Fail);
    let cause = report.cause.unwrap();
    assert_eq!(cause.kind, CauseKind::ErrorCompletion);
    assert!(cause.what.contains("RETRY_EXC_ERR"), "{}", cause.what);
    assert!(cause.what.contains("no packet came back"), "{}", cause.what);
    let last = report.last.unwrap();
    assert!(matches!(last.sent, Ended::Error { .. }), "{last:?}");
}

#[test]
fn a_peer_that_ends_the_run_is_noticed_while_a_write_goes_on() {
    let start = Instant::now();
    let report = writes_to(dead_endpoint(), 30 * STEP, |session| {
        session.refuse("out of\nmemory", soon()).unwrap();
        // The session stays open, so only the refusal can end it early.
        while session.receive(soon()).is_ok() {}
    })
    .unwrap();
    assert!(start.elapsed() < HANGS);
    let cause = report.cause.unwrap();
    assert!(
        cause.what.contains("refused: \"out of\\nmemory\""),
        "{}",
        cause.what
    );
    // It did not wait for the WRITE to fail.
    let last = report.last.unwrap();
    assert!(matches!(last.sent, Ended::Failed { .. }), "{last:?}");
}

#[test]
fn a_peer_that_names_another_place_than_its_queue_pairs_is_refused() {
    let error = against(|session| {
        session.send(&ask(VERSION), soon()).unwrap();
        session.receive(soon()).unwrap();
        session
            .send(br#"{"message":"agreed","mtu":3}"#, soon())
            .unwrap();
        let ours = PeerInfo {
            endpoint: dead_endpoint(),
            path_mtu: Mtu::B1024,
            regions: Vec::new(),
        };
        session.introduce(&ours, soon()).unwrap();
        let error = session.barrier(soon()).unwrap_err().to_string();
        assert!(error.contains("in another"), "{error}");
    });
    assert!(matches!(&error, Error::Peer(_)), "{error}");
    assert!(error.to_string().contains("127.0.0.1:9"), "{error}");
}

#[test]
fn another_path_mtu_is_named() {
    let error = against(|session| {
        session.send(&ask(VERSION), soon()).unwrap();
        session.receive(soon()).unwrap();
        session
            .send(br#"{"message":"agreed","mtu":3}"#, soon())
            .unwrap();
        let device = loopback::open_connector(LOCALHOST, Some(LOCALHOST), 0).unwrap();
        let queue = device.completion_queue(8);
        let domain = device.protection_domain();
        let options = gdr_rdma::QueuePairOptions::new(&queue);
        let ours = PeerInfo {
            endpoint: domain.queue_pair(&options).unwrap().endpoint(),
            path_mtu: Mtu::B4096,
            regions: Vec::new(),
        };
        // The other end fails as well.
        session.introduce(&ours, soon()).unwrap_err();
    });
    let mtu = |error: &Error| {
        matches!(
            error,
            Error::Rdma(gdr_rdma::Error::Handshake(HandshakeError::Mtu { .. }))
        )
    };
    assert!(mtu(&error), "{error}");
    assert!(
        error.to_string().contains("set both to the same value"),
        "{error}"
    );
}

#[test]
fn malformed_messages_are_refused() {
    for (message, expected) in [
        (&b"not json"[..], "not a message of this protocol"),
        (br#"{"message":"agreed","mtu":5}"#, "out of order"),
    ] {
        let error = against(|session| session.send(message, soon()).unwrap());
        assert!(error.to_string().contains(expected), "{error}");
    }
}
