//! Connection set-up over TCP: between two ends of this crate, and with peers that violate the protocol.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use gdr_rdma::{
    Access, Buffer, ConnectionOptions, Deadline, Device, Endpoint, Error, HandshakeError, Listener,
    Mtu, NicError, PeerInfo, Psn, Qpn, QueuePairOptions, RemoteMemory, Result, Rkey, Security,
    SendRequest, Service, Session, SharedKey, SocketError, SoftOptions, SourcePort, WcStatus, WrId,
};

/// Returns a deadline that only a stuck test reaches.
fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn key(text: &str) -> Security {
    Security::Key(SharedKey::new(text).unwrap())
}

fn introduction(mtu: Mtu) -> PeerInfo {
    PeerInfo {
        endpoint: Endpoint {
            address: SocketAddr::from(([127, 0, 0, 1], 4791)),
            qpn: Qpn::new(16 + u32::from(mtu.code())),
            psn: Psn::new(0x00ab_cdef),
            lid: None,
            source_port: SourcePort::OfAddress,
            loss_recovery: gdr_rdma::LossRecovery::Selective,
        },
        path_mtu: mtu,
        regions: vec![RemoteMemory {
            rkey: Rkey(5),
            addr: 0x7000,
            len: 64,
        }],
    }
}

/// Returns the results of server and client after a greeting. A client that fails does not end the server's wait; a
/// further client ends it, which the server accepts.
fn set_up(server: &Security, client: &Security) -> [Result<Session>; 2] {
    let listener = Listener::bind(anywhere()).unwrap();
    let address = listener.address().unwrap();
    let (sender, failures) = mpsc::channel();
    thread::scope(|scope| {
        let accepted = scope.spawn(|| {
            let note = |_, error: &Error| sender.send(error.to_string()).unwrap();
            listener.accept_noting(server, soon(), note)
        });
        let client = Session::connect(address, client, soon());
        if client.is_err() {
            Session::connect(address, server, soon()).unwrap();
        }
        let accepted = accepted.join().unwrap().unwrap();
        let accepted = match failures.try_recv() {
            Err(_) => Ok(accepted),
            // The text identifies the failure.
            Ok(failure) if failure.contains("has a different shared key") => {
                Err(HandshakeError::WrongKey.into())
            }
            Ok(failure) if failure.contains("has no shared key") => {
                Err(HandshakeError::KeyMissing { theirs: false }.into())
            }
            Ok(failure) => panic!("{failure}"),
        };
        [accepted, client]
    })
}

fn connected(security: &Security) -> [Session; 2] {
    set_up(security, security).map(Result::unwrap)
}

