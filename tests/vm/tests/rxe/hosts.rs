//! `gdr net`: the effect of netem on the RDMA traffic between its hosts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::process::LIMIT;

/// Runs a command on host 0, and retries another on host 1 until it succeeds, because the first may not listen yet.
/// Returns what both printed.
fn run(name: &str, options: &[&str], server: &str, client: &str) -> String {
    // For names without a folder, busybox would run its own programs.
    let script = format!(
        "#!/usr/bin/busybox sh\n[ $RANK = 0 ] && {{ {server}; exit; }}\nfor turn in $(busybox seq 100); do {client} && \
         exit; busybox sleep 0.1; done\nexit 1\n"
    );
    let path = format!("/tmp/{name}");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let limit = LIMIT.as_secs().to_string();
    let output = Command::new("/usr/bin/busybox")
        .args(["timeout", &limit, "/gdr/gdr", "net", "--hosts", "2"])
        .args(options)
        .args(["--", &path])
        .env("GDR_VERBS_LIBRARY", "/gdr")
        .output()
        .unwrap();
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    assert!(output.status.success(), "{}: {printed}", output.status);
    printed
}

/// Returns the columns of the result of perftest on host 1.
fn result(printed: &str) -> Vec<f64> {
    let lines = printed
        .lines()
        .filter_map(|line| line.strip_prefix("host1: "));
    let numbers = |line: &str| {
        let words = line.split_whitespace().map(str::parse);
        words.collect::<Result<Vec<f64>, _>>().ok()
    };
    let mut results = lines.filter_map(numbers).filter(|it| it.len() > 3);
    results
        .next()
        .unwrap_or_else(|| panic!("no result in\n{printed}"))
}

#[test]
#[ignore = "runs in the VM"]
fn netem_has_what_the_options_say() {
    let show = "/usr/bin/tc qdisc show dev eth0";
    let options = ["--latency", "20ms", "--loss", "50%", "--rate", "1G"];
    let printed = run("shown", &options, show, show);
    let expected = "delay 20ms loss 50% rate 1Gbit";
    assert_eq!(printed.matches(expected).count(), 2, "{printed}");
}

#[test]
#[ignore = "runs in the VM"]
fn a_message_takes_the_latency() {
    let line = "ib_send_lat -F -s 64 -n 20 -u 18";
    let client = format!("{line} $MASTER_ADDR");
    let printed = run("latency", &["--latency", "20ms"], line, &client);
    // Bytes, iterations, and minimum time of a message in microseconds.
    let least = result(&printed)[2];
    println!("{least} us");
    assert!(least >= 20_000.0, "{printed}");
}

#[test]
#[ignore = "runs in the VM"]
fn writes_are_not_faster_than_the_rate() {
    let line = "ib_write_bw -F -s 8192 -n 100 -u 18";
    let client = format!("{line} $MASTER_ADDR");
    let printed = run("rate", &["--rate", "8M"], line, &client);
    // Bytes, iterations, peak, and average in units of 2^20 bytes.
    let average = result(&printed)[3];
    println!("{average} MiB/s");
    assert!(average <= 1.0, "{printed}");
}

#[test]
#[ignore = "runs in the VM"]
fn bytes_are_right_where_packets_are_lost() {
    // rxe is visible in all network namespaces.
    let line = "/gdr/gdr loopback --provider soft --simulate --insecure";
    let show = "/usr/bin/tc -s qdisc show dev eth0";
    let server = format!("{line} --listen $MASTER_ADDR && {show}");
    let client = format!("{line} --connect $MASTER_ADDR --iterations 5 --size 256K && {show}");
    let printed = run("loss", &["--loss", "5%"], &server, &client);
    for host in ["host0", "host1"] {
        assert!(printed.contains(&format!("{host}: PASS")), "{printed}");
    }
    let lost = printed.split("(dropped ").skip(1).filter_map(|rest| {
        let (count, _) = rest.split_once(',')?;
        count.parse::<u64>().ok()
    });
    let lost: Vec<_> = lost.collect();
    println!("{lost:?} packets lost");
    assert!(
        lost.len() == 2 && lost.iter().all(|count| *count > 0),
        "{printed}"
    );
}
