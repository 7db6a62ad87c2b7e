//! Measurements between two ends: what arrives, what is judged, and what is refused.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod fixture;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use fixture::{target, target_that_maps_other_memory};
use gdr_perf::loopback::{self, Destination, Timeouts, TransferMode, TransferPreference};
use gdr_perf::transfer::{
    self, Amount, AtomicKind, Direction, LocalEnd, Metric, Plan, Reach, Repetition, Striping,
    Thresholds, TransferEndpoint, TransferEvent, TransferMemory, TransferReport, Verb,
    Verification,
};
use gdr_perf::{Error, PeerError, SettingsError};
use gdr_rdma::{Deadline, Listener, Security, Session};

const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const TIMEOUTS: Timeouts = Timeouts {
    peer: Duration::from_secs(60),
    step: Duration::from_secs(60),
};

fn staged() -> Destination {
    Destination {
        transfer: TransferPreference::Staged,
        ..Destination::default()
    }
}

fn go_on(_: TransferEvent<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

type Ended = Result<TransferReport, Error>;

/// Runs both ends; returns the results of the client and of the server.
fn both<'a>(
    plan: &Plan,
    thresholds: &Thresholds,
    client: impl Into<LocalEnd<'a>>,
    server: TransferMemory<'_>,
) -> (Ended, Ended) {
    let listener = Listener::bind(SocketAddr::new(SERVER, 0)).unwrap();
    let address = listener.address().unwrap();
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let device = loopback::open_listener(SERVER, None, 0)?;
            let security = &Security::Loopback;
            transfer::serve(&device, &listener, security, server, TIMEOUTS, &mut go_on)
        });
        let device = loopback::open_connector(SERVER, Some(CLIENT), 0).unwrap();
        let security = &Security::Loopback;
        let measured = transfer::measure(
            &device, address, security, client, plan, thresholds, &mut go_on,
        );
        (measured, serving.join().unwrap())
    })
}

fn measured(plan: &Plan, client: TransferMemory<'_>, server: TransferMemory<'_>) -> TransferReport {
    let (client, server) = both(plan, &Thresholds::default(), client, server);
    let (client, server) = (client.unwrap(), server.unwrap());
    assert_eq!(client.rows.len(), plan.sizes.len());
    // Both ends report the same, except for the histogram.
    for (own, theirs) in client.rows.iter().zip(&server.rows) {
        assert_eq!((own.size, own.messages), (theirs.size, theirs.messages));
        assert!(!own.latency.histogram.is_empty() && theirs.latency.histogram.is_empty());
        let recorded: u64 = own
            .latency
            .histogram
            .iter()
            .map(|bucket| bucket.count)
            .sum();
        assert_eq!(recorded, own.latency.summary.samples);
    }
    client
}

/// Returns a short measurement of a verb, verified.
fn short(verb: Verb) -> Plan {
    let is_latency = verb.metric() == Metric::Latency;
    let sizes = Plan::new(verb).sizes;
    Plan {
        sizes: match sizes[..] {
            [8] => sizes,
            _ => vec![1, 7, 64, 4097, 65_539],
        },
        amount: Amount::Iterations(40),
        warm_up: 5,
        queue_pairs: if is_latency { 1 } else { 2 },
        tx_depth: 8,
        rx_depth: 16,
        signal_every: if is_latency { 1 } else { 4 },
        verify: Verification::On,
        timeout_ms: 60_000,
        ..Plan::new(verb)
    }
}

#[test]
fn an_endpoint_measures_several_times_with_memory_that_it_registers_once() {
    let pins = Arc::new(AtomicUsize::new(0));
    let target = target();
    let counted = {
        let pins = Arc::clone(&pins);
        target.with_pin(move |context, ptr, len| {
            pins.fetch_add(1, Ordering::Relaxed);
            context.pin(ptr, len)
        })
    };
    let memory = TransferMemory::Gpu(&counted, Destination::default());
    let listener = Listener::bind(SocketAddr::new(SERVER, 0)).unwrap();
    let address = listener.address().unwrap();
    let plan = |seed| Plan {
        seed,
        sizes: vec![4097],
        ..short(Verb::WriteBw)
    };
    // The last plan uses the bytes of the first.
    let plans = [plan(1), plan(2), plan(1)];
    thread::scope(|scope| {
        scope.spawn(|| {
            let device = loopback::open_listener(SERVER, None, 0).unwrap();
            let mut endpoint = TransferEndpoint::new(&device, memory);
            for _ in &plans {
                let served = endpoint.serve(&listener, &Security::Loopback, TIMEOUTS, &mut go_on);
                served.unwrap();
            }
        });
        let device = loopback::open_connector(SERVER, Some(CLIENT), 0).unwrap();
        let mut endpoint = TransferEndpoint::new(&device, TransferMemory::Host);
        for plan in &plans {
            let (security, thresholds) = (&Security::Loopback, &Thresholds::default());
            let report = endpoint.measure(address, security, plan, thresholds, &mut go_on);
            let row = report.unwrap().rows.remove(0);
            // The warm-up of 5 ends with a completion, which every fourth message has.
            assert_eq!(row.verified_bytes, Some(2 * (8 + 40) * 4097));
        }
    });
    // Both of its buffers.
    assert_eq!(pins.load(Ordering::Relaxed), 2);
}

