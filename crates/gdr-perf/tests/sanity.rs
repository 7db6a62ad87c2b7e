//! The checks themselves: all pass on a sound backend, and the ones about data fail on a backend that maps the wrong
//! memory.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod fixture;

use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fixture::target_of;
use gdr_cuda::MemoryKind;
use gdr_perf::sanity::{self, Check, CheckResult, Report};
use gdr_perf::{BenchTarget, Error};

/// Checks count what the whole process holds, so only one run at a time.
fn alone() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(target: &BenchTarget, checks: &[Check]) -> Report {
    sanity::run(target, checks, &mut |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn every_check_passes_on_the_simulated_gpu_or_says_why_it_cannot() {
    let _alone = alone();
    let checks: Vec<Check> = sanity::all()
        .into_iter()
        .filter(|c| !c.is_extended())
        .collect();
    let report = run(&target_of(2), &checks);
    for check in &report.checks {
        match &check.verdict {
            CheckResult::Passed => {}
            CheckResult::Failed(reason) => panic!("{}: {reason}", check.name),
            CheckResult::Waived(reason) => assert!(!reason.is_empty(), "{}", check.name),
        }
    }
    assert!(report.subject.simulated);
    assert_eq!(report.subject.route.as_deref(), Some("simulated memory"));
    assert_eq!(report.total, checks.len());
    // What a simulation lacks: PCIe to force a mapping onto, tokens, two kinds of mappings, and a kernel module with
    // descriptors.
    let waived = 2 + 1 + 1 + 4;
    assert_eq!(
        (report.passed, report.waived),
        (checks.len() - waived, waived)
    );
}

fn data_checks() -> Vec<Check> {
    let about_data = |check: &Check| {
        let name = check.name();
        !check.is_extended()
            && (name.starts_with("data_")
                || name.starts_with("basic_large")
                || name.starts_with("basic_every")
                || name.starts_with("basic_thread"))
    };
    sanity::all().into_iter().filter(about_data).collect()
}

#[test]
fn a_backend_that_maps_another_allocation_fails_every_check_of_data() {
    let _alone = alone();
    let target = target_of(2);
    let decoy = target.gpu().allocate(MemoryKind::Plain, 80 << 20).unwrap();
    let decoy_ptr = decoy.ptr();
    let target = target.with_pin(move |context, _, len| context.pin(decoy_ptr, len));
    let report = run(&target, &data_checks());
    let unmoved: Vec<_> = report
        .checks
        .iter()
        .filter(|c| c.verdict == CheckResult::Passed)
        .collect();
    assert!(unmoved.is_empty(), "{unmoved:#?}");
    assert!(report.failed > 20, "{report:#?}");
}

#[test]
fn a_mapping_that_starts_four_bytes_late_is_caught() {
    let _alone = alone();
    // The last bytes cannot be pinned four bytes later; the checks request them without success, too.
    let late = target_of(2).with_pin(|context, ptr, len| {
        let late = ptr.checked_add(4).unwrap();
        context.pin(late, len - 4)
    });
    let names = [
        "data_validation_cumemalloc",
        "data_small_sizes",
        "data_typed_flags_cumemalloc",
    ];
    let report = run(&late, &sanity::named(&names).unwrap());
    assert_eq!(report.failed, 3, "{report:#?}");
}

#[test]
fn a_mapping_of_a_page_too_far_is_caught() {
    let _alone = alone();
    let target = target_of(2);
    let far = target.with_pin(|context, ptr, len| {
        let page = 64 << 10;
        let far = ptr.checked_add(page).unwrap();
        // As far as the allocation allows. A backend whose mapping is shifted has room after it.
        context
            .pin(far, len)
            .or_else(|_| context.pin(far, len - page))
    });
    let names = [
        "data_validation_vmmalloc",
        "data_kernel_sees_cpu_writes_vmmalloc",
        "data_cpu_sees_kernel_writes_vmmalloc",
        "data_neighbours_untouched_vmmalloc",
        "basic_large_buffer_mapping_vmmalloc",
    ];
    let report = run(&far, &sanity::named(&names).unwrap());
    assert_eq!(report.failed, names.len(), "{report:#?}");
}

#[test]
fn descriptors_left_open_are_counted() {
    let _alone = alone();
    let leaky = target_of(2).with_pin(|context, ptr, len| {
        let pinned = context.pin(ptr, len)?;
        std::mem::forget(context.pin(ptr, len)?);
        Ok(pinned)
    });
    let report = run(
        &leaky,
        &sanity::named(&["leakage_pin_map_rounds_cumemalloc"]).unwrap(),
    );
    let [check] = &report.checks[..] else {
        panic!("{report:#?}")
    };
    let CheckResult::Failed(reason) = &check.verdict else {
        panic!("{check:#?}")
    };
    assert!(reason.contains("descriptors"), "{reason}");
}

#[test]
fn memory_that_stays_held_is_counted() {
    let _alone = alone();
    // Accepts two pins of one buffer where one was requested, and keeps one of them.
    let leaky = target_of(2).with_pin(|context, ptr, len| {
        let pinned = context.pin(ptr, len)?;
        std::mem::forget(pinned.map()?);
        context.pin(ptr, len)
    });
    let report = run(
        &leaky,
        &sanity::named(&["leakage_concurrent_rounds"]).unwrap(),
    );
    assert_eq!(report.failed, 1, "{report:#?}");
}

#[test]
fn a_panic_in_a_check_is_a_failure_with_its_words() {
    let _alone = alone();
    let broken = target_of(2).with_pin(|_, _, _| panic!("no such thing"));
    let report = run(&broken, &sanity::named(&["basic_cumemalloc"]).unwrap());
    assert_eq!(
        report.checks[0].verdict,
        CheckResult::Failed("panicked: no such thing".to_owned())
    );
}

#[test]
fn a_run_ends_when_its_observer_asks() {
    let _alone = alone();
    let checks = sanity::named(&["refusal_zero_length", "refusal_backend_name"]).unwrap();
    let mut seen = 0;
    let stopped = sanity::run(&target_of(2), &checks, &mut |_| {
        seen += 1;
        ControlFlow::Break(())
    });
    assert!(matches!(stopped, Err(Error::Stopped)));
    assert_eq!(seen, 1);
}
