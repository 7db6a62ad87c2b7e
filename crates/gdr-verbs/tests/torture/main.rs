//! Random calls, valid and invalid, by several threads that share handles, including stale ones, with forks in between.
//! Nothing may crash, hang or grow. The program runs as a process of its own, with the library preloaded as `gdr run`
//! does.
//!
//! `GDR_TORTURE_SECONDS` sets the duration of every run, and `GDR_TORTURE_SEED` repeats a run.

#![allow(clippy::unwrap_used)]

#[path = "../library/built.rs"]
mod built;
mod calls;
mod handles;
mod random;
mod requests;
#[path = "../contracts/verbs.rs"]
#[allow(dead_code, reason = "the other test binary uses the rest")]
mod verbs;

/// The functions of the preloaded library.
mod side {
    use std::ffi::{CStr, c_void};

    /// Returns the address of a function by its name.
    pub(crate) fn function(name: &CStr) -> *mut c_void {
        // SAFETY: a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?}");
        found
    }
}

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::process::Command;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use skip::skip;

use crate::built::libraries;
use crate::calls::Caller;
use crate::random::Random;

const SECONDS: &str = "GDR_TORTURE_SECONDS";
const SEED: &str = "GDR_TORTURE_SEED";
const THREADS: &str = "GDR_TORTURE_THREADS";
/// How much the program may grow after a third of its time, in KiB: handles stay unused for a while, and queues reach
/// their largest sizes at different times.
const GROWTH: u64 = 48 << 10;
/// How long the program may exceed its time. Under valgrind everything is slow.
const SILENCE: Duration = Duration::from_secs(120);

fn variable<T: FromStr>(name: &str) -> Option<T> {
    env::var(name).ok()?.parse().ok()
}

/// The options of a run of the program.
struct Run<'a> {
    seconds: u64,
    threads: u32,
    /// The libraries to preload, in this order.
    preload: &'a [&'a str],
    /// A program that runs it, with arguments.
    under: &'a [&'a str],
}

impl Run<'_> {
    /// Runs the program, which must end without an error.
    fn check(&self) {
        let seed = variable(SEED).unwrap_or_else(|| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            now.as_nanos() as u64
        });
        let seconds = variable(SECONDS).unwrap_or(self.seconds);
        let own = env::current_exe().unwrap();
        let mut words: Vec<&OsStr> = self.under.iter().map(OsStr::new).collect();
        words.push(own.as_os_str());
        let preload: Vec<_> = self.preload.iter().map(|file| path_of(file)).collect();
        let preload = preload.join(OsStr::new(":"));
        let folder = tempfile::tempdir().unwrap();
        let mut program = Command::new(words[0]);
        program
            .args(&words[1..])
            .args(["--exact", "program", "--ignored", "--nocapture"])
            .env("LD_PRELOAD", preload)
            .env("GDR_NICS", "127.77.0.2")
            .env("GDR_ONLY_SOFT", "1")
            .env("GDR_TRACE_FOLDER", folder.path())
            .env(SECONDS, seconds.to_string())
            .env(THREADS, self.threads.to_string())
            .env(SEED, seed.to_string());
        let status = program.status().unwrap();
        assert!(status.success(), "{status}; {SEED}={seed}");
    }
}

fn path_of(file: &str) -> OsString {
    libraries().join(file).into_os_string()
}

const ALONE: [&str; 1] = ["libgdr-verbs.so"];

#[test]
fn one_thread_calls_anything() {
    Run {
        seconds: 4,
        threads: 1,
        preload: &ALONE,
        under: &[],
    }
    .check();
}

#[test]
fn four_threads_call_anything_with_the_same_handles() {
    Run {
        seconds: 5,
        threads: 4,
        preload: &ALONE,
        under: &[],
    }
    .check();
}

#[test]
fn threads_call_anything_with_a_trace_in_front() {
    Run {
        seconds: 3,
        threads: 2,
        preload: &["libgdr-verbs-trace.so", "libgdr-verbs.so"],
        under: &[],
    }
    .check();
}

