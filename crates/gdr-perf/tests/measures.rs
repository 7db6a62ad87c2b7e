//! Measurements on the simulated GPU: their figures are plausible, and wrong data void them.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod fixture;

use std::ops::ControlFlow;
use std::time::Duration;

use fixture::target;
use gdr_cuda::{Direction, MemoryKind};
use gdr_perf::baseline::Baseline;
use gdr_perf::copylat::{Cache, Series};
use gdr_perf::mapped_buffer::{BufferOptions, CopyDirection};
use gdr_perf::stats::Summary;
use gdr_perf::{Error, MemoryLocation, apiperf, copybw, copylat, pplat};
use serde_json::Value;

const GO_ON: ControlFlow<()> = ControlFlow::Continue(());
const STOP: ControlFlow<()> = ControlFlow::Break(());

fn assert_sane(summary: &Summary) {
    let Summary {
        samples,
        min_ns,
        median_ns,
        p90_ns,
        p99_ns,
        p999_ns,
        max_ns,
        ..
    } = *summary;
    assert!(samples > 0 && min_ns >= 0.0, "{summary:?}");
    let order = [min_ns, median_ns, p90_ns, p99_ns, p999_ns, max_ns];
    assert!(order.is_sorted(), "{summary:?}");
    assert!(
        summary.mean_ns >= min_ns && summary.mean_ns <= max_ns,
        "{summary:?}"
    );
}

fn assert_header(report: &impl serde::Serialize, schema: &str) {
    let report = serde_json::to_value(report).unwrap();
    assert_eq!(report["schema"], schema);
    assert_eq!(report["version"], 1);
    assert_eq!(report["simulated"], true);
    assert_eq!(report["backend"], "sim");
    assert_eq!(report["route"], "simulated memory");
    assert!(report["gpu"].is_string());
    assert_eq!(report["driver"], Value::Null);
}

fn bandwidth() -> copybw::Settings {
    copybw::Settings {
        sizes: vec![1, 4096, 100_001],
        offset: 1020,
        writes: 200,
        reads: 100,
        ..copybw::Settings::default()
    }
}

#[test]
fn copybw_measures_every_size_both_ways() {
    let report = copybw::run(&target(), &bandwidth(), &mut |_| GO_ON).unwrap();
    assert_header(&report, "gdr.copybw");
    let measured: Vec<_> = report
        .rates
        .iter()
        .map(|rate| (rate.size, rate.direction))
        .collect();
    let expected = [1, 4096, 100_001]
        .map(|size| [(size, CopyDirection::ToGpu), (size, CopyDirection::FromGpu)]);
    assert_eq!(measured, expected.concat());
    for rate in &report.rates {
        assert_sane(&rate.copy);
        let mib_per_s = rate.size as f64 / rate.copy.mean_ns * 1e9 / 1_048_576.0;
        assert!((rate.mib_per_s / mib_per_s - 1.0).abs() < 0.01, "{rate:?}");
    }
    assert!(report.against_cuda.is_empty());
}

#[test]
fn copies_are_compared_with_cuda_on_the_same_buffer() {
    let settings = copybw::Settings {
        baseline: Baseline::CuMemcpy,
        ..bandwidth()
    };
    let report = copybw::run(&target(), &settings, &mut |_| GO_ON).unwrap();
    assert_eq!(report.against_cuda.len(), 6);
    for comparison in &report.against_cuda {
        let rival = comparison
            .page_locked
            .median_ns
            .min(comparison.pageable.median_ns);
        assert!((comparison.ratio - rival / comparison.mapping.median_ns).abs() < 1e-6);
    }
}

#[test]
fn a_copy_past_the_end_of_the_buffer_is_refused() {
    for (sizes, offset) in [
        (vec![128 << 10], 4),
        (vec![0], 0),
        (vec![], 0),
        (vec![1], u64::MAX),
    ] {
        let settings = copybw::Settings {
            sizes,
            offset,
            ..bandwidth()
        };
        let refused = copybw::run(&target(), &settings, &mut |_| GO_ON);
        assert!(matches!(refused, Err(Error::Settings(_))), "{refused:?}");
    }
}

#[test]
fn figures_of_the_wrong_memory_are_void() {
    let target = target();
    let decoy = target.gpu().allocate(MemoryKind::Plain, 1 << 20).unwrap();
    let ptr = decoy.ptr();
    let target = target.with_pin(move |context, _, len| context.pin(ptr, len));
    let void = copybw::run(&target, &bandwidth(), &mut |_| GO_ON);
    assert!(matches!(void, Err(Error::WrongData { .. })), "{void:?}");
    let void = copylat::run(&target, &latency(), &mut |_| GO_ON);
    assert!(matches!(void, Err(Error::WrongData { .. })), "{void:?}");
}

fn latency() -> copylat::Settings {
    copylat::Settings {
        buffer: 64 << 10,
        memory: BufferOptions {
            kind: MemoryKind::VmmPosixFd,
            ..BufferOptions::default()
        },
        sizes: vec![1, 64, 4096, 65_536],
        writes: 100,
        reads: 50,
        series: Series::MAPPING.into(),
        cache: Cache::Warm,
        baseline: Baseline::None,
    }
}

