//! `gdr net`: hosts, the programs on them, and how all of it ends.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use assert_cmd::cargo_bin;
use rustix::fs::{CWD, Mode, mkfifoat};
use serde_json::Value;
use snapshot::assert_contains;

use super::preloaded::command;
use super::{code, stderr, stdout};

/// Returns the output of `gdr net`; none where this machine permits no namespaces.
fn net(arguments: &[&str]) -> Option<Output> {
    let output = command(&["net"]).args(arguments).output().unwrap();
    let is_refused = stderr(&output).contains("hosts need network namespaces");
    if is_refused {
        assert_eq!(code(&output), 125);
        skip::skip("no user and network namespaces");
    }
    (!is_refused).then_some(output)
}

/// Returns a program with the environment of [`command`].
fn prepared(program: &Path) -> Command {
    let mut prepared = Command::new(program);
    for (name, value) in command(&[]).get_envs() {
        match value {
            Some(value) => prepared.env(name, value),
            None => prepared.env_remove(name),
        };
    }
    prepared
}

/// Returns the lines of a host or rank, in order.
fn lines_of(label: &str, output: &Output) -> Vec<String> {
    let (text, label) = (stdout(output), format!("{label}: "));
    let lines = text.lines().filter_map(|line| line.strip_prefix(&label));
    lines.map(str::to_owned).collect()
}

#[test]
fn each_rank_has_its_variables_and_each_host_its_name_its_address_and_its_processes() {
    let show = "hostname; echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK; echo \
                $MASTER_ADDR:$MASTER_PORT $GDR_NICS; cut -d ' ' -f 1 /proc/self/stat /proc/1/stat | wc -l; echo $$; \
                ls /dev/shm";
    let arguments = ["--hosts", "2", "--ranks-per-host", "2", "--nics", "2"];
    let arguments = [&arguments[..], &["--", "sh", "-c", show]].concat();
    let Some(output) = net(&arguments) else {
        return;
    };
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    for rank in 0..4 {
        let host = rank / 2;
        let lines = lines_of(&format!("host{host} rank {rank}"), &output);
        assert_eq!(
            lines[..4],
            [
                format!("host{host}"),
                format!("{rank} 4 {} 2 {host}", rank % 2),
                "10.77.0.1:29500 eth0,eth1".to_owned(),
                "2".to_owned(),
            ]
        );
        // The first process is gdr's, and the folder is empty.
        assert!(lines[4].parse::<u32>().unwrap() < 100, "{lines:?}");
        assert_eq!(lines.len(), 5, "{lines:?}");
    }
}

#[test]
fn bytes_go_from_host_to_host_by_rdma() {
    let gdr = cargo_bin!("gdr").display();
    // The listener may not be there yet.
    let script = format!(
        "run() {{ {gdr} loopback --simulate --insecure \"$@\"; }}; if [ $RANK = 0 ]; then run --listen \
         $MASTER_ADDR; exit; fi; for turn in $(seq 100); do run --connect $MASTER_ADDR -i 1 --size 64K && exit; sleep 0.1; done; exit 1"
    );
    let Some(output) = net(&["--hosts", "2", "--", "sh", "-c", &script]) else {
        return;
    };
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    for host in ["host0", "host1"] {
        let lines = lines_of(host, &output);
        let has = |text| lines.iter().any(|line| line.starts_with(text));
        assert!(has("PASS") && has("wire      UDP"), "{lines:?}");
    }
}

#[test]
fn a_rank_that_fails_ends_the_others_and_its_status_is_that_of_gdr() {
    let folder = tempfile::tempdir().unwrap();
    // The others take no notice of SIGTERM, and leave a process of their own.
    let script = format!(
        "cd {}; if [ $RANK = 1 ]; then until [ -e 0 ] && [ -e 2 ]; do sleep 0.01; done; exit 7; fi; trap '' TERM; \
         sleep 900 & touch $RANK; sleep 900",
        folder.path().display()
    );
    let arguments = [
        "--hosts",
        "3",
        "--kill-after",
        "1",
        "--json",
        "--",
        "sh",
        "-c",
        &script,
    ];
    let Some(output) = net(&arguments) else {
        return;
    };
    assert_eq!(code(&output), 7, "{}", stderr(&output));
    let said = stderr(&output);
    assert_contains!(said, "host1 ended with status 7; the others");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["schema"], "gdr.net");
    assert_eq!(report["exit"], 7);
    let ranks = report["ranks"].as_array().unwrap();
    let ends: Vec<_> = ranks
        .iter()
        .map(|rank| (&rank["status"], &rank["signal"], &rank["stopped"]))
        .collect();
    let killed = (&Value::Null, &Value::from(9), &Value::Bool(true));
    assert_eq!(ends[0], killed);
    assert_eq!(
        ends[1],
        (&Value::from(7), &Value::Null, &Value::Bool(false))
    );
    assert_eq!(ends[2], killed);
}

