//! RDMA into the simulated GPU's memory, over paths that work and paths that do not.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod fixture;

use std::net::{IpAddr, Ipv4Addr};
use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use fixture::{target, target_that_maps_other_memory};
use gdr_copy::BackendKind;
use gdr_cuda::MemoryKind;
use gdr_perf::loopback::pipeline::{self, PipelineEvent, PipelineReport, PipelineSettings};
use gdr_perf::loopback::{
    self, CauseKind, Destination, Event, ListeningEnd, Operation, Outcome, PathKind, Report,
    Settings, SweepSettings, Timeouts, TransferMode, TransferPreference, Verdict,
};
use gdr_perf::transfer::{MemoryFacts, TransferMemory};
use gdr_perf::{BenchTarget, Error};
use gdr_rdma::{Device, Listener, Security, SharedKey, SoftOptions};

fn settings(size: u64, iterations: u32) -> Settings {
    Settings {
        size,
        iterations,
        ..Settings::default()
    }
}

fn destination(transfer: TransferPreference) -> Destination {
    Destination {
        transfer,
        ..Destination::default()
    }
}

fn go_on(_: Event<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Runs both ends in this process, on free ports, from `source`.
fn run_from(
    source: TransferMemory<'_>,
    target: &BenchTarget,
    destination: Destination,
    settings: &Settings,
) -> Result<Report, Error> {
    let (from, to) = loopback::open_both(None, None, 0).unwrap();
    loopback::run(
        target,
        &from,
        &to,
        source,
        destination,
        settings,
        &mut go_on,
    )
}

/// Runs the same from host memory.
fn run(target: &BenchTarget, destination: Destination, settings: &Settings) -> Report {
    run_from(TransferMemory::Host, target, destination, settings).unwrap()
}

fn assert_passed(report: &Report) {
    assert_eq!(report.verdict, Verdict::Pass, "{report:?}");
    assert_eq!(report.passed, report.iterations);
    assert!(report.memory.subject.simulated);
    let write = report.write.unwrap();
    assert!(write.simulated && write.median_ns > 0 && write.best_ns <= write.median_ns);
}

#[test]
fn every_kind_of_memory_and_every_way_to_it_passes() {
    for memory in MemoryKind::DEVICE {
        for transfer in [
            TransferPreference::Auto,
            TransferPreference::Direct,
            TransferPreference::Staged,
        ] {
            let destination = Destination { memory, transfer };
            let report = run(&target(), destination, &settings(100_000, 3));
            assert_passed(&report);
            let expected = match transfer {
                TransferPreference::Staged => TransferMode::Staged,
                _ => TransferMode::Direct,
            };
            assert_eq!(report.memory.reached, expected);
            assert_eq!(report.last.unwrap().checks.mapping, Outcome::Equal);
        }
    }
}

#[test]
fn where_no_backend_works_it_is_staged_and_every_reason_is_reported() {
    let tried = vec![gdr_copy::Rejected {
        backend: BackendKind::Rm,
        reason: "the driver is unknown".into(),
    }];
    let error = gdr_copy::Error::NoBackend { tried };
    let target = || BenchTarget::without_mappings(target().gpu().clone(), &error);
    let report = run(&target(), Destination::default(), &settings(100_000, 2));
    assert_passed(&report);
    assert_eq!(report.memory.reached, TransferMode::Staged);
    assert_eq!(report.memory.subject.backend, "none");
    let why = &report.memory.why;
    assert!(why.contains("rm: the driver is unknown"), "{why}");
    let mapping = report.last.unwrap().checks.mapping;
    assert!(matches!(mapping, Outcome::NotDone { .. }), "{mapping:?}");

    let (direct, settings) = (destination(TransferPreference::Direct), settings(4096, 1));
    let refused = run_from(TransferMemory::Host, &target(), direct, &settings);
    assert!(matches!(refused, Err(Error::NoMappings(_))), "{refused:?}");
}

#[test]
fn a_sweep_has_a_row_for_each_operation_size_and_path() {
    let refused = |target: BenchTarget| target.with_pin(|c, ptr, _| c.pin(ptr, 0));
    let both = [PathKind::Host, PathKind::Direct, PathKind::Staged];
    let staged = [PathKind::Host, PathKind::Staged];
    for (target, kinds) in [(target(), &both[..]), (refused(target()), &staged[..])] {
        let (from, to) = loopback::open_both(None, None, 0).unwrap();
        let settings = SweepSettings {
            largest: 16,
            rounds: 10,
            ..SweepSettings::default()
        };
        let mut go_on = |_: loopback::SweepEvent<'_>| ControlFlow::Continue(());
        let sweep = loopback::sweep(&target, &from, &to, &settings, &mut go_on).unwrap();
        assert_eq!(
            sweep.direct_missing.is_none(),
            kinds.contains(&PathKind::Direct)
        );
        let found = sweep.rows.iter().map(|r| (r.operation, r.size, r.kind));
        let expected = [Operation::Write, Operation::Read]
            .into_iter()
            .flat_map(|o| {
                [4, 16]
                    .into_iter()
                    .flat_map(move |size| kinds.iter().map(move |way| (o, size, *way)))
            });
        assert!(found.eq(expected));
        assert!(
            sweep
                .rows
                .iter()
                .all(|row| row.latency.median_ns > 0.0 && row.gb_per_s > 0.0)
        );
    }
}

#[test]
fn a_sweep_stops_on_request_and_notices_memory_that_is_another() {
    let (from, to) = loopback::open_both(None, None, 0).unwrap();
    let settings = SweepSettings {
        largest: 4,
        rounds: 10,
        ..SweepSettings::default()
    };
    let mut stop = |_: loopback::SweepEvent<'_>| ControlFlow::Break(());
    let stopped = loopback::sweep(&target(), &from, &to, &settings, &mut stop);
    assert!(matches!(stopped, Err(Error::Stopped)), "{stopped:?}");
    let mut go_on = |_: loopback::SweepEvent<'_>| ControlFlow::Continue(());
    let other = target_that_maps_other_memory();
    let wrong = loopback::sweep(&other, &from, &to, &settings, &mut go_on);
    assert!(matches!(wrong, Err(Error::WrongData { .. })), "{wrong:?}");
}

#[test]
fn sizes_from_a_word_to_many_messages_pass() {
    for size in [4, 4092, 4100, (32 << 20) + 4] {
        assert_passed(&run(&target(), Destination::default(), &settings(size, 1)));
    }
}

#[test]
fn a_mapping_of_other_memory_fails_as_nothing_arrived() {
    let report = run(
        &target_that_maps_other_memory(),
        destination(TransferPreference::Direct),
        &settings(65_536, 5),
    );
    assert_eq!(report.verdict, Verdict::Fail);
    let cause = report.cause.unwrap();
    assert_eq!(cause.kind, CauseKind::NothingArrived);
    assert_eq!(cause.iteration, 1);
    assert!(
        cause.what.contains("still pattern A everywhere"),
        "{}",
        cause.what
    );
    assert!(
        cause.what.contains("a mapping of other memory"),
        "{}",
        cause.what
    );
    // A program that trusts calls and completions would see only successes.
    let last = report.last.unwrap();
    assert!(last.sent.is_done() && last.received.is_done() && last.read.is_done());
    assert_eq!(report.write, None);
}

#[test]
fn memory_that_cannot_be_mapped_is_staged_and_the_reason_is_reported() {
    let refuse = |target: BenchTarget| target.with_pin(|context, ptr, _| context.pin(ptr, 0));
    let report = run(
        &refuse(target()),
        Destination::default(),
        &settings(4096, 1),
    );
    assert_passed(&report);
    assert_eq!(report.memory.reached, TransferMode::Staged);
    assert!(
        report
            .memory
            .why
            .starts_with("this memory cannot be mapped: ")
    );
    let mapping = report.last.unwrap().checks.mapping;
    assert!(matches!(mapping, Outcome::NotDone { .. }), "{mapping:?}");

    let direct = destination(TransferPreference::Direct);
    let settings = settings(4096, 1);
    let refused = run_from(TransferMemory::Host, &refuse(target()), direct, &settings);
    assert!(matches!(refused, Err(Error::Copy(_))), "{refused:?}");
}

#[test]
fn a_run_that_is_stopped_is_undecided() {
    let (from, to) = loopback::open_both(None, None, 0).unwrap();
    let mut ended = 0;
    let report = loopback::run(
        &target(),
        &from,
        &to,
        TransferMemory::Host,
        Destination::default(),
        &settings(4096, 100),
        &mut |event| {
            ended += u32::from(matches!(event, Event::Ended(_)));
            if ended == 3 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        },
    )
    .unwrap();
    assert_eq!((report.verdict, report.passed), (Verdict::Undecided, 3));
    assert_eq!(report.cause, None);
}

#[test]
fn the_report_has_a_schema_and_says_simulated() {
    let report = run(&target(), Destination::default(), &settings(4096, 1));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["schema"], "gdr.loopback");
    assert_eq!(json["version"], 1);
    assert_eq!(json["verdict"], "pass");
    assert_eq!(json["simulated"], true);
    assert_eq!(json["reached"], "direct");
    assert_eq!(json["last"]["checks"]["kernel"]["outcome"], "equal");
    assert_eq!(
        json["path"]["from"]["provider"],
        "soft (RoCEv2 in user space)"
    );
}

