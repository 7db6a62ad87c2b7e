//! The coordinator of a mesh, with ranks that answer as a test says.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use gdr_perf::mesh::{self, MeshReport, MeshSettings, OutlierSubject, PROTOCOL_VERSION, RankSide};
use gdr_perf::{Error, SettingsError};
use gdr_rdma::{Deadline, Listener, Security, Session};
use serde_json::{Value, json};

const SECURITY: &Security = &Security::Loopback;
/// Far longer than any step takes, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn soon() -> Deadline {
    Deadline::after(LIMIT)
}

fn listener() -> (Listener, SocketAddr) {
    let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let listener = Listener::bind(any).unwrap();
    let address = listener.address().unwrap();
    (listener, address)
}

fn settings() -> MeshSettings {
    MeshSettings {
        meet_within: LIMIT,
        timeout: LIMIT,
        ..MeshSettings::default()
    }
}

fn coordinate(
    listener: &Listener,
    ranks: usize,
    settings: &MeshSettings,
) -> Result<MeshReport, Error> {
    mesh::coordinate(listener, SECURITY, ranks, settings, &mut |_| {
        ControlFlow::Continue(())
    })
}

fn send(session: &mut Session, message: &Value) {
    let text = message.to_string();
    session.send(text.as_bytes(), soon()).unwrap();
}

fn receive(session: &mut Session) -> Result<Value, gdr_rdma::Error> {
    let bytes = session.receive(soon())?;
    Ok(serde_json::from_slice(&bytes).unwrap())
}

/// Returns the first message of a rank.
fn introduction(rank: usize, ranks: usize) -> Value {
    json!({
        "message": "join", "version": PROTOCOL_VERSION, "rank": rank, "ranks": ranks,
        "host": format!("node{rank}"), "device": "mlx5_0", "gpu": null, "simulated": false,
        "listens": "127.0.0.1:1",
    })
}

fn join(coordinator: SocketAddr, message: &Value) -> Session {
    let mut session = Session::connect(coordinator, SECURITY, soon()).unwrap();
    send(&mut session, message);
    session
}

/// Runs a rank that answers each message with what `answer` makes of it, up to the end.
fn rank(coordinator: SocketAddr, introduction: &Value, answer: impl Fn(&Value) -> Value) -> Value {
    let mut session = join(coordinator, introduction);
    loop {
        let message = receive(&mut session).unwrap();
        if message["message"] == "end" {
            return message;
        }
        send(&mut session, &answer(&message));
    }
}

/// Returns what a rank answers that writes at a rate, and whose doctor finds what `findings` says.
fn answer(message: &Value, bytes_per_second: u64, findings: &Value) -> Value {
    match message["message"].as_str().unwrap() {
        "write" => json!({"message": "done", "bytes_per_second": bytes_per_second}),
        "serve" => json!({"message": "done", "bytes_per_second": null}),
        "diagnose" => json!({"message": "findings", "findings": findings}),
        other => panic!("{other}"),
    }
}

#[test]
fn a_rank_that_sends_slowly_is_an_outlier_with_what_its_doctor_finds() {
    let (listener, address) = listener();
    let finding = json!({
        "check": "link.width", "summary": "4 of 16 lanes\u{1b}[31m", "fix": "reseat it",
    });
    let report = thread::scope(|scope| {
        let ranks: Vec<_> = (0..4)
            .map(|number| {
                let finding = &finding;
                scope.spawn(move || {
                    let (rate, findings) = match number {
                        2 => (1_000_000, json!([finding])),
                        _ => (1_000_000_000, json!([])),
                    };
                    let answer = |message: &Value| answer(message, rate, &findings);
                    rank(address, &introduction(number, 4), answer)
                })
            })
            .collect();
        let report = coordinate(&listener, 4, &settings()).unwrap();
        for rank in ranks {
            assert_eq!(rank.join().unwrap()["passed"], false);
        }
        report
    });
    assert_eq!(report.cells.len(), 12);
    let [outlier] = &report.outliers[..] else {
        panic!("{:?}", report.outliers);
    };
    let subject = OutlierSubject::Rank {
        rank: 2,
        side: RankSide::Outgoing,
        affected: 3,
        of: 3,
    };
    assert_eq!(outlier.subject, subject);
    let [answer] = &outlier.doctor[..] else {
        panic!("{outlier:?}");
    };
    assert_eq!((answer.rank, answer.host.as_str()), (2, "node2"));
    assert_eq!(answer.findings[0].check, "link.width");
    // Texts from a rank can be printed.
    let summary = &answer.findings[0].summary;
    assert!(
        summary.starts_with("4 of 16 lanes") && !summary.contains('\u{1b}'),
        "{summary}"
    );
}

