//! The set-up of connections over TCP: between two of this crate, and against peers that do
//! everything wrong.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use gdr_rdma::{
    Access, Buffer, ConnectionOptions, Deadline, Device, Endpoint, Error, HandshakeError,
    Introduction, Lid, Listener, Mtu, Psn, Qpn, QueuePairOptions, RemoteMemory, Result, Rkey,
    Security, SendRequest, Session, SharedKey, SoftOptions, WcStatus, WrId,
};

/// Nothing here takes a noticeable part of this; a test that hits it is stuck.
fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn key(text: &str) -> Security {
    Security::Key(SharedKey::new(text).unwrap())
}

fn introduction(mtu: Mtu) -> Introduction {
    Introduction {
        endpoint: Endpoint {
            address: SocketAddr::from(([127, 0, 0, 9], 4791)),
            qpn: Qpn::new(17),
            psn: Psn::new(0x00ab_cdef),
            lid: Lid::new(9),
        },
        path_mtu: mtu,
        regions: vec![RemoteMemory {
            rkey: Rkey(5),
            addr: 0x7000,
            len: 64,
        }],
    }
}

/// What both sides got out of a greeting: server, client.
fn greet(server: &Security, client: &Security) -> [Result<Session>; 2] {
    let listener = Listener::bind(anywhere()).unwrap();
    let address = listener.address().unwrap();
    thread::scope(|scope| {
        let server = scope.spawn(|| listener.accept(server, soon()));
        let client = Session::connect(address, client, soon());
        [server.join().unwrap(), client]
    })
}

fn greeted(security: &Security) -> [Session; 2] {
    greet(security, security).map(Result::unwrap)
}

