//! Children forked while other threads query the loader.
//!
//! A test binary of its own, because it forks.

#![allow(missing_docs, reason = "a test")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use forked::{check, status_of};
use gdr_process::LoadedLibrary;

const THREADS: usize = 4;
const FORKS: usize = 600;

#[test]
fn a_child_that_is_forked_during_a_question_can_load_libraries() {
    static ABSENT: LoadedLibrary = LoadedLibrary::new("libgdr-no-such-library.so");
    let stop = AtomicBool::new(false);
    let mut failed = Vec::new();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert!(!ABSENT.is_loaded());
                }
            });
        }
        for number in 0..FORKS {
            let status = status_of(|| {
                // SAFETY: a NUL-terminated string; no such library exists, so no initializer runs.
                let loaded = unsafe { libc::dlopen(c"libgdr-none.so".as_ptr(), libc::RTLD_NOW) };
                check(loaded.is_null() && !ABSENT.is_loaded(), "it is loaded")
            });
            if status != 0 {
                failed.push((number, status));
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(failed, []);
}