#[test]
fn valgrind_sees_no_access_to_memory_that_is_not_there() {
    let has_valgrind = Command::new("valgrind").arg("--version").output();
    if !has_valgrind.is_ok_and(|output| output.status.success()) {
        return skip("there is no valgrind");
    }
    let under = [
        "valgrind",
        "--quiet",
        "--error-exitcode=99",
        "--leak-check=no",
        "--trace-children=no",
        "--child-silent-after-fork=yes",
        "--fair-sched=yes",
    ];
    Run {
        seconds: 4,
        threads: 2,
        preload: &ALONE,
        under: &under,
    }
    .check();
}

/// Returns the resident memory of this process in KiB.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.unwrap().trim().strip_suffix("kB").unwrap().trim();
    number.parse().unwrap()
}

/// Forks a child that makes calls with handles of its parent and with its own; returns its status.
fn fork(seed: u64, calls: u32) -> i32 {
    let mut status = 0;
    // SAFETY: the child calls the library, which this tests, and the C library's allocator, which may be used after a
    // fork. It leaves by `_exit`.
    unsafe {
        match libc::fork() {
            0 => {
                // A signal ends a child that hangs.
                libc::alarm(60);
                let mut caller = Caller::new(Random::new(seed));
                (0..calls).for_each(|_| caller.call());
                libc::_exit(0);
            }
            child => {
                assert!(child > 0);
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
            }
        }
    }
    status
}

/// Ends the program if no thread has made a call for a long time.
fn watch(calls: &AtomicU64, ended: &AtomicBool) {
    let (mut last, mut since) = (0, Instant::now());
    while !ended.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(20));
        let now = calls.load(Ordering::Relaxed);
        if now != last {
            (last, since) = (now, Instant::now());
        }
        if since.elapsed() > SILENCE {
            eprintln!(
                "no call has returned for {SILENCE:?}: {:?}",
                calls::latest()
            );
            std::process::abort();
        }
    }
}

/// Runs the random calls.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn program() {
    let (Some(seed), Some(seconds)) = (variable::<u64>(SEED), variable::<u64>(SECONDS)) else {
        return skip("it is run by the other tests");
    };
    let threads: u32 = variable(THREADS).unwrap_or(1);
    // valgrind preloads libraries of its own, and its memory counts as the program's.
    let preload = env::var("LD_PRELOAD").unwrap_or_default();
    let under_valgrind = preload.contains("vgpreload");
    println!("{SEED}={seed}, {threads} threads, {seconds} seconds");
    // A forked child must not wait for a thread of its parent that resolves functions.
    verbs::resolve();
    calls::prepare();
    let (calls, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    let begin = Instant::now();
    let whole = Duration::from_secs(seconds);
    let (mut forks, mut grown) = (0_u32, None);
    let running = AtomicU32::new(threads);
    thread::scope(|scope| {
        for thread in 0..threads {
            let (calls, ended, running) = (&calls, &ended, &running);
            scope.spawn(move || {
                let mut caller = Caller::new(Random::new(seed.wrapping_add(thread.into())));
                while begin.elapsed() < whole {
                    caller.call();
                    calls.fetch_add(1, Ordering::Relaxed);
                }
                // The last thread ends the watch.
                if running.fetch_sub(1, Ordering::Relaxed) == 1 {
                    ended.store(true, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| watch(&calls, &ended));
        while begin.elapsed() < whole {
            thread::sleep(Duration::from_millis(100));
            let calls_of_child = if under_valgrind { 20 } else { 300 };
            let status = fork(seed ^ u64::from(forks), calls_of_child);
            assert_eq!(
                status,
                0,
                "a child ended so; the last calls: {:?}",
                calls::latest()
            );
            forks += 1;
            if grown.is_none() && begin.elapsed() > whole / 3 {
                grown = Some(resident());
            }
        }
    });
    let (then, now) = (grown.unwrap_or_else(resident), resident());
    println!(
        "{} calls ({} succeeded) and {forks} forks in {:.1} s; {then} and {now} KiB",
        calls.load(Ordering::Relaxed),
        calls::succeeded(),
        begin.elapsed().as_secs_f64(),
    );
    assert!(
        under_valgrind || now < then + GROWTH,
        "{then} KiB grew to {now}"
    );
}
