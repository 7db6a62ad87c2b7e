//! Comparisons of staged and direct frames between two ends: what both report, and how they fail.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod fixture;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use fixture::{target, target_that_maps_other_memory, two_targets};
use gdr_perf::loopback::pipeline::{self, PipelineEvent, PipelineReport, PipelineSettings};
use gdr_perf::loopback::{self, Destination, Timeouts, TransferPreference};
use gdr_perf::transfer::{MemoryFacts, Role, TransferMemory};
use gdr_perf::{BenchTarget, Error, PeerError, TransferFailure};
use gdr_rdma::{
    Deadline, Endpoint, Listener, Mtu, PeerInfo, QueuePairOptions, RemoteMemory, Rkey, Security,
    Session,
};
use serde_json::{Value, json};

const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
/// Far longer than any step takes, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
const TIMEOUTS: Timeouts = Timeouts {
    peer: LIMIT,
    step: LIMIT,
};

fn settings() -> PipelineSettings {
    PipelineSettings {
        sizes: vec![4, 4096, 65_540],
        rounds: 5,
        timeout: LIMIT,
        ..PipelineSettings::default()
    }
}

type Ended = Result<PipelineReport, Error>;
type Observe<'a> = &'a mut (dyn FnMut(PipelineEvent<'_>) -> ControlFlow<()> + Send);

fn go_on(_: PipelineEvent<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn serve(listener: &Listener, observe: Observe<'_>) -> Ended {
    serve_from(TransferMemory::Host, listener, observe)
}

fn serve_from(source: TransferMemory<'_>, listener: &Listener, observe: Observe<'_>) -> Ended {
    serve_within(TIMEOUTS, source, listener, observe)
}

fn serve_within(
    timeouts: Timeouts,
    source: TransferMemory<'_>,
    listener: &Listener,
    observe: Observe<'_>,
) -> Ended {
    let device = loopback::open_listener(SERVER, None, 0)?;
    let security = &Security::Loopback;
    pipeline::serve(&device, listener, security, source, timeouts, observe)
}

fn compare_with(
    peer: SocketAddr,
    target: &BenchTarget,
    settings: &PipelineSettings,
    observe: Observe<'_>,
) -> Ended {
    let device = loopback::open_connector(SERVER, Some(CLIENT), 0)?;
    let security = &Security::Loopback;
    pipeline::compare_with(target, &device, peer, security, settings, observe)
}

/// Runs both ends; returns the results of the client and of the server.
fn both(
    target: &BenchTarget,
    settings: &PipelineSettings,
    client: Observe<'_>,
    server: Observe<'_>,
) -> (Ended, Ended) {
    let listener = Listener::bind(SocketAddr::new(SERVER, 0)).unwrap();
    let address = listener.address().unwrap();
    thread::scope(|scope| {
        let serving = scope.spawn(|| serve(&listener, server));
        let measured = compare_with(address, target, settings, client);
        (measured, serving.join().unwrap())
    })
}

#[test]
fn both_ends_report_the_same_figures_and_who_had_the_gpu() {
    let settings = settings();
    let (client, server) = both(&target(), &settings, &mut go_on, &mut go_on);
    let (client, server) = (client.unwrap(), server.unwrap());
    let sizes: Vec<_> = client.rows.iter().map(|row| row.size).collect();
    assert_eq!(sizes, settings.sizes);
    for row in &client.rows {
        assert!(row.direct.is_some() && row.ratio.is_some());
        assert_eq!(row.staged.total.samples, 5);
        assert!(row.staged.receive.median_ns <= row.staged.total.max_ns);
    }
    let of = |report: &PipelineReport, role| {
        let mut document = serde_json::to_value(report).unwrap();
        assert_eq!(document["processes"]["role"], role);
        assert_eq!(document["simulated"], true);
        document["processes"]["role"] = Value::Null;
        document
    };
    assert_eq!(of(&client, "client"), of(&server, "server"));
    assert_eq!(client.source, MemoryFacts::host());
    assert_eq!(client.path.from.address.ip(), SERVER);
    assert_eq!(client.path.to.address.ip(), CLIENT);
    assert_eq!(server.processes.map(|both| both.role), Some(Role::Server));
}

#[test]
fn frames_in_memory_of_a_gpu_are_reported_by_both_ends() {
    let [target, source] = two_targets();
    let pci = source.gpu().info().bdf.to_string();
    for transfer in [TransferPreference::Direct, TransferPreference::Staged] {
        let memory = TransferMemory::Gpu(
            &source,
            Destination {
                transfer,
                ..Destination::default()
            },
        );
        let listener = Listener::bind(SocketAddr::new(SERVER, 0)).unwrap();
        let address = listener.address().unwrap();
        let settings = settings();
        let (client, server) = thread::scope(|scope| {
            let serving = scope.spawn(|| serve_from(memory, &listener, &mut go_on));
            let measured = compare_with(address, &target, &settings, &mut go_on);
            (measured.unwrap(), serving.join().unwrap().unwrap())
        });
        assert_eq!(client.source, server.source);
        assert_eq!(client.source.kind, "gpu");
        assert_eq!(client.source.gpu.as_ref().unwrap().pci, pci);
        assert_eq!(client.subject.pci, target.gpu().info().bdf.to_string());
        assert_eq!(client.rows, server.rows);

        let (from, to) = loopback::open_both(None, None, 0).unwrap();
        let alone = pipeline::compare(&target, &from, &to, memory, &settings, &mut go_on).unwrap();
        assert_eq!(alone.source, client.source);
        assert_eq!(alone.rows.len(), settings.sizes.len());
    }
}

#[test]
fn frames_that_are_in_other_memory_are_wrong() {
    let (source, target) = (target_that_maps_other_memory(), target());
    let (from, to) = loopback::open_both(None, None, 0).unwrap();
    let memory = TransferMemory::Gpu(&source, Destination::default());
    let wrong = pipeline::compare(&target, &from, &to, memory, &settings(), &mut go_on);
    assert!(matches!(wrong, Err(Error::WrongData { .. })), "{wrong:?}");
}

#[test]
fn a_result_of_other_bytes_ends_both_ends_with_its_first_byte() {
    let target = target_that_maps_other_memory();
    let (client, server) = both(&target, &settings(), &mut go_on, &mut go_on);
    let client = client.unwrap_err();
    assert!(
        matches!(&client, Error::WrongData { what, .. } if what.contains("direct")),
        "{client}"
    );
    let server = server.unwrap_err();
    assert!(
        matches!(&server, Error::Peer(PeerError::Refused(why)) if why.contains("byte ")),
        "{server}"
    );
}

fn stop_after_a_row(event: PipelineEvent<'_>) -> ControlFlow<()> {
    match event {
        PipelineEvent::Measured(_) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    }
}

#[test]
fn an_end_that_stops_says_so_to_the_other() {
    let (target, settings) = (target(), settings());
    let by_client = both(&target, &settings, &mut stop_after_a_row, &mut go_on);
    let (client, server) = both(&target, &settings, &mut go_on, &mut stop_after_a_row);
    for (stopped, other) in [by_client, (server, client)] {
        assert!(matches!(stopped, Err(Error::Stopped)), "{stopped:?}");
        let other = other.unwrap_err();
        assert!(
            matches!(&other, Error::Peer(PeerError::Refused(why)) if why.contains("stopped")),
            "{other}"
        );
    }
}

#[test]
fn settings_that_make_no_sense_end_before_a_connection() {
    let refused = |change: fn(&mut PipelineSettings)| {
        let mut settings = settings();
        change(&mut settings);
        let closed = SocketAddr::new(SERVER, 1);
        compare_with(closed, &target(), &settings, &mut go_on).unwrap_err()
    };
    let cases: [fn(&mut PipelineSettings); 3] = [
        |it| it.sizes = vec![6],
        |it| it.rounds = 0,
        |it| it.timeout = Duration::from_secs(1_000_000),
    ];
    for change in cases {
        let error = refused(change);
        assert!(matches!(error, Error::Settings(_)), "{error}");
    }
    let error = refused(|_| ());
    assert!(
        matches!(error, Error::Rdma(gdr_rdma::Error::Connect { .. })),
        "{error}"
    );
}

fn soon() -> Deadline {
    Deadline::after(LIMIT)
}

/// Returns the first message of a client.
fn ask() -> Value {
    json!({
        "comparison": "ask", "version": 1, "sizes": [4, 4096], "rounds": 5, "seed": 1,
        "timeout_ms": 60_000, "process": {"host": "a", "gdr": "0"},
        "end": {
            "device": "d", "address": "127.0.0.2:4791", "provider": "soft", "integrity": "none",
        },
        "memory": {
            "subject": {
                "simulated": true, "backend": "sim", "route": null, "gpu": "g", "pci": "p",
                "cuda": "c", "driver": null,
            },
            "allocated_by": "cuMemAlloc", "direct": null, "direct_missing": "none",
        },
    })
}

/// Returns how a server fares with a client that speaks as `talk` does.
fn served(talk: impl FnOnce(&mut Session)) -> Error {
    let listener = Listener::bind(SocketAddr::new(SERVER, 0)).unwrap();
    let address = listener.address().unwrap();
    thread::scope(|scope| {
        let serving = scope.spawn(|| serve(&listener, &mut go_on));
        let security = &Security::Loopback;
        let mut session = Session::connect_from(CLIENT, address, security, soon()).unwrap();
        talk(&mut session);
        drop(session);
        serving.join().unwrap().unwrap_err()
    })
}

fn send(session: &mut Session, message: &Value) {
    session
        .send(message.to_string().as_bytes(), soon())
        .unwrap();
}

#[test]
fn clients_of_another_version_and_with_other_wishes_are_refused_and_learn_why() {
    let cases: [(&str, Value, &str); 7] = [
        ("version", json!(7), "speaks version 7"),
        ("sizes", json!([]), "no size to measure"),
        ("sizes", json!([6]), "6 bytes cannot be transferred"),
        ("sizes", json!([1_u64 << 40]), "up to 1G"),
        ("rounds", json!(0), "0 iterations"),
        (
            "timeout_ms",
            json!(0),
            "a step cannot complete in 0 seconds",
        ),
        ("timeout_ms", json!(u64::MAX), "(a day)"),
    ];
    for (field, value, expected) in cases {
        let mut message = ask();
        message[field] = value;
        let mut reason = String::new();
        let error = served(|session| {
            send(session, &message);
            reason = session.receive(soon()).unwrap_err().to_string();
        });
        assert!(matches!(error, Error::Peer(_)), "{error:?}");
        for words in [error.to_string(), reason] {
            assert!(words.contains(expected), "{words}");
        }
    }
    let error = served(|session| send(session, &json!({"comparison": "agreed", "mtu": 5})));
    assert!(
        error.to_string().contains("`agreed` out of order"),
        "{error}"
    );
    let error = served(|session| send(session, &json!({"measurement": "ask", "version": 1})));
    assert!(
        error
            .to_string()
            .contains("the same command, on both sides"),
        "{error}"
    );
}

/// Returns an endpoint whose queue pair is gone.
fn dead_endpoint(address: IpAddr) -> Endpoint {
    let device = loopback::open_connector(SERVER, Some(address), 0).unwrap();
    let queue = device.completion_queue(8);
    let domain = device.protection_domain();
    domain
        .queue_pair(&QueuePairOptions::new(&queue))
        .unwrap()
        .endpoint()
}

#[test]
fn a_client_that_vanishes_after_any_message_is_named_as_gone() {
    for messages in 1..5 {
        let error = served(|session| {
            let endpoint = dead_endpoint(CLIENT);
            let mut message = ask();
            message["end"]["address"] = json!(endpoint.address.to_string());
            send(session, &message);
            session.receive(soon()).unwrap();
            if messages > 1 {
                send(session, &json!({"comparison": "agreed", "mtu": 3}));
            }
            if messages > 2 {
                let ours = PeerInfo {
                    endpoint,
                    path_mtu: Mtu::B1024,
                    regions: Vec::new(),
                };
                session.introduce(&ours, soon()).unwrap();
            }
            if messages > 3 {
                session.barrier(soon()).unwrap();
            }
        });
        let words = error.to_string();
        assert!(
            words.contains("closed the connection"),
            "{messages}: {words}"
        );
    }
}

/// A client that connects and stays silent may be a port scan: the server keeps waiting for a client.
#[test]
fn a_client_that_vanishes_without_a_message_is_named_when_no_other_came() {
    let timeouts = Timeouts {
        peer: Duration::from_secs(2),
        ..TIMEOUTS
    };
    let listener = Listener::bind(SocketAddr::new(SERVER, 0)).unwrap();
    let address = listener.address().unwrap();
    let security = &Security::Loopback;
    let error = thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let memory = TransferMemory::Host;
            serve_within(timeouts, memory, &listener, &mut go_on)
        });
        drop(Session::connect_from(CLIENT, address, security, soon()).unwrap());
        serving.join().unwrap().unwrap_err()
    });
    let words = error.to_string();
    assert!(words.contains("closed the connection"), "{words}");
}