#[test]
fn every_verb_and_size_is_measured_and_every_byte_that_was_sent_is_compared() {
    for verb in Verb::ALL {
        let plan = short(verb);
        let report = measured(&plan, TransferMemory::Host, TransferMemory::Host);
        for row in &report.rows {
            let messages = match verb.metric() {
                Metric::Bandwidth => {
                    // The warm-up of 5 ends with a completion, which every fourth request has.
                    assert_eq!(row.warm_up, 2 * 8, "{verb} {}", row.size);
                    80
                }
                Metric::Latency => {
                    assert!(row.warm_up >= 5, "{verb} {}", row.size);
                    40
                }
            };
            assert_eq!(row.messages, messages, "{verb} {}", row.size);
            let compared = match verb.is_ping_pong() {
                true => 2 * (row.warm_up + messages),
                false => row.warm_up + messages,
            };
            // The counter of each queue pair, in addition to the results of atomic operations.
            let compared = match verb {
                Verb::AtomicBw => 2,
                Verb::AtomicLat => 1,
                _ => compared,
            };
            assert_eq!(
                row.verified_bytes,
                Some(compared * row.size),
                "{verb} {}",
                row.size
            );
            assert!(row.latency.summary.max_ns >= row.latency.p9999_ns);
            assert!((row.gbit_per_s - 8.0 * row.gb_per_s).abs() < 1e-9);
            let rate = row.messages as f64 * row.size as f64 / row.seconds / 1e9;
            assert!((rate - row.gb_per_s).abs() < 1e-9 * rate.max(1.0));
        }
        assert!(report.passed && !report.simulated);
    }
}

#[test]
fn a_warm_up_before_latencies_lasts_for_its_time_too_and_0_is_none() {
    for verb in Verb::ALL {
        for verify in [Verification::Off, Verification::Last, Verification::On] {
            for warm_up in [0, 1] {
                let plan = Plan {
                    sizes: vec![8],
                    warm_up,
                    queue_pairs: 1,
                    signal_every: 1,
                    verify,
                    ..short(verb)
                };
                let report = measured(&plan, TransferMemory::Host, TransferMemory::Host);
                let row = &report.rows[0];
                let is_longer = row.warm_up > warm_up;
                let expected = verb.metric() == Metric::Latency && warm_up > 0;
                assert_eq!(is_longer, expected, "{verb} {verify:?}: {}", row.warm_up);
                assert_eq!(row.messages, 40, "{verb} {verify:?}");
            }
        }
    }
}

#[test]
fn a_server_polls_while_latencies_are_measured_and_may_stop_in_that_time() {
    for verb in Verb::ALL
        .into_iter()
        .filter(|it| it.metric() == Metric::Latency)
    {
        let plan = Plan {
            sizes: vec![8],
            // Longer than a server needs to stop. The test also ends if a server does not stop.
            amount: Amount::Seconds(20.0),
            timeout_ms: 2_000,
            verify: Verification::Off,
            ..short(verb)
        };
        let listener = Listener::bind(SocketAddr::new(SERVER, 0)).unwrap();
        let address = listener.address().unwrap();
        let security = &Security::Loopback;
        let (measured, served) = thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let device = loopback::open_listener(SERVER, None, 0)?;
                let memory = TransferMemory::Host;
                transfer::serve(
                    &device,
                    &listener,
                    security,
                    memory,
                    TIMEOUTS,
                    &mut |event| match event {
                        TransferEvent::Waiting => ControlFlow::Break(()),
                        _ => ControlFlow::Continue(()),
                    },
                )
            });
            let device = loopback::open_connector(SERVER, Some(CLIENT), 0).unwrap();
            let (memory, thresholds) = (TransferMemory::Host, Thresholds::default());
            let measured = transfer::measure(
                &device,
                address,
                security,
                memory,
                &plan,
                &thresholds,
                &mut go_on,
            );
            (measured, serving.join().unwrap())
        });
        assert!(
            matches!(served, Err(Error::Stopped)),
            "{verb}: {:?}",
            served.err()
        );
        assert!(measured.is_err(), "{verb}");
    }
}

