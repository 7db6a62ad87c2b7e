//! Faults on command, and how each one appears to a program that uses libibverbs. Each case runs in a process of its
//! own, because the scenario belongs to the process.

#![allow(clippy::unwrap_used)]

mod bugs;
#[path = "../library/built.rs"]
mod built;
mod faults;
mod packets;
#[allow(dead_code, reason = "the other test binaries use the rest")]
#[path = "../library/side.rs"]
mod side;

use std::env;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use bugs::{BUGS, Bug, Ending, Twin};
use packets::Way;

/// The environment variable that is set in a child.
const CHILD: &str = "GDR_TEST_CHILD";

/// The result of a child.
struct Ran {
    status: ExitStatus,
    /// The contents of its log.
    log: String,
}

impl Ran {
    /// Returns the strikes without the parts that differ between runs.
    fn strikes(&self) -> Vec<&str> {
        let lines = self.log.lines().filter_map(|line| line.split_once(" @ "));
        lines
            .map(|(place, _)| place)
            .filter(|place| place.contains("rule="))
            .collect()
    }
}

/// Returns the command that runs a test of this binary in a child under a scenario and appends its log to `log`.
fn child(test: &str, scenario: &str, log: &Path) -> Command {
    let mut child = Command::new(env::current_exe().unwrap());
    child
        .args(["--exact", test, "--include-ignored", "--nocapture"])
        .env(CHILD, "1")
        .env("GDR_TEST_LIBRARIES", built::libraries())
        .env("GDR_CHAOS", scenario)
        .env("GDR_CHAOS_LOG", log)
        .env_remove("GDR_LIBIBVERBS")
        .env_remove("GDR_WIRE");
    child
}

/// Runs a test of this binary in a child under a scenario.
fn run(test: &str, scenario: &str) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let output = child(test, scenario, &log).output().unwrap();
    if output.status.code() == Some(101) {
        panic!("{}", String::from_utf8_lossy(&output.stderr));
    }
    Ran {
        status: output.status,
        log: fs::read_to_string(log).unwrap(),
    }
}

/// Runs `body` in a child under `scenario`, whose rules must strike at `places`.
fn case(test: &str, scenario: &str, places: &[&str], body: fn()) {
    if env::var_os(CHILD).is_some() {
        return body();
    }
    let ran = run(test, scenario);
    assert_eq!(ran.status.code(), Some(0), "{}", ran.log);
    // Queue pairs of different shards are struck in any order.
    let queue_pair = |strike: &&str| {
        strike
            .split(' ')
            .find(|it| it.starts_with("qp="))
            .map(str::to_owned)
    };
    let mut strikes = ran.strikes();
    strikes.sort_by_key(queue_pair);
    assert_eq!(strikes, places, "{}", ran.log);
}

/// Declares tests by name, scenario, places of the strikes, and the body of the child.
macro_rules! cases {
    ($($name:ident, $scenario:literal, [$($place:literal),* $(,)?], $body:path;)+) => {
        $(
            #[test]
            fn $name() {
                case(stringify!($name), $scenario, &[$(concat!("gdr-chaos: rule=", $place)),*], $body);
            }
        )+
    };
}