#[test]
fn without_an_outlier_no_doctor_is_asked_and_every_rank_passes() {
    let (listener, address) = listener();
    let report = thread::scope(|scope| {
        let ranks: Vec<_> = (0..3)
            .map(|number| {
                scope.spawn(move || {
                    let answer = |message: &Value| {
                        assert_ne!(message["message"], "diagnose");
                        answer(message, 1_000_000_000, &json!([]))
                    };
                    rank(address, &introduction(number, 3), answer)
                })
            })
            .collect();
        let report = coordinate(&listener, 3, &settings()).unwrap();
        for rank in ranks {
            assert_eq!(rank.join().unwrap()["passed"], true);
        }
        report
    });
    assert!(report.passed && report.outliers.is_empty(), "{report:?}");
    assert!(report.cells.iter().all(|cell| cell.gb_per_s() == Some(1.0)));
}

#[test]
fn without_judging_rates_a_slow_rank_passes_and_a_failed_direction_does_not() {
    for (fails, passes) in [(false, true), (true, false)] {
        let (listener, address) = listener();
        let settings = MeshSettings {
            least: 0.0,
            ..settings()
        };
        let report = thread::scope(|scope| {
            for number in 0..3_u64 {
                scope.spawn(move || {
                    let answer = |message: &Value| match message["message"].as_str() {
                        Some("write") if fails && number == 1 => {
                            json!({"message": "failed", "reason": "wrong bytes"})
                        }
                        _ => answer(message, 1 + number * 1_000_000_000, &json!([])),
                    };
                    rank(address, &introduction(number as usize, 3), answer)
                });
            }
            coordinate(&listener, 3, &settings).unwrap()
        });
        assert_eq!(report.passed, passes, "{report:?}");
        let reasons = report.outliers.iter().filter_map(|it| it.reason.as_deref());
        let expected: &[&str] = if fails { &["rank 1: wrong bytes"] } else { &[] };
        assert_eq!(reasons.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn ranks_that_do_not_belong_to_the_mesh_are_refused_with_the_remedy() {
    let (listener, address) = listener();
    let other = |field: &str, value: Value| {
        let mut message = introduction(1, 2);
        message[field] = value;
        message
    };
    let version = PROTOCOL_VERSION + 1;
    let cases = [
        (other("version", json!(version)), "use one version of gdr"),
        (other("ranks", json!(3)), "start all with one number"),
        (other("rank", json!(2)), "start all with one number"),
        (other("rank", json!(0)), "start each rank once"),
    ];
    thread::scope(|scope| {
        let coordinating = scope.spawn(|| coordinate(&listener, 2, &settings()));
        let healthy = |message: &Value| answer(message, 1_000_000_000, &json!([]));
        let mut first = join(address, &introduction(0, 2));
        for (message, words) in cases {
            let mut session = join(address, &message);
            let refusal = receive(&mut session).unwrap_err().to_string();
            assert!(refusal.contains(words), "{words}: {refusal}");
        }
        // The mesh continues with the right rank.
        scope.spawn(move || rank(address, &introduction(1, 2), healthy));
        loop {
            let message = receive(&mut first).unwrap();
            if message["message"] == "end" {
                break;
            }
            send(&mut first, &healthy(&message));
        }
        assert!(coordinating.join().unwrap().unwrap().passed);
    });
}

#[test]
fn strangers_that_connect_and_say_nothing_or_something_else_do_not_fail_a_mesh() {
    let (listener, address) = listener();
    let stranger = || Session::connect(address, SECURITY, soon()).unwrap();
    let report = thread::scope(|scope| {
        let coordinating = scope.spawn(|| coordinate(&listener, 2, &settings()));
        // In sequence they would take longer than the ranks have to meet.
        let silent: Vec<Session> = (0..20).map(|_| stranger()).collect();
        drop(stranger());
        let mut other = stranger();
        send(&mut other, &json!({"hello": {"version": 1}}));
        for number in 0..2 {
            let healthy = |message: &Value| answer(message, 1_000_000_000, &json!([]));
            scope.spawn(move || rank(address, &introduction(number, 2), healthy));
        }
        let report = coordinating.join().unwrap().unwrap();
        drop(silent);
        report
    });
    assert!(report.passed && report.absent.is_empty(), "{report:?}");
}

#[test]
fn settings_that_judge_nothing_right_are_refused_before_anything_is_awaited() {
    let (listener, _) = listener();
    let refused = |ranks: usize, change: fn(&mut MeshSettings)| {
        let mut settings = settings();
        change(&mut settings);
        coordinate(&listener, ranks, &settings).unwrap_err()
    };
    type Case = (usize, fn(&mut MeshSettings), &'static str);
    let cases: [Case; 6] = [
        (2, |it| it.size = 0, "0 bytes"),
        (
            2,
            |it| it.size = 1 << 40,
            "larger than the registered memory",
        ),
        (2, |it| it.least = 1.5, "to 1 (100%)"),
        (2, |it| it.least = f64::NAN, "to 1 (100%)"),
        (1, |_| (), "use 2 to 4096"),
        (5000, |_| (), "use 2 to 4096"),
    ];
    for (ranks, change, words) in cases {
        let error = refused(ranks, change);
        assert!(matches!(error, Error::Settings(_)), "{error}");
        assert!(error.to_string().contains(words), "{words}: {error}");
    }
    let least = refused(2, |it| it.least = -0.1);
    assert!(
        matches!(least, Error::Settings(SettingsError::LeastPart(_))),
        "{least}"
    );
}
