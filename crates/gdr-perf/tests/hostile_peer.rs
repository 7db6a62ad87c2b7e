//! Peers that send altered messages: every end returns, and its message can be printed.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod fixture;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use fixture::target;
use gdr_perf::Error;
use gdr_perf::loopback::pipeline::{self, PipelineSettings};
use gdr_perf::loopback::{self, Timeouts};
use gdr_perf::transfer::{self, Amount, Plan, Thresholds, TransferMemory, Verb, Verification};
use gdr_rdma::{
    Deadline, Device, Endpoint, Listener, Mtu, PeerInfo, QueuePairOptions, RemoteMemory, Rkey,
    Security, Session,
};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};

const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const SECURITY: &Security = &Security::Loopback;
/// Far longer than any step takes, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
const TIMEOUTS: Timeouts = Timeouts {
    peer: LIMIT,
    step: LIMIT,
};

/// A step of a peer.
#[derive(Clone, Debug)]
enum Step {
    Send(Value),
    Receive,
    /// Exchanges queue pairs, with regions of these lengths, and waits for the barrier.
    Meet(Vec<u64>),
}

/// An alteration of one message of a peer.
#[derive(Clone, Debug)]
struct Change {
    message: Index,
    place: Index,
    to: Option<Value>,
}

fn change() -> impl Strategy<Value = Change> {
    let to = prop_oneof![
        Just(None),
        prop_oneof![
            Just(Value::Null),
            Just(json!(true)),
            Just(json!(0)),
            Just(json!(3)),
            Just(json!(-1)),
            Just(json!(1.5)),
            Just(json!(1e300)),
            Just(json!(u32::MAX)),
            Just(json!(u64::MAX)),
            Just(json!("")),
            Just(json!("\u{1b}[2J\nPASS\u{202e}")),
            Just(json!("x".repeat(50_000))),
            Just(json!([])),
            Just(json!([0, 0, 0])),
            Just(json!(vec![4; 1000])),
            Just(json!({})),
        ]
        .prop_map(Some),
    ];
    (any::<Index>(), any::<Index>(), to).prop_map(|(message, place, to)| Change {
        message,
        place,
        to,
    })
}

/// Collects the paths of all values of a document.
fn places(value: &Value, path: &str, found: &mut Vec<String>) {
    found.push(path.to_owned());
    match value {
        Value::Object(fields) => fields
            .iter()
            .for_each(|(name, value)| places(value, &format!("{path}/{name}"), found)),
        Value::Array(values) => (0..)
            .zip(values)
            .for_each(|(at, value): (usize, _)| places(value, &format!("{path}/{at}"), found)),
        _ => {}
    }
}

/// Returns the steps with one message changed.
fn changed(mut steps: Vec<Step>, change: &Change) -> Vec<Step> {
    let mut messages: Vec<&mut Value> = steps
        .iter_mut()
        .filter_map(|step| match step {
            Step::Send(message) => Some(message),
            _ => None,
        })
        .collect();
    let at = change.message.index(messages.len());
    let message = &mut *messages[at];
    let mut found = Vec::new();
    places(message, "", &mut found);
    let place = change.place.get(&found);
    match &change.to {
        Some(value) => *message.pointer_mut(place).unwrap() = value.clone(),
        None => {
            let parent = place
                .rsplit_once('/')
                .map(|(parent, name)| (parent.to_owned(), name.to_owned()));
            match parent {
                Some((parent, name)) => match message.pointer_mut(&parent).unwrap() {
                    Value::Object(fields) => drop(fields.remove(&name)),
                    Value::Array(values) => drop(values.remove(name.parse().unwrap())),
                    _ => {}
                },
                None => *message = Value::Null,
            }
        }
    }
    steps
}

fn soon() -> Deadline {
    Deadline::after(LIMIT)
}

/// Takes steps until one fails because the other end refused.
fn talk(session: &mut Session, steps: &[Step], endpoint: Endpoint) {
    for step in steps {
        let done = match step {
            Step::Send(message) => session.send(message.to_string().as_bytes(), soon()),
            Step::Receive => session.receive(soon()).map(drop),
            Step::Meet(lengths) => {
                let region = |len: &u64| RemoteMemory {
                    rkey: Rkey(1),
                    addr: 0,
                    len: *len,
                };
                let ours = PeerInfo {
                    endpoint,
                    path_mtu: Mtu::B1024,
                    regions: lengths.iter().map(region).collect(),
                };
                let met = session.introduce(&ours, soon());
                met.and_then(|_| session.barrier(soon()))
            }
        };
        if done.is_err() {
            return;
        }
    }
}

/// Returns the device of each side, which all cases share.
fn device(address: IpAddr) -> &'static Device {
    static DEVICES: [OnceLock<Device>; 2] = [OnceLock::new(), OnceLock::new()];
    DEVICES[usize::from(address == CLIENT)]
        .get_or_init(|| loopback::open_connector(SERVER, Some(address), 0).unwrap())
}