#[test]
fn messages_are_striped_over_all_queue_pairs_and_compared() {
    for (verb, direction) in [
        (Verb::WriteBw, Direction::OneWay),
        (Verb::ReadBw, Direction::OneWay),
        (Verb::WriteBw, Direction::BothWays),
    ] {
        let plan = Plan {
            sizes: vec![1, 4097, 100_003, 5 << 20],
            amount: Amount::Iterations(6),
            queue_pairs: 3,
            striping: Striping::On,
            signal_every: 1,
            direction,
            ..short(verb)
        };
        let report = measured(&plan, TransferMemory::Host, TransferMemory::Host);
        let ends = match direction {
            Direction::OneWay => 1,
            Direction::BothWays => 2,
        };
        for row in &report.rows {
            assert_eq!(row.messages, 6 * ends, "{verb} {}", row.size);
            assert_eq!(row.latency.summary.samples, 6);
            let verified = (5 + 6) * ends * row.size;
            assert_eq!(row.verified_bytes, Some(verified), "{verb} {}", row.size);
        }
    }
}

#[test]
fn gpu_memory_at_either_end_is_compared_where_it_is() {
    let target = target();
    let direct = TransferMemory::Gpu(&target, Destination::default());
    let staged = TransferMemory::Gpu(&target, staged());
    for verb in Verb::ALL {
        let plan = Plan {
            sizes: short(verb).sizes.into_iter().take(3).collect(),
            ..short(verb)
        };
        let report = measured(&plan, TransferMemory::Host, direct);
        assert_eq!(report.server.memory.reached, Some(TransferMode::Direct));
        assert!(report.simulated && report.client.memory.gpu.is_none());
        let report = measured(&plan, direct, staged);
        assert_eq!(report.server.memory.reached, Some(TransferMode::Staged));
        assert!(report.rows.iter().all(|row| row.verified_bytes > Some(0)));
    }
}

#[test]
fn bytes_that_went_to_other_memory_are_found_in_every_verb() {
    for verb in Verb::ALL {
        let target = target_that_maps_other_memory();
        let gpu = TransferMemory::Gpu(&target, Destination::default());
        // READ and atomics read the other memory too, so the requesting end detects it.
        let plan = Plan {
            sizes: vec![*short(verb).sizes.last().unwrap()],
            ..short(verb)
        };
        let (client, server) = both(&plan, &Thresholds::default(), gpu, gpu);
        let found = |ended: &Ended| matches!(ended, Err(Error::WrongData { .. }));
        assert!(
            found(&client) || found(&server),
            "{verb}: {client:?} {server:?}"
        );
        assert!(client.is_err() && server.is_err(), "{verb}");
    }
}

#[test]
fn both_directions_add_up_and_both_ends_compare() {
    for verb in [Verb::WriteBw, Verb::ReadBw, Verb::SendBw, Verb::AtomicBw] {
        let plan = Plan {
            direction: Direction::BothWays,
            atomic: AtomicKind::CompareSwap,
            ..short(verb)
        };
        let one_way = measured(&short(verb), TransferMemory::Host, TransferMemory::Host);
        let report = measured(&plan, TransferMemory::Host, TransferMemory::Host);
        for (row, one_way) in report.rows.iter().zip(&one_way.rows) {
            assert_eq!(row.messages, 160, "{verb}");
            let twice = one_way.verified_bytes.map(|bytes| 2 * bytes);
            assert_eq!(row.verified_bytes, twice, "{verb} {}", row.size);
        }
    }
}

#[test]
fn a_duration_ends_after_its_time_and_not_before() {
    for verb in [Verb::WriteBw, Verb::SendBw, Verb::WriteLat, Verb::ReadLat] {
        let plan = Plan {
            amount: Amount::Seconds(0.2),
            sizes: vec![512],
            ..short(verb)
        };
        let report = measured(&plan, TransferMemory::Host, TransferMemory::Host);
        let row = &report.rows[0];
        assert!(row.seconds >= 0.2, "{verb}: {}", row.seconds);
        assert!(row.messages > 0);
    }
}