fn handshake(result: Result<Session>) -> HandshakeError {
    match result.map(drop) {
        Err(Error::Handshake(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn two_programs_meet_connect_and_move_bytes() {
    let side = |session: &mut Session, writes: bool| {
        let device = Device::soft_with(SoftOptions::default().port(0)).unwrap();
        let domain = device.protection_domain();
        let queue = device.completion_queue(16);
        let pair = domain.queue_pair(&QueuePairOptions::new(&queue)).unwrap();
        let buffer = Buffer::host(4096).unwrap();
        let region = domain.register(&buffer, Access::all()).unwrap();
        let path_mtu = device.path_mtu(session.peer().unwrap().ip()).unwrap();
        let ours = Introduction {
            endpoint: pair.endpoint(),
            path_mtu,
            regions: vec![region.remote()],
        };
        let theirs = session.introduce(&ours, soon()).unwrap();
        let options = ConnectionOptions::new(path_mtu);
        pair.connect(&theirs.endpoint, &options).unwrap();
        session.barrier(soon()).unwrap();
        if writes {
            let write = SendRequest::write(WrId(0), theirs.regions[0].at(8)).inline(b"hello");
            pair.post_send(write).unwrap();
            assert_eq!(queue.wait(soon()).unwrap().status, WcStatus::Success);
            session.send(b"written", soon()).unwrap();
        } else {
            assert_eq!(session.receive(soon()).unwrap(), b"written");
            let mut seen = [0; 5];
            buffer.copy_out(8, &mut seen).unwrap();
            assert_eq!(&seen, b"hello");
        }
        session.barrier(soon()).unwrap();
    };
    for security in [Security::Loopback, key("sixteen bytes ok")] {
        let [mut server, mut client] = greeted(&security);
        thread::scope(|scope| {
            scope.spawn(|| side(&mut server, false));
            side(&mut client, true);
        });
    }
}

#[test]
fn a_key_known_to_both_authenticates_and_a_long_one_too() {
    let long = "x".repeat(1000);
    for text in ["sixteen bytes ok", &long] {
        let sessions = greeted(&key(text));
        assert!(sessions.iter().all(Session::is_authenticated));
    }
    let sessions = greeted(&Security::Loopback);
    assert!(!sessions.iter().any(Session::is_authenticated));
}

#[test]
fn a_wrong_key_is_named_on_both_sides() {
    let results = greet(&key("sixteen bytes ok"), &key("sixteen bytes kO"));
    for result in results {
        assert!(matches!(handshake(result), HandshakeError::WrongKey));
    }
}

#[test]
fn a_key_on_one_side_only_is_named_on_both() {
    let [server, client] = greet(&key("sixteen bytes ok"), &Security::Insecure);
    assert!(matches!(
        handshake(server),
        HandshakeError::KeyMissing { theirs: false }
    ));
    assert!(matches!(
        handshake(client),
        HandshakeError::KeyMissing { theirs: true }
    ));
}

#[test]
fn different_path_mtus_are_named_on_both_sides() {
    let [mut server, mut client] = greeted(&Security::Loopback);
    let outcomes = thread::scope(|scope| {
        let server = scope.spawn(|| server.introduce(&introduction(Mtu::B1024), soon()));
        let client = client.introduce(&introduction(Mtu::B4096), soon());
        [server.join().unwrap(), client]
    });
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert!(
            matches!(error, Error::Handshake(HandshakeError::Mtu { .. })),
            "{error}"
        );
    }
}

#[test]
fn messages_out_of_turn_and_too_long_are_refused() {
    let [mut server, mut client] = greeted(&key("sixteen bytes ok"));
    client.send(b"not an introduction", soon()).unwrap();
    let error = server.introduce(&introduction(Mtu::B1024), soon());
    assert!(matches!(
        error,
        Err(Error::Handshake(HandshakeError::Malformed(_)))
    ));
    let long = client.send(&vec![0; (64 << 10) + 1], soon());
    assert!(matches!(
        long,
        Err(Error::Handshake(HandshakeError::TooLong { .. }))
    ));
    client.send(&vec![7; 64 << 10], soon()).unwrap();
    // Refusing to send left the session in order.
    assert_eq!(server.receive(soon()).unwrap(), vec![7; 64 << 10]);
}

/// What a real greeting looks like: magic, version, flags, challenge.
fn hello(version: u16, keyed: bool) -> Vec<u8> {
    let mut bytes = b"gdr-rdma".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(u16::from(keyed).to_le_bytes());
    bytes.extend([9; 32]);
    bytes
}

/// How a server fares with a client that sends these bytes and then hangs up, or stays silent.
fn server_against(bytes: &[u8], stays: bool, security: &Security, limit: Duration) -> Error {
    let listener = Listener::bind(anywhere()).unwrap();
    let mut client = TcpStream::connect(listener.address().unwrap()).unwrap();
    client.write_all(bytes).unwrap();
    let client = stays.then_some(client);
    let deadline = Deadline::after(limit);
    let error = listener
        .accept(security, deadline)
        .and_then(|mut session| session.introduce(&introduction(Mtu::B4096), deadline))
        .unwrap_err();
    drop(client);
    error
}

#[test]
fn another_version_and_another_protocol_are_named() {
    let security = Security::Loopback;
    let limit = Duration::from_secs(60);
    let version = server_against(&hello(7, false), true, &security, limit);
    let expected = "speaks version 7 of the set-up, this is version 2";
    assert!(version.to_string().contains(expected), "{version}");
    let mut http = b"GET / HTTP/1.1\r\n".to_vec();
    http.resize(44, b' ');
    let other = server_against(&http, true, &security, limit);
    assert!(matches!(other, Error::Handshake(HandshakeError::Protocol)));
}

#[test]
fn a_peer_that_vanishes_at_any_byte_is_noticed_at_once() {
    let limit = Duration::from_secs(60);
    for keyed in [false, true] {
        let security = if keyed {
            key("sixteen bytes ok")
        } else {
            Security::Loopback
        };
        let mut bytes = hello(2, keyed);
        // Half an introduction, or half a proof.
        bytes.extend([1, 0, 0, 0, 50, 0, 0, 0, 4, 0, 0]);
        for cut in [0, 1, 8, 10, 43, 44, 45, 51, 52, 55] {
            let start = Instant::now();
            let error = server_against(&bytes[..cut], false, &security, limit);
            assert!(
                matches!(error, Error::Handshake(HandshakeError::Gone { .. })),
                "{cut}: {error}"
            );
            assert!(start.elapsed() < limit / 2);
        }
    }
}

#[test]
fn a_peer_that_falls_silent_at_any_byte_costs_the_deadline_and_no_more() {
    let limit = Duration::from_millis(20);
    let mut bytes = hello(2, false);
    bytes.extend([1, 0, 0, 0, 50, 0, 0, 0, 4, 0, 0]);
    for cut in [0, 1, 43, 44, 51, 55] {
        let start = Instant::now();
        let error = server_against(&bytes[..cut], true, &Security::Loopback, limit);
        assert!(matches!(error, Error::Deadline { .. }), "{cut}: {error}");
        assert!(start.elapsed() >= limit);
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}

#[test]
fn a_peer_that_sends_a_byte_at_a_time_does_not_stretch_the_deadline() {
    let listener = Listener::bind(anywhere()).unwrap();
    let mut client = TcpStream::connect(listener.address().unwrap()).unwrap();
    let limit = Duration::from_millis(50);
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let start = Instant::now();
            let outcome = listener.accept(&Security::Loopback, Deadline::after(limit));
            (outcome.map(drop), start.elapsed())
        });
        // Each byte alone comes well within any limit for one read.
        for byte in hello(2, false).iter().take(40) {
            if server.is_finished() || client.write_all(&[*byte]).is_err() {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let (outcome, elapsed) = server.join().unwrap();
        assert!(
            matches!(outcome, Err(Error::Deadline { .. })),
            "{outcome:?}"
        );
        assert!(elapsed < Duration::from_secs(30));
    });
}

#[test]
fn an_announced_length_beyond_all_messages_is_refused_before_it_is_awaited() {
    let mut bytes = hello(2, false);
    bytes.extend([1, 0, 0, 0]);
    bytes.extend(u32::MAX.to_le_bytes());
    let error = server_against(&bytes, true, &Security::Loopback, Duration::from_secs(60));
    assert!(matches!(
        error,
        Error::Handshake(HandshakeError::TooLong { .. })
    ));
}

#[test]
fn a_peer_that_returns_our_own_proof_is_not_believed() {
    // A server without the key that plays back what the client says.
    let listener = TcpListener::bind(anywhere()).unwrap();
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut greeting = [0; 44];
            stream.read_exact(&mut greeting).unwrap();
            stream.write_all(&greeting).unwrap();
            let mut proof = [0; 32];
            stream.read_exact(&mut proof).unwrap();
            stream.write_all(&[1]).unwrap();
            stream.write_all(&proof).unwrap();
        });
        let client = Session::connect(address, &key("sixteen bytes ok"), soon());
        assert!(matches!(handshake(client), HandshakeError::WrongKey));
    });
}