/// Limit of waits that end long before.
const LIMIT: Duration = Duration::from_secs(60);
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Runs both ends over TCP, each with its own security.
fn two_ends(
    security: [Security; 2],
    settings: &Settings,
    observe_sender: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> [Result<Report, Error>; 2] {
    two_ends_within(LIMIT, security, settings, observe_sender)
}

/// Runs the same with a receiver that waits so long for its peer.
fn two_ends_within(
    peer: Duration,
    security: [Security; 2],
    settings: &Settings,
    observe_sender: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> [Result<Report, Error>; 2] {
    let listener = Listener::bind((LOCALHOST, 0).into()).unwrap();
    let address = listener.address().unwrap();
    let [servers, clients] = security;
    thread::scope(|scope| {
        let server = scope.spawn(move || {
            let device: Device = loopback::open_listener(LOCALHOST, None, 0).unwrap();
            let timeouts = Timeouts { peer, step: LIMIT };
            let to = Destination::default();
            loopback::listen(
                &target(),
                &device,
                &listener,
                &servers,
                &ListeningEnd::new(to, timeouts),
                &mut go_on,
            )
        });
        let device = loopback::open_connector(address.ip(), None, 0).unwrap();
        let source = TransferMemory::Host;
        let sender =
            loopback::connect(&device, address, &clients, source, settings, observe_sender);
        [server.join().unwrap(), sender]
    })
}

#[test]
fn two_ends_come_to_the_same_verdict() {
    let key = || Security::Key(SharedKey::new(*b"sixteen bytes or more").unwrap());
    for security in [[Security::Loopback, Security::Loopback], [key(), key()]] {
        let [receiver, sender] = two_ends(security, &settings(100_000, 4), &mut go_on);
        let (receiver, sender) = (receiver.unwrap(), sender.unwrap());
        assert_passed(&receiver);
        assert_passed(&sender);
        assert_eq!(receiver.memory, sender.memory);
        assert_eq!(receiver.source, MemoryFacts::host());
        assert_eq!(receiver.source, sender.source);
        assert_eq!(receiver.path, sender.path);
        assert_eq!(receiver.last, sender.last);
    }
}

/// Returns two iterations, on a machine that may be busy.
fn patient(size: u64) -> Settings {
    Settings {
        timeout: LIMIT,
        ..settings(size, 2)
    }
}

/// Returns a device with several shards.
fn wide(last: u8) -> Device {
    let address = IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
    Device::soft_with(SoftOptions::new(address).port(0).shards(3)).unwrap()
}

#[test]
fn a_long_direct_transfer_is_striped_over_a_queue_pair_for_each_shard_and_no_other_is() {
    use TransferPreference::{Direct, Staged};
    let (from, to) = (wide(2), wide(1));
    for (transfer, size, queue_pairs, message) in [
        (Direct, 17 << 20, 3, 1 << 20),
        (Direct, 1 << 20, 1, 1 << 20),
        (Staged, 17 << 20, 1, 16 << 20),
        (Staged, 1 << 20, 1, 1 << 20),
    ] {
        let (source, to_where) = (TransferMemory::Host, destination(transfer));
        let (target, settings) = (target(), patient(size));
        let report =
            loopback::run(&target, &from, &to, source, to_where, &settings, &mut go_on).unwrap();
        assert_passed(&report);
        let path = &report.path;
        assert_eq!((path.queue_pairs, path.message), (queue_pairs, message));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["path"]["queue_pairs"], queue_pairs);
    }
}

#[test]
fn a_sender_with_several_shards_stripes_to_a_receiver_with_any_number() {
    let listener = Listener::bind((LOCALHOST, 0).into()).unwrap();
    let address = listener.address().unwrap();
    let settings = patient(16 << 20);
    let [receiver, sender] = thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let device = loopback::open_listener(LOCALHOST, None, 0).unwrap();
            let timeouts = Timeouts {
                peer: LIMIT,
                step: LIMIT,
            };
            let (security, to) = (&Security::Loopback, Destination::default());
            let target = target();
            loopback::listen(
                &target,
                &device,
                &listener,
                security,
                &ListeningEnd::new(to, timeouts),
                &mut go_on,
            )
        });
        let (security, source) = (&Security::Loopback, TransferMemory::Host);
        let device = wide(2);
        let sender = loopback::connect(&device, address, security, source, &settings, &mut go_on);
        [receiver.join().unwrap().unwrap(), sender.unwrap()]
    });
    assert_passed(&receiver);
    assert_passed(&sender);
    assert_eq!(receiver.path, sender.path);
    assert_eq!(sender.path.queue_pairs, 3);
}