#[test]
fn copylat_measures_every_series_at_every_size() {
    let settings = copylat::Settings {
        series: [Series::CUDA, Series::MAPPING].concat(),
        baseline: Baseline::CuMemcpy,
        ..latency()
    };
    let mut seen = 0;
    let report = copylat::run(&target(), &settings, &mut |event| {
        seen += usize::from(matches!(event, copylat::Event::Measured(_)));
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_header(&report, "gdr.copylat");
    assert_eq!((report.rows.len(), seen), (16, 16));
    report.rows.iter().for_each(|row| assert_sane(&row.copy));
    assert_eq!(report.against_cuda.len(), 8);
}

#[test]
fn reads_measured_alone_find_their_data() {
    let settings = copylat::Settings {
        series: vec![Series::FromMapping],
        ..latency()
    };
    assert_eq!(
        copylat::run(&target(), &settings, &mut |_| GO_ON)
            .unwrap()
            .rows
            .len(),
        4
    );
}

#[test]
fn a_cold_cache_is_refused_where_the_mapping_is_not_cached() {
    let settings = copylat::Settings {
        cache: Cache::Cold,
        ..latency()
    };
    let refused = copylat::run(&target(), &settings, &mut |_| GO_ON).unwrap_err();
    assert!(refused.to_string().contains("write-combined"), "{refused}");
}

#[test]
fn apiperf_measures_powers_of_two_from_a_gpu_page_on() {
    let settings = apiperf::Settings {
        largest: 200 << 10,
        iterations: 20,
        ..apiperf::Settings::default()
    };
    let report = apiperf::run(&target(), &settings, &mut |_| GO_ON).unwrap();
    assert_header(&report, "gdr.apiperf");
    let sizes: Vec<_> = report.rows.iter().map(|row| row.size >> 10).collect();
    assert_eq!(sizes, [64, 128, 256]);
    for row in &report.rows {
        for part in [
            &row.pin,
            &row.map,
            &row.get_info,
            &row.unmap,
            &row.unpin,
            &row.round,
        ] {
            assert_sane(part);
        }
        assert_eq!(
            row.pin_histogram.iter().map(|bin| bin.count).sum::<u64>(),
            20
        );
        assert!((row.pin_histogram[0].from_ns - row.pin.min_ns).abs() < 1.0);
    }
}

fn round_trips(direction: Direction, payload: u64) -> pplat::Settings {
    pplat::Settings {
        iterations: 200,
        payload,
        direction,
        blocks: 2,
        threads: 32,
        ..pplat::Settings::default()
    }
}

#[test]
fn pplat_plays_every_round_wherever_flags_and_data_are() {
    for direction in [Direction::CpuToGpu, Direction::GpuToCpu] {
        for payload in [0, 4096] {
            for place in [MemoryLocation::Gpu, MemoryLocation::Host] {
                let settings = pplat::Settings {
                    gpu_flag: place,
                    cpu_flag: place,
                    data: place,
                    ..round_trips(direction, payload)
                };
                let report = pplat::run(&target(), &settings, &mut |_| GO_ON).unwrap();
                assert_header(&report, "gdr.pplat");
                assert_sane(&report.batch);
                assert_sane(&report.round);
                assert_eq!((report.batch.samples, report.round.samples), (100, 200));
                let threads = if payload == 0 { (1, 1) } else { (2, 32) };
                assert_eq!((report.blocks, report.threads), threads);
            }
        }
    }
}

#[test]
fn pplat_gives_up_on_a_kernel_that_never_sees_its_flag() {
    let target = target();
    let decoy = target.gpu().allocate(MemoryKind::Plain, 4096).unwrap();
    let ptr = decoy.ptr();
    let deaf = target.with_pin(move |context, _, len| context.pin(ptr, len));
    let settings = pplat::Settings {
        timeout: Some(Duration::from_millis(50)),
        ..round_trips(Direction::CpuToGpu, 0)
    };
    let silent = pplat::run(&deaf, &settings, &mut |_| GO_ON);
    assert!(
        matches!(silent, Err(Error::NoAnswer { round: 1, .. })),
        "{silent:?}"
    );
}

#[test]
fn pplat_refuses_what_no_kernel_can_do() {
    let fine = round_trips(Direction::CpuToGpu, 4096);
    for settings in [
        pplat::Settings { payload: 6, ..fine },
        pplat::Settings { blocks: 0, ..fine },
        pplat::Settings { threads: 0, ..fine },
        pplat::Settings {
            threads: 2048,
            ..fine
        },
        pplat::Settings {
            iterations: u32::MAX,
            ..fine
        },
    ] {
        let refused = pplat::run(&target(), &settings, &mut |_| GO_ON);
        assert!(matches!(refused, Err(Error::Settings(_))), "{refused:?}");
    }
}

#[test]
fn every_measurement_ends_when_its_observer_asks() {
    let target = target();
    assert!(matches!(
        copybw::run(&target, &bandwidth(), &mut |_| STOP),
        Err(Error::Stopped)
    ));
    assert!(matches!(
        copylat::run(&target, &latency(), &mut |_| STOP),
        Err(Error::Stopped)
    ));
    let settings = apiperf::Settings::default();
    assert!(matches!(
        apiperf::run(&target, &settings, &mut |_| STOP),
        Err(Error::Stopped)
    ));
    let settings = round_trips(Direction::CpuToGpu, 0);
    assert!(matches!(
        pplat::run(&target, &settings, &mut |_| STOP),
        Err(Error::Stopped)
    ));
}