cases! {
    a_packet_that_is_lost_too_often_ends_the_connection,
        "drop times=100 op=2 qp=0 dir=out", ["0 drop qp=0 dir=out kind=write op=2 packet=2"],
        faults::the_third_write_is_not_answered;
    a_packet_that_is_lost_once_is_sent_again,
        "drop op=2 qp=0 dir=out", ["0 drop qp=0 dir=out kind=write op=2 packet=2"],
        faults::the_third_write_is_sent_again;
    a_damaged_packet_is_sent_again,
        "corrupt op=2 qp=0 dir=out", ["0 corrupt qp=0 dir=out kind=write op=2 packet=2"],
        faults::the_third_write_is_sent_again;
    a_packet_that_is_damaged_on_arrival_is_sent_again,
        "corrupt op=2 qp=1 dir=in", ["0 corrupt qp=1 dir=in kind=write op=2 packet=2"],
        faults::the_third_write_is_sent_again;
    a_packet_comes_late,
        "delay by=80ms qp=0 dir=out op=2", ["0 delay qp=0 dir=out kind=write op=2 packet=2 by=80000000ns"],
        faults::the_third_write_is_slow;
    a_packet_is_overtaken,
        "reorder by=10s qp=0 dir=out op=0 max=1",
        ["0 reorder qp=0 dir=out kind=write op=0 packet=0"],
        faults::an_unreliable_write_lacks_its_end;
    a_rate_is_kept,
        "rate limit=40K qp=0 dir=out", ["0 rate qp=0 dir=out kind=write op=0 packet=0"],
        faults::writes_are_slow_together;
    two_queue_pairs_are_reordered,
        "delay by=80ms qp=0 op=0 dir=in of=write; delay by=1ns qp=1 op=0 dir=in of=write",
        [
            "0 delay qp=0 dir=in kind=write op=0 packet=0 by=80000000ns",
            "1 delay qp=1 dir=in kind=write op=0 packet=0 by=1ns",
        ],
        faults::the_second_of_two_writes_arrives_first;
    a_message_to_a_group_is_struck_at_one_member,
        "drop qp=1 op=0 dir=in; duplicate qp=1 op=1 dir=in",
        [
            "0 drop qp=1 dir=in kind=datagram op=0 packet=0",
            "1 duplicate qp=1 dir=in kind=datagram op=1 packet=1",
        ],
        faults::one_member_of_a_group_is_struck;
    a_port_goes_down_and_comes_back,
        "link-down at=100ms for=300ms", ["0 link-down device begins", "0 link-down device ends"],
        faults::the_port_goes_down_and_comes_back;
    an_address_goes_and_comes_back,
        "gid-change at=100ms for=300ms", ["0 gid-change device begins", "0 gid-change device ends"],
        faults::the_address_goes_and_comes_back;
    a_device_fails,
        "device-fatal after=100", ["0 device-fatal device begins"],
        faults::the_device_fails;
    a_request_never_completes,
        "hang qp=0 queue=send op=2", ["0 hang qp=0 queue=send op=2"],
        faults::the_third_write_never_completes;
    a_completion_comes_late,
        "late by=80ms qp=0 queue=send op=2", ["0 late qp=0 queue=send op=2 by=80000000ns"],
        faults::the_third_completion_is_late;
    completions_come_in_bursts,
        "burst count=3 by=10s qp=0 queue=send op=0..2",
        ["0 burst qp=0 queue=send op=0", "0 burst qp=0 queue=send op=1", "0 burst qp=0 queue=send op=2"],
        faults::three_completions_come_at_once;
    a_completion_has_another_status,
        "status code=REM_OP_ERR qp=0 queue=send op=2", ["0 status qp=0 queue=send op=2 code=REM_OP_ERR"],
        faults::the_third_write_fails;
    a_message_finds_no_receive,
        "rnr qp=1 op=0 times=200", ["0 rnr qp=1 kind=send op=0"],
        faults::a_send_waits_for_a_receive;
    a_completion_queue_has_fewer_entries,
        "cq-room room=2 op=0", ["0 cq-room cq=0 room=2"],
        faults::a_queue_overruns;
    a_registration_is_refused,
        "refuse-registration op=1 errno=ENOMEM", ["0 refuse-registration registration=1 memory=host"],
        faults::the_second_registration_is_refused;
    a_registration_takes_long,
        "slow-registration op=1 by=80ms", ["0 slow-registration registration=1 memory=host"],
        faults::the_second_registration_takes_long;
    a_word_is_contended,
        "contend qp=1 op=0", ["0 contend qp=1 atomic=0"],
        faults::a_compare_and_swap_finds_another_value;
    the_last_bytes_of_a_write_come_first,
        "place order=reverse by=400ms piece=8 qp=1 op=0", ["0 place qp=1 kind=write op=0 order=reverse"],
        faults::the_last_word_is_there_before_the_first;
    the_bytes_of_a_write_come_in_pieces,
        "place order=shuffle by=400ms piece=8 qp=1 op=0", ["0 place qp=1 kind=write op=0 order=shuffle"],
        faults::some_words_are_there_before_all;
    the_bytes_of_a_write_come_at_the_end,
        "place order=late by=80ms qp=1 op=0", ["0 place qp=1 kind=write op=0 order=late"],
        faults::no_byte_is_there_for_a_while;
    the_data_of_a_read_come_at_the_end,
        "place order=late by=80ms qp=0 op=0 of=read", ["0 place qp=0 kind=read op=0 order=late"],
        faults::no_byte_that_is_read_is_there_for_a_while;
}