#[test]
fn an_endless_run_keeps_the_last_round_and_ends_when_an_end_stops() {
    let plan = Plan {
        sizes: vec![8, 64],
        amount: Amount::Iterations(10),
        repetition: Repetition::Endless,
        ack_timeout: Some(14),
        timeout_ms: 60_000,
        ..Plan::new(Verb::WriteBw)
    };
    let listener = Listener::bind(SocketAddr::new(SERVER, 0)).unwrap();
    let address = listener.address().unwrap();
    let security = &Security::Loopback;
    let (measured, served) = thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let device = loopback::open_listener(SERVER, None, 0)?;
            let memory = TransferMemory::Host;
            transfer::serve(&device, &listener, security, memory, TIMEOUTS, &mut go_on)
        });
        let device = loopback::open_connector(SERVER, Some(CLIENT), 0).unwrap();
        let mut sizes = Vec::new();
        let thresholds = Thresholds::default();
        let measured = transfer::measure(
            &device,
            address,
            security,
            TransferMemory::Host,
            &plan,
            &thresholds,
            &mut |event| match event {
                TransferEvent::Measured(row) => {
                    sizes.push(row.size);
                    match sizes[..] {
                        [8, 64, 8, 64, 8] => ControlFlow::Break(()),
                        _ => ControlFlow::Continue(()),
                    }
                }
                _ => ControlFlow::Continue(()),
            },
        );
        assert_eq!(sizes, [8, 64, 8, 64, 8]);
        (measured, serving.join().unwrap())
    });
    assert!(matches!(measured, Err(Error::Stopped)), "{measured:?}");
    assert!(served.is_err(), "{served:?}");
}

#[test]
fn what_only_a_nic_does_is_refused_for_soft_devices() {
    let classes = [(3, 0), (0, 104)].map(|(service_level, traffic_class)| Plan {
        service_level,
        traffic_class,
        ..Plan::new(Verb::WriteBw)
    });
    for plan in classes {
        let (host, none) = (TransferMemory::Host, Thresholds::default());
        let (client, _) = both(&plan, &none, host, host);
        let error = client.unwrap_err();
        assert!(matches!(error, Error::Settings(_)), "{error}");
        assert!(
            error.to_string().contains("apply to kernel devices"),
            "{error}"
        );
    }
    let target = target();
    let gpu = TransferMemory::Gpu(&target, Destination::default());
    let by_dma_buf = LocalEnd {
        reach: Reach::DmaBuf,
        ..gpu.into()
    };
    let (plan, none) = (Plan::new(Verb::WriteBw), Thresholds::default());
    let (client, server) = both(&plan, &none, by_dma_buf, TransferMemory::Host);
    let error = client.unwrap_err().to_string();
    let words = "does not access this memory by dma-buf";
    assert!(error.contains(words), "{error}");
    assert!(server.is_err());
}

#[test]
fn short_messages_go_inline() {
    for verb in [Verb::WriteBw, Verb::WriteLat, Verb::SendLat] {
        let plan = Plan {
            inline: 64,
            ..short(verb)
        };
        measured(&plan, TransferMemory::Host, TransferMemory::Host);
    }
}

#[test]
fn one_size_that_misses_a_threshold_fails_the_run_whatever_the_others_do() {
    let plan = Plan {
        // The size that misses the threshold is not the last.
        sizes: vec![1, 65_536],
        ..short(Verb::WriteBw)
    };
    // Two million messages a second, or thirty.
    let thresholds = Thresholds {
        minimum_rate: Some("2MB/s".parse().unwrap()),
        maximum_latencies: vec!["max=50s".parse().unwrap()],
        ..Thresholds::default()
    };
    let (client, server) = both(
        &plan,
        &thresholds,
        TransferMemory::Host,
        TransferMemory::Host,
    );
    for report in [client.unwrap(), server.unwrap()] {
        assert!(!report.passed, "{:?}", report.rows);
        assert_eq!(report.rows[1].failures, [""; 0]);
        let failure = &report.rows[0].failures[0];
        assert!(
            failure.starts_with("1 bytes: ") && failure.contains("is less than"),
            "{failure}"
        );
    }
    let latency = Thresholds {
        maximum_latencies: vec!["p99=1ns".parse().unwrap()],
        ..Thresholds::default()
    };
    let (client, _) = both(
        &short(Verb::ReadLat),
        &latency,
        TransferMemory::Host,
        TransferMemory::Host,
    );
    assert!(
        client
            .unwrap()
            .rows
            .iter()
            .all(|row| row.failures.len() == 1)
    );
}

