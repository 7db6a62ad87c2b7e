//! Transfers from one simulated GPU's memory to another's.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod fixture;

use std::net::{IpAddr, Ipv4Addr};
use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use fixture::{target, target_that_maps_other_memory, two_targets};
use gdr_cuda::MemoryKind;
use gdr_perf::loopback::{
    self, CauseKind, Destination, Event, ListeningEnd, Report, Settings, Timeouts, TransferMode,
    TransferPreference, Verdict,
};
use gdr_perf::transfer::TransferMemory;
use gdr_perf::{BenchTarget, Error};
use gdr_rdma::{Device, Listener, Security, SoftOptions};

/// Far longer than any step takes, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn settings(size: u64) -> Settings {
    Settings {
        size,
        iterations: 2,
        timeout: LIMIT,
        ..Settings::default()
    }
}

fn prefers(transfer: TransferPreference) -> Destination {
    Destination {
        transfer,
        ..Destination::default()
    }
}

fn go_on(_: Event<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Runs both ends in this process.
fn run(
    source: &BenchTarget,
    target: &BenchTarget,
    [from, to]: [Destination; 2],
    settings: &Settings,
) -> Result<Report, Error> {
    let (sender, receiver) = loopback::open_both(None, None, 0).unwrap();
    let source = TransferMemory::Gpu(source, from);
    loopback::run(target, &sender, &receiver, source, to, settings, &mut go_on)
}

fn assert_passed(report: &Report, source: &BenchTarget, reached: TransferMode) {
    assert_eq!(report.verdict, Verdict::Pass, "{report:?}");
    assert_eq!(report.passed, report.iterations);
    let facts = &report.source;
    assert_eq!(facts.kind, "gpu");
    let gpu = facts.gpu.as_ref().unwrap();
    assert!(gpu.simulated);
    assert_eq!(gpu.pci, source.gpu().info().bdf.to_string());
    assert_eq!(facts.reached, Some(reached), "{facts:?}");
    assert!(facts.why.is_some());
}

#[test]
fn memory_of_either_gpu_reaches_the_other_one_in_every_way() {
    let gpus = two_targets();
    let [first, second] = &gpus;
    let modes = [
        (TransferPreference::Direct, TransferMode::Direct),
        (TransferPreference::Staged, TransferMode::Staged),
    ];
    for (source, target) in [(first, second), (second, first), (first, first)] {
        for (from, sent) in modes {
            for (to, received) in modes {
                let ends = [prefers(from), prefers(to)];
                let report = run(source, target, ends, &settings(100_000)).unwrap();
                assert_passed(&report, source, sent);
                assert_eq!(report.memory.reached, received);
                let pci = target.gpu().info().bdf.to_string();
                assert_eq!(report.memory.subject.pci, pci);
            }
        }
    }
}

#[test]
fn every_kind_of_memory_and_every_length_is_sent() {
    let [target, source] = two_targets();
    for memory in MemoryKind::DEVICE {
        let ends = [memory; 2].map(|memory| Destination {
            memory,
            ..Destination::default()
        });
        for size in [4, 4100, (17 << 20) + 4] {
            let report = run(&source, &target, ends, &settings(size)).unwrap();
            assert_passed(&report, &source, TransferMode::Direct);
            let function = memory.function();
            assert_eq!(report.source.allocated_by.as_deref(), Some(function));
        }
    }
}

#[test]
fn a_long_transfer_out_of_gpu_memory_is_striped_unless_it_is_staged() {
    let [target, source] = two_targets();
    let wide = |last| {
        let address = IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
        Device::soft_with(SoftOptions::new(address).port(0).shards(3)).unwrap()
    };
    let (from, to) = (wide(2), wide(1));
    for (transfer, reached, queue_pairs) in [
        (TransferPreference::Direct, TransferMode::Direct, 3),
        (TransferPreference::Staged, TransferMode::Staged, 1),
    ] {
        let memory = TransferMemory::Gpu(&source, prefers(transfer));
        let (destination, settings) = (Destination::default(), settings(17 << 20));
        let report = loopback::run(
            &target,
            &from,
            &to,
            memory,
            destination,
            &settings,
            &mut go_on,
        )
        .unwrap();
        assert_passed(&report, &source, reached);
        assert_eq!(report.path.queue_pairs, queue_pairs);
    }
}

#[test]
fn a_source_whose_mapping_is_of_other_memory_is_noticed() {
    let source = target_that_maps_other_memory();
    let ends = [
        prefers(TransferPreference::Direct),
        prefers(TransferPreference::Staged),
    ];
    let report = run(&source, &target(), ends, &settings(4096)).unwrap();
    assert_eq!(report.verdict, Verdict::Fail);
    assert_eq!(report.cause.unwrap().kind, CauseKind::WrongBytes);
}

#[test]
fn a_source_that_cannot_be_mapped_is_staged_or_refused() {
    let source = target().with_pin(|context, ptr, _| context.pin(ptr, 0));
    let ends = |from| [prefers(from), Destination::default()];
    let auto = ends(TransferPreference::Auto);
    let report = run(&source, &target(), auto, &settings(4096)).unwrap();
    assert_passed(&report, &source, TransferMode::Staged);
    let why = report.source.why.unwrap();
    assert!(why.starts_with("this memory cannot be mapped: "), "{why}");
    let direct = ends(TransferPreference::Direct);
    let refused = run(&source, &target(), direct, &settings(4096));
    assert!(matches!(refused, Err(Error::Copy(_))), "{refused:?}");
}

#[test]
fn both_processes_report_the_gpu_of_the_sender() {
    let listener = Listener::bind((LOCALHOST, 0).into()).unwrap();
    let address = listener.address().unwrap();
    let [_, source] = two_targets();
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
        let device = loopback::open_connector(address.ip(), None, 0).unwrap();
        let security = &Security::Loopback;
        let memory = TransferMemory::Gpu(&source, prefers(TransferPreference::Staged));
        let settings = settings(100_000);
        let sender = loopback::connect(&device, address, security, memory, &settings, &mut go_on);
        [receiver.join().unwrap().unwrap(), sender.unwrap()]
    });
    assert_passed(&receiver, &source, TransferMode::Staged);
    assert_passed(&sender, &source, TransferMode::Staged);
    assert_eq!(receiver.source, sender.source);
    assert_eq!(receiver.memory, sender.memory);
    assert_eq!(receiver.last, sender.last);
}