/// The packets are captured to a file, which shows that the copies were sent.
#[test]
fn a_packet_that_comes_four_times_is_executed_once() {
    const NAME: &str = "a_packet_that_comes_four_times_is_executed_once";
    if env::var_os(CHILD).is_some() {
        return faults::atomics_count_once();
    }
    let folder = tempfile::tempdir().unwrap();
    let [log, file] = ["log", "packets"].map(|name| folder.path().join(name));
    let mut child = child(NAME, "duplicate copies=3 qp=0 dir=out op=2", &log);
    assert!(child.env("GDR_PCAP", &file).status().unwrap().success());
    let packets = packets::of_file(&file);
    for way in [Way::Out, Way::In] {
        let of_way = packets.iter().filter(|packet| packet.way == way);
        let requests = of_way.filter(|packet| packet.opcode == packets::FETCH_ADD);
        let numbers: Vec<_> = requests.map(|packet| packet.psn).collect();
        assert_eq!(numbers, [7, 8, 9, 9, 9, 9, 10, 11], "{way:?}");
    }
}

#[test]
fn a_process_is_killed() {
    if env::var_os(CHILD).is_some() {
        return faults::write_for_long();
    }
    let ran = run("a_process_is_killed", "kill at=20ms");
    assert_eq!(ran.status.signal(), Some(libc::SIGKILL));
    assert_eq!(ran.strikes(), ["gdr-chaos: rule=0 kill device begins"]);
}

#[test]
fn a_process_is_stopped_for_a_while() {
    case(
        "a_process_is_stopped_for_a_while",
        "stop at=20ms for=300ms",
        &["gdr-chaos: rule=0 stop device begins"],
        faults::the_process_stands_still,
    );
}

/// The program has one thread, which waits for each of its requests. Which packets are retransmitted, and in which
/// order, depends on the load of the machine; the places of the strikes do not.
#[test]
fn a_seed_strikes_the_same_places_in_ten_of_ten_runs() {
    const NAME: &str = "a_seed_strikes_the_same_places_in_ten_of_ten_runs";
    if env::var_os(CHILD).is_some() {
        return faults::write_and_read_a_lot();
    }
    let scenario = |seed| {
        format!(
            "seed={seed}; drop p=3%; corrupt p=2%; reorder p=3%; duplicate p=9%; late by=50us jitter=1ms p=9%; place \
             order=shuffle by=100us p=9%"
        )
    };
    let sorted = |ran: &Ran| {
        let mut strikes: Vec<_> = ran.strikes().into_iter().map(str::to_owned).collect();
        strikes.sort();
        strikes
    };
    let first = sorted(&run(NAME, &scenario(1)));
    assert!(first.len() > 20, "{first:?}");
    for _ in 1..10 {
        let again = sorted(&run(NAME, &scenario(1)));
        let other = |strike: &&String| first.contains(strike) != again.contains(strike);
        let differing: Vec<_> = first.iter().chain(&again).filter(other).collect();
        assert!(differing.is_empty(), "{differing:#?}");
        assert_eq!(again.len(), first.len());
    }
    assert_ne!(sorted(&run(NAME, &scenario(2))), first);
}