/// Returns how a client fares with a server whose frames are at `endpoint`, where nothing answers, and which then does
/// what `then` says.
fn measured(endpoint: Endpoint, len: u64, then: impl FnOnce(Session) + Send) -> Error {
    let listener = Listener::bind(SocketAddr::new(SERVER, 0)).unwrap();
    let address = listener.address().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut session = listener.accept(&Security::Loopback, soon()).unwrap();
            session.receive(soon()).unwrap();
            let ready = json!({
                "comparison": "ready", "process": {"host": null, "gdr": "0"}, "mtu": 3,
                "end": {
                    "device": "d", "address": endpoint.address.to_string(), "provider": "p",
                    "integrity": "i",
                },
            });
            send(&mut session, &ready);
            session.receive(soon()).unwrap();
            let ours = PeerInfo {
                endpoint,
                path_mtu: Mtu::B1024,
                regions: vec![RemoteMemory {
                    rkey: Rkey(1),
                    addr: 0,
                    len,
                }],
            };
            // A client that refuses the region does not reach the barrier.
            if session.introduce(&ours, soon()).is_ok() && session.barrier(soon()).is_ok() {
                then(session);
            }
        });
        let settings = PipelineSettings {
            // The READ would be retransmitted for most of a day.
            timeout: Duration::from_secs(86_400),
            ..settings()
        };
        compare_with(address, &target(), &settings, &mut go_on).unwrap_err()
    })
}

#[test]
fn a_server_that_ends_is_noticed_while_a_read_goes_on() {
    let endpoint = dead_endpoint(SERVER);
    let error = measured(endpoint, 65_540, drop);
    assert!(
        matches!(
            error,
            Error::Transfer {
                failure: TransferFailure::Interrupted,
                ..
            }
        ),
        "{error}"
    );
    let error = measured(endpoint, 65_540, |mut session| {
        session.refuse("out of\nmemory", soon()).unwrap();
        // The session stays open, so only the refusal can end the wait.
        while session.receive(soon()).is_ok() {}
    });
    let words = error.to_string();
    assert!(words.contains(r#"refused: "out of\nmemory""#), "{words}");
    let error = measured(endpoint, 4, drop);
    assert!(
        matches!(error, Error::Peer(PeerError::OtherMemory)),
        "{error}"
    );
}
