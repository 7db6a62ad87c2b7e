//! `gdr run --chaos` and `gdr chaos`: what they read, what they say of what struck, and their statuses. The devices
//! are played by a shell.

use std::fs;
use std::process::Output;

use snapshot::assert_contains;

use super::preloaded::command;
use super::{code, stderr, stdout};

/// Runs `gdr` with these arguments and a script as the program.
fn ended(arguments: &[&str], script: &str) -> Output {
    let mut command = command(arguments);
    command.args(["--", "sh", "-c", script]).output().unwrap()
}

/// Returns a script that opens a device and is struck by these rules.
fn struck(rules: &[(usize, &str)]) -> String {
    let mut script = "echo 'gdr-chaos: begun @ pid=7 device=soft' >> $GDR_CHAOS_LOG;".to_owned();
    for (rule, fault) in rules {
        let line = format!("gdr-chaos: rule={rule} {fault} qp=0 op=3 @ pid=7 t=0.5 qpn=0x11");
        script += &format!(" echo '{line}' >> $GDR_CHAOS_LOG;");
    }
    script
}

#[test]
fn what_struck_is_printed_with_how_to_replay_it() {
    let arguments = ["run", "--chaos", "drop p=1%; hang op=3", "--seed", "9"];
    let output = ended(&arguments, &struck(&[(0, "drop"), (1, "hang")]));
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(
        stderr(&output),
        "gdr-chaos: rule=0 drop qp=0 op=3 @ pid=7 t=0.5 qpn=0x11\n\
         gdr-chaos: rule=1 hang qp=0 op=3 @ pid=7 t=0.5 qpn=0x11\n\
         gdr-chaos: 2 faults struck in 1 devices; replay: --chaos 'seed=9; drop times=1 p=1%; hang op=3'\n\
         gdr-chaos:        1 x rule 1: drop times=1 p=1%\n\
         gdr-chaos:        1 x rule 2: hang op=3\n"
    );
}

#[test]
fn a_log_keeps_all_lines_and_none_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let arguments = [
        "run",
        "--chaos",
        "drop p=1%",
        "--chaos-log",
        log.to_str().unwrap(),
    ];
    let output = ended(&arguments, &struck(&[(0, "drop")]));
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(!stderr(&output).contains("rule=0"), "{}", stderr(&output));
    assert_eq!(fs::read_to_string(log).unwrap().lines().count(), 2);
}

#[test]
fn a_scenario_that_is_not_applied_is_an_error() {
    let chance = struck(&[]);
    for (scenario, script, status, part) in [
        (
            "drop p=1%",
            "true",
            120,
            "no process opened one of gdr's devices",
        ),
        ("drop p=1%", chance.as_str(), 0, "0 x rule 1"),
        (
            "drop p=1%; hang op=9",
            chance.as_str(),
            120,
            "rule 2 (hang) never struck",
        ),
        // The program's own status counts more.
        ("hang op=9", "exit 7", 7, "0 x rule 1"),
        (
            "drop p=2",
            "true",
            64,
            "--chaos: rule 1, key `p`: `2` is not a share",
        ),
        ("none.toml", "true", 64, "--chaos none.toml: No such file"),
    ] {
        let output = ended(&["run", "--chaos", scenario], script);
        assert_eq!(code(&output), status, "{scenario}: {}", stderr(&output));
        assert_contains!(stderr(&output), part, "{scenario}");
    }
}

#[test]
fn a_file_is_read_and_its_errors_name_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("faults.toml");
    let file = path.to_str().unwrap();
    fs::write(&path, "seed = 5\n[[fault]]\nkind = \"hang\"\nop = 3\n").unwrap();
    let output = ended(&["run", "--chaos", file], &struck(&[(0, "hang")]));
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stderr(&output).contains("--chaos 'seed=5; hang op=3'"));
    fs::write(&path, "[[fault]]\nkind = \"hang\"\nby = \"1s\"\n").unwrap();
    let output = ended(&["run", "--chaos", file], "true");
    assert_eq!(code(&output), 64);
    let expected = "line 3, rule 1, key `by`: `hang` has no such key";
    assert_contains!(stderr(&output), expected);
}

#[test]
fn the_rules_that_a_failure_needs_are_left() {
    let scenario = "drop p=1%; hang p=1%; late by=1ms p=1%; corrupt p=1%";
    // It fails if two rules are there, and hangs with the third seed.
    let script = format!(
        "{} case \"$GDR_CHAOS\" in seed=3*late*) sleep 100;; *hang*corrupt*) exit 3;; esac",
        struck(&[])
    );
    let arguments = [
        "chaos",
        "--fuzz",
        "3",
        "--deadline",
        "1",
        "--chaos",
        scenario,
    ];
    let output = ended(&arguments, &script);
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    assert_eq!(
        stdout(&output),
        "seed 1: fails with status 3: --chaos 'seed=1; hang p=1%; corrupt p=1%'\n\
         seed 2: fails with status 3: --chaos 'seed=2; hang p=1%; corrupt p=1%'\n\
         seed 3: does not end in time: --chaos 'seed=3; late by=1ms jitter=0s p=1%'\n\
         0 of 3 seeds pass\n"
    );
    let output = ended(&["chaos", "--fuzz", "2"], &struck(&[]));
    assert_eq!(
        (code(&output), stdout(&output)),
        (0, "2 of 2 seeds pass\n".into())
    );
}
