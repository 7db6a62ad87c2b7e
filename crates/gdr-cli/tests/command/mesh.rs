//! `gdr mesh`: its ranks are processes of this machine.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Stdio};

use serde_json::Value;
use snapshot::assert_contains;
use snapshot::assert_snapshot;

use super::shape::Shape;
use super::{clean, code, simulated, stderr};

/// A rank in the background.
struct Rank(Child);

impl Rank {
    fn start(arguments: &str, variables: &[(&str, String)]) -> Self {
        let mut command = super::program();
        command
            .arg("mesh")
            .args(arguments.split_whitespace())
            .args(["--simulate", "--json", "--provider", "soft"])
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// Waits until it has ended; returns its status and output.
    fn end(mut self) -> (Option<i32>, String, String) {
        let (mut text, mut errors) = (String::new(), String::new());
        self.0
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        self.0
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut errors)
            .unwrap();
        (self.0.wait().unwrap().code(), text, errors)
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the variables that a launcher gives to a rank.
fn launched(launcher: &str, rank: usize, ranks: usize) -> Vec<(&'static str, String)> {
    let (rank, ranks) = (rank.to_string(), ranks.to_string());
    match launcher {
        "slurm" => vec![
            ("SLURM_PROCID", rank.clone()),
            ("SLURM_NTASKS", ranks),
            ("SLURM_LOCALID", rank),
            ("SLURM_JOB_NODELIST", "localhost".to_owned()),
        ],
        "openmpi" => vec![
            ("OMPI_COMM_WORLD_RANK", rank.clone()),
            ("OMPI_COMM_WORLD_SIZE", ranks.clone()),
            ("OMPI_COMM_WORLD_LOCAL_RANK", rank),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", ranks),
        ],
        _ => vec![
            ("RANK", rank.clone()),
            ("WORLD_SIZE", ranks),
            ("LOCAL_RANK", rank),
            ("MASTER_ADDR", "127.0.0.1".to_owned()),
        ],
    }
}

/// Brief transfers whose rates are not judged, on a machine that may be busy.
const BRIEF: &str = "--size 4K --duration 10 --least 0 --wait 120 --timeout 60";

/// Returns a TCP port that no socket has, for the meeting and, as UDP port, for the devices.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn report(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn ranks_of_every_launcher_measure_each_direction_once() {
    for launcher in ["slurm", "openmpi", "torchrun"] {
        let port = free_port();
        let meet = match launcher {
            "slurm" => format!("--meet 127.0.0.1:{port}"),
            _ => format!("--meet localhost:{port}"),
        };
        let line = format!("{BRIEF} {meet} --udp-port {port}");
        let ranks: Vec<_> = (0..3)
            .map(|rank| Rank::start(&line, &launched(launcher, rank, 3)))
            .collect();
        let mut ends: Vec<_> = ranks.into_iter().map(Rank::end).collect();
        for (status, _, errors) in &ends {
            assert_eq!(*status, Some(0), "{launcher}: {errors}");
        }
        let report = report(&ends.swap_remove(0).1);
        assert_eq!(report["schema"], "gdr.mesh");
        assert_eq!(report["simulated"], true);
        assert_eq!(report["passed"], true);
        assert_eq!(report["members"].as_array().unwrap().len(), 3);
        let cells = report["cells"].as_array().unwrap();
        let directions: Vec<_> = cells
            .iter()
            .map(|cell| (&cell["from"], &cell["to"]))
            .collect();
        let expected = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)];
        assert!(
            directions
                .iter()
                .zip(expected)
                .all(|(found, (from, to))| *found.0 == from && *found.1 == to),
            "{directions:?}"
        );
        assert!(
            cells
                .iter()
                .all(|cell| cell["outcome"] == "measured" && cell["gb_per_s"].as_f64() > Some(0.0))
        );
    }
}