#[test]
fn a_sender_without_the_key_is_turned_away() {
    let key = Security::Key(SharedKey::new(*b"sixteen bytes or more").unwrap());
    let ends = two_ends_within(
        Duration::from_secs(2),
        [key, Security::Loopback],
        &settings(4096, 1),
        &mut go_on,
    );
    for end in ends {
        assert!(matches!(end, Err(Error::Rdma(_))), "{end:?}");
    }
}

#[test]
fn a_sender_that_stops_leaves_the_receiver_with_a_failure() {
    let mut ended = 0;
    let [receiver, sender] = two_ends(
        [Security::Loopback, Security::Loopback],
        &settings(4096, 1000),
        &mut |event| {
            ended += u32::from(matches!(event, Event::Ended(_)));
            if ended == 2 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        },
    );
    assert_eq!(sender.unwrap().verdict, Verdict::Undecided);
    let receiver = receiver.unwrap();
    assert_eq!((receiver.verdict, receiver.passed), (Verdict::Fail, 2));
    let cause = receiver.cause.unwrap();
    assert_eq!(cause.kind, CauseKind::Other);
    assert!(cause.what.contains("iteration 3"), "{}", cause.what);
}

#[test]
fn settings_that_make_no_sense_are_refused_before_anything_is_done() {
    let odd = settings(7, 1);
    let refused = run_from(
        TransferMemory::Host,
        &target(),
        Destination::default(),
        &odd,
    );
    assert!(matches!(refused, Err(Error::Settings(_))));
}

