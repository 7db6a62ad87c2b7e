//! A peer that vanishes, or falls silent, after each message of `gdr loopback` in two processes;
//! and one that speaks another version, or offers other memory or another path MTU.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use gdr_copy::{BackendKind, Context};
use gdr_cuda::{Gpu, Ordinal, SimDriver};
use gdr_perf::loopback::{self, Destination, Event, Patience, Place, Report, Settings, Verdict};
use gdr_perf::{Error, Site};
use gdr_rdma::{Deadline, HandshakeError, Introduction, Listener, Mtu, Security, Session};

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// How long a step may take.
const STEP: Duration = Duration::from_secs(1);
/// A run with a dead peer is over by its deadlines: a few times [`STEP`]. One that takes this long
/// hangs.
const HANGS: Duration = Duration::from_secs(60);
/// Bytes of a greeting, and of a frame's header.
const GREETING: usize = 44;
const HEADER: usize = 8;

fn place() -> Place {
    let driver = SimDriver::new(1);
    let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
    let builder = Context::builder().simulated(driver);
    let context = builder.backend(BackendKind::Sim).open().unwrap();
    Site::new(gpu, Arc::new(context)).into()
}

fn go_on(_: Event<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// The end with the GPU.
fn receive(listener: &Listener) -> Result<Report, Error> {
    let device = loopback::open_listener(LOCALHOST, None, 0)?;
    let patience = Patience {
        peer: STEP,
        step: STEP,
    };
    let to = Destination::default();
    let security = Security::Loopback;
    loopback::listen(
        &place(),
        &device,
        listener,
        &security,
        to,
        patience,
        &mut go_on,
    )
}

/// The other end.
fn send(peer: SocketAddr) -> Result<Report, Error> {
    let device = loopback::open_connector(peer.ip(), None, 0)?;
    let settings = Settings {
        size: 4096,
        iterations: 2,
        timeout: STEP,
        ..Settings::default()
    };
    loopback::connect(&device, peer, &Security::Loopback, &settings, &mut go_on)
}

/// What a proxy does once it has passed on as many messages as it may.
#[derive(Clone, Copy, Debug)]
enum Then {
    Close,
    FallSilent,
}

/// Stands between the two ends.
struct Proxy {
    left: AtomicUsize,
    /// Locked while the run lasts.
    run: Mutex<()>,
    then: Then,
}

impl Proxy {
    /// Passes messages on, one by one.
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

/// A run through a proxy that passes on `messages`: how the two ends fared, receiver first.
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

/// What an end that did not pass says of it.
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

/// How the end with the GPU fares with a peer that speaks as `talk` does.
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
        r#"{{"message":"ask","version":{version},"size":4096,"iterations":1,"seed":1,"end":{end}}}"#
    );
    ask.into_bytes()
}

#[test]
fn another_version_is_named_and_the_peer_told() {
    let mut refusal = Vec::new();
    let error = against(|session| {
        session.send(&ask(77), soon()).unwrap();
        refusal = session.receive(soon()).unwrap();
    });
    let words = error.to_string();
    assert!(words.contains("speaks version 77"), "{words}");
    assert!(words.contains("use one gdr on both sides"), "{words}");
    let told = String::from_utf8(refusal).unwrap();
    assert!(
        told.contains("refused") && told.contains("version 77"),
        "{told}"
    );
}

#[test]
fn another_path_mtu_is_named() {
    let error = against(|session| {
        session.send(&ask(1), soon()).unwrap();
        session.receive(soon()).unwrap();
        session
            .send(br#"{"message":"agreed","mtu":3}"#, soon())
            .unwrap();
        let device = loopback::open_connector(LOCALHOST, None, 0).unwrap();
        let queue = device.completion_queue(8);
        let domain = device.protection_domain();
        let options = gdr_rdma::QueuePairOptions::new(&queue);
        let ours = Introduction {
            endpoint: domain.queue_pair(&options).unwrap().endpoint(),
            path_mtu: Mtu::B4096,
            regions: Vec::new(),
        };
        // The other end is as surprised.
        session.introduce(&ours, soon()).unwrap_err();
    });
    let mtu = |error: &Error| {
        matches!(
            error,
            Error::Rdma(gdr_rdma::Error::Handshake(HandshakeError::Mtu { .. }))
        )
    };
    assert!(mtu(&error), "{error}");
    assert!(error.to_string().contains("give both the same"), "{error}");
}

#[test]
fn nonsense_is_named() {
    for (message, expected) in [
        (&b"not json"[..], "no message of `gdr loopback`"),
        (br#"{"message":"agreed","mtu":5}"#, "out of turn"),
    ] {
        let error = against(|session| session.send(message, soon()).unwrap());
        assert!(error.to_string().contains(expected), "{error}");
    }
}