/// Returns an endpoint at this address whose queue pair is gone.
fn dead_endpoint(address: IpAddr) -> Endpoint {
    static ENDPOINTS: [OnceLock<Endpoint>; 2] = [OnceLock::new(), OnceLock::new()];
    *ENDPOINTS[usize::from(address == CLIENT)].get_or_init(|| {
        let device = loopback::open_connector(SERVER, Some(address), 0).unwrap();
        let queue = device.completion_queue(8);
        let domain = device.protection_domain();
        let options = QueuePairOptions::new(&queue);
        domain.queue_pair(&options).unwrap().endpoint()
    })
}

/// Returns how `serve` ends with a client that takes these steps.
fn served<T: Send>(
    steps: &[Step],
    endpoint: Endpoint,
    serve: impl FnOnce(&Listener) -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let listener = Listener::bind(SocketAddr::new(SERVER, 0)).unwrap();
    let address = listener.address().unwrap();
    thread::scope(|scope| {
        let serving = scope.spawn(|| serve(&listener));
        let mut session = Session::connect_from(CLIENT, address, SECURITY, soon()).unwrap();
        talk(&mut session, steps, endpoint);
        drop(session);
        serving.join().unwrap()
    })
}

/// Returns how `measure` ends with a server that takes these steps.
fn measured<T>(
    steps: &[Step],
    endpoint: Endpoint,
    measure: impl FnOnce(SocketAddr) -> Result<T, Error>,
) -> Result<T, Error> {
    let listener = Listener::bind(SocketAddr::new(SERVER, 0)).unwrap();
    let address = listener.address().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut session = listener.accept(SECURITY, soon()).unwrap();
            talk(&mut session, steps, endpoint);
        });
        measure(address)
    })
}

/// Returns whether a text is a single short line without characters that affect a terminal.
fn is_printable(text: &str) -> bool {
    text.len() < 2000 && !text.chars().any(|c| c.is_control() || c == '\u{202e}')
}

fn end(endpoint: Endpoint) -> Value {
    json!({
        "device": "d", "address": endpoint.address.to_string(), "provider": "soft",
        "integrity": "none",
    })
}

fn transfer_end(endpoint: Endpoint) -> Value {
    json!({
        "host": "a", "gdr": "0", "cpus": {"list": "0", "why": "requested"},
        "device": end(endpoint),
        "memory": {
            "kind": "host", "gpu": null, "allocated_by": null, "reached": null, "why": null,
        },
    })
}

/// Returns one message of 64 bytes.
fn plan(timeout_ms: u64) -> Plan {
    Plan {
        sizes: vec![64],
        amount: Amount::Iterations(1),
        warm_up: 0,
        tx_depth: 1,
        rx_depth: 1,
        verify: Verification::Off,
        timeout_ms,
        ..Plan::new(Verb::WriteBw)
    }
}

fn summary() -> Value {
    json!({
        "samples": 1, "min_ns": 1.0, "mean_ns": 1.0, "median_ns": 1.0, "p90_ns": 1.0,
        "p99_ns": 1.0, "p999_ns": 1.0, "max_ns": 1.0, "stddev_ns": 0.0,
    })
}

fn transfer_row() -> Value {
    let mut latency = summary();
    latency["p9999_ns"] = json!(1.0);
    json!({
        "measurement": "row", "size": 64, "warm_up": 0, "messages": 1, "seconds": 1.0, "gb_per_s": 1.0,
        "gbit_per_s": 8.0, "mpps": 1.0, "latency": latency,
        "cpu": {"client": 0.0, "server": 0.0}, "verified_bytes": null, "failures": [],
    })
}

fn transfer_client(endpoint: Endpoint) -> Vec<Step> {
    let ask = json!({
        "measurement": "ask", "version": 6, "plan": plan(60_000), "end": transfer_end(endpoint),
    });
    vec![
        Step::Send(ask),
        Step::Receive,
        Step::Send(json!({"measurement": "agreed", "mtu": 3})),
        Step::Meet(vec![64, 64]),
        Step::Send(json!({"measurement": "prepared", "row": 0})),
        Step::Receive,
        Step::Send(json!({"measurement": "sent", "messages": [1]})),
        Step::Receive,
        Step::Send(transfer_row()),
    ]
}

fn serve_transfer(listener: &Listener) -> Result<transfer::TransferReport, Error> {
    let (device, memory) = (device(SERVER), TransferMemory::Host);
    transfer::serve(device, listener, SECURITY, memory, TIMEOUTS, &mut |_| {
        ControlFlow::Continue(())
    })
}