fn handshake(result: Result<Session>) -> HandshakeError {
    match result.map(drop) {
        Err(Error::Handshake(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn two_programs_exchange_endpoints_connect_and_transfer_bytes() {
    let side = |session: &mut Session, writes: bool| {
        let device = Device::soft_with(SoftOptions::default().port(0)).unwrap();
        let domain = device.protection_domain();
        let queue = device.completion_queue(16);
        let pair = domain.queue_pair(&QueuePairOptions::new(&queue)).unwrap();
        let buffer = Buffer::host(4096).unwrap();
        let region = domain.register(&buffer, Access::all()).unwrap();
        let path_mtu = device.path_mtu(session.peer().unwrap().ip()).unwrap();
        let ours = PeerInfo {
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
            buffer.read_at(8, &mut seen).unwrap();
            assert_eq!(&seen, b"hello");
        }
        session.barrier(soon()).unwrap();
    };
    for security in [Security::Loopback, key("sixteen bytes ok")] {
        let [mut server, mut client] = connected(&security);
        thread::scope(|scope| {
            scope.spawn(|| side(&mut server, false));
            side(&mut client, true);
        });
    }
}

#[test]
fn peers_with_the_same_key_of_any_length_authenticate() {
    let long = "x".repeat(1000);
    for text in ["sixteen bytes ok", &long] {
        let sessions = connected(&key(text));
        assert!(sessions.iter().all(Session::is_authenticated));
    }
    let sessions = connected(&Security::Loopback);
    assert!(!sessions.iter().any(Session::is_authenticated));
}

#[test]
fn a_wrong_key_is_reported_on_both_sides() {
    let results = set_up(&key("sixteen bytes ok"), &key("sixteen bytes kO"));
    for result in results {
        assert!(matches!(handshake(result), HandshakeError::WrongKey));
    }
}

#[test]
fn a_key_on_one_side_only_is_reported_on_both_sides() {
    let [server, client] = set_up(&key("sixteen bytes ok"), &Security::Insecure);
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
fn different_path_mtus_are_reported_on_both_sides() {
    let [mut server, mut client] = connected(&Security::Loopback);
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
fn messages_that_are_out_of_order_or_too_long_are_refused() {
    let [mut server, mut client] = connected(&key("sixteen bytes ok"));
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
    // The refused send left the session intact.
    assert_eq!(server.receive(soon()).unwrap(), vec![7; 64 << 10]);
}

/// Returns a valid greeting: magic, version, flags, service, challenge.
fn hello(version: u16, keyed: bool) -> Vec<u8> {
    let mut bytes = b"gdr-rdma".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(u16::from(keyed).to_le_bytes());
    bytes.extend([0; Service::LEN]);
    bytes.extend([9; 32]);
    bytes
}

/// Connects and sends these bytes, then closes the connection or keeps it open.
fn stranger(listener: &Listener, bytes: &[u8], stays: Stays) -> Option<TcpStream> {
    let mut client = TcpStream::connect(listener.address().unwrap()).unwrap();
    client.write_all(bytes).unwrap();
    (stays == Stays::Yes).then_some(client)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stays {
    Yes,
    No,
}

/// A limit that no step of a greeting reaches, and that a test can wait for.
const SHORT: Duration = Duration::from_millis(300);

/// Returns what a listener logs about a client that sends these bytes, before it accepts the next peer.
fn noted(bytes: &[u8], stays: Stays, security: &Security) -> String {
    let listener = Listener::bind(anywhere()).unwrap().greeting_limit(SHORT);
    let address = listener.address().unwrap();
    let client = stranger(&listener, bytes, stays);
    let (sender, noted) = mpsc::channel();
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let note = |_, error: &Error| sender.send(error.to_string()).unwrap();
            listener.accept_noting(security, soon(), note)
        });
        let noted = noted.recv_timeout(Duration::from_secs(60)).unwrap();
        let peer = Session::connect(address, security, soon()).unwrap();
        let taken = server.join().unwrap().unwrap();
        assert_eq!(taken.is_authenticated(), peer.is_authenticated());
        assert_eq!(listener.failed(), 1);
        drop(client);
        noted
    })
}

/// Returns the error of an introduction by a client that greets correctly, sends these bytes, and then closes the
/// connection or keeps it open.
fn introduced(bytes: &[u8], stays: Stays, limit: Duration) -> Error {
    let listener = Listener::bind(anywhere()).unwrap();
    let mut all = hello(3, false);
    all.extend(bytes);
    let client = stranger(&listener, &all, stays);
    // If the client has closed the connection, its user is no longer known.
    let mut session = listener.accept(&Security::Insecure, soon()).unwrap();
    let deadline = Deadline::after(limit);
    let error = session.introduce(&introduction(Mtu::B4096), deadline);
    drop(client);
    error.unwrap_err()
}

#[test]
fn a_stranger_of_any_kind_does_not_end_an_accept_and_is_reported() {
    let mut http = b"GET / HTTP/1.1\r\n".to_vec();
    http.resize(44, b' ');
    let mut wrong_proof = hello(3, true);
    wrong_proof.extend([7; 32]);
    let closed = "closed the connection during the peer's greeting";
    let silent = "the peer's greeting did not happen";
    let any = Security::Loopback;
    let keyed = key("sixteen bytes ok");
    for (security, bytes, stays, expected) in [
        (&any, &b""[..], Stays::No, closed),
        (&any, b"", Stays::Yes, silent),
        (&any, &hello(3, false)[..43], Stays::Yes, silent),
        (&any, &hello(3, false)[..43], Stays::No, closed),
        (&any, &http, Stays::Yes, "does not speak"),
        (&any, &hello(7, false), Stays::Yes, "speaks version 7"),
        (&any, &hello(3, true), Stays::Yes, "requires a shared key"),
        (&keyed, b"", Stays::No, closed),
        (&keyed, b"", Stays::Yes, silent),
        (&keyed, &hello(3, false), Stays::Yes, "has no shared key"),
        (&keyed, &hello(3, true), Stays::Yes, "the client's proof"),
        (&keyed, &hello(3, true), Stays::No, "the client's proof"),
        (
            &keyed,
            &wrong_proof,
            Stays::Yes,
            "has a different shared key",
        ),
        (
            &keyed,
            &wrong_proof,
            Stays::No,
            "has a different shared key",
        ),
    ] {
        let noted = noted(bytes, stays, security);
        assert!(noted.contains(expected), "{noted}, not {expected}");
    }
}

#[test]
fn silent_strangers_do_not_delay_a_peer() {
    let security = key("sixteen bytes ok");
    // The limit is longer than the test, so only the need for room removes these clients.
    let listener = Listener::bind(anywhere()).unwrap();
    let listener = listener.greeting_limit(Duration::from_secs(600));
    let address = listener.address().unwrap();
    let silent: Vec<_> = (0..100)
        .map(|_| stranger(&listener, b"", Stays::Yes))
        .collect();
    thread::scope(|scope| {
        let server = scope.spawn(|| listener.accept(&security, soon()));
        Session::connect(address, &security, soon()).unwrap();
        assert!(server.join().unwrap().unwrap().is_authenticated());
    });
    assert!(listener.failed() >= 100 - 32, "{}", listener.failed());
    drop(silent);
}

#[test]
fn a_listener_that_is_asked_again_and_again_ends_a_silent_connection() {
    let listener = Listener::bind(anywhere()).unwrap().greeting_limit(SHORT);
    let client = stranger(&listener, b"", Stays::Yes);
    let waited = soon();
    while listener.failed() == 0 {
        assert!(!waited.has_passed());
        let none = listener.accept(&Security::Loopback, Deadline::after(SHORT / 10));
        assert!(none.is_err());
    }
    drop(client);
}

#[test]
fn an_accept_that_only_strangers_reached_reports_their_number_and_the_last_error() {
    let listener = Listener::bind(anywhere()).unwrap().greeting_limit(SHORT);
    for _ in 0..3 {
        stranger(&listener, b"", Stays::No);
    }
    let outcome = listener.accept(&Security::Loopback, Deadline::after(SHORT));
    let error = outcome.map(drop).unwrap_err();
    assert!(matches!(&error, Error::NoPeer { failed: 3, .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("3 connections failed, the last from"),
        "{text}"
    );
    assert!(text.contains("closed the connection"), "{text}");
}

#[test]
fn peers_that_connect_at_the_same_time_are_accepted_one_after_the_other() {
    let security = key("sixteen bytes ok");
    let listener = Listener::bind(anywhere()).unwrap();
    let address = listener.address().unwrap();
    thread::scope(|scope| {
        let clients: Vec<_> = (0..20)
            .map(|_| scope.spawn(|| Session::connect(address, &security, soon())))
            .collect();
        let taken: Vec<_> = (0..20)
            .map(|_| listener.accept(&security, soon()).unwrap())
            .collect();
        for client in clients {
            assert!(client.join().unwrap().unwrap().is_authenticated());
        }
        assert_eq!((taken.len(), listener.failed()), (20, 0));
    });
}

#[test]
fn a_connection_that_is_closed_during_the_handshake_ends_it_at_once() {
    let limit = Duration::from_secs(60);
    // Half an introduction.
    let bytes = [1, 0, 0, 0, 50, 0, 0, 0, 4, 0, 0];
    for cut in [0, 1, 7, 8, 11] {
        let start = Instant::now();
        let error = introduced(&bytes[..cut], Stays::No, limit);
        assert!(
            matches!(error, Error::Handshake(HandshakeError::Gone { .. })),
            "{cut}: {error}"
        );
        assert!(start.elapsed() < limit / 2);
    }
}

#[test]
fn a_peer_that_stops_sending_during_the_handshake_delays_it_until_the_deadline() {
    let limit = Duration::from_millis(20);
    let bytes = [1, 0, 0, 0, 50, 0, 0, 0, 4, 0, 0];
    for cut in [0, 7, 11] {
        let start = Instant::now();
        let error = introduced(&bytes[..cut], Stays::Yes, limit);
        assert!(matches!(error, Error::Deadline { .. }), "{cut}: {error}");
        assert!(start.elapsed() >= limit);
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}

#[test]
fn a_peer_of_another_service_is_named_and_ends_no_wait() {
    const OURS: Service = Service::new("objects");
    for security in [Security::Loopback, key("sixteen bytes ok")] {
        let listener = Listener::bind(anywhere()).unwrap();
        let address = listener.address().unwrap();
        let noted = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let accepted = scope.spawn(|| {
                let note = |_, error: &Error| noted.lock().unwrap().push(error.to_string());
                listener.accept_noting(security.with_service(OURS), soon(), note)
            });
            let other = security.with_service(Service::new("transfers"));
            let refused = Session::connect(address, other, soon()).unwrap_err();
            assert!(
                matches!(
                    refused,
                    Error::Handshake(HandshakeError::Service { theirs: OURS, .. })
                ),
                "{refused}"
            );
            assert!(refused.to_string().contains("\"objects\""), "{refused}");
            // An end without a service accepts every service.
            Session::connect(address, &security, soon()).unwrap();
            accepted.join().unwrap().unwrap();
        });
        let noted = noted.into_inner().unwrap();
        assert!(noted[0].contains("\"transfers\""), "{noted:?}");
        assert_eq!(noted.len(), 1, "{noted:?}");
    }
}

#[test]
fn a_message_that_trickles_in_does_not_extend_the_deadline() {
    let listener = Listener::bind(anywhere()).unwrap();
    let mut client = stranger(&listener, &hello(3, false), Stays::Yes).unwrap();
    let mut session = listener.accept(&Security::Loopback, soon()).unwrap();
    // Announces a message of the maximum length, which does not end before the test does.
    client.write_all(&[3, 0, 0, 0, 0, 0, 1, 0]).unwrap();
    let (done, stop) = mpsc::channel();
    thread::scope(|scope| {
        let trickling = scope.spawn(move || {
            let end = soon();
            while stop.recv_timeout(Duration::from_millis(5))
                == Err(mpsc::RecvTimeoutError::Timeout)
            {
                if end.has_passed() || client.write_all(&[0]).is_err() {
                    return false;
                }
            }
            true
        });
        let outcome = session.receive(Deadline::after(Duration::from_millis(100)));
        assert!(
            matches!(outcome, Err(Error::Deadline { .. })),
            "{outcome:?}"
        );
        done.send(()).unwrap();
        assert!(trickling.join().unwrap(), "it was still trickling");
    });
}

/// Opens a session whose server introduces itself with this address; returns the client's result, and the result of the
/// server's next receive.
fn misled(security: &Security, address: SocketAddr) -> [Result<()>; 2] {
    let [mut server, mut client] = connected(security);
    let mut named = introduction(Mtu::B1024);
    named.endpoint.address = address;
    named.endpoint.qpn = Qpn::new(7);
    thread::scope(|scope| {
        let server = scope.spawn(move || {
            server.introduce(&named, soon()).unwrap();
            server.barrier(soon())
        });
        let outcome = client.introduce(&introduction(Mtu::B1024), soon());
        if outcome.is_ok() {
            client.barrier(soon()).unwrap();
        }
        [outcome.map(drop), server.join().unwrap()]
    })
}

#[test]
fn a_peer_without_a_key_that_names_another_host_is_refused_and_gets_the_reason() {
    for address in [
        "127.0.0.99:4791",
        "127.0.0.99:53",
        "10.9.8.7:4791",
        "[2001:db8::1]:4791",
        "127.0.0.1:53",
    ] {
        let [ours, theirs] = misled(&Security::Insecure, address.parse().unwrap());
        let ours = ours.unwrap_err();
        assert!(
            matches!(
                ours,
                Error::Handshake(
                    HandshakeError::OtherAddress { .. } | HandshakeError::NotAnAddress { .. }
                )
            ),
            "{address}: {ours}"
        );
        match theirs.unwrap_err() {
            Error::Handshake(HandshakeError::Refused(why)) => {
                assert!(why.as_str().contains(address), "{why}");
            }
            other => panic!("{address}: {other}"),
        }
    }
}

#[test]
fn a_peer_that_names_this_sides_own_queue_pair_is_refused_with_and_without_a_key() {
    for security in [Security::Loopback, key("sixteen bytes ok")] {
        let [mut server, mut client] = connected(&security);
        let outcomes = thread::scope(|scope| {
            let mirror = scope.spawn(move || server.introduce(&introduction(Mtu::B1024), soon()));
            let ours = client.introduce(&introduction(Mtu::B1024), soon());
            [ours, mirror.join().unwrap()]
        });
        for outcome in outcomes {
            let refused = outcome.unwrap_err().to_string();
            assert!(refused.contains("this side's own queue pair"), "{refused}");
        }
    }
}

#[test]
fn a_peer_that_proved_a_key_may_have_several_addresses_and_no_broadcast() {
    let security = key("sixteen bytes ok");
    let [ours, theirs] = misled(&security, "127.0.0.99:4791".parse().unwrap());
    ours.unwrap();
    theirs.unwrap();
    // The broadcast address of the loopback network.
    let [ours, theirs] = misled(&security, "127.255.255.255:4791".parse().unwrap());
    let ours = ours.unwrap_err();
    let what = "a broadcast address";
    assert!(
        matches!(&ours, Error::Handshake(HandshakeError::NotAnAddress { what: it, .. }) if *it == what),
        "{ours}"
    );
    assert!(theirs.unwrap_err().to_string().contains(what));
}

#[test]
fn a_peer_that_refuses_and_hangs_up_at_once_is_quoted() {
    let listener = Listener::bind(anywhere()).unwrap();
    let address = listener.address().unwrap();
    thread::scope(|scope| {
        // The client may see the socket with or without its owner.
        for _ in 0..100 {
            let server = scope.spawn(|| {
                let mut session = listener.accept(&Security::Loopback, soon()).unwrap();
                session.refuse("it is full", soon()).unwrap();
            });
            let mut answer = Session::connect(address, &Security::Loopback, soon());
            let refused = match &mut answer {
                Ok(session) => session.receive(soon()).unwrap_err().to_string(),
                Err(error) => error.to_string(),
            };
            assert!(refused.contains("it is full"), "{refused}");
            server.join().unwrap();
        }
    });
}

#[test]
fn a_session_connects_from_the_requested_address() {
    let listener = Listener::bind(anywhere()).unwrap();
    let address = listener.address().unwrap();
    let from = "127.0.0.7".parse().unwrap();
    thread::scope(|scope| {
        let server = scope.spawn(|| listener.accept(&Security::Loopback, soon()));
        let client = Session::connect_from(from, address, &Security::Loopback, soon()).unwrap();
        let session = server.join().unwrap().unwrap();
        assert_eq!(session.peer().unwrap().ip(), from);
        let user = Some(rustix::process::geteuid().as_raw());
        assert_eq!((client.peer_user(), session.peer_user()), (user, user));
    });
    let nowhere = "192.0.2.1".parse().unwrap();
    let outcome = Session::connect_from(nowhere, address, &Security::Loopback, soon());
    assert!(matches!(
        outcome,
        Err(Error::Nic(NicError::Socket(
            SocketError::AddressNotLocal { .. }
        )))
    ));
    drop(listener);
    let outcome = Session::connect_from(from, address, &Security::Loopback, soon());
    assert!(matches!(outcome, Err(Error::Connect { .. })));
}

#[test]
fn a_watch_reports_a_message_and_the_end_of_the_connection() {
    let [mut server, client] = connected(&Security::Loopback);
    let watch = client.watch().unwrap();
    assert!(!watch.is_due());
    let due = || {
        let end = soon();
        while !watch.is_due() {
            assert!(!end.has_passed());
            thread::yield_now();
        }
    };
    server.refuse("no more", soon()).unwrap();
    due();
    let mut client = client;
    let error = client.receive(soon()).unwrap_err().to_string();
    assert!(error.contains("refused: \"no more\""), "{error}");
    assert!(!watch.is_due());
    drop(server);
    due();
}

#[test]
fn an_announced_length_above_the_limit_is_refused_before_it_is_received() {
    let mut bytes = vec![1, 0, 0, 0];
    bytes.extend(u32::MAX.to_le_bytes());
    let error = introduced(&bytes, Stays::Yes, Duration::from_secs(60));
    assert!(matches!(
        error,
        Error::Handshake(HandshakeError::TooLong { .. })
    ));
}

#[test]
fn a_peer_that_reflects_our_own_proof_is_not_authenticated() {
    // A server without the key that sends back what the client sends.
    let listener = TcpListener::bind(anywhere()).unwrap();
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut greeting = vec![0; hello(3, true).len()];
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
fn without_a_peer_both_ends_time_out() {
    let listener = Listener::bind(anywhere()).unwrap();
    let deadline = Deadline::after(Duration::from_millis(10));
    let accepted = listener.accept(&Security::Loopback, deadline);
    assert!(matches!(accepted, Err(Error::Deadline { .. })));
    let address = listener.address().unwrap();
    drop(listener);
    let refused = Session::connect(address, &Security::Loopback, soon());
    assert!(matches!(refused, Err(Error::Connect { .. })));
}

#[test]
fn without_a_key_only_loopback_peers_are_accepted() {
    // This machine's address on its default route. Connecting a UDP socket sends no packet.
    let probe = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let own = probe
        .connect("192.0.2.1:9")
        .and_then(|()| probe.local_addr())
        .map(|address| address.ip());
    let Ok(own) = own else {
        skip::skip("this machine has no address but loopback");
        return;
    };
    let listener = Listener::bind(SocketAddr::new(own, 0)).unwrap();
    let address = listener.address().unwrap();
    let client = Session::connect(address, &Security::Loopback, soon());
    assert!(matches!(handshake(client), HandshakeError::KeyNeeded(ip) if ip == own));
    let server = listener.accept(&Security::Loopback, soon());
    assert!(matches!(server, Err(Error::ListenNeedsKey { address: it }) if it == address));
    thread::scope(|scope| {
        let server = scope.spawn(|| listener.accept(&key("sixteen bytes ok"), soon()));
        Session::connect(address, &key("sixteen bytes ok"), soon()).unwrap();
        server.join().unwrap().unwrap();
    });
    // A listener at the unspecified address accepts only connections to a loopback address.
    let everywhere = Listener::bind(SocketAddr::from(([0, 0, 0, 0], 0))).unwrap();
    let port = everywhere.address().unwrap().port();
    let outside = TcpStream::connect((own, port)).unwrap();
    thread::scope(|scope| {
        let server = scope.spawn(|| everywhere.accept(&Security::Loopback, soon()));
        let inside = SocketAddr::from(([127, 0, 0, 1], port));
        Session::connect(inside, &Security::Loopback, soon()).unwrap();
        server.join().unwrap().unwrap();
    });
    assert_eq!(everywhere.failed(), 1);
    drop(outside);
}

/// Opens connections of strangers: without data, with noise, with half a greeting, with a greeting of another protocol.
fn strangers(at: SocketAddr) -> Vec<TcpStream> {
    let noise: [&[u8]; 6] = [
        b"",
        &[0; 44],
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        &[0xff; 4096],
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"gdr",
    ];
    let mut silent = Vec::new();
    for bytes in noise {
        let mut closes = TcpStream::connect(at).unwrap();
        // The listener may already have closed it.
        let _ = closes.write_all(bytes);
        drop(closes);
        let mut stays = TcpStream::connect(at).unwrap();
        let _ = stays.write_all(bytes);
        silent.push(stays);
    }
    silent
}

#[test]
fn strangers_neither_end_nor_block_a_listener() {
    let listener = Listener::bind(anywhere()).unwrap();
    let own = key("hostile suite's own key");
    let at = listener.address().unwrap();
    let held = strangers(at);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| listener.accept(&own, soon()));
        let mut wrong = 0;
        for _ in 0..3 {
            let wrong_key = key("sixteen wrong bytes");
            wrong += usize::from(Session::connect(at, &wrong_key, soon()).is_err());
        }
        assert_eq!(wrong, 3, "a wrong key proves nothing");
        let client = Session::connect(at, &own, soon()).unwrap();
        assert!(client.is_authenticated());
        assert!(server.join().unwrap().unwrap().is_authenticated());
    });
    drop(held);
}