/// Runs both ends in this process, on free ports.
fn compare(target: &BenchTarget, settings: &PipelineSettings) -> Result<PipelineReport, Error> {
    let (from, to) = loopback::open_both(None, None, 0).unwrap();
    let mut go_on = |_: PipelineEvent<'_>| ControlFlow::Continue(());
    let source = TransferMemory::Host;
    pipeline::compare(target, &from, &to, source, settings, &mut go_on)
}

#[test]
fn a_comparison_has_a_row_for_each_size_and_a_model_of_each_way() {
    let settings = PipelineSettings {
        sizes: vec![4, 100, (16 << 20) + 4],
        rounds: 2,
        ..PipelineSettings::default()
    };
    let report = compare(&target(), &settings).unwrap();
    assert!(report.subject.simulated);
    assert_eq!(report.direct_missing, None);
    let sizes: Vec<_> = report.rows.iter().map(|row| row.size).collect();
    assert_eq!(sizes, settings.sizes);
    for row in &report.rows {
        let direct = row.direct.unwrap();
        for mode in [row.staged, direct] {
            assert_eq!((mode.total.samples, mode.receive.samples), (2, 2));
            assert!(mode.receive.min_ns <= mode.total.max_ns);
        }
        let ratio = row.staged.total.median_ns / direct.total.median_ns;
        assert_eq!(row.ratio, Some(ratio));
    }
    assert!(report.staged_model.is_some() && report.direct_model.is_some());
    assert!(report.crossing.is_some());
}

#[test]
fn where_memory_cannot_be_mapped_only_the_staged_way_is_compared_and_the_report_says_why() {
    let refused = target().with_pin(|context, ptr, _| context.pin(ptr, 0));
    let settings = PipelineSettings {
        sizes: vec![4096],
        rounds: 2,
        ..PipelineSettings::default()
    };
    let report = compare(&refused, &settings).unwrap();
    let why = report.direct_missing.unwrap();
    assert!(why.contains("cannot be mapped"), "{why}");
    assert!(report.rows[0].direct.is_none() && report.rows[0].ratio.is_none());
    assert_eq!((report.staged_model, report.crossing), (None, None));
}

#[test]
fn a_comparison_notices_a_wrong_result_and_refuses_settings_that_cannot_be_used() {
    let settings = PipelineSettings {
        sizes: vec![64],
        rounds: 2,
        ..PipelineSettings::default()
    };
    let wrong = compare(&target_that_maps_other_memory(), &settings);
    assert!(matches!(wrong, Err(Error::WrongData { .. })), "{wrong:?}");
    let empty = PipelineSettings {
        sizes: vec![0],
        ..settings
    };
    let refused = compare(&target(), &empty);
    assert!(matches!(refused, Err(Error::Settings(_))), "{refused:?}");
}