#[test]
fn nobody_comes_nobody_listens() {
    let listener = Listener::bind(anywhere()).unwrap();
    let deadline = Deadline::after(Duration::from_millis(10));
    let nobody = listener.accept(&Security::Loopback, deadline);
    assert!(matches!(nobody, Err(Error::Deadline { .. })));
    let address = listener.address().unwrap();
    drop(listener);
    let refused = Session::connect(address, &Security::Loopback, soon());
    assert!(matches!(refused, Err(Error::Connect { .. })));
}

#[test]
fn without_a_key_only_loopback_peers_are_taken() {
    // The way this machine would take to the outside; a connected UDP socket sends nothing.
    let probe = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let own = probe
        .connect("192.0.2.1:9")
        .and_then(|()| probe.local_addr())
        .map(|address| address.ip());
    let Ok(own) = own else {
        eprintln!("SKIPPED: this machine has no address but loopback");
        return;
    };
    let listener = Listener::bind(SocketAddr::new(own, 0)).unwrap();
    let address = listener.address().unwrap();
    let client = Session::connect(address, &Security::Loopback, soon());
    assert!(matches!(handshake(client), HandshakeError::KeyNeeded(ip) if ip == own));
    let server = listener.accept(&Security::Loopback, soon());
    assert!(matches!(handshake(server), HandshakeError::KeyNeeded(_)));
    thread::scope(|scope| {
        let server = scope.spawn(|| listener.accept(&key("sixteen bytes ok"), soon()));
        Session::connect(address, &key("sixteen bytes ok"), soon()).unwrap();
        server.join().unwrap().unwrap();
    });
}