fn compare_client(endpoint: Endpoint) -> Vec<Step> {
    let ask = json!({
        "comparison": "ask", "version": 1, "sizes": [64], "rounds": 1, "seed": 1,
        "timeout_ms": 60_000, "process": {"host": "a", "gdr": "0"}, "end": end(endpoint),
        "memory": {
            "subject": {
                "simulated": true, "backend": "sim", "route": null, "gpu": "g", "pci": "p",
                "cuda": "c", "driver": null,
            },
            "allocated_by": "cuMemAlloc", "direct": null, "direct_missing": "none",
        },
    });
    let figures = json!({"total": summary(), "receive": summary(), "gb_per_s": 1.0});
    let row = json!({
        "comparison": "row", "size": 64, "staged": figures, "direct": figures, "ratio": 1.0,
    });
    vec![
        Step::Send(ask),
        Step::Receive,
        Step::Send(json!({"comparison": "agreed", "mtu": 3})),
        Step::Meet(Vec::new()),
        Step::Send(row),
    ]
}

fn serve_frames(listener: &Listener) -> Result<pipeline::PipelineReport, Error> {
    pipeline::serve(
        device(SERVER),
        listener,
        SECURITY,
        TransferMemory::Host,
        TIMEOUTS,
        &mut |_| ControlFlow::Continue(()),
    )
}

#[test]
fn the_messages_that_are_changed_are_those_of_the_protocols() {
    let endpoint = dead_endpoint(CLIENT);
    let report = served(&transfer_client(endpoint), endpoint, serve_transfer).unwrap();
    assert_eq!(report.rows.len(), 1);
    let report = served(&compare_client(endpoint), endpoint, serve_frames).unwrap();
    assert_eq!(report.rows.len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_server_of_measurements_survives_any_change(change in change()) {
        let endpoint = dead_endpoint(CLIENT);
        let steps = changed(transfer_client(endpoint), &change);
        match served(&steps, endpoint, serve_transfer) {
            Ok(report) => prop_assert!(serde_json::to_string(&report).is_ok()),
            Err(error) => prop_assert!(is_printable(&error.to_string()), "{error}"),
        }
    }

    #[test]
    fn a_server_of_frames_survives_any_change(change in change()) {
        let endpoint = dead_endpoint(CLIENT);
        let steps = changed(compare_client(endpoint), &change);
        match served(&steps, endpoint, serve_frames) {
            Ok(report) => prop_assert!(serde_json::to_string(&report).is_ok()),
            Err(error) => prop_assert!(is_printable(&error.to_string()), "{error}"),
        }
    }

    #[test]
    fn a_client_of_measurements_survives_any_change(change in change()) {
        let endpoint = dead_endpoint(SERVER);
        let ready = json!({"measurement": "ready", "end": transfer_end(endpoint), "mtu": 3});
        let steps = vec![
            Step::Receive,
            Step::Send(ready),
            Step::Receive,
            Step::Meet(vec![64, 64]),
            Step::Send(json!({"measurement": "prepared", "row": 0})),
        ];
        let ended = measured(&changed(steps, &change), endpoint, |peer| {
            let thresholds = Thresholds::default();
            transfer::measure(
                device(CLIENT), peer, SECURITY, TransferMemory::Host, &plan(300), &thresholds,
                &mut |_| ControlFlow::Continue(()),
            )
        });
        // Nothing answers at the address of the server's memory.
        let error = ended.unwrap_err();
        prop_assert!(is_printable(&error.to_string()), "{error}");
    }

    #[test]
    fn a_client_of_frames_survives_any_change(change in change()) {
        let endpoint = dead_endpoint(SERVER);
        let ready = json!({
            "comparison": "ready", "process": {"host": "a", "gdr": "0"}, "end": end(endpoint),
            "mtu": 3,
        });
        let steps = vec![
            Step::Receive,
            Step::Send(ready),
            Step::Receive,
            Step::Meet(vec![64]),
            Step::Send(json!({"comparison": "agreed", "mtu": 3})),
        ];
        let ended = measured(&changed(steps, &change), endpoint, |peer| {
            let settings = PipelineSettings {
                sizes: vec![64],
                rounds: 1,
                timeout: LIMIT,
                ..PipelineSettings::default()
            };
            pipeline::compare_with(&target(), device(CLIENT), peer, SECURITY, &settings, &mut |_| {
                ControlFlow::Continue(())
            })
        });
        let error = ended.unwrap_err();
        prop_assert!(is_printable(&error.to_string()), "{error}");
    }

    #[test]
    fn bytes_that_are_no_message_end_a_server_with_a_printable_error(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let say = |address| {
            let mut session = Session::connect_from(CLIENT, address, SECURITY, soon()).unwrap();
            session.send(&bytes, soon()).unwrap();
            // Wait until the server has refused.
            let _ = session.receive(soon());
        };
        let serves: [fn(&Listener) -> Option<Error>; 2] = [
            |listener| serve_transfer(listener).err(),
            |listener| serve_frames(listener).err(),
        ];
        for serve in serves {
            let listener = Listener::bind(SocketAddr::new(SERVER, 0)).unwrap();
            let address = listener.address().unwrap();
            let ended = thread::scope(|scope| {
                let serving = scope.spawn(|| serve(&listener));
                say(address);
                serving.join().unwrap()
            });
            let words = ended.unwrap().to_string();
            prop_assert!(is_printable(&words), "{words}");
        }
    }
}