#[test]
fn a_rank_that_is_killed_has_the_status_of_shells() {
    let script = "[ $RANK = 0 ] && kill -KILL $$; exec sleep 900";
    let Some(output) = net(&["--hosts", "2", "--", "sh", "-c", script]) else {
        return;
    };
    assert_eq!(code(&output), 128 + 9, "{}", stderr(&output));
}

#[test]
fn all_processes_of_the_hosts_end_when_gdr_is_killed() {
    if net(&["--hosts", "1", "--", "true"]).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("held");
    mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
    // Each rank and a process in a session of its own hold the file.
    let script = format!(
        "exec >{}; setsid sh -c 'trap \"\" HUP TERM; sleep 900' & echo there; sleep 900",
        fifo.display()
    );
    let mut gdr = prepared(cargo_bin!("gdr"))
        .args(["net", "--hosts", "2", "--", "sh", "-c", &script])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let (say, said) = channel();
    thread::spawn(move || {
        let mut held = BufReader::new(File::open(fifo).unwrap());
        for _ in 0..2 {
            held.read_line(&mut String::new()).unwrap();
        }
        say.send(()).unwrap();
        // Until no process has it open.
        held.read_to_end(&mut Vec::new()).unwrap();
        say.send(()).unwrap();
    });
    let wait = Duration::from_secs(60);
    said.recv_timeout(wait).unwrap();
    gdr.kill().unwrap();
    gdr.wait().unwrap();
    said.recv_timeout(wait).unwrap();
}

#[test]
fn no_privilege_is_needed_and_the_user_stays_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let gdr = folder.path().join("gdr");
    crate::copy_program(cargo_bin!("gdr"), &gdr);
    let mut user = prepared(&gdr);
    let show = "echo $(id -u) $(id -g); grep CapEff /proc/self/status";
    user.args(["net", "--hosts", "1", "--", "sh", "-c", show]);
    if rustix::process::geteuid().is_root() {
        user.uid(12345).gid(12345);
    }
    for place in [folder.path(), super::preloaded::library()] {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(place, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let output = match user.output() {
        Ok(output) => output,
        Err(error) => return skip::skip(format_args!("no program for another user: {error}")),
    };
    if stderr(&output).contains("hosts need network namespaces") {
        return skip::skip("no user namespaces without privilege");
    }
    let lines = lines_of("host0", &output);
    let own = match rustix::process::geteuid() {
        user if user.is_root() => "12345 12345".to_owned(),
        user => format!("{} {}", user.as_raw(), rustix::process::getegid().as_raw()),
    };
    assert_eq!(
        lines,
        [own, "CapEff:\t0000000000000000".to_owned()],
        "{}",
        stderr(&output)
    );
}

#[test]
fn what_the_machine_does_not_permit_is_named_with_what_to_do() {
    // A user namespace in which no network namespace can be made.
    let mut limited = prepared(Path::new("unshare"));
    let script = "echo 0 >/proc/sys/user/max_net_namespaces && exec \"$0\" net --hosts 2 -- true";
    let gdr = cargo_bin!("gdr");
    let limited = limited.args(["-Ur", "sh", "-c", script]).arg(gdr).output();
    match limited {
        Ok(output) if output.status.code() == Some(125) => {
            let text = stderr(&output);
            assert_contains!(text, "hosts need network namespaces");
            assert_contains!(text, "`gdr run --nics N`");
        }
        _ => skip::skip("no user namespace (unshare -Ur)"),
    }
    let arguments = [
        "--hosts",
        "1",
        "--latency",
        "20ms",
        "--loss",
        "50%",
        "--rate",
        "1G",
    ];
    let show = ["--", "tc", "qdisc", "show", "dev", "eth0"];
    let Some(output) = net(&[&arguments[..], &show].concat()) else {
        return;
    };
    let (text, said) = (stdout(&output), stderr(&output));
    match code(&output) {
        0 => assert!(text.contains("delay 20ms loss 50% rate 1Gbit"), "{text}"),
        127 => skip::skip("no tc"),
        125 => assert!(
            said.contains("modprobe sch_netem") && said.contains("--chaos"),
            "{said}"
        ),
        other => panic!("{other}: {said}"),
    }
}

#[test]
fn a_wrong_command_line_or_program_has_the_status_of_gdr_run() {
    for (arguments, status) in [
        (&["--hosts", "0", "true"][..], 64),
        (&["--hosts", "2"], 64),
        (&["--hosts", "2", "--latency", "1", "true"], 64),
        (&["--hosts", "2", "--loss", "101%", "true"], 64),
        (&["--hosts", "2", "--rate", "fast", "true"], 64),
        (&["--hosts", "2", "no-such-program"], 127),
    ] {
        let output = command(&["net"]).args(arguments).output().unwrap();
        assert_eq!(code(&output), status, "{}", stderr(&output));
    }
}
