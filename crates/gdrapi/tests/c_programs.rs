//! C and C++ programs, compiled against the header and run with the shared library.

mod library;

use std::num::NonZeroU16;
use std::path::Path;
use std::process::Command;

use gdr_copy::plan::{
    Calibration, CopyDirection, CopyPath, CostCurve, CostPoint, HostMemory, Profile, Series,
};
use gdr_copy::{Context, ProfileStore, profile_key};
use gdr_cuda::{Gpu, MemoryKind, Ordinal, SimDriver};
use library::{assert_success, compile, compiler, installed, run, run_command};

fn c_program_succeeds(source: &str, standard: &str) {
    let cc = compiler("CC", "cc").expect("a C compiler: set CC, or install cc");
    let folder = installed();
    let program = compile(&cc, standard, source, folder.path());
    let output = run(&program, folder.path(), &[]);
    assert_success(source, &output);
}

#[test]
fn the_header_is_c99_and_its_types_have_the_layout_of_gdrcopy() {
    c_program_succeeds("layout.c", "c99");
}

#[test]
fn the_second_header_names_the_cpu_as_programs_of_gdrcopy_expect() {
    c_program_succeeds("config.c", "c99");
}

#[test]
fn the_header_is_cpp11_too() {
    let Some(cxx) = compiler("CXX", "c++") else {
        skip::skip("c++: no C++ compiler");
        return;
    };
    let folder = installed();
    let program = compile(&cxx, "c++11", "header.cpp", folder.path());
    assert_success("header.cpp", &run(&program, folder.path(), &[]));
}

#[test]
fn right_calls_succeed_and_the_bytes_arrive() {
    c_program_succeeds("good.c", "gnu11");
}

/// Valgrind unmaps the vDSO, whose address the kernel still returns.
#[test]
fn right_calls_succeed_under_valgrind() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        skip::skip("Valgrind: it is not installed");
        return;
    }
    let cc = compiler("CC", "cc").expect("a C compiler: set CC, or install cc");
    let folder = installed();
    let program = compile(&cc, "gnu11", "good.c", folder.path());
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["-q", "--tool=none"]).arg(program);
    let output = run_command(valgrind, folder.path(), &[]);
    assert_success("good.c under Valgrind", &output);
}

#[test]
fn wrong_calls_are_refused_and_nothing_crashes() {
    c_program_succeeds("bad.c", "gnu11");
}

#[test]
fn a_range_may_end_in_the_last_gpu_page_of_its_allocation() {
    let cc = compiler("CC", "cc").expect("a C compiler: set CC, or install cc");
    let folder = installed();
    let program = compile(&cc, "gnu11", "tail.c", folder.path());
    let output = run(&program, folder.path(), &[("GDR_SIM_BYTES", "100000")]);
    assert_success("tail.c", &output);
}

#[test]
fn a_pin_may_go_on_into_the_next_buffer_of_its_block_and_the_log_says_why_no_farther() {
    let cc = compiler("CC", "cc").expect("a C compiler: set CC, or install cc");
    let folder = installed();
    let program = compile(&cc, "gnu11", "neighbours.c", folder.path());
    let variables = [
        ("GDR_SIM_BYTES", "40000,40000,40000,131072"),
        ("GDRCOPY_ENABLE_LOGGING", "1"),
    ];
    let output = run(&program, folder.path(), &variables);
    assert_success("neighbours.c", &output);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("run past their allocation"), "{log}");
}

#[test]
fn copies_race_with_unmapping_unpinning_and_closing() {
    c_program_succeeds("races.c", "gnu11");
}

#[test]
fn a_forked_child_has_no_handles_and_may_open_the_library() {
    c_program_succeeds("forked.c", "gnu11");
}

#[test]
fn the_library_survives_dlclose_under_threads() {
    c_program_succeeds("loaded.c", "gnu11");
}

#[test]
fn signal_handlers_may_copy_and_may_leave_a_copy() {
    c_program_succeeds("interrupted.c", "gnu11");
}

#[test]
fn copies_may_be_left_by_siglongjmp_any_number_of_times_and_unmapping_then_unmaps() {
    c_program_succeeds("jumps.c", "gnu11");
}

