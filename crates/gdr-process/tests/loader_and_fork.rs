//! Children that are forked while other threads ask the loader.
//!
//! A program of its own: it forks.

#![allow(missing_docs, reason = "a test")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use gdr_process::LoadedLibrary;

const THREADS: usize = 4;
const FORKS: usize = 600;
/// A child that takes so many seconds waits for a lock.
const LIMIT: u32 = 10;

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
            // SAFETY: the child loads a library, and leaves by `_exit`.
            match unsafe { libc::fork() } {
                0 => {
                    // SAFETY: it ends a child that hangs.
                    unsafe { libc::alarm(LIMIT) };
                    // SAFETY: a C string; there is no such library.
                    let loaded =
                        unsafe { libc::dlopen(c"libgdr-none.so".as_ptr(), libc::RTLD_NOW) };
                    let works = loaded.is_null() && !ABSENT.is_loaded();
                    // SAFETY: ends the child.
                    unsafe { libc::_exit(i32::from(!works)) }
                }
                child => {
                    let mut status = 0;
                    // SAFETY: our own child.
                    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                    if status != 0 {
                        failed.push((number, status));
                        break;
                    }
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(failed, []);
}