#[test]
fn a_scenario_that_cannot_be_read_leaves_no_device() {
    const NAME: &str = "a_scenario_that_cannot_be_read_leaves_no_device";
    if env::var_os(CHILD).is_some() {
        return faults::there_is_no_domain();
    }
    let folder = tempfile::tempdir().unwrap();
    let mut child = child(NAME, "dorp p=1%", &folder.path().join("log"));
    assert!(child.status().unwrap().success());
}

/// The environment variable with the name of the bug and the version of the program, for a child.
const BUG: &str = "GDR_TEST_BUG";
const PROGRAM: &str = "a_program_of_another_test";
/// The time limit of a program that does not hang.
const DEADLINE: Duration = Duration::from_secs(60);
/// The time after which a program counts as hanging; its twin takes less than a second.
const HANGS: Duration = Duration::from_secs(3);

#[test]
#[ignore = "it is run by the other tests"]
fn a_program_of_another_test() {
    let Ok(name) = env::var(BUG) else {
        return;
    };
    let (name, twin) = name.split_once(' ').unwrap();
    let twin = match twin {
        "Wrong" => Twin::Wrong,
        _ => Twin::Right,
    };
    let bug = BUGS.iter().find(|bug| bug.name == name).unwrap();
    (bug.program)(twin);
}

/// Waits for a child; returns `None` if it had to be killed.
fn ended(mut child: Child, until: Instant) -> Option<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if Instant::now() > until {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the places in a log at which a rule has struck. A process that has just started has no log.
fn strikes(log: &Path) -> Vec<String> {
    let log = fs::read_to_string(log).unwrap_or_default();
    let places = log.lines().filter_map(|line| line.split_once(" @ "));
    let strikes = places.map(|(place, _)| place.to_owned());
    strikes.filter(|it| it.contains("rule=")).collect()
}

/// Runs a program ten times at once; returns how each run ended, and its strikes. `limit` counts from the first strike.
fn ten_runs(bug: &Bug, twin: Twin, limit: Duration) -> Vec<(Option<i32>, Vec<String>)> {
    let folder = tempfile::tempdir().unwrap();
    let mut runs: Vec<_> = (0..10)
        .map(|run| {
            let log = folder.path().join(run.to_string());
            let mut child = child(PROGRAM, bug.scenario, &log);
            child
                .env(BUG, format!("{} {twin:?}", bug.name))
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            (child.spawn().unwrap(), log)
        })
        .collect();
    // A program hangs only after a strike, which may take long on a busy machine.
    let struck_by = Instant::now() + DEADLINE;
    for (child, log) in &mut runs {
        while strikes(log).is_empty() && child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < struck_by, "{} without a fault", bug.name);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let until = Instant::now() + limit;
    let runs = runs.into_iter().map(|(child, log)| {
        let status = ended(child, until).map(|status| status.code().unwrap_or(-1));
        (status, strikes(&log))
    });
    runs.collect()
}

#[test]
fn a_bug_shows_in_ten_of_ten_runs_and_its_twin_is_silent() {
    built::libraries();
    for bug in BUGS {
        let (ending, limit) = match bug.ending {
            Ending::WrongBytes => (Some(101), DEADLINE),
            Ending::Hang => (None, HANGS),
        };
        for (status, strikes) in ten_runs(bug, Twin::Wrong, limit) {
            assert_eq!(status, ending, "{}", bug.name);
            assert!(!strikes.is_empty(), "{} without a fault", bug.name);
        }
        for (status, strikes) in ten_runs(bug, Twin::Right, DEADLINE) {
            assert_eq!(status, Some(0), "the twin of {}", bug.name);
            assert!(
                !strikes.is_empty(),
                "the twin of {} without a fault",
                bug.name
            );
        }
    }
}