/// Returns the log that `source` leaves when errors are logged.
fn log_of(source: &str) -> String {
    let cc = compiler("CC", "cc").expect("a C compiler: set CC, or install cc");
    let folder = installed();
    let program = compile(&cc, "gnu11", source, folder.path());
    let output = run(&program, folder.path(), &[("GDRCOPY_ENABLE_LOGGING", "1")]);
    assert_success(source, &output);
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn a_refused_copy_in_a_signal_handler_is_logged_and_allocates_nothing() {
    let log = log_of("refused_in_handlers.c");
    for reason in [
        "gdr_copy_to_mapping: the handle is not a pinned buffer",
        "gdr_copy_from_mapping: the handle is not a pinned buffer",
        "gdr_copy_to_mapping: the handle is not mapped",
        "gdr_copy_to_mapping: the bytes are outside of the mapping",
        "gdr_copy_to_mapping: the host pointer is null",
    ] {
        assert!(log.contains(&format!("ERR:  {reason}")), "{reason}");
    }
}

#[test]
fn a_thread_that_is_cancelled_in_the_library_ends_after_the_call_without_a_lock() {
    // With logging, every refusal is a cancellation point.
    assert!(log_of("cancelled.c").contains("ERR:  gdr_unmap: "));
}

#[test]
fn p2p_tokens_are_ignored_where_mappings_are_persistent() {
    c_program_succeeds("tokens.c", "gnu11");
}

#[test]
fn the_log_is_empty_unless_enabled_and_then_has_the_reasons() {
    let cc = compiler("CC", "cc").expect("a C compiler: set CC, or install cc");
    let folder = installed();
    let program = compile(&cc, "gnu11", "bad.c", folder.path());
    let log = |variables: &[(&str, &str)]| {
        let output = run(&program, folder.path(), variables);
        assert_success("bad.c", &output);
        String::from_utf8(output.stderr).expect("text")
    };

    assert_eq!(log(&[]), "");
    assert_eq!(log(&[("GDRCOPY_LOG_LEVEL", "1")]), "");
    let on = ("GDRCOPY_ENABLE_LOGGING", "");
    let errors = log(&[on]);
    assert!(
        errors.lines().all(|line| line.starts_with("ERR:  ")),
        "only errors by default"
    );
    assert!(errors.contains("gdr_map: the pinned address 0x6000000000001 is not a multiple"));
    let all = log(&[on, ("GDRCOPY_LOG_LEVEL", "1")]);
    assert!(all.contains("INFO: simulated GPU memory: 1048576 bytes at 0x6000000000000"));
    assert_eq!(log(&[on, ("GDRCOPY_LOG_LEVEL", "5")]), "");
}

#[test]
fn opening_without_a_gpu_fails_and_the_log_has_every_reason() {
    let cc = compiler("CC", "cc").expect("a C compiler: set CC, or install cc");
    let folder = installed();
    let program = compile(&cc, "gnu11", "opens.c", folder.path());
    let log = |variables: &[(&str, &str)]| {
        let output = run(&program, folder.path(), variables);
        (
            output.status.code(),
            String::from_utf8(output.stderr).expect("text"),
        )
    };
    let on = ("GDRCOPY_ENABLE_LOGGING", "1");

    let (code, text) = log(&[on, ("GDR_BACKEND", "nonsense")]);
    assert_eq!(code, Some(libc::EINVAL));
    assert!(
        text.starts_with("ERR:  gdr_open: GDR_BACKEND: `nonsense` is not a backend"),
        "{text}"
    );

    let (code, text) = log(&[on, ("GDR_SIM_BYTES", "many")]);
    assert_eq!(code, Some(libc::EINVAL));
    assert!(text.contains("GDR_SIM_BYTES is not a size"), "{text}");

    if std::path::Path::new("/dev/nvidiactl").exists() {
        skip::skip("the rest: this machine has a GPU");
        return;
    }
    let (code, text) = log(&[on, ("GDR_BACKEND", "")]);
    assert_eq!(code, Some(libc::ENODEV));
    for backend in ["gdrdrv: ", "dmabuf: ", "rm: ", "sim: "] {
        assert!(text.contains(backend), "{text}");
    }
    let (code, text) = log(&[on, ("GDR_BACKEND", ""), ("GDRCOPY_USE_DMABUF_MMAP", "1")]);
    assert_eq!(code, Some(libc::ENODEV));
    assert!(
        text.contains("backend dmabuf cannot be used") && !text.contains("rm: "),
        "{text}"
    );
}

/// Writes a profile of the simulated GPU into the state folder `state`, so that copies of 4 KiB and more take this
/// path.
fn write_profile(state: &Path, path: CopyPath) {
    let gpu = Gpu::open(SimDriver::new(1), Ordinal(0)).expect("a simulated GPU");
    let buffer = gpu.allocate(MemoryKind::Plain, 1 << 16).expect("memory");
    let context = Context::open_for(&gpu).expect("a context");
    let pinned = context.pin(buffer.ptr(), buffer.len()).expect("a pin");
    let key = profile_key(&gpu, &pinned.map().expect("a mapping"));
    let mut calibration = Calibration::new();
    for direction in CopyDirection::ALL {
        for (path, fixed, per_byte) in [(CopyPath::ONE_THREAD, 0.0, 1.0), (path, 4000.0, 0.01)] {
            let host = HostMemory::Pageable;
            let points = [64, 4096, 1 << 20].map(|len| CostPoint {
                len,
                ns: fixed + per_byte * len as f64,
            });
            let series = Series {
                direction,
                host,
                path,
            };
            calibration.set(series, CostCurve::new(points).expect("a curve"));
        }
    }
    let profile = Profile { key, calibration };
    let store = ProfileStore::at(state.join("gdr/copy"));
    store.save(&profile).expect("a file");
}

/// Returns the variables with which reads of 4 KiB and more go through the copy engine. `state` is the state folder.
fn by_the_copy_engine(state: &Path) -> [(&str, &str); 3] {
    write_profile(state, CopyPath::CopyEngine);
    [
        ("XDG_STATE_HOME", state.to_str().expect("a path")),
        ("GDRCOPY_ENABLE_LOGGING", "1"),
        ("GDRCOPY_LOG_LEVEL", "1"),
    ]
}

/// Returns how many bytes the copy engine copied through the mapping that was unmapped last.
fn last_bytes_by_engine(log: &str) -> u64 {
    let line = log
        .lines()
        .rfind(|line| line.contains("were read by the copy engine"));
    let words = line.expect("a mapping with long copies").split(' ');
    let number = words.filter_map(|word| word.parse().ok()).next();
    number.expect("a number")
}

#[test]
fn long_copies_keep_what_is_promised_of_copies_in_handlers_and_children() {
    let cc = compiler("CC", "cc").expect("a C compiler: set CC, or install cc");
    let folder = installed();
    let state = tempfile::tempdir().expect("a folder");
    let mut variables = by_the_copy_engine(state.path()).to_vec();
    // Long loads from a simulated GPU take as long as over PCIe.
    variables.push(("GDR_TEST_ROUNDS", "100"));
    for source in [
        "interrupted.c",
        "jumps.c",
        "forked.c",
        "races.c",
        "loaded.c",
    ] {
        let program = compile(&cc, "gnu11", source, folder.path());
        let output = run(&program, folder.path(), &variables);
        assert_success(source, &output);
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(log.contains("long copies"), "{source}: {log}");
    }
}

#[test]
fn long_copies_may_be_left_and_interrupted_and_the_copy_engine_is_of_use_afterwards() {
    let cc = compiler("CC", "cc").expect("a C compiler: set CC, or install cc");
    let folder = installed();
    let state = tempfile::tempdir().expect("a folder");
    let variables = by_the_copy_engine(state.path());
    let program = compile(&cc, "gnu11", "long_left.c", folder.path());
    let output = run(&program, folder.path(), &variables);
    assert_success("long_left.c", &output);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(last_bytes_by_engine(&log) > 0, "{log}");
    // It maps many times.
    let read = log.matches("costs of copies").count();
    assert_eq!(read, 1, "a profile is read once in a process: {log}");
}

#[test]
fn long_copies_on_every_path_are_exact_and_those_of_threads_do_not_mix() {
    let cc = compiler("CC", "cc").expect("a C compiler: set CC, or install cc");
    let folder = installed();
    let state = tempfile::tempdir().expect("a folder");
    let three = NonZeroU16::new(3).expect("not 0");
    for (mode, threads, path, allocated) in [
        ("auto", "1", CopyPath::CopyEngine, "1048576"),
        // The last page of the pin extends beyond it.
        ("auto", "1", CopyPath::CopyEngine, "1000000"),
        ("auto", "3", CopyPath::cpu(three), "1048576"),
        ("cpu", "3", CopyPath::cpu(three), "1048576"),
    ] {
        write_profile(state.path(), path);
        let variables = [
            ("GDR_COPY", mode),
            ("GDR_COPY_THREADS", threads),
            ("GDR_SIM_BYTES", allocated),
            ("XDG_STATE_HOME", state.path().to_str().expect("a path")),
            ("GDRCOPY_ENABLE_LOGGING", "1"),
            ("GDRCOPY_LOG_LEVEL", "2"),
        ];
        for source in ["long.c", "good.c"] {
            let program = compile(&cc, "gnu11", source, folder.path());
            let output = run(&program, folder.path(), &variables);
            assert_success(source, &output);
            let log = String::from_utf8_lossy(&output.stderr);
            assert!(log.contains("long copies"), "{mode} {source}: {log}");
        }
    }
}

#[test]
fn copies_are_long_unless_the_environment_leaves_them_to_the_calling_thread() {
    let cc = compiler("CC", "cc").expect("a C compiler: set CC, or install cc");
    let folder = installed();
    let state = tempfile::tempdir().expect("a folder");
    write_profile(state.path(), CopyPath::CopyEngine);
    let program = compile(&cc, "gnu11", "long.c", folder.path());
    let common = [
        ("XDG_STATE_HOME", state.path().to_str().expect("a path")),
        ("GDRCOPY_ENABLE_LOGGING", "1"),
        ("GDRCOPY_LOG_LEVEL", "2"),
    ];
    for (mode, are_long) in [(None, true), (Some(("GDR_COPY", "cpu")), false)] {
        let variables: Vec<_> = common.into_iter().chain(mode).collect();
        let output = run(&program, folder.path(), &variables);
        assert_success("long.c", &output);
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(log.contains("long copies"), are_long, "{mode:?}: {log}");
    }
}