#[test]
fn plans_that_make_no_sense_end_before_a_connection() {
    let refused = |plan: &Plan, thresholds: &Thresholds| {
        let device = loopback::open_connector(SERVER, Some(CLIENT), 0).unwrap();
        let closed = SocketAddr::new(SERVER, 1);
        let (security, memory) = (&Security::Loopback, TransferMemory::Host);
        transfer::measure(
            &device, closed, security, memory, plan, thresholds, &mut go_on,
        )
    };
    let empty = Plan {
        sizes: vec![0],
        ..short(Verb::WriteBw)
    };
    let error = refused(&empty, &Thresholds::default()).unwrap_err();
    assert!(
        matches!(error, Error::Settings(SettingsError::Plan(_))),
        "{error}"
    );
    let rate = Thresholds {
        minimum_rate: Some("1Gbps".parse().unwrap()),
        ..Thresholds::default()
    };
    let error = refused(&short(Verb::WriteLat), &rate).unwrap_err();
    assert!(
        error.to_string().contains("limit the latency instead"),
        "{error}"
    );
    let long = Plan {
        mtu: Some(4096),
        ..short(Verb::WriteBw)
    };
    let error = refused(&long, &Thresholds::default()).unwrap_err();
    assert!(
        matches!(error, Error::Rdma(gdr_rdma::Error::Connect { .. })),
        "{error}"
    );
}

/// Returns the error of a server that gets these messages instead of a client's.
fn served(messages: &[&str]) -> Error {
    let listener = Listener::bind(SocketAddr::new(SERVER, 0)).unwrap();
    let address = listener.address().unwrap();
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let device = loopback::open_listener(SERVER, None, 0)?;
            let (security, memory) = (&Security::Loopback, TransferMemory::Host);
            transfer::serve(&device, &listener, security, memory, TIMEOUTS, &mut go_on)
        });
        let limit = Deadline::after(Duration::from_secs(60));
        let mut session = Session::connect(address, &Security::Loopback, limit).unwrap();
        for message in messages {
            session.send(message.as_bytes(), limit).unwrap();
        }
        serving.join().unwrap().unwrap_err()
    })
}

/// Returns the first message of a client.
fn ask(version: u32, plan: &Plan) -> String {
    let end = serde_json::json!({
        "host": "a", "gdr": "0", "device": {
            "device": "soft-127.0.0.1", "address": "127.0.0.1:4791", "provider": "soft",
            "integrity": "none",
        },
        "memory": {
            "kind": "host", "gpu": null, "allocated_by": null, "reached": null, "why": null,
        },
    });
    let message = serde_json::json!({
        "measurement": "ask", "version": version, "plan": plan, "end": end,
    });
    message.to_string()
}

#[test]
fn peers_of_another_version_and_with_other_plans_are_refused_by_name() {
    let plan = short(Verb::WriteBw);
    let error = served(&[&ask(99, &plan)]);
    assert!(
        matches!(
            error,
            Error::Peer(PeerError::Version {
                theirs: 99,
                ours: 6
            })
        ),
        "{error}"
    );
    // An earlier version, whose plan had fewer fields.
    let earlier = ask(1, &plan).replace(r#","striping":"off""#, "");
    assert!(!earlier.contains("striping"), "{earlier}");
    let error = served(&[&earlier]).to_string();
    assert!(error.contains("speaks version 1"), "{error}");
    let long = Plan {
        sizes: vec![1 << 40],
        ..plan.clone()
    };
    let error = served(&[&ask(6, &long)]).to_string();
    assert!(
        error.contains("larger than the registered memory"),
        "{error}"
    );
    let other = served(&[r#"{"message": "ask", "size": 4}"#]).to_string();
    assert!(other.contains("not a message of this protocol"), "{other}");
    let turn = served(&[r#"{"measurement": "sent", "messages": [1]}"#]).to_string();
    assert!(turn.contains("`sent` out of order"), "{turn}");
}

#[test]
fn an_end_that_stops_says_so_to_the_other() {
    let listener = Listener::bind(SocketAddr::new(SERVER, 0)).unwrap();
    let address = listener.address().unwrap();
    let plan = short(Verb::WriteBw);
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let device = loopback::open_listener(SERVER, None, 0)?;
            let (security, memory) = (&Security::Loopback, TransferMemory::Host);
            let mut stop = |event: TransferEvent<'_>| match event {
                TransferEvent::Measured(_) => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            };
            transfer::serve(&device, &listener, security, memory, TIMEOUTS, &mut stop)
        });
        let device = loopback::open_connector(SERVER, Some(CLIENT), 0).unwrap();
        let (security, memory) = (&Security::Loopback, TransferMemory::Host);
        let ended = transfer::measure(
            &device,
            address,
            security,
            memory,
            &plan,
            &Thresholds::default(),
            &mut go_on,
        );
        let error = ended.unwrap_err();
        assert!(
            matches!(&error, Error::Peer(PeerError::Refused(why)) if why.contains("stopped")),
            "{error}"
        );
        assert!(matches!(serving.join().unwrap(), Err(Error::Stopped)));
    });
}
