//! The file in which a process reports how far it came with devices. In a test binary of its own, because it changes
//! the environment.

#![allow(clippy::unwrap_used)]

#[path = "library/built.rs"]
mod built;
#[allow(dead_code, reason = "the other test binaries use the rest")]
#[path = "library/child.rs"]
mod child;
#[allow(dead_code, reason = "the other test binaries use the rest")]
#[path = "library/side.rs"]
mod side;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use child::Child;
use gdr_verbs_sys::ibv_qp_type;
use side::Side;

/// Returns what each process has written.
fn written(folder: &Path) -> BTreeMap<i32, String> {
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    files
        .map(|file| {
            assert_eq!(file.extension().unwrap(), "use");
            let name = file.file_name().unwrap().to_str().unwrap();
            let pid = name.split('-').next().unwrap().parse().unwrap();
            (pid, fs::read_to_string(&file).unwrap())
        })
        .collect()
}

#[test]
fn each_process_says_how_far_it_came_however_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    // SAFETY: this is the only test of this binary, so nothing else reads its environment at the same time.
    unsafe { std::env::set_var("GDR_VERBS_USE", folder.path()) };
    let exits = Child::fork(|| {
        let _side = Side::new(ibv_qp_type::IBV_QPT_RC);
        // SAFETY: ends the child with the functions that the library has registered.
        unsafe { libc::exit(0) }
    });
    let exited = exits.0;
    assert_eq!(exits.wait(), 0);
    let killed = Child::fork(|| {
        let _side = Side::new(ibv_qp_type::IBV_QPT_RC);
        // SAFETY: ends this child.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    });
    let number = killed.0;
    assert_eq!(killed.wait(), libc::SIGKILL);
    // A process that uses no device writes no file.
    let idle = Child::fork(|| {});
    let silent = idle.0;
    assert_eq!(idle.wait(), 0);
    let written = written(folder.path());
    assert!(!written.contains_key(&silent));
    for pid in [exited, number] {
        let steps: Vec<_> = written[&pid].lines().collect();
        for step in ["opened", "queue-pair"] {
            assert!(steps.contains(&step), "{steps:?}");
        }
        let counted = steps.iter().any(|line| line.starts_with("bytes "));
        assert_eq!(counted, pid == exited, "{steps:?}");
    }
}
