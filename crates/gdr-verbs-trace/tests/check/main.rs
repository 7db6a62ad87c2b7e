//! Rules of `gdr check`: for each, a program with the bug, and its twin without, which stays silent.
//!
//! A program is a function of this test binary, which runs again as a child with the installed form of the libraries.
//! All programs use the C interface.

#![allow(clippy::unwrap_used)]

#[path = "../../../gdr-verbs/tests/library/built.rs"]
mod built;
mod link;
mod programs;
mod shared_queue;

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use gdr_check::{Found, Rule, Severity};

use built::libraries;
use programs::{PROGRAMS, Twin};

/// Names the program that a child runs.
const PROGRAM: &str = "GDR_CHECK_TEST_PROGRAM";
/// Deadline of a program. Each takes a small fraction of it.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns what is found in a program.
fn findings(rule: Rule, twin: Twin) -> Vec<Found> {
    let folder = tempfile::tempdir().unwrap();
    let (found, counts) = (folder.path().join("found"), folder.path().join("counts"));
    fs::create_dir(&found).unwrap();
    fs::create_dir(&counts).unwrap();
    let verbs = libraries();
    let preload = format!(
        "{0}/libgdr-verbs-trace.so:{0}/libgdr-verbs.so",
        verbs.display()
    );
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "a_program_of_another_test",
            "--nocapture",
        ])
        .env(PROGRAM, format!("{} {twin:?}", rule.id()))
        .env("GDR_CHECK_FOLDER", &found)
        .env("GDR_TRACE_FOLDER", &counts)
        .env("GDR_NICS", "127.77.0.9")
        .env("GDR_ONLY_SOFT", "1")
        .env("LD_PRELOAD", preload)
        .env("LD_LIBRARY_PATH", verbs.join("shadow"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + LIMIT;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() < until => thread::sleep(Duration::from_millis(5)),
            None => {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("{rule} {twin:?} does not end");
            }
        }
    };
    assert!(status.success(), "{rule} {twin:?}: {status}");
    let mut all = Vec::new();
    for file in fs::read_dir(&found).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        all.extend(
            text.lines()
                .map(|it| serde_json::from_str::<Found>(it).unwrap()),
        );
    }
    all
}

/// A child runs one of these programs.
#[test]
#[ignore = "it is run by the other tests"]
fn a_program_of_another_test() {
    let Ok(name) = std::env::var(PROGRAM) else {
        return;
    };
    let (rule, twin) = name.split_once(' ').unwrap();
    let twin = match twin {
        "Wrong" => Twin::Wrong,
        _ => Twin::Right,
    };
    let rule = Rule::from_id(rule).unwrap();
    let (_, program) = PROGRAMS.iter().find(|(known, _)| *known == rule).unwrap();
    program(twin);
}

#[test]
fn each_rule_finds_its_bug_with_the_stack_of_the_call() {
    for (rule, _) in PROGRAMS {
        let found = findings(*rule, Twin::Wrong);
        let own = found.iter().find(|it| it.rule == *rule);
        let own = own.unwrap_or_else(|| panic!("{rule} is not found: {found:#?}"));
        // What is still there at the end has no place.
        assert_eq!(own.places.is_empty(), *rule == Rule::Leaked, "{own:?}");
        for place in &own.places {
            let binary = std::env::current_exe().unwrap();
            let first = &place.frames[0].object;
            assert_eq!(*first, binary.to_string_lossy(), "{own:#?}");
        }
        let others: Vec<_> = found
            .iter()
            .filter(|it| it.rule != *rule && it.rule.severity() > Severity::Note)
            .collect();
        assert!(others.is_empty(), "{rule} alone: {others:#?}");
    }
}

#[test]
fn a_program_without_the_bug_is_silent() {
    for (rule, _) in PROGRAMS {
        let mut found = findings(*rule, Twin::Right);
        found.retain(|it| it.rule.severity() > Severity::Note || it.rule == *rule);
        assert!(found.is_empty(), "{rule}: {found:#?}");
    }
}

#[test]
fn a_finding_is_there_in_ten_of_ten_runs() {
    for (rule, _) in PROGRAMS {
        let find = || findings(*rule, Twin::Wrong);
        let runs = thread::scope(|scope| {
            let runs: Vec<_> = (0..10).map(|_| scope.spawn(find)).collect();
            runs.into_iter().map(|run| run.join()).collect::<Vec<_>>()
        });
        for found in runs {
            assert!(found.unwrap().iter().any(|it| it.rule == *rule), "{rule}");
        }
    }
}

#[test]
fn every_rule_has_a_program() {
    for rule in Rule::ALL {
        assert!(PROGRAMS.iter().any(|(known, _)| known == rule), "{rule}");
    }
}