#[test]
fn a_rank_that_is_killed_and_one_that_never_comes_are_named_and_the_others_end() {
    // Long enough that the killed rank is in the middle of it.
    let port = free_port();
    let line = format!(
        "--size 4K --duration 300 --least 0 --wait 15 --timeout 10 --meet 127.0.0.1:{port} --udp-port \
         {port}"
    );
    let start = |rank| Rank::start(&line, &launched("torchrun", rank, 5));
    // Rank 4 does not come, so the rounds begin when the time to meet is over.
    let mut ranks: Vec<_> = (0..4).map(start).collect();
    let mut victim = ranks.remove(2);
    victim.0.kill().unwrap();
    let mut ends: Vec<_> = ranks.into_iter().map(Rank::end).collect();
    for (status, _, errors) in &ends {
        assert_eq!(*status, Some(2), "{errors}");
    }
    let report = report(&ends.swap_remove(0).1);
    assert_eq!(report["passed"], false);
    let absent: Vec<_> = report["absent"]
        .as_array()
        .unwrap()
        .iter()
        .map(Value::as_u64)
        .collect();
    // A rank that is killed before it joins is absent as well.
    assert!(absent.contains(&Some(4)), "{report}");
    let is_named =
        absent.contains(&Some(2)) || report["outliers"].to_string().contains("rank 2 on");
    assert!(is_named, "{report}");
    let rate = |from: u64, to: u64| {
        let cells = report["cells"].as_array().unwrap();
        let cell = cells
            .iter()
            .find(|cell| cell["from"] == from && cell["to"] == to);
        cell.is_some_and(|cell| cell["outcome"] == "measured")
    };
    for (from, to) in [(0, 1), (1, 0), (0, 3), (3, 0), (1, 3), (3, 1)] {
        assert!(rate(from, to), "{from} to {to}: {report}");
    }
}

#[test]
fn csv_the_table_and_the_picture_have_the_same_directions() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("mesh.svg");
    let port = free_port();
    let line = format!(
        "mesh --simulate --provider soft {BRIEF} --meet 127.0.0.1:{port} --udp-port {port} --ranks 2"
    );
    let other = Rank::start(
        &line.replace("mesh --simulate --provider soft", "--rank 1"),
        &[],
    );
    let first = clean(assert_cmd::cargo::cargo_bin_cmd!("gdr"))
        .args(line.split_whitespace())
        .args(["--rank", "0", "--csv", "--svg"])
        .arg(&picture)
        .output()
        .unwrap();
    assert_eq!(code(&first), 0, "{}", stderr(&first));
    assert_eq!(other.end().0, Some(0));
    let csv = String::from_utf8(first.stdout).unwrap();
    let rows: Vec<_> = csv.lines().skip(1).collect();
    assert_eq!(rows.len(), 2, "{csv}");
    let picture = fs::read_to_string(picture).unwrap();
    assert_contains!(picture, "SIMULATED");
    for row in rows {
        let cells: Vec<_> = row.split(',').collect();
        let title = format!("rank {} to rank {}: ", cells[0], cells[1]);
        assert!(picture.contains(&title), "{title}: {picture}");
    }
}

#[test]
fn what_is_missing_or_contradicts_is_named() {
    for (line, named) in [
        ("mesh", "the rank is unknown"),
        ("mesh --rank 0", "the number of ranks is unknown"),
        ("mesh --rank 3 --ranks 3", "--rank 3 of --ranks 3"),
        ("mesh --rank 0 --ranks 2 --size 0", "0 bytes"),
        ("mesh --rank 0 --ranks 2 --meet 192.0.2.1", "shared key"),
    ] {
        let output = simulated(line);
        assert_eq!(code(&output), 64, "{line}: {}", stderr(&output));
        assert!(
            stderr(&output).contains(named),
            "{line}: {}",
            stderr(&output)
        );
    }
    let port = free_port();
    let alone = simulated(&format!(
        "mesh --rank 0 --ranks 2 --wait 1 --meet 127.0.0.1:{port} --provider soft --udp-port {port}"
    ));
    assert_eq!(code(&alone), 2, "{}", stderr(&alone));
    assert_contains!(stderr(&alone), "fewer than 2 of 2 ranks");
}

#[test]
fn a_host_file_gives_rank_and_place_and_the_document_keeps_its_shape() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    fs::write(&hosts, "localhost slots=3 # this machine\n").unwrap();
    let port = free_port();
    let line = format!(
        "--size 4K --duration 10 --least 0 --wait 120 --timeout 60 --meet localhost:{port} --udp-port \
         {port} --host-file {}",
        hosts.display()
    );
    let start = |local| Rank::start(&format!("{line} --local-rank {local}"), &[]);
    let mut ends: Vec<_> = [2, 0, 1].map(start).into_iter().map(Rank::end).collect();
    for (status, _, errors) in &ends {
        assert_eq!(*status, Some(0), "{errors}");
    }
    let report = report(&ends.swap_remove(1).1);
    let ranks: Vec<_> = report["members"]
        .as_array()
        .unwrap()
        .iter()
        .map(|member| member["rank"].as_u64().unwrap())
        .collect();
    assert_eq!(ranks, [0, 1, 2]);
    let free = [
        "gdr",
        "time",
        "members[].host",
        "members[].device",
        "members[].gpu",
    ];
    assert_snapshot!("json/gdr.mesh.txt", &Shape::of(&report).lines(&free));
}
